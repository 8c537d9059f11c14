"""How much memory a phase of a program takes at its peak."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

__all__ = ["PeakMemory"]

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # what resets VmHWM, see proc(5)


class PeakMemory:
    """Measures by how much the process's resident memory grows at its peak.

    On Linux the kernel's peak is reset at the start. Elsewhere it covers the process's whole life,
    so that a phase that stays below an earlier phase's peak counts as 0.

    Example:
        >>> with PeakMemory() as memory:
        ...     zeros = bytearray(1 << 20)
        >>> memory.growth >= 0
        True

    Attributes:
        growth: bytes above what was resident at the start; set at the end of the block.
    """

    growth: int = 0

    def __enter__(self) -> PeakMemory:
        """Gives back what is free, and starts."""
        gc.collect()
        _release_free_memory()
        self._start = _reset_peak()
        return self

    def __exit__(self, *error: object) -> None:
        """Sets `growth`."""
        self.growth = max(0, _peak() - self._start)


def _release_free_memory() -> None:
    """Returns the C library's free memory to the system, or the next phase could reuse it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        if trim is not None:
            trim(0)


def _reset_peak() -> int:
    """Resets the peak as far as the system can; returns the bytes that count as the start."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
        return _status_bytes("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    if _STATUS.exists():
        return _status_bytes("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"[PeakMemory] {_STATUS} has no {field}")
