"""The module `torch.tiledev`: what torch expects of a device, under the names that it uses.

See also `torch.tiledev.random`, `.memory`, `.streams` and `.amp`. The functions that have no
counterpart on other devices (flushes, statistics, settings) are in the package `tiledev` itself.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch

import tiledev
from tiledev import amp, memory, random, streams
from tiledev._device_index import DEVICE_COUNT, DeviceLike, device_index
from tiledev.amp import get_amp_supported_dtype
from tiledev.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from tiledev.random import (
    _get_generator,
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from tiledev.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "_get_generator",
    "amp",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "random",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
]

# torch.utils.checkpoint keeps the generator's state only where this is set. The device has its
# generator from the start, so the answer does not depend on the context.
_initialized = True


def is_available() -> bool:
    """Returns True: the device is the host, which is always there."""
    return True


def device_count() -> int:
    """Returns the number of devices: 1, however many workers it has."""
    return DEVICE_COUNT


def current_device() -> int:
    """Returns the index of the current device: 0."""
    return 0


def set_device(device: DeviceLike) -> None:
    """Selects the current device; there is one, so this only checks the argument.

    Args:
        device: the device; a negative index selects nothing.

    Raises:
        ValueError: `device` is not a tiledev device.
        RuntimeError: its index is not 0.
    """
    device_index(device, "set_device")


def _exchange_device(device: int) -> int:
    device_index(device, "device")
    return current_device()


_maybe_exchange_device = _exchange_device


class device:  # noqa: N801  (the name that every torch device module has)
    """Context manager that selects a device.

    Args:
        device: the device; None and negative indices select nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device_index(device, "device")
        self.prev_idx = -1

    def __enter__(self) -> None:
        """Selects the device."""
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        """Selects the device from before; errors pass through."""
        self.idx = _maybe_exchange_device(self.prev_idx)
        return False


class device_of(device):  # noqa: N801  (the name that torch.cuda gives it)
    """Context manager that selects the device of a tensor or storage, if it is a tiledev one."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.get_device() if obj.device.type == "tiledev" else -1)


def init() -> None:
    """Makes the context with default settings, if there is none yet."""
    _lazy_init()
    if not tiledev._C.is_context_initialized():
        tiledev.init_context()


def is_initialized() -> bool:
    """Returns whether the context exists: it appears at the first op, or by `init_context`."""
    return tiledev._C.is_context_initialized() and not _is_in_bad_fork()


def _lazy_init() -> None:
    """Refuses a forked child; torch calls this before it makes the first tensor.

    The context is left alone: an `init_context` may still follow before the first op.
    """
    if _is_in_bad_fork():
        raise RuntimeError(
            "[tiledev] this process was forked from one that had used tiledev, whose worker "
            "threads a fork does not copy: start processes with the 'spawn' method, for example "
            "torch.multiprocessing.get_context('spawn'), or use the device only in the children"
        )


def _is_in_bad_fork() -> bool:
    """Returns whether this process was forked after the device had been used."""
    return tiledev._C.is_in_bad_fork()


@dataclass(frozen=True)
class DeviceProperties:
    """What the device is.

    Attributes:
        name: the processor's name.
        total_memory: bytes of host memory.
        multi_processor_count: cores that this process may use.
    """

    name: str
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns what the device is.

    Example:
        >>> torch.tiledev.get_device_properties().multi_processor_count > 0
        True
    """
    device_index(device, "get_device_properties")
    return DeviceProperties(
        name=get_device_name(device),
        total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        multi_processor_count=usable_cores(),
    )


def usable_cores() -> int:
    """Returns the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the processor's name."""
    device_index(device, "get_device_name")
    return platform.processor() or platform.machine()


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """Returns what `torch.accelerator.get_device_capability` does: the supported dtypes.

    Returns:
        A dict with the key "supported_dtypes", a set of dtypes.
    """
    index = max(device_index(device, "get_device_capability"), 0)
    capability: dict[str, Any] = torch._C._accelerator_getDeviceCapability(index)
    return capability


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: every CPU kernel takes bfloat16, though not every processor speeds it up."""
    return True
