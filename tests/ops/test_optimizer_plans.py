"""Every optimizer under a schedule: its first steps make plans, the later ones find them."""

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import tiledev
from tests import support
from tests.tiling import context

pytestmark = pytest.mark.tiledev_only

STEPS = 12
FIRST = 4  # in these state and gradients appear
# The last step that needs a new plan, where Python decides by a number what to record.
LATER = {
    "RAdam": 6,  # other formulas once `rho_t > 5`, which Python finds in the sixth step
}
READS = {
    "LBFGS": "its line search and its history go by values that it reads",
    "SparseAdam": "the gradients are sparse: no tensors of the device",
}
CAPTURABLE = {
    "Adadelta",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
}
RATES = {
    "number": dict,
    "tensor": lambda: {"lr": torch.tensor(0.01)},
    "device tensor": lambda: {"lr": torch.tensor(0.01).to(support.DEVICE)},
}


def cycle(optimizer):
    group = optimizer.param_groups[0]
    momentum = "betas" in group or "momentum" in group
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.02, total_steps=STEPS + 1, cycle_momentum=momentum
    )


SCHEDULES = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
    "OneCycleLR": cycle,
}


def flag_sets(info):
    flags = [{}]
    if "foreach" in info.supported_impls:
        flags = [{"foreach": False}, {"foreach": True}]
    if info.optim_cls.__name__ in CAPTURABLE:
        flags += [flag | {"capturable": True} for flag in flags]
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
        flags.append({"fused": True})
    return flags


def takes(info, flags, rate):
    """Adam's foreach form takes a tensor as rate only if it is capturable."""
    adam = info.optim_cls in (torch.optim.Adam, torch.optim.AdamW)
    return not (adam and rate != "number" and flags == {"foreach": True})


def label(info, flags, rate):
    return "-".join([info.optim_cls.__name__, *(f"{key}={on}" for key, on in flags.items()), rate])


CASES = [
    pytest.param(info, flags, rate, id=label(info, flags, rate))
    for info in optim_db
    if info.optim_cls.__name__ not in READS
    for flags in flag_sets(info)
    for rate in RATES
    if takes(info, flags, rate)
]


def misses_by_step(info, options, schedule):
    support.seed(0)
    bias = info.optim_cls is not torch.optim.Muon
    layers = [torch.nn.Linear(6, 8, bias), torch.nn.Tanh(), torch.nn.Linear(8, 4, bias)]
    model = torch.nn.Sequential(*layers).to(support.DEVICE)
    x, y = torch.randn(5, 6).to(support.DEVICE), torch.tensor([0, 3, 1, 2, 3]).to(support.DEVICE)
    optimizer = info.optim_cls(model.parameters(), **options)
    scheduler = SCHEDULES[schedule](optimizer)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        tiledev.wait()
        found.append(tiledev.plan_cache_stats()["misses"])
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("info", "flags", "rate"), CASES)
def test_later_steps_compile_nothing(info, flags, rate, schedule):
    first = LATER.get(info.optim_cls.__name__, FIRST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with context(2):
            for options in info.optim_inputs_func(device="cpu"):
                rates = {} if "lr" in options.kwargs else RATES[rate]()
                kwargs = copy.deepcopy(options.kwargs) | flags | rates
                if kwargs.get("capturable") is False:
                    continue
                found = misses_by_step(info, kwargs, schedule)
                late = [n + 1 for n in range(first, STEPS) if found[n] > found[first - 1]]
                assert not late, f"{kwargs}: steps {late}; {tiledev.explain_miss()}"


def test_the_list_of_exceptions():
    names = {info.optim_cls.__name__ for info in optim_db}
    assert names >= {*LATER, *READS, *CAPTURABLE}
