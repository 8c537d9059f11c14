"""Fused optimizers: each parameter is a step of its own, cut in tiles, with the CPU's numbers."""

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.tiling import context, tiny_tiles
from tests.tiling.test_segments import indices, segments, tiled_segments, values

pytestmark = pytest.mark.tiledev_only

DEVICE = support.DEVICE
STEPS = 4
OPTIONS = {
    "SGD": (torch.optim.SGD, {}),
    "SGD momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    "SGD nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "SGD maximize": (torch.optim.SGD, {"maximize": True, "weight_decay": 0.1}),
    "SGD tensor": (torch.optim.SGD, {"lr": torch.tensor(0.01), "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
    "Adam amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "eps": 1e-3}),
    "Adam maximize": (torch.optim.Adam, {"maximize": True, "betas": (0.5, 0.9)}),
    "Adam tensor": (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "AdamW amsgrad": (torch.optim.AdamW, {"amsgrad": True, "maximize": True}),
    "AdamW tensor": (torch.optim.AdamW, {"lr": torch.tensor(0.01), "amsgrad": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adagrad decay": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    "Adagrad maximize": (torch.optim.Adagrad, {"maximize": True, "initial_accumulator_value": 0.3}),
    "Adagrad tensor": (torch.optim.Adagrad, {"lr": torch.tensor(0.01)}),
}
TILES = {"automatic": lambda: context(2), "tiny": tiny_tiles}


def make_optimizer(name, parameters, **more):
    cls, options = OPTIONS[name]
    options = {"lr": 0.01, "fused": True} | options | more
    if isinstance(options["lr"], torch.Tensor):
        options["lr"] = options["lr"].clone()
    return cls(parameters, **options)


def state_of(optimizer):
    return [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]


def steps(device, name, dtype=torch.float32, layout=lambda t: t, after_step=lambda opt: None):
    """Parameters, gradients and state after some steps."""
    shapes = [(512, 130), (300, 7), (40, 3, 3, 3), (5,), ()]
    leaves = [layout(values(*s, dtype=dtype).to(device)).requires_grad_() for s in shapes]
    optimizer = make_optimizer(name, leaves)
    for step in range(STEPS):
        for leaf, shape in zip(leaves, shapes, strict=True):
            leaf.grad = layout(values(*shape, dtype=dtype, seed=step + 1).to(device))
        optimizer.step()
        after_step(optimizer)
    tensors = [*leaves, *(leaf.grad for leaf in leaves), *state_of(optimizer)]
    return [t.detach().cpu() for t in tensors]


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("name", OPTIONS)
def test_steps(name, tiles):
    with TILES[tiles]():
        torch.testing.assert_close(
            steps(DEVICE, name), steps("cpu", name), rtol=1e-6, atol=1e-7, check_stride=True
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["SGD nesterov", "Adam amsgrad", "AdamW", "Adagrad"])
def test_dtypes(name, dtype):
    if "SGD" in name and dtype != torch.float64:
        pytest.skip("ATen's kernel reads what a new momentum buffer happens to hold")
    with tiny_tiles():
        got, want = steps(DEVICE, name, dtype), steps("cpu", name, dtype)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sgd_of_small_types_is_not_cut(dtype):
    """Where its vectors begin decides what ATen's kernel moves."""
    with tiny_tiles(torch.get_num_threads()):
        got = steps(DEVICE, "SGD", dtype)
        assert not tiled_segments(), tiledev.explain()
        assert all(map(torch.equal, got, steps("cpu", "SGD", dtype)))


def transposed(t):
    """The same values, the dimensions in memory in the reverse order."""
    dims = list(range(t.dim()))[::-1]
    return t.detach().permute(dims).contiguous().permute(dims)


def with_gaps(t):
    """The same values, each second element of a larger tensor."""
    wide = t.detach().new_zeros(*t.shape, 2)
    wide[..., 0] = t.detach()
    return wide[..., 0]


@pytest.mark.parametrize("name", ["SGD momentum", "Adam amsgrad", "Adagrad"])
def test_other_orders_of_dimensions(name):
    with tiny_tiles():
        got, want = steps(DEVICE, name, layout=transposed), steps("cpu", name, layout=transposed)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


def test_layouts_that_differ_are_the_business_of_the_cpu():
    """ATen's kernels walk over the memory, whatever the strides."""

    def body(device, layout):
        leaf = values(64, 48).to(device).requires_grad_()
        leaf.grad = layout(values(64, 48, seed=1).to(device))
        torch.optim.SGD([leaf], lr=0.1, fused=True).step()
        return leaf.detach().cpu()

    with tiny_tiles():
        for layout in (transposed, with_gaps):
            assert torch.equal(body(DEVICE, layout), body("cpu", layout))


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", ["SGD nesterov", "Adam amsgrad", "AdamW", "Adagrad decay"])
def test_named_tiles(name, dims):
    """Also along an inner dimension, where a tile has gaps."""

    def body(device):
        leaf = values(96, 80).to(device).requires_grad_()
        if device != "cpu":
            tiledev.set_axis_group_name(leaf, {d: f"axis{d}" for d in dims})
            for d in dims:
                tiledev.set_axis_group_tiling(f"axis{d}", [leaf.shape[d] - 30, 17, 13])
        optimizer = make_optimizer(name, [leaf])
        for step in range(STEPS):
            leaf.grad = values(96, 80, seed=step + 1).to(device) * 2
            optimizer.step()
        if device != "cpu":
            tiledev.wait()
            update = next(s for s in segments() if any("_fused_" in op for op in s["ops"]))
            assert update["tiles"] == 3, tiledev.explain()
        return [t.detach().cpu() for t in (leaf, *state_of(optimizer))]

    with context(2):
        torch.testing.assert_close(body(DEVICE), body("cpu"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("name", ["SGD nesterov", "Adam", "AdamW amsgrad", "Adagrad"])
def test_gradients_that_are_scaled(name, tiles):
    """A step with infinite gradients is skipped; the others divide gradients by the scale."""

    def body(device):
        leaf = values(256, 200).to(device).requires_grad_()
        optimizer = make_optimizer(name, [leaf])
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        found = []
        for step in range(6):
            optimizer.zero_grad()
            factor = float("inf") if step == 3 else 1.0
            scaler.scale((leaf * values(256, 200, seed=step).to(device) * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            found += [leaf.grad.cpu(), torch.tensor(scaler.get_scale())]
        return [*found, *(t.detach().cpu() for t in (leaf, *state_of(optimizer)))]

    with TILES[tiles]():
        torch.testing.assert_close(body(DEVICE), body("cpu"), rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", ["SGD momentum", "Adam", "AdamW", "Adagrad"])
def test_an_update_follows_its_gradient(name):
    """The gradient of an elementwise use: one segment makes it and takes the step."""
    with context(2):
        leaf = values(1024, 1024).to(DEVICE).requires_grad_()
        optimizer = make_optimizer(name, [leaf])
        factor = values(1024, 1024, seed=1).to(DEVICE)
        for _ in range(2):
            optimizer.zero_grad()
            (leaf * factor).sum().backward()
            optimizer.step()
        tiledev.wait()
        (update,) = [s for s in segments() if any("_fused_" in op for op in s["ops"])]
        assert update["tiles"] > 1
        assert "mul" in update["ops"], tiledev.explain()


def test_parameters_do_not_wait_for_each_other():
    with context(2):
        leaves = [values(512, 512, seed=n).to(DEVICE).requires_grad_() for n in range(3)]
        optimizer = torch.optim.AdamW(leaves, fused=True)
        for leaf in leaves:
            leaf.grad = torch.ones_like(leaf)
        optimizer.step()
        tiledev.wait()
        updates = [s for s in tiled_segments() if any("_fused_adamw_" in op for op in s["ops"])]
        assert len(updates) == 3, tiledev.explain()


SCHEDULES = {
    "StepLR": lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, 0.5),
    "OneCycleLR": lambda opt: torch.optim.lr_scheduler.OneCycleLR(
        opt,
        0.05,
        total_steps=20,
        cycle_momentum="momentum" in opt.defaults or "betas" in opt.defaults,
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", [n for n in OPTIONS if n not in ("SGD", "SGD maximize")])
def test_a_schedule_needs_no_new_plans(name, schedule):
    def body(device):
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 8)
        )
        with torch.no_grad():
            for n, p in enumerate(model.parameters()):
                p.copy_(values(*p.shape, seed=n) / 8)
        model.to(device)
        optimizer = make_optimizer(name, model.parameters())
        scheduler = SCHEDULES[schedule](optimizer)
        x, y = values(256, 64).to(device), indices(8, 256).to(device)
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            misses.append(tiledev.plan_cache_stats()["misses"])
        return [t.detach().cpu() for t in (*model.parameters(), *state_of(optimizer))]

    with context(2):
        misses = []
        got = body(DEVICE)
        assert misses[1:8] == [misses[1]] * 7, tiledev.explain_miss()
        torch.testing.assert_close(got, body("cpu"), rtol=1e-4, atol=1e-5)
