"""Cross-entropy with the class axis last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["cross_entropy"]

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns `F.cross_entropy` for logits whose classes are the last axis, as layers produce them.

    Nothing is read back while it is recorded. A label out of range shows at the wait, as on CUDA.

    Args:
        logits: `[..., C]`, floating point, unnormalized.
        target: labels `[...]` of an integer dtype, or probabilities `[..., C]` of a floating one.
        weight: `[C]`, the weight of each class (default: 1).
        reduction: "mean" divides by the (weights of the) labels that count, with probabilities by
            the number of rows; "sum"; or "none".
        ignore_index: the label of rows that do not count.
        label_smoothing: share of the uniform distribution in the target, 0 to 1, as in Szegedy et
            al., "Rethinking the Inception architecture" (2016), section 7.

    Returns:
        A 0-d tensor, or `[...]` with reduction "none", of the dtype of `logits`.

    Raises:
        TypeError: a dtype that does not fit.
        ValueError: shapes that do not fit, or an unknown reduction.

    Example:
        >>> logits = torch.zeros(2, 3, 10, device="tiledev")
        >>> labels = torch.tensor([[1, 2, -100], [3, 4, 5]]).to("tiledev")
        >>> round(cross_entropy(logits, labels).item(), 4)  # log(10)
        2.3026
    """
    _check(logits, target, weight, reduction)
    rows, classes = target.shape, logits.shape[-1]
    probabilities = target.is_floating_point()
    if probabilities:
        rows = rows[:-1]
    flat = logits.reshape(rows.numel(), classes)
    labels = target.reshape(flat.shape if probabilities else -1)
    if not probabilities and labels.dtype not in (torch.int64, torch.uint8):
        labels = labels.long()
    needs_count = weight is not None and label_smoothing > 0 and not probabilities
    loss = F.cross_entropy(
        flat,
        labels,
        weight=weight,
        reduction="sum" if reduction == "mean" and needs_count else reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    if reduction == "none":
        return loss.reshape(rows)
    if reduction == "mean" and needs_count and weight is not None:
        # F.cross_entropy would select the labels that count, to a shape that depends on them.
        return loss / _counted_weight(labels, weight, ignore_index)
    return loss


def _counted_weight(labels: Tensor, weight: Tensor, ignore_index: int) -> Tensor:
    """Returns the sum of the weights of the labels that count, 0-d."""
    labels = labels.long()
    counts = labels != ignore_index
    return (weight.gather(0, labels.where(counts, 0)) * counts).sum()


def _check(logits: Tensor, target: Tensor, weight: Tensor | None, reduction: str) -> None:
    call, shape = "cross_entropy", list(logits.shape)
    if reduction not in REDUCTIONS:
        raise ValueError(f"[{call}] got reduction={reduction!r}; pass one of {REDUCTIONS}")
    if not logits.is_floating_point():
        raise TypeError(f"[{call}] got logits of {logits.dtype}; pass a floating dtype")
    if not logits.dim():
        raise ValueError(f"[{call}] got 0-d logits; pass [..., C], the classes last")
    if target.dtype is torch.bool or target.is_complex():
        raise TypeError(f"[{call}] got a target of {target.dtype}; pass labels of torch.int64")
    want = shape if target.is_floating_point() else shape[:-1]
    if list(target.shape) != want:
        kind = "probabilities" if target.is_floating_point() else "labels"
        raise ValueError(
            f"[{call}] got {kind} of shape {list(target.shape)} for logits of shape {shape}; pass "
            f"{want}: the last axis of logits is that of the classes"
        )
    if weight is not None and list(weight.shape) != shape[-1:]:
        raise ValueError(
            f"[{call}] got weight of shape {list(weight.shape)}; pass [{shape[-1]}], one a class"
        )
