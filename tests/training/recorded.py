"""What the tests of this folder share."""

from contextlib import contextmanager

import torch

from tests import support


@contextmanager
def nothing_read():
    """Fails if the device is read, or flushed, inside."""
    support.synchronize()
    before = support.counters()
    yield
    assert support.stats_since(before, support.counters()).get("flushes", 0) == 0


def step_without_reading(optimizer):
    """Makes every step fail that reads the device before its update is recorded.

    The optimizer's own hooks come before the one that flushes at the end of a step.
    """
    flushes = []

    def begin(*_):
        flushes.append(support.counters().get("flushes", 0))

    def end(*_):
        assert support.counters().get("flushes", 0) == flushes.pop()

    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(end)


def parameters(device, dtype=torch.float32, shapes=((6, 4), (4,), (3, 2, 2), ())):
    """Parameters of known random values."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    return [torch.nn.Parameter(value.to(device=device, dtype=dtype)) for value in values]


def set_gradients(params, step, dtype=torch.float32, scale=1.0):
    """Gives parameters gradients that depend on the step alone."""
    generator = torch.Generator().manual_seed(100 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator).to(dtype) * scale
        param.grad = grad.to(param.device, dtype=param.dtype)
