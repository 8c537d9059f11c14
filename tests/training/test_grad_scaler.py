"""torch.amp.GradScaler skips steps of tiledev.training's optimizers without reading anything."""

import pytest
import torch

from tests import support
from tests.compare import compare_tensors
from tests.training.recorded import parameters, step_without_reading
from tests.training.test_optimizers import BRIEF, OURS

SHAPES = ((6, 4), (4,), ())
INFINITE = {0: float("inf"), 2: float("nan"), 3: float("-inf")}
STEPS = 6
MORE = [
    pytest.param(torch.optim.SGD, {"lr": 0.1}, id="plain SGD"),
    pytest.param(
        torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, id="nesterov SGD"
    ),
    pytest.param(
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True, "weight_decay": 0.1},
        id="dampened SGD",
    ),
    pytest.param(torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.6), "maximize": True}, id="betas"),
]


def gradients(step):
    generator = torch.Generator().manual_seed(step)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    if step in INFINITE:
        values[1][2] = INFINITE[step]
    return values


def scaled_step(scaler, optimizer, params, step, before_step=None):
    optimizer.zero_grad()
    pairs = zip(params, gradients(step), strict=True)
    loss = sum((param.float() * grad.to(param.device)).sum() for param, grad in pairs)
    scaler.scale(loss).backward()
    if before_step:
        before_step()
    scaler.step(optimizer)
    scaler.update()


def reference(cls, kwargs, norm=None):
    """Parameters and optimizer on the CPU after the steps with finite gradients."""
    params = parameters("cpu", shapes=SHAPES)
    optimizer = cls(params, **kwargs)
    for step in range(STEPS):
        if step not in INFINITE:
            for param, grad in zip(params, gradients(step), strict=True):
                param.grad = grad
            if norm is not None:
                torch.nn.utils.clip_grad_norm_(params, norm)
            optimizer.step()
    return params, optimizer


def check(params, optimizer, want_params, want):
    problems = compare_tensors(params, want_params, "weight")
    mine, theirs = optimizer.state_dict()["state"], want.state_dict()["state"]
    assert mine.keys() == theirs.keys()
    for key, state in theirs.items():
        assert mine[key].keys() == state.keys()
        for name, value in state.items():
            problems += compare_tensors(mine[key][name], value, f"{key}.{name}")
    assert not problems


@pytest.mark.parametrize(("cls", "kwargs"), [*BRIEF, *MORE])
def test_skips(cls, kwargs):
    params = parameters(support.DEVICE, shapes=SHAPES)
    optimizer = OURS[cls](params, **kwargs)
    if support.ON_TILEDEV:
        step_without_reading(optimizer)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=8.0, growth_interval=2)
    for step in range(STEPS):
        scaled_step(scaler, optimizer, params, step)
    check(params, optimizer, *reference(cls, kwargs))
    assert scaler.get_scale() == 8.0 / 2**3 * 2


@pytest.mark.tiledev_only
@pytest.mark.parametrize(("cls", "kwargs"), [*BRIEF, *MORE])
def test_the_whole_iteration_reads_nothing(cls, kwargs):
    params = parameters(support.DEVICE, shapes=SHAPES)
    optimizer = OURS[cls](params, **kwargs)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=8.0)
    scaled_step(scaler, optimizer, params, 1)
    support.synchronize()
    before = support.counters()["flushes"]
    scaled_step(scaler, optimizer, params, 4)
    assert support.counters()["flushes"] - before == 1  # the one at the end of the step


@pytest.mark.parametrize(("cls", "kwargs"), [*BRIEF, MORE[2]])
def test_a_first_step_that_was_skipped_leaves_no_state(cls, kwargs):
    params = parameters(support.DEVICE, shapes=SHAPES)
    optimizer = OURS[cls](params, **kwargs)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=8.0)
    scaled_step(scaler, optimizer, params, 0)
    assert not compare_tensors(params, parameters("cpu", shapes=SHAPES), "weight")
    other = cls(parameters("cpu", shapes=SHAPES), **kwargs)
    other.load_state_dict(optimizer.state_dict())
    fresh = cls(parameters("cpu", shapes=SHAPES), **kwargs)
    for one in (other, fresh):
        for param, grad in zip(one.param_groups[0]["params"], gradients(1), strict=True):
            param.grad = grad
        one.step()
    pair = [one.param_groups[0]["params"] for one in (other, fresh)]
    assert not compare_tensors(*pair, "weight")


@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
@pytest.mark.parametrize("unscaled", [False, True])
def test_clips_unscaled_gradients(cls, kwargs, unscaled):
    params = parameters(support.DEVICE, shapes=SHAPES)
    optimizer = OURS[cls](params, **kwargs, max_grad_norm=0.5)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=64.0)
    before = (lambda: scaler.unscale_(optimizer)) if unscaled else None
    for step in range(STEPS):
        scaled_step(scaler, optimizer, params, step, before)
    check(params, optimizer, *reference(cls, kwargs, norm=0.5))


@pytest.mark.parametrize(("cls", "kwargs"), [*BRIEF, MORE[2]])
def test_float16_parameters_with_masters(cls, kwargs):
    """What torch's optimizers refuse: gradients of float16 are unscaled in float32."""
    params = parameters(support.DEVICE, torch.float16, shapes=SHAPES)
    optimizer = OURS[cls](params, **kwargs)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=1024.0)
    for step in range(STEPS):
        scaled_step(scaler, optimizer, params, step)
    want, _ = reference(cls, kwargs)
    for param, wide in zip(params, want, strict=True):
        master = optimizer.state[param]["master"]
        torch.testing.assert_close(master.cpu(), wide.detach(), rtol=0.02, atol=0.02)
        assert torch.equal(param.detach().cpu(), master.half().cpu())


def test_tiny_gradients_of_float16_do_not_vanish():
    weight = torch.ones(3, dtype=torch.float16, device=support.DEVICE, requires_grad=True)
    optimizer = OURS[torch.optim.SGD]([weight], lr=1e8)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=2.0**15)
    scaler.scale((weight.float() * 1e-9).sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == pytest.approx([0.9] * 3, abs=2e-3)


@pytest.mark.parametrize(("cls", "kwargs"), BRIEF)
def test_steps_go_on_without_a_scaler(cls, kwargs):
    """A state that a scaler's steps left serves plain steps, and the other way round."""
    params, want = parameters(support.DEVICE, shapes=SHAPES), parameters("cpu", shapes=SHAPES)
    optimizer, oracle = OURS[cls](params, **kwargs), cls(want, **kwargs)
    scaler = torch.amp.GradScaler(support.DEVICE, init_scale=8.0)
    for step in (1, 4, 5, 6):
        values = gradients(step)
        for param, grad in zip(want, values, strict=True):
            param.grad = grad
        oracle.step()
        if step % 2:
            scaled_step(scaler, optimizer, params, step)
        else:
            for param, grad in zip(params, values, strict=True):
                param.grad = grad.to(support.DEVICE)
            optimizer.step()
    check(params, optimizer, want, oracle)


def test_counts_are_saved_on_the_cpu():
    """As torch.optim's are; while a scaler is in use they live on the device."""
    params = parameters(support.DEVICE, shapes=SHAPES)
    optimizer = OURS[torch.optim.AdamW](params)
    scaled_step(torch.amp.GradScaler(support.DEVICE), optimizer, params, 1)
    state = optimizer.state_dict()["state"]
    assert {entry["step"].device.type for entry in state.values()} == {"cpu"}
