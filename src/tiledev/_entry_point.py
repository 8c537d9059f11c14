"""The function that torch calls at the end of its own import (entry point `torch.backends`)."""

__all__: list[str] = []


def _autoload() -> None:
    """Makes the device known to torch, so that no program has to import tiledev.

    Importing the package is all there is to do, and torch has done that by the time it calls
    this function. It stands in a module without imports, which the package loads first: when
    tiledev is imported before torch, torch's import comes back for this function while the
    package is still empty.

    Example:
        >>> import torch
        >>> torch.zeros(3, device="tiledev").device.type
        'tiledev'
    """
