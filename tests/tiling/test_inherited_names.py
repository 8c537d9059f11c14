"""New tensors inherit the names of those that stood in their place before.

Who remembers is the buffer beside them: a weight. So a batch is named once, and all later ones are
cut as it was.
"""

import gc
import json
import math
import random
import threading

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support

DEVICE = support.DEVICE
ROWS = [12, 12, 12, 12, 7]  # of the batches of an epoch


@pytest.fixture(autouse=True)
def nothing_remembered():
    tiledev.wait()
    yield
    tiledev.reset_graph()
    tiledev.clear_axis_group_tiling()


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU(),
        torch.nn.Linear(16, 5),
    )  # fmt: skip


def conv_net():
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 5)), torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(80, 5),
    )  # fmt: skip


def name_weights(model):
    weights = [p for p in model.parameters() if p.dim() == 2]
    for i, weight in enumerate(weights):
        outer = "classes" if i + 1 == len(weights) else "hidden"
        tiledev.set_axis_group_name(weight, {0: outer, 1: "features" if i == 0 else "hidden"})


def names():
    return {group.name: group for group in tiledev.axis_groups()}


def shape_of_plan():
    """The segments of the last plan, and how each is cut."""
    plan = json.loads(tiledev.explain(format="json"))
    return [(segment["ops"], segment["how"]) for segment in plan["segments"]]


def remembered():
    """An input whose rows have a name, and the weight that remembers it."""
    w = torch.randn(8, 6, device=DEVICE)
    x = torch.randn(12, 8, device=DEVICE)
    tiledev.set_axis_group_name(x, {0: "rows"})
    (x @ w).cpu()
    return x, w


class Training:
    """A loop over batches that are made anew, as a DataLoader makes them."""

    def __init__(self, make, device=DEVICE, name_all=False, weights=True, tiling=None):
        torch.manual_seed(0)
        self.model = make().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.generator = torch.Generator().manual_seed(1)
        self.device, self.name_all, self.tiling = device, name_all, tiling
        self.steps, self.losses, self.plans, self.misses = 0, [], [], []
        if weights and device != "cpu":
            name_weights(self.model)

    def batch(self, rows):
        x = torch.randn(rows, 20, generator=self.generator)
        y = torch.randint(0, 5, (rows,), generator=self.generator)
        x = x.to(self.device)
        if self.device != "cpu" and (self.steps == 0 or self.name_all):
            tiledev.set_axis_group_name(x, {0: "batch"})
            if self.steps == 0 and self.tiling is not None:
                tiledev.set_axis_group_tiling("batch", self.tiling)
        return x, y.to(self.device)

    def step(self, rows, loss_of=lambda model, x, y: F.cross_entropy(model(x), y)):
        x, y = self.batch(rows)
        before = tiledev.plan_cache_stats()["misses"]
        self.optimizer.zero_grad()
        loss = loss_of(self.model, x, y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        self.losses.append(loss.detach())
        self.misses.append(tiledev.plan_cache_stats()["misses"] - before)
        if self.device != "cpu":
            self.plans.append(shape_of_plan())

    def run(self, epochs=2, **kwargs):
        for rows in ROWS * epochs:
            self.step(rows, **kwargs)
        return self

    def results(self):
        weights = [p.detach().cpu() for p in self.model.parameters()]
        return [loss.cpu() for loss in self.losses], weights


def in_bfloat16(model, x, y):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(x), y)


def prepared(model, x, y):
    return F.cross_entropy(model((x * 2 - 1).relu()), y)


