"""PyTorch Lightning on tiledev: the accelerator and the strategy that its Trainer asks for.

Lightning knows the devices that it was written for, and takes others as objects. Importing this
module also registers both under the name "tiledev".

Example:
    >>> import lightning.pytorch as pl
    >>> from tiledev.integrations.lightning import TiledevStrategy
    >>> trainer = pl.Trainer(strategy=TiledevStrategy(), max_epochs=1, logger=False)
    >>> trainer.strategy.root_device
    device(type='tiledev', index=0)
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins import CheckpointIO, MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry

__all__ = ["TiledevAccelerator", "TiledevStrategy"]

DEVICE = torch.device("tiledev", 0)


class TiledevAccelerator(Accelerator):
    """What Lightning asks about the device. `TiledevStrategy` brings it along."""

    def setup_device(self, device: torch.device) -> None:
        """Checks the device that the strategy trains on.

        Raises:
            ValueError: it is not tiledev: the Trainer got the accelerator without the strategy, and
                takes the CPU then.
        """
        if device.type != DEVICE.type:
            raise ValueError(
                f"[TiledevAccelerator] the strategy trains on {str(device)!r}: "
                "make the trainer with Trainer(strategy=TiledevStrategy()), or by name with "
                "Trainer(accelerator='tiledev', strategy='tiledev')"
            )

    def teardown(self) -> None:
        """Gives cached memory back."""
        torch.tiledev.empty_cache()  # type: ignore[attr-defined]

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        """Returns `torch.tiledev.memory_stats()`, for Lightning's DeviceStatsMonitor."""
        stats: dict[str, Any] = torch.tiledev.memory_stats(device)  # type: ignore[attr-defined]
        return stats

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Returns the indices of the devices: [0].

        Args:
            devices: the Trainer's `devices`: 1, "1", [0], "auto" or -1.

        Raises:
            ValueError: it asks for another device than the one there is.
        """
        if devices not in (1, "1", [0], "auto", -1, "-1"):
            raise ValueError(
                f"[Trainer] devices={devices!r}: there is one device tiledev, whose workers "
                "tiledev.init_context(ncpu=...) counts; leave devices out, or pass devices=1"
            )
        return [0]

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Returns the devices of these indices."""
        return [torch.device(DEVICE.type, index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Returns 1."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Returns True: the device is the host."""
        return True

    @staticmethod
    def name() -> str:
        """Returns "tiledev"."""
        return DEVICE.type


class TiledevStrategy(SingleDeviceStrategy):
    """Trains on the device: `Trainer(strategy=TiledevStrategy())`.

    `Trainer(precision=...)` works as on other devices, "bf16-mixed" and "16-mixed" included.

    Args:
        checkpoint_io: how checkpoints are written; default: `torch.save`.
        precision_plugin: the precision, as an object; default: the Trainer's `precision`.
    """

    strategy_name = "tiledev"

    def __init__(
        self,
        *,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        super().__init__(DEVICE, TiledevAccelerator(), checkpoint_io, precision_plugin)

    @property
    def precision_plugin(self) -> Precision:
        """The precision of the training."""
        return self._precision_plugin if self._precision_plugin is not None else Precision()

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        # The Trainer makes mixed precision for "cuda" on each accelerator that it does not know,
        # and an autocast of CUDA does nothing here.
        if isinstance(plugin, MixedPrecision) and plugin.device == "cuda":
            scaled = plugin.scaler is not None
            plugin = MixedPrecision("16-mixed" if scaled else "bf16-mixed", DEVICE.type)
        self._precision_plugin = plugin


for registry, name, kind in (
    (AcceleratorRegistry, TiledevAccelerator.name(), TiledevAccelerator),
    (StrategyRegistry, TiledevStrategy.strategy_name, TiledevStrategy),
):
    registry.register(name, kind, description=kind.__name__, override=True)
