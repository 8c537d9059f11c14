"""The works by name: what is built, in which sizes, and how it is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import builders as b

Sizes = dict[str, Any]
SCALES = ("small", "full")


@dataclass(frozen=True)
class Work:
    """A work at one scale.

    Attributes:
        name: what the command line calls it.
        family: the work whose targets it is held against: its own name, or a variant's origin.
        title: a line for people.
        make: builds it; called with a place and the sizes.
        sizes: the keyword arguments of `make`.
        calls: steps in a round; short steps are repeated.
        records_only: whether the clock stops before a lazy device runs what it recorded.
        rtol: how close the results of two rivals must be.
        skipped: the rivals for which it makes no sense.
    """

    name: str
    family: str
    title: str
    make: Callable[..., b.Step]
    sizes: Sizes
    calls: int = 1
    records_only: bool = False
    rtol: float = 1e-3
    skipped: tuple[str, ...] = ()

    def build(self, place: b.Place) -> b.Step:
        """Returns the step, with its weights and data on the device."""
        return self.make(place, **self.sizes)


@dataclass(frozen=True)
class Entry:
    """A work at every scale; `small` holds the sizes that differ from the full ones."""

    name: str
    title: str
    make: Callable[..., b.Step]
    full: Sizes
    small: Sizes
    calls: int = 1
    family: str = ""
    rtol: float = 1e-3

    def at(self, scale: str) -> Work:
        """Returns the work in the sizes of a scale."""
        adds = self.make is b.dependent_adds
        return Work(
            name=self.name,
            family=self.family or self.name,
            title=self.title,
            make=self.make,
            sizes=self.full | (self.small if scale == "small" else {}),
            calls=self.calls,
            records_only=self.name == "W5r",
            rtol=self.rtol,
            skipped=("inductor",) if adds else (),
        )


MILLION = 1 << 20
MLP = {"widths": (784, 256, 256, 256, 10)}
GPT = {"layers": 4, "width": 256, "heads": 8, "length": 256, "batch": 8, "vocabulary": 4096}
SMALL_GPT = {"width": 32, "heads": 4, "length": 16, "batch": 2, "vocabulary": 64}
ENCODER = {"layers": 2, "width": 768, "heads": 12, "inner": 3072, "batch": 8, "length": 128}
SMALL_ENCODER = {"width": 32, "heads": 4, "inner": 64, "batch": 2, "length": 16}
FLAT, SMALL_FLAT = {"shape": (32 * MILLION,)}, {"shape": (1 << 16,)}
ROWS, SMALL_ROWS = {"shape": (8192, 4096)}, {"shape": (64, 128)}
ADDS = {"count": 1000, "elements": 16}
RESNET = {"channels": (64, 128, 256, 512), "batch": 32, "side": 64}
SMALL_RESNET = {"channels": (4, 8), "batch": 2, "side": 16}

ENTRIES = (
    Entry("W1", "MLP step, 60,000 rows", b.mlp_training, MLP | {"rows": 60_000}, {"rows": 512}),
    Entry("W1b", "MLP step, 1,024 rows", b.mlp_training, MLP | {"rows": 1024}, {"rows": 64}, 20),
    Entry("W2", "GPT step, batch 8", b.gpt_training, GPT, SMALL_GPT),
    Entry("W3", "GPT inference, batch 1", b.gpt_inference, GPT | {"batch": 1}, SMALL_GPT, 10),
    Entry(
        "W4a",
        "gelu(x*a+b)*sigmoid(x)+tanh(x)",
        b.map_elements,
        FLAT | {"function": b.gelu_chain},
        SMALL_FLAT,
        3,
    ),
    Entry(
        "W4b", "softmax, 8192 x 4096", b.map_elements, ROWS | {"function": b.softmax}, SMALL_ROWS, 3
    ),
    Entry("W4c", "layer norm, 8192 x 4096", b.layer_norm, ROWS, SMALL_ROWS, 3),
    Entry(
        "W4d",
        "relu(x*a+b)*x+x",
        b.map_elements,
        FLAT | {"function": b.relu_chain},
        SMALL_FLAT,
        3,
    ),
    Entry("W5", "1,000 dependent adds", b.dependent_adds, ADDS, {}, 20),
    Entry("W5r", "the same, recorded only", b.dependent_adds, ADDS, {}, 20),
    Entry("W7", "ResNet-18 step", b.resnet_training, RESNET, SMALL_RESNET),
    Entry("W8", "BERT layers step, bf16", b.encoder_training, ENCODER, SMALL_ENCODER, rtol=1e-2),
)


def _mlp(name: str, rows: int, *widths: int) -> Entry:
    """Returns a variant of W1."""
    title = f"MLP {'-'.join(map(str, widths))}, {rows:,} rows"
    sizes = {"rows": rows, "widths": widths}
    return Entry(name, title, b.mlp_training, sizes, {"rows": 500}, family="W1")


def _gpt(name: str, layers: int, width: int, heads: int, batch: int, length: int) -> Entry:
    """Returns a variant of W2."""
    sizes = {"layers": layers, "width": width, "heads": heads, "batch": batch, "length": length}
    title = f"GPT {layers} x {width}, {heads} heads, {batch} x {length}"
    return Entry(name, title, b.gpt_training, GPT | sizes, SMALL_GPT, family="W2")


def _chain(family: str, name: str, title: str, function: b.Function) -> Entry:
    """Returns a variant of W4a or W4d."""
    sizes = FLAT | {"function": function}
    return Entry(name, title, b.map_elements, sizes, SMALL_FLAT, 3, family)


VARIANTS = (
    _mlp("W1-wide", 20_000, 784, 512, 512, 10),
    _mlp("W1-deep", 30_000, 784, 96, 96, 96, 96, 96, 96, 10),
    _mlp("W1-odd", 12_345, 301, 333, 111, 7),
    _gpt("W2-wide", 2, 384, 6, 8, 128),
    _gpt("W2-deep", 6, 192, 6, 3, 200),
    _gpt("W2-large-batch", 4, 128, 4, 24, 128),
    _chain("W4a", "W4a-swapped", "tanh(x*a+b)*gelu(x)-sigmoid(x)*x", b.swapped_gelu_chain),
    _chain("W4a", "W4a-exp", "silu(x)*b-exp(-x*x)/(abs(x)+a)", b.exp_chain),
    _chain("W4d", "W4d-clamp", "(x-min(x*x+b,a))*relu(x)", b.clamp_chain),
    Entry(
        "W4b-scaled",
        "softmax(x*a)+b, 20000 x 1500",
        b.map_elements,
        {"shape": (20_000, 1500), "function": b.scaled_softmax},
        SMALL_ROWS,
        3,
        "W4b",
    ),
    Entry(
        "W4c-residual",
        "layer norm of x+relu(x), 30000 x 1000",
        b.layer_norm,
        {"shape": (30_000, 1000), "function": b.residual},
        SMALL_ROWS,
        3,
        "W4c",
    ),
)


def names(variants: bool = False) -> list[str]:
    """Returns the names of the works, with those of the variants if asked."""
    return [entry.name for entry in ENTRIES + (VARIANTS if variants else ())]


def find(name: str, scale: str) -> Work:
    """Returns a work, or a variant, in the sizes of a scale."""
    return next(entry for entry in ENTRIES + VARIANTS if entry.name == name).at(scale)


def chosen(wanted: list[str], variants: bool, scale: str) -> list[Work]:
    """Returns the wanted works, each followed by its variants if those are asked for."""
    works = []
    for name in wanted:
        works.append(find(name, scale))
        if variants:
            works += [entry.at(scale) for entry in VARIANTS if entry.family == name]
    return works
