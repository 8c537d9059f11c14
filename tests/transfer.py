"""Copies of nested arguments on another device that keep strides, offsets and aliasing."""

from typing import Any

import torch

from tests import support


class Transfer:
    """Copies tensors inside containers to `device`.

    Tensors that share a storage share it afterwards as well, with the same offsets and strides, so
    an op meets on the device just what it meets on the CPU. Leaves stay leaves.
    """

    def __init__(self, device: torch.device | str, requires_grad: bool = True):
        self.device = torch.device(device)
        self.requires_grad = requires_grad
        self.tensors: list[torch.Tensor] = []
        self.names_device = False  # whether a device argument was among the values
        self._copied: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self, value))
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self(value.start), self(value.stop), self(value.step))
        if value in ("cpu", torch.device("cpu")):
            self.names_device = True
            return self.device if isinstance(value, torch.device) else str(self.device)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if id(tensor) in self._copied:
            return self._copied[id(tensor)]
        with torch.no_grad():
            copy = self._copy(tensor.detach())
        if self.requires_grad and tensor.requires_grad:
            copy.requires_grad_()
        self._copied[id(tensor)] = copy
        self.tensors.append(copy)
        return copy

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.to(self.device, copy=True)
        if tensor.is_conj():
            return self._copy(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._copy(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        known = storage._cdata in self._storages
        if not known and storage.nbytes() == tensor.nbytes and tensor.is_contiguous():
            copy = tensor.to(self.device, copy=True)
            self._storages[storage._cdata] = copy.untyped_storage()
            return copy
        if not known:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[storage._cdata] = raw.to(self.device, copy=True).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return empty.set_(
            self._storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride()
        )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor inside nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def to_test_device(value: Any) -> Any:
    """A copy of `value` on the device under test."""
    return Transfer(support.DEVICE)(value)
