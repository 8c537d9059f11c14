"""Metrics of torchmetrics on tiledev give what they give on the CPU: docs/ecosystem.md."""

import warnings

import pytest
import torch

from tests import support
from tests.ecosystem import networks
from tests.models.parity import tiled

torchmetrics = pytest.importorskip(
    "torchmetrics", reason="torchmetrics, of the extra `ecosystem`, is not installed"
)

from torchmetrics import classification as of_classes  # noqa: E402

CLASSES = 5
# The ops that leave the graph, as docs/ecosystem.md says: their results' shapes are data.
COUNTED = ("aten::bincount",)
SORTED = ("aten::_unique2", "aten::bincount", "aten::index.Tensor", "aten::nonzero")
METRICS = {
    "accuracy": (of_classes.MulticlassAccuracy, {"num_classes": CLASSES}, COUNTED),
    "micro accuracy": (
        of_classes.MulticlassAccuracy, {"num_classes": CLASSES, "average": "micro"}, ()
    ),
    "top 2": (of_classes.MulticlassAccuracy, {"num_classes": CLASSES, "top_k": 2}, ()),
    "f1": (of_classes.MulticlassF1Score, {"num_classes": CLASSES}, COUNTED),
    "confusion": (of_classes.MulticlassConfusionMatrix, {"num_classes": CLASSES}, COUNTED),
    "calibration": (of_classes.MulticlassCalibrationError, {"num_classes": CLASSES}, ()),
    "auroc": (of_classes.MulticlassAUROC, {"num_classes": CLASSES}, SORTED),
    "mse": (torchmetrics.MeanSquaredError, {}, ()),
    "mae": (torchmetrics.MeanAbsoluteError, {}, ()),
    "r2": (torchmetrics.R2Score, {}, ()),
    "pearson": (torchmetrics.PearsonCorrCoef, {}, ("aten::index.Tensor",)),
    "perplexity": (torchmetrics.text.Perplexity, {}, ("aten::index.Tensor",)),
    "mean": (torchmetrics.MeanMetric, {}, ()),
    "max": (torchmetrics.MaxMetric, {}, ()),
    "cat": (torchmetrics.CatMetric, {}, ()),
}  # fmt: skip


def batches(name):
    """Three batches of what the metric takes."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        scores = torch.randn(16, CLASSES, generator=generator).log_softmax(dim=1)
        labels = torch.randint(CLASSES, (16,), generator=generator)
        if name in ("mse", "mae", "r2", "pearson"):
            yield scores[:, 0].contiguous(), scores[:, 1].contiguous()
        elif name in ("mean", "max", "cat"):
            yield (scores[:, 0].contiguous(),)
        elif name == "perplexity":
            yield scores.view(2, 8, CLASSES), labels.view(2, 8)
        else:
            yield scores.exp(), labels


def computed(name, device):
    make, options, _ = METRICS[name]
    metric = make(**options).to(device)
    for batch in batches(name):
        metric.update(*(value.to(device) for value in batch))
    value = metric.compute()
    assert value.device.type == torch.device(device).type
    metric.reset()
    return value.cpu()


@pytest.mark.parametrize("name", METRICS)
def test_metric(name):
    expected = METRICS[name][2]
    with tiled("auto", cpu_fallback=bool(expected)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = computed(name, support.DEVICE)
        taken = set(support.fallback_stats())
    torch.testing.assert_close(got, computed(name, "cpu"), **networks.CLOSE)
    assert taken <= set(expected)
    assert not support.ON_TILEDEV or bool(taken) == bool(expected), "docs/ecosystem.md says else"


def test_collection(device, no_fallback):
    """A collection in a loop: nothing is read before `compute`."""
    rows = {"num_classes": networks.CLASSES, "average": "micro"}
    found = []
    for place in (device, torch.device("cpu")):
        metrics = torchmetrics.MetricCollection(
            {"accuracy": of_classes.MulticlassAccuracy(**rows), "loss": torchmetrics.MeanMetric()}
        ).to(place)
        model = networks.classifier().to(place)
        x, labels = (value.to(place) for value in networks.samples()[:])
        logits = model(x)
        metrics["accuracy"].update(logits, labels)
        metrics["loss"].update(torch.nn.functional.cross_entropy(logits, labels))
        found.append({name: value.item() for name, value in metrics.compute().items()})
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_state_moves_and_is_saved(device, no_fallback):
    metric = torchmetrics.MeanSquaredError().to(device)
    metric.persistent(True)
    metric.update(torch.ones(4).to(device), torch.zeros(4).to(device))
    other = torchmetrics.MeanSquaredError().to(device)
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    other._update_count = 1
    assert other.compute().item() == metric.compute().item() == 1
    assert metric.cpu().compute().device.type == "cpu"
