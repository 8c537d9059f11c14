"""Looking at plans: explain, why one was missed, traces, and steps that need no new plan."""

import json

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support

pytestmark = [pytest.mark.tiledev_only, pytest.mark.usefixtures("two_workers")]

DEVICE = support.DEVICE
MIB = 1 << 20


def misses():
    return tiledev.plan_cache_stats()["misses"]


def large(rows=4096):
    x = torch.randn(rows, 256).to(DEVICE)
    tiledev.wait()
    return x


class TestTemporaries:
    """Those that several segments use live from their first write to their last use."""

    def test_no_more_is_allocated_than_the_plan_says(self):
        tiledev._C.set_tiling_mode("whole")  # an op, a segment
        x = large()
        nbytes = x.numel() * 4
        tiledev.wait()
        before = torch.tiledev.memory_allocated()
        torch.tiledev.reset_peak_memory_stats()
        y = x + 1
        for _ in range(5):
            y = y.relu() * 2
        tiledev.wait()
        plan = json.loads(tiledev.explain(format="json"))
        assert len(plan["segments"]) == 11
        assert plan["temporary_bytes"] == 2 * nbytes
        assert f"temporaries={2 * nbytes // MIB}.0 MiB" in tiledev.explain()
        assert torch.tiledev.max_memory_allocated() - before <= plan["temporary_bytes"]
        assert torch.tiledev.memory_allocated() - before == nbytes


class TestExplain:
    def test_text(self):
        x = large()
        y, small = ((x * 2).relu() + 1).sum(0), torch.ones(3, device=DEVICE) + 1
        tiledev.wait()
        lines = tiledev.explain().splitlines()
        assert lines[0].startswith("Plan ")
        assert "nodes=6, dropped=0" in lines[0]
        assert f"segments={len(lines[1:]) // 2}, tiled=1" in lines[0]
        tiled = next(n for n, line in enumerate(lines) if " tiles of 4096 units" in line)
        assert "4 ops, " in lines[tiled]
        assert "in 2 lanes" in lines[tiled]
        assert "reads 4.0 MiB, writes 1.0 KiB, scratch " in lines[tiled]
        assert lines[tiled + 1].strip() == "mul, relu, add, sum"
        assert "whole (small)" in tiledev.explain()
        del y, small

    def test_why_an_op_is_whole(self):
        x = large()
        y = torch.linalg.svdvals(x), torch.rand_like(x), x.flip(0, 1)
        tiledev.wait()
        text = tiledev.explain()
        assert "no tile rule" in text
        assert "draws random numbers" in text
        assert "no axis that can be cut" in text
        del y

    def test_tiling_that_is_off(self):
        tiledev._C.set_tiling_mode("whole")
        try:
            x = large()
            y = (x * 2).relu()
            tiledev.wait()
            assert "whole (tiling is off)" in tiledev.explain()
            assert "tiled=0" in tiledev.explain()
            del y
        finally:
            tiledev._C.set_tiling_mode("auto")

    def test_dot(self):
        x = large()
        y = F.relu(x @ torch.randn(256, 256).to(DEVICE)).t().contiguous().softmax(0).sum()
        tiledev.wait()
        text, dot = tiledev.explain(), tiledev.explain("dot")
        lines = dot.splitlines()
        assert lines[0] == "digraph plan {"
        assert lines[-1] == "}"
        segments = int(text.split("segments=")[1].split(",")[0])
        assert sum("[label=" in line for line in lines) == segments
        assert sum("->" in line for line in lines) >= segments - 1
        assert y.item() > 0

    def test_dropped_nodes_are_counted(self):
        x = large()
        y = x + 1
        (x * 2).relu()
        tiledev.wait()
        assert "nodes=3, dropped=2" in tiledev.explain()
        del y

    @pytest.mark.parametrize("format", ["pdf", "", None, 3])
    def test_a_bad_format(self, format):
        with pytest.raises(ValueError, match=r"explain.*'text', 'dot'"):
            tiledev.explain(format)


