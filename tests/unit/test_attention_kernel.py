"""The attention kernels for tiles against ATen's in float64, on the CPU itself."""

from __future__ import annotations

import itertools

import pytest
import torch

import tiledev  # noqa: F401  (registers the kernels)

NAME = "_scaled_dot_product_flash_attention_for_cpu"
aten = torch.ops.aten

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.tiledev, NAME), reason="for this CPU ATen's attention is taken"
)

# queries, keys, elements of a head
SHAPES = [
    (1, 1, 1),
    (1, 70, 32),
    (5, 3, 2),
    (17, 16, 16),
    (64, 64, 64),
    (65, 130, 20),
    (100, 600, 33),
    (300, 1030, 8),
]


def heads(rows, width, seed):
    """[2, 3, rows, width] in the order of memory that a linear layer leaves: rows before heads."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, 3, width, generator=generator).transpose(1, 2)


def forward(q, k, v, causal, mask, scale):
    right = getattr(aten, NAME)(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    outs = [torch.full_like(t, 77.0) for t in right]
    return getattr(torch.ops.tiledev, NAME).out(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale, out0=outs[0], out1=outs[1]
    )


def backward(grad, q, k, v, out, log_sum, causal, mask, scale):
    outs = [torch.full_like(t, 77.0) for t in (q, k, v)]
    return getattr(torch.ops.tiledev, NAME + "_backward").out(
        grad, q, k, v, out, log_sum, 0.0, causal, attn_mask=mask, scale=scale,
        out0=outs[0], out1=outs[1], out2=outs[2],
    )  # fmt: skip


def masks(queries, keys):
    generator = torch.Generator().manual_seed(9)
    full = torch.randn(2, 3, queries, keys, generator=generator)
    blocked = full.clone()
    blocked[blocked < -0.5] = -float("inf")
    blocked[0, 0, queries // 2] = -float("inf")  # nobody is allowed
    return {
        "none": None,
        "full": full,
        "blocked": blocked,
        "by key": full[:1, :1, :1],
        "by query": full[:1, :, :, :1],
        "plain": full[0, 0],
        "expanded": full[:, :1, :1].expand(2, 3, queries, keys),
    }


def check(queries, keys, width, causal, mask, scale=None):
    q, k, v = heads(queries, width, 0), heads(keys, width, 1), heads(keys, width, 2)
    grad = heads(queries, width, 3)
    out, log_sum = forward(q, k, v, causal, mask, scale)
    double = [t.double() for t in (q, k, v)]
    exact_mask = mask.double() if mask is not None else None
    exact = getattr(aten, NAME)(*double, 0.0, causal, attn_mask=exact_mask, scale=scale)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(out.double(), exact[0], **close)
    torch.testing.assert_close(log_sum.double(), exact[1], **close)
    gradients = backward(grad, q, k, v, out, log_sum, causal, mask, scale)
    right = getattr(aten, NAME + "_backward")(
        grad.double(), *double, *exact, 0.0, causal, attn_mask=exact_mask, scale=scale
    )
    for one, other in zip(gradients, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, causal):
    check(*shape, causal, None)


@pytest.mark.parametrize("name", masks(1, 1))
@pytest.mark.parametrize("shape", [(65, 130, 20), (3, 600, 4)], ids=str)
def test_masks(shape, name):
    check(*shape, False, masks(*shape[:2])[name], scale=0.3)


def test_large_scores():
    q, k, v = (heads(40, 16, seed) * 30 for seed in range(3))
    out, _ = forward(q, k, v, True, None, None)
    right = getattr(aten, NAME)(q.double(), k.double(), v.double(), 0.0, True)[0]
    torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_values_that_are_no_numbers(value):
    q, k, v = (heads(20, 16, seed) for seed in range(3))
    for where in (q, k, v):
        kept = where[0, 1, 7, 3].clone()
        where[0, 1, 7, 3] = value
        out, _ = forward(q, k, v, False, None, None)
        right = getattr(aten, NAME)(q, k, v)[0]
        torch.testing.assert_close(out, right, equal_nan=True)
        where[0, 1, 7, 3] = kept


def test_layouts():
    """Rows may lie anywhere, and heads may share keys."""
    q = heads(20, 16, 0).contiguous()
    k = heads(30, 16, 1)[:, :1].expand(2, 3, 30, 16)
    v = torch.randn(2, 3, 60, 40)[:, :, ::2, 3:19]
    for one, other, last in itertools.permutations((q, k, v)):
        if one.shape[2] != 20:
            continue
        result = forward(one, other, last, False, None, None)[0]
        torch.testing.assert_close(result, getattr(aten, NAME)(one, other, last)[0])


def test_what_is_atens():
    """Other types."""
    q = heads(20, 16, 0)
    for x in (q.double(), q.bfloat16()):
        out, log_sum = forward(x, x, x, True, None, None)
        right = getattr(aten, NAME)(x, x, x, 0.0, True)
        assert out.equal(right[0])
        assert log_sum.equal(right[1])
        gradients = backward(x, x, x, x, out, log_sum, True, None, None)
        expected = getattr(aten, NAME + "_backward")(x, x, x, x, out, log_sum, 0.0, True)
        assert all(a.equal(b) for a, b in zip(gradients, expected, strict=True))
