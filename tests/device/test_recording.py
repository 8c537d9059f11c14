"""What is recorded, what is dropped, and what a readout runs."""

import pytest
import torch

import tiledev
from tests import support
from tests.device.models import mlp

pytestmark = pytest.mark.tiledev_only


@pytest.fixture(autouse=True)
def nothing_pending():
    support.settle()
    tiledev.reset_stats()
    yield
    support.settle()


def ones(*shape):
    return torch.ones(*shape, device=support.DEVICE)


def recorded_by(body):
    """Nodes that `body` records, by op; its result is kept alive while counting."""
    before = dict(support.extension().recorded_stats())
    kept = body()
    after = dict(support.extension().recorded_stats())
    del kept
    return support.stats_since(before, after)


class TestViews:
    def test_no_node_for_a_view(self):
        x = ones(4, 6)
        assert not recorded_by(
            lambda: [
                x[1:],
                x.t(),
                x.view(-1),
                x.reshape(2, 12),
                x.expand(3, 4, 6),
                x.unfold(0, 2, 1),
                x.diagonal(),
                x.as_strided((2, 2), (1, 1)),
                x.unsqueeze(0).squeeze(),
                x.split(2),
                x.detach(),
                x.view(torch.int32),
                torch.view_as_complex(x.view(4, 3, 2)),
                x.permute(1, 0)[2].unbind(),
                x.contiguous(),
                x.to(support.DEVICE),
            ]
        )

    def test_one_node_for_an_op(self):
        x = ones(4, 6)
        assert sum(recorded_by(lambda: x + 1).values()) == 1
        assert sum(recorded_by(lambda: x.t().contiguous()).values()) == 1
        assert sum(recorded_by(lambda: x.mul_(2)).values()) == 1
        assert sum(recorded_by(lambda: torch.nn.functional.layer_norm(x, (6,))).values()) == 1
        assert sum(recorded_by(lambda: torch.linalg.qr(x)).values()) == 1
        assert not recorded_by(lambda: torch.empty(3, device=support.DEVICE))

    def test_convolution_and_attention_stay_whole(self):
        x, w = ones(1, 2, 6, 6), ones(2, 2, 3, 3)
        assert sum(recorded_by(lambda: torch.conv2d(x, w)).values()) == 1
        attention = torch.nn.functional.scaled_dot_product_attention
        assert sum(recorded_by(lambda: attention(x, x, x)).values()) <= 2


class TestDeadNodes:
    def test_results_that_nobody_holds_are_dropped(self):
        before = support.counters()
        x = ones(3)
        for _ in range(10):
            x * 5
        kept = x + 1
        support.synchronize()
        after = support.counters()
        assert after["nodes_dropped"] - before["nodes_dropped"] >= 10
        assert after["nodes_run"] - before["nodes_run"] <= 2
        assert kept.tolist() == [2, 2, 2]

    def test_a_write_to_a_living_view_is_kept(self):
        base = torch.zeros(4, device=support.DEVICE)
        view = base[1:3]
        del base
        view.add_(1)
        view[:1].mul_(5)
        support.synchronize()
        assert view.tolist() == [5, 1]

    def test_random_ops_draw_even_if_dead(self):
        torch.manual_seed(0)
        torch.rand(3, device=support.DEVICE)
        second = torch.rand(3, device=support.DEVICE)
        torch.manual_seed(0)
        torch.rand(3)
        assert torch.equal(second.cpu(), torch.rand(3))

    def test_a_dead_chain_goes_as_a_whole(self):
        x = ones(3)
        y = x
        for _ in range(100):
            y = y + 1
        del y
        support.synchronize()
        assert support.counters()["nodes_dropped"] >= 100


class TestReadout:
    def test_item_twice_runs_each_node_once(self):
        x = (ones(3) + 1).sum()
        assert x.item() == 6
        ran = support.counters()["nodes_run"]
        assert x.item() == 6
        assert str(x) == f"tensor(6., device='{support.DEVICE}:0')"
        assert support.counters()["nodes_run"] == ran

    def test_only_ancestors_run(self):
        x, y = ones(3), ones(3)
        support.synchronize()
        first, second = x + 1, y * 5
        third = first.sum()
        names = tiledev.pending_op_names()
        assert third.item() == 6
        assert any("mul" in name for name in names)
        assert [name for name in tiledev.pending_op_names() if "mul" in name]
        assert not [name for name in tiledev.pending_op_names() if "add" in name]
        assert second.tolist() == [5, 5, 5]

    def test_an_earlier_reader_of_a_later_written_buffer(self):
        x = ones(3)
        before = x + 1
        x.mul_(10)
        assert x.tolist() == [10, 10, 10]
        assert before.tolist() == [2, 2, 2]

    def test_a_readout_leaves_no_trace(self):
        x = ones(3)
        support.synchronize()
        for read in (x.cpu, x.tolist, lambda: x[0].item(), lambda: str(x), lambda: bool(x.any())):
            read()
        assert not tiledev.has_pending_graph()
        assert tiledev.pending_op_names() == []
        y = x + 1
        y.cpu()
        assert not tiledev.has_pending_graph()

    def test_printing_compiles_little(self):
        x = torch.randn(50, 50).to(support.DEVICE)
        support.synchronize()
        before = support.counters()["nodes_recorded"]
        repr(x)
        assert support.counters()["nodes_recorded"] - before <= 1

    def test_reading_does_not_wait_for_what_is_pending(self):
        x = ones(3)
        support.synchronize()
        pending = x + 1
        assert x.tolist() == [1, 1, 1]
        assert tiledev.has_pending_graph()
        assert pending.tolist() == [2, 2, 2]