# Two graphs, and what explain_miss() says of the second one.
DIFFERENCES = {
    "dimensions": (
        lambda x, w: (x * 2).sum(0),
        lambda x, w: (x * 2).sum(1),
        "node 1 is aten::sum.dim_IntList([64, 256] Float) with dim=[1], there with dim=[0]",
    ),
    "a dimension": (
        lambda x, w: (x * 2).softmax(0),
        lambda x, w: (x * 2).softmax(1),
        "with dim=1, there with dim=0",
    ),
    "cumsum": (
        lambda x, w: (x * 2).cumsum(0),
        lambda x, w: (x * 2).cumsum(1),
        "with dim=1, there with dim=0",
    ),
    "two arguments": (
        lambda x, w: (x * 2).sum(0),
        lambda x, w: (x * 2).sum(1, keepdim=True),
        "with dim=[1], keepdim=True, there with dim=[0], keepdim=False",
    ),
    "strides": (
        lambda x, w: x[:, :64] * w[:, :64],
        lambda x, w: x[:, :64] * w[:, :64].t(),
        "with other.strides=[1, 256], there with other.strides=[256, 1]",
    ),
    "a string": (
        lambda x, w: F.gelu(x),
        lambda x, w: F.gelu(x, approximate="tanh"),
        "with approximate=tanh, there with approximate=none",
    ),
    "an exponent": (
        lambda x, w: x**2,
        lambda x, w: x**3,
        "with exponent=3, there with exponent=2",
    ),
    "an argument that is missing": (
        lambda x, w: x.clamp(min=0.0),
        lambda x, w: x.clamp(max=0.0),
        "with min (None), max (float), there with min (float), max (None)",
    ),
    "the type of a number": (
        lambda x, w: x * 2,
        lambda x, w: x * 2.5,
        "with other (a number of Double), there with other (a number of Long)",
    ),
    "the type of a scalar": (
        lambda x, w: x.clamp(min=0.5),
        lambda x, w: x.clamp(min=0),
        "with min (int), there with min (float)",
    ),
    "a count": (
        lambda x, w: x.topk(3),
        lambda x, w: x.topk(4),
        "with k=4, there with k=3",
    ),
    "shifts": (
        lambda x, w: x.roll(3, 0),
        lambda x, w: x.roll(4, 0),
        "with shifts=[4], there with shifts=[3]",
    ),
    "a diagonal": (
        lambda x, w: x.tril(1),
        lambda x, w: x.tril(2),
        "with diagonal=2, there with diagonal=1",
    ),
    "a range": (
        lambda x, w: torch.arange(5, device=DEVICE),
        lambda x, w: torch.arange(3, 8, device=DEVICE),
        "with start=3, end=8, there with start=0, end=5",
    ),
    "points": (
        lambda x, w: torch.linspace(0, 1, 5, device=DEVICE),
        lambda x, w: torch.linspace(0, 2, 5, device=DEVICE),
        "with end=2, there with end=1",
    ),
    "shared memory": (
        lambda x, w: x * w,
        lambda x, w: x * x,
        "`other` of node 0 (aten::mul.Tensor) lies in the memory of `self` of node 0 "
        "(aten::mul.Tensor), there in memory of its own",
    ),
    "offsets": (
        lambda x, w: x[:30].mul_(x[30:60]),
        lambda x, w: x[1:31].mul_(x[32:62]),
        "`other` begins 7936 elements behind the first view of its memory, there 7680 elements",
    ),
    "views that are only read": (
        lambda x, w: x[:30] * x[:30],
        lambda x, w: x[:30] * x[30:60],
        "`other` begins behind the first view of its memory (place 1), there with the first view",
    ),
    "all of a buffer": (
        lambda x, w: torch.empty(128, 256, device=DEVICE)[:64].copy_(x),
        lambda x, w: torch.empty(64, 256, device=DEVICE).copy_(x),
        "(aten::copy_): `self` is all of its memory, overwritten here and not there",
    ),
    "what is held": (
        lambda x, w: (x * 3).tanh(),
        lambda x, w: [y := x * 3, y.tanh()],
        "a tensor refers to the result of node 0 (aten::mul.Tensor) here and not there",
    ),
}


