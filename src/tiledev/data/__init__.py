"""Data for the examples and tests."""

from tiledev.data.idx import read_idx
from tiledev.data.mnist import Mnist, download_mnist, load_mnist, load_mnist_sample

__all__ = ["Mnist", "download_mnist", "load_mnist", "load_mnist_sample", "read_idx"]
