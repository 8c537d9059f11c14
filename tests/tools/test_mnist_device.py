"""The main job: MNIST trains on the device as on the CPU."""

import json
import re

import pytest

import tiledev
from tests.idx_files import write_mnist
from tiledev.tools.mnist import main
from tiledev.tools.mnist_report import LOSS_TOLERANCE, WEIGHT_TOLERANCE

pytestmark = pytest.mark.tiledev_only


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    write_mnist(folder, 300, packed=True)
    return folder


@pytest.fixture(autouse=True)
def own_context():
    """The command makes a context with settings of its own."""
    tiledev.shutdown_context()
    yield
    tiledev.shutdown_context()


def run(data_dir, out, *argv):
    """Runs the command; returns its exit status and its results."""
    status = main(["--data-dir", str(data_dir), "--output-dir", str(out), *argv])
    return status, json.loads((out / "results.json").read_text())


def check(status, results):
    cpu, device = results["phases"]
    assert (cpu["device"], device["device"]) == ("cpu", "tiledev")
    assert status == 0
    for ours, theirs in zip(device["losses"], cpu["losses"], strict=True):
        assert abs(ours - theirs) <= LOSS_TOLERANCE == 1e-5
    assert results["largest_weight_difference"] <= WEIGHT_TOLERANCE == 1e-6
    assert cpu["losses"][-1] < cpu["losses"][0]


def test_main_job(data_dir, tmp_path, capsys):
    status, results = run(data_dir, tmp_path)
    check(status, results)
    printed = capsys.readouterr().out
    for device in ("cpu", "tiledev"):
        found = re.findall(rf"^\[{device}\] epoch (\d)/5  loss=\d+\.\d+$", printed, re.M)
        assert found == ["1", "2", "3", "4", "5"]
    assert "cpu and tiledev agree" in printed
    assert results["phases"][1]["device_peak"] > 0


@pytest.mark.parametrize(
    "argv",
    [
        ["--batch-size", "64"],
        ["--grad-accum-steps", "4"],
        ["--batch-size", "128", "--grad-accum-steps", "3", "--momentum", "0"],
        ["--runtime-mode", "eager"],
        ["--ncpu", "1", "--depth", "2", "--hidden-dim", "33"],
        ["--depth", "1", "--restrict-cpu"],
    ],
    ids=" ".join,
)
def test_variants(data_dir, tmp_path, argv):
    check(*run(data_dir, tmp_path, "--epochs", "2", "--lr", "0.01", *argv))


def test_training_records_every_op(data_dir, tmp_path):
    before = dict(tiledev.fallback_stats())
    run(data_dir, tmp_path, "--epochs", "2", "--no-compare-torch")
    assert dict(tiledev.fallback_stats()) == before


def test_steps_after_the_second_compile_nothing(data_dir, tmp_path):
    """Plans outlive the context: what two steps made is all that twelve need."""
    for epochs in ("2", "12"):
        tiledev.shutdown_context()
        before = tiledev.plan_cache_stats()["misses"]
        run(data_dir, tmp_path, "--epochs", epochs, "--no-compare-torch")
        misses = tiledev.plan_cache_stats()["misses"] - before
    assert misses == 0, tiledev.explain_miss()


def test_no_compare(data_dir, tmp_path, capsys):
    status, results = run(data_dir, tmp_path, "--epochs", "1", "--no-compare-torch")
    assert status == 0
    assert [phase["device"] for phase in results["phases"]] == ["tiledev"]
    assert "[cpu]" not in capsys.readouterr().out


def test_axes_are_named_and_cut(data_dir, tmp_path, capsys):
    flags = ("--axis-tiling", "batch=100", "--axis-tiling", "hidden=7", "--print-axis-groups")
    run(data_dir, tmp_path, "--epochs", "2", *flags)
    out = capsys.readouterr().out
    assert "Pending graph: nodes=" in out
    assert "name='batch' tiles=100" in out
    assert "name='hidden' tiles=7,7," in out


def test_axes_of_a_last_batch_of_one(data_dir, tmp_path):
    flags = ("--batch-size", "299", "--axis-tiling", "batch=100", "--no-compare-torch")
    status, results = run(data_dir, tmp_path, "--epochs", "2", *flags)
    assert status == 0
    assert results["phases"][0]["steps"] == 4


def test_workers_that_are_not_to_be_had(data_dir, capsys):
    with pytest.raises(SystemExit) as error:
        main(["--data-dir", str(data_dir), "--ncuda", "1"])
    assert error.value.code == 2
    assert "tiledev-mnist: error: [init_context]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tiling", "message"),
    [
        ("rows=4", "there is no axis group 'rows'"),
        ("batch=4,5", "add up to 9, but the axis has extent 300"),
        ("hidden=4,5", "add up to 9, but the axis has extent 256"),
    ],
)
def test_tiles_that_do_not_fit(data_dir, capsys, tiling, message):
    with pytest.raises(SystemExit) as error:
        main(["--data-dir", str(data_dir), "--axis-tiling", tiling])
    assert error.value.code == 2
    found = capsys.readouterr()
    assert (
        f"argument --axis-tiling: {message if 'no axis' in message else 'the sizes'}" in found.err
    )
    assert message in found.err
    assert "epoch" not in found.out


def test_the_sizes_of_all_tiles(data_dir, tmp_path):
    flags = ("--axis-tiling", "batch=50,100", "--axis-tiling", "hidden=200,56")
    check(*run(data_dir, tmp_path, "--grad-accum-steps", "2", "--lr", "0.01", *flags))
