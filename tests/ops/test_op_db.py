"""Every entry of PyTorch's op database that supports float32, against the CPU.

`python -m tests.ops.report` prints the same as a table, with a process of its own for each group of
entries.
"""

import pytest

from tests import support
from tests.ops import gaps
from tests.ops.check import check_entry
from tests.ops.entries import entries


@pytest.mark.parametrize("name", entries())
def test_entry(name):
    report = check_entry(entries()[name])
    if support.ON_TILEDEV:
        details = [str(problem) for problem in report.problems] or [f"fallback {report.fallback}"]
        assert not gaps.complaints(name, report.status, bool(report.strides), details)
    else:
        assert not report.problems, "\n".join(map(str, report.problems[:20]))


def test_gaps_name_entries():
    tables = (gaps.FAILS, gaps.FALLBACK, gaps.STRIDES)
    assert set().union(*tables) <= set(entries())
    assert all(reason for table in tables for reason in table.values())
    assert not set(gaps.FAILS) & set(gaps.FALLBACK)
