"""Tiles: named axes, and every suite again under tiles that are as small as can be."""

from collections.abc import Iterator
from contextlib import contextmanager

import tiledev


@contextmanager
def context(workers: int, *, cpu_fallback: bool = True) -> Iterator[None]:
    """A context of its own; whatever tiling mode was set in it ends with it."""
    tiledev.shutdown_context()
    tiledev.init_context(workers, cpu_fallback=cpu_fallback)
    try:
        yield
    finally:
        tiledev._C.set_tiling_mode("auto")
        tiledev.shutdown_context()


@contextmanager
def tiny_tiles(workers: int = 4) -> Iterator[None]:
    """Cuts every axis that can be cut in two or three uneven tiles, in a context of its own."""
    with context(workers):
        tiledev._C.set_tiling_mode("tiny")
        yield
