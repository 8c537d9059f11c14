"""RMSNorm: torch.nn.RMSNorm with a weight that may be stored around zero."""

import pytest
import torch
from torch import nn

from tests import support
from tests.compare import assert_same
from tests.nn.test_sdpa import LOOSE, drawn
from tiledev.nn import RMSNorm


def run(net, x, device):
    net = net.to(device)
    leaf = x.to(device, copy=True).requires_grad_()
    net.zero_grad()
    out = net(leaf)
    (
        out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device).view_as(out)
    ).sum().backward()
    return [out, leaf.grad, net.weight.grad]


def net(offset=0.0, dtype=torch.float32, size=6):
    made = RMSNorm(size, offset=offset, dtype=dtype)
    nn.init.normal_(made.weight)
    return made


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 3, 5, 6), (0, 6)], ids=str)
def test_device_and_cpu(shape, offset, dtype):
    norm, x = net(offset, dtype), drawn(*shape, dtype=dtype)
    assert_same(lambda device: run(norm, x, device), **LOOSE[dtype])


@pytest.mark.parametrize("offset", [0.0, 1.0, -0.5])
def test_the_formula(offset):
    norm, x = net(offset, torch.float64), drawn(4, 6, dtype=torch.float64)
    rms = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    want = x / rms * (norm.weight.detach() + offset)
    got = norm.to(support.DEVICE)(x.to(support.DEVICE))
    torch.testing.assert_close(got.detach().cpu(), want)


def test_without_offset_it_is_pytorchs(device):
    ours, theirs = net(), nn.RMSNorm(6, eps=1e-6)
    theirs.load_state_dict(ours.state_dict())
    x = drawn(3, 6)
    assert torch.equal(ours.to(device)(x.to(device)), theirs.to(device)(x.to(device)))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_it_starts_by_scaling_with_one(offset, device):
    x = torch.ones(2, 6, device=device)
    norm = RMSNorm(6, eps=0.0, offset=offset, device=device)
    assert torch.equal(norm(x), x)
    assert norm.weight.eq(1 - offset).all()


def test_half_precision_squares_in_float32(device):
    x = torch.full((2, 6), 300.0, dtype=torch.float16, device=device)  # 300^2 is no float16
    assert RMSNorm(6, device=device, dtype=torch.float16)(x).eq(1).all()


def test_errors():
    with pytest.raises(ValueError, match=r"\[RMSNorm\] size is 0"):
        RMSNorm(0)


def test_repr():
    assert repr(RMSNorm(6, offset=1.0)) == "RMSNorm(6, eps=1e-06, offset=1.0)"
