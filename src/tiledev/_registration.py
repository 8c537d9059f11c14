"""Makes `tiledev` a device of torch; importing this module is what does it.

Nothing else happens at import: no context, no thread and no memory exists before first use.
"""

from __future__ import annotations

import atexit
import importlib
import sys

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

DEVICE = "tiledev"
UNNAMED_BACKEND = "privateuseone"


def register() -> None:
    """Checks that this torch can take the device, then registers it.

    Raises:
        ImportError: tiledev is not built, or was built with another torch minor version.
        RuntimeError: another backend has the one place that torch keeps for foreign devices.
    """
    check_torch_version()
    check_no_other_backend()
    register_device()
    load_extension()
    check_tile_rules()
    register_hooks()


def check_tile_rules() -> None:
    """Compares the table of tile rules with the ops that this torch has (2 ms).

    Raises:
        ImportError: a rule is for an op that does not exist, or that has other arguments.
    """
    from tiledev import _C

    try:
        _C.check_rules()
    except ValueError as error:
        raise ImportError(f"[import tiledev] {error}") from None


def minor_version(version: str) -> str:
    """Cuts a version to its first two parts: "2.13.0+cpu" -> "2.13"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check_torch_version() -> None:
    """Compares the torch that is installed with the one that tiledev was compiled against."""
    try:
        from tiledev import _build_info
    except ImportError:
        raise ImportError(
            "[import tiledev] the package is not built (there is no tiledev/_build_info.py): "
            "run `pip install .` in the checkout"
        ) from None
    built, running = _build_info.TORCH_VERSION, str(torch.__version__)
    if minor_version(built) != minor_version(running):
        raise ImportError(
            f"[import tiledev] tiledev {_build_info.VERSION} was built with torch {built}, but "
            f"torch {running} is installed: run `pip install 'torch=={minor_version(built)}.*'`, "
            f"or build tiledev again for torch {minor_version(running)} with `pip install "
            "--force-reinstall --no-deps --no-build-isolation .` in its checkout"
        )


def check_no_other_backend() -> None:
    """Refuses to share torch's PrivateUse1 key, of which a process has only one."""
    name: str = torch._C._get_privateuse1_backend_name()
    if name == UNNAMED_BACKEND and hasattr(torch, UNNAMED_BACKEND):
        name = f"{UNNAMED_BACKEND} (of {getattr(torch, UNNAMED_BACKEND)})"
    if name not in (UNNAMED_BACKEND, DEVICE):
        raise RuntimeError(
            f"[import tiledev] the backend {name!r} is registered as PrivateUse1 already, and a "
            "process can have one such backend: uninstall one of the two packages, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import only the one you want"
        )


def register_device() -> None:
    """Gives the device its name, its module `torch.tiledev` and the methods named after it."""
    rename_privateuse1_backend(DEVICE)
    if not hasattr(torch, DEVICE):  # an import that failed half-way may be tried again
        torch._register_device_module(  # type: ignore[no-untyped-call]
            DEVICE, importlib.import_module("tiledev.device_module")
        )
    if not hasattr(torch.Tensor, f"is_{DEVICE}"):
        generate_methods_for_privateuse1_backend(for_storage=True)


def load_extension() -> None:
    """Loads the compiled module, which registers the kernels, the guard and the allocator."""
    try:
        importlib.import_module("tiledev._C")
    except ImportError as error:
        raise ImportError(
            f"[import tiledev] the compiled module tiledev._C does not load ({error}): "
            "build tiledev again with `pip install --force-reinstall --no-deps .` in its checkout"
        ) from None


def register_hooks() -> None:
    """Registers what the device adds to torch's Python side, and the way out."""
    from tiledev import _dynamo, _optimizer

    _optimizer.register()
    _dynamo.register_when_imported()
    atexit.register(shut_down)


def shut_down() -> None:
    """Ends the context at exit: runs nothing that is pending, and joins all threads."""
    extension = sys.modules["tiledev._C"]
    if not extension.is_in_bad_fork():
        extension.shutdown_context(cancel=True)
        extension.stop_autograd_threads()


register()
