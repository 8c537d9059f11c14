"""Rotary position embeddings in both conventions, for any layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tiledev.nn.rope_scaling import rope_frequencies

__all__ = ["RoPE"]


class RoPE(nn.Module):
    """Turns pairs of features by an angle that grows with the position.

    Su et al., "RoFormer" (2021), eq. 34: (a, b) becomes (a cos t - b sin t, b cos t + a sin t) with
    t = position * frequency. The frequencies are no buffer: `.half()` does not round them and
    `to_empty()` does not lose them. Angles, sines and products are float32 (float64 for float64),
    whatever the dtype of x.

    Args:
        head_size: extent of the axis that is turned.
        base: the theta of the frequencies base^(-2i / rotary_size).
        interleaved: pairs are neighbours, (0, 1), (2, 3) ..., as in RoFormer and GPT-J; otherwise
            they are half the rotated part apart, as in Llama and GPT-NeoX.
        rotary_size: how many leading features are turned (default: all); the rest stays.
        scaling: how frequencies are stretched; see `rope_frequencies`.
        seq_dim: the axis of positions of x.
        dim: the axis that is turned. The defaults fit [batch, heads, seq, head_size]; the
            projection layout [batch, seq, head_size, heads] takes seq_dim=-3, dim=-2.

    Raises:
        ValueError: rotary_size is odd or larger than head_size, or the scaling is unknown.

    Example:
        >>> rope = RoPE(2)
        >>> rope(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))  # by 0 and by 1 radian
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """

    def __init__(
        self,
        head_size: int,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        rotary_size: int | None = None,
        scaling: Mapping[str, Any] | None = None,
        seq_dim: int = -2,
        dim: int = -1,
    ) -> None:
        super().__init__()
        rotary_size = head_size if rotary_size is None else rotary_size
        if rotary_size > head_size:
            raise ValueError(f"[RoPE] rotary_size is {rotary_size}, head_size only {head_size}")
        self.head_size = head_size
        self.rotary_size = rotary_size
        self.interleaved = interleaved
        self.seq_dim = seq_dim
        self.dim = dim
        self.frequencies, self.factor = rope_frequencies(rotary_size, base, scaling)

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Turns x.

        Args:
            x: any shape with `seq` at seq_dim and head_size at dim, floating point.
            position_ids: integer or floating positions, [seq], or [batch, seq] with batch the
                first axis of x (or 1); default: 0, 1, ..., seq - 1.

        Returns:
            A new tensor of x's shape and dtype.

        Raises:
            ValueError: the shape of x or of position_ids does not fit.
        """
        dim, seq_dim = self.dim % x.dim(), self.seq_dim % x.dim()
        if x.size(dim) != self.head_size:
            raise ValueError(
                f"[RoPE] axis {self.dim} of x {list(x.shape)} is {x.size(dim)}, "
                f"not head_size {self.head_size}"
            )
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self._cos_sin(x, position_ids, dim, seq_dim, dtype)
        turned = x.narrow(dim, 0, self.rotary_size).to(dtype)
        a, b = self._split(turned, dim)
        turned = self._join(a * cos - b * sin, b * cos + a * sin, dim).to(x.dtype)
        if self.rotary_size == self.head_size:
            return turned
        rest = x.narrow(dim, self.rotary_size, self.head_size - self.rotary_size)
        return torch.cat([turned, rest], dim)

    def _cos_sin(
        self, x: Tensor, position_ids: Tensor | None, dim: int, seq_dim: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines that broadcast against one half of the pairs."""
        seq = x.size(seq_dim)
        if position_ids is None:
            position_ids = torch.arange(seq, device=x.device)
        batches = (1, x.size(0)) if seq_dim else (1,)
        fits = position_ids.dim() in (1, 2) and position_ids.size(-1) == seq
        if not fits or (position_ids.dim() == 2 and position_ids.size(0) not in batches):
            raise ValueError(
                f"[RoPE] position_ids has shape {list(position_ids.shape)}, x {list(x.shape)}: "
                f"[{seq}] or [batch, {seq}] is needed"
            )
        shape = [1] * x.dim()
        shape[seq_dim] = seq
        if position_ids.dim() == 2 and seq_dim:
            shape[0] = position_ids.size(0)
        along = [1] * x.dim()
        along[dim] = len(self.frequencies)
        frequencies = torch.tensor(self.frequencies, dtype=dtype, device=x.device)
        angles = position_ids.to(dtype).reshape(shape) * frequencies.reshape(along)
        return angles.cos() * self.factor, angles.sin() * self.factor

    def _split(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if self.interleaved:
            pairs = x.reshape(*x.shape[:dim], x.size(dim) // 2, 2, *x.shape[dim + 1 :])
            a, b = pairs.unbind(dim + 1)
        else:
            a, b = x.chunk(2, dim)
        return a, b

    def _join(self, a: Tensor, b: Tensor, dim: int) -> Tensor:
        if self.interleaved:
            return torch.stack([a, b], dim + 1).flatten(dim, dim + 1)
        return torch.cat([a, b], dim)

    def extra_repr(self) -> str:
        """What differs from one module to the next."""
        return (
            f"{self.head_size}, interleaved={self.interleaved}, rotary_size={self.rotary_size}, "
            f"seq_dim={self.seq_dim}, dim={self.dim}"
        )
