"""Recording runs ahead of running, but not without bound."""

import pytest
import torch

import tiledev

pytestmark = pytest.mark.tiledev_only


def test_few_plans_are_in_flight():
    a = torch.ones(256, 256, device="tiledev")
    for _ in range(60):
        for _ in range(4):
            a = (a @ a) * 1e-3
        tiledev.execute()
        assert tiledev._C.counters()["plans_in_flight"] <= 4
    torch.tiledev.synchronize()
    assert tiledev._C.counters()["plans_in_flight"] == 0
