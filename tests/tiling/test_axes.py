"""Named axis groups and the tiles that users choose."""

import numpy as np
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


class TestExtentOne:
    """Dimensions that cannot be cut: their names change nothing, and meet no other."""

    def test_a_batch_of_one(self):
        w = torch.randn(16, 24, device=DEVICE)
        tiledev.set_axis_group_name(w, {0: "hidden", 1: "features"})
        for rows in (5, 1, 7):
            x = torch.randn(rows, 24, device=DEVICE)
            tiledev.set_axis_group_name(x, {0: "batch"})
            tiledev.set_axis_group_tiling("batch", 3)
            y = (x @ w.t()).relu()
            groups = {group.name: group for group in tiledev.axis_groups()}
            assert groups["features"].extent == 24
            assert groups["hidden"].extent == 16
            assert rows == 1 or groups["batch"].tiles[0] == 3
            tiledev.wait()
            torch.testing.assert_close(y.cpu(), (x.cpu() @ w.cpu().t()).relu())

    @pytest.mark.parametrize("shape", [(1, 24), (24, 1), (1, 1), (1, 1, 24)])
    def test_all_dimensions_have_names(self, shape):
        x = torch.randn(shape, device=DEVICE)
        names = {dim: f"{'unit' if size == 1 else 'long'} {dim}" for dim, size in enumerate(shape)}
        tiledev.set_axis_group_name(x, names)
        y = x * 2
        got = {group.name for group in tiledev.axis_groups()}
        assert got == {name for name in names.values() if name.startswith("long")}
        torch.testing.assert_close(y.cpu(), x.cpu() * 2)

    def test_a_layer_with_one_output(self):
        x, w = torch.randn(12, 20, device=DEVICE), torch.randn(1, 20, device=DEVICE)
        tiledev.set_axis_group_name(w, {0: "the output", 1: "inputs"})
        tiledev.set_axis_group_name(x, {0: "samples", 1: "inputs"})
        tiledev.set_axis_group_tiling("samples", [5, 7])
        tiledev.set_axis_group_tiling("the output", 4)
        y = F.linear(x, w)
        torch.testing.assert_close(y.cpu(), F.linear(x.cpu(), w.cpu()))

    def test_it_says_nothing_of_the_others_of_its_name(self):
        x, bias = torch.randn(12, 5, device=DEVICE), torch.randn(1, 5, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows of both"})
        tiledev.set_axis_group_tiling("rows of both", [5, 7])
        tiledev.set_axis_group_name(bias, {0: "rows of both"})
        tiledev.set_axis_group_tiling("rows of both", [4, 8])
        torch.testing.assert_close((x + bias).cpu(), x.cpu() + bias.cpu())

    def test_expanded_dimensions(self):
        x = torch.randn(1, 1, 8, device=DEVICE)
        wide = x.expand(5, 6, 8)
        tiledev.set_axis_group_name(wide, {0: "fives", 1: "sixes", 2: "eights"})
        tiledev.set_axis_group_tiling("fives", [2, 3])
        with pytest.raises(ValueError, match=r"5[\s\S]*extent 6"):
            tiledev.set_axis_group_tiling("sixes", [2, 3])
        torch.testing.assert_close((wide * 2).cpu(), wide.cpu() * 2)


class TestViews:
    """Sizes of tiles refer to the axis as it was named, whatever its extent in a view."""

    @pytest.mark.parametrize("sizes", [[100, 156, 256], [128, 128, 256], 100, 128, 64])
    @pytest.mark.parametrize("shape", [(8, 64, 64), (512, 64), (2, 256, 64), (1024, 32)])
    def test_products_and_views_of_them(self, sizes, shape):
        x, w = torch.randn(512, 128, device=DEVICE), torch.randn(128, 64, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "tokens"})
        tiledev.set_axis_group_tiling("tokens", sizes)
        y = (x @ w).view(shape).softmax(-1)
        group = next(group for group in tiledev.axis_groups() if group.name == "tokens")
        assert group.extent == 512
        assert sum(group.tiles) == 512
        tiledev.wait()
        torch.testing.assert_close(y.cpu(), (x.cpu() @ w.cpu()).view(shape).softmax(-1))
        z = y * 2  # the name is that of a result with another extent now
        tiledev.wait()
        torch.testing.assert_close(z.cpu(), y.cpu() * 2)

    @pytest.mark.parametrize("sizes", [[100, 156], [101, 155], 100, 64])
    @pytest.mark.parametrize(
        "view",
        [
            lambda p: p[::2],
            lambda p: p[1::2],
            lambda p: p.view(128, 128),
            lambda p: p.view(2, 128, 64),
            lambda p: p.flatten(),
            lambda p: p.unfold(0, 8, 8),
            lambda p: p.t(),
        ],
        ids=["even", "odd", "pairs", "halves", "flat", "windows", "transposed"],
    )
    def test_views_of_a_named_tensor(self, view, sizes):
        p = torch.randn(256, 64, device=DEVICE)
        tiledev.set_axis_group_name(p, {0: "rows"})
        tiledev.set_axis_group_tiling("rows", sizes)
        got = [view(p) * 2, view(p).sum(0), view(p).sum(-1), (view(p) + 1).relu().softmax(-1)]
        tiledev.wait()
        on = view(p.cpu())
        want = [on * 2, on.sum(0), on.sum(-1), (on + 1).relu().softmax(-1)]
        torch.testing.assert_close([t.cpu() for t in got], want)

    def test_sizes_are_scaled(self):
        q = torch.randn(512, 8, 16, device=DEVICE)
        tiledev.set_axis_group_name(q, {0: "tokens"})
        tiledev.set_axis_group_tiling("tokens", 128)
        y = q.view(8, 64, 8, 16).transpose(1, 2).softmax(-1)  # four tiles of two of the eight
        tiledev.wait()
        assert "4 tiles of 8 units" in tiledev.explain()
        torch.testing.assert_close(y.cpu(), q.cpu().view(8, 64, 8, 16).transpose(1, 2).softmax(-1))

    def test_tiles_that_do_not_fit_a_view(self):
        x = torch.randn(512, 128, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "tokens"})
        tiledev.set_axis_group_tiling("tokens", [100, 412])
        a = (x * 2).relu()
        b = x.view(8, 64, 128).transpose(1, 2).softmax(-1)
        tiledev.wait()
        assert "2 tiles of 65536 units" in tiledev.explain()
        torch.testing.assert_close(a.cpu(), (x.cpu() * 2).relu())
        torch.testing.assert_close(b.cpu(), x.cpu().view(8, 64, 128).transpose(1, 2).softmax(-1))

    def test_another_extent_in_the_next_step(self):
        w = torch.randn(16, 8, device=DEVICE)

        def step(rows):
            x = torch.randn(rows, 16, device=DEVICE)
            tiledev.set_axis_group_name(x, {0: "a batch"})
            y = (x @ w).view(rows // 4, 4, 8).softmax(-1)
            tiledev.wait()
            torch.testing.assert_close(y.cpu(), (x.cpu() @ w.cpu()).view(y.shape).softmax(-1))
            return x

        x = step(12)
        tiledev.set_axis_group_tiling("a batch", [4, 8])
        step(12)
        with pytest.raises(ValueError, match=r"12[\s\S]*extent 8"):
            step(8)
        tiledev.set_axis_group_tiling("a batch", 4)
        step(8)
        step(12)
        step(8)
        tiledev.set_axis_group_tiling("a batch", [4, 4])
        y = x * 2
        with pytest.raises(ValueError, match=r"8[\s\S]*extent 12"):
            tiledev.wait()
        tiledev.set_axis_group_tiling("a batch", 4)
        torch.testing.assert_close(y.cpu(), x.cpu() * 2)

    def test_training_with_views(self):
        def run(device):
            torch.manual_seed(3)
            x = torch.randn(24, 16).to(device)
            layer = torch.nn.Linear(16, 12).to(device)
            if device != "cpu":
                tiledev.set_axis_group_name(x, {0: "positions"})
                tiledev.set_axis_group_tiling("positions", [7, 5, 12])
            for _ in range(3):
                h = layer(x).view(4, 6, 3, 4).transpose(1, 2)
                (h @ h.transpose(-1, -2)).softmax(-1).square().mean().backward()
                torch.optim.SGD(layer.parameters(), lr=1.0).step()
            return [p.detach().cpu() for p in layer.parameters()]

        torch.testing.assert_close(run(DEVICE), run("cpu"))


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

    def test_what_nobody_can_see_any_more_is_in_no_group(self):
        x, w = torch.randn(6, 4, device=DEVICE), torch.randn(4, 3, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "seen"})
        tiledev.wait()
        kept = x * 2
        want = tiledev.axis_groups()
        lost = (torch.ones(7, 4, device=DEVICE) @ w).softmax(1)
        assert len(tiledev.axis_groups()) > len(want)
        del lost
        assert tiledev.axis_groups() == want
        del kept
        assert tiledev.axis_groups() == []
        assert "axis_groups=0" in tiledev.format_axis_groups()

    def test_what_it_is_made_from_stays(self):
        x = torch.randn(6, 4, device=DEVICE)
        tiledev.wait()
        y = (x * 2).relu().sum()  # the intermediate ones have no tensors
        assert sorted(group.members for group in tiledev.axis_groups()) == [3, 3]
        del y


