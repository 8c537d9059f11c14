import pytest

from tests import support
from tests.tiling import context


@pytest.fixture
def two_workers():
    """A context of its own, with two workers."""
    support.settle()
    with context(2):
        yield
        support.settle()
