"""Compares tiledev with eager CPU PyTorch, with that on tcmalloc, and with Inductor.

    python -m benchmarks.compare [--works W1 W2 ...] [--rounds 7] [--threads 2]
        [--rivals cpu tcmalloc inductor tiledev] [--scale small|full] [--variants]
        [--json FILE] [--plot FILE]

Run it from the root of the checkout. Each work runs on each rival in a process of its own. In each
round every rival runs once, one at a time, so that what else the machine does falls on all of them;
run it on a quiet machine all the same. A time is the median of the rounds; a ratio is the median of
the rounds' ratios (tiledev / rival; below 1 tiledev is faster). A step counts with the wait for its
result and with dropping it, but W5r stops the clock before the recorded graph runs. `check`
compares tiledev's first results with the CPU's. The targets hold for the full scale; a variant
shows its origin's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report, rivals, targets, works
from benchmarks.measure import REFERENCE, SUBJECT, MemoryRow, Row, measure_memory, time_work
from benchmarks.processes import Settings


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    lines = [f"  {entry.name:<16}{entry.title}" for entry in works.ENTRIES + works.VARIANTS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__.split("\n")[0],
        epilog="works, and below them the variants:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    every = works.names(variants=True)
    parser.add_argument("--works", nargs="+", metavar="W", choices=every, default=works.names())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rivals", nargs="+", choices=rivals.NAMES, default=rivals.NAMES)
    parser.add_argument("--scale", choices=works.SCALES, default="full")
    parser.add_argument("--variants", action="store_true", help="run the works' variants, too")
    parser.add_argument("--no-memory", action="store_true", help="measure times alone")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one answer")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    parser.add_argument("--plot", type=Path, help="draw the ratios to this file (PNG, SVG, PDF)")
    args = parser.parse_args(argv)
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    if args.plot is not None and (reason := report.missing_for_plot()) is not None:
        parser.error(reason)
    return args


def present_rivals(wanted: Sequence[str]) -> list[str]:
    """Returns the rivals that can run here, and prints why the others cannot."""
    present = []
    for rival in dict.fromkeys(wanted):
        reason = rivals.why_missing(rival)
        if reason is None:
            present.append(rival)
        else:
            print(f"{rival} is left out: {reason}")
    return present


def time_all(
    chosen: Sequence[works.Work], present: list[str], rounds: int, settings: Settings
) -> list[Row]:
    """Times the works one after the other, and prints each as it is done."""
    report.print_load()
    report.print_head(present)
    rows = []
    for work in chosen:
        rows.append(time_work(work, present, rounds, settings))
        report.print_row(rows[-1], present)
    return rows


def measure_all_memory(
    chosen: Sequence[works.Work], present: list[str], settings: Settings
) -> list[MemoryRow]:
    """Measures the peaks of those works that have a target for it, and prints them."""
    measured = [work for work in chosen if work.family in targets.MEMORY]
    if not measured or not {SUBJECT, REFERENCE} & set(present):
        return []
    rows = [measure_memory(work, present, settings) for work in measured]
    report.print_memory(rows)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns 1 if a rival failed or tiledev's results differ."""
    args = parse_arguments(argv)
    settings = Settings(args.scale, args.threads, args.timeout)
    present = present_rivals(args.rivals)
    chosen = works.chosen(args.works, args.variants, args.scale)
    rows = time_all(chosen, present, args.rounds, settings)
    memory = [] if args.no_memory else measure_all_memory(chosen, present, settings)
    if args.json is not None:
        asked = vars(args) | {"json": str(args.json), "plot": str(args.plot)}
        report.write_json(args.json, asked, rows, memory)
    if args.plot is not None:
        report.write_plot(args.plot, rows, present)
    failed = any(row.errors for row in rows) or any(row.errors for row in memory)
    return int(failed or any(row.check().startswith("DIFFERS") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
