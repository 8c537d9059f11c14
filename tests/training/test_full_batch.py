"""train_full_batch_step: the CPU's step, whole or in parts, with axes named and cut."""

import pytest
import torch

import tiledev
from tests import support
from tiledev.models import DeepReLU
from tiledev.training import (
    AdamW,
    clone_model_weights,
    max_weight_delta,
    record_step,
    train_full_batch_step,
)

ROWS, FEATURES, CLASSES = 30, 8, 5


def model(device):
    return DeepReLU(FEATURES, 16, CLASSES, depth=3, seed=0).to(device)


def batch(device, kind="labels"):
    torch.manual_seed(3)
    x = torch.randn(ROWS, FEATURES).to(device)
    if kind == "probabilities":
        return x, torch.rand(ROWS, CLASSES).softmax(1).to(device)
    labels = torch.randint(CLASSES, (ROWS,))
    if kind == "ignored":
        labels[:17] = -100  # more in the first parts than in the last
    return x, labels.to(device)


def plain_steps(kind, steps, make, norm=None):
    """The same in PyTorch's words, on the CPU."""
    net, (x, y), losses = model("cpu"), batch("cpu", kind), []
    optimizer = make(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), norm)
        optimizer.step()
        losses.append(loss.item())
    return losses, net


@pytest.mark.parametrize("kind", ["labels", "ignored", "probabilities"])
@pytest.mark.parametrize("parts", [1, 4, 100])
def test_equals_the_cpu(kind, parts):
    want, reference = plain_steps(kind, 3, lambda params: torch.optim.SGD(params, lr=0.1))
    for device in {"cpu", support.DEVICE}:
        net = model(device)
        data = batch(device, kind)
        losses = [train_full_batch_step(net, *data, 0.1, grad_accum_steps=parts) for _ in want]
        assert losses == pytest.approx(want, abs=1e-5)
        assert all(isinstance(loss, float) for loss in losses)
        assert max_weight_delta(net, reference) < 1e-6


@pytest.mark.parametrize("ours", [False, True])
def test_an_optimizer_and_clipping(ours):
    want, reference = plain_steps("labels", 3, torch.optim.AdamW, norm=0.1)
    net = model(support.DEVICE)
    optimizer = (AdamW if ours else torch.optim.AdamW)(net.parameters())
    data = batch(support.DEVICE)
    losses = [train_full_batch_step(net, *data, optimizer, max_grad_norm=0.1) for _ in want]
    assert losses == pytest.approx(want, abs=1e-5)
    assert max_weight_delta(net, reference) < 1e-5


def test_clipping_a_plain_step():
    _, reference = plain_steps("labels", 1, lambda p: torch.optim.SGD(p, lr=1.0), norm=0.01)
    net = model(support.DEVICE)
    train_full_batch_step(net, *batch(support.DEVICE), 1, max_grad_norm=0.01)
    assert max_weight_delta(net, reference) < 1e-6
    assert max_weight_delta(net, model("cpu")) > 1e-4


def test_old_gradients_do_not_count():
    net, other = model(support.DEVICE), model(support.DEVICE)
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    for one in (net, other):
        train_full_batch_step(one, *batch(support.DEVICE), 0.1)
    assert max_weight_delta(net, other) == 0


@pytest.mark.tiledev_only
@pytest.mark.parametrize("parts", [1, 3])
def test_recording_reads_nothing(parts):
    net, data = model(support.DEVICE), batch(support.DEVICE)
    optimizer = AdamW(net.parameters(), max_grad_norm=1.0)
    support.synchronize()
    before = support.counters()["flushes"]
    loss = record_step(net, *data, optimizer, grad_accum_steps=parts)
    assert support.counters()["flushes"] - before == 1  # the one at the end of the step
    assert (loss.shape, loss.requires_grad) == ((), False)


NAMES = {"inputs": {0: "batch", 1: "features"}, "layers.0.weight": {0: "hidden"}}


