"""The gate of Llama's feed-forward layer, without what autograd would keep of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SiLUMul", "silu_mul"]


class _SiLUMul(torch.autograd.Function):
    """Saves gate and up; autograd's own graph of silu(gate) * up saves silu(gate) as well."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gate, up = ctx.saved_tensors
        needs_gate, needs_up = ctx.needs_input_grad
        grad_gate = _silu_backward(grad * up, gate) if needs_gate else None
        return grad_gate, grad * F.silu(gate) if needs_up else None


def _silu_backward(grad: Tensor, gate: Tensor) -> Tensor:
    """As autograd does for F.silu: the kernel cannot be differentiated, the formula can."""
    if not torch.is_grad_enabled():
        result: Tensor = torch.ops.aten.silu_backward(grad, gate)
        return result
    sigmoid = gate.sigmoid()
    return grad * sigmoid * (1 + gate * (1 - sigmoid))


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, the gate of SwiGLU.

    Shazeer, "GLU Variants Improve Transformer" (2020), eq. 6. Values and gradients are those of
    `F.silu(gate) * up`, to the bit. For the backward pass only gate and up are kept: a third less
    memory than autograd keeps for the two ops.

    Args:
        gate: any shape, floating point.
        up: of the same shape and dtype.

    Returns:
        The product, of the same shape and dtype.

    Raises:
        ValueError: shapes or dtypes differ.

    Example:
        >>> silu_mul(torch.tensor([0.0, 100.0]), torch.tensor([5.0, 2.0]))
        tensor([  0., 200.])
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(
            f"[silu_mul] gate is {list(gate.shape)} {gate.dtype}, up {list(up.shape)} {up.dtype}: "
            "they must be alike"
        )
    result: Tensor = _SiLUMul.apply(gate, up)  # type: ignore[no-untyped-call]
    return result


class SiLUMul(nn.Module):
    """`silu_mul` as a module, also for gate and up that one projection writes side by side.

    Example:
        >>> SiLUMul()(torch.zeros(2, 6)).shape
        torch.Size([2, 3])
    """

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Gates.

        Args:
            gate: [..., n], or without `up` [..., 2 n] with the gate in the first half, as
                Phi-3's gate_up_proj writes it.
            up: [..., n].

        Returns:
            [..., n].

        Raises:
            ValueError: shapes or dtypes differ, or the last axis is odd.
        """
        if up is None:
            if gate.dim() == 0 or gate.size(-1) % 2:
                raise ValueError(
                    f"[SiLUMul] {list(gate.shape)} has no last axis of two halves: pass gate and up"
                )
            gate, up = gate.chunk(2, dim=-1)
        return silu_mul(gate, up)
