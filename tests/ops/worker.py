"""Checks the entries whose names arrive on stdin, a line of JSON each on stdout.

A process of its own, so that a crash costs one entry and not the run.
"""

import dataclasses
import faulthandler
import json
import sys

from tests.ops.check import Report, check_entry
from tests.ops.entries import SAMPLE_CAP, entries


def as_row(report: Report) -> dict:
    """What is kept of a report."""
    row = dataclasses.asdict(report)
    row["problems"] = [str(problem) for problem in report.failures[:20]]
    row["strides"] = [str(problem) for problem in report.strides[:20]]
    row["failures"] = len(report.failures)
    row["status"] = report.status
    return row


def main() -> None:
    faulthandler.enable()
    replies, sys.stdout = sys.stdout, sys.stderr  # ops may print
    table = entries()
    cap = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE_CAP
    for line in sys.stdin:
        row = as_row(check_entry(table[line.strip()], cap=cap))
        print(json.dumps(row), file=replies, flush=True)


if __name__ == "__main__":
    main()
