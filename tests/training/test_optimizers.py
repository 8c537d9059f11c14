"""SGD, Adam and AdamW take the steps of torch.optim's on the CPU."""

import copy
import pickle

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import tiledev
from tests import support
from tests.compare import compare_tensors
from tests.training.recorded import parameters, set_gradients, step_without_reading
from tiledev.training import SGD, Adam, AdamW

STEPS = 4
OURS = {torch.optim.SGD: SGD, torch.optim.Adam: Adam, torch.optim.AdamW: AdamW}
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
HALF = [torch.float16, torch.bfloat16]

MORE = {
    torch.optim.SGD: [
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "maximize": True},
    ],
    torch.optim.Adam: [
        {"betas": (0.8, 0.95), "eps": 1e-3, "amsgrad": True, "weight_decay": 0.1},
        {"decoupled_weight_decay": True, "weight_decay": 0.3, "maximize": True},
    ],
    torch.optim.AdamW: [{"betas": (0.8, 0.95), "amsgrad": True, "maximize": True}],
}


def option_sets(cls):
    """The database's options that say what is computed, and more."""
    info = next(info for info in optim_db if info.optim_cls is cls)
    for options in info.optim_inputs_func(device="cpu"):
        if not IMPLEMENTATION & options.kwargs.keys():
            yield options.desc, options.kwargs
    for options in MORE[cls]:
        yield ",".join(options), options


CASES = [
    pytest.param(cls, kwargs, id=f"{cls.__name__}-{label}")
    for cls in OURS
    for label, kwargs in option_sets(cls)
]
BRIEF = [
    pytest.param(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, id="SGD"),
    pytest.param(torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}, id="Adam"),
    pytest.param(torch.optim.AdamW, {"lr": 0.1}, id="AdamW"),
]


def take_steps(optimizer, steps=range(STEPS), **gradients):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for step in steps:
        set_gradients(params, step, **gradients)
        optimizer.step()


def problems(ours, theirs, **tolerance):
    """What differs between two optimizers in parameters and state."""
    found, mine, want = [], ours.state_dict(), theirs.state_dict()
    assert [set(group) for group in mine["param_groups"]] == [
        set(group) for group in want["param_groups"]
    ]
    pairs = zip(ours.param_groups, theirs.param_groups, strict=True)
    for index, (a, b) in enumerate(pairs):
        found += compare_tensors(a["params"], b["params"], f"group {index}", **tolerance)
    assert mine["state"].keys() == want["state"].keys()
    for key, state in want["state"].items():
        assert mine["state"][key].keys() - {"master"} == state.keys()
        for name, value in state.items():
            found += compare_tensors(mine["state"][key][name], value, f"{key}.{name}", **tolerance)
    return found


@pytest.mark.parametrize(("cls", "kwargs"), CASES)
def test_equals_torch(cls, kwargs):
    theirs = cls(parameters("cpu"), **copy.deepcopy(kwargs))
    ours = OURS[cls](parameters(support.DEVICE), **copy.deepcopy(kwargs))
    step_without_reading(ours)
    take_steps(theirs)
    take_steps(ours)
    assert not problems(ours, theirs)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("cls", "kwargs"), CASES)
def test_master_weights(cls, kwargs, dtype):
    """Parameters of half precision follow float32 ones that get the same gradients."""
    start = parameters("cpu", dtype)
    wide = [torch.nn.Parameter(param.detach().float()) for param in start]
    theirs = cls(wide, **copy.deepcopy(kwargs))
    ours = OURS[cls](parameters(support.DEVICE, dtype), **copy.deepcopy(kwargs))
    step_without_reading(ours)
    for step in range(STEPS):
        take_steps(theirs, [step], dtype=dtype)
        take_steps(ours, [step], dtype=dtype)
    mine = ours.state_dict()["state"]
    for index, param in enumerate(wide):
        assert not compare_tensors(mine[index]["master"], param.detach(), "master")
        rounded = mine[index]["master"].to(dtype)
        assert torch.equal(ours.param_groups[0]["params"][index].cpu(), rounded.cpu())
        for name, value in theirs.state[param].items():
            assert not compare_tensors(mine[index][name], value, name)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
