"""Small leaves and networks for the tests of this folder."""

import torch


def leaf(device, *shape, scale=1.0):
    """A leaf of known values that requires a gradient."""
    count = torch.Size(shape).numel()
    values = (torch.arange(float(count)).reshape(shape) - count / 2) * scale / max(count, 1)
    return values.to(device, copy=True).requires_grad_()


def mlp(device):
    """Two linear layers, 4 features to 2."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    return net.to(device)
