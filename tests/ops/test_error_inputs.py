"""Invalid inputs raise on the device what they raise on the CPU.

`python -m tests.ops.report --errors` counts those that raise at the call and those that raise only
at the wait.
"""

import pytest

from tests import support
from tests.ops import gaps
from tests.ops.entries import error_entries
from tests.ops.error_inputs import check_error_inputs


@pytest.mark.parametrize("name", error_entries())
def test_error_inputs(name):
    report = check_error_inputs(error_entries()[name])
    if not report.inputs:
        pytest.skip("its invalid inputs are invalid on other devices only")
    listed = support.ON_TILEDEV and name in gaps.ERROR_INPUTS
    if listed:
        assert report.problems, f"take {name} off ERROR_INPUTS in tests/ops/gaps.py"
    else:
        assert not report.problems, "\n".join(report.problems)


def test_gaps_name_entries():
    assert set(gaps.ERROR_INPUTS) <= set(error_entries())
    assert all(gaps.ERROR_INPUTS.values())
