"""The kernels that ATen lacks, or has slow, against ATen's in float64, on the CPU itself."""

from __future__ import annotations

import pytest
import torch

import tiledev  # noqa: F401  (registers the kernels)

SIZES = [0, 1, 3, 4, 15, 16, 17, 1000]
SPECIAL = [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e30, -1e30, 1e-40, 20.0, -100.0]

own = torch.ops.tiledev


def inputs(size: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, generator=generator) * scale


@pytest.mark.parametrize("size", [1, 3, 8, 16, 17, 100, 4097, 9000])
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name, size):
    x = inputs(7 * size).view(7, size)
    x[3] *= 30
    result = getattr(own, name).out(x, -1, False, out=torch.empty_like(x))
    exact = getattr(torch, name)(x.double(), -1, False)
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax_of_special_values(name):
    rows = [[1.0, 2.0, 3.0]] + [[1.0, value, -2.0] for value in SPECIAL]
    rows += [[-float("inf")] * 3, [float("inf")] * 3, [-float("inf"), 1.0, -float("inf")]]
    x = torch.tensor(rows).repeat(1, 6)
    result = getattr(own, name).out(x, 1, False, out=torch.empty_like(x))
    torch.testing.assert_close(result, getattr(torch, name)(x, 1, False), equal_nan=True)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax_that_is_atens(name):
    op, kernel = getattr(torch, name), getattr(own, name).out
    x = inputs(600).view(20, 30)
    for view, dim in [(x, 0), (x.t(), 1), (x.double(), 1), (x.bfloat16(), 1), (x[:, :0], 0)]:
        right = op(view, dim, False)
        assert kernel(view, dim, False, out=torch.empty_like(right)).equal(right)


@pytest.mark.parametrize("rows", [3000, 1])
def test_results_beyond_the_caches(rows):
    x = inputs(rows * 2000).view(rows, 2000)
    out = torch.empty(6_000_000)[: x.numel()].view_as(x)
    softmax = own._softmax.out(x, 1, False, out=out).clone()
    assert softmax.equal(own._softmax.out(x, 1, False, out=torch.empty_like(x).clone()))
    torch.testing.assert_close(softmax, x.softmax(1))
    norm = own.native_layer_norm.out(
        x, [2000], None, None, 1e-5, out0=out, out1=torch.empty(rows, 1), out2=torch.empty(rows, 1)
    )
    torch.testing.assert_close(norm[0], torch.layer_norm(x, [2000]))


def layer_norm(x, size, weight=None, bias=None, eps=1e-5):
    outs = [torch.empty_like(t) for t in torch.native_layer_norm(x, [size], weight, bias, eps)]
    return own.native_layer_norm.out(
        x, [size], weight, bias, eps, out0=outs[0], out1=outs[1], out2=outs[2]
    )


@pytest.mark.parametrize("size", [1, 3, 16, 100, 5000])
@pytest.mark.parametrize("affine", ["", "weight", "bias", "weight bias"])
def test_layer_norm(size, affine):
    x = inputs(7 * size).view(7, size) + 10
    weight = inputs(size) if "weight" in affine else None
    bias = inputs(size) if "bias" in affine else None
    exact = torch.native_layer_norm(
        x.double(),
        [size],
        None if weight is None else weight.double(),
        None if bias is None else bias.double(),
        1e-5,
    )
    for result, right in zip(layer_norm(x, size, weight, bias), exact, strict=True):
        torch.testing.assert_close(result.double(), right, rtol=1e-5, atol=1e-4)


def test_layer_norm_of_what_only_aten_takes():
    x = inputs(600).view(20, 30)
    for view in (x.double(), x.t(), x[:, ::2]):
        size = view.shape[1]
        right = torch.native_layer_norm(view, [size], None, None, 1e-5)
        for result, expected in zip(layer_norm(view, size), right, strict=True):
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("size", SIZES)
def test_arithmetic_has_the_cpus_bits(name, size):
    a, b = inputs(size), inputs(size + 1)[:size]
    result = getattr(own, name).out(a, b, out=torch.empty_like(a))
    assert result.equal(getattr(torch, name)(a, b))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic_that_is_atens(name):
    op, kernel = getattr(torch, name), getattr(own, name).out
    a, b = inputs(600).view(20, 30), inputs(601)[:600].view(20, 30)
    cases = [(a.t(), b.view(30, 20)), (a, b[0]), (a, torch.tensor(2.0)), (a, torch.tensor(3))]
    cases += [(a.double(), b.double()), (a.to(torch.cfloat), b.to(torch.cfloat)), (a[::2], b[::2])]
    for x, y in cases:
        right = op(x, y)
        assert kernel(x, y, out=torch.empty_like(right)).equal(right)
    if name in ("add", "sub"):
        assert kernel(a, b, alpha=2.5, out=torch.empty_like(a)).equal(op(a, b, alpha=2.5))