class TestTraining:
    @pytest.mark.parametrize("weights", [True, False], ids=["named weights", "unnamed weights"])
    @pytest.mark.parametrize("make", [mlp, conv_net])
    def test_every_step_is_cut_as_if_its_batch_were_named(self, make, weights):
        once = Training(make, weights=weights, tiling=5).run()
        each = Training(make, weights=weights, tiling=5, name_all=True).run()
        assert once.plans == each.plans
        for rows, plan in zip(ROWS * 2, once.plans, strict=True):
            first = next(how for ops, how in plan if "addmm" in ops or "convolution" in ops)
            assert first.startswith(f"{math.ceil(rows / 5)} tiles of {rows} units")
        torch.testing.assert_close(once.results(), Training(make, "cpu").run().results())

    @pytest.mark.parametrize("loss_of", [in_bfloat16, prepared])
    def test_what_ops_make_of_inputs_and_weights(self, loss_of):
        once = Training(mlp, tiling=5).run(loss_of=loss_of)
        each = Training(mlp, tiling=5, name_all=True).run(loss_of=loss_of)
        assert once.plans == each.plans

    def test_steps_compile_in_the_beginning_only(self):
        training = Training(mlp, tiling=3).run(epochs=4)  # no other test has such plans
        short = [
            misses for rows, misses in zip(ROWS * 4, training.misses, strict=True) if rows < 12
        ]
        full = [
            misses for rows, misses in zip(ROWS * 4, training.misses, strict=True) if rows == 12
        ]
        assert max(full[3:]) == 0
        assert short[0] > 0
        assert max(short[1:]) == 0

    def test_sizes_that_do_not_add_up(self):
        training = Training(mlp, tiling=[3, 4, 5])
        for _ in range(4):
            training.step(12)
            first = next(how for ops, how in training.plans[-1] if "addmm" in ops)
            assert first.startswith("3 tiles of 12 units")
        with pytest.raises(ValueError, match=r"'batch' add up to 12[\s\S]*extent 7"):
            training.step(7)
        tiledev.set_axis_group_tiling("batch", 4)
        tiledev.wait()

    def test_a_readout_within_the_step(self):
        def loss_of(model, x, y):
            loss = F.cross_entropy(model(x), y)
            loss.item()  # forward and backward are two plans
            return loss

        once = Training(mlp, tiling=5).run(loss_of=loss_of)
        each = Training(mlp, tiling=5, name_all=True).run(loss_of=loss_of)
        assert once.plans == each.plans
        assert max(once.misses[5:]) == 0

    def test_gradients_of_several_batches(self):
        training = Training(mlp, tiling=5)
        for _ in range(3):
            for _ in range(2):
                x, y = training.batch(12)
                F.cross_entropy(training.model(x), y).backward()
                training.steps += 1
            assert [g.extent for g in tiledev.axis_groups() if g.name == "batch"] == [12, 12]
            training.optimizer.step()

    def test_evaluation(self):
        training = Training(mlp, tiling=5).run(epochs=1)
        misses = []
        for _ in range(3):
            with torch.no_grad():
                logits = training.model(training.batch(30)[0])
                assert names()["batch"].tiles == (5,) * 6
                logits.cpu()
            training.step(12)
            misses.append(tiledev.plan_cache_stats()["misses"])
        assert misses[0] == misses[2]

    def test_weights_that_the_same_graph_makes(self):
        w = torch.randn(8, 6, device=DEVICE) * 0.1
        x = torch.randn(12, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows"})
        (x @ w).cpu()
        y = torch.randn(9, 8, device=DEVICE) @ w
        assert names()["rows"].extent == 9
        del y

    @pytest.mark.parametrize(
        ("norm", "shapes"),
        [
            (False, [(6, 4), (6, 4), (3, 4), (8, 4)]),  # all ops see [rows * length, ...]
            (True, [(6, 4), (3, 4), (6, 7), (5, 1), (4, 3)]),
        ],
    )
    def test_sequences(self, norm, shapes):
        torch.manual_seed(0)
        table = torch.nn.Embedding(11, 8).to(DEVICE)
        middle = torch.nn.LayerNorm(8).to(DEVICE) if norm else torch.nn.Identity()
        head = torch.nn.Linear(8, 5).to(DEVICE)
        for step, shape in enumerate(shapes):
            ids = torch.randint(0, 11, shape).to(DEVICE)
            if step == 0:
                tiledev.set_axis_group_name(ids, {0: "sequences"})
                tiledev.set_axis_group_tiling("sequences", 2)
            logits = head(middle(table(ids)))
            group = names()["sequences"]
            assert group.extent == shape[0]
            assert group.tiles[0] == 2
            logits.square().sum().backward()
            tiledev.wait()

    def test_sequences_of_another_length_that_no_op_sees(self):
        w = torch.randn(8, 6, device=DEVICE)
        for step, (rows, length) in enumerate([(6, 4), (5, 3), (6, 4)]):
            x = torch.randn(rows, length, 8, device=DEVICE)
            if step == 0:
                tiledev.set_axis_group_name(x, {0: "sequences"})
            y = x.view(-1, 8) @ w
            assert ("sequences" in names()) == (length == 4)
            torch.testing.assert_close(y.cpu(), x.cpu().view(-1, 8) @ w.cpu())


class TestReport:
    def test_it_shows_inherited_names(self):
        w = torch.randn(8, 6, device=DEVICE)
        x = torch.randn(12, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows"})
        tiledev.set_axis_group_tiling("rows", 5)
        (x @ w).cpu()
        x = torch.randn(9, 8, device=DEVICE)
        y = (x @ w).relu()
        assert "extent=9 name='rows' tiles=5,4 members=3" in tiledev.format_axis_groups()
        y.cpu()
        z = x * 2  # the tensor has it now, with nothing beside it
        assert names()["rows"].tiles == (5, 4)
        del z

    def test_nothing_remembers_without_another_tensor(self):
        for step in range(2):
            x = torch.randn(12, 8, device=DEVICE)
            if step == 0:
                tiledev.set_axis_group_name(x, {0: "rows"})
            total = (x * 2).sum()
            assert ("rows" in names()) == (step == 0)
            total.cpu()

    def test_a_number_remembers_nothing(self):
        two = torch.tensor(2.0, device=DEVICE)
        x = torch.randn(12, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows"})
        (x * two).cpu()
        other = torch.randn(5, device=DEVICE) * two
        assert set(names()) == {None}
        del other

    def test_another_number_of_dimensions_is_another_place(self):
        mask = torch.randn(4, device=DEVICE)
        x = torch.randn(6, 4, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows"})
        (x * mask).cpu()
        other = torch.randn(2, 6, 4, device=DEVICE) * mask
        assert set(names()) == {None}
        x = torch.randn(7, 4, device=DEVICE) * mask
        assert names()["rows"].extent == 7
        del other, x

    def test_dimensions_that_cannot_be_cut(self):
        _, w = remembered()
        for other in (torch.randn(1, 8, device=DEVICE), torch.randn(8, device=DEVICE).expand(5, 8)):
            y = other @ w
            assert "rows" not in names()
            torch.testing.assert_close(y.cpu(), other.cpu() @ w.cpu())

    def test_what_nobody_needs_is_not_remembered(self):
        w = torch.randn(8, 6, device=DEVICE)
        x = torch.randn(12, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows"})
        dead = x @ w
        del dead
        tiledev.wait()
        y = torch.randn(9, 8, device=DEVICE) @ w
        assert "rows" not in names()
        del y


class TestConflicts:
    def test_a_given_name_wins(self):
        x, w = remembered()
        x = torch.randn(9, 8, device=DEVICE)
        y = x @ w
        tiledev.set_axis_group_name(x, {0: "lines"})
        assert {"lines"} == set(names()) - {None}
        y.cpu()
        y = x @ w
        assert "lines" in names()
        y.cpu()

    def test_it_replaces_one_that_was_inherited(self):
        x, w = remembered()
        x = torch.randn(9, 8, device=DEVICE)
        (x @ w).cpu()
        tiledev.set_axis_group_name(x, {0: "lines"})
        y = x @ w
        assert "lines" in names()
        del y

    def test_what_ops_tied_wins(self):
        _, w = remembered()
        a, b = torch.randn(12, 8, device=DEVICE), torch.randn(12, 6, device=DEVICE)
        tiledev.set_axis_group_name(b, {0: "lines"})
        y = a @ w + b
        assert set(names()) == {"lines", None}
        torch.testing.assert_close(y.cpu(), a.cpu() @ w.cpu() + b.cpu())

    @pytest.mark.parametrize("at_once", [True, False])
    def test_two_names_in_one_place(self, at_once):
        w = torch.randn(8, 6, device=DEVICE)
        q, k = torch.randn(12, 8, device=DEVICE), torch.randn(9, 8, device=DEVICE)
        tiledev.set_axis_group_name(q, {0: "queries"})
        tiledev.set_axis_group_name(k, {0: "keys"})
        y = q @ w
        if not at_once:
            y.cpu()
        z = (y @ (k @ w).t()).softmax(-1)
        assert {"queries", "keys"} <= set(names()) or not at_once
        z.cpu()
        q, k = torch.randn(12, 8, device=DEVICE), torch.randn(9, 8, device=DEVICE)
        z = ((q @ w) @ (k @ w).t()).softmax(-1)
        assert set(names()) == {None}
        want = ((q.cpu() @ w.cpu()) @ (k.cpu() @ w.cpu()).t()).softmax(-1)
        torch.testing.assert_close(z.cpu(), want)

    def test_two_names_that_meet(self):
        w, v = torch.randn(8, 6, device=DEVICE), torch.randn(8, 6, device=DEVICE)
        x, y = torch.randn(12, 8, device=DEVICE), torch.randn(12, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "left", 1: "depth"})
        tiledev.set_axis_group_name(y, {0: "right"})
        (x @ w).cpu(), (y @ v).cpu()
        x, y = torch.randn(12, 8, device=DEVICE), torch.randn(12, 8, device=DEVICE)
        z = x @ w + y @ v
        assert set(names()) == {"depth", None}
        torch.testing.assert_close(z.cpu(), x.cpu() @ w.cpu() + y.cpu() @ v.cpu())

    def test_two_batches_in_one_step(self):
        critic = torch.nn.Linear(8, 1).to(DEVICE)
        for step in range(3):
            real, fake = torch.randn(12, 8, device=DEVICE), torch.randn(9, 8, device=DEVICE)
            if step == 0:
                tiledev.set_axis_group_name(real, {0: "batch"})
                tiledev.set_axis_group_tiling("batch", 5)
            loss = critic(real).mean() - critic(fake).mean()
            tiles = [group.tiles for group in tiledev.axis_groups() if group.name == "batch"]
            assert sorted(tiles) == [(5, 4), (5, 5, 2)]
            want = critic(real).cpu().mean() - critic(fake).cpu().mean()
            torch.testing.assert_close(loss.cpu(), want)

    def test_sizes_for_another_tensor_of_the_graph(self):
        """A name that the user did not give raises nothing where one that he gave is cut."""
        w = torch.randn(8, 6, device=DEVICE)
        x, y = torch.randn(12, 8, device=DEVICE), torch.randn(9, 8, device=DEVICE)
        tiledev.set_axis_group_name(x, {0: "rows"})
        tiledev.set_axis_group_tiling("rows", [5, 7])
        z = (x @ w).sum(0) + (y @ w).sum(0)
        groups = [g for g in tiledev.axis_groups() if g.name == "rows"]
        assert {(g.extent, g.tiles) for g in groups} == {(12, (5, 7)), (9, None)}
        want = (x.cpu() @ w.cpu()).sum(0) + (y.cpu() @ w.cpu()).sum(0)
        torch.testing.assert_close(z.cpu(), want)


class TestForgetting:
    def inherits(self, w, name="rows"):
        y = torch.randn(9, 8, device=DEVICE) @ w
        found = name in names()
        y.cpu()
        return found

    def test_with_the_name_of_the_tensor(self):
        x, w = remembered()
        assert self.inherits(w)
        tiledev.set_axis_group_name(x, {0: None})
        assert not self.inherits(w)

    def test_not_while_another_tensor_has_it(self):
        x, w = remembered()
        other = torch.randn(4, 3, device=DEVICE)
        tiledev.set_axis_group_name(other, {1: "rows"})
        tiledev.set_axis_group_name(x, {0: None})
        assert self.inherits(w)

    @pytest.mark.parametrize("pending", [True, False])
    def test_with_an_inherited_name(self, pending):
        x, w = remembered()
        del x
        x = torch.randn(9, 8, device=DEVICE)
        y = (x @ w).relu()
        if not pending:
            y.cpu()
        tiledev.set_axis_group_name(x, {0: None, 1: None})
        assert "rows" not in names()
        assert not self.inherits(w)
        del y

    def test_another_name_follows(self):
        x, w = remembered()
        tiledev.set_axis_group_name(x, {0: None})
        tiledev.set_axis_group_name(x, {0: "lines"})
        (x @ w).cpu()
        assert self.inherits(w, "lines")

    def test_one_of_two_names_in_a_place(self):
        x, w = remembered()
        y = torch.randn(9, 8, device=DEVICE)
        tiledev.set_axis_group_name(y, {0: "lines"})
        (y @ w).cpu()
        assert not self.inherits(w)
        tiledev.set_axis_group_name(x, {0: None})
        assert self.inherits(w, "lines")

    def test_by_reset_graph(self):
        x, w = remembered()
        y = torch.randn(9, 8, device=DEVICE)
        (y @ w).cpu()  # has an inherited name
        tiledev.reset_graph()
        assert not self.inherits(w)
        z = y * 2
        assert set(names()) == {None}
        z = x * 2
        assert "rows" in names()  # it was given
        del z

    def test_tiles_that_are_cleared(self):
        _, w = remembered()
        tiledev.set_axis_group_tiling("rows", 5)
        tiledev.clear_axis_group_tiling("rows")
        assert self.inherits(w)

    def test_it_goes_with_the_weight(self):
        tiledev.wait()
        gc.collect()
        before = support.counters()
        for step in range(1000):
            w = torch.randn(8, 6, device=DEVICE)
            x = torch.randn(12, 8, device=DEVICE)
            if step == 0:
                tiledev.set_axis_group_name(x, {0: "rows"})
            y = x @ w
            assert ("rows" in names()) == (step == 0)
            tiledev.execute()
        del w, x, y
        tiledev.wait()
        after = support.counters()
        assert after["live_buffers"] <= before["live_buffers"]


def test_threads():
    torch.manual_seed(0)
    model = mlp().to(DEVICE)
    x = torch.randn(12, 20, device=DEVICE)
    tiledev.set_axis_group_name(x, {0: "batch"})
    tiledev.set_axis_group_tiling("batch", 5)
    model(x).cpu()
    failures = []

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        try:
            for step in range(20):
                x = torch.randn(5 + (seed + step) % 7, 20, generator=generator)
                with torch.no_grad():
                    got = model(x.to(DEVICE)).cpu()
                    torch.testing.assert_close(got, host(x))
        except BaseException as error:
            failures.append(error)

    host = mlp()
    host.load_state_dict({key: value.cpu() for key, value in model.state_dict().items()})
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        tiledev.set_axis_group_name(x, {0: None})
        tiledev.set_axis_group_name(x, {0: "batch"})
        model(x).cpu()
    for thread in threads:
        thread.join()
    assert not failures


class RandomSteps:
    """Steps over the same weights with new inputs, some dimensions of which get names."""

    def __init__(self, seed, forget):
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.forget = forget
        self.names = [f"{name} {seed} {forget}" for name in "abc"]
        self.weights = [self.tensor(8, 8) for _ in range(3)]

    def tensor(self, *shape):
        host = torch.randn(*shape, generator=self.generator)
        return host, host.to(DEVICE)

    def step(self):
        """Returns why names met, if they did; compares what was computed."""
        rows = self.rng.choice([8, 8, 5])
        made = [self.tensor(rows, 8) for _ in range(2)]
        given = [
            (tensor, {self.rng.randrange(2): self.rng.choice(self.names)})
            for likely, tensors in ((0.05, self.weights), (0.4, made))
            for _, tensor in tensors
            if self.rng.random() < likely
        ]
        ops = [
            (self.rng.randrange(5), self.rng.random(), self.rng.random(), self.rng.randrange(3))
            for _ in range(5)
        ]
        sizes = self.rng.randint(1, 4)
        try:
            for tensor, axes in given:
                tiledev.set_axis_group_name(tensor, axes)
                tiledev.set_axis_group_tiling(next(iter(axes.values())), sizes)
            values = self.run(made, ops)
            tiledev.wait()
        except ValueError as error:
            tiledev.reset_graph()
            return str(error).replace(str(self.forget), "")
        for want, got in values:
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
        if self.forget:
            tiledev.reset_graph()
        return None

    def run(self, values, ops):
        values = list(values)
        for op, left, right, weight in ops:
            a, b = (values[int(at * len(values))] for at in (left, right))
            w = self.weights[weight]
            result = [
                (a[0] @ w[0] / 8, a[1] @ w[1] / 8),
                (a[0] @ w[0].t() / 8, a[1] @ w[1].t() / 8),
                (a[0] + b[0], a[1] + b[1]),
                (a[0].relu() + w[0][0], a[1].relu() + w[1][0]),
                (a[0].softmax(-1), a[1].softmax(-1)),
            ][op]
            values.append(result)
        return values


@pytest.mark.parametrize("seed", range(40))
def test_what_is_inherited_raises_nothing(seed):
    """The same names meet as when nothing is remembered from step to step."""
    met = []
    for forget in (False, True):
        steps = RandomSteps(seed, forget)
        met.append([steps.step() for _ in range(6)])
        tiledev.reset_graph()
    assert met[0] == met[1]
