import pytest

import tiledev
from tests import support


@pytest.fixture
def two_workers():
    """A context of its own, with two workers."""
    support.settle()
    tiledev.shutdown_context()
    tiledev.init_context(2)
    yield
    support.settle()
    tiledev.shutdown_context()
