"""Networks of images against the CPU, batch norm's running statistics included."""

import pytest

from tests import support
from tests.models import parity
from tests.models.vision import networks

pytest.importorskip("transformers", reason="the extra `models` is not installed")

NETWORKS = networks()
WITH_BATCH_NORM = ("ResNet", "ResNet (bottleneck)", "MobileNetV2", "U-Net")
EVALUATION = (
    "in evaluation the CPU's batch norm gives no mean, which its Meta kernel promises: it fails "
    "for batches that are too large to learn that from a run"
)

pytestmark = pytest.mark.parametrize("tiling", parity.TILINGS)
every_network = pytest.mark.parametrize("stock", NETWORKS, ids=lambda stock: stock.name)


def rows():
    failing = pytest.mark.xfail(reason=EVALUATION, condition=support.ON_TILEDEV)
    return [
        pytest.param(stock, id=stock.name, marks=failing if stock.name in WITH_BATCH_NORM else ())
        for stock in NETWORKS
    ]


@pytest.mark.parametrize("stock", rows())
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
