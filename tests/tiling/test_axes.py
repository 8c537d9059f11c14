"""Named axis groups and the tiles that users choose."""

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support

DEVICE = support.DEVICE


@pytest.fixture(autouse=True)
def automatic_tiles():
    tiledev.wait()
    yield
    tiledev.reset_graph()
    tiledev.clear_axis_group_tiling()


def network(device, seed=0):
    torch.manual_seed(seed)
    layers = [
        torch.nn.Linear(20, 16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 5),
    ]
    return torch.nn.Sequential(*layers).to(device)


def name_weights(model):
    weights = [p for p in model.parameters() if p.dim() == 2]
    for i, weight in enumerate(weights):
        outer = "classes" if i + 1 == len(weights) else "hidden"
        tiledev.set_axis_group_name(weight, {0: outer, 1: "features" if i == 0 else "hidden"})


def train(device, steps=3, rows=12, prepare=lambda model, x: None):
    model = network(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 20, generator=generator).to(device)
    y = torch.randint(0, 5, (rows,), generator=generator).to(device)
    prepare(model, x)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.cpu() for loss in losses], [p.detach().cpu() for p in model.parameters()]


def assert_same_training(tiling, **kwargs):
    def prepare(model, x):
        name_weights(model)
        tiledev.set_axis_group_name(x, {0: "batch", 1: "features"})
        for name, sizes in tiling.items():
            tiledev.set_axis_group_tiling(name, sizes)

    want = train("cpu", **kwargs)
    got = train(DEVICE, prepare=prepare, **kwargs)
    torch.testing.assert_close(got, want)
    return got


class TestTiling:
    @pytest.mark.parametrize(
        "tiling",
        [
            {"batch": [3, 4, 5]},
            {"batch": 5},
            {"hidden": [7, 9]},
            {"batch": [6, 6], "hidden": 4, "features": 7, "classes": [2, 3]},
        ],
    )
    def test_training_is_the_same(self, tiling):
        assert_same_training(tiling)

    def test_the_tiles_are_the_ones_asked_for(self):
        x = torch.randn(12, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows of this"})
        tiledev.set_axis_group_tiling("rows of this", [2, 3, 7])
        y = (x * 2).relu()
        tiledev.wait()
        assert "3 tiles of 12 units" in tiledev.explain() or "3 tiles of 96" in tiledev.explain()
        torch.testing.assert_close(y.cpu(), (x.cpu() * 2).relu())

    def test_retiling_any_time(self):
        x = torch.randn(24, 10, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "again"})
        want = F.softmax(x.cpu() @ x.cpu().t(), -1).sum(0)
        for sizes in ([24], 5, [1, 23], 24, 100, [12, 12]):
            tiledev.set_axis_group_tiling("again", sizes)
            torch.testing.assert_close(F.softmax(x @ x.t(), -1).sum(0).cpu(), want)

    def test_same_bits_for_any_number_of_workers(self):
        results = []
        for workers in (1, 2, 4):
            tiledev.shutdown_context()
            tiledev.init_context(workers)
            results.append(assert_same_training({"batch": [2, 3, 3, 4]}))
        tiledev.shutdown_context()
        for losses, weights in results[1:]:
            for a, b in zip(losses + weights, results[0][0] + results[0][1], strict=True):
                assert torch.equal(a, b)

    def test_names_hold_across_steps(self):
        def prepare(model, x):
            name_weights(model)
            tiledev.set_axis_group_name(x, {0: "batch"})
            tiledev.set_axis_group_tiling("batch", 4)

        train(DEVICE, prepare=prepare, steps=1)
        before = tiledev.plan_cache_stats()["misses"]
        train(DEVICE, prepare=prepare, steps=6)
        assert tiledev.plan_cache_stats()["misses"] - before <= 4


class TestGroups:
    def test_ops_tie_dimensions(self):
        x, w = torch.randn(6, 4, device=DEVICE), torch.randn(4, 3, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "batch", -1: "inner"})
        tiledev.wait()
        y = (x @ w).relu().view(2, 3, 3)
        groups = {group.name: group for group in tiledev.axis_groups()}
        assert groups["batch"].members >= 3
        assert groups["inner"].extent == 4
        text = tiledev.format_axis_groups()
        assert text.startswith("Pending graph: nodes=2, tensors=4, axis_groups=3, tiled=0/3\n")
        assert "extent=6 name='batch' tiles=auto members=3" in text
        assert y is not None

    def test_tiles_are_shown(self, capsys):
        x = torch.randn(4, 2, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "shown"})
        tiledev.set_axis_group_tiling("shown", [1, 1, 2])
        y = x + 1
        tiledev.print_axis_groups()
        out = capsys.readouterr().out
        assert "extent=4 name='shown' tiles=1,1,2 members=2" in out
        assert "tiled=1/2" in out
        assert y is not None


class TestErrors:
    def test_two_names_for_one_dimension(self):
        x = torch.randn(3, 2, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "one"})
        tiledev.set_axis_group_name(x, {0: "one"})
        with pytest.raises(ValueError, match=r"'two'[\s\S]*'one'"):
            tiledev.set_axis_group_name(x, {0: "two"})

    def test_two_names_that_meet(self):
        x, y = torch.randn(3, device=DEVICE), torch.randn(3, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "left"})
        tiledev.wait()
        z = x + y
        with pytest.raises(ValueError, match=r"'left'[\s\S]*'right'|'right'[\s\S]*'left'"):
            tiledev.set_axis_group_name(y, {0: "right"})
        torch.testing.assert_close(z.cpu(), x.cpu() + y.cpu())

    def test_unknown_names(self):
        with pytest.raises(ValueError, match="nobody_named_this"):
            tiledev.set_axis_group_tiling("nobody_named_this", 4)
        with pytest.raises(ValueError, match="nobody_named_this"):
            tiledev.clear_axis_group_tiling("nobody_named_this")

    @pytest.mark.parametrize(
        ("names", "error"),
        [({2: "a"}, IndexError), ({-3: "a"}, IndexError), ({0: ""}, ValueError)],
    )
    def test_bad_names(self, names, error):
        with pytest.raises(error, match="set_axis_group_name"):
            tiledev.set_axis_group_name(torch.zeros(2, 2, device=DEVICE), names)

    def test_tensors_elsewhere(self):
        with pytest.raises(TypeError, match="cpu"):
            tiledev.set_axis_group_name(torch.zeros(2), {0: "a"})

    @pytest.mark.parametrize("sizes", [0, -1, [], [0, 4], [3, 2], [-1, 5], [4, 1]])
    def test_bad_sizes(self, sizes):
        x = torch.zeros(4, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "four"})
        with pytest.raises(ValueError, match="set_axis_group_tiling"):
            tiledev.set_axis_group_tiling("four", sizes)

    def test_a_last_batch_of_another_size(self):
        x = torch.randn(4, 3, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "varying"})
        tiledev.set_axis_group_tiling("varying", [2, 2])
        short = torch.randn(3, 3, device=DEVICE)
        with pytest.raises(ValueError, match=r"4[\s\S]*extent 3"):
            tiledev.set_axis_group_name(short, {0: "varying"})
        tiledev.set_axis_group_tiling("varying", 2)
        tiledev.set_axis_group_name(short, {0: "varying"})
        torch.testing.assert_close((short * 2).relu().cpu(), (short.cpu() * 2).relu())
