"""The layers of csrc/: includes point one way, and the core knows neither Python nor a backend."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"

# What a folder may include beside itself. The core (graph, rules, compile) needs no runtime;
# the recorder hands plans to the runtime through its interface.
MAY_INCLUDE = {
    "graph": set(),
    "rules": {"graph"},
    "compile": {"graph", "rules"},
    "runtime": {"compile", "graph", "kernels"},
    "record": {"compile", "graph", "rules", "runtime"},
    "device": {"graph", "record"},
    "kernels": set(),
}
# Headers that only the bindings, which lie outside the folders, may use.
PYTHON_HEADERS = re.compile(
    r"^(Python\.h|pybind11/|torch/extension\.h|torch/csrc/(?!profiler/stubs))"
)
# Headers of what drives tasks and devices: no business of the core.
BACKEND_HEADERS = re.compile(
    r"^(ATen/(Parallel|cuda/|native/|ops/|Functions\.h)|c10/(cuda/|core/impl/.*Guard)|thread$|omp\.h$)"
)
CORE = ("graph", "rules", "compile")

SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp"))
HEADERS = [path for path in SOURCES if path.suffix == ".h"]


def includes(path: Path) -> list[tuple[str, str]]:
    """The headers that a file includes, each with its opening `"` or `<`."""
    found = re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), re.MULTILINE)
    return [(header, mark) for mark, header in found]


def folder(path: Path) -> str:
    """The folder of csrc/ that a file lies in; empty for a file beside the folders."""
    parts = path.relative_to(CSRC).parts
    return parts[0] if len(parts) > 1 else ""


def name(path: Path) -> str:
    return str(path.relative_to(CSRC))


def test_there_are_sources_in_known_folders():
    assert len(SOURCES) > 20
    assert {folder(path) for path in SOURCES} - {""} <= set(MAY_INCLUDE)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_includes_point_down(path):
    here = folder(path)
    for header, mark in includes(path):
        if mark != '"':
            continue
        assert (CSRC / header).is_file(), f'"{header}" is not a path from csrc/'
        there = folder(CSRC / header)
        if here:
            assert there == here or there in MAY_INCLUDE[here], f"{here} may not include {header}"


@pytest.mark.parametrize("path", [p for p in SOURCES if folder(p)], ids=name)
def test_no_python_below_the_bindings(path):
    python = [header for header, _ in includes(path) if PYTHON_HEADERS.match(header)]
    assert python == []


@pytest.mark.parametrize("path", [p for p in SOURCES if folder(p) in CORE], ids=name)
def test_the_core_knows_no_backend(path):
    backend = [header for header, _ in includes(path) if BACKEND_HEADERS.match(header)]
    assert backend == []


@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_headers_are_guarded(path):
    assert "#pragma once" in path.read_text()


def test_the_map_names_every_folder():
    described = (CSRC / "README.md").read_text()
    for path in CSRC.iterdir():
        if path.is_dir():
            assert re.search(rf"\b{path.name}/", described), f"csrc/README.md lacks {path.name}/"
