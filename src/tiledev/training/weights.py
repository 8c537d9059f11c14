"""Copies of a model's weights, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["clone_model_weights", "max_weight_delta"]


def clone_model_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies of all parameters and saved buffers, on the CPU.

    Args:
        model: a module on any device; it stays as it is.

    Returns:
        Name -> tensor, with the names and dtypes of `model.state_dict()`; `model.load_state_dict`
        takes it.

    Example:
        >>> clone_model_weights(torch.nn.Linear(2, 3).to("tiledev"))["weight"].device
        device(type='cpu')
    """
    return {
        name: value.detach().to("cpu", copy=True)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def max_weight_delta(
    a: nn.Module | Mapping[str, Tensor], b: nn.Module | Mapping[str, Tensor]
) -> float:
    """Returns the largest absolute difference of any weight, computed in float64 on the CPU.

    Args:
        a: a model, or name -> tensor as from `clone_model_weights` or `state_dict`.
        b: the other one; it may be on another device.

    Returns:
        The difference; 0.0 without weights; NaN if a weight is NaN; infinite values are equal if
        their signs are.

    Raises:
        TypeError: an argument is neither a model nor a mapping of names to tensors.
        ValueError: names or shapes differ.

    Example:
        >>> model = torch.nn.Linear(2, 3).to("tiledev")
        >>> before = clone_model_weights(model)
        >>> with torch.no_grad():
        ...     _ = model.bias.add_(0.5)
        >>> round(max_weight_delta(model, before), 6)
        0.5
    """
    mine, theirs = _weights(a), _weights(b)
    if mine.keys() != theirs.keys():
        names = ", ".join(sorted(mine.keys() ^ theirs.keys()))
        raise ValueError(f"[max_weight_delta] only one of the two has {names}; pass equal models")
    deltas = [torch.zeros((), dtype=torch.float64)]
    for name, value in mine.items():
        other = theirs[name]
        if value.shape != other.shape:
            raise ValueError(
                f"[max_weight_delta] {name} has shape {list(value.shape)} in one and "
                f"{list(other.shape)} in the other; pass equal models"
            )
        if value.numel():
            deltas.append(_largest(_wide(value), _wide(other)))
    return torch.stack(deltas).max().item()


def _largest(a: Tensor, b: Tensor) -> Tensor:
    difference = (a - b).abs()
    return difference.masked_fill(a == b, 0).max()  # equal infinities differ by NaN


def _wide(value: Tensor) -> Tensor:
    value = value.detach().cpu()
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _weights(source: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    weights = source.state_dict() if isinstance(source, nn.Module) else source
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"[max_weight_delta] got {type(source).__name__}; pass a model or {{name: tensor}}"
        )
    return {name: value for name, value in weights.items() if isinstance(value, Tensor)}
