"""The op database as a table: recorded, fallback, failed.

    python -m tests.ops.report [--jobs 2] [--only SUBSTRING] [--json FILE]
    python -m tests.ops.report --errors

Entries run in worker processes: one that crashes or hangs is marked so and the rest go on.
"""

import argparse
import collections
import json
import sys
from pathlib import Path

from tests import support
from tests.ops import gaps
from tests.ops.entries import SAMPLE_CAP, entries, error_entries
from tests.ops.pool import run_entries

STATUSES = ("recorded", "fallback", "failed", "crashed", "hung")
ERROR_STATUSES = ("call", "wait", "failed", "crashed", "hung")


def format_table(rows: list[dict]) -> str:
    """Counts, then every entry that was not simply recorded, with its reason."""
    lines = [f"{len(rows)} entries on {support.DEVICE!r}", *_counts(rows, STATUSES)]
    lines.append(f"  {'strides':10} {sum(bool(row['strides']) for row in rows):4}")
    for status in STATUSES[1:]:
        lines += _group(rows, status)
    other = [row for row in rows if row["strides"]]
    if other:
        lines += ["", "other strides:"]
        lines += [f"  {row['name']:44} {row['strides'][0][:160]}" for row in other]
    return "\n".join(lines)


def format_errors(rows: list[dict]) -> str:
    """How many invalid inputs raised at the call, at the wait, or not as on the CPU."""
    done = [row for row in rows if "inputs" in row]
    inputs, call, wait, text = (
        sum(row[key] for row in done) for key in ("inputs", "at_call", "at_wait", "same_text")
    )
    lines = [f"error inputs of {len(rows)} entries on {support.DEVICE!r}"]
    lines += _counts(rows, ERROR_STATUSES)
    lines.append(
        f"{inputs} inputs: {call} raise at the call, {wait} at the wait, "
        f"{inputs - call - wait} not as on the CPU; {text} with the same text"
    )
    for row in done:
        lines += [f"  at the wait  {row['name']:34} {_short(late)}" for late in row["late"]]
    for status in ERROR_STATUSES[2:]:
        lines += _group(rows, status)
    return "\n".join(lines)


def _counts(rows: list[dict], statuses: tuple[str, ...]) -> list[str]:
    counts = collections.Counter(row["status"] for row in rows)
    return [f"  {status:10} {counts[status]:4}" for status in statuses]


def _group(rows: list[dict], status: str) -> list[str]:
    group = [f"  {row['name']:44} {_reason(row)}" for row in rows if row["status"] == status]
    return ["", f"{status}:", *group] if group else []


def _reason(row: dict) -> str:
    listed = gaps.FAILS.get(row["name"]) or gaps.FALLBACK.get(row["name"])
    if listed:
        return listed
    if row["status"] == "fallback":
        return ", ".join(f"{name} x{count}" for name, count in sorted(row["fallback"].items()))
    return f"({row.get('failures', len(row['problems']))}) {_short(row['problems'][0])}"


def _short(text: str) -> str:
    return " ".join(text.split())[:240]


def unexpected(rows: list[dict], errors: bool) -> list[str]:
    """What is not as tests/ops/gaps.py has it."""
    if errors:
        bad = {row["name"] for row in rows if row["status"] in ERROR_STATUSES[2:]}
        return sorted(bad ^ (set(gaps.ERROR_INPUTS) & {row["name"] for row in rows}))
    return [
        _short(line)
        for row in rows
        for line in gaps.complaints(
            row["name"], row["status"], bool(row["strides"]), row["problems"] or row["strides"]
        )
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--errors", action="store_true", help="invalid inputs instead of samples")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cap", type=int, default=SAMPLE_CAP, help="samples an entry")
    parser.add_argument("--only", default="", help="entries whose name contains this")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--timeout", type=float, default=300, help="seconds an entry may take")
    options = parser.parse_args(argv)
    mode = "errors" if options.errors else "entries"
    names = [n for n in (error_entries() if options.errors else entries()) if options.only in n]
    rows = run_entries(names, mode, options.jobs, options.cap, options.timeout)
    print(format_errors(rows) if options.errors else format_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    found = unexpected(rows, options.errors)
    if found:
        print("\nnot as in tests/ops/gaps.py:", *found, sep="\n  ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
