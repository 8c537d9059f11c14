"""The examples of docs/ecosystem.md run, each on its own."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "ecosystem.md"
NEEDS = {
    "Hugging Face Trainer": ("transformers", "accelerate"),
    "accelerate": ("accelerate",),
    "PyTorch Lightning": ("lightning",),
    "peft": ("peft", "transformers"),
    "safetensors": ("safetensors",),
    "DataLoader": (),
    "torchmetrics": ("torchmetrics",),
    "TensorBoard": ("tensorboard",),
}


def sections() -> dict[str, list[str]]:
    """The code of each section."""
    _, *parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)
    code = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return {name: code.findall(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_every_section_is_here():
    assert {name: bool(blocks) for name, blocks in sections().items()} == dict.fromkeys(NEEDS, True)


@pytest.mark.tiledev_only
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NEEDS)
def test_examples(name, request, monkeypatch, tmp_path, capsys):
    for library in NEEDS[name]:
        pytest.importorskip(library, reason=f"{library}, of the extra `ecosystem`")
    monkeypatch.chdir(tmp_path)
    if "accelerate" in NEEDS[name]:  # the variable that an example sets goes with the test
        request.getfixturevalue("choose_device")("cpu")
    for block in sections()[name]:
        exec(compile(block, f"{PAGE.name}: {name}", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    if name in ("Hugging Face Trainer", "accelerate", "PyTorch Lightning", "peft"):
        assert "tiledev" in printed
