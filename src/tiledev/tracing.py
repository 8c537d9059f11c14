"""A timeline of what the workers do, for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiledev import _C

__all__ = ["trace"]


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Writes a Chrome trace of the tasks that run inside, a row for each worker.

    A bar of the category `segment` is a tile, or a lane of tiles; one of the category `help` a
    worker without work that takes parts of the products of other workers' tiles.

    Flushes and waits at the beginning and at the end, so that the trace holds this work and all of
    it. Open the file at https://ui.perfetto.dev or in chrome://tracing.

    Args:
        path: the JSON file to write.

    Raises:
        OSError: the file cannot be written; raised before anything runs.
        RuntimeError: another trace is being taken.

    Example:
        >>> import tempfile, os
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "trace.json")
        ...     with tiledev.trace(file):
        ...         y = torch.ones(300, 300, device="tiledev").exp().sum()
        ...     os.path.getsize(file) > 0
        True
    """
    target = Path(path)
    target.touch()
    _C.wait()
    _C.start_trace()
    try:
        yield
        _C.wait()
    finally:
        events = _C.stop_trace()
        target.write_text(json.dumps(_chrome_trace(events)), encoding="utf-8")


def _chrome_trace(events: list[tuple[str, int, int, int, int, int, int, bool]]) -> dict[str, Any]:
    """Returns the events in Chrome's format; times in microseconds."""
    workers = sorted({event[1] for event in events})
    process = os.getpid()
    rows: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": worker,
            "args": {"name": f"tiledev worker {worker}"},
        }
        for worker in workers
    ]
    for name, worker, begin, duration, plan, segment, unit, helps in events:
        rows.append(
            {
                "ph": "X",
                "name": name,
                "cat": "help" if helps else "segment",
                "pid": process,
                "tid": worker,
                "ts": begin / 1000,
                "dur": duration / 1000,
                "args": {"plan": plan, "segment": segment} | ({} if helps else {"unit": unit}),
            }
        )
    return {"traceEvents": rows, "displayTimeUnit": "ms"}
