"""tiledev-mnist on the CPU alone: what it trains, prints and writes."""

import json
import re
import runpy
import sys

import pytest
import torch

from tests.idx_files import write_mnist
from tests.support import DEVICE
from tiledev.data import load_mnist
from tiledev.models import DeepReLU
from tiledev.tools import mnist, mnist_report
from tiledev.tools.mnist import main
from tiledev.tools.mnist_options import build_parser, parse_options
from tiledev.tools.mnist_train import Phase, train
from tiledev.training import max_weight_delta

SMALL = ["--device", "cpu", "--hidden-dim", "16", "--depth", "3", "--epochs", "3", "--lr", "0.01"]


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_mnist(folder, 100)
    return folder


def options(data_dir, *argv):
    return parse_options(build_parser(), [*SMALL, "--data-dir", str(data_dir), *argv])


def test_output(data_dir, tmp_path, capsys):
    out = tmp_path / "results"
    assert main([*SMALL, "--data-dir", str(data_dir), "--output-dir", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "DeepReLU 784-16-16-10 on 100 images" in printed
    losses = [float(x) for x in re.findall(r"^\[cpu\] epoch \d/3  loss=(\S+)$", printed, re.M)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert "[tiledev]" not in printed
    results = json.loads((out / "results.json").read_text())
    assert [round(loss, 6) for loss in results["phases"][0]["losses"]] == losses
    assert results["options"]["hidden_dim"] == 16
    assert "agree" not in results


def test_losses_are_those_of_a_plain_loop(data_dir):
    chosen = options(data_dir)
    data = load_mnist(data_dir)
    model = DeepReLU.mnist(16, 3, seed=0)
    phase = train(model, data, "cpu", chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen.lr, momentum=chosen.momentum)
    for seen in phase.losses:
        loss = torch.nn.functional.cross_entropy(model(data.images), data.labels)
        assert seen == loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert max_weight_delta(phase.weights, model) == 0


@pytest.mark.parametrize("parts", [2, 3, 100])
def test_accumulated_gradients_are_those_of_the_batch(data_dir, parts):
    data = load_mnist(data_dir)
    model = DeepReLU.mnist(16, 3, seed=0)
    whole = train(model, data, "cpu", options(data_dir))
    cut = train(model, data, "cpu", options(data_dir, "--grad-accum-steps", str(parts)))
    torch.testing.assert_close(cut.losses, whole.losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(cut.weights, whole.weights)


def test_batches_cover_every_image_once_an_epoch(data_dir, monkeypatch):
    seen = []

    def forward(self, x):
        seen.append(x)
        return x.sum(1, keepdim=True) * self.layers[0].weight.sum()

    monkeypatch.setattr(DeepReLU, "forward", forward)
    data = load_mnist(data_dir)
    data.labels.zero_()
    train(DeepReLU(784, 1, 1, 1), data, "cpu", options(data_dir, "--batch-size", "30"))
    batches, epochs = seen[:-1], 3
    assert [len(batch) for batch in batches] == [30, 30, 30, 10] * epochs
    orders = torch.stack([torch.cat(batches[4 * i : 4 * i + 4]) for i in range(epochs)])
    assert not torch.equal(orders[0], orders[1])
    for order in orders:
        assert torch.equal(order.sum(1).sort()[0], data.images.sum(1).sort()[0])


def test_a_batch_of_more_images_than_there_are_is_all_of_them(data_dir):
    data = load_mnist(data_dir)
    model = DeepReLU.mnist(16, 3, seed=0)
    whole = train(model, data, "cpu", options(data_dir))
    assert (
        train(model, data, "cpu", options(data_dir, "--batch-size", "200")).losses == whole.losses
    )


def test_plot(data_dir, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `examples` is not installed")
    argv = [*SMALL, "--data-dir", str(data_dir), "--output-dir", str(tmp_path), "--plot"]
    assert main(argv) == 0
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mnist.importlib.util, "find_spec", lambda name: None)
    argv = [*SMALL, "--data-dir", str(data_dir), "--output-dir", str(tmp_path), "--plot"]
    with pytest.raises(SystemExit):
        main(argv)
    assert 'pip install "tiledev[examples]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data-dir", "/nothing/here"], "error: [load_mnist] /nothing/here has none of"),
        (["--grad-accum-steps", "101"], "argument --grad-accum-steps: 101 parts of 100 images"),
    ],
)
def test_errors_are_one_line(data_dir, capsys, argv, message):
    with pytest.raises(SystemExit) as error:
        main([*SMALL, "--data-dir", str(data_dir), *argv])
    assert error.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_damaged_data(data_dir, capsys):
    (data_dir / "train-images-idx3-ubyte").write_bytes(b"nonsense")
    with pytest.raises(SystemExit):
        main([*SMALL, "--data-dir", str(data_dir)])
    assert "not an IDX file" in capsys.readouterr().err


def phases(*differences: float) -> list[Phase]:
    weights = {"a": torch.zeros(2, 2), "b": torch.ones(3)}
    cpu = Phase("cpu", 2, [1.0, 0.5], [0.1, 0.1], weights)
    loss, weight = differences
    moved = {"a": weights["a"], "b": weights["b"] + torch.tensor([0.0, weight, 0.0])}
    return [cpu, Phase(DEVICE, 2, [1.0, 0.5 + loss], [0.2, 0.2], moved, device_peak=1 << 20)]


@pytest.mark.parametrize(
    ("loss", "weight", "expected"),
    [
        (0.0, 0.0, True),
        (9e-6, 9e-7, True),
        (2e-5, 0.0, False),
        (0.0, 2e-6, False),
        (float("nan"), 0.0, False),
        (0.0, float("nan"), False),
    ],
)
def test_agreement(loss, weight, expected, capsys):
    pair = phases(loss, weight)
    assert mnist_report.agree(pair) is expected
    assert mnist_report.disagree(pair) is not expected
    mnist_report.print_report(pair)
    printed = capsys.readouterr().out
    assert ("DO NOT AGREE" in printed) is not expected
    assert "largest weight difference" in printed
    assert "1.0 MiB" in printed


def test_disagreement_is_the_exit_status(data_dir, monkeypatch):
    monkeypatch.setattr(mnist, "_train_all", lambda data, options: phases(1.0, 0.0))
    assert main([*SMALL, "--data-dir", str(data_dir)]) == 1


def test_the_example_is_the_command(monkeypatch, capsys, request):
    script = request.config.rootpath / "examples" / "train_deep_relu_mnist.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as error:
        runpy.run_path(str(script), run_name="__main__")
    assert error.value.code == 0
    assert "--axis-tiling NAME=SIZES" in capsys.readouterr().out
