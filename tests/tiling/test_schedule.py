"""Which task runs first, and which worker takes which tile: read from traces."""

import json

import pytest
import torch

import tiledev
from tests import support
from tests.tiling import context

pytestmark = pytest.mark.tiledev_only

DEVICE = support.DEVICE
SIZE = 400


@pytest.fixture
def traced(tmp_path):
    """Runs a function and returns the tasks or tiles of its last plan, in order of their start."""

    def run(f):
        path = tmp_path / "trace.json"
        with tiledev.trace(path):
            f()
            tiledev.wait()
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
        last = max(e["args"]["plan"] for e in events)
        return sorted((e for e in events if e["args"]["plan"] == last), key=lambda e: e["ts"])

    support.settle()
    yield run
    support.settle()


def on_device(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def test_what_lies_on_the_critical_path_runs_first(traced):
    with context(1):
        tiledev._C.set_tiling_mode("whole")
        x, keep = on_device(SIZE, SIZE), []

        def record():
            # The worker is busy until all of the second plan is ready.
            keep.append(on_device(4 * SIZE, 4 * SIZE).matrix_exp())
            tiledev.execute()
            keep.extend(x.cumsum(k % 2) for k in range(6))
            chain = x
            for _ in range(6):
                chain = chain.logcumsumexp(0) / 8
            keep.append(chain)
            tiledev.execute()

        record()
        tiledev.wait()  # with its plans made, the second time everything is handed over at once
        keep.clear()
        names = [event["name"] for event in traced(record)]
    chain = [i for i, name in enumerate(names) if "logcumsumexp" in name or "div" in name]
    others = [i for i, name in enumerate(names) if name == "cumsum"]
    assert len(others) == 6
    assert len(chain) >= 6
    # All but the end of the chain, which is no longer than the others.
    assert max(chain[:-2]) < min(others[1:])


def test_tiles_stay_with_their_worker(traced):
    workers, tiles = 2, 24

    def share_of(unit):
        return next(w for w in range(workers) if unit < tiles * (w + 1) // workers)

    def step():
        y = x * 2
        tiledev.execute()
        z = y.double()  # another plan, the same tiles
        tiledev.execute()
        return z

    with context(workers):
        x = on_device(tiles * 16, 4096)
        tiledev.set_axis_group_name(x, {0: "rows of a share"})
        tiledev.set_axis_group_tiling("rows of a share", 16)
        try:
            # Workers help each other out, so a disturbed one loses some of its tiles.
            for _ in range(20):
                events = traced(step)
                assert len(events) == tiles
                own = sum(share_of(e["args"]["unit"]) == e["tid"] for e in events)
                if own >= tiles * 3 // 4:
                    return
        finally:
            tiledev.clear_axis_group_tiling("rows of a share")
    pytest.fail(f"{own} of {tiles} tiles ran on the worker that had them before")


def test_many_small_segments_side_by_side_are_few_tasks(traced):
    with context(2):
        many = [on_device(200, 200) for _ in range(100)]
        alone = on_device(200, 200)
        tiledev.wait()
        keep = []
        tasks = traced(lambda: keep.extend((x * 2 + 1) * (x * 3 - 1) for x in many))
        assert len(tasks) <= 200
        assert len(traced(lambda: keep.append((alone * 2 + 1) * (alone * 3 - 1)))) >= 4
        for x, y in zip(many, keep, strict=False):
            torch.testing.assert_close(y, (x * 2 + 1) * (x * 3 - 1))
