"""What every suite shares: the device under test and the state of the backend behind it.

``TILEDEV_TEST_DEVICE=cpu pytest`` runs the suites against the CPU itself, which checks the tests
rather than the device: everything has to pass.
"""

import os
from typing import Any

import torch

DEVICE = os.environ.get("TILEDEV_TEST_DEVICE", "tiledev")
ON_TILEDEV = DEVICE.startswith("tiledev")

if ON_TILEDEV:
    import tiledev  # noqa: F401  (a checkout that is not installed has no entry point)


def extension() -> Any:
    """The compiled module; only for tests that are marked as needing tiledev."""
    from tiledev import _C

    return _C


def counters() -> dict[str, int]:
    """The backend's counters, or nothing on another device."""
    return dict(extension().counters()) if ON_TILEDEV else {}


def fallback_stats() -> dict[str, int]:
    """How often each op went through the CPU fallback since the start."""
    return dict(extension().fallback_stats()) if ON_TILEDEV else {}


def stats_since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """The entries of `after` that grew, by how much."""
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in grown.items() if count}


def seed(value: int) -> None:
    """torch.manual_seed without the stack trace that it takes each time."""
    torch.default_generator.manual_seed(value)
    if ON_TILEDEV:
        torch.tiledev.manual_seed_all(value)


def synchronize() -> None:
    """Run what is pending and wait for it; raises what failed at run time."""
    if ON_TILEDEV:
        torch.tiledev.synchronize()


def settle() -> None:
    """Leave nothing pending and no error kept, whatever the last test did."""
    for _ in range(3):
        try:
            synchronize()
            return
        except Exception:  # each wait reports one kept error
            continue
