"""The examples of docs/training.md run."""

import re
from pathlib import Path

import pytest

import tiledev

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.tiledev_only
@pytest.mark.parametrize("index", range(4))
def test_example(index, tmp_path, monkeypatch, capsys):
    assert len(EXAMPLES) == 4
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[index], f"{PAGE.name}, example {index + 1}", "exec"), {})
    assert capsys.readouterr().out
    tiledev.clear_axis_group_tiling()
