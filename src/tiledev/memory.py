"""Memory of the device: statistics and cache (`torch.tiledev.memory`).

The device's memory is host memory. A tensor counts as allocated once something has been written
to it: memory appears when the node that writes it runs.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

import tiledev
from tiledev._device_index import DeviceLike, device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Returns the allocator's statistics, with the keys of `torch.cuda.memory_stats`.

    Freed memory stays in a cache for tensors of its size. Besides torch's keys there are
    "cached_bytes", and how often memory came from the cache ("cache_hits") and from the system
    ("cache_misses").

    Example:
        >>> torch.tiledev.memory_stats()["allocated_bytes.all.current"] >= 0
        True
    """
    device_index(device, "memory_stats")
    return OrderedDict(sorted(tiledev._C.memory_stats().items()))


def _statistic(name: str, device: DeviceLike, call: str) -> int:
    device_index(device, call)
    return tiledev._C.memory_stats().get(name, 0)


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that live tensors occupy now."""
    return _statistic("allocated_bytes.all.current", device, "memory_allocated")


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the most bytes that live tensors occupied, since start or the last reset."""
    return _statistic("allocated_bytes.all.peak", device, "max_memory_allocated")


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes that the allocator holds now, those in its cache included."""
    return _statistic("reserved_bytes.all.current", device, "memory_reserved")


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the most bytes that the allocator held, since start or the last reset."""
    return _statistic("reserved_bytes.all.peak", device, "max_memory_reserved")


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the peaks to what is in use now."""
    device_index(device, "reset_peak_memory_stats")
    tiledev._C.reset_peak_memory_stats()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counts of allocations and frees since start to zero."""
    device_index(device, "reset_accumulated_memory_stats")
    tiledev._C.reset_accumulated_memory_stats()


def empty_cache() -> None:
    """Returns the memory that the allocator caches to the system; waits for nothing."""
    tiledev._C.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what tensors may take in memory together; see `memory_limit` of `init_context`.

    Lasts until `shutdown_context` or the next call.

    Args:
        fraction: the part of the host's memory, from 0 to 1.
        device: the device (default: the current one).

    Raises:
        TypeError: `fraction` is not a float.
        ValueError: it is not between 0 and 1.
    """
    device_index(device, "set_per_process_memory_fraction")
    if not isinstance(fraction, float):
        raise TypeError(
            f"[set_per_process_memory_fraction] got fraction={fraction!r}; pass a float"
        )
    if not 0 <= fraction <= 1:
        raise ValueError(f"[set_per_process_memory_fraction] got fraction={fraction}; pass 0 to 1")
    _, total = mem_get_info(device)
    tiledev._C.set_memory_limit(int(total * fraction))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the bytes of host memory that are available, and those there are in total."""
    index = max(device_index(device, "mem_get_info"), 0)
    free, total = torch._C._accelerator_getMemoryInfo(index)
    return free, total


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns a table of the allocator's statistics for people to read.

    Args:
        device: the device (default: the current one).
        abbreviated: only the bytes allocated and reserved.
    """
    stats = memory_stats(device)
    shown = ("allocated_bytes.all", "reserved_bytes.all") if abbreviated else ("",)
    rows = [(name, value) for name, value in stats.items() if name.startswith(shown)]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{name:<{width}}  {_readable(name, value):>12}" for name, value in rows]
    return "\n".join(["memory of tiledev:0", *lines])


def _readable(name: str, value: int) -> str:
    """Prints a number of bytes in the unit that suits it, and any other number as it is."""
    if "bytes" not in name:
        return f"{value:,}"
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
