"""PyTorch's op database with every axis that can be cut in two or three uneven tiles, 4 workers."""

import pytest

from tests import support
from tests.ops import gaps
from tests.ops.check import check_entry
from tests.ops.entries import entries
from tests.tiling import tiny_tiles

pytestmark = pytest.mark.skipif(not support.ON_TILEDEV, reason="the CPU has no tiles")
SAMPLES = 8
# Where sums in another order differ by more than the usual tolerance.
TOLERANCE = {
    # its gradient is a chain of products that nearly cancel
    "linalg_householder_product": {"rtol": 1e-4, "atol": 1e-4},
}


@pytest.fixture(scope="module", autouse=True)
def tiles():
    with tiny_tiles():
        yield


@pytest.mark.parametrize("name", entries())
def test_entry(name):
    report = check_entry(entries()[name], cap=SAMPLES, tolerance=TOLERANCE.get(name))
    details = [str(problem) for problem in report.problems] or [f"fallback {report.fallback}"]
    if name in gaps.FAILS or name in gaps.FALLBACK:
        assert report.status != "crashed"
    else:
        assert not gaps.complaints(name, report.status, bool(report.strides), details)
