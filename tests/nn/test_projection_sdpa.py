"""SDPA: attention in the projection layout [batch, seq, head_size, heads]."""

import pytest
import torch
import torch.nn.functional as F

from tests import support
from tests.compare import assert_same
from tests.nn.test_sdpa import LOOSE, drawn, visible
from tiledev.nn import SDPA

B, L, S, E, H = 2, 5, 7, 8, 4


def projections(dtype=torch.float32, heads=H, values=E):
    return (
        drawn(B, L, E, H, dtype=dtype),
        drawn(B, S, E, heads, dtype=dtype),
        drawn(B, S, values, heads, dtype=dtype),
    )


def run(net, inputs, mask, device):
    leaves = [x.to(device, copy=True).requires_grad_() for x in inputs]
    support.seed(1)
    out = net(*leaves, None if mask is None else mask.to(device))
    out.square().sum().backward()
    return [out, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize(
    ("options", "masked", "heads", "values"),
    [
        ({}, False, H, E),
        ({"is_causal": True}, False, H, E),
        ({"scale": 0.3}, True, H, E),
        ({"dropout_p": 0.4}, True, H, E),
        ({"enable_gqa": True}, False, 2, E),
        ({"enable_gqa": True, "is_causal": True}, False, 1, E),
        ({}, True, H, 3),
    ],
)
def test_values_and_gradients(options, masked, heads, values, dtype):
    inputs, mask = projections(dtype, heads, values), visible(B, 1, L, S) if masked else None

    def with_heads_first(q, k, v, mask):
        views = (x.permute(0, 3, 1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*views, mask, **options).permute(0, 2, 3, 1)

    want = run(with_heads_first, inputs, mask, "cpu")
    got = run(SDPA(**options), inputs, mask, support.DEVICE)
    torch.testing.assert_close([x.cpu() for x in got], want, check_stride=False, **LOOSE[dtype])
    assert got[0].shape == (B, L, values, H)
    assert_same(lambda device: run(SDPA(**options), inputs, mask, device), **LOOSE[dtype])


def test_dropout_is_for_training(device):
    q, k, v = (x.to(device) for x in projections())
    net = SDPA(dropout_p=0.5)
    plain = SDPA()(q, k, v)
    assert not torch.allclose(net(q, k, v), plain)
    assert torch.equal(net.eval()(q, k, v), plain)


def test_errors(device):
    x = torch.ones(2, 3, 4, device=device)
    with pytest.raises(ValueError, match=r"\[SDPA\] q has shape \[2, 3, 4\]: \[batch, seq"):
        SDPA()(x, x, x)
    with pytest.raises(ValueError, match=r"\[SDPA\] dropout_p is -0.1"):
        SDPA(dropout_p=-0.1)


def test_repr():
    assert repr(SDPA(is_causal=True)) == (
        "SDPA(is_causal=True, scale=None, dropout_p=0.0, enable_gqa=False)"
    )
