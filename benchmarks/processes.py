"""The parent's side of the workers: starts them, asks them, ends them."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import rivals

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(RuntimeError):
    """A worker failed at a request; the text is its traceback or its last words."""


@dataclass(frozen=True)
class Settings:
    """What all workers share."""

    scale: str
    threads: int
    timeout: float


class WorkerProcess:
    """A process that runs one work on one rival. It sleeps when it is not asked."""

    def __init__(self, work: str, rival: str, settings: Settings) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", "--work", work, "--rival", rival]
        command += ["--scale", settings.scale, "--threads", str(settings.threads)]
        self._timeout = settings.timeout
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=rivals.environment(rival, settings.threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, request: str) -> dict[str, Any]:
        """Returns the answer to a request.

        Raises:
            WorkerError: the request failed, the process died, or no answer came in time.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            print(request, file=requests, flush=True)
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        if not select.select([replies], [], [], self._timeout)[0]:
            self._process.kill()
            raise WorkerError(f"no answer to {request} in {self._timeout:g} s\n{self._stderr()}")
        line = replies.readline()
        if not line:
            raise WorkerError(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def _last_words(self) -> str:
        """Returns how the process ended, after what it said last."""
        return f"{self._stderr()}\nthe worker ended with status {self._process.wait()}"

    def _stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process: its input ends, and so does it."""
        try:
            self._process.communicate(timeout=30 if kind is None else 1)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.communicate()
        self._errors.close()
