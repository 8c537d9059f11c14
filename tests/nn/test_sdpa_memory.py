"""Attention holds no matrix of scores, wherever the CPU itself needs none."""

import pytest
import torch
import torch.nn.functional as F

from tests import support
from tiledev.nn import SDPA, sdpa_eager

pytestmark = pytest.mark.tiledev_only

B, H, L, E = 1, 4, 2048, 32
SCORES = B * H * L * L * 4  # bytes
ROWS = L * L * 4  # bytes of one head's scores


def peak(attend, *inputs, mask=None):
    """Bytes above the inputs at the peak of forward and of forward and backward."""
    leaves = [x.to(support.DEVICE).requires_grad_() for x in inputs]
    mask = None if mask is None else mask().to(support.DEVICE)
    torch.tiledev.synchronize()
    torch.tiledev.reset_peak_memory_stats()
    before = torch.tiledev.memory_allocated()
    out = attend(*leaves, mask)
    torch.tiledev.synchronize()
    forward = torch.tiledev.max_memory_allocated() - before
    out.sum().backward()
    torch.tiledev.synchronize()
    assert all(leaf.grad is not None for leaf in leaves)
    return forward, torch.tiledev.max_memory_allocated() - before


def attention(**options):
    return lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, **options)


def qkv(heads=H):
    return torch.randn(B, H, L, E), torch.randn(B, heads, L, E), torch.randn(B, heads, L, E)


def heads_after_seq(q, k, v, mask):
    views = (x.view(B, L, H, E).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*views, mask)


class TestFused:
    @pytest.mark.parametrize(
        "options",
        [{}, {"is_causal": True}, {"scale": 0.3}, {"is_causal": True, "scale": -1.0}],
        ids=str,
    )
    def test_options(self, options):
        forward, both = peak(attention(**options), *qkv())
        assert forward < SCORES / 16
        assert both < SCORES / 8

    @pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
    def test_gqa(self, options):
        forward, both = peak(attention(enable_gqa=True, **options), *qkv(1))
        assert forward < SCORES / 16
        assert both < SCORES / 8

    @pytest.mark.parametrize(
        "mask",
        [
            pytest.param(lambda: torch.rand(B, 1, 1, L) > 0.1, id="bool [B, 1, 1, L]"),
            pytest.param(lambda: torch.randn(B, 1, 1, L), id="float [B, 1, 1, L]"),
            pytest.param(lambda: torch.randn(L, L), id="float [L, L]"),
            pytest.param(lambda: torch.randn(1, 1, 1, L).expand(B, H, L, L), id="float expanded"),
        ],
    )
    def test_masks_are_used_as_they_are(self, mask):
        forward, both = peak(attention(), *qkv(), mask=mask)
        assert forward < SCORES / 16
        assert both < SCORES / 8

    @pytest.mark.parametrize("shape", [(L, L), (B, 1, L, L)], ids=str)
    def test_a_bool_mask_becomes_a_float_mask_of_its_shape(self, shape):
        forward, both = peak(attention(), *qkv(), mask=lambda: torch.rand(shape) > 0.1)
        assert forward < SCORES / 16 + ROWS
        assert both < SCORES / 8 + ROWS

    def test_strided_inputs(self):
        forward, both = peak(heads_after_seq, *(torch.randn(B, L, H, E) for _ in range(3)))
        assert forward < SCORES / 16
        assert both < SCORES / 8

    def test_half_precision(self):
        forward, both = peak(attention(is_causal=True), *(x.bfloat16() for x in qkv()))
        assert forward < SCORES / 32
        assert both < SCORES / 16

    def test_the_module_for_the_projection_layout(self):
        forward, both = peak(SDPA(is_causal=True), *(torch.randn(B, L, E, H) for _ in range(3)))
        assert forward < SCORES / 8
        assert both < SCORES / 4


@pytest.mark.parametrize(
    "attend",
    [
        pytest.param(attention(dropout_p=0.1), id="dropout"),
        pytest.param(lambda q, k, v, _: sdpa_eager(q, k, v), id="sdpa_eager"),
        pytest.param(
            lambda q, k, v, _: F.scaled_dot_product_attention(
                q, k, v, torch.ones(L, L, device=q.device, requires_grad=True)
            ),
            id="mask with a gradient",
        ),
        pytest.param(
            lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v[..., :-1]),
            id="values of another size",
        ),
        pytest.param(
            lambda q, k, v, _: F.scaled_dot_product_attention(
                *(x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v))
            ),
            id="head_size not innermost",
        ),
    ],
)
def test_where_the_cpu_holds_the_scores_the_device_does(attend):
    """docs/nn.md lists these; what is measured above is therefore able to show scores."""
    _, both = peak(attend, *qkv())
    assert both >= SCORES
