"""torch.profiler sees ops on the device."""

import pytest
import torch


def test_profile_names_ops(device):
    x = torch.ones(4, 4, device=device)
    with torch.profiler.profile() as profile:
        (x @ x).sum().item()
    names = {event.key for event in profile.key_averages()}
    assert {"aten::mm", "aten::sum", "aten::item"} <= names


@pytest.mark.tiledev_only
def test_legacy_profiler_with_the_device(capfd):
    x = torch.ones(4, 4, device="tiledev")
    with torch.autograd.profiler.profile(use_device="tiledev", use_kineto=False) as profile:
        (x + x).sum().item()
    assert any(event.name == "aten::add" for event in profile.function_events)
    assert "not supported" not in capfd.readouterr().err
