"""Axes, names and tiles, step by step.

What it shows: which dimensions of a step tiledev takes for one axis, how to name them, how to
choose the tiles, what the plan does with them, and that results stay the same.

    python examples/axis_tiling.py
    python examples/axis_tiling.py --steps 5 --compare

Each part trains the same network from the same weights under another tiling, on 6000 rows of noise.
It prints the axis groups of a step, what the plan of that step does and the losses. The third part
prints, among others:

    3. Tiles of 1500 rows
      extent=256 name='width' tiles=auto members=10
      extent=6000 name='rows' tiles=1500,1500,1500,1500 members=10
      ...
      1: 13 ops, 4 tiles of 6000 units in 4 lanes, reads 1.6 MiB, ...
          addmm, relu, addmm, _log_softmax, nll_loss_forward, nll_loss_backward, ...

The name that one dimension of x got stands for the rows of ten tensors: activations, gradients and
labels; and the ops that walk them run one after the other on each tile. In the fifth part they walk
the width instead, so that the loss, which needs whole rows, parts them.

With device cpu, which has no axis groups, the parts only print their losses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import tiledev
from common import Losses, main
from tiledev.training import cross_entropy

ROWS, FEATURES, WIDTH, CLASSES = 6000, 64, 256, 10


def leave_alone() -> None:
    """Lets tiledev choose: as many tiles as keep the workers busy and fit the cache."""


def cut_rows_evenly() -> None:
    """Gives one number: the size of each tile; the last one may be shorter."""
    tiledev.set_axis_group_tiling("rows", 1500)


def cut_rows_unevenly() -> None:
    """Gives the sizes of all tiles, which must add up to the extent."""
    tiledev.set_axis_group_tiling("rows", [1000, 2000, 3000])


def cut_width() -> None:
    """Takes back the tiles of the rows and cuts another axis."""
    tiledev.clear_axis_group_tiling("rows")
    tiledev.set_axis_group_tiling("width", 64)


def cut_wrongly() -> None:
    """Shows the error of sizes that do not add up; then lets tiledev choose all tiles again."""
    try:
        tiledev.set_axis_group_tiling("rows", [1000, 2000])
    except ValueError as error:
        print(f"ValueError: {error}")
    tiledev.clear_axis_group_tiling()


@dataclass(frozen=True)
class Part:
    """One part of the lesson: what it is about, whether axes have names, and the tiling."""

    title: str
    named: bool
    tile: Callable[[], None]


PARTS = (
    Part("No names: tiledev finds the axes and cuts them by itself", False, leave_alone),
    Part("Names: one for the rows of x, one for the width between the layers", True, leave_alone),
    Part("Tiles of 1500 rows", True, cut_rows_evenly),
    Part("Tiles of 1000, 2000 and 3000 rows", True, cut_rows_unevenly),
    Part("Tiles of 64 columns of the width instead", True, cut_width),
    Part("Sizes that do not add up, and back to tiledev's own choice", True, cut_wrongly),
)


def train(device: str, steps: int, seed: int) -> list[float]:
    """Goes through the parts; returns the losses of all their steps."""
    on_tiledev = torch.device(device).type == "tiledev"
    losses: list[float] = []
    for number, part in enumerate(PARTS, start=1):
        print(f"\n{number}. {part.title}", flush=True)
        losses += train_part(part, device, steps, seed, on_tiledev)
    return losses


def train_part(part: Part, device: str, steps: int, seed: int, on_tiledev: bool) -> list[float]:
    """Trains from the seed's weights under one tiling; returns the loss of each step."""
    torch.manual_seed(seed)
    x, labels = torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,))
    first, last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
    model = nn.Sequential(first, nn.ReLU(), last).to(device)
    x, labels = x.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    if on_tiledev:
        if part.named:
            name_axes(x, first.weight)
        part.tile()
    losses = Losses(device, every=steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), labels)
        loss.backward()
        if on_tiledev and step == 0:
            tiledev.print_axis_groups()  # of what is recorded: nothing has run yet
        optimizer.step()  # runs it
        if on_tiledev and step == 0:
            print(tiledev.explain(), flush=True)  # what the plan of that run does
        losses.add(loss)
    return losses.read()


def name_axes(x: Tensor, weight: Tensor) -> None:
    """Names a dimension of one tensor each; the name spreads to all that ops tie to it."""
    tiledev.set_axis_group_name(x, {0: "rows"})
    tiledev.set_axis_group_name(weight, {0: "width"})  # [WIDTH, FEATURES]


if __name__ == "__main__":
    sys.exit(main(__doc__, train, length=3))
