"""A small GPT: a decoder of text, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GPT", "Attention", "GPTConfig"]


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT.

    Attributes:
        layers: number of blocks.
        width: features of a token inside the network; a multiple of `heads`.
        heads: attention heads of a block.
        length: the most tokens of a sequence.
        vocabulary: number of different tokens.

    Raises:
        ValueError: a size is less than 1, or `width` is no multiple of `heads`.
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    length: int = 128
    vocabulary: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ValueError(f"[GPTConfig] {field.name} is {value}: it must be at least 1")
        if self.width % self.heads != 0:
            raise ValueError(
                f"[GPTConfig] width is {self.width} with {self.heads} heads: "
                "it must be a multiple of heads"
            )


class Attention(nn.Module):
    """Multi-head self-attention over [batch, length, width], causal or not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns a tensor of the same shape: every token mixed with those that it may see."""
        batch, length, width = inputs.shape
        parts = self.into(inputs).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """A pre-norm block: causal attention, then a GELU (tanh) layer four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=True)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns a tensor of the same shape, [batch, length, width]."""
        hidden: Tensor = inputs + self.attention(self.norm1(inputs))
        hidden = hidden + self.down(F.gelu(self.up(self.norm2(hidden)), approximate="tanh"))
        return hidden


class GPT(nn.Module):
    """A GPT with learned positions and a head of its own weights.

    The blocks are those of Radford et al., "Language models are unsupervised multitask learners"
    (2019): norms stand before attention and before the wide layer. Embeddings are drawn with a
    deviation of 0.02, everything else as PyTorch draws it, from the default generator.

    Args:
        config: the sizes (default: `GPTConfig()`).

    Example:
        >>> model = GPT(GPTConfig(layers=2, width=32, heads=4, length=16, vocabulary=50))
        >>> model(torch.zeros(3, 16, dtype=torch.int64)).shape
        torch.Size([3, 16, 50])
    """

    def __init__(self, config: GPTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Parameter(0.02 * torch.randn(config.length, config.width))
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps token ids, int64 [batch, length], to logits, [batch, length, vocabulary]."""
        if tokens.shape[1] > self.config.length:
            raise ValueError(
                f"[GPT] got {tokens.shape[1]} tokens a sequence: at most {self.config.length}"
            )
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits
