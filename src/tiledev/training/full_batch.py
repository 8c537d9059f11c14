"""One optimizer step over a batch, whole or in parts, with its axes named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tiledev import axes
from tiledev.training.loss import cross_entropy
from tiledev.training.optimizers import SGD

__all__ = ["AxisNames", "AxisTiling", "record_step", "train_full_batch_step"]

AxisNames = Mapping[str, Mapping[int, str]] | Callable[[nn.Module, Tensor], object]
AxisTiling = Mapping[str, int | Sequence[int]]

IGNORED = -100


def train_full_batch_step(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimizer_or_lr: torch.optim.Optimizer | float,
    *,
    name_axis_groups: AxisNames | None = None,
    axis_group_tiling: AxisTiling | None = None,
    print_axis_groups: bool = False,
    grad_accum_steps: int = 1,
    max_grad_norm: float | None = None,
) -> float:
    """Trains a classifier by one step over the batch; returns the loss before the step.

    It reads the loss back, so it waits for the forward pass; `record_step` does not.

    Args:
        model: maps inputs to logits `[..., C]`, or to an object that has them as `logits`; on
            any device.
        inputs: `[batch, ...]`.
        targets: labels `[batch, ...]` (-100 does not count) or probabilities `[batch, ..., C]`, as
            `cross_entropy` takes them.
        optimizer_or_lr: an optimizer over the model's parameters, or the learning rate of a step of
            plain gradient descent.
        name_axis_groups: what to name before the forward pass: `{"inputs": {0: "batch"}}` with the
            keys "inputs", "targets" and names of the model's parameters, each with
            {dimension: name}; or a function of the model and the inputs of a part, which calls
            `tiledev.set_axis_group_name`. Without effect on another device.
        axis_group_tiling: name -> size or sizes of tiles (`tiledev.set_axis_group_tiling`); they
            hold until they are cleared. Without effect on another device.
        print_axis_groups: print the axis groups of the step. Without effect on another device.
        grad_accum_steps: parts of the batch, one forward and backward pass each; the gradients add
            up to those of the whole batch.
        max_grad_norm: clip all gradients together to this 2-norm before the step.

    Returns:
        The mean cross-entropy over the batch.

    Raises:
        TypeError: an optimizer that is none.
        ValueError: lengths that differ, or an option out of its range.
        KeyError: `name_axis_groups` has a key that the model does not.

    Example:
        >>> model = torch.nn.Linear(4, 3).to("tiledev")
        >>> x, y = torch.ones(6, 4).to("tiledev"), torch.zeros(6, dtype=torch.long).to("tiledev")
        >>> names = {"inputs": {0: "batch"}, "weight": {1: "features"}}
        >>> first = train_full_batch_step(model, x, y, 0.1, name_axis_groups=names)
        >>> first > train_full_batch_step(model, x, y, 0.1)
        True
    """
    return record_step(
        model,
        inputs,
        targets,
        optimizer_or_lr,
        name_axis_groups=name_axis_groups,
        axis_group_tiling=axis_group_tiling,
        print_axis_groups=print_axis_groups,
        grad_accum_steps=grad_accum_steps,
        max_grad_norm=max_grad_norm,
    ).item()


def record_step(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimizer_or_lr: torch.optim.Optimizer | float,
    *,
    name_axis_groups: AxisNames | None = None,
    axis_group_tiling: AxisTiling | None = None,
    print_axis_groups: bool = False,
    grad_accum_steps: int = 1,
    max_grad_norm: float | None = None,
) -> Tensor:
    """Does what `train_full_batch_step` does without reading the loss back.

    Returns:
        The loss, 0-d and without a gradient, on the device of the model's logits.
    """
    optimizer = _optimizer(model, optimizer_or_lr, max_grad_norm)
    parts = _parts(inputs, targets, grad_accum_steps)
    count = _counted(targets) if len(parts) > 1 else None
    optimizer.zero_grad()
    losses: list[Tensor] = []
    for part, answers in parts:
        if part.device.type == "tiledev":
            _set_axes(model, part, answers, name_axis_groups, axis_group_tiling)
        loss = _loss(model(part), answers, count)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    if print_axis_groups and inputs.device.type == "tiledev":
        axes.print_axis_groups()
    if max_grad_norm is not None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        torch.nn.utils.clip_grad_norm_(params, max_grad_norm)
    optimizer.step()
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _optimizer(
    model: nn.Module, optimizer_or_lr: torch.optim.Optimizer | float, max_grad_norm: float | None
) -> torch.optim.Optimizer:
    call = "train_full_batch_step"
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"[{call}] got max_grad_norm={max_grad_norm}; pass a number above 0")
    if isinstance(optimizer_or_lr, torch.optim.Optimizer):
        return optimizer_or_lr
    if isinstance(optimizer_or_lr, bool) or not isinstance(optimizer_or_lr, (int, float)):
        raise TypeError(
            f"[{call}] got {type(optimizer_or_lr).__name__}; pass a torch.optim.Optimizer or a "
            "learning rate"
        )
    return SGD(model.parameters(), lr=optimizer_or_lr)


def _parts(inputs: Tensor, targets: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    call = "train_full_batch_step"
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"[{call}] got grad_accum_steps={count!r}; pass an int of at least 1")
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        raise ValueError(
            f"[{call}] got inputs {list(inputs.shape)} and targets {list(targets.shape)}; their "
            "first dimensions, the batch, must be equal"
        )
    return list(zip(inputs.chunk(count), targets.chunk(count), strict=True))


def _counted(targets: Tensor) -> Tensor | int:
    """What the mean over the whole batch divides by."""
    if targets.is_floating_point():
        return targets.shape[:-1].numel()
    return (targets != IGNORED).sum()


def _loss(output: object, targets: Tensor, count: Tensor | int | None) -> Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"[train_full_batch_step] the model returned {type(output).__name__}; it must return "
            "logits, or an object with `logits`"
        )
    if count is None:
        return cross_entropy(logits, targets, ignore_index=IGNORED)
    return cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED) / count


def _set_axes(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    names: AxisNames | None,
    tiling: AxisTiling | None,
) -> None:
    if callable(names):
        names(model, inputs)
    elif names is not None:
        tensors = dict(model.named_parameters()) | {"inputs": inputs, "targets": targets}
        for key, dims in names.items():
            if key not in tensors:
                raise KeyError(
                    f"[train_full_batch_step] name_axis_groups has {key!r}; its keys are 'inputs', "
                    f"'targets' and names of parameters, such as {next(iter(tensors))!r}"
                )
            axes.set_axis_group_name(tensors[key], dims)
    for name, sizes in (tiling or {}).items():
        axes.set_axis_group_tiling(name, sizes)
