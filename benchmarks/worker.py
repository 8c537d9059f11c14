"""One work on one rival, in a process of its own, that does what its parent asks over pipes.

Each line on stdin is a request (`warm_up`, `round`, `memory`); each is answered by a line of JSON
on stdout. The process ends with its stdin.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from benchmarks import rivals, works
from benchmarks.builders import Step

CHECKED_STEPS = 2  # the second loss depends on the first update
SAMPLE = 64
Reply = dict[str, Any]


def digest(result: Tensor) -> list[float]:
    """Returns some numbers that stand for a result: all of a small one, a sample of a large one."""
    values = result.detach().cpu().float().flatten()
    if values.numel() <= SAMPLE:
        return values.tolist()
    sample = values[:: values.numel() // SAMPLE]
    return [*sample.tolist(), values.mean().item(), values.abs().mean().item()]


def memory_bytes(field: str) -> int:
    """Returns a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


class Session:
    """A work on a rival; its methods are the requests."""

    def __init__(self, work: works.Work, rival: str, threads: int) -> None:
        self.work = work
        self.place = rivals.PLACES[rival]
        self.lazy = self.place.device == "tiledev"
        self.step: Step | None = None
        self.wait: Callable[[], None] = lambda: None  # on the CPU all is done
        torch.set_num_threads(threads)
        if self.lazy:
            import tiledev

            tiledev.init_context(ncpu=threads)
            self.wait = tiledev.wait
        if rival == "tcmalloc" and "tcmalloc" not in Path("/proc/self/maps").read_text():
            raise RuntimeError("[worker] LD_PRELOAD did not load tcmalloc; check the library")

    def facts(self) -> dict[str, Any]:
        """Returns what ran here: versions and settings."""
        facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if self.lazy:
            import tiledev

            facts["tiledev"] = vars(tiledev.built_info())
        return facts

    def warm_up(self) -> Reply:
        """Builds the work, runs its first steps, and a round whose time does not count."""
        self.step = self.work.build(self.place)
        values = []
        for _ in range(CHECKED_STEPS):
            result = self.step()
            self.wait()
            values += digest(result)
            del result
        self.time_step(self.step)
        return {"values": values, "facts": self.facts()}

    def round(self) -> Reply:
        """Returns the milliseconds of a step, over the calls of a round."""
        if self.step is None:
            raise RuntimeError("[round] nothing is built; ask for warm_up first")
        gc.collect()
        seconds = [self.time_step(self.step) for _ in range(self.work.calls)]
        return {"ms": 1e3 * sum(seconds) / len(seconds)}

    def time_step(self, step: Step) -> float:
        """Returns the seconds of a step, with the wait for its result and with dropping it."""
        start = time.perf_counter()
        result = step()
        if self.lazy and self.work.records_only:
            seconds = time.perf_counter() - start
            self.wait()
            return seconds
        self.wait()
        del result
        return time.perf_counter() - start

    def memory(self) -> Reply:
        """Returns how far resident memory grows while the work is built and makes its first steps.

        The kernel's peak is set back first, so that what was there after the imports counts not;
        a step at the small scale comes before that, since PyTorch imports much at first use.
        """
        small = works.find(self.work.name, "small").build(self.place)
        small()
        self.wait()
        del small
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM: proc(5)
        start = memory_bytes("VmRSS")
        step = self.work.build(self.place)
        for _ in range(CHECKED_STEPS):
            result = step()
            self.wait()
            del result
        return {"peak_bytes": memory_bytes("VmHWM") - start}


def answer(session: Session, request: str) -> Reply:
    """Does what a request asks; an error becomes the answer."""
    try:
        reply: Reply = getattr(session, request)()
    except Exception:
        return {"error": traceback.format_exc()}
    return reply


def take_stdout() -> TextIO:
    """Keeps stdout for the answers: what else writes there goes to stderr from now on."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def main() -> int:
    """Answers requests until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--rival", required=True, choices=rivals.NAMES)
    parser.add_argument("--scale", required=True, choices=works.SCALES)
    parser.add_argument("--threads", required=True, type=int)
    args = parser.parse_args()
    replies = take_stdout()
    session = Session(works.find(args.work, args.scale), args.rival, args.threads)
    for line in sys.stdin:
        print(json.dumps(answer(session, line.strip())), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
