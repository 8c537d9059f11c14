"""Many random programs: python -m tests.device.random_programs --programs 20000 --seed 0 --jobs 2.

With --tiny every axis that can be cut is cut in two or three tiles; floats may then differ by
rounding.
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
from tests.device.programs import Writer, as_script, difference, reduce_program

CHUNK = 250
TINY_TOLERANCE = 1e-5  # sums over an axis that is cut round in another way


def program(seed: int) -> list[str]:
    """The program of a seed: 5 to 40 lines."""
    rng = random.Random(seed)
    return Writer(rng).write(rng.randint(5, 40))


def check(seed: int, tolerance: float) -> str | None:
    """None, or a script that shows what differs."""
    lines = program(seed)
    found = difference(lines, tolerance=tolerance)
    if found is None:
        return None
    lines = reduce_program(
        lines, lambda shorter: difference(shorter, tolerance=tolerance) is not None
    )
    return f"# seed {seed}\n" + as_script(lines, difference(lines, tolerance=tolerance) or found)


@contextmanager
def tiles(tiny: bool) -> Iterator[float]:
    """Cuts as asked for; gives the tolerance for floats."""
    if not tiny:
        yield 0.0
        return
    from tests.tiling import tiny_tiles

    with tiny_tiles():
        yield TINY_TOLERANCE


def check_range(first: int, last: int, tiny: bool) -> None:
    """Check seeds [first, last), a line of JSON each: the worker's half."""
    with tiles(tiny) as tolerance:
        for seed in range(first, last):
            print(json.dumps([seed, None]), flush=True)  # begun
            print(json.dumps([seed, check(seed, tolerance) or ""]), flush=True)


def run_range(first: int, last: int, tiny: bool, timeout: float) -> dict[int, str]:
    """Check seeds in a process of its own and go on behind a seed that crashes or hangs."""
    failures = {}
    while first < last:
        command = [sys.executable, "-m", "tests.device.random_programs"]
        command += ["--tiny"] * tiny + ["--worker"]
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
        failures[seed] = f"# seed {seed}\n# {end}\n" + "\n".join(program(seed))
        first = seed + 1
    return failures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="with tiles as small as can be")
    parser.add_argument("--failures", type=Path, default=Path("random_program_failures.txt"))
    parser.add_argument(
        "--show", type=int, metavar="SEED", help="print one program and its outcome"
    )
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        check_range(*options.worker, options.tiny)
        return 0
    if options.show is not None:
        with tiles(options.tiny) as tolerance:
            shown = check(options.show, tolerance)
        print(shown or as_script(program(options.show), "no difference"))
        return 0
    return run_many(options)


def run_many(options: argparse.Namespace) -> int:
    """All programs, their summary, and the file of failures."""
    started = time.perf_counter()
    end = options.seed + options.programs
    chunks = [(first, min(first + CHUNK, end)) for first in range(options.seed, end, CHUNK)]
    failures: dict[int, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda chunk: run_range(*chunk, options.tiny, timeout=600), chunks):
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
