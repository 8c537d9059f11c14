"""The networks of the works, in plain PyTorch; nothing here knows a device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from tiledev.models.gpt import Attention


class Mlp(nn.Module):
    """Layers without biases, with ReLU between them."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for layer in self.layers[:-1]:
            hidden = F.relu(layer(hidden))
        logits: Tensor = self.layers[-1](hidden)
        return logits


class EncoderLayer(nn.Module):
    """A layer of BERT: post-norm, full attention, GELU."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=False)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm1(inputs + self.attention(inputs))
        result: Tensor = self.norm2(hidden + self.down(F.gelu(self.up(hidden))))
        return result


class BasicBlock(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            narrow = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(after))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A 3x3 stem, two basic blocks for each channel count, and a classifier."""

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels[0])
        blocks = [BasicBlock(channels[0], channels[0], 1), BasicBlock(channels[0], channels[0], 1)]
        for before, after in itertools.pairwise(channels):
            blocks += [BasicBlock(before, after, 2), BasicBlock(after, after, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(F.relu(self.norm(self.stem(images))))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits
