"""The kernels that ATen lacks, or has slow, against ATen's in float64, on the CPU itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tiledev  # noqa: F401  (registers the kernels)

SIZES = [0, 1, 3, 4, 15, 16, 17, 1000]
SPECIAL = [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e30, -1e30, 1e-40, 20.0, -100.0]

own = torch.ops.tiledev


def inputs(size: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, generator=generator) * scale


def ulps(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Returns the largest error in units of the last place of the float32 result."""
    near = exact.float().abs()
    ulp = (torch.nextafter(near, near.new_tensor(float("inf"))) - near).double()
    return ((value.double() - exact).abs() / ulp).max().item() if value.numel() else 0.0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_tanh(size, scale):
    x = inputs(size, scale)
    assert ulps(own.tanh.out(x, out=torch.empty_like(x)), x.double().tanh()) < 2


@pytest.mark.parametrize("size", SIZES)
def test_gelu(size):
    x = inputs(size)
    result = own.gelu.out(x, approximate="tanh", out=torch.empty_like(x))
    exact = F.gelu(x.double(), approximate="tanh")
    torch.testing.assert_close(result.double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", SIZES)
def test_gelu_backward(size):
    x, grad = inputs(size), inputs(size + 1)[:size]
    result = own.gelu_backward.grad_input(
        grad, x, approximate="tanh", grad_input=torch.empty_like(x)
    )
    exact = torch.ops.aten.gelu_backward(grad.double(), x.double(), approximate="tanh")
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-6)


def test_special_values():
    x = torch.tensor(SPECIAL)
    torch.testing.assert_close(own.tanh.out(x, out=torch.empty(10)), x.tanh(), equal_nan=True)
    assert own.tanh.out(x, out=torch.empty(10))[4].signbit()
    gelu = own.gelu.out(x, approximate="tanh", out=torch.empty(10))
    torch.testing.assert_close(gelu, F.gelu(x, approximate="tanh"), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_atens(dtype):
    x = inputs(100).to(dtype)
    assert own.tanh.out(x, out=torch.empty_like(x)).equal(x.tanh())
    gelu = own.gelu.out(x, approximate="tanh", out=torch.empty_like(x))
    assert gelu.equal(F.gelu(x, approximate="tanh"))


def test_strides():
    x = inputs(600).view(20, 30)
    for view in (x.t(), x[::2], x[:, ::3], x[:1].expand(20, 30)):
        for out in (torch.empty_like(view), torch.empty(view.shape)):
            torch.testing.assert_close(own.tanh.out(view, out=out), view.tanh())


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
