"""Every optimizer of PyTorch's database with every set of options: three steps equal the CPU's."""

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from tests import support
from tests.compare import compare_tensors
from tests.ops import gaps

STEPS = 3
SPARSE = {"SparseAdam"}


def option_sets(info):
    """Options of the database, each plain, with foreach and with fused where the CPU has it."""
    for options in info.optim_inputs_func(device="cpu"):
        flags = [{}]
        if "foreach" in info.supported_impls:
            flags = [{"foreach": False}, {"foreach": True}]
        if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
            flags.append({"fused": True})
        for flag in flags:
            label = "-".join([options.desc, *(f"{key}={on}" for key, on in flag.items())])
            yield label, options.kwargs | flag


CASES = [
    pytest.param(info, kwargs, id=f"{info.optim_cls.__name__}-{label}")
    for info in optim_db
    for label, kwargs in option_sets(info)
]


class Net(torch.nn.Module):
    """Two matrices and a bias, or an embedding with sparse gradients in front of a matrix."""

    def __init__(self, sparse: bool, bias: bool):
        super().__init__()
        self.first = (
            torch.nn.Embedding(6, 4, sparse=True) if sparse else torch.nn.Linear(6, 4, bias)
        )
        self.second = torch.nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def train(info, kwargs, device):
    """The losses of three steps, the parameters and the optimizer's state; or what was raised."""
    support.seed(0)
    sparse = info.optim_cls.__name__ in SPARSE
    net = Net(sparse, bias=info.optim_cls is not torch.optim.Muon)
    x = torch.tensor([0, 3, 5, 3, 1]) if sparse else torch.randn(5, 6)
    target, net, x = torch.randn(5, 3).to(device), net.to(device), x.to(device)
    parameters = net.first.parameters() if sparse else net.parameters()
    losses = []
    try:
        optimizer = info.optim_cls(parameters, **copy.deepcopy(kwargs))

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), target)
            loss.backward()
            losses.append(loss.detach())
            return loss

        for _ in range(STEPS):
            if info.step_requires_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        state = dict(leaves(optimizer.state_dict()["state"]))
        return losses, list(net.parameters()), state, None
    except Exception as error:
        return losses, list(net.parameters()), {}, error


def leaves(value, key=""):
    """Key and value of everything inside nested dicts and lists."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{key}[{index}]")
    else:
        yield key, value


@pytest.mark.parametrize(("info", "kwargs"), CASES)
def test_three_steps(info, kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = train(info, kwargs, "cpu")
        got = train(info, kwargs, support.DEVICE)
    problems = compare_runs(got, want)
    if support.ON_TILEDEV and info.optim_cls.__name__ in gaps.OPTIMIZERS:
        assert problems, f"take {info.optim_cls.__name__} off OPTIMIZERS in tests/ops/gaps.py"
    else:
        assert not problems, "\n".join(map(str, problems))


def compare_runs(got, want):
    """What differs in errors, losses, parameters and state."""
    if type(got[3]) is not type(want[3]):
        return [f"raised {got[3]!r}; on the CPU {want[3]!r}"]
    problems = []
    for index, what in enumerate(("loss", "parameter")):
        problems += compare_tensors(got[index], want[index], what)
    if got[2].keys() != want[2].keys():
        return [*problems, f"state has {sorted(got[2])}, on the CPU {sorted(want[2])}"]
    for key, theirs in want[2].items():
        if isinstance(theirs, torch.Tensor):
            problems += compare_tensors(got[2][key], theirs, f"state{key}")
        elif got[2][key] != theirs:
            problems.append(f"state{key} is {got[2][key]}, on the CPU {theirs}")
    return problems


CAPTURABLE = [
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
]


@pytest.mark.tiledev_only
@pytest.mark.parametrize("optimizer", CAPTURABLE, ids=lambda cls: cls.__name__)
def test_capturable_equals_plain(optimizer):
    """The CPU has no capturable optimizers; their arithmetic is that of the plain ones."""
    info = next(info for info in optim_db if info.optim_cls is optimizer)
    want, got = train(info, {}, "cpu"), train(info, {"capturable": True}, support.DEVICE)
    assert got[3] is None
    assert not compare_tensors(got[1], want[1], "parameter", rtol=1e-5, atol=1e-6)


def test_gaps_name_optimizers():
    assert set(gaps.OPTIMIZERS) <= {info.optim_cls.__name__ for info in optim_db}
