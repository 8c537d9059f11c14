"""Shows the rows: as tables, as JSON and as a plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.measure import REFERENCE, SUBJECT, MemoryRow, Row

MIB = 1 << 20


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _against(ratio: float | None, target: float | None) -> str:
    """Returns a ratio beside its target; a ratio that misses it is marked."""
    missed = ratio is not None and target is not None and ratio > target
    return f"{_number(ratio, 2)}/{_number(target, 2)}{'!' if missed else ' '}"


def _time(row: Row, rival: str) -> str:
    """Returns a rival's median in ms; one that cannot be trusted is marked."""
    return f"{_number(row.median(rival), 2):>10}{'~' if row.is_noisy(rival) else ' '}"


def print_head(rivals: Sequence[str]) -> None:
    """Prints the head of the table of times."""
    others = [rival for rival in rivals if rival != SUBJECT]
    print("ms: medians; ~ rounds differ by more than 1.5x: something else was running")
    print("x/y: median ratio tiledev / rival, and its target; ! misses the target")
    times = "".join(f"{rival:>10} " for rival in rivals)
    ratios = "".join(f"{'/' + rival:>13}" for rival in others)
    print(f"{'work':<15}{times} {ratios}  check", flush=True)


def print_row(row: Row, rivals: Sequence[str]) -> None:
    """Prints a row of times, and below it what failed."""
    others = [rival for rival in rivals if rival != SUBJECT]
    times = "".join(_time(row, rival) for rival in rivals)
    ratios = "".join(f"{_against(row.ratio(rival), row.target(rival)):>13}" for rival in others)
    print(f"{row.work.name:<15}{times} {ratios}  {row.check()}", flush=True)
    print_errors(row)


def print_errors(row: Row | MemoryRow) -> None:
    """Prints the last line of each failure; the JSON file has it all."""
    for rival, error in row.errors.items():
        lines = error.strip().splitlines() or ["no message"]
        print(f"  {row.work.name} on {rival} failed: {lines[-1]}", flush=True)


def print_memory(rows: Sequence[MemoryRow]) -> None:
    """Prints the table of peaks."""
    print("\npeak growth of resident memory, MiB, data included")
    print(f"{'work':<15}{REFERENCE:>10}{SUBJECT:>10} {'ratio':>13}")
    for row in rows:
        peaks = [row.peak.get(rival) for rival in (REFERENCE, SUBJECT)]
        cells = "".join(f"{_number(p if p is None else p / MIB, 1):>10}" for p in peaks)
        ratio = _against(row.ratio(), targets.MEMORY[row.work.family])
        print(f"{row.work.name:<15}{cells} {ratio:>13}")
        print_errors(row)


def facts(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the machine and the versions that the numbers belong to."""
    found: dict[str, Any] = {"machine": platform.machine(), "system": platform.platform()}
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        lines = [line for line in cpu_info.read_text().splitlines() if "model name" in line]
        found["cpu"] = lines[0].split(": ")[1] if lines else "unknown"
    found |= {"cores": os.cpu_count(), "load": os.getloadavg()}
    for row in rows:
        found |= row.facts
    return found


def write_json(
    path: Path, settings: dict[str, Any], rows: Sequence[Row], memory: Sequence[MemoryRow]
) -> None:
    """Writes settings, machine and all rows."""
    report = {
        "settings": settings,
        "facts": facts(rows),
        "times": [row.as_json() for row in rows],
        "memory": [row.as_json() for row in memory],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def print_load() -> None:
    """Warns if other programs use the cores: OpenMP's barriers suffer most from that."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the load average is {load:.1f}: other programs will distort the times")


def missing_for_plot() -> str | None:
    """Returns why no plot can be made, or None if it can."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "--plot needs matplotlib: pip install matplotlib"
    return None


def write_plot(path: Path, rows: Sequence[Row], rivals: Sequence[str]) -> None:
    """Draws the ratios of every work as bars, with a black tick at each target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    others = [rival for rival in rivals if rival != SUBJECT]
    thickness = 0.8 / max(len(others), 1)
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.5 * len(rows)), layout="constrained")
    for index, rival in enumerate(others):
        shown = [(row.ratio(rival), row.target(rival), at) for at, row in enumerate(rows)]
        heights = [at + (index - (len(others) - 1) / 2) * thickness for *_, at in shown]
        widths = [ratio or 0.0 for ratio, *_ in shown]
        axes.barh(heights, widths, thickness, label=f"against {rival}")
        marks = [(t, y) for (_, t, _), y in zip(shown, heights, strict=True) if t is not None]
        for target, height in marks:
            axes.plot([target, target], [height - thickness / 2, height + thickness / 2], "k")
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), [f"{row.work.name}: {row.work.title}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("time of tiledev / time of rival (black: target; less is better)")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
