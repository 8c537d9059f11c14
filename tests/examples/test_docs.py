"""The examples of docs/custom_ops.md run, one after the other, and print what they say."""

import ast
import re
from pathlib import Path

import pytest
import torch

import tiledev

PAGE = Path(__file__).parents[2] / "docs" / "custom_ops.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.tiledev_only
@pytest.mark.filterwarnings("ignore:.*cannot be recorded")
def test_examples(capsys):
    assert len(BLOCKS) == 4
    tiledev.shutdown_context()
    tiledev.reset_stats()
    names: dict[str, object] = {}
    printed = []
    for number, block in enumerate(BLOCKS, start=1):
        exec(compile(block, f"{PAGE.name}, example {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    recorded, own_ops, fallbacks, plan = printed
    assert ast.literal_eval(recorded) == ["aten::mul.Tensor", "docs::clip_rows"]
    assert ast.literal_eval(own_ops)[-3:] == ["aten::neg", "aten::mul.Tensor", "aten::exp"]
    assert ast.literal_eval(fallbacks) == {"docs::reversed_rows": 1}
    assert re.search(r"tiles of 4000 units.*\n +mul, docs::clip_rows, pow, sum$", plan, re.M)

    x, limits, loss = names["x"].cpu(), names["limits"].cpu().unsqueeze(1), names["loss"]
    want = (x * 2).clamp(-limits, limits).square().sum()
    torch.testing.assert_close(loss.cpu(), want)
    tiledev.shutdown_context()
