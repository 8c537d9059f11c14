"""Builds the works on a device: each function returns a step that can be called over and over.

Weights and data are equal everywhere: `torch.manual_seed` gives the same numbers on the CPU and on
tiledev. Weights are made on the CPU, so the seed is set again before the data, which are made on
the device, so that a peak of memory counts them once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.networks import EncoderLayer, Mlp, ResNet
from tiledev.models import GPT, GPTConfig

Step = Callable[[], Tensor]
Function = Callable[[Tensor], Tensor]
P = ParamSpec("P")
R = TypeVar("R")

SCALE, SHIFT = 1.25, 0.1  # the a and b of the chains of W4


@dataclass(frozen=True)
class Place:
    """Where and how a work runs."""

    device: str
    compiled: bool = False

    def compile(self, function: Callable[P, R]) -> Callable[P, R]:
        """Returns the function, through torch.compile if the rival is Inductor."""
        return torch.compile(function) if self.compiled else function


def training_step(optimizer: torch.optim.Optimizer, loss_of: Step) -> Step:
    """Returns a whole step: zero_grad, forward, loss, backward, and the optimizer's step."""

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


def mlp_training(place: Place, rows: int, widths: Sequence[int]) -> Step:
    """W1: an MLP on one full batch, cross entropy, SGD with momentum."""
    torch.manual_seed(0)
    model = Mlp(widths).to(place.device)
    torch.manual_seed(1)
    inputs = torch.rand(rows, widths[0], device=place.device)
    labels = torch.randint(widths[-1], (rows,), device=place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return training_step(optimizer, place.compile(lambda: F.cross_entropy(model(inputs), labels)))


def gpt_parts(
    place: Place, layers: int, width: int, heads: int, length: int, batch: int, vocabulary: int
) -> tuple[GPT, Tensor]:
    """Returns a GPT and a batch of tokens."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers, width, heads, length, vocabulary)).to(place.device)
    torch.manual_seed(1)
    return model, torch.randint(vocabulary, (batch, length), device=place.device)


def gpt_training(place: Place, **sizes: int) -> Step:
    """W2: a GPT, cross entropy of the next tokens, AdamW."""
    model, tokens = gpt_parts(place, **sizes)
    targets = torch.randint(sizes["vocabulary"], tokens.shape, device=place.device)
    settings = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(model.parameters(), **settings)  # type: ignore[arg-type]

    def loss_of() -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    return training_step(optimizer, place.compile(loss_of))


def gpt_inference(place: Place, **sizes: int) -> Step:
    """W3: the same GPT's logits, without gradients."""
    model, tokens = gpt_parts(place, **sizes)
    forward: Function = place.compile(model.eval())
    return torch.no_grad()(lambda: forward(tokens))


def map_elements(place: Place, function: Function, shape: Sequence[int]) -> Step:
    """W4: a function of one tensor, without gradients."""
    torch.manual_seed(0)
    inputs = torch.randn(tuple(shape), device=place.device)
    call = place.compile(function)
    return torch.no_grad()(lambda: call(inputs))


def layer_norm(place: Place, shape: Sequence[int], function: Function | None = None) -> Step:
    """W4c: a layer norm with weight and bias, of a function of the inputs if one is given."""
    torch.manual_seed(0)
    inputs = torch.randn(tuple(shape), device=place.device)
    weight, bias = (torch.rand(shape[-1], device=place.device) for _ in range(2))

    def normed(inputs: Tensor) -> Tensor:
        before = inputs if function is None else function(inputs)
        return F.layer_norm(before, weight.shape, weight, bias)

    call = place.compile(normed)
    return torch.no_grad()(lambda: call(inputs))


def gelu_chain(x: Tensor) -> Tensor:
    """W4a."""
    return F.gelu(x * SCALE + SHIFT, approximate="tanh") * torch.sigmoid(x) + torch.tanh(x)


def relu_chain(x: Tensor) -> Tensor:
    """W4d."""
    return F.relu(x * SCALE + SHIFT) * x + x


def softmax(x: Tensor) -> Tensor:
    """W4b."""
    return torch.softmax(x, dim=-1)


def swapped_gelu_chain(x: Tensor) -> Tensor:
    """A variant of W4a: the same functions in another order."""
    return torch.tanh(x * SCALE + SHIFT) * F.gelu(x, approximate="tanh") - torch.sigmoid(x) * x


def exp_chain(x: Tensor) -> Tensor:
    """A variant of W4a: other functions."""
    return F.silu(x) * SHIFT - torch.exp(-x * x) / (x.abs() + SCALE)


def clamp_chain(x: Tensor) -> Tensor:
    """A variant of W4d: cheap functions, in another order."""
    return (x - (x * x + SHIFT).clamp(max=SCALE)) * F.relu(x)


def scaled_softmax(x: Tensor) -> Tensor:
    """A variant of W4b: a softmax between elementwise ops."""
    return torch.softmax(x * SCALE, dim=-1) + SHIFT


def residual(x: Tensor) -> Tensor:
    """What a variant of W4c normalises."""
    return x + F.relu(x)


def dependent_adds(place: Place, count: int, elements: int) -> Step:
    """W5: adds of a few elements, each of which needs the one before."""
    start = torch.zeros(elements, device=place.device)
    change = torch.full((elements,), 0.5, device=place.device)

    def step() -> Tensor:
        total = start
        for _ in range(count):
            total = total + change
        return total

    return step


def resnet_training(place: Place, channels: Sequence[int], batch: int, side: int) -> Step:
    """W7: a ResNet of basic blocks, cross entropy, SGD with momentum."""
    torch.manual_seed(0)
    model = ResNet(channels, classes=10).to(place.device)
    torch.manual_seed(1)
    images = torch.rand(batch, 3, side, side, device=place.device)
    labels = torch.randint(10, (batch,), device=place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return training_step(optimizer, place.compile(lambda: F.cross_entropy(model(images), labels)))


def encoder_training(
    place: Place, layers: int, width: int, heads: int, inner: int, batch: int, length: int
) -> Step:
    """W8: layers of a BERT encoder in bfloat16 autocast, a squared error, AdamW."""
    torch.manual_seed(0)
    stack = [EncoderLayer(width, heads, inner) for _ in range(layers)]
    model = nn.Sequential(*stack).to(place.device)
    torch.manual_seed(1)
    inputs, targets = (torch.randn(batch, length, width, device=place.device) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss_of() -> Tensor:
        with torch.autocast(place.device, dtype=torch.bfloat16):
            outputs: Tensor = model(inputs)
        return (outputs.float() - targets).square().mean()

    return training_step(optimizer, place.compile(loss_of))
