"""What fresh and reused memory cost: ops that fill a large tensor, on CPU PyTorch and on tiledev.

    python benchmarks/memory.py [--mib 128] [--rounds 9]

Each round times every case on the CPU and on tiledev, one right after the other, with a wait for
the values. Printed are medians in milliseconds, and the page faults of one call. The CPU takes
memory from the system and gives it back each time; so does tiledev in the last case, whose cache
is emptied before it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch

import tiledev

Call = Callable[[], torch.Tensor]


def cases(device: str, elements: int) -> dict[str, Call]:
    """Returns calls that make a tensor of so many floats."""
    source = torch.ones(elements, device=device)

    def without_cache() -> torch.Tensor:
        torch.tiledev.empty_cache()
        return torch.zeros(elements, device=device)

    return {
        "zeros": lambda: torch.zeros(elements, device=device),
        "copy_": lambda: torch.empty(elements, device=device).copy_(source),
        "clamp_min out=": lambda: torch.clamp_min(
            source, 0, out=torch.empty(elements, device=device)
        ),
        "relu": lambda: source.relu(),
        "zeros, no cache": without_cache,
    }


def measure(call: Call) -> tuple[float, int]:
    """Returns the milliseconds until the value is there, and the page faults on the way."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    result = call()
    tiledev.wait()
    seconds = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    del result
    return seconds * 1e3, faults


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128, help="size of the tensor")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    calls = {device: cases(device, options.mib << 18) for device in ("cpu", "tiledev")}
    print(f"{options.mib} MiB of floats, {torch.get_num_threads()} threads")
    print(f"{'':16}{'cpu':>20}{'tiledev':>20}")
    for name in calls["cpu"]:
        taken: dict[str, list[tuple[float, int]]] = {"cpu": [], "tiledev": []}
        for _ in range(options.rounds + 1):
            for device, times in taken.items():
                times.append(measure(calls[device][name]))
        cells = [
            f"{statistics.median(ms for ms, _ in times[1:]):.1f} ms {times[-1][1]:6}"
            for times in taken.values()
        ]
        print(f"{name:16}{cells[0]:>20}{cells[1]:>20}")


if __name__ == "__main__":
    main()
