"""Makes IDX files and small sets of images that look like MNIST's."""

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor

TYPES = {
    torch.uint8: (0x08, "B"),
    torch.int8: (0x09, "b"),
    torch.int16: (0x0B, "h"),
    torch.int32: (0x0C, "i"),
    torch.float32: (0x0D, "f"),
    torch.float64: (0x0E, "d"),
}


def idx_bytes(tensor: Tensor) -> bytes:
    """The content of the IDX file that holds the tensor."""
    code, letter = TYPES[tensor.dtype]
    header = struct.pack(f">BBBB{tensor.dim()}I", 0, 0, code, tensor.dim(), *tensor.shape)
    return header + struct.pack(f">{tensor.numel()}{letter}", *tensor.flatten().tolist())


def digits(count: int, side: int = 28) -> tuple[Tensor, Tensor]:
    """Noise over ten fixed patterns: uint8 [count, side, side] and uint8 labels [count]."""
    generator = torch.Generator().manual_seed(1)
    patterns = 200 * (torch.rand(10, side, side, generator=generator) < 0.15)
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.randint(0, 56, (count, side, side), generator=generator)
    return (patterns[labels] + noise).to(torch.uint8), labels.to(torch.uint8)


def write_mnist(folder: Path, count: int, *, split: str = "train", packed: bool = False) -> None:
    """Writes the two files of a split, named as MNIST's are."""
    images, labels = digits(count)
    for kind, tensor in (("images-idx3", images), ("labels-idx1", labels)):
        content = idx_bytes(tensor)
        name = f"{split}-{kind}-ubyte"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / name).write_bytes(content)
