"""The op database as a table: recorded, fallback, failed.

    python -m tests.ops.report [--jobs 2] [--only SUBSTRING] [--json op_report.json]

Entries run in worker processes: one that crashes or hangs is marked so and the rest go on.
"""

import argparse
import collections
import json
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests import support
from tests.ops import gaps
from tests.ops.entries import SAMPLE_CAP, entries

STATUSES = ("recorded", "fallback", "failed", "crashed", "hung")


class Worker:
    """A `tests.ops.worker` process, started again after a crash."""

    def __init__(self, cap: int, timeout: float):
        self.cap = cap
        self.timeout = timeout
        self.process: subprocess.Popen[str] | None = None
        self.log: Any = None

    def check(self, name: str) -> dict:
        """The row of one entry; never raises for what the entry does."""
        process = self._running()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self.timeout)
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            ready, line = True, ""
        if line:
            return json.loads(line)
        status = "crashed" if ready else "hung"
        message = self._post_mortem()
        return {"name": name, "status": status, "problems": [message], "strides": []}

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(timeout=60)
            self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (outlives this call)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.ops.worker", str(self.cap)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
            )
        return self.process

    def _post_mortem(self) -> str:
        self.process.kill()
        code = self.process.wait()
        self.process = None
        self.log.seek(0)
        return f"exit code {code}: " + self.log.read()[-1500:]


def run_entries(
    names: Iterable[str], jobs: int = 1, cap: int = SAMPLE_CAP, timeout: float = 300
) -> list[dict]:
    """One row an entry, in the order of `names`."""
    names = list(names)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    rows: dict[str, dict] = {}
    for name in names:
        waiting.put(name)

    def serve() -> None:
        worker = Worker(cap, timeout)
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            rows[name] = worker.check(name)
            _progress(len(rows), len(names))
        worker.close()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows[name] for name in names]


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{total}", end="" if done < total else "\n", file=sys.stderr)


def format_table(rows: list[dict]) -> str:
    """Counts, then every entry that was not simply recorded, with its reason."""
    counts = collections.Counter(row["status"] for row in rows)
    lines = [f"{len(rows)} entries on {support.DEVICE!r}"]
    lines += [f"  {status:10} {counts[status]:4}" for status in STATUSES]
    lines.append(f"  {'strides':10} {sum(bool(row['strides']) for row in rows):4}")
    for status in STATUSES[1:]:
        group = [row for row in rows if row["status"] == status]
        if group:
            lines += ["", f"{status}:"]
            lines += [f"  {row['name']:48} {_reason(row)}" for row in group]
    other = [row for row in rows if row["strides"]]
    if other:
        lines += ["", "other strides:"]
        lines += [f"  {row['name']:48} {row['strides'][0][:160]}" for row in other]
    return "\n".join(lines)


def _reason(row: dict) -> str:
    listed = gaps.FAILS.get(row["name"]) or gaps.FALLBACK.get(row["name"])
    if listed:
        return listed
    if row["status"] == "fallback":
        return ", ".join(f"{name} x{count}" for name, count in sorted(row["fallback"].items()))
    return f"({row.get('failures', 1)}) " + " ".join(row["problems"][0].split())[:220]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cap", type=int, default=SAMPLE_CAP, help="samples an entry")
    parser.add_argument("--only", default="", help="entries whose name contains this")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--timeout", type=float, default=300, help="seconds an entry may take")
    options = parser.parse_args(argv)
    names = [name for name in entries() if options.only in name]
    rows = run_entries(names, options.jobs, options.cap, options.timeout)
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    unexpected = [
        line
        for row in rows
        for line in gaps.complaints(
            row["name"], row["status"], bool(row["strides"]), row["problems"] or row["strides"]
        )
    ]
    if unexpected:
        print("\nnot as in tests/ops/gaps.py:", *unexpected, sep="\n  ")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
