"""Streams and events of the device (`torch.tiledev.streams`).

The device has one stream: recorded ops take effect in program order, so a stream never has to
wait for another. Waiting for a stream or an event runs what is pending, too: nothing that is only
recorded would ever finish by itself.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Literal

import torch

import tiledev
from tiledev._device_index import DeviceLike, device_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "synchronize",
]


def synchronize(device: DeviceLike = None) -> None:
    """Runs what is pending and waits until the device is idle.

    Args:
        device: the device (default: the current one).

    Raises:
        RuntimeError: an op failed while it ran (or the error's own type); the message names the op
            and the line that recorded it.
    """
    device_index(device, "synchronize")
    tiledev._C.execute()
    tiledev._C.wait()


class Stream(torch.Stream):
    """The device's one stream: every instance is the same stream.

    Args:
        device: the device (default: the current one).
        priority: accepted for the sake of device-generic code; there is nothing to prefer.
        kwargs: `stream_id`, `device_index` and `device_type`, as torch passes them to rebuild one.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Makes a handle of the stream."""
        index = max(device_index(kwargs.pop("device_index", device), "Stream"), 0)
        return super().__new__(cls, stream_id=0, device_index=index, device_type=_DEVICE_TYPE)

    def query(self) -> bool:
        """Waits for everything that was recorded, and returns True."""
        synchronize()
        return True

    def synchronize(self) -> None:
        """Waits for everything that was recorded."""
        synchronize()

    def wait_event(self, event: torch.Event) -> None:
        """Does nothing: later ops come after earlier ones anyway."""

    def wait_stream(self, other: torch.Stream) -> None:
        """Does nothing: there is no other stream."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, a new one if none is given, and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event


_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1.value)


class Event(torch.Event):
    """A point in the order of the device's ops.

    Args:
        enable_timing: note the time at which everything recorded before had finished. Recording
            such an event waits for that.
        blocking: accepted for the sake of device-generic code; waiting always sleeps.
        interprocess: must be False.

    Example:
        >>> start, end = (torch.tiledev.Event(enable_timing=True) for _ in range(2))
        >>> start.record()
        >>> a = torch.ones(64, 64, device="tiledev") @ torch.ones(64, 64, device="tiledev")
        >>> end.record()
        >>> start.elapsed_time(end) > 0
        True
    """

    _timed: bool
    _recorded_ns: int | None

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        """Makes an event that is not recorded yet."""
        if interprocess:
            raise NotImplementedError("[Event] interprocess=True: events cannot leave the process")
        event = super().__new__(cls, device="tiledev", enable_timing=enable_timing)
        event._timed = enable_timing
        event._recorded_ns = None
        return event

    def record(self, stream: torch.Stream | None = None) -> None:
        """Puts the event behind everything recorded so far."""
        if self._timed:
            synchronize()
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Does nothing: ops recorded after the event come after it anyway."""

    def query(self) -> bool:
        """Waits for everything that was recorded, and returns True."""
        synchronize()
        return True

    def synchronize(self) -> None:
        """Waits for everything that was recorded before the event, and what followed it."""
        synchronize()

    def elapsed_time(self, other: torch.Event) -> float:
        """Returns the milliseconds from this event to `other`.

        Raises:
            RuntimeError: one of the two does not take times or is not recorded yet.
        """
        begin, end = _recorded_time(self), _recorded_time(other)
        return (end - begin) / 1e6


def _recorded_time(event: torch.Event) -> int:
    if not isinstance(event, Event) or not event._timed:
        raise RuntimeError(
            f"[Event.elapsed_time] {event} takes no times: make both events with "
            "torch.tiledev.Event(enable_timing=True)"
        )
    if event._recorded_ns is None:
        raise RuntimeError("[Event.elapsed_time] an event is not recorded: call its record() first")
    return event._recorded_ns


class StreamContext:
    """Context manager that selects a stream; with one stream, it has nothing to change.

    Args:
        stream: the stream, or None.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        set_stream(stream)
        self.stream = stream

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        """Does nothing; errors pass through."""
        return False


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns the context manager that selects a stream."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Selects a stream of the device; there is one, so this only checks the argument.

    Raises:
        ValueError: `stream` belongs to another device.
    """
    if stream is not None and stream.device.type != "tiledev":
        raise ValueError(f"[set_stream] got a stream of {stream.device}; pass one of tiledev")


def current_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream that ops are recorded to."""
    return Stream(device)


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the device's default stream, its only one."""
    return Stream(device)
