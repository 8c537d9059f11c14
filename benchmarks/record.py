"""What recording a tiny op costs, and recording plus running it, against eager CPU PyTorch.

    python benchmarks/record.py [--rounds 15] [--iterations 2000] [--json FILE] [--threads 1 2]

Each round times every case on the CPU and on tiledev, one right after the other, so that what
else the machine does falls on both. `record` stops the clock before the flush; `record+run`
stops it when the results are there. The numbers are medians over the rounds, in microseconds for
an op; the ratio is the median of the rounds' ratios (tiledev / cpu; below 1 tiledev is faster).
Each thread setting is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

import tiledev

Call = Callable[[], object]
MODES = ("record", "record+run")
DEVICES = ("cpu", "tiledev")


def tiny_ops(device: str) -> dict[str, Call]:
    """Returns the cases that are one op on 16 floats."""
    a, b, changed = (torch.ones(4, 4, device=device) for _ in range(3))
    return {
        "add": lambda: a + b,
        "add scalar": lambda: a + 1.5,
        "mul": lambda: a * b,
        "relu": lambda: a.relu(),
        "mm 4x4": lambda: a @ b,
        "sum": lambda: a.sum(),
        "view": lambda: a.view(16),
        "add_": lambda: changed.add_(b),
        "add out=": lambda: torch.add(a, b, out=changed),
    }


def optimizer_step(device: str) -> Call:
    """Returns SGD's step on an MLP of 4 layers, whose gradients are set once."""
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9).step


def training_step(device: str) -> Call:
    """Returns forward, backward and SGD's step of an MLP of 4 layers."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.ones(4, 8, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step


def make_cases(device: str) -> dict[str, Call]:
    """Returns every case on a device, by name."""
    steps = {"SGD step": optimizer_step(device), "training step": training_step(device)}
    return tiny_ops(device) | steps


def calls_of(name: str, iterations: int) -> int:
    """Returns how many calls are timed: a step is some dozens of ops."""
    return max(iterations // 40, 1) if "step" in name else iterations


@contextmanager
def no_flush_after_steps() -> Iterator[None]:
    """Holds back the flush at the end of an optimizer step, to time recording alone."""
    hooks = torch_optimizer._global_optimizer_post_hooks
    held = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(held)


def flush() -> None:
    """Runs everything that is recorded and waits for it."""
    tiledev.execute()
    tiledev.wait()


def time_recording(call: Call, count: int) -> float:
    """Returns the seconds that a call takes to return; what it recorded runs afterwards."""
    with no_flush_after_steps():
        start = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - start
    flush()
    return seconds / count


def time_running(call: Call, count: int) -> float:
    """Returns the seconds that a call and its work take; results are kept, so all of it runs."""
    start = time.perf_counter()
    results = [call() for _ in range(count)]
    flush()
    seconds = time.perf_counter() - start
    del results
    return seconds / count


def measure(rounds: int, iterations: int) -> list[dict[str, Any]]:
    """Times all cases on both devices, interleaved; returns a row for each case and mode."""
    timers = dict(zip(MODES, (time_recording, time_running), strict=True))
    cases = {device: make_cases(device) for device in DEVICES}
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for round_index in range(-2, rounds):  # two rounds to warm up
        for mode, timer in timers.items():
            for name in cases["cpu"]:
                for device in DEVICES:
                    spent = timer(cases[device][name], calls_of(name, iterations))
                    if round_index >= 0:
                        seconds.setdefault((mode, name, device), []).append(spent)
    return [summary(mode, name, seconds) for mode in MODES for name in cases["cpu"]]


def summary(
    mode: str, name: str, seconds: dict[tuple[str, str, str], list[float]]
) -> dict[str, Any]:
    """Returns the medians of one case: microseconds a call, and the ratio."""
    cpu, tile = (seconds[mode, name, device] for device in DEVICES)
    ratios = [after / before for before, after in zip(cpu, tile, strict=True)]
    return {
        "mode": mode,
        "case": name,
        "cpu_us": statistics.median(cpu) * 1e6,
        "tiledev_us": statistics.median(tile) * 1e6,
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def run_in_process(threads: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures with a number of threads, for the CPU and for tiledev, in a new process."""
    command = [sys.executable, __file__, "--worker", "--threads", str(threads)]
    command += ["--rounds", str(args.rounds), "--iterations", str(args.iterations)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def print_table(threads: int, rows: list[dict[str, Any]]) -> None:
    """Prints the rows of one thread setting."""
    print(f"\n{threads} thread(s), us per call, median (min-max of the ratio)")
    print(f"{'mode':<11} {'case':<14} {'cpu':>9} {'tiledev':>9} {'ratio':>7}")
    for row in rows:
        spread = f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
        numbers = f"{row['cpu_us']:>9.2f} {row['tiledev_us']:>9.2f} {row['ratio']:>7.2f} {spread}"
        print(f"{row['mode']:<11} {row['case']:<14} {numbers}")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=2000, help="ops timed at a time")
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 and all cores")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    args = parse_arguments(argv)
    if args.worker:
        torch.set_num_threads(args.threads[0])
        tiledev.init_context(ncpu=args.threads[0])
        print(json.dumps(measure(args.rounds, args.iterations)))
        return 0
    report = {}
    for threads in args.threads or sorted({1, torch.get_num_threads()}):
        report[threads] = run_in_process(threads, args)
        print_table(threads, report[threads])
    if args.json is not None:
        facts = {"info": vars(tiledev.built_info()), "threads": report}
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
