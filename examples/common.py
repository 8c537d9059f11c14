"""What the examples share: their arguments, a log of losses, and a run on one device or on both."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import tiledev

TOLERANCE = 1e-4  # how far the losses of two devices may be apart, relative to their size
COMPARED = 50  # steps that must agree: rounding grows from step to step, on the CPU itself as well

Train = Callable[[str, int, int], list[float]]  # device, length, seed -> the loss of each step


class Losses:
    """Collects a loss a step on the device, and reads them back a few times in all.

    `loss.item()` waits for the step. A loop that reads each loss never lets the device run while
    Python records the next step, so the losses are read together.

    Args:
        device: the name that is printed.
        every: how many steps one printed line stands for.
    """

    def __init__(self, device: str, every: int) -> None:
        self.device = device
        self.every = every
        self.values: list[float] = []
        self._unread: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Keeps the loss of a step; prints the mean of the last `every` ones when they are due."""
        self._unread.append(loss.detach())
        if len(self._unread) == self.every:
            self.read()

    def read(self) -> list[float]:
        """Reads and prints what has not been read; returns all losses so far."""
        if self._unread:
            fresh = torch.stack(self._unread).tolist()
            self._unread.clear()
            self.values += fresh
            mean = sum(fresh) / len(fresh)
            print(f"[{self.device}] step {len(self.values):4}  loss {mean:.4f}", flush=True)
        return self.values


def main(
    doc: str, train: Train, argv: list[str] | None = None, *, unit: str = "steps", length: int
) -> int:
    """Reads the arguments and trains; the `main` of each example.

    Args:
        doc: the docstring of the example, which `--help` prints.
        train: trains on a device and returns the loss of each step.
        argv: the arguments (default: those of the process).
        unit: what the length is counted in, "steps" or "epochs".
        length: how many of them there are without an argument.

    Returns:
        The exit status: 1 if `--compare` was given and the losses differ, otherwise 0.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="tiledev", help="tiledev (default) or cpu")
    parser.add_argument(f"--{unit}", type=int, default=length, dest="length", metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--compare", action="store_true", help="train on the CPU, too, and compare")
    options = parser.parse_args(argv)
    if options.length < 1:
        parser.error(f"argument --{unit}: {options.length} is less than 1")

    losses = train(options.device, options.length, options.seed)
    print_fallbacks()
    if not options.compare:
        return 0
    expected = train("cpu", options.length, options.seed)
    difference = largest_difference(losses[:COMPARED], expected[:COMPARED])
    verdict = "agree" if difference <= TOLERANCE else "DIFFER"
    steps = f"the first {COMPARED} steps" if len(losses) > COMPARED else "all steps"
    print(f"{options.device} and cpu {verdict}: over {steps} the largest difference of a loss")
    print(f"is {difference:.1e} of it", flush=True)
    return int(verdict != "agree")


def largest_difference(losses: list[float], expected: list[float]) -> float:
    """Returns the largest difference relative to the expected loss; NaN makes it infinite.

    Raises:
        ValueError: the lists are not of one length.
    """
    pairs = zip(losses, expected, strict=True)
    differences = [abs(loss - want) / abs(want) for loss, want in pairs]
    return max(d if d == d else float("inf") for d in differences)


def print_fallbacks() -> None:
    """Prints which ops could not be recorded and went to the CPU at once, if there were any."""
    for op, count in tiledev.fallback_stats().items():
        print(f"{op} ran outside the graph, {count} times", flush=True)
