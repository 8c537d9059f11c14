"""Networks of images against the CPU, batch norm's running statistics included."""

import pytest

from tests.models import parity
from tests.models.vision import networks

pytest.importorskip("transformers", reason="the extra `models` is not installed")

NETWORKS = networks()
pytestmark = pytest.mark.parametrize("tiling", parity.TILINGS)
every_network = pytest.mark.parametrize("stock", NETWORKS, ids=lambda stock: stock.name)


@every_network
def test_forward_and_loss(stock, tiling):
    assert {"loss"} < parity.expected(stock, "forward").keys()
    parity.compare(stock, tiling, "forward")


@every_network
def test_gradients(stock, tiling):
    parity.compare(stock, tiling, "gradients")


@every_network
@pytest.mark.parametrize("optimizer", parity.OPTIMIZERS)
def test_three_steps(stock, tiling, optimizer):
    parity.compare(stock, tiling, "steps", optimizer)
