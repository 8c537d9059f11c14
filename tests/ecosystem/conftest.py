"""Contexts in which a fallback is an error, and the choice of a device for accelerate."""

import pytest

from tests.models.parity import tiled


@pytest.fixture
def no_fallback():
    """A context of its own in which an op that leaves the graph is an error."""
    with tiled("auto", cpu_fallback=False):
        yield


@pytest.fixture
def choose_device(monkeypatch):
    """Returns a function that sets the device for accelerate and for Trainer."""
    from accelerate.state import AcceleratorState

    def choose(device: str) -> None:
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", device)
        AcceleratorState._reset_state(reset_partial_state=True)

    yield choose
    AcceleratorState._reset_state(reset_partial_state=True)
