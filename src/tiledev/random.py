"""Random number generators of the device (`torch.tiledev.random`).

The device draws what the CPU draws: after `torch.manual_seed(s)` a random op gives the same
numbers on `tiledev` as on `cpu`. Seeding and reading a state keep their place among the recorded
ops, and a state has the layout of the CPU generator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import torch

import tiledev
from tiledev._device_index import DEVICE_COUNT, DeviceLike, device_index

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device, looked up when it is asked for."""

    def __len__(self) -> int:
        return DEVICE_COUNT

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Generator]: ...
    def __getitem__(self, index: Any) -> Any:
        selected = range(DEVICE_COUNT)[index]
        if isinstance(selected, range):
            return [tiledev._C.default_generator(i) for i in selected]
        return tiledev._C.default_generator(selected)


default_generators: Sequence[torch.Generator] = _DefaultGenerators()


def _get_generator(device: DeviceLike) -> torch.Generator:
    """Returns a device's default generator; torch's compiler calls this by name."""
    return default_generators[max(device_index(device, "default_generator"), 0)]


def get_rng_state(device: DeviceLike = "tiledev") -> torch.Tensor:
    """Returns the state of a device's default generator.

    Args:
        device: the device (default: the current one).

    Returns:
        A CPU tensor of dtype uint8, of the size that `torch.get_rng_state()` has.

    Example:
        >>> state = torch.tiledev.get_rng_state()
        >>> a = torch.rand(3, device="tiledev").cpu()
        >>> torch.tiledev.set_rng_state(state)
        >>> bool((torch.rand(3, device="tiledev").cpu() == a).all())
        True
    """
    return _get_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the generator states of all devices, in order of their indices."""
    return [get_rng_state(index) for index in range(DEVICE_COUNT)]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "tiledev") -> None:
    """Sets the state of a device's default generator.

    Args:
        new_state: a state from `get_rng_state`, or the CPU's from `torch.get_rng_state`.
        device: the device (default: the current one).
    """
    _get_generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the generator states of all devices, in order of their indices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's default generator.

    `torch.manual_seed` does this and seeds the CPU's as well.
    """
    _get_generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices; `torch.manual_seed` calls this."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's default generator from the system's source of randomness."""
    _get_generator(None).seed()


def seed_all() -> None:
    """Seeds the default generators of all devices with one number drawn from the system."""
    seed()
    manual_seed_all(initial_seed())


def initial_seed() -> int:
    """Returns the seed that the current device's default generator was last given."""
    return _get_generator(None).initial_seed()
