"""Writes an op of one's own, with a NumPy kernel, and trains a network with it.

What it shows: torch.library.custom_op with a fake kernel, so that tiledev records the op; autograd,
whose formula is a second op; and a tile rule, so that the op runs tile by tile with its neighbours.
docs/custom_ops.md explains each of them.

    python examples/custom_op.py
    python examples/custom_op.py --steps 10 --compare

Prints what was recorded and the plan of a step, in which the op and its gradient stand in one
segment with the products of matrices around them (without the rules each would run whole, and
its megabytes would go through memory), then the loss as the network learns a sine:

    recorded: ['aten::addmm', 'mylib::squareplus', 'aten::addmm']
    ...
      1: 12 ops, 8 tiles of 4096 units in 2 lanes, reads 32.8 KiB, writes 776 B, ...
          addmm, mylib::squareplus, addmm, mse_loss, ..., mylib::squareplus_backward, mm, sum
    [tiledev] step   50  loss 0.6
    ...
    [tiledev] step  300  loss 0.1
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import custom_op, opcheck

import tiledev
from common import Losses, main

ROWS, WIDTH = 4096, 64


# 1. The kernel. It works on host memory, so it says device_types="cpu": tiledev calls it with CPU
# tensors, on a worker. It must make a new tensor and take inputs of any strides.
@custom_op("mylib::squareplus", mutates_args=(), device_types="cpu")
def squareplus(x: Tensor) -> Tensor:
    """Returns (x + sqrt(x^2 + 4)) / 2, a smooth relu (Barron, 2021); same shape and dtype."""
    values = x.numpy()
    return torch.from_numpy(np.asarray((values + np.sqrt(values * values + 4)) / 2))


# 2. The fake kernel: what the result looks like, without its values. With it the op is recorded.
@squareplus.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# 3. Autograd. The formula is an op, too, so that it is recorded like the op itself.
@custom_op("mylib::squareplus_backward", mutates_args=(), device_types="cpu")
def squareplus_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Returns grad * (1 + x / sqrt(x^2 + 4)) / 2; same shape and dtype."""
    values = x.numpy()
    slope = (1 + values / np.sqrt(values * values + 4)) / 2
    return torch.from_numpy(np.asarray(grad.numpy() * slope))


@squareplus_backward.register_fake
def _(grad: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def keep_input(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    """Keeps for the gradient what it needs."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: Tensor) -> Tensor:
    """Returns the gradient of x."""
    (x,) = ctx.saved_tensors
    result: Tensor = squareplus_backward(grad, x)
    return result


squareplus.register_autograd(backward, setup_context=keep_input)


# 4. The tile rules: each element of the result depends on the same element of the inputs. An op in
# which rows go their own ways, but columns do not, would say "mn->mn; whole n".
tiledev.tile_rule("mylib::squareplus", "pointwise")
tiledev.tile_rule("mylib::squareplus_backward", "pointwise")


class Squareplus(nn.Module):
    """The op as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the same shape."""
        result: Tensor = squareplus(x)
        return result


def check(device: str) -> None:
    """Has PyTorch compare the kernel with the fake kernel, and the gradient with differences."""
    opcheck(squareplus, (torch.randn(3, 4),))
    x = torch.randn(3, 4, dtype=torch.float64).to(device).requires_grad_()
    torch.autograd.gradcheck(squareplus, (x,))


def train(device: str, steps: int, seed: int) -> list[float]:
    """Trains a network with the op to be a sine; returns the loss of each step."""
    on_tiledev = torch.device(device).type == "tiledev"
    torch.manual_seed(seed)
    check(device)

    x = torch.linspace(-3, 3, ROWS).unsqueeze(1)
    inputs, wanted = x.to(device), x.mul(2).sin().to(device)
    model = nn.Sequential(nn.Linear(1, WIDTH), Squareplus(), nn.Linear(WIDTH, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if on_tiledev:
        tiledev.execute()  # what comes now is recorded alone
        model(inputs)
        print(f"recorded: {tiledev.pending_op_names()}", flush=True)

    losses = Losses(device, every=50)
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.add(loss)
        if on_tiledev and step == 0:
            print(tiledev.explain(), flush=True)
    return losses.read()


if __name__ == "__main__":
    sys.exit(main(__doc__, train, length=300))