class TestExplainMiss:
    def test_the_first_one_says_so(self):
        y = large() * 2
        tiledev.wait()
        assert "a graph of 1 nodes" in tiledev.explain_miss()
        del y

    def test_another_shape_names_the_op_and_both_shapes(self):
        for rows in (4096, 4000):
            y = (large(rows) * 2).relu()
            tiledev.wait()
            del y
        text = tiledev.explain_miss()
        assert "aten::mul" in text
        assert "[4000, 256]" in text
        assert "[4096, 256]" in text

    def test_another_op_is_named(self):
        x = large()
        for f in (torch.relu, torch.tanh):
            y = f(x * 2)
            tiledev.wait()
            del y
        text = tiledev.explain_miss()
        assert "node 1 is aten::tanh" in text
        assert "there aten::relu" in text

    def test_a_longer_graph(self):
        x = large()
        y = (x * 2).relu()
        tiledev.wait()
        y = (x * 2).relu() + 1
        tiledev.wait()
        assert "3 nodes" in tiledev.explain_miss()
        assert "begins with the same nodes" in tiledev.explain_miss()
        del y

    def test_another_result_is_held(self):
        x = large()
        y = (x * 3).tanh()
        tiledev.wait()
        between = x * 3
        y = between.tanh()
        tiledev.wait()
        assert "other tensors outlive the graph" in tiledev.explain_miss()
        del y, between

    def test_other_tiles_were_asked_for(self):
        x = large()
        tiledev.set_axis_group_name(x, {0: "rows here"})
        try:
            for sizes in (100, 300):
                tiledev.set_axis_group_tiling("rows here", sizes)
                y = (x * 5).tanh()
                tiledev.wait()
                del y
            assert "other tiles" in tiledev.explain_miss()
        finally:
            tiledev.clear_axis_group_tiling()

    @pytest.mark.parametrize("name", DIFFERENCES)
    def test_what_differs_is_named(self, name):
        before, after, words = DIFFERENCES[name]
        for mode in ("whole", "auto"):  # another mode forgets all plans
            tiledev._C.set_tiling_mode(mode)
        x, w = large(64), torch.randn(64, 256).to(DEVICE)
        for f in (before, after):
            y = f(x, w)
            tiledev.wait()
            del y
        text = tiledev.explain_miss()
        assert words in text
        if "First difference: " in text:
            here, there = text.split("First difference: ")[1].split(", there ")
            assert here.rpartition(" with ")[2] != there.removeprefix("with ")

    def test_the_default_dtype(self):
        x = large(64)
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            try:
                y = x * 2
                tiledev.wait()
            finally:
                torch.set_default_dtype(torch.float32)
            del y
        words = "with default dtype Double, there with default dtype Float"
        assert words in tiledev.explain_miss()

    def test_an_axis_has_a_name(self):
        x = large(64)
        for name in ("rows of one", "rows of another"):
            tiledev.set_axis_group_name(x, {0: name})
            y = x.exp()
            tiledev.wait()
            del y
            x = large(64)
        words = "the dimensions of `self` of node 0 (aten::exp) are named in another way"
        assert words in tiledev.explain_miss()

    def test_a_hit_explains_nothing_new(self):
        x = large()
        texts, counts = [], []
        for _ in range(2):
            y = (x * 7).tanh().relu()
            tiledev.wait()
            texts.append(tiledev.explain_miss())
            counts.append(misses())
            del y
        assert texts[0] == texts[1]
        assert counts[0] == counts[1]


class TestTrace:
    def test_what_runs_inside_is_in_it(self, tmp_path):
        x = large()
        before = x.tanh() + 3
        with tiledev.trace(tmp_path / "trace.json"):
            y = (x * 2).relu().sum(0)
        after = x.sigmoid() + 3
        tiledev.wait()
        trace = json.loads((tmp_path / "trace.json").read_text())
        rows = trace["traceEvents"]
        names = {row["tid"]: row["args"]["name"] for row in rows if row["ph"] == "M"}
        events = [row for row in rows if row["ph"] == "X"]
        assert events
        assert set(names) == {event["tid"] for event in events}
        assert all(name == f"tiledev worker {worker}" for worker, name in names.items())
        assert set(names) <= {0, 1}
        assert {event["name"] for event in events} == {"mul, relu, sum"}
        for event in events:
            assert event["cat"] == "segment"
            assert event["dur"] > 0
            assert event["ts"] >= 0
            assert {"plan", "segment", "unit"} == set(event["args"])
        assert len({event["args"]["unit"] for event in events}) == len(events) == 2
        del y, before, after

    def test_every_tile_is_an_event(self, tmp_path):
        x = large()
        with tiledev.trace(str(tmp_path / "trace.json")):
            y = (x * 2).relu()
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        tiles = int(tiledev.explain().split(" tiles of ")[0].split()[-1])
        assert sorted(e["args"]["unit"] for e in events if e["ph"] == "X") == list(range(tiles))
        del y

    def test_one_at_a_time(self, tmp_path):
        with tiledev.trace(tmp_path / "trace.json"):
            y = large() + 1
            with (
                pytest.raises(RuntimeError, match="another trace"),
                tiledev.trace(tmp_path / "inner.json"),
            ):
                pass
        assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 1
        del y

    def test_nothing_inside(self, tmp_path):
        with tiledev.trace(tmp_path / "trace.json"):
            pass
        assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []

    def test_an_error_inside_is_raised_and_the_file_is_there(self, tmp_path):
        def fail():
            large().relu().sum().item()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), tiledev.trace(tmp_path / "trace.json"):
            fail()
        assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    def test_a_failing_op_inside(self, tmp_path):
        x, bad = large(), torch.full((4096, 1), 999).to(DEVICE)
        with (
            pytest.raises(RuntimeError, match="gather"),
            tiledev.trace(tmp_path / "trace.json"),
        ):
            kept = (x * 2).gather(1, bad)
        assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        del kept

    def test_a_file_that_cannot_be_written(self, tmp_path):
        y = large() * 2
        assert tiledev.has_pending_graph()
        with pytest.raises(OSError), tiledev.trace(tmp_path / "no" / "folder" / "trace.json"):
            raise AssertionError("the body must not run")
        assert tiledev.has_pending_graph()  # nothing has run
        assert y.shape == (4096, 256)

    def test_traces_follow_each_other(self, tmp_path):
        x = large()
        for n, f in enumerate([torch.relu, torch.tanh]):
            with tiledev.trace(tmp_path / f"{n}.json"):
                y = f(x) + 1
            events = json.loads((tmp_path / f"{n}.json").read_text())["traceEvents"]
            assert {e["name"] for e in events if e["ph"] == "X"} == {f"{f.__name__}, add"}
        del y


