"""Reads IDX files, the format in which MNIST is published, compressed by gzip or not.

A file is: two zero bytes, a byte for the type, a byte for the number of dimensions, each dimension
as a big-endian uint32, then the elements, big-endian, last dimension fastest.
Source: http://yann.lecun.com/exdb/mnist (section "The IDX file format").
"""

from __future__ import annotations

import gzip
import math
import struct
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["read_idx"]

GZIP_MAGIC = b"\x1f\x8b"
DTYPES = {
    0x08: torch.uint8,
    0x09: torch.int8,
    0x0B: torch.int16,
    0x0C: torch.int32,
    0x0D: torch.float32,
    0x0E: torch.float64,
}


def read_idx(path: str | Path) -> Tensor:
    """Reads one IDX file into a CPU tensor of the file's shape and type.

    Args:
        path: the file; whether it is compressed is seen from its content, not its name.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a whole IDX file.
    """
    content = _decompressed(Path(path))
    shape, dtype, start = _header(content, path)
    expected = math.prod(shape) * dtype.itemsize
    found = len(content) - start
    if found != expected:
        raise ValueError(
            f"[read_idx] {path}: the header announces {expected} bytes of data (shape "
            f"{list(shape)}), but {found} follow: the file is damaged, get it again"
        )
    if expected == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8)
    if dtype.itemsize > 1 and sys.byteorder == "little":
        raw = raw.view(-1, dtype.itemsize).flip(1).reshape(-1)
    return raw.view(dtype).view(shape)


def _decompressed(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"[read_idx] {path}: the gzip data is damaged ({error}): get the file again"
        ) from None


def _header(content: bytes, path: str | Path) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Parses the header into shape, dtype and the position where the data starts."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in DTYPES:
        raise ValueError(
            f"[read_idx] {path}: not an IDX file: it starts with the bytes "
            f"{content[:4].hex(' ') or '(none)'}, expected 00 00, a type (08, 09, 0b-0e) and the "
            "number of dimensions"
        )
    ndim = content[3]
    start = 4 + 4 * ndim
    if len(content) < start:
        raise ValueError(
            f"[read_idx] {path}: the file ends inside its header of {ndim} dimensions: get it again"
        )
    return struct.unpack(f">{ndim}I", content[4:start]), DTYPES[content[2]], start