@pytest.mark.tiledev_only
class TestAxes:
    @pytest.fixture(autouse=True)
    def automatic(self):
        yield
        tiledev.clear_axis_group_tiling()

    @pytest.mark.parametrize("parts", [1, 3])
    def test_names_and_tiles(self, capsys, parts):
        want, reference = plain_steps("labels", 1, lambda p: torch.optim.SGD(p, lr=0.1))
        net = model("tiledev")
        options = {"name_axis_groups": NAMES, "axis_group_tiling": {"batch": 7, "hidden": [5, 11]}}
        loss = train_full_batch_step(
            net,
            *batch("tiledev"),
            0.1,
            **options,
            print_axis_groups=True,
            grad_accum_steps=parts,
        )
        out = capsys.readouterr().out
        tiles = "7,7,7,7,2" if parts == 1 else "7,3"
        assert f"extent={ROWS // parts} name='batch' tiles={tiles} " in out
        assert "extent=16 name='hidden' tiles=5,11 " in out
        assert [loss] == pytest.approx(want, abs=1e-5)
        assert max_weight_delta(net, reference) < 1e-6

    def test_a_function_that_names(self, capsys):
        def name(net, inputs):
            seen.append((net, tuple(inputs.shape)))
            tiledev.set_axis_group_name(inputs, {0: "rows"})

        seen, net = [], model("tiledev")
        train_full_batch_step(
            net,
            *batch("tiledev"),
            0.1,
            name_axis_groups=name,
            print_axis_groups=True,
            grad_accum_steps=2,
        )
        assert seen == [(net, (15, FEATURES))] * 2
        assert capsys.readouterr().out.count("name='rows'") == 1

    def test_an_unknown_key(self):
        with pytest.raises(KeyError, match="name_axis_groups has 'head'; its keys are 'inputs'"):
            train_full_batch_step(
                model("tiledev"), *batch("tiledev"), 0.1, name_axis_groups={"head": {0: "a"}}
            )


def test_axes_do_nothing_on_the_cpu(capsys):
    train_full_batch_step(
        model("cpu"),
        *batch("cpu"),
        0.1,
        name_axis_groups=NAMES,
        axis_group_tiling={"nobody": 3},
        print_axis_groups=True,
    )
    assert capsys.readouterr().out == ""


class Wrapped(torch.nn.Module):
    """Returns an object with logits over a sequence, as language models do."""

    def __init__(self, returns="logits"):
        super().__init__()
        self.layer = torch.nn.Embedding(CLASSES, CLASSES)
        self.returns = returns

    def forward(self, x):
        return type("Output", (), {self.returns: self.layer(x)})


def test_an_output_with_logits():
    tokens = torch.randint(CLASSES, (4, 6))
    losses = []
    for device in ("cpu", support.DEVICE):
        torch.manual_seed(0)
        data = tokens.to(device)
        losses.append(train_full_batch_step(Wrapped().to(device), data, data, 0.1))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    with pytest.raises(TypeError, match="the model returned type; it must return logits"):
        train_full_batch_step(Wrapped("hidden").to(device), data, data, 0.1)


@pytest.mark.parametrize(
    ("error", "text", "change"),
    [
        (TypeError, "got str; pass a torch.optim.Optimizer or a learning", {"optimizer": "sgd"}),
        (TypeError, "got bool", {"optimizer": True}),
        (ValueError, "grad_accum_steps=0", {"grad_accum_steps": 0}),
        (ValueError, "max_grad_norm=-1", {"max_grad_norm": -1}),
        (ValueError, r"inputs \[30, 8\] and targets \[29\]", {"targets": torch.zeros(29)}),
    ],
)
def test_errors(error, text, change):
    inputs, targets = batch(support.DEVICE)
    targets, optimizer = change.pop("targets", targets), change.pop("optimizer", 0.1)
    with pytest.raises(error, match=rf"^\[train_full_batch_step\] .*{text}"):
        train_full_batch_step(model(support.DEVICE), inputs, targets, optimizer, **change)


class TestWeights:
    def test_clones_are_copies_on_the_cpu(self):
        net = torch.nn.BatchNorm1d(3).to(support.DEVICE)
        before = clone_model_weights(net)
        assert set(before) == set(net.state_dict())
        assert {value.device.type for value in before.values()} == {"cpu"}
        with torch.no_grad():
            net.weight.add_(2)
        assert max_weight_delta(net, before) == max_weight_delta(before, net) == 2
        net.load_state_dict(before)
        assert max_weight_delta(net, before) == 0
        other = clone_model_weights(net.cpu())
        other["weight"].add_(1)
        assert max_weight_delta(net, before) == 0

    def test_extremes(self):
        nan, inf = float("nan"), float("inf")
        for a, b, want in ((inf, inf, 0), (inf, -inf, inf), (1e300, -1e300, 2e300), (1, 3, 2)):
            one, other = (torch.tensor([value], dtype=torch.float64) for value in (a, b))
            assert max_weight_delta({"w": one}, {"w": other}) == want
        for a, b in ((nan, 0.0), (nan, nan)):
            values = [torch.tensor([1.0, value]) for value in (a, b)]
            delta = max_weight_delta(*({"a": value, "z": torch.ones(1)} for value in values))
            assert delta != delta
        assert max_weight_delta({}, {}) == 0
        assert max_weight_delta({"w": torch.ones(0)}, {"w": torch.ones(0)}) == 0

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^\[max_weight_delta\] only one of the two has b"):
            max_weight_delta({"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})
        with pytest.raises(ValueError, match=r"a has shape \[1\] in one and \[2\]"):
            max_weight_delta({"a": torch.ones(1)}, {"a": torch.ones(2)})
        with pytest.raises(TypeError, match="got list"):
            max_weight_delta([torch.ones(1)], {})