def test_half_precision_without_masters(cls, kwargs, dtype):
    fused = {"fused": cls is not torch.optim.SGD}  # it rounds once a step, the others at each op
    theirs = cls(parameters("cpu", dtype), **kwargs, **fused)
    ours = OURS[cls](parameters(support.DEVICE, dtype), **kwargs, master_weights=False)
    take_steps(theirs, dtype=dtype)
    take_steps(ours, dtype=dtype)
    assert not problems(ours, theirs)


def test_masters_gather_small_steps():
    """100 steps of a thousandth of a bfloat16's resolution move it; without masters, none does."""
    moved = {}
    for masters in (False, True):
        weight = torch.ones(3, dtype=torch.bfloat16, device=support.DEVICE, requires_grad=True)
        optimizer = SGD([weight], lr=1e-4, master_weights=masters)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        moved[masters] = 1 - weight[0].item()
    assert moved[False] == 0
    assert moved[True] == pytest.approx(0.01, abs=0.004)


def test_masters_follow_what_others_write():
    weight = torch.ones(3, dtype=torch.bfloat16, device=support.DEVICE, requires_grad=True)
    optimizer = SGD([weight], lr=0.5)
    for start in (1.0, 8.0):
        with torch.no_grad():
            weight.fill_(start)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert weight.tolist() == [start - 0.5] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
@pytest.mark.parametrize("norm", [0.5, 1e3])
def test_max_grad_norm(cls, kwargs, norm, dtype):
    start = parameters("cpu", dtype)
    wide = [torch.nn.Parameter(param.detach().float()) for param in start]
    theirs = cls(wide, **kwargs)
    ours = OURS[cls](parameters(support.DEVICE, dtype), **kwargs, max_grad_norm=norm)
    step_without_reading(ours)
    for step in range(STEPS):
        set_gradients(wide, step, dtype)
        torch.nn.utils.clip_grad_norm_(wide, norm)
        theirs.step()
        take_steps(ours, [step], dtype=dtype)
    for mine, want in zip(ours.param_groups[0]["params"], wide, strict=True):
        got = ours.state[mine].get("master", mine)
        assert not compare_tensors(got.detach(), want.detach(), "weight")
    want = torch.nn.Parameter(torch.zeros(6, 4))
    set_gradients([want], STEPS - 1, dtype)
    assert torch.equal(ours.param_groups[0]["params"][0].grad.cpu().float(), want.grad)


def test_the_norm_is_that_of_all_groups():
    grown = []
    for device, cls in (("cpu", torch.optim.SGD), (support.DEVICE, SGD)):
        a, b = parameters(device, shapes=((3,), (4,)))
        options = {} if cls is torch.optim.SGD else {"max_grad_norm": 0.1}
        optimizer = cls([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1, **options)
        set_gradients([a, b], 0)
        if not options:
            torch.nn.utils.clip_grad_norm_([a, b], 0.1)
        optimizer.step()
        grown.append([a, b])
    assert not compare_tensors(grown[1], grown[0], "weight")


@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
def test_groups_and_schedulers(cls, kwargs):
    optimizers = []
    for device, kind in (("cpu", cls), (support.DEVICE, OURS[cls])):
        a, b, c, d = parameters(device)
        groups = [{"params": [a, c], "weight_decay": 0.2}, {"params": [b], "lr": 0.3}]
        optimizer = kind(groups, **kwargs)
        optimizer.add_param_group({"params": [d], "lr": 0.01})
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=8)
        for step in range(5):
            set_gradients([a, b, c, d], step)
            if step == 2:
                b.grad = None  # a parameter without a gradient is left out
            optimizer.step()
            scheduler.step()
        optimizers.append(optimizer)
    assert not problems(optimizers[1], optimizers[0])


