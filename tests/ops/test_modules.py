"""Every module of PyTorch's module database: forward, gradients and state, in train and eval."""

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_modules import module_db

from tests import support
from tests.compare import Outcome, compare_outcomes, compare_tensors
from tests.ops import gaps
from tests.ops.check import attempt, gradients
from tests.transfer import Transfer

INPUT_CAP = 12
# A convolution's weight gradient depends in its last bits on how many threads share the sum.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
MODULES = {info.formatted_name: info for info in module_db}


def run_module(module, forward_input, device):
    """Forward and gradients of a copy of `module` on `device`, and that copy."""
    module = copy.deepcopy(module).to(device)
    moved = Transfer(device)
    args, kwargs = moved((forward_input.args, dict(forward_input.kwargs)))

    def body(outcome: Outcome) -> None:
        outcome.result = module(*args, **kwargs)
        leaves = [*moved.tensors, *module.parameters()]
        outcome.inputs = [*leaves, *module.buffers()]
        outcome.grads = gradients(outcome.result, leaves)

    return attempt(device, body), module


def check_module(info, training):
    """Problems of every input of a module, and how many inputs there were."""
    support.seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    problems = []
    for index, given in enumerate(inputs[:INPUT_CAP]):
        support.seed(0)
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
        module.train(training)
        want, on_cpu = run_module(module, given.forward_input, "cpu")
        got, on_device = run_module(module, given.forward_input, support.DEVICE)
        where = f"{info.formatted_name} input {index} {given.desc}"
        problems += compare_outcomes(got, want, where, **TOLERANCE)
        mine, theirs = on_device.state_dict(), on_cpu.state_dict()
        assert mine.keys() == theirs.keys()
        problems += compare_tensors(mine, theirs, f"{where} state_dict")
    return problems, len(inputs)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, training):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problems, count = check_module(MODULES[name], training)
    assert count, "the database has no inputs for it"
    if support.ON_TILEDEV and name in gaps.MODULES:
        assert problems, f"take {name} off MODULES in tests/ops/gaps.py"
    else:
        assert not problems, "\n".join(map(str, problems[:10]))


def test_gaps_name_modules():
    assert set(gaps.MODULES) <= set(MODULES)