class TestTakingNamesBack:
    def test_another_name(self):
        x = torch.randn(6, 4, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "first", 1: "kept"})
        tiledev.wait()
        tiledev.set_axis_group_name(x, {0: None})
        y = x * 2
        assert {group.name for group in tiledev.axis_groups()} == {None, "kept"}
        tiledev.set_axis_group_name(x, {-2: "second"})
        assert {group.name for group in tiledev.axis_groups()} == {"second", "kept"}
        torch.testing.assert_close(y.cpu(), x.cpu() * 2)

    def test_what_ops_tied_loses_the_name(self):
        x, w = torch.randn(6, 4, device=DEVICE), torch.randn(6, 3, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "left"})
        y = x.relu()
        tiledev.wait()
        tiledev.set_axis_group_name(w, {0: "right"})
        tiledev.set_axis_group_name(x, {0: None})
        z = y.t() @ w  # 'left' and 'right' would meet
        assert [group.name for group in tiledev.axis_groups() if group.extent == 6] == ["right"]
        torch.testing.assert_close(z.cpu(), y.cpu().t() @ w.cpu())

    def test_it_stays_where_another_tensor_was_named(self):
        x, w = torch.randn(6, 4, device=DEVICE), torch.randn(6, 3, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "both"})
        tiledev.set_axis_group_name(w, {0: "both"})
        y = w.relu()
        tiledev.wait()
        tiledev.set_axis_group_name(x, {0: None})
        z = y * 2
        assert {group.name for group in tiledev.axis_groups()} == {None, "both"}
        del z

    def test_tiles_are_automatic_again(self):
        x = torch.randn(512, 256, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "cut"})
        tiledev.set_axis_group_tiling("cut", [12, 100, 400])
        y = (x * 2).relu()
        tiledev.wait()
        assert "3 tiles of" in tiledev.explain()
        tiledev.set_axis_group_name(x, {0: None})
        del y
        again = (x * 2).relu()
        tiledev.wait()
        assert "3 tiles of" not in tiledev.explain()
        del again

    def test_dimensions_without_a_name(self):
        x = torch.randn(1, 6, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: None, 1: None})
        tiledev.set_axis_group_name(x.expand(3, 6), {0: None})
        tiledev.set_axis_group_name(x, {1: "named"})
        tiledev.set_axis_group_name(x, {0: None})  # of extent 1, with the span of the other
        y = x + 1
        assert "named" in {group.name for group in tiledev.axis_groups()}
        assert y is not None

    def test_all_or_none(self):
        x, w = torch.randn(6, 4, device=DEVICE), torch.randn(6, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows", 1: "columns"})
        tiledev.set_axis_group_name(w, {0: "rows"})
        y = x * w[:, None]
        with pytest.raises(ValueError, match=r"'lines'[\s\S]*'rows'|'rows'[\s\S]*'lines'"):
            tiledev.set_axis_group_name(x, {1: None, 0: "lines"})
        assert {group.name for group in tiledev.axis_groups()} == {"rows", "columns"}
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
        with pytest.raises(ValueError, match="clear_axis_group_tiling"):
            tiledev.clear_axis_group_tiling("")

    @pytest.mark.parametrize(
        ("names", "error"),
        [({2: "a"}, IndexError), ({-3: "a"}, IndexError), ({0: ""}, ValueError)],
    )
    def test_bad_names(self, names, error):
        with pytest.raises(error, match="set_axis_group_name"):
            tiledev.set_axis_group_name(torch.zeros(2, 2, device=DEVICE), names)

    def test_a_tensor_without_dimensions(self):
        x = torch.tensor(3.0, device=DEVICE)
        with pytest.raises(IndexError, match="0 dimensions; it has none"):
            tiledev.set_axis_group_name(x, {0: "a"})
        tiledev.set_axis_group_name(x, {})

    @pytest.mark.parametrize(
        "bad", [{5: "x"}, {1: ""}, {1: 3}, {"1": "x"}, {-2: "x"}, {1: "of six"}]
    )
    def test_all_names_or_none(self, bad):
        six = torch.zeros(6, device=DEVICE)
        tiledev.set_axis_group_name(six, {0: "of six"})
        tiledev.set_axis_group_tiling("of six", [2, 4])
        x = torch.zeros(6, 9, device=DEVICE)
        with pytest.raises((ValueError, IndexError, TypeError), match="set_axis_group"):
            tiledev.set_axis_group_name(x, {0: "half a call", **bad})
        with pytest.raises(ValueError, match="half a call"):
            tiledev.set_axis_group_tiling("half a call", 3)
        tiledev.set_axis_group_name(x, {0: "another"})
        tiledev.wait()

    def test_tensors_elsewhere(self):
        with pytest.raises(TypeError, match="cpu"):
            tiledev.set_axis_group_name(torch.zeros(2), {0: "a"})

    @pytest.mark.parametrize("sizes", [0, -1, [], [0, 4], [3, 2], [-1, 5], [4, 1]])
    def test_bad_sizes(self, sizes):
        x = torch.zeros(4, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "four"})
        with pytest.raises(ValueError, match="set_axis_group_tiling"):
            tiledev.set_axis_group_tiling("four", sizes)

    @pytest.mark.parametrize("sizes", [True, 2.0, [2.0, 2.0], [True, 3], "4", None, np.float64(2)])
    def test_sizes_that_are_no_ints(self, sizes):
        x = torch.zeros(4, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "four"})
        with pytest.raises(TypeError, match="set_axis_group_tiling"):
            tiledev.set_axis_group_tiling("four", sizes)

    @pytest.mark.parametrize("sizes", [2**63, 10**30, [2**63], [2**62, 2**62], [4, 2**63 - 1]])
    def test_huge_sizes(self, sizes):
        x = torch.zeros(4, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "four"})
        with pytest.raises(ValueError, match=r"set_axis_group_tiling[\s\S]*'four'"):
            tiledev.set_axis_group_tiling("four", sizes)
        tiledev.set_axis_group_tiling("four", 2**63 - 1)
        torch.testing.assert_close((x + 1).cpu(), x.cpu() + 1)

    @pytest.mark.parametrize(
        "sizes", [np.int64(3), [np.int32(1), np.int64(3)], (1, 3), range(1, 4, 2)]
    )
    def test_integers_of_other_types(self, sizes):
        x = torch.zeros(4, 2, device=DEVICE)
        tiledev.set_axis_group_name(x, {np.int64(0): "four"})
        tiledev.set_axis_group_tiling("four", sizes)
        y = x + 1
        group = next(group for group in tiledev.axis_groups() if group.name == "four")
        assert group.tiles in {(3, 1), (1, 3)}
        assert y is not None

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
