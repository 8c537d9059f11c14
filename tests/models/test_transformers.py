"""Stock networks of transformers, unchanged, against the CPU."""

import pytest

from tests.models import parity
from tests.models.language import networks

pytest.importorskip("transformers", reason="the extra `models` is not installed")

NETWORKS = networks()
GENERATIVE = [stock for stock in NETWORKS if stock.prompt]

pytestmark = pytest.mark.parametrize("tiling", parity.TILINGS)
every_network = pytest.mark.parametrize("stock", NETWORKS, ids=lambda stock: stock.name)


@every_network
def test_forward_and_loss(stock, tiling):
    want = parity.expected(stock, "forward")
    assert {"loss"} < want.keys()
    parity.compare(stock, tiling, "forward")


@every_network
def test_gradients(stock, tiling):
    parity.compare(stock, tiling, "gradients")


@pytest.mark.parametrize("optimizer", parity.OPTIMIZERS)
@every_network
def test_three_steps(stock, tiling, optimizer):
    parity.compare(stock, tiling, "steps", optimizer)


@pytest.mark.parametrize("stock", GENERATIVE, ids=lambda stock: stock.name)
def test_generate(stock, tiling):
    for cache in stock.caches:
        for search in parity.SEARCHES:
            parity.compare(stock, tiling, "generate", search, cache)
