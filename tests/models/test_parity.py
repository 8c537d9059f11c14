"""The comparison itself: a network that answers, learns or falls back otherwise is found."""

import dataclasses

import pytest
import torch.nn.functional as F
from torch import nn

from tests import support
from tests.models import parity
from tests.models.stock import TINY, Stock

pytestmark = pytest.mark.tiledev_only


class Network(nn.Module):
    """Two layers with a flaw of choice on the device."""

    def __init__(self, flaw):
        super().__init__()
        self.flaw = flaw
        self.embedding = nn.Embedding(TINY.vocabulary, 8)
        self.head = nn.Linear(8, TINY.classes)

    def forward(self, input_ids, attention_mask, labels):
        x = self.embedding(input_ids).tanh()
        flaw = self.flaw if input_ids.device.type == support.DEVICE else ""
        if flaw == "answer":
            x = x + 1e-3
        if flaw == "gradient":
            x = x.detach() + (x - x.detach()) * 1.5
        if flaw == "fallback":
            (input_ids > 5).nonzero()
        logits = self.head(x.mean(1))
        return {"logits": logits, "loss": F.cross_entropy(logits, labels)}

    def generate(self, input_ids, attention_mask, **settings):
        return input_ids + (self.flaw == "answer" and input_ids.device.type == support.DEVICE)


def network(flaw=""):
    def batch():
        return {**TINY.padded(left=True), "labels": TINY.labels()}

    return Stock(
        f"with {flaw}",
        lambda: Network(flaw),
        batch,
        lambda: TINY.padded(left=True),
        axes=("batch", "sequence", "hidden"),
    )


CHECKS = {"forward": (), "gradients": (), "steps": ("AdamW",), "generate": ("greedy", None)}


@pytest.mark.parametrize("tiling", parity.TILINGS)
@pytest.mark.parametrize("check", CHECKS)
def test_a_sound_network_passes(check, tiling):
    assert parity.compare(network(), tiling, check, *CHECKS[check]) == {}


@pytest.mark.parametrize("tiling", parity.TILINGS)
@pytest.mark.parametrize("check", CHECKS)
def test_another_answer_is_found(check, tiling):
    with pytest.raises(AssertionError, match=r"not close|not equal"):
        parity.compare(network("answer"), tiling, check, *CHECKS[check])


@pytest.mark.parametrize("check", ["gradients", "steps"])
def test_another_gradient_is_found(check):
    arguments = {"gradients": (), "steps": ("SGD",)}[check]
    parity.compare(network("gradient"), "auto", "forward")
    with pytest.raises(AssertionError, match="not close"):
        parity.compare(network("gradient"), "auto", check, *arguments)


def test_a_fallback_that_is_not_listed_is_found():
    with pytest.raises(NotImplementedError, match="aten::nonzero"):
        parity.compare(network("fallback"), "auto", "forward")
    listed = dataclasses.replace(network("fallback"), fallbacks={"aten::unique": "another one"})
    with pytest.raises(AssertionError, match="aten::nonzero"):
        parity.compare(listed, "auto", "forward")
    listed = dataclasses.replace(network("fallback"), fallbacks={"aten::nonzero": "as it is"})
    assert parity.compare(listed, "auto", "forward") == {"aten::nonzero": 1}


def test_axes_that_are_not_there_are_found():
    lacking = dataclasses.replace(network(), axes=("batch", "hidden", "heads"))
    with pytest.raises((ValueError, AssertionError), match=r"heads|axis_groups"):
        parity.compare(lacking, "named", "forward")
