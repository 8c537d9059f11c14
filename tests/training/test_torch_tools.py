"""PyTorch's own training tools, unpatched, on a device that forbids the CPU fallback."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests import support
from tests.compare import compare_tensors
from tests.training.recorded import nothing_read, parameters, set_gradients

STEPS = 3


def network(device, dropout=0.0):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Dropout(dropout)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).to(device)


def batch(device, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(10, 6, generator=generator)
    return x.to(device), torch.randint(4, (10,), generator=generator).to(device)


def both(body):
    """`body` on the device equals `body` on the CPU."""
    results = []
    for device in (support.DEVICE, "cpu"):
        support.seed(0)
        results.append([tensor.detach() for tensor in body(device)])
    assert not compare_tensors(*results, "result")


@pytest.mark.parametrize("kind", ["labels", "ignored", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(kind, reduction, smoothing, weighted):
    def body(device):
        x, y = torch.randn(2, 5, 3), torch.randint(5, (2, 3))
        if kind == "ignored":
            y[0, :2] = -100
        if kind == "probabilities":
            y = torch.rand(2, 5, 3).softmax(1)
        x, y, weight = x.to(device).requires_grad_(), y.to(device), torch.rand(5).to(device)
        options = {"weight": weight if weighted else None, "label_smoothing": smoothing}
        loss = F.cross_entropy(x, y, reduction=reduction, **options)
        loss.sum().backward()
        return loss, x.grad

    both(body)


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_clip_grad_norm(norm, foreach):
    def body(device):
        params = parameters(device)
        set_gradients(params, 0)
        with nothing_read():
            total = torch.nn.utils.clip_grad_norm_(params, 0.5, norm_type=norm, foreach=foreach)
        return [total, *(param.grad for param in params)]

    both(body)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_clip_grad_value(foreach):
    def body(device):
        params = parameters(device)
        set_gradients(params, 0)
        torch.nn.utils.clip_grad_value_(params, 0.5, foreach=foreach)
        return [param.grad for param in params]

    both(body)


def test_an_error_about_a_norm_that_is_not_finite():
    params = parameters(support.DEVICE)
    set_gradients(params, 0)
    params[0].grad[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize(
    ("average", "buffers"),  # torch's equal average does not take a count of batches
    [("equal", False), ("ema", False), ("ema", True), ("multi", False), ("multi", True)],
)
def test_averaged_models(average, buffers):
    def body(device):
        net = torch.nn.Sequential(network(device), torch.nn.BatchNorm1d(4).to(device))
        options = {
            "equal": {},
            "ema": {"avg_fn": lambda mean, new, count: 0.9 * mean + 0.1 * new},
            "multi": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
        }[average]
        averaged = AveragedModel(net, use_buffers=buffers, **options)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
        for step in range(STEPS):
            x, y = batch(device, step)
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(net)
            scheduler.step()
        if not buffers:
            update_bn([batch(device, step) for step in range(2)], averaged)
        return list(averaged.state_dict().values())

    both(body)


class TestActivationCheckpointing:
    """Recomputed activations give the gradients of kept ones, with the same dropout."""

    def gradients(self, device, forward, dropout=0.5, **autocast):
        net = network(device, dropout)
        x, y = batch(device, 0)
        x.requires_grad_()
        support.seed(5)
        with torch.autocast(device, **autocast) if autocast else torch.enable_grad():
            loss = F.cross_entropy(forward(net, x), y)
        loss.backward()
        return [loss, x.grad, *(param.grad for param in net.parameters())]

    @staticmethod
    def kept(net, x):
        return net(x)

    @staticmethod
    def recomputed(net, x):
        return checkpoint(net, x, use_reentrant=False)

    @staticmethod
    def reentrant(net, x):
        return checkpoint(net, x, use_reentrant=True)

    @staticmethod
    def sequential(net, x):
        return checkpoint_sequential(net, 2, x, use_reentrant=False)

    @pytest.mark.parametrize("way", ["recomputed", "reentrant", "sequential"])
    def test_equals_the_cpu(self, way):
        both(lambda device: self.gradients(device, getattr(self, way)))

    @pytest.mark.parametrize("way", ["recomputed", "reentrant", "sequential"])
    def test_equals_kept_activations(self, way):
        kept = self.gradients(support.DEVICE, self.kept)
        again = self.gradients(support.DEVICE, getattr(self, way))
        for mine, theirs in zip(again, kept, strict=True):
            assert torch.equal(mine.detach().cpu(), theirs.detach().cpu())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_under_autocast(self, dtype):
        kept = self.gradients(support.DEVICE, self.kept, dtype=dtype)
        again = self.gradients(support.DEVICE, self.recomputed, dtype=dtype)
        for mine, theirs in zip(again, kept, strict=True):
            assert torch.equal(mine.detach().cpu(), theirs.detach().cpu())

    def test_memory_is_given_up(self):
        """The tensors that backward needs are not kept."""
        kept = []
        for forward in (self.kept, self.recomputed):
            saved = []
            net, (x, _) = network(support.DEVICE), batch(support.DEVICE, 0)
            with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
                forward(net, x)
            kept.append(len(saved))
        assert kept[1] < kept[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_mixed_precision_training(dtype, optimizer):
    """autocast, GradScaler, clipping and torch.optim together follow the CPU's."""
    losses = {}
    for device in (support.DEVICE, "cpu"):
        net = network(device)
        steps = getattr(torch.optim, optimizer)(net.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16, init_scale=256.0)
        losses[device] = []
        for step in range(STEPS):
            x, y = batch(device, step)
            with torch.autocast(device, dtype=dtype):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(steps)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(steps)
            scaler.update()
            steps.zero_grad()
            losses[device].append(loss.item())
    assert losses[support.DEVICE] == pytest.approx(losses["cpu"], rel=0.02)
    assert losses["cpu"][0] != losses["cpu"][1]


SCHEDULERS = {
    "LambdaLR": {"lr_lambda": lambda step: 1 / (1 + step)},
    "CosineAnnealingLR": {"T_max": 5},
    "OneCycleLR": {"max_lr": 0.3, "total_steps": 8},
    "ReduceLROnPlateau": {"patience": 0},
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_schedulers(name, optimizer):
    def body(device):
        params = parameters(device)
        steps = optimizer(params, lr=0.1)
        options = copy.copy(SCHEDULERS[name])
        scheduler = getattr(torch.optim.lr_scheduler, name)(steps, **options)
        for step in range(STEPS):
            set_gradients(params, step)
            steps.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        return params

    both(body)