@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
@pytest.mark.parametrize("to_ours", [False, True])
def test_states_are_interchangeable(cls, kwargs, to_ours):
    reference = cls(parameters("cpu"), **kwargs)
    take_steps(reference)
    first, second = (cls, OURS[cls]) if to_ours else (OURS[cls], cls)
    params = parameters(support.DEVICE)
    one = first(params, **kwargs)
    take_steps(one, range(2))
    other = second(params, lr=0.7)
    other.load_state_dict(one.state_dict())
    take_steps(other, range(2, STEPS))
    assert not problems(other, reference)


@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
def test_a_fused_or_capturable_state_is_taken(cls, kwargs):
    reference = cls(parameters("cpu"), **kwargs)
    take_steps(reference)
    options = [{"fused": True}]
    if cls is not torch.optim.SGD and support.ON_TILEDEV:  # the CPU has no capturable optimizers
        options.append({"capturable": True})
    for option in options:
        params = parameters(support.DEVICE)
        one = cls(params, **kwargs, **option)
        take_steps(one, range(2))
        other = OURS[cls](params)
        other.load_state_dict(one.state_dict())
        step_without_reading(other)
        take_steps(other, range(2, STEPS))
        assert not problems(other, reference)


@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
def test_masters_survive_a_state_dict(cls, kwargs):
    straight = OURS[cls](parameters(support.DEVICE, torch.bfloat16), **kwargs)
    take_steps(straight, dtype=torch.bfloat16)
    one = OURS[cls](parameters(support.DEVICE, torch.bfloat16), **kwargs)
    take_steps(one, range(2), dtype=torch.bfloat16)
    params = [torch.nn.Parameter(param.detach().clone()) for param in one.param_groups[0]["params"]]
    other = OURS[cls](params)
    state = copy.deepcopy(one.state_dict())
    other.register_load_state_dict_post_hook(lambda o: seen.append(o.state[params[0]]["master"]))
    seen = []
    other.load_state_dict(state)
    assert seen[0].dtype == torch.float32
    take_steps(other, range(2, STEPS), dtype=torch.bfloat16)
    for mine, want in zip(params, straight.param_groups[0]["params"], strict=True):
        assert torch.equal(other.state[mine]["master"].cpu(), straight.state[want]["master"].cpu())


def test_torch_takes_a_state_with_masters():
    ours = AdamW(parameters(support.DEVICE, torch.bfloat16))
    take_steps(ours)
    theirs = torch.optim.AdamW(parameters("cpu", torch.bfloat16))
    theirs.load_state_dict(ours.state_dict())
    take_steps(theirs)
    back = AdamW(parameters(support.DEVICE, torch.bfloat16))
    back.load_state_dict({key: theirs.state_dict()[key] for key in ("state", "param_groups")})
    assert back.state[back.param_groups[0]["params"][0]]["exp_avg"].dtype == torch.float32
    take_steps(back)


@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_learning_rate_and_betas_as_tensors(cls):
    theirs = OURS_TO_TORCH[cls](parameters("cpu"), lr=0.1, betas=(0.8, 0.9))
    take_steps(theirs)
    for device in {"cpu", support.DEVICE}:
        lr = torch.tensor(0.1, device=device)
        ours = cls(parameters(support.DEVICE), lr=lr, betas=(0.8, 0.9))
        if support.ON_TILEDEV:
            step_without_reading(ours)
        take_steps(ours)
        pairs = zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True)
        for mine, want in pairs:
            assert not compare_tensors(mine, want, f"lr on {device}")


