"""Options, fixtures and markers of every suite."""

import os

import pytest

os.environ.setdefault("TILEDEV_VERIFY", "1")  # every plan is checked after every pass

import torch

from tests import support


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow as well")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes minutes or much memory; needs --run-slow")
    config.addinivalue_line(
        "markers", "tiledev_only: looks inside the backend, not just at results"
    )


def pytest_collection_modifyitems(config, items):
    slow = pytest.mark.skip(reason="slow: pass --run-slow")
    foreign = pytest.mark.skip(reason="TILEDEV_TEST_DEVICE names another device")
    for item in items:
        if "slow" in item.keywords and not config.getoption("--run-slow"):
            item.add_marker(slow)
        if "tiledev_only" in item.keywords and not support.ON_TILEDEV:
            item.add_marker(foreign)


@pytest.fixture
def device() -> torch.device:
    """The device under test."""
    return torch.device(support.DEVICE)


@pytest.fixture(autouse=True)
def fixed_seed():
    """Each test starts from the same seed and leaves the caller's generator state alone."""
    state = torch.get_rng_state()
    support.seed(0)
    yield
    torch.set_rng_state(state)
