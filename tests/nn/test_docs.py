"""The examples of docs/nn.md run, one after the other."""

import re
from pathlib import Path

import pytest

from tiledev import nn

PAGE = Path(__file__).parents[2] / "docs" / "nn.md"


@pytest.mark.tiledev_only
def test_examples():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


@pytest.mark.parametrize("name", nn.__all__)
def test_every_name_is_on_the_page(name):
    assert f"`{name}`" in PAGE.read_text()
