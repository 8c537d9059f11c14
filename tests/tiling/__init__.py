"""Tiles: named axes, and every suite again under tiles that are as small as can be."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tiledev


@contextmanager
def context(workers: int, **options: Any) -> Iterator[None]:
    """A context of its own; whatever tiling mode was set in it ends with it."""
    tiledev.shutdown_context()
    tiledev.init_context(workers, **options)
    try:
        yield
    finally:
        tiledev._C.set_tiling_mode("auto")
        tiledev.shutdown_context()


@contextmanager
def tiny_tiles(workers: int = 4, **options: Any) -> Iterator[None]:
    """Cuts every axis that can be cut in two or three uneven tiles, in a context of its own."""
    with context(workers, **options):
        tiledev._C.set_tiling_mode("tiny")
        yield
