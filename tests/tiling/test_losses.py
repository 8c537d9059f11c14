"""Losses and lookups that are cut into tiles: whole sums and means, and what is left whole."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import tiledev

DEVICE = "tiledev"
pytestmark = pytest.mark.usefixtures("two_workers")

LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": lambda x, y, reduction: F.binary_cross_entropy(x.sigmoid(), y, reduction=reduction),
    "weighted_bce": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y, weight=y, reduction=reduction
    ),
    "bce_logits": F.binary_cross_entropy_with_logits,
}


def loss_and_gradient(device, loss, reduction, dtype=torch.float32, rows=3001):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 33, generator=generator).to(dtype).to(device).requires_grad_()
    y = torch.rand(rows, 33, generator=generator).to(dtype).to(device)
    value = LOSSES[loss](x, y, reduction=reduction)
    (value.sum() * 3).backward()
    return value.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("mode", ["auto", "tiny"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss, reduction, mode):
    tiledev._C.set_tiling_mode(mode)
    found = loss_and_gradient(DEVICE, loss, reduction)
    torch.testing.assert_close(found, loss_and_gradient("cpu", loss, reduction))


@pytest.mark.parametrize("shape", [(3,), (6, 9, 3), (64, 32), (300, 400)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_nobody_holds(loss, reduction, shape, capfd):
    x, y = (torch.rand(shape, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    f = LOSSES[loss]
    found = (f(x.to(DEVICE), y.to(DEVICE), reduction=reduction) * 2).cpu()
    torch.testing.assert_close(found, f(x, y, reduction=reduction) * 2)
    assert "resized" not in capfd.readouterr().err


def test_a_sum_that_would_overflow_its_type_is_not_made():
    tiledev._C.set_tiling_mode("tiny")
    x = torch.full((3000, 33), 100.0, dtype=torch.float16, device=DEVICE)
    assert F.mse_loss(x, torch.zeros_like(x)).item() == 10000


def test_a_mean_is_cut():
    x = torch.randn(200000, 8, device=DEVICE)
    tiledev.execute()
    F.mse_loss(x, torch.zeros(200000, 8, device=DEVICE)).item()
    segments = json.loads(tiledev.explain("json"))["segments"]
    assert [s["tiles"] > 1 for s in segments if "mse_loss" in str(s)] == [True]


def batch_norm(device, training):
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm2d(9).to(device).train(training)
    x = torch.randn(8, 9, 30, 31).to(device).requires_grad_()
    result = layer(x).relu()
    result.square().mean().backward()
    state = [layer.running_mean, layer.running_var, layer.weight.grad, layer.bias.grad]
    return [t.detach().cpu() for t in (result, x.grad, *state)]


@pytest.mark.parametrize("mode", ["auto", "tiny"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training, mode):
    tiledev._C.set_tiling_mode(mode)
    torch.testing.assert_close(batch_norm(DEVICE, training), batch_norm("cpu", training))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_of_a_large_input_looks_as_on_the_cpu(training, dtype):
    def results(device):
        x = torch.ones(32, 8, 20, 20, dtype=dtype, device=device)
        parameters = [torch.ones(8, device=device) for _ in range(4)]
        return torch.native_batch_norm(x, *parameters, training, 0.1, 1e-5)

    for found, right in zip(results(DEVICE), results("cpu"), strict=True):
        assert (found.shape, found.stride(), found.dtype) == (
            right.shape,
            right.stride(),
            right.dtype,
        )


@pytest.mark.parametrize("mode", ["auto", "tiny"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}])
def test_embedding_gradient(options, mode):
    tiledev._C.set_tiling_mode(mode)

    def gradient(device):
        torch.manual_seed(0)
        table = torch.nn.Embedding(50, 65, **options).to(device)
        table(torch.randint(0, 50, (40, 30)).to(device)).square().sum().backward()
        return table.weight.grad.cpu()

    torch.testing.assert_close(gradient(DEVICE), gradient("cpu"))
