"""Everything that a training run needs to go on, in one file."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import torch

import tiledev.random

__all__ = ["Stateful", "load_checkpoint", "save_checkpoint"]

FORMAT = "tiledev.checkpoint"
VERSION = 1


@runtime_checkable
class Stateful(Protocol):
    """What has a state: modules, optimizers, schedulers, scalers, some samplers and loaders."""

    def state_dict(self) -> Any:
        """Returns the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Takes a state that `state_dict` returned."""


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Stateful | None = None,
    optimizer: Stateful | None = None,
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
    cursor: Any = None,
    rng: bool = True,
) -> None:
    """Writes the state of a training run to a file, atomically.

    The file at `path` is the old one until the new one is complete and on disk: a kill in between,
    or an error, leaves the old one as it was. (A kill may leave a file `.NAME.*.tmp` beside it,
    which can be removed.)

    The states of the random number generators are saved, too: torch's for the CPU and for tiledev,
    Python's, and numpy's if numpy is imported.

    Args:
        path: where to write; its folder must exist.
        model: a module, or anything else with `state_dict` and `load_state_dict`.
        optimizer: likewise.
        scheduler: likewise, of the learning rate.
        scaler: likewise, a gradient scaler.
        cursor: where the run is in its data: plain values (numbers, strings, tensors, lists and
            dicts of them), or an object with `state_dict` and `load_state_dict`.
        rng: False leaves the generators out.

    Raises:
        TypeError: something has no `state_dict`, or holds what `torch.load(weights_only=True)`
            would refuse. Nothing is written then.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> model = torch.nn.Linear(4, 3).to("tiledev")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/run.pt", model=model, cursor={"epoch": 3})
        ...     load_checkpoint(f"{folder}/run.pt", model=model)
        {'epoch': 3}
    """
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for name, part in parts.items():
        if part is not None:
            content[name] = _stateful("save_checkpoint", name, part).state_dict()
    content["cursor"] = cursor.state_dict() if isinstance(cursor, Stateful) else cursor
    if rng:
        content["rng"] = _generator_states()
    _write_atomically(Path(path), lambda file: torch.save(content, file), _check_loadable)


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Stateful | None = None,
    optimizer: Stateful | None = None,
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
    cursor: Stateful | None = None,
    rng: bool = True,
) -> Any:
    """Puts what `save_checkpoint` wrote into the objects given, each on the device where it is.

    What is not given stays in the file. On the device and number of workers that it was saved with,
    the run goes on to the bit.

    Args:
        path: the file.
        model: takes the model's state; likewise all others.
        optimizer: see `model`.
        scheduler: see `model`.
        scaler: see `model`.
        cursor: an object that takes the cursor's state (default: it is only returned).
        rng: False leaves the generators as they are.

    Returns:
        The cursor as it was saved, tensors on the CPU; None if there was none.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not from `save_checkpoint`, or lacks what is asked for.
        TypeError: something has no `load_state_dict`.

    Example:
        See `save_checkpoint`.
    """
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"[load_checkpoint] {path} is not from save_checkpoint")
    if content["version"] > VERSION:
        raise ValueError(
            f"[load_checkpoint] {path} has version {content['version']}, newer than {VERSION}: "
            "update tiledev"
        )
    wanted = {name: part for name, part in parts.items() if part is not None}
    missing = [name for name in wanted if name not in content]
    if missing:
        has = ", ".join(name for name in parts if name in content)
        raise ValueError(
            f"[load_checkpoint] {path} has no {' and no '.join(missing)}, only {has}; leave out "
            "what was not saved"
        )
    for name, part in wanted.items():
        _stateful("load_checkpoint", name, part)
    # The optimizer comes after the scheduler, whose constructor may have set its learning rate.
    for name in ("model", "scheduler", "optimizer", "scaler"):
        if name in wanted:
            wanted[name].load_state_dict(content[name])
    if cursor is not None:
        _stateful("load_checkpoint", "cursor", cursor).load_state_dict(content["cursor"])
    if rng and "rng" in content:
        _set_generator_states(content["rng"])
    return content["cursor"]


def _stateful(call: str, name: str, part: object) -> Stateful:
    if not isinstance(part, Stateful):
        raise TypeError(
            f"[{call}] got {name} of type {type(part).__name__}; pass an object with "
            "state_dict and load_state_dict"
        )
    return part


def _generator_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "tiledev": tiledev.random.get_rng_state(),
        "python": random.getstate(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, torch.from_numpy(keys.astype("int64")), *rest)
    return states


def _set_generator_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    tiledev.random.set_rng_state(states["tiledev"])
    random.setstate(states["python"])
    if "numpy" in states:
        try:
            import numpy as np
        except ImportError:
            return  # nothing can draw from it
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, keys.numpy().astype("uint32"), *rest))


def _write_atomically(
    path: Path, write: Callable[[BinaryIO], object], check: Callable[[Path], None]
) -> None:
    """Writes a file beside `path`, checks it, and puts it in the place of `path`."""
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        check(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Puts the new name on disk as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_loadable(path: Path) -> None:
    """Reads a file's structure, and none of its tensors.

    Raises:
        TypeError: the file holds what `torch.load(weights_only=True)` refuses.
    """
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise TypeError(
            "[save_checkpoint] a state holds something that torch.load(weights_only=True) does not "
            f"read; save plain values and tensors: {str(error).splitlines()[0]}"
        ) from error