PRODUCTS = {
    "mm": ((20, 30), (30, 17)),
    "bmm": ((3, 20, 30), (3, 30, 17)),
    "addmm": ((17,), (20, 30), (30, 17)),
    "baddbmm": ((3, 20, 17), (3, 20, 30), (3, 30, 17)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_reduced_types(name, dtype):
    tensors = [inputs(500 * (i + 1)) for i in range(3)]
    shapes = PRODUCTS[name]
    tensors = [
        t.repeat(5)[: torch.Size(shape).numel()].view(shape).to(dtype)
        for t, shape in zip(tensors, shapes, strict=False)
    ]
    scales = {"beta": 0.5, "alpha": 2.0} if "add" in name else {}
    exact = getattr(torch, name)(*[t.double() for t in tensors], **scales)
    out = torch.empty_like(exact, dtype=dtype)
    result = getattr(own, name).out(*tensors, **scales, out=out)
    assert result is out
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-2)


def batch_norm(x, affine=True, running=True):
    """The results of the kernel and ATen's in float64, forward and backward."""
    channels = x.shape[1]
    weight, bias = (inputs(channels), inputs(channels + 1)[1:]) if affine else (None, None)
    stats = [torch.zeros(channels), torch.ones(channels)] if running else [None, None]
    exact_stats = [None if s is None else s.double() for s in stats]
    out, mean, invstd = torch.empty_like(x), torch.empty(channels), torch.empty(channels)
    own.native_batch_norm.out(
        x, weight, bias, *stats, True, 0.1, 1e-5, out=out, save_mean=mean, save_invstd=invstd
    )
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    exact = torch.native_batch_norm(*wide, *exact_stats, True, 0.1, 1e-5)
    grad = inputs(x.numel()).view(x.shape) / 3
    grads = [torch.empty_like(x), torch.empty(channels), torch.empty(channels)]
    tail = (True, 1e-5, [True] * 3)
    own.native_batch_norm_backward.out(
        grad, x, weight, *stats, mean, invstd, *tail,
        out0=grads[0], out1=grads[1], out2=grads[2],
    )  # fmt: skip
    exact_grads = torch.ops.aten.native_batch_norm_backward(
        grad.double(), wide[0], wide[1], *exact_stats, exact[1], exact[2], *tail
    )
    pairs = list(zip([out, mean, invstd, *grads], [*exact, *exact_grads], strict=True))
    return pairs + ([] if stats[0] is None else list(zip(stats, exact_stats, strict=True)))


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"running": False}], ids=str)
@pytest.mark.parametrize(
    "shape", [(4, 3, 8, 8), (2, 5, 7, 9), (3, 2, 100), (2, 3, 70, 70)], ids=str
)
def test_batch_norm(shape, options):
    x = inputs(torch.Size(shape).numel()).view(shape) * 2 + 5
    for result, right in batch_norm(x, **options):
        torch.testing.assert_close(result.double(), right, rtol=2e-5, atol=2e-5)


def test_batch_norm_of_some_channels():
    x = inputs(4 * 9 * 64).view(4, 9, 8, 8)[:, 2:5]
    for result, right in batch_norm(x):
        torch.testing.assert_close(result.double(), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 2, 2), (4, 16, 8, 8)], ids=str)
def test_batch_norm_that_is_atens(shape):
    x = inputs(torch.Size(shape).numel()).view(shape)
    x = x.contiguous(memory_format=torch.channels_last) if shape[-1] == 8 else x
    for result, right in batch_norm(x):
        torch.testing.assert_close(result.double(), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (2, 5, 7, 9), (3, 2, 100), (8, 3)], ids=str)
def test_batch_norm_in_evaluation(shape):
    x, channels = inputs(torch.Size(shape).numel()).view(shape), shape[1]
    weight, bias, mean = (inputs(channels + i)[:channels] for i in range(3))
    var = inputs(channels).abs() + 0.1
    result = own.batch_norm_inference.out(x, weight, bias, mean, var, 1e-5, out=torch.empty_like(x))
    wide = [t.double() for t in (x, weight, bias, mean, var)]
    exact = torch.native_batch_norm(*wide, False, 0.1, 1e-5)[0]
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)
    assert own.batch_norm_inference(x, weight, bias, mean, var, 1e-5).equal(result)
