"""Checks the entries whose names arrive on stdin, a line of JSON each on stdout.

A process of its own, so that a crash costs one entry and not the run.
"""

import dataclasses
import faulthandler
import json
import sys

from tests.ops.check import Report, check_entry
from tests.ops.entries import entries, error_entries
from tests.ops.error_inputs import check_error_inputs


def entry_row(report: Report) -> dict:
    """What is kept of a report."""
    row = dataclasses.asdict(report)
    row["problems"] = [str(problem) for problem in report.failures[:20]]
    row["strides"] = [str(problem) for problem in report.strides[:20]]
    row["failures"] = len(report.failures)
    row["status"] = report.status
    return row


def check(mode: str, name: str, cap: int) -> dict:
    """The row of one entry; `mode` is entries or errors."""
    if mode == "errors":
        report = check_error_inputs(error_entries()[name])
        return dataclasses.asdict(report) | {"status": report.status, "strides": []}
    return entry_row(check_entry(entries()[name], cap=cap))


def main() -> None:
    faulthandler.enable()
    replies, sys.stdout = sys.stdout, sys.stderr  # ops may print
    mode, cap = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(check(mode, line.strip(), cap)), file=replies, flush=True)


if __name__ == "__main__":
    main()
