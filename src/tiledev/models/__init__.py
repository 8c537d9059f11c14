"""Models that the examples, tests and benchmarks train."""

from tiledev.models.deep_relu import DeepReLU

__all__ = ["DeepReLU"]
