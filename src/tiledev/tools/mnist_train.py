"""Trains one model on one device, for `tiledev-mnist`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import tiledev
from tiledev import memory
from tiledev.data import Mnist
from tiledev.tools.mnist_options import Options
from tiledev.tools.peak_memory import PeakMemory
from tiledev.training import clone_model_weights, record_step

__all__ = ["Phase", "train"]

Say = Callable[[str], None]


@dataclass
class Phase:
    """What came of training on one device.

    Attributes:
        device: "cpu" or "tiledev".
        steps: optimizer steps taken.
        losses: mean cross-entropy over the images, for each epoch.
        seconds: wall time of each epoch.
        weights: the weights at the end, on the CPU.
        accuracy: share of the images that the model at the end classifies right.
        peak_growth: bytes by which the process grew at the peak.
        device_peak: bytes that tensors on the device occupied at the peak; None on the CPU.
    """

    device: str
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    accuracy: float = 0.0
    peak_growth: int = 0
    device_peak: int | None = None


def train(model: nn.Module, data: Mnist, device: str, options: Options) -> Phase:
    """Trains a copy of the model on the device and prints each epoch's loss.

    Args:
        model: where training starts; it stays as it is.
        data: images and labels on the CPU.
        device: "cpu" or "tiledev".
        options: the run's options.
    """
    phase = Phase(device)
    on_device = device == "tiledev"
    with PeakMemory() as peak, _mode(on_device, options):
        if on_device:
            memory.reset_peak_memory_stats()
        local = copy.deepcopy(model).to(device)
        images, labels = data.images.to(device), data.labels.to(device)
        axes = _Axes(local, options) if on_device else None
        _run_epochs(local, images, labels, phase, options, axes)
        if axes is not None:
            axes.clear()  # the images are classified in parts of other sizes
        phase.accuracy = _accuracy(local, images, labels)
        phase.weights = clone_model_weights(local)
        if on_device:
            phase.device_peak = memory.max_memory_allocated()
    phase.peak_growth = peak.growth
    return phase


def _mode(on_device: bool, options: Options) -> AbstractContextManager[object]:
    eager = on_device and options.runtime_mode == "eager"
    return tiledev.eager() if eager else nullcontext()


class _Axes:
    """Names the axes of model and batches, and cuts them as the options say."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        self._tilings = {
            tiling.name: tiling.sizes[0] if len(tiling.sizes) == 1 else tiling.sizes
            for tiling in options.axis_tiling
        }
        self._print = options.print_axis_groups
        self._used = bool(self._tilings) or self._print
        self._batch_size = 0
        if not self._used:
            return
        weights = [weight for weight in model.parameters() if weight.dim() == 2]
        for i, weight in enumerate(weights):
            outer = "classes" if i + 1 == len(weights) else "hidden"
            inner = "features" if i == 0 else "hidden"
            tiledev.set_axis_group_name(weight, {0: outer, 1: inner})
        for name, sizes in self._tilings.items():
            if name != "batch":
                tiledev.set_axis_group_tiling(name, sizes)

    def name_batch(self, model: nn.Module, images: Tensor) -> None:
        """Names the axes of a batch [size, pixels]; for `record_step`."""
        if not self._used:
            return
        if "batch" in self._tilings and len(images) != self._batch_size and self._batch_size:
            tiledev.clear_axis_group_tiling("batch")  # the sizes are checked against this batch
        tiledev.set_axis_group_name(images, {0: "batch", 1: "features"})
        if "batch" in self._tilings and len(images) != self._batch_size:
            self._batch_size = len(images)
            tiledev.set_axis_group_tiling("batch", self._tilings["batch"])

    def print_once(self) -> bool:
        """Tells whether to print the axis groups: the first time, if the options say so."""
        first, self._print = self._print, False
        return first

    def clear(self) -> None:
        """Lets tiledev choose all tiles again."""
        if self._used:
            tiledev.clear_axis_group_tiling()


def _run_epochs(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    phase: Phase,
    options: Options,
    axes: _Axes | None,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    order = torch.Generator().manual_seed(options.seed)
    batch_size = options.batch_size or len(labels)
    steps = -(-len(labels) // batch_size) * options.epochs
    with _Progress(steps, f"[{phase.device}]") as progress:
        for epoch in range(1, options.epochs + 1):
            start = time.perf_counter()
            loss = torch.zeros((), device=images.device)
            for batch, answers in _batches(images, labels, batch_size, order):
                share = len(answers) / len(labels)
                step_loss = record_step(
                    model,
                    batch,
                    answers,
                    optimizer,
                    name_axis_groups=axes.name_batch if axes else None,
                    print_axis_groups=axes.print_once() if axes else False,
                    grad_accum_steps=options.grad_accum_steps,
                )
                loss += step_loss * share
                phase.steps += 1
                progress.advance()
            phase.losses.append(loss.item())  # the epoch's one readout
            phase.seconds.append(time.perf_counter() - start)
            progress.say(
                f"[{phase.device}] epoch {epoch}/{options.epochs}  loss={phase.losses[-1]:.6f}"
            )


def _batches(
    images: Tensor, labels: Tensor, size: int, order: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields [size, pixels] and [size] in a new random order; all images are one batch as it is."""
    if size >= len(labels):
        yield images, labels
        return
    shuffled = torch.randperm(len(labels), generator=order)
    for start in range(0, len(labels), size):
        indices = shuffled[start : start + size].to(images.device)
        yield images.index_select(0, indices), labels.index_select(0, indices)


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    parts = -(-len(labels) // 10_000)
    right = [
        (model(part).argmax(1) == answers).sum()
        for part, answers in zip(images.chunk(parts), labels.chunk(parts), strict=True)
    ]
    return torch.stack(right).sum().item() / len(labels)


class _Progress:
    """A bar over the steps where stderr is a terminal and tqdm is there; otherwise nothing."""

    def __init__(self, steps: int, title: str) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            self._bar = None
        else:
            self._bar = tqdm(total=steps, desc=title, leave=False, disable=None)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._bar is None or self._bar.disable:
            print(line, flush=True)
        else:
            self._bar.write(line)
