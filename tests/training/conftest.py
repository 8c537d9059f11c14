import pytest

from tests import support


@pytest.fixture(autouse=True, scope="package")
def no_fallback():
    """A context in which an op that cannot be recorded is an error."""
    if not support.ON_TILEDEV:
        yield
        return
    import tiledev

    support.settle()
    tiledev.shutdown_context()
    tiledev.init_context(ncpu=2, cpu_fallback=False)
    yield
    support.settle()
    tiledev.shutdown_context()
