"""The measure of a phase's peak memory."""

import sys

import pytest
import torch

from tiledev.tools.peak_memory import PeakMemory

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux alone")
def test_each_phase_counts_for_itself():
    with PeakMemory() as large:
        torch.ones(64 * MIB // 4)
    with PeakMemory() as small:
        torch.ones(8 * MIB // 4)
    assert 60 * MIB < large.growth < 100 * MIB
    assert 4 * MIB < small.growth < 40 * MIB
