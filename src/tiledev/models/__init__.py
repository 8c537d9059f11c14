"""Models that the examples, tests and benchmarks train."""

from tiledev.models.deep_relu import DeepReLU
from tiledev.models.gpt import GPT, GPTConfig

__all__ = ["GPT", "DeepReLU", "GPTConfig"]
