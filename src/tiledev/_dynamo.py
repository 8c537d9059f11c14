"""Describes the device to torch.compile, once torch.compile itself is imported.

`torch._dynamo` takes seconds to import and has no place where a device could leave a note before
that, so a finder waits for the one module that keeps the list of device interfaces.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["backend", "register_when_imported"]

_INTERFACES = "torch._dynamo.device_interface"


def register_when_imported() -> None:
    """Registers the interface now if dynamo is imported already, else as soon as it is."""
    if _INTERFACES in sys.modules:
        _register_interface()
    else:
        sys.meta_path.insert(0, _Waiter())


def _register_interface() -> None:
    importlib.import_module("tiledev._dynamo_interface").register()


class _Waiter(MetaPathFinder):
    """Finds the module of device interfaces as Python would, and registers ours after it ran."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leaves every other module to the next finder."""
        if fullname != _INTERFACES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run_module = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run_module(module)
                _register_interface()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def backend(graph_module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """The backend of `torch.compile(model, backend="tiledev")`: records the captured graph.

    The device compiles what is recorded by itself, so nothing is left to do but to run the
    captured function without the interpreter's work around it.
    """
    forward: Callable[..., Any] = graph_module.forward
    return forward
