"""What is installed and what it is doing, for people and for bug reports."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass

import torch

from tiledev import _C, _build_info

__all__ = ["BuiltInfo", "built_info", "print_info"]


@dataclass(frozen=True)
class BuiltInfo:
    """Versions of tiledev and of what it was built with and runs on.

    Attributes:
        version: tiledev's version.
        torch_built: the torch that tiledev was compiled against.
        torch_running: the torch that is imported.
        torch_cuda: the CUDA version of that torch, or None.
        compiler: the C++ compiler.
        build_type: "release", "debug" or the names of sanitizers.
        python: the Python version.
        platform: system, release and processor.
    """

    version: str
    torch_built: str
    torch_running: str
    torch_cuda: str | None
    compiler: str
    build_type: str
    python: str
    platform: str


def built_info() -> BuiltInfo:
    """Returns the versions that a bug report should name.

    Example:
        >>> tiledev.built_info().version == tiledev.__version__
        True
    """
    return BuiltInfo(
        version=_build_info.VERSION,
        torch_built=_build_info.TORCH_VERSION,
        torch_running=str(torch.__version__),
        torch_cuda=torch.version.cuda,
        compiler=_build_info.COMPILER,
        build_type=_build_info.BUILD_TYPE,
        python=platform.python_version(),
        platform=platform.platform(),
    )


def print_info() -> None:
    """Prints versions, settings, counters and memory; as tables where rich is installed."""
    sections = _sections()
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(_plain(sections))
        return
    console = Console()
    for title, rows in sections.items():
        table = Table("name", "value", title=title, title_justify="left", show_header=False)
        for name, value in rows.items():
            table.add_row(name, str(value))
        console.print(table)


def _sections() -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {"versions": asdict(built_info())}
    if _C.is_context_initialized():
        sections["context"] = dict(_C.context_settings())
        sections["counters"] = dict(_C.counters())
        sections["plan cache"] = dict(_C.plan_cache_stats())
        sections["memory"] = {name: value for name, value in _C.memory_stats().items() if value}
        sections["CPU fallback"] = dict(_C.fallback_stats())
    else:
        sections["context"] = {"state": "not made yet; it appears at the first op"}
    return sections


def _plain(sections: dict[str, dict[str, object]]) -> str:
    lines: list[str] = []
    for title, rows in sections.items():
        width = max(map(len, rows), default=0)
        lines += [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items()), ""]
    return "\n".join(lines[:-1])
