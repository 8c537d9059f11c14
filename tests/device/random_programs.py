"""Many random programs: python -m tests.device.random_programs --programs 20000 --seed 0 --jobs 2.

With --tiny every axis that can be cut is cut in two or three tiles; with --tiles names and tiles
are chosen at random between the lines. Floats may then differ by rounding.
Prints one line of summary; what failed goes to a file, each failure reduced to a script of its own.
Programs run in processes of a few hundred each, so that a crash costs one program.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests import support
from tests.device.program_tiles import with_tiles
from tests.device.programs import Writer, as_script, difference, reduce_program

CHUNK = 250
TOLERANCE = 1e-5  # sums over an axis that is cut round in another way


def program(seed: int, mode: str = "") -> list[str]:
    """The program of a seed: 5 to 40 lines, and if the mode is "tiles" those that choose them."""
    rng = random.Random(seed)
    lines = Writer(rng).write(rng.randint(5, 40))
    return with_tiles(lines, seed) if mode == "tiles" else lines


def check(seed: int, mode: str) -> str | None:
    """None, or a script that shows what differs."""
    lines, tolerance = program(seed, mode), TOLERANCE if mode else 0.0
    found = difference(lines, tolerance=tolerance)
    if found is None:
        return None
    lines = reduce_program(
        lines, lambda shorter: difference(shorter, tolerance=tolerance) is not None
    )
    return f"# seed {seed}\n" + as_script(lines, difference(lines, tolerance=tolerance) or found)


@contextmanager
def tiling(mode: str) -> Iterator[None]:
    """Tiles as small as can be, if the mode is "tiny"."""
    if mode != "tiny":
        yield
        return
    from tests.tiling import tiny_tiles

    with tiny_tiles():
        yield


def check_range(first: int, last: int, mode: str) -> None:
    """Check seeds [first, last), a line of JSON each: the worker's half."""
    with tiling(mode):
        for seed in range(first, last):
            print(json.dumps([seed, None]), flush=True)  # begun
            print(json.dumps([seed, check(seed, mode) or ""]), flush=True)


def run_range(first: int, last: int, mode: str, timeout: float) -> dict[int, str]:
    """Check seeds in a process of its own and go on behind a seed that crashes or hangs."""
    failures = {}
    while first < last:
        command = [sys.executable, "-m", "tests.device.random_programs"]
        command += [f"--{mode}"] * bool(mode) + ["--worker"]
        try:
            done = subprocess.run(
                [*command, str(first), str(last)], capture_output=True, text=True, timeout=timeout
            )
            output, end = done.stdout, f"exit code {done.returncode}: {done.stderr[-1000:]}"
        except subprocess.TimeoutExpired as expired:
            output, end = (expired.stdout or b"").decode(), "hung"
        rows = [json.loads(line) for line in output.splitlines() if line.endswith("]")]
        failures.update({seed: text for seed, text in rows if text})
        if rows and rows[-1] == [last - 1, rows[-1][1]] and rows[-1][1] is not None:
            break
        seed = rows[-1][0] if rows else first
        failures[seed] = f"# seed {seed}\n# {end}\n" + "\n".join(program(seed, mode))
        first = seed + 1
    return failures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--tiny", dest="mode", action="store_const", const="tiny", help="tiles as small as can be"
    )
    parser.add_argument(
        "--tiles", dest="mode", action="store_const", const="tiles", help="tiles at random"
    )
    parser.add_argument("--failures", type=Path, default=Path("random_program_failures.txt"))
    parser.add_argument(
        "--show", type=int, metavar="SEED", help="print one program and its outcome"
    )
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.mode = options.mode or ""
    if options.worker:
        check_range(*options.worker, options.mode)
        return 0
    if options.show is not None:
        with tiling(options.mode):
            shown = check(options.show, options.mode)
        print(shown or as_script(program(options.show, options.mode), "no difference"))
        return 0
    return run_many(options)


def run_many(options: argparse.Namespace) -> int:
    """All programs, their summary, and the file of failures."""
    started = time.perf_counter()
    end = options.seed + options.programs
    chunks = [(first, min(first + CHUNK, end)) for first in range(options.seed, end, CHUNK)]
    failures: dict[int, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda chunk: run_range(*chunk, options.mode, timeout=600), chunks):
            failures.update(found)
    print(
        f"{options.programs} programs on {support.DEVICE!r} from seed {options.seed}: "
        f"{len(failures)} failed, {time.perf_counter() - started:.0f} s"
    )
    if failures:
        options.failures.write_text("\n\n".join(failures[seed] for seed in sorted(failures)) + "\n")
        print(f"failures: {options.failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
