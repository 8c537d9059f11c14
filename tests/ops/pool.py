"""Entries in worker processes, started again after a crash."""

import json
import queue
import select
import subprocess
import sys
import tempfile
import threading
from typing import Any


class Worker:
    """A `tests.ops.worker` process."""

    def __init__(self, mode: str, cap: int, timeout: float):
        self.command = [sys.executable, "-m", "tests.ops.worker", mode, str(cap)]
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
        return {"name": name, "status": status, "problems": [self._post_mortem()], "strides": []}

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(timeout=60)
            self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (outlives this call)
            self.process = subprocess.Popen(
                self.command,
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


def run_entries(names: list[str], mode: str, jobs: int, cap: int, timeout: float) -> list[dict]:
    """One row an entry, in the order of `names`; `timeout` is for one entry, in seconds."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    rows: dict[str, dict] = {}
    for name in names:
        waiting.put(name)

    def serve() -> None:
        worker = Worker(mode, cap, timeout)
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
