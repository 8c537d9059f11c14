"""That the tilings of these tests really cut the networks."""

import re

import pytest
import torch

import tiledev
from tests import support
from tests.models import language, parity, vision

pytest.importorskip("transformers", reason="the extra `models` is not installed")
pytestmark = pytest.mark.tiledev_only

TILES = re.compile(r" ([2-9]|\d\d+) tiles of")


def whole_networks(networks, tiling):
    """The names of the networks of which the plan of a forward pass has no tiles."""
    names = []
    for stock in networks:
        with parity.tiled(tiling, cpu_fallback=bool(stock.fallbacks)), torch.no_grad():
            run = parity.Run(stock, support.DEVICE, tiling)
            batch = run.place(stock.batch())
            answer = run.model.train()(**batch)
            tiledev.wait()
            del answer
            if not TILES.search(tiledev.explain()):
                names.append(stock.name)
    return names


def test_tiny_tiles_cut_every_network():
    assert whole_networks([*language.networks(), *vision.networks()], "tiny") == []


@pytest.mark.parametrize("name", ["GPT-Neo", "BERT", "Whisper"])
def test_named_tilings_cut_a_network(name):
    networks = [stock for stock in language.networks() if stock.name == name]
    assert whole_networks(networks, "named") == []
