"""A plain deep network: linear layers without bias, with a relu between two of them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["DeepReLU"]


class DeepReLU(nn.Module):
    """A multi-layer perceptron without biases: input - hidden - ... - hidden - output.

    The weights are drawn as in He et al., "Delving deep into rectifiers" (2015), eq. 10, which
    keeps the variance of the activations over any depth.

    Args:
        input_dim: features of an input row.
        hidden_dim: width of every hidden layer.
        output_dim: features of an output row (classes).
        depth: number of linear layers, at least 1; with 1 there is no hidden layer.
        seed: where the weights are drawn from: a generator on `device`, a number that seeds a
            generator of the model's own, or None for the device's default generator.
        device: device of the weights.
        dtype: dtype of the weights (default: torch's default dtype).

    Raises:
        ValueError: a dimension or the depth is less than 1.

    Example:
        >>> model = DeepReLU(784, 256, 10, depth=5, seed=0)
        >>> model(torch.zeros(32, 784)).shape
        torch.Size([32, 10])
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        output_dim: int,
        depth: int,
        *,
        seed: torch.Generator | int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"input_dim": input_dim, "hidden_dim": hidden_dim, "output_dim": output_dim}
        for name, value in {**sizes, "depth": depth}.items():
            if value < 1:
                raise ValueError(f"[DeepReLU] {name} is {value}: it must be at least 1")
        dims = [input_dim, *[hidden_dim] * (depth - 1), output_dim]
        device = device or torch.get_default_device()
        self.layers = nn.ModuleList(
            nn.utils.skip_init(  # type: ignore[no-untyped-call]
                nn.Linear, fan_in, fan_out, bias=False, device=device, dtype=dtype
            )
            for fan_in, fan_out in pairwise(dims)
        )
        self.reset_parameters(seed)

    @classmethod
    def tiny(cls, *, seed: torch.Generator | int | None = None) -> DeepReLU:
        """Makes the model of the tests: 128-256-256-256-256-10."""
        return cls(128, 256, 10, depth=5, seed=seed)

    @classmethod
    def mnist(
        cls,
        hidden_dim: int = 256,
        depth: int = 5,
        *,
        seed: torch.Generator | int | None = None,
    ) -> DeepReLU:
        """Makes a classifier of MNIST's images: 784 pixels in, 10 classes out."""
        return cls(28 * 28, hidden_dim, 10, depth, seed=seed)

    def reset_parameters(self, seed: torch.Generator | int | None = None) -> None:
        """Draws all weights anew; `seed` is as in the constructor."""
        weights = list(self.parameters())
        if isinstance(seed, int):
            seed = torch.Generator(device=weights[0].device).manual_seed(seed)
        for weight in weights:
            nn.init.kaiming_uniform_(weight, nonlinearity="relu", generator=seed)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., input_dim] to [..., output_dim]; the last layer has no relu."""
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x).relu()
        logits: Tensor = last(x)
        return logits
