"""Writes docs/models.md: what the networks of these tests do on tiledev.

python -m tests.models.report [--output docs/models.md] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests import support
from tests.models import language, parity, vision
from tests.models.stock import Sizes, Stock

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
TIMED = Sizes(
    batch=8, length=32, vocabulary=500, hidden=128, heads=8, inner=256, image=32, classes=10
)
COLUMNS = ("model", "forward", "gradients", "steps", "generate", "fallbacks", "time")

TEXT = """# Networks that run on tiledev

Written by `python -m tests.models.report`; do not edit by hand.

Stock networks of [transformers](https://pypi.org/project/transformers/), unchanged, with random
weights, and an MLP-Mixer and a U-Net of the tests (`tests/models/`), against device `cpu`:

- *forward*: all that the network returns, in evaluation; *gradients*: every parameter's, dropout
  and all;
- *steps*: weights, losses and batch norm's statistics after three steps of AdamW and of SGD, within
  1e-4 in float32;
- *generate*: the tokens that `generate()` gives: greedy, sampling with a seed and beams, each with
  a dynamic and a static KV cache where the network has one;
- *fallbacks*: the ops that ran on the CPU outside the graph in all of this. Where there are none,
  `init_context(cpu_fallback=False)` was set, under which such an op is an error;
- *time*: a training step (AdamW) as a multiple of device `cpu`'s: the ratio of the medians of
  {repeats} steps in turns, {threads} threads, batches of {batch} with {length} tokens or
  {image}x{image} pixels, hidden size {hidden}, {layers} layers. At this size much of a step is
  Python.

Every check was made with tiles of tiledev's choice, with named tilings of batch, sequence, heads
and hidden, and with tiny tiles; *no* means that one of these was not as on the CPU.

"""

NOTES = """
## Fallbacks, what does not run, and why

{failures}
"""


def checks(stock: Stock) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The columns with what `parity.compare` is called with for each."""
    yield "forward", ("forward",)
    yield "gradients", ("gradients",)
    for optimizer in parity.OPTIMIZERS:
        yield "steps", ("steps", optimizer)
    for cache in stock.caches if stock.prompt else ():
        for search in parity.SEARCHES:
            yield "generate", ("generate", search, cache)


def examine(stock: Stock) -> tuple[dict[str, str], collections.Counter, dict[str, str]]:
    """Returns the cells of a network, its fallbacks with counts, and the errors by column."""
    cells = {"generate": "-"}
    taken: collections.Counter = collections.Counter()
    errors: dict[str, str] = {}
    for column, arguments in checks(stock):
        for tiling in parity.TILINGS:
            try:
                taken.update(parity.compare(stock, tiling, *arguments))
            except Exception as error:
                errors.setdefault(column, " ".join(str(error).split()))
                support.settle()
        cells[column] = "no" if column in errors else "yes"
    return cells, taken, errors


def fallback_cell(names: collections.Counter | dict) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def training_step(stock: Stock, device: str) -> Callable[[], None]:
    """Returns a step that ends when its results are there."""
    run = parity.Run(stock, device)
    step = run.training_step(run.place(stock.batch()), "AdamW")

    def whole() -> None:
        step()
        if device != "cpu":
            support.synchronize()

    return whole


def time_ratio(stock: Stock, repeats: int) -> float:
    """The median time of a training step on the device as a multiple of the CPU's."""
    with parity.tiled("auto", cpu_fallback=bool(stock.fallbacks)):
        steps = [training_step(stock, device) for device in (support.DEVICE, "cpu")]
        times: list[list[float]] = [[], []]
        for round_ in range(repeats + 3):
            for step, found in zip(steps, times, strict=True):
                start = time.perf_counter()
                step()
                if round_ >= 3:
                    found.append(time.perf_counter() - start)
    mine, theirs = (statistics.median(found) for found in times)
    return mine / theirs


def write(path: Path, only: list[str], repeats: int) -> None:
    timed = {s.name: s for s in [*language.networks(TIMED), *vision.networks(TIMED)]}
    rows, failures = [], []
    for stock in [*language.networks(), *vision.networks()]:
        if only and stock.name not in only:
            continue
        cells, taken, errors = examine(stock)
        cells |= {"model": stock.name, "fallbacks": fallback_cell(taken), "time": "-"}
        if "steps" not in errors:
            cells["time"] = f"{time_ratio(timed[stock.name], repeats):.2f}"
        rows.append(cells)
        found: dict[str, list[str]] = {}
        for column, error in errors.items():
            found.setdefault(error.split(" (")[0][:160], []).append(column)
        failures += [f"- {stock.name}, {', '.join(at)}: `{why}`" for why, at in found.items()]
        failures += [f"- {stock.name}, `{op}`: {stock.fallbacks[op]}." for op in sorted(taken)]
        print(*(cells[column] for column in COLUMNS), sep=" | ", flush=True)
    settings = {"repeats": repeats, "threads": torch.get_num_threads(), **vars(TIMED)}
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(cells[column] for column in COLUMNS) for cells in rows]
    table = "".join(f"| {line} |\n" for line in lines)
    notes = NOTES.format(failures="\n".join(failures) or "Everything in the table runs.")
    path.write_text(TEXT.format(**settings) + table + notes)


def documented_fallbacks(path: Path = DOCUMENT) -> dict[str, str]:
    """The fallback column of the document, by the names of the networks."""
    rows = [line.strip("| \n").split(" | ") for line in path.read_text().splitlines()]
    return {
        row[0]: row[5]
        for row in rows
        if len(row) == len(COLUMNS) and row[0] not in ("model", "---")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=DOCUMENT)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    write(options.output, options.only, options.repeats)


if __name__ == "__main__":
    main()
