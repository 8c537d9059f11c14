"""Flushes the graph at the end of every optimizer step.

A step ends at the same node in every iteration, so the plan of the first one serves all others.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from tiledev import _C

__all__ = ["register"]


def register() -> None:
    """Registers the hook for every optimizer, those that exist already included."""
    register_optimizer_step_post_hook(_flush_after_step)


def _flush_after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Starts what is pending, without waiting, if the optimizer works on the device."""
    if _C.has_pending_graph() and _holds_device_parameters(optimizer):
        _C.execute()


def _holds_device_parameters(optimizer: Optimizer) -> bool:
    # is_cpu comes first because it is ten times as fast as the name of the device.
    return any(
        not parameter.is_cpu and parameter.device.type == "tiledev"
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
