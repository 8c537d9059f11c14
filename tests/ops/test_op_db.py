"""Every entry of PyTorch's op database that supports float32, against the CPU.

`python -m tests.ops.report` prints the same as a table, with a process of its own for each group of
entries.
"""

import pytest
import torch

from tests import support
from tests.compare import tensors_in
from tests.ops import gaps
from tests.ops.check import check_entry
from tests.ops.entries import UNINITIALISED, entries, samples


@pytest.mark.parametrize("name", entries())
def test_entry(name):
    report = check_entry(entries()[name])
    if support.ON_TILEDEV:
        details = [str(problem) for problem in report.problems] or [f"fallback {report.fallback}"]
        assert not gaps.complaints(name, report.status, bool(report.strides), details)
    else:
        assert not report.problems, "\n".join(map(str, report.problems[:20]))


def doubled(op, sample, place) -> list[torch.Tensor]:
    """Twice the results, which nobody holds: on the device they are temporaries of a plan."""
    moved = sample.transform(lambda x: x.to(place, copy=True) if isinstance(x, torch.Tensor) else x)
    support.seed(0)
    return [
        2 * result
        for result in tensors_in(op(moved.input, *moved.args, **moved.kwargs))
        if result.dtype != torch.bool and result.layout == torch.strided
    ]


@pytest.mark.tiledev_only
@pytest.mark.parametrize("name", sorted(set(entries()) - UNINITIALISED - set(gaps.FAILS)))
@pytest.mark.filterwarnings("ignore")
def test_results_that_nobody_holds(name):
    op = entries()[name]
    for sample in samples(op, torch.float32, 10, requires_grad=False):
        try:
            wanted = doubled(op, sample, "cpu")
        except Exception:
            continue  # the CPU refuses it, or has no product for its type
        for found, want in zip(doubled(op, sample, support.DEVICE), wanted, strict=True):
            torch.testing.assert_close(
                found.cpu(), want, rtol=1e-3, atol=1e-4, equal_nan=True, check_stride=False
            )


def test_gaps_name_entries():
    tables = (gaps.FAILS, gaps.FALLBACK, gaps.STRIDES)
    assert set().union(*tables) <= set(entries())
    assert all(reason for table in tables for reason in table.values())
    assert not set(gaps.FAILS) & set(gaps.FALLBACK)
