"""Strides of large results: they are found without running the op, and must be the CPU's."""

import pytest
import torch
import torch.nn.functional as F

from tests import support

DEVICE = support.DEVICE

LAYOUTS = {
    "transposed": lambda x: x.t(),
    "permuted": lambda x: x.view(300, 102, 3).permute(2, 0, 1),
    "every second": lambda x: x[:, ::2],
    "channels last": lambda x: x.view(15, 20, 34, 9).to(memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand(300, 306),
}
OPS = {
    "abs": lambda x: x.abs(),
    "neg": lambda x: -x,
    "isinf": lambda x: x.isinf(),
    "logical_not": lambda x: x.logical_not(),
    "logical_and": lambda x: x.logical_and(x),
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1,
    "compare": lambda x: x > 0.5,
    "where": lambda x: torch.where(x > 0.5, x, 2.0),
    "clamp": lambda x: x.clamp(0, 1),
    "pow of a number": lambda x: 2**x,
    "to": lambda x: x.double(),
    "out= that is empty": lambda x: torch.abs(x, out=x.new_empty(0)),
    "out= of another shape": lambda x: torch.add(x, 1, out=x.new_empty(3)),
    "out= of another type": lambda x: torch.add(x, 1, out=x.new_empty(0, dtype=torch.float64)),
    "out= of this shape": lambda x: torch.mul(x, 2, out=x.new_empty(x.shape)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_strides_are_the_cpus(op, layout):
    x = torch.rand(300, 306, generator=torch.Generator().manual_seed(0))
    result, expected = (OPS[op](LAYOUTS[layout](t)) for t in (x.to(DEVICE), x))
    assert result.stride() == expected.stride()
    assert result.cpu().equal(expected)


def channels_last(*shape):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return x.to(memory_format=torch.channels_last)


def pooled(x):
    return F.max_pool2d(x, 2, return_indices=True)


IMAGES = (8, 36, 40, 40)
MATRIX = torch.rand(300, 306, generator=torch.Generator().manual_seed(0))
OTHERS = {  # ops whose Meta kernels promise other strides, or did
    "convolution": lambda x, w: F.conv2d(x, w[:24, :36]),
    "convolution with a stride": lambda x, w: F.conv2d(x, w[:24, :36], stride=2, padding=1),
    "convolution of groups": lambda x, w: F.conv2d(x, w[:36, :1], groups=36),
    "transposed convolution": lambda x, w: F.conv_transpose2d(x, w[:36, :24]),
    "convolution with channels_last weights": lambda x, w: F.conv2d(
        x.contiguous(), w[:24, :36].to(memory_format=torch.channels_last)
    ),
    "reflecting padding": lambda x, w: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicating padding": lambda x, w: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "pixel_shuffle": lambda x, w: F.pixel_shuffle(x, 3),
    "pixel_unshuffle": lambda x, w: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x, w: F.channel_shuffle(x, 6),
    "max_pool2d": lambda x, w: pooled(x)[0],
    "max_unpool2d": lambda x, w: F.max_unpool2d(*pooled(x), 2),
    "interpolate": lambda x, w: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "group_norm": lambda x, w: F.group_norm(x, 6),
}
OF_A_TRANSPOSED_MATRIX = {
    "complex": lambda x: torch.complex(x, x),
    "polar": lambda x: torch.polar(x, x),
    "floor_divide": lambda x: torch.floor_divide(x, x),
    "logsigmoid": F.logsigmoid,
    "rrelu": F.rrelu,
    "isin": lambda x: torch.isin(x, x[:2]),
    "rfft2": lambda x: torch.fft.rfft2(x.t()),
    "hfft": torch.fft.hfft,
    "cumsum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("op", OTHERS)
def test_strides_of_images_are_the_cpus(op):
    def run(device):
        x = channels_last(*IMAGES).to(device).requires_grad_()
        w = torch.rand(40, 40, 3, 3, generator=torch.Generator().manual_seed(1)).to(device)
        y = OTHERS[op](x, w)
        y.square().sum().backward()
        return y, x.grad

    for one, expected in zip(run(DEVICE), run("cpu"), strict=True):
        assert one.stride() == expected.stride()
        torch.testing.assert_close(one.cpu(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", OF_A_TRANSPOSED_MATRIX)
def test_strides_of_a_transposed_matrix_are_the_cpus(op):
    result, expected = (OF_A_TRANSPOSED_MATRIX[op](x.t()) for x in (MATRIX.to(DEVICE), MATRIX))
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result.cpu(), expected)
