"""The model of the main job."""

import math

import pytest
import torch

from tiledev.models import DeepReLU


def shapes(model):
    return [tuple(weight.shape) for weight in model.parameters()]


def test_layers():
    assert shapes(DeepReLU.mnist()) == [(256, 784), (256, 256), (256, 256), (256, 256), (10, 256)]
    assert shapes(DeepReLU.tiny()) == [(256, 128), (256, 256), (256, 256), (256, 256), (10, 256)]
    assert shapes(DeepReLU(3, 4, 2, depth=1)) == [(2, 3)]
    assert shapes(DeepReLU.mnist(hidden_dim=8, depth=2)) == [(8, 784), (10, 8)]


def test_forward_is_relu_between_products():
    model = DeepReLU(3, 4, 2, depth=3, seed=0, dtype=torch.float64)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    first, second, third = model.parameters()
    expected = ((x @ first.T).clamp(min=0) @ second.T).clamp(min=0) @ third.T
    torch.testing.assert_close(model(x), expected)


def test_seed():
    draw = [DeepReLU.tiny(seed=seed).layers[1].weight for seed in (0, 0, 1)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(DeepReLU.tiny(seed=generator).layers[1].weight, draw[0])


def test_a_seed_leaves_the_default_generator_alone():
    before = torch.get_rng_state()
    DeepReLU.tiny(seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_seed_the_default_generator_decides():
    torch.manual_seed(5)
    first = DeepReLU.tiny().layers[0].weight
    torch.manual_seed(5)
    assert torch.equal(DeepReLU.tiny().layers[0].weight, first)


def test_kaiming_variance():
    weight = DeepReLU(1000, 1000, 10, depth=2, seed=0).layers[0].weight
    assert weight.var().item() == pytest.approx(2 / 1000, rel=0.02)
    assert weight.abs().max().item() <= math.sqrt(6 / 1000)


@pytest.mark.parametrize("argument", ["input_dim", "hidden_dim", "output_dim", "depth"])
def test_sizes_below_one(argument):
    sizes = {"input_dim": 3, "hidden_dim": 3, "output_dim": 3, "depth": 3, argument: 0}
    with pytest.raises(ValueError, match=rf"\[DeepReLU\] {argument} is 0"):
        DeepReLU(**sizes)


def test_on_the_device(device):
    host = DeepReLU.tiny(seed=0)
    made_there = DeepReLU(128, 256, 10, depth=5, seed=0, device=device)
    for there, here in zip(made_there.parameters(), host.parameters(), strict=True):
        assert there.device.type == device.type
        assert torch.equal(there.detach().cpu(), here.detach())
    x = torch.randn(3, 128)
    torch.testing.assert_close(made_there(x.to(device)).detach().cpu(), host(x).detach())
