"""The device's functions, as torch.compile calls them. Importing this imports torch._dynamo."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from tiledev import device_module

__all__ = ["TiledevInterface", "register"]


class TiledevInterface(DeviceInterface):
    """torch.tiledev in the form that dynamo and inductor ask for."""

    device = device_module.device
    Event = device_module.Event
    Stream = device_module.Stream

    class Worker:
        """What a compile worker process may ask; nothing here depends on the parent's state."""

        @staticmethod
        def set_device(device: int) -> None:
            """Does nothing: there is one device."""

        @staticmethod
        def current_device() -> int:
            """Returns the only index."""
            return 0

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> Any:
            """Returns what the device is."""
            return device_module.get_device_properties(device)

    current_device = staticmethod(device_module.current_device)
    set_device = staticmethod(device_module.set_device)
    device_count = staticmethod(device_module.device_count)
    is_available = staticmethod(device_module.is_available)
    exchange_device = staticmethod(device_module._exchange_device)
    maybe_exchange_device = staticmethod(device_module._maybe_exchange_device)
    stream = staticmethod(device_module.stream)
    current_stream = staticmethod(device_module.current_stream)
    set_stream = staticmethod(device_module.set_stream)
    synchronize = staticmethod(device_module.synchronize)
    memory_allocated = staticmethod(device_module.memory_allocated)
    is_bf16_supported = staticmethod(device_module.is_bf16_supported)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        """Does nothing: there is one stream."""

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Returns the one stream's id."""
        return 0

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        """Returns "", as the CPU does."""
        return ""


def register() -> None:
    """Registers the interface under the device's name, with and without an index."""
    names = ["tiledev", *(f"tiledev:{index}" for index in range(device_module.device_count()))]
    for name in names:
        register_interface_for_device(name, TiledevInterface)
