"""Reads the device arguments of the functions in `torch.tiledev`."""

from __future__ import annotations

import torch

__all__ = ["DEVICE_COUNT", "DeviceLike", "device_index"]

DeviceLike = int | str | torch.device | None

DEVICE_COUNT = 1


def device_index(device: DeviceLike, call: str) -> int:
    """Turns a device argument into the index of a device.

    Args:
        device: an index, `"tiledev"`, `"tiledev:0"`, a `torch.device`, or None for the current
            device.
        call: the name of the function that was called, for its error messages.

    Returns:
        The index; negative only where the caller passed a negative index.

    Raises:
        TypeError: `device` is something else.
        ValueError: `device` names another kind of device.
        RuntimeError: there is no device of that index.
    """
    if device is None:
        return 0
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "tiledev":
            raise ValueError(f"[{call}] got the device {device}; pass a tiledev device or an index")
        device = device.index or 0
    if not isinstance(device, int) or isinstance(device, bool):
        raise TypeError(f"[{call}] got {device!r}; pass an int, a str, a torch.device or None")
    if device >= DEVICE_COUNT:
        raise RuntimeError(f"[{call}] there is no device {device}: the only index of tiledev is 0")
    return device
