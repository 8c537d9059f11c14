"""What the installed package tells pip and torch about itself."""

import importlib.metadata
import importlib.resources
import re

import pytest

import tiledev


@pytest.fixture(scope="module")
def distribution():
    try:
        return importlib.metadata.distribution("tiledev")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is built in place and not installed")


def test_requires_the_torch_minor_version_that_it_was_built_with(distribution):
    built = tiledev.built_info().torch_built
    minor = ".".join(built.split(".")[:2])
    torch = [line for line in distribution.requires if re.match(r"torch\b", line)]
    assert torch == [f"torch=={minor}.*"]


def test_version(distribution):
    assert distribution.version == tiledev.__version__


def test_extras(distribution):
    extras = {"dev", "ecosystem", "examples", "models", "test"}
    assert set(distribution.metadata.get_all("Provides-Extra")) == extras


@pytest.mark.parametrize("group", ["torch.backends", "torch_dynamo_backends", "console_scripts"])
def test_entry_points_load(distribution, group):
    points = distribution.entry_points.select(group=group)
    assert [point.name for point in points] == [
        "tiledev-mnist" if group == "console_scripts" else "tiledev"
    ]
    for point in points:
        assert callable(point.load())


def test_types_come_along():
    package = importlib.resources.files("tiledev")
    assert {"py.typed", "_C.pyi"} <= {entry.name for entry in package.iterdir()}
