"""Automatic mixed precision with the device filled in (`torch.tiledev.amp`).

`torch.autocast("tiledev")` and `torch.amp.GradScaler("tiledev")` are the same things.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that autocast can cast to; torch.autocast asks for them."""
    return [torch.bfloat16, torch.float16]


class autocast(torch.amp.autocast):  # noqa: N801  (the name that every torch device has)
    """Runs the ops inside in lower precision where CUDA's lists say that it is safe.

    Args:
        enabled: False makes the context do nothing.
        dtype: torch.bfloat16 or torch.float16 (default: `torch.get_autocast_dtype("tiledev")`).
        cache_enabled: keep the cast copies of parameters until the outermost context ends.

    Example:
        >>> a = torch.ones(2, 2, device="tiledev")
        >>> with torch.tiledev.amp.autocast(dtype=torch.bfloat16):
        ...     (a @ a).dtype
        torch.bfloat16
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__("tiledev", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """Scales losses so that float16 gradients do not underflow: `torch.amp.GradScaler`.

    Args:
        kwargs: the arguments of `torch.amp.GradScaler` other than the device.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("tiledev", **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="tiledev")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="tiledev")
