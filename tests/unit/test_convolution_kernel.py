"""Gradients of convolutions that tiles take as products, against float64, on the CPU itself."""

from __future__ import annotations

import pytest
import torch

import tiledev  # noqa: F401  (registers the kernels)

aten = torch.ops.aten

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.tiledev, "convolution_backward"),
    reason="for this CPU ATen's gradients are taken",
)

# images, channels, out channels, height, width, kernel, stride, padding, dilation
CASES = {
    "rows of odd length": (3, 5, 32, 17, 19, 3, 1, 1, 1),
    "more pixels than a block": (2, 16, 64, 30, 64, 3, 1, 1, 1),
    "several images a block": (5, 64, 40, 8, 8, 3, 1, 1, 1),
    "one pixel": (3, 33, 70, 1, 1, 1, 1, 0, 1),
    "no padding": (9, 17, 32, 5, 5, 3, 1, 0, 1),
    "stride": (7, 3, 33, 7, 7, 3, 2, 1, 1),
    "stride and dilation": (2, 8, 48, 20, 12, 5, 2, 2, 2),
    "stride beyond the kernel": (6, 40, 35, 14, 14, 1, 3, 0, 1),
    "stride that leaves pixels over": (4, 4, 32, 30, 31, 7, 3, 3, 1),
    "other in height and width": (3, 20, 32, 12, 9, (3, 1), (2, 1), (0, 2), (1, 3)),
    "blocks of out channels": (2, 3, 200, 9, 9, 3, 1, 1, 1),
}


def pair(value):
    return list(value) if isinstance(value, tuple) else [value, value]


def call(case, mask=(True, True, True), dtype=torch.float32, groups=1):
    n, c, o, h, w, kernel, *rest = case
    kernel, stride, padding, dilation = pair(kernel), *(pair(value) for value in rest)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, c, h, w, generator=generator, dtype=dtype)
    weight = torch.randn(o, c // groups, *kernel, generator=generator, dtype=dtype)
    y = torch.conv2d(x, weight, None, stride, padding, dilation, groups)
    grad = torch.randn(y.shape, generator=generator, dtype=dtype)
    options = [[o], stride, padding, dilation, False, [0, 0], groups, list(mask)]
    return grad, x, weight, options


def close(results, right):
    for result, expected in zip(results, right, strict=True):
        scale = expected.abs().max().item()
        torch.testing.assert_close(result.double(), expected.double(), rtol=0, atol=5e-6 * scale)
        assert result.stride() == expected.stride()


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    grad, x, weight, options = call(CASES[name])
    results = torch.ops.tiledev.convolution_backward(grad, x, weight, *options)
    right = aten.convolution_backward(grad.double(), x.double(), weight.double(), *options)
    close(results, right)


@pytest.mark.parametrize("wanted", range(3))
def test_one_of_the_gradients(wanted):
    mask = [i == wanted for i in range(3)]
    grad, x, weight, options = call(CASES["stride"], mask)
    results = torch.ops.tiledev.convolution_backward(grad, x, weight, *options)
    right = aten.convolution_backward(grad.double(), x.double(), weight.double(), *options)
    assert [r is not None for r in results] == mask
    close([results[wanted]], [right[wanted]])


def test_values_that_are_no_numbers():
    """They reach the weights that they meet, and no others."""
    grad, x, weight, options = call((2, 4, 32, 9, 9, 3, 1, 1, 1))
    x[0, 1, 0, 0] = float("nan")
    result = torch.ops.tiledev.convolution_backward(grad, x, weight, *options)[1]
    right = aten.convolution_backward(grad, x, weight, *options)[1]
    torch.testing.assert_close(result, right, equal_nan=True, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_that_are_no_numbers_do_not_meet_the_padding(value):
    grad, x, weight, options = call((2, 4, 32, 9, 9, 3, 1, 1, 1))
    grad[0, 0, 0, 0] = value
    results = torch.ops.tiledev.convolution_backward(grad, x, weight, *options)
    right = aten.convolution_backward(grad, x, weight, *options)
    for result, expected in zip(results, right, strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-4, atol=1e-3)


def test_what_is_atens():
    plain = CASES["no padding"]
    cases = [
        call(plain, dtype=torch.float64),
        call((2, 32, 32, 6, 6, 3, 1, 1, 1), groups=32),
        call((2, 3, 8, 6, 6, 3, 1, 1, 1)),
    ]
    grad, x, weight, options = call(plain)
    cases.append((grad.contiguous(memory_format=torch.channels_last), x, weight, options))
    for grad, x, weight, options in cases:
        results = torch.ops.tiledev.convolution_backward(grad, x, weight, *options)
        right = aten.convolution_backward(grad, x, weight, *options)
        for result, expected in zip(results, right, strict=True):
            assert torch.equal(result, expected)
