"""A smaller run of the op database in other dtypes: few samples, gradients of the first one."""

import pytest
import torch

from tests import support
from tests.ops import gaps
from tests.ops.check import check_entry
from tests.ops.entries import entries

DTYPES = [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
SAMPLES = 4
CASES = [(name, dtype) for dtype in DTYPES for name in entries(dtype)]


def _id(value):
    return str(value).removeprefix("torch.")


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=_id)
def test_entry_in_dtype(name, dtype):
    if support.ON_TILEDEV and name in gaps.FAILS:
        pytest.skip(f"fails in float32 as well: {gaps.FAILS[name]}")
    report = check_entry(entries(dtype)[name], dtype, cap=SAMPLES, variants=False, grad_cap=1)
    failures = report.failures + ([] if name in gaps.STRIDES else report.strides)
    if support.ON_TILEDEV and _id(dtype) in gaps.DTYPES.get(name, {}):
        assert failures, f"take {name}: {_id(dtype)} off DTYPES in tests/ops/gaps.py"
    else:
        assert not failures, "\n".join(map(str, failures[:10]))


def test_gaps_name_cases():
    listed = {(name, dtype) for name, dtypes in gaps.DTYPES.items() for dtype in dtypes}
    assert listed <= {(name, _id(dtype)) for name, dtype in CASES}
