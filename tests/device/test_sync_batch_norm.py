"""The pieces of nn.SyncBatchNorm against F.batch_norm on the CPU; two halves act as processes."""

import pytest
import torch
import torch.nn.functional as F

EPS = 1e-5
MOMENTUM = 0.1


@pytest.fixture
def batch():
    return torch.randn(8, 3, 4, 5)


def test_stats(device, batch):
    mean, invstd = torch.batch_norm_stats(batch.to(device), EPS)
    var, expected = torch.var_mean(batch, [0, 2, 3], correction=0)
    torch.testing.assert_close(mean.cpu(), expected)
    torch.testing.assert_close(invstd.cpu(), (var + EPS).rsqrt())


def gathered(halves, running_mean, running_var):
    stats = [torch.batch_norm_stats(half, EPS) for half in halves]
    counts = torch.tensor([half.numel() / half.size(1) for half in halves], device=halves[0].device)
    return torch.batch_norm_gather_stats_with_counts(
        halves[0],
        torch.stack([mean for mean, _ in stats]),
        torch.stack([invstd for _, invstd in stats]),
        running_mean,
        running_var,
        MOMENTUM,
        EPS,
        counts,
    )


def test_two_processes_equal_one_batch(device, batch):
    weight, bias = torch.rand(3), torch.rand(3)
    running = torch.zeros(3), torch.ones(3)
    on_device = [tensor.to(device) for tensor in running]
    halves = batch.to(device)[:3], batch.to(device)[3:]
    mean, invstd = gathered(halves, *on_device)
    result = torch.cat(
        [
            torch.batch_norm_elemt(half, weight.to(device), bias.to(device), mean, invstd, EPS)
            for half in halves
        ]
    )
    expected = F.batch_norm(
        batch, *running, weight, bias, training=True, momentum=MOMENTUM, eps=EPS
    )
    torch.testing.assert_close(result.cpu(), expected)
    for got, want in zip(on_device, running, strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_backward(device, batch):
    weight, bias = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    leaf = batch.clone().requires_grad_()
    cotangent = torch.randn_like(batch)
    F.batch_norm(leaf, None, None, weight, bias, training=True, eps=EPS).backward(cotangent)

    x, grad = batch.to(device), cotangent.to(device)
    mean, invstd = torch.batch_norm_stats(x, EPS)
    scale = weight.detach().to(device)
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
        grad, x, mean, invstd, scale, True, True, True
    )
    count = torch.tensor([batch.numel() // 3], dtype=torch.int32, device=device)
    grad_input = torch.batch_norm_backward_elemt(
        grad, x, mean, invstd, scale, sum_dy, sum_dy_xmu, count
    )
    torch.testing.assert_close(grad_input.cpu(), leaf.grad)
    torch.testing.assert_close(grad_weight.cpu(), weight.grad)
    torch.testing.assert_close(grad_bias.cpu(), bias.grad)
