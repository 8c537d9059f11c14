"""Pieces of networks that add something to `torch.nn`; they run on any device.

Example:
    >>> import torch
    >>> from tiledev.nn import SDPA
    >>> q = torch.ones(2, 5, 16, 4)  # [batch, seq, head_size, heads]
    >>> SDPA(is_causal=True)(q, q, q).shape
    torch.Size([2, 5, 16, 4])
"""

from tiledev.nn import weight_layout
from tiledev.nn.attention import SDPA, sdpa_eager
from tiledev.nn.rms_norm import RMSNorm
from tiledev.nn.rope import RoPE
from tiledev.nn.rope_scaling import rope_frequencies
from tiledev.nn.silu_mul import SiLUMul, silu_mul

__all__ = [
    "SDPA",
    "RMSNorm",
    "RoPE",
    "SiLUMul",
    "rope_frequencies",
    "sdpa_eager",
    "silu_mul",
    "weight_layout",
]
