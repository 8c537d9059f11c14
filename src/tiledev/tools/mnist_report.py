"""What `tiledev-mnist` prints and writes at the end of a run."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

import tiledev
from tiledev.tools.mnist_options import Options
from tiledev.tools.mnist_train import Phase
from tiledev.training import max_weight_delta

__all__ = [
    "LOSS_TOLERANCE",
    "WEIGHT_TOLERANCE",
    "agree",
    "disagree",
    "largest_weight_difference",
    "print_report",
    "write_plot",
    "write_results",
]

LOSS_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-6


def loss_differences(phases: list[Phase]) -> list[float]:
    """Returns, for each epoch, how far the last phase's loss is from the first one's."""
    first, last = phases[0].losses, phases[-1].losses
    return [abs(a - b) for a, b in zip(first, last, strict=True)]


def largest_weight_difference(phases: list[Phase]) -> float:
    """Returns the largest absolute difference of any weight; NaN if a weight is NaN."""
    return max_weight_delta(phases[0].weights, phases[-1].weights)


def agree(phases: list[Phase]) -> bool:
    """Tells whether losses and weights agree to the tolerances; NaN agrees with nothing."""
    close = all(difference <= LOSS_TOLERANCE for difference in loss_differences(phases))
    return close and largest_weight_difference(phases) <= WEIGHT_TOLERANCE


def disagree(phases: list[Phase]) -> bool:
    """Tells whether there are two phases that do not agree."""
    return len(phases) > 1 and not agree(phases)


def print_report(phases: list[Phase]) -> None:
    """Prints the losses, the differences, times and memory as tables."""
    print()
    _print_table(_loss_rows(phases))
    print()
    _print_table(_cost_rows(phases))
    if len(phases) > 1:
        print(f"\nlargest weight difference: {largest_weight_difference(phases):.1e}")
        print(_verdict(phases))


def _verdict(phases: list[Phase]) -> str:
    pair = f"{phases[0].device} and {phases[-1].device}"
    verdict = "agree" if agree(phases) else "DO NOT AGREE"
    tolerances = f"losses to {LOSS_TOLERANCE:.0e}, weights to {WEIGHT_TOLERANCE:.0e}"
    return f"{pair} {verdict} ({tolerances})"


def write_results(path: Path, phases: list[Phase], options: Options) -> None:
    """Writes options, versions and results as JSON."""
    results: dict[str, object] = {
        "options": asdict(options),
        "built": asdict(tiledev.built_info()),
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "phases": [_without_weights(phase) for phase in phases],
    }
    if len(phases) > 1:
        results["largest_weight_difference"] = largest_weight_difference(phases)
        results["agree"] = agree(phases)
    path.write_text(json.dumps(results, indent=2, default=str) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def write_plot(path: Path, phases: list[Phase]) -> None:
    """Draws the losses over the epochs to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for phase, style in zip(phases, ("o-", "x--"), strict=False):
        axes.plot(range(1, len(phase.losses) + 1), phase.losses, style, label=phase.device)
    axes.set(title="DeepReLU on MNIST", xlabel="epoch", ylabel="mean cross-entropy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def _loss_rows(phases: list[Phase]) -> list[list[str]]:
    columns = [[f"{loss:.8f}" for loss in phase.losses] for phase in phases]
    header = ["epoch", *(f"{phase.device} loss" for phase in phases)]
    if len(phases) > 1:
        header.append("difference")
        columns.append([f"{difference:.1e}" for difference in loss_differences(phases)])
    return [header, *([str(i + 1), *row] for i, row in enumerate(zip(*columns, strict=True)))]


def _cost_rows(phases: list[Phase]) -> list[list[str]]:
    facts: dict[str, Callable[[Phase], str]] = {
        "accuracy on these images": lambda phase: f"{phase.accuracy:.2%}",
        "time, all epochs": lambda phase: f"{sum(phase.seconds):.3f} s",
        "time, first epoch": lambda phase: f"{phase.seconds[0]:.3f} s",
        "time, median epoch": lambda phase: f"{statistics.median(phase.seconds):.3f} s",
        "peak memory, process grew by": lambda phase: _mib(phase.peak_growth),
        "peak memory, device tensors": lambda phase: _mib(phase.device_peak),
    }
    rows = [["", *(phase.device for phase in phases)]]
    return rows + [[name, *(show(phase) for phase in phases)] for name, show in facts.items()]


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.1f} MiB"


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))


def _without_weights(phase: Phase) -> dict[str, object]:
    return {name: value for name, value in vars(phase).items() if name != "weights"}
