"""cross_entropy with the classes last equals F.cross_entropy with the classes second."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from tests import support
from tests.compare import compare_tensors
from tests.training.recorded import nothing_read
from tiledev.training import cross_entropy

CLASSES = 5
SHAPES = [(), (7,), (2, 3), (2, 3, 4), (0,)]


def labels(shape, kind, dtype=torch.int64):
    if kind == "probabilities":
        return torch.rand(*shape, CLASSES).softmax(-1)
    values = torch.randint(CLASSES, shape, dtype=dtype)
    if kind == "ignored" and values.numel() > 1:
        values.view(-1)[::2] = -100
    if kind == "all ignored":
        values.fill_(-100)
    return values


def oracle(logits, target, **options):
    """F.cross_entropy with the class axis where it expects it."""
    if logits.dim() > 2:
        target = target.movedim(-1, 1) if target.is_floating_point() else target
        return F.cross_entropy(logits.movedim(-1, 1), target, **options)
    return F.cross_entropy(logits, target, **options)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["labels", "ignored", "all ignored", "probabilities"])
def test_equals_torch(shape, kind):
    logits, target, weight = torch.randn(*shape, CLASSES), labels(shape, kind), torch.rand(CLASSES)
    for reduction, weighted, smoothing in itertools.product(
        ("mean", "sum", "none"), (False, True), (0.0, 0.2)
    ):
        if shape == (0,) and (kind == "probabilities" or smoothing):
            continue  # torch disagrees with itself about the mean of nothing
        results = []
        for device, function in ((support.DEVICE, cross_entropy), ("cpu", oracle)):
            x = logits.to(device, copy=True).requires_grad_()
            options = {"reduction": reduction, "label_smoothing": smoothing}
            if weighted:
                options["weight"] = weight.to(device)
            loss = function(x, target.to(device), **options)
            loss.sum().backward()
            results.append([loss, x.grad])
        problems = compare_tensors(*results, f"{reduction} {weighted} {smoothing}")
        assert not [problem for problem in problems if not problem.soft]


def test_nothing_is_read():
    x = torch.randn(6, CLASSES).to(support.DEVICE).requires_grad_()
    for kind in ("ignored", "probabilities"):
        target, weight = labels((6,), kind).to(support.DEVICE), torch.rand(CLASSES)
        weight = weight.to(support.DEVICE)
        with nothing_read():
            cross_entropy(x, target, weight=weight, label_smoothing=0.1).backward()


def test_a_transposed_tensor():
    x = torch.randn(CLASSES, 6)
    target = labels((6,), "labels")
    got = cross_entropy(x.to(support.DEVICE).T, target.to(support.DEVICE))
    torch.testing.assert_close(got.cpu(), F.cross_entropy(x.T, target))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_labels_of_other_dtypes(dtype):
    x, target = torch.randn(6, CLASSES), labels((6,), "labels", dtype)
    options = {"weight": torch.rand(CLASSES), "label_smoothing": 0.1}
    want = F.cross_entropy(x, target.long(), **options)
    options["weight"] = options["weight"].to(support.DEVICE)
    got = cross_entropy(x.to(support.DEVICE), target.to(support.DEVICE), **options)
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype):
    x, target = torch.randn(6, CLASSES).to(dtype), labels((6,), "ignored")
    got = cross_entropy(x.to(support.DEVICE), target.to(support.DEVICE))
    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu(), F.cross_entropy(x, target))


def test_another_ignored_label():
    x, target = torch.randn(6, CLASSES), labels((6,), "labels")
    got = cross_entropy(x.to(support.DEVICE), target.to(support.DEVICE), ignore_index=2)
    torch.testing.assert_close(got.cpu(), F.cross_entropy(x, target, ignore_index=2))


X = torch.zeros(2, 3, CLASSES)
Y = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("error", "text", "args", "options"),
    [
        (ValueError, "reduction='avg'; pass one of", (X, Y), {"reduction": "avg"}),
        (ValueError, r"labels of shape \[2, 4\] .* pass \[2, 3\]", (X, X[..., 0, :4].long()), {}),
        (ValueError, "the last axis of logits is that of the classes", (X.mT, Y), {}),
        (ValueError, r"probabilities of shape \[2, 3\]", (X, Y.float()), {}),
        (ValueError, r"weight of shape \[3\]; pass \[5\]", (X, Y), {"weight": torch.ones(3)}),
        (ValueError, "0-d logits", (X[0, 0, 0], Y), {}),
        (TypeError, "logits of torch.int64", (X.long(), Y), {}),
        (TypeError, "target of torch.bool", (X, Y.bool()), {}),
    ],
)
def test_errors(error, text, args, options):
    options = {
        key: value.to(support.DEVICE) if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    with pytest.raises(error, match=rf"^\[cross_entropy\] got .*{text}"):
        cross_entropy(*(arg.to(support.DEVICE) for arg in args), **options)
