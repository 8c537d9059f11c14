"""docs/models.md says what is seen."""

import pytest

from tests.models import language, parity, report, vision

pytest.importorskip("transformers", reason="the extra `models` is not installed")
pytestmark = pytest.mark.tiledev_only

NETWORKS = [*language.networks(), *vision.networks()]


def test_every_network_has_a_row():
    rows = report.documented_fallbacks()
    assert sorted(rows) == sorted(stock.name for stock in NETWORKS)


@pytest.mark.parametrize("stock", NETWORKS, ids=lambda stock: stock.name)
def test_fallbacks(stock):
    """A step takes those of the table; the other tests see that nothing takes any further ones."""
    documented = report.documented_fallbacks()[stock.name]
    assert documented == report.fallback_cell(dict(stock.fallbacks))
    taken = parity.compare(stock, "auto", "gradients")
    assert documented == report.fallback_cell(taken)
