"""Random programs with every axis that can be cut in two or three uneven tiles, 4 workers.

And with names and tiles that are chosen, changed and cleared at random between the lines. Sums over
an axis that is cut round in another way than the CPU's, so floats agree within a tolerance; all
else agrees exactly.
"""

import pytest

from tests import support
from tests.device.programs import as_script, difference
from tests.device.random_programs import TOLERANCE, program
from tests.tiling import context, tiny_tiles

pytestmark = pytest.mark.skipif(not support.ON_TILEDEV, reason="the CPU has no tiles")
# Some of them once found something: softmax over columns, amax of nothing, an op on its own memory.
SEEDS = [185, 367, 464, 4441, 7070, *range(1480, 1625)]


@pytest.fixture
def tiny():
    with tiny_tiles():
        yield


@pytest.fixture
def four_workers():
    with context(4):
        yield


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", SEEDS)
def test_same_as_on_the_cpu(seed):
    lines = program(seed)
    found = difference(lines, tolerance=TOLERANCE)
    assert found is None, as_script(lines, found)


@pytest.mark.usefixtures("four_workers")
@pytest.mark.parametrize("seed", range(2000, 2150))
def test_the_same_with_tiles_chosen_at_random(seed):
    lines = program(seed, "tiles")
    found = difference(lines, tolerance=TOLERANCE)
    assert found is None, as_script(lines, found)


def test_the_tolerance_is_for_floats_alone():
    floats = ["t1 = torch.ones(3, device=dev) + 1e-6 * (dev != 'cpu')"]
    ints = ["t1 = torch.ones(3, device=dev).long() + (dev != 'cpu')"]
    assert difference(floats) is not None
    assert difference(floats, tolerance=TOLERANCE) is None
    assert difference(ints, tolerance=TOLERANCE) is not None
