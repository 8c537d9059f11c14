import contextlib

import pytest

from tests import support
from tests.tiling import context, tiny_tiles


@pytest.fixture(autouse=True, scope="module", params=["untiled", "tiny"])
def no_fallback(request):
    """A context in which a fallback is an error: tiles as usual, and as small as can be."""
    if not support.ON_TILEDEV:
        if request.param == "tiny":
            pytest.skip("TILEDEV_TEST_DEVICE has no tiles")
        chosen = contextlib.nullcontext()
    else:
        make = tiny_tiles if request.param == "tiny" else context
        chosen = make(2, cpu_fallback=False)
    support.settle()
    with chosen:
        yield request.param
        support.settle()