class TestPlansAreFoundAgain:
    def steps(self, optimizer, scheduler=None, count=8):
        """The misses after each step."""
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)
        )
        model.to(DEVICE)
        opt = optimizer(model.parameters())
        schedule = scheduler(opt) if scheduler else None
        x, y = large(2048), torch.randint(0, 10, (2048,)).to(DEVICE)
        found, losses = [], []
        for _ in range(count):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            if schedule is not None:
                schedule.step()
            losses.append(loss.item())
            found.append(misses())
        assert losses[-1] < losses[0]
        return found

    @pytest.mark.parametrize("foreach", [True, False])
    @pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
    def test_steps_of_an_optimizer(self, name, foreach):
        make = getattr(torch.optim, name)
        found = self.steps(lambda p: make(p, lr=0.01, foreach=foreach))
        assert found[3:] == [found[3]] * 5

    @pytest.mark.parametrize("name", ["CosineAnnealingLR", "StepLR", "OneCycleLR", "LinearLR"])
    def test_a_schedule_of_the_learning_rate(self, name):
        arguments = {
            "CosineAnnealingLR": {"T_max": 10},
            "StepLR": {"step_size": 2},
            "OneCycleLR": {"max_lr": 0.01, "total_steps": 20},
            "LinearLR": {},
        }
        schedule = getattr(torch.optim.lr_scheduler, name)
        found = self.steps(
            lambda p: torch.optim.AdamW(p, lr=0.01), lambda opt: schedule(opt, **arguments[name])
        )
        assert found[3:] == [found[3]] * 5

    def test_lengths_of_sequences_that_vary(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.LayerNorm(64))
        model.append(torch.nn.Linear(64, 50)).to(DEVICE)
        opt = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(length):
            tokens = torch.randint(0, 50, (16, length + 1)).to(DEVICE)
            opt.zero_grad()
            logits = model(tokens[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            opt.step()
            return misses()

        lengths = [32, 64, 100, 128]
        for length in [*lengths, *lengths]:  # the optimizer's state appears in the first step
            seen = step(length)
        for length in [100, 32, 128, 64, 64, 32, 100]:
            assert step(length) == seen, (length, tiledev.explain_miss())

    def test_a_readout_each_step(self):
        x, found = large(), []
        for n in range(5):
            y = (x * float(n)).relu()
            assert y.sum().item() >= 0
            found.append(misses())
        assert found[1:] == [found[1]] * 4

    @pytest.mark.parametrize("rows", [4, 4096])
    def test_an_exponent_that_changes(self, rows):
        x = torch.rand(rows, 256) + 0.5
        on_device = x.to(DEVICE)

        def check(p):
            for f in (lambda x: x**p * 1.5, lambda x: p ** (x * 1.5), lambda x: x.clone().pow_(p)):
                torch.testing.assert_close(
                    f(on_device).cpu(), f(x), rtol=1e-5, atol=1e-6, equal_nan=True
                )

        check(1.7)
        before = misses()
        for p in (1.5, 0.3, -0.7, 2.0 + 1e-12, 17.0, -11.0):
            check(p)
        assert misses() == before, tiledev.explain_miss()
        for p in (2.0, 2.5, 3.0, 1.0, 0.0, -1.0, 2.0 + 1e-12, -2.0, 1.3):
            check(p)
        check(2)
        with pytest.raises(RuntimeError, match="negative integer powers"):
            torch.ones(rows, dtype=torch.int64, device=DEVICE) ** -1

    def test_many_shapes_are_kept(self):
        shapes = [(64, n) for n in range(100, 160)]
        for _ in range(2):
            before = misses()
            for shape in shapes:
                ((torch.ones(shape, device=DEVICE) * 2).sum()).item()
        assert misses() == before

    def test_other_settings_of_the_run_need_other_plans(self):
        x, found = large(), []
        for deterministic in (False, True, False, True):
            torch.use_deterministic_algorithms(deterministic)
            try:
                y = (x * 11).relu().sum(0)
                tiledev.wait()
            finally:
                torch.use_deterministic_algorithms(False)
            found.append(misses())
            del y
        assert found[1] == found[0] + 1
        assert found[3] == found[1]