OURS_TO_TORCH = {ours: theirs for theirs, ours in OURS.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
@pytest.mark.parametrize("layout", ["gradient", "parameter", "gaps"])
def test_strides(layout, cls, kwargs, dtype):
    """PyTorch's fused kernels ignore strides; ours must not."""
    values, grads, results = torch.randn(4, 12).to(dtype), torch.randn(6, 4).to(dtype), []
    for device, kind, kept in (("cpu", cls, torch.float32), (support.DEVICE, OURS[cls], dtype)):
        table = values.to(device, kept, copy=True)
        start = {
            "gradient": table[:, :6].contiguous(),
            "parameter": table[:, :6].T.contiguous().T,
            "gaps": table[:, ::2],
        }[layout]
        weight = torch.nn.Parameter(start)
        optimizer = kind([weight], **kwargs)
        for _ in range(STEPS):
            grad = grads.to(device, kept).T
            weight.grad = grad if layout == "gradient" else grad.contiguous()
            optimizer.step()
        results.append(optimizer.state[weight].get("master", weight).detach())
    assert not [
        problem for problem in compare_tensors(*results[::-1], "weight") if not problem.soft
    ]


def test_a_closure():
    weight = torch.tensor([3.0], device=support.DEVICE, requires_grad=True)
    optimizer = Adam([weight], lr=1.0)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9
    assert optimizer.step() is None
    assert weight.item() < 2.1


def test_complex_parameters():
    start = torch.randn(4, dtype=torch.complex64)
    found = []
    for device, cls in (("cpu", torch.optim.Adam), (support.DEVICE, Adam)):
        weight = torch.nn.Parameter(start.to(device, copy=True))
        optimizer = cls([weight], lr=0.1, amsgrad=True)
        for step in range(STEPS):
            weight.grad = (start * (step + 1)).to(device)
            optimizer.step()
        found.append(weight)
    assert not compare_tensors(found[1], found[0], "weight")


@pytest.mark.parametrize("pickled", [False, True])
def test_copies_keep_their_options(pickled):
    one = SGD(parameters("cpu"), lr=0.1, max_grad_norm=2.0, master_weights=False)
    other = pickle.loads(pickle.dumps(one)) if pickled else copy.deepcopy(one)
    assert (other.max_grad_norm, other.master_weights) == (2.0, False)
    take_steps(other)


@pytest.mark.tiledev_only
@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_one_update_for_all_parameters(cls):
    optimizer = cls(parameters(support.DEVICE))
    names = []
    optimizer.register_step_post_hook(lambda *_: names.extend(tiledev.pending_op_names()))
    take_steps(optimizer, range(1))
    names.clear()
    take_steps(optimizer, range(1, 2))
    update = "aten::_fused_adamw_" if cls is AdamW else "aten::_fused_adam_"
    assert names.count(update) == 1
    counts = len(optimizer.param_groups[0]["params"])
    assert len([name for name in names if name != "aten::copy_"]) <= counts + 1


def embedding():
    """A table on the CPU (tiledev has no sparse tensors) with a sparse gradient."""
    torch.manual_seed(0)
    table = torch.nn.Embedding(6, 3, sparse=True)
    table(torch.tensor([1, 4, 1])).square().sum().backward()
    return table


def test_sparse_gradients():
    one, other = embedding(), embedding()
    torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9).step()
    SGD(other.parameters(), lr=0.1, momentum=0.9).step()
    assert torch.equal(one.weight, other.weight)


@pytest.mark.parametrize(
    ("cls", "options"), [(SGD, {"max_grad_norm": 1.0}), (Adam, {})], ids=["SGD", "Adam"]
)
def test_sparse_gradients_that_are_refused(cls, options):
    with pytest.raises(RuntimeError, match=rf"^\[{cls.__name__}.step\] got a sparse gradient"):
        cls(embedding().parameters(), **options).step()


@pytest.mark.parametrize("cls", [SGD, Adam, AdamW])
def test_errors(cls):
    with pytest.raises(ValueError, match=rf"^\[{cls.__name__}\] got max_grad_norm=0;"):
        cls(parameters(support.DEVICE), max_grad_norm=0)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        cls(parameters(support.DEVICE), lr=-1.0)
