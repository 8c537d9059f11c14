"""Runs a work on its rivals, round by round, and reduces the rounds to medians and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks import targets
from benchmarks.processes import Settings, WorkerError, WorkerProcess
from benchmarks.works import Work

SUBJECT, REFERENCE = "tiledev", "cpu"


@dataclass
class Row:
    """What is known of a work: times by rival, and whether tiledev's results are right."""

    work: Work
    rounds: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def median(self, rival: str) -> float | None:
        """Returns the median of a rival's rounds, in milliseconds."""
        rounds = self.rounds.get(rival)
        return statistics.median(rounds) if rounds else None

    def is_noisy(self, rival: str) -> bool:
        """Returns whether the slowest round took more than 1.5 times the fastest."""
        rounds = self.rounds.get(rival, [0.0])
        return max(rounds) > 1.5 * min(rounds)

    def ratio(self, rival: str) -> float | None:
        """Returns the median of the rounds' ratios, tiledev / rival."""
        pairs = zip(self.rounds.get(SUBJECT, []), self.rounds.get(rival, []), strict=False)
        ratios = [subject / other for subject, other in pairs]
        return statistics.median(ratios) if ratios else None

    def target(self, rival: str) -> float | None:
        """Returns the ratio that is aimed at, if there is one."""
        return targets.TIME.get(self.work.family, {}).get(rival)

    def check(self) -> str:
        """Says whether tiledev's first results are the CPU's: "ok", "DIFFERS: ..." or "-"."""
        if SUBJECT not in self.values or REFERENCE not in self.values:
            return "-"
        return compare(self.values[SUBJECT], self.values[REFERENCE], self.work.rtol)

    def as_json(self) -> dict[str, Any]:
        """Returns the row as plain data."""
        others = [rival for rival in self.rounds if rival != SUBJECT]
        return {
            "work": self.work.name,
            "family": self.work.family,
            "title": self.work.title,
            "rounds_ms": self.rounds,
            "median_ms": {rival: self.median(rival) for rival in self.rounds},
            "ratio": {rival: self.ratio(rival) for rival in others},
            "target": {rival: self.target(rival) for rival in others},
            "noisy": [rival for rival in self.rounds if self.is_noisy(rival)],
            "check": self.check(),
            "errors": self.errors,
        }


@dataclass
class MemoryRow:
    """By how many bytes resident memory grows at its peak."""

    work: Work
    peak: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def ratio(self) -> float | None:
        """Returns tiledev's growth divided by the CPU's."""
        if SUBJECT not in self.peak or not self.peak.get(REFERENCE):
            return None
        return self.peak[SUBJECT] / self.peak[REFERENCE]

    def as_json(self) -> dict[str, Any]:
        """Returns the row as plain data."""
        return {
            "work": self.work.name,
            "peak_bytes": self.peak,
            "ratio": self.ratio(),
            "target": targets.MEMORY[self.work.family],
            "errors": self.errors,
        }


def compare(found: Sequence[float], wanted: Sequence[float], rtol: float) -> str:
    """Says whether numbers are close, relative to themselves and to their common size."""
    if len(found) != len(wanted):
        return f"DIFFERS: {len(found)} values, not {len(wanted)}"
    size = sum(map(abs, wanted)) / len(wanted)
    for after, before in zip(found, wanted, strict=True):
        if not abs(after - before) <= rtol * (abs(before) + size):  # NaN differs, too
            return f"DIFFERS: {after:.6g}, not {before:.6g}"
    return "ok"


def time_work(work: Work, rivals: Sequence[str], rounds: int, settings: Settings) -> Row:
    """Times a work on all rivals; in each round every rival runs once, one at a time.

    Each round starts with another rival. A rival that fails is left out of what follows.
    """
    row = Row(work)
    wanted = [rival for rival in rivals if rival not in work.skipped]
    with ExitStack() as stack:
        workers = {
            rival: stack.enter_context(WorkerProcess(work.name, rival, settings))
            for rival in wanted
        }
        for rival in wanted:
            _warm_up(row, rival, workers)
        for index in range(rounds):
            shift = index % len(wanted)
            for rival in wanted[shift:] + wanted[:shift]:
                _run_round(row, rival, workers)
    for rival in row.errors:
        row.rounds.pop(rival, None)
    return row


def _warm_up(row: Row, rival: str, workers: dict[str, WorkerProcess]) -> None:
    try:
        reply = workers[rival].ask("warm_up")
    except WorkerError as error:
        row.errors[rival] = str(error)
        return
    row.values[rival], row.facts[rival] = reply["values"], reply["facts"]


def _run_round(row: Row, rival: str, workers: dict[str, WorkerProcess]) -> None:
    if rival in row.errors:
        return
    try:
        row.rounds.setdefault(rival, []).append(workers[rival].ask("round")["ms"])
    except WorkerError as error:
        row.errors[rival] = str(error)


def measure_memory(work: Work, rivals: Sequence[str], settings: Settings) -> MemoryRow:
    """Measures the peak of a work on the CPU and on tiledev, each in a new process."""
    row = MemoryRow(work)
    for rival in (REFERENCE, SUBJECT):
        if rival not in rivals:
            continue
        try:
            with WorkerProcess(work.name, rival, settings) as worker:
                row.peak[rival] = worker.ask("memory")["peak_bytes"]
        except WorkerError as error:
            row.errors[rival] = str(error)
    return row
