"""Prints tensors from a copy on the CPU.

torch formats a tensor with a dozen small ops and readouts of its own; on the device each readout
would be a flush, and the ops would stay behind in the graph and in the plan cache.
"""

from __future__ import annotations

import torch
from torch import _tensor_str

__all__ = ["register"]

_format_values = _tensor_str._tensor_str


def register() -> None:
    """Puts the copy in front of torch's formatting of values; other devices are left alone."""
    _tensor_str._tensor_str = _copy_and_format


def _copy_and_format(tensor: torch.Tensor, indent: int) -> str:
    if tensor.device.type == "tiledev" and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        tensor = tensor.detach().cpu()
    values: str = _format_values(tensor, indent)  # type: ignore[no-untyped-call]
    return values
