"""Runs of elementwise ops that go over a tile strip by strip, against the CPU and float64."""

import json

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.tiling import tiny_tiles

pytestmark = pytest.mark.tiledev_only

DEVICE = support.DEVICE
aten = torch.ops.aten
SPECIAL = [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e30, -1e30, 1e-40, 90.0, -100.0]

# By op: a call on two tensors, and the most that its float32 result may differ from the exact one,
# in units of the last place. 0: it has the CPU's bits. (Factors are powers of two: then it does not
# matter whether the compiler makes one operation of a product and a sum.)
OPS = {
    "abs": (lambda x, y: x.abs(), 0),
    "add": (lambda x, y: torch.add(x, y, alpha=2), 0),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.7), 4),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y.clamp(-9, 9), value=0.5), 4),
    "clamp": (lambda x, y: x.clamp(-0.5, 0.7), 0),
    "clamp_max": (lambda x, y: x.clamp_max(0.5), 0),
    "clamp_min": (lambda x, y: torch.clamp_min(x, y), 0),
    "copy": (lambda x, y: torch.empty_like(x).copy_(y), 0),
    "div": (lambda x, y: x / y, 0),
    "exp": (lambda x, y: x.exp(), 2),
    "gelu": (lambda x, y: F.gelu(x, approximate="tanh"), 8),
    "gelu_backward": (lambda x, y: aten.gelu_backward(x, y, approximate="tanh"), 64),
    "hardtanh": (lambda x, y: F.hardtanh(x, -0.3, 0.4), 0),
    "leaky_relu": (lambda x, y: F.leaky_relu(x, 0.2), 0),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.75).lerp_(y, 0.25), 0),
    "maximum": (lambda x, y: torch.maximum(x, y), 0),
    "minimum": (lambda x, y: torch.minimum(x, y), 0),
    "mul": (lambda x, y: x * y, 0),
    "neg": (lambda x, y: -x, 0),
    "pow": (lambda x, y: x**3, 0),
    "reciprocal": (lambda x, y: x.reciprocal(), 0),
    "relu": (lambda x, y: x.relu(), 0),
    "rsqrt": (lambda x, y: x.abs().rsqrt(), 2),
    "rsub": (lambda x, y: torch.rsub(x, y, alpha=2), 0),
    "sigmoid": (lambda x, y: x.sigmoid(), 2),
    "sigmoid_backward": (lambda x, y: aten.sigmoid_backward(x, y), 4),
    "silu": (lambda x, y: F.silu(x), 4),
    "silu_backward": (lambda x, y: aten.silu_backward(x, y), 64),
    "sqrt": (lambda x, y: x.abs().sqrt(), 1),
    "square": (lambda x, y: x.square(), 0),
    "sub": (lambda x, y: torch.sub(x, y, alpha=0.5), 0),
    "tanh": (lambda x, y: x.tanh(), 2),
    "tanh_backward": (lambda x, y: aten.tanh_backward(x, y), 4),
    "threshold": (lambda x, y: F.threshold(x, 0.2, 5.0), 0),
    "threshold_backward": (lambda x, y: aten.threshold_backward(x, y, 0.1), 0),
}


@pytest.fixture(autouse=True)
def tiles():
    support.settle()
    with tiny_tiles():
        yield
        support.settle()


def values(*shape, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * scale


def on_device(f, *tensors):
    """The results of f on the device as CPU tensors, and how many of its ops ran in strips."""
    inputs = [t.to(DEVICE) for t in tensors]
    results = f(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    tiledev.execute()
    plan = json.loads(tiledev.explain(format="json"))
    return [r.cpu() for r in results], sum(s["strips"] for s in plan["segments"])


def assert_same(f, *tensors, strips):
    """The results have the CPU's bits, and so many ops run in strips (None: however many)."""
    expected = f(*[t.clone() for t in tensors])
    expected = expected if isinstance(expected, tuple) else (expected,)
    results, ran = on_device(f, *tensors)
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(result, right, rtol=0, atol=0, equal_nan=True)
        assert result.stride() == right.stride()
    assert strips is None or ran == strips


def ulps(value, exact):
    """The largest error in units of the last place of the float32 result."""
    near = exact.float().abs()
    ulp = (torch.nextafter(near, near.new_tensor(float("inf"))) - near).double()
    return ((value.double() - exact).abs() / ulp).max().item()


def test_every_op_is_tested():
    assert set(OPS) == set(tiledev._C.strip_ops())


@pytest.mark.parametrize("size", [2, 3, 15, 16, 17, 511, 513, 4096, 10_000])
@pytest.mark.parametrize("name", OPS)
def test_op(name, size):
    f, error = OPS[name]
    x, y = values(size), values(size, seed=1)
    results, strips = on_device(f, x, y)
    assert strips > 0
    if error == 0:
        torch.testing.assert_close(results[0], f(x, y), rtol=0, atol=0, equal_nan=True)
    elif name.endswith("backward") or name in ("addcdiv", "addcmul", "gelu", "silu"):
        exact = f(x.double(), y.double())  # differences cancel: measured by the largest
        limit = error * torch.finfo(torch.float32).eps
        torch.testing.assert_close(results[0].double(), exact, rtol=limit, atol=limit * 4)
    else:
        assert ulps(results[0], f(x.double(), y.double())) <= error


@pytest.mark.parametrize("name", OPS)
def test_special_values(name):
    f, error = OPS[name]
    pairs = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL))
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    results, strips = on_device(f, x, y)
    expected = f(x, y)
    assert strips > 0
    tolerance = {"rtol": 0, "atol": 0} if error == 0 else {"rtol": 1e-5, "atol": 1e-37}
    torch.testing.assert_close(results[0], expected, equal_nan=True, **tolerance)
    if error == 0:
        signs = ~expected.isnan()
        assert results[0].signbit()[signs].equal(expected.signbit()[signs])