class TestPlans:
    def train(self, steps, read=True):
        torch.manual_seed(0)
        net = mlp(support.DEVICE)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        x, y = ones(8, 4), ones(8, 2)
        for _ in range(steps):
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if read:
                loss.item()
            yield tiledev.plan_cache_stats()
        support.synchronize()

    @pytest.mark.parametrize("read", [True, False])
    def test_later_steps_compile_nothing(self, read):
        stats = list(self.train(6, read))
        assert stats[2]["misses"] == stats[-1]["misses"]
        assert stats[-1]["hits"] > stats[2]["hits"]

    def test_scalars_are_no_part_of_the_key(self):
        x = ones(3)
        for step in range(5):
            assert (x * (step + 0.5)).tolist() == [step + 0.5] * 3
        assert tiledev.plan_cache_stats()["misses"] <= 2

    def test_integer_arguments_are(self):
        x = torch.arange(6.0, device=support.DEVICE).reshape(2, 3)
        support.synchronize()
        assert [x.sum(dim).tolist() for dim in (0, 1, 0)] == [[3, 5, 7], [3, 12], [3, 5, 7]]

    def test_aliasing_is(self):
        for same in (True, False, True):
            x = ones(3)
            y = x if same else ones(3)
            support.synchronize()
            x.add_(1)
            z = y * 10
            assert z.tolist() == ([20] * 3 if same else [10] * 3)

    def test_what_outlives_the_graph_is(self):
        x = ones(3)
        for keep in (True, False, True):
            y = x + 1
            z = y * 2
            if not keep:
                del y
            assert z.tolist() == [4, 4, 4]
            if keep:
                assert y.tolist() == [2, 2, 2]


class TestGraph:
    def test_pending_op_names(self):
        x = ones(3)
        support.synchronize()
        assert tiledev.pending_op_names() == []
        kept = [x + 1, x.sin()]
        names = tiledev.pending_op_names()
        assert len(names) == 2
        assert "add" in names[0]
        assert "sin" in names[1]
        tiledev.execute()
        assert tiledev.pending_op_names() == []
        assert kept[0].tolist() == [2, 2, 2]

    def test_reset_graph_forgets_what_is_pending(self):
        x = ones(3)
        support.synchronize()
        kept = x.add(1)
        tiledev.reset_graph()
        assert not tiledev.has_pending_graph()
        assert x.tolist() == [1, 1, 1]
        del kept
        assert (x + 1).tolist() == [2, 2, 2]

    def test_compile_and_run_apart(self):
        x = ones(3)
        y = x + 1
        tiledev.compile_graph()
        z = y * 2
        tiledev.run()
        tiledev.wait()
        assert y.tolist() == [2, 2, 2]
        assert z.tolist() == [4, 4, 4]

    def test_dump(self):
        x = ones(3)
        kept = (x + 1).sin()
        text, dot = (support.extension().format_graph(name) for name in ("text", "dot"))
        assert "sin" in text
        assert dot.startswith("digraph")
        assert kept.shape == (3,)


class TestEager:
    def test_runs_at_once(self):
        with tiledev.eager():
            x = ones(3) + 1
            assert not tiledev.has_pending_graph()
            x.mul_(2)
        assert x.tolist() == [4, 4, 4]

    def test_raises_at_the_call(self):
        index = torch.tensor([9], device=support.DEVICE)
        with tiledev.eager(), pytest.raises(RuntimeError, match="out of bounds"):
            ones(3).gather(0, index)

    def test_gives_the_same_training(self):
        runs = []
        for eager in (True, False):
            torch.manual_seed(0)
            net = mlp(support.DEVICE)
            if eager:
                with tiledev.eager():
                    net(ones(2, 4)).square().sum().backward()
            else:
                net(ones(2, 4)).square().sum().backward()
            runs.append(net[0].weight.grad.cpu())
        assert torch.equal(*runs)


class TestFallback:
    def test_is_counted_by_name(self):
        x = torch.tensor([1, 0, 2], device=support.DEVICE)
        x.nonzero()
        x.nonzero()
        stats = tiledev.fallback_stats()
        assert [count for name, count in stats.items() if "nonzero" in name] == [2]

    def test_keeps_aliasing_and_order(self):
        x = torch.tensor([1, 0, 2, 0], device=support.DEVICE)
        x.add_(1)
        found = (x > 1).nonzero()
        x.zero_()
        assert found.flatten().tolist() == [0, 2]
        assert x.tolist() == [0, 0, 0, 0]
