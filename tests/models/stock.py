"""What a row of the tables of networks says, and the sizes that the tables are made at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests import support


@dataclass(frozen=True)
class Sizes:
    """How large the networks of a table and their batches are."""

    batch: int = 3
    length: int = 10
    vocabulary: int = 61
    hidden: int = 32
    heads: int = 4
    inner: int = 40
    layers: int = 2
    image: int = 16
    classes: int = 5

    def tokens(self, length: int | None = None) -> Tensor:
        """A batch of token ids that are not special."""
        return torch.randint(3, self.vocabulary, (self.batch, length or self.length))

    def padded(self, *, left: bool) -> dict[str, Tensor]:
        """Tokens with their mask; three tokens of the first row are padding."""
        ids, mask = self.tokens(), torch.ones(self.batch, self.length, dtype=torch.int64)
        where = slice(0, 3) if left else slice(self.length - 3, None)
        ids[0, where], mask[0, where] = 0, 0
        return {"input_ids": ids, "attention_mask": mask}

    def images(self) -> Tensor:
        return torch.randn(self.batch, 3, self.image, self.image)

    def labels(self) -> Tensor:
        return torch.randint(self.classes, (self.batch,))


TINY = Sizes()


@dataclass(frozen=True, eq=False)
class Stock:
    """A network of the tables.

    Attributes:
        name: how tests and docs/models.md call it.
        make: makes it on the CPU.
        inputs: makes a batch with labels on the CPU; the network's answer has its "loss".
        prompt: makes what `generate` starts from, or None if the network does not generate.
        caches: the KV caches that `generate` is tried with; None is the network's own state.
        axes: the names that axes are given and tiled by in the runs with named tilings.
        fallbacks: ops that go to the CPU outside the graph, with the reason.
        atol: what floats may differ by, beside 1e-4 of their size.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    prompt: Callable[[], dict[str, Any]] | None = None
    caches: tuple[str | None, ...] = ("dynamic", "static")
    axes: tuple[str, ...] = ("batch", "sequence", "hidden", "heads")
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    atol: float = 1e-5

    def build(self) -> nn.Module:
        """Returns the network on the CPU, the same weights each time."""
        support.seed(1)
        return self.make()

    def batch(self) -> dict[str, Any]:
        """Returns the batch on the CPU, the same each time."""
        support.seed(2)
        return self.inputs()

    def start(self) -> dict[str, Any]:
        """Returns what `generate` starts from, the same each time."""
        assert self.prompt is not None
        support.seed(3)
        return self.prompt()
