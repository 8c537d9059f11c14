"""Attention composed of plain ops, and attention for the layout that projections write."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SDPA", "sdpa_eager"]

_HALF = (torch.float16, torch.bfloat16)


def sdpa_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    batch_ndim: int = 2,
) -> Tensor:
    """Attends with matmul, softmax and matmul: softmax(scale q kᵀ + mask) v.

    Vaswani et al., "Attention Is All You Need" (2017), eq. 1, and what
    `F.scaled_dot_product_attention` computes; that one keeps no [L, S] scores and is the one to use
    where nobody has to look inside. Here every step is an op of its own, which can be read, tiled,
    hooked and differentiated twice.

    A query that may see no key gives zeros, with gradients of zero. float16 and bfloat16 are
    computed in float32 and rounded once, at the end. With dropout, a seed gives the numbers that
    `F.scaled_dot_product_attention` gives with that seed on the CPU.

    Args:
        q: queries, [*batch, L, E], floating point. `batch` has `batch_ndim` axes: none, or any, or
            as a rule [batch, heads].
        k: keys, [*batch, S, E], of q's dtype. Batch axes of q, k and v broadcast.
        v: values, [*batch, S, Ev], of q's dtype.
        mask: broadcasts to [*batch, L, S]. bool: True where a query may see a key. float32 or q's
            dtype: added to the scores, -inf hides a key; it may require a gradient.
        is_causal: query i sees keys 0 to i, also where L and S differ. With a mask, both hold.
        scale: what the products are multiplied with, any number; None: 1 / sqrt(E).
        dropout_p: the probability with which a weight of the softmax is dropped, from 0 to 1; the
            others are divided by 1 - dropout_p.
        enable_gqa: the last batch axis holds heads, and each head of k and v serves a group of
            neighbouring heads of q.
        batch_ndim: how many leading axes of q, k and v are batch axes.

    Returns:
        [*batch, L, Ev] in q's dtype.

    Raises:
        ValueError: shapes do not fit, dropout_p is no probability, or the mask is of another dtype.

    Example:
        >>> q = torch.zeros(2, 4, 3, 8)
        >>> kv = torch.arange(5.0).view(5, 1).expand(2, 1, 5, 8)
        >>> sdpa_eager(q, kv, kv, is_causal=True, enable_gqa=True)[0, 0, :, 0]
        tensor([0.0000, 0.5000, 1.0000])
    """
    _check(q, k, v, mask, dropout_p, batch_ndim)
    if enable_gqa:
        k, v = _repeat_heads(k, q, "k"), _repeat_heads(v, q, "v")
    dtype = q.dtype
    if dtype in _HALF:
        q, k, v = q.float(), k.float(), v.float()
    if scale is None:
        scale = 1.0 / math.sqrt(q.size(-1)) if q.size(-1) else 1.0
    scores = torch.matmul(q * scale, k.transpose(-2, -1))
    weights = _softmax(_masked(scores, mask, is_causal), may_be_empty=mask is not None)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return torch.matmul(weights, v).to(dtype)


def _masked(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask.to(scores.dtype)


def _softmax(scores: Tensor, *, may_be_empty: bool) -> Tensor:
    """Softmax over the keys; a row of nothing but -inf gives zeros instead of NaN."""
    if not may_be_empty:
        return scores.softmax(-1)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def _repeat_heads(x: Tensor, q: Tensor, name: str) -> Tensor:
    if q.dim() < 3:
        raise ValueError("[sdpa_eager] enable_gqa needs an axis of heads: batch_ndim of 1 or more")
    heads, given = q.size(-3), x.size(-3)
    if given == 0 or heads % given:
        raise ValueError(
            f"[sdpa_eager] q has {heads} heads, which is no multiple of {name}'s {given}"
        )
    return x if given == heads else x.repeat_interleave(heads // given, dim=-3)


def _check(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, batch_ndim: int
) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != batch_ndim + 2:
            raise ValueError(
                f"[sdpa_eager] {name} has shape {list(x.shape)}: with batch_ndim={batch_ndim} it "
                f"needs {batch_ndim + 2} axes, [*batch, seq, head_size]"
            )
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise ValueError(
                f"[sdpa_eager] {name} is {x.dtype} and q {q.dtype}: one floating dtype is needed"
            )
    if q.size(-1) != k.size(-1):
        raise ValueError(f"[sdpa_eager] head_size is {q.size(-1)} in q and {k.size(-1)} in k")
    if k.size(-2) != v.size(-2):
        raise ValueError(f"[sdpa_eager] k has {k.size(-2)} rows and v {v.size(-2)}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"[sdpa_eager] dropout_p is {dropout_p}: it must be from 0 to 1")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise ValueError(
            f"[sdpa_eager] the mask is {mask.dtype}: it must be bool, float32 or q's {q.dtype}"
        )


class SDPA(nn.Module):
    """Attention between projections, in their layout [batch, seq, head_size, heads].

    That is the layout of `linear(x).unflatten(-1, (head_size, heads))`: heads lie side by side, and
    `tiledev.nn.weight_layout` brings weights of Hugging Face's models into it. The attention is
    `F.scaled_dot_product_attention`, so without dropout no [L, S] scores take memory, whatever the
    layout.

    Args:
        is_causal: query i sees keys 0 to i.
        scale: what the products are multiplied with; None: 1 / sqrt(head_size).
        dropout_p: the probability with which a weight is dropped, in training only.
        enable_gqa: each head of k and v serves a group of neighbouring heads of q.

    Raises:
        ValueError: dropout_p is no probability.

    Example:
        >>> q, kv = torch.zeros(2, 3, 8, 4), torch.ones(2, 5, 8, 2)
        >>> SDPA(enable_gqa=True)(q, kv, kv).shape
        torch.Size([2, 3, 8, 4])
    """

    def __init__(
        self,
        *,
        is_causal: bool = False,
        scale: float | None = None,
        dropout_p: float = 0.0,
        enable_gqa: bool = False,
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout_p <= 1.0:
            raise ValueError(f"[SDPA] dropout_p is {dropout_p}: it must be from 0 to 1")
        self.is_causal = is_causal
        self.scale = scale
        self.dropout_p = dropout_p
        self.enable_gqa = enable_gqa

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attends.

        Args:
            q: queries, [batch, L, head_size, heads].
            k: keys, [batch, S, head_size, kv_heads].
            v: values, [batch, S, value_size, kv_heads].
            mask: bool or float, broadcasts to [batch, heads, L, S], as in `sdpa_eager`.

        Returns:
            [batch, L, value_size, heads] in q's dtype; `flatten(-2)` gives what the output
            projection of `weight_layout` reads.

        Raises:
            ValueError: q, k or v has not four axes.
        """
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.dim() != 4:
                raise ValueError(
                    f"[SDPA] {name} has shape {list(x.shape)}: "
                    "[batch, seq, head_size, heads] is needed"
                )
        out = F.scaled_dot_product_attention(
            _heads_first(q),
            _heads_first(k),
            _heads_first(v),
            attn_mask=mask,
            dropout_p=self.dropout_p if self.training else 0.0,
            is_causal=self.is_causal,
            scale=self.scale,
            enable_gqa=self.enable_gqa,
        )
        return out.permute(0, 2, 3, 1)

    def extra_repr(self) -> str:
        """What differs from one module to the next."""
        return (
            f"is_causal={self.is_causal}, scale={self.scale}, dropout_p={self.dropout_p}, "
            f"enable_gqa={self.enable_gqa}"
        )


def _heads_first(x: Tensor) -> Tensor:
    """[batch, heads, seq, head_size] with head_size innermost, as the fused kernel needs."""
    return x.permute(0, 3, 1, 2).contiguous()
