"""RMS normalization whose weight may be stored around another value than 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RMSNorm"]


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` with an offset of the weight: x / rms(x) * (offset + weight).

    Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), eq. 4, over the last axis.
    Gemma's checkpoints hold the weight less one (offset=1.0), so that weight decay pulls it to 1;
    with offset 0 this is `torch.nn.RMSNorm`, with the eps of Llama as the default.

    Args:
        size: extent of the last axis.
        eps: added to the mean of squares.
        offset: added to the weight. The weight starts at 1 - offset.
        device: device of the weight.
        dtype: dtype of the weight (default: torch's default dtype).

    Raises:
        ValueError: size is less than 1.

    Example:
        >>> RMSNorm(2, eps=0.0, offset=1.0)(torch.tensor([3.0, 4.0]))
        tensor([0.8485, 1.1314], grad_fn=<MulBackward0>)
    """

    weight: nn.Parameter

    def __init__(
        self,
        size: int,
        eps: float = 1e-6,
        *,
        offset: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"[RMSNorm] size is {size}: it must be at least 1")
        self.offset = offset
        super().__init__(size, eps=eps, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Sets the weight so that the norm scales by 1."""
        nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., size] to [..., size]; mean and root are float32 for half precision."""
        weight = self.weight + self.offset if self.offset else self.weight
        return nn.functional.rms_norm(x, self.normalized_shape, weight, self.eps)

    def extra_repr(self) -> str:
        """Size, eps and offset."""
        return f"{self.normalized_shape[0]}, eps={self.eps}, offset={self.offset}"