CHAINS = {
    "numbers": (lambda x: (x * 2 + 0.5) / 3 - 1, 4),
    "the same tensor twice": (lambda x: (x * x + x) * x, 3),
    "several results": (lambda x: (x + 1, (x + 1) * x, x * 2), 4),
    "in place": (lambda x: (x + 0).mul_(3).add_(1).neg_().clamp_(min=-2), 5),
    "in place after a reader": (lambda x: ((y := x + 1) * 2, y.mul_(3)), 3),
    "an out= argument": (lambda x: torch.mul(x + 1, x, out=torch.empty_like(x)), 2),
    "filled": (lambda x: torch.full_like(x, 2).add_(x), 1),
    "parted by another op": (lambda x: (x + 1).sort(-1)[0] * 2 + 1, 3),
    "unbroken by other types": (lambda x: (x + 1).double() * 2, 1),
    "along a row": (lambda x: (x + x[0]) * x[1] - 1, 3),
    "along a column": (lambda x: (x + x[:, :1]) * x[:, 1:2], 2),
    "a number that is a tensor": (lambda x: x * x[0, 0] + x[1, 1], 2),
    "a broadcast temporary": (lambda x: (x + 1) * (x[:, :1] + 1), 3),
    "a foreach op": (lambda x: tuple(torch._foreach_add([x, x * 2], 1.5)), 3),
    "nothing to read": (lambda x: (x + 1, x.new_empty(0, 4) + 1), 1),
}


@pytest.mark.parametrize("shape", [(7, 5), (37, 300), (3, 2048)], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_chain(name, shape):
    f, strips = CHAINS[name]
    assert_same(f, values(*shape), strips=strips)


LAYOUTS = {
    "transposed": lambda x: x.t(),
    "permuted": lambda x: x.view(3, -1, 4).permute(2, 0, 1),
    "channels last": lambda x: x.view(3, 4, -1, 2).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name):
    # Tiles of what is transposed have gaps: those ops are left to ATen.
    strips = 3 if name == "channels last" else None
    assert_same(lambda x: (LAYOUTS[name](x) * 2 + 1).relu(), values(36, 40), strips=strips)


@pytest.mark.parametrize("step", [2, 3])
def test_inputs_with_gaps(step):
    assert_same(lambda x: x[:, ::step] * 2, values(37, 300), strips=1)
    assert_same(lambda x: x[::step] * 2, values(37, 300), strips=None)
    assert_same(lambda x: (x + 1)[:, ::step].mul_(2).clone(), values(37, 300), strips=None)


BROADCASTS = {
    "rows": ((6, 300), (300,)),
    "columns": ((6, 300), (6, 1)),
    "rows of a batch": ((4, 5, 70), (5, 70)),
    "the middle": ((4, 5, 70), (5, 1)),
    "the batch": ((4, 5, 70), (4, 1, 1)),
    "channels": ((4, 5, 7, 10), (1, 5, 1, 1)),
    "one": ((4, 5, 70), (1,)),
    "long rows": ((4, 5000), (5000,)),
    "two parts": ((4, 5, 70), (4, 1, 70)),
    "expanded": ((4, 5, 70), (4, 5, 1)),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", BROADCASTS)
def test_broadcast(name, swapped):
    large, small = BROADCASTS[name]

    def f(x, y):
        z = x + 1
        return (y - z if swapped else z - y) * 2

    # Missing dimensions on both sides of others' are one too many.
    assert_same(f, values(*large), values(*small, seed=1), strips=2 if name == "two parts" else 3)


def test_parts_of_a_buffer_that_overlap():
    def shift(x):
        y = x + 1
        y[1:] = y[:-1] * 2
        y[:, 1:].add_(y[:, :-1].clone())
        return y

    expected = shift(values(37, 300))
    results, _ = on_device(shift, values(37, 300))
    assert results[0].equal(expected)


def test_scalars_change_from_run_to_run():
    x = values(37, 300)
    for k in (1.0, 2.0, -0.25):
        assert_same(lambda x, k=k: torch.add(x * k, x, alpha=k).clamp(max=k), x, strips=3)


def test_large_results_are_written_past_the_caches():
    x = values(6_000_001)
    assert_same(lambda x: ((x * 1.5 + 0.5).relu() * x + x, x - 1), x, strips=6)


def test_a_failure_skips_those_that_need_it():
    x = values(64, 300)
    index = torch.arange(64)
    index[40] = 99
    a, i = x.to(DEVICE), index.to(DEVICE)
    bad = (a[i] + 1).relu()
    good = (a + 1).relu() * 2
    with pytest.raises(IndexError, match="out of"):
        bad.cpu()
    assert good.cpu().equal((x + 1).relu() * 2)
    assert ((a - 1) * 2).cpu().equal((x - 1) * 2)
