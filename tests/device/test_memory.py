"""The host memory behind tensors: its cache, its statistics, and what happens when it runs out."""

import gc
import re
import threading

import pytest
import torch

import tiledev
from tests import support
from tests.device import scripts
from tests.device.models import mlp

pytestmark = pytest.mark.tiledev_only

MIB = 1 << 20
FLOATS = MIB // 4  # in a MiB


def zeros(*shape: int) -> torch.Tensor:
    """A tensor whose memory is the allocator's, not the result of a CPU kernel."""
    return torch.zeros(*shape, device="tiledev")


def stats(*names: str) -> list[int]:
    support.synchronize()
    now = torch.tiledev.memory_stats()
    return [now[name] for name in names]


@pytest.fixture(autouse=True)
def nothing_left_over():
    gc.collect()
    support.settle()
    torch.tiledev.empty_cache()


@pytest.fixture
def limited():
    """A context whose tensors may take 64 MiB more than those of earlier tests."""
    tiledev.shutdown_context()
    tiledev.init_context(memory_limit=64 * MIB + torch.tiledev.memory_allocated())
    yield
    tiledev.shutdown_context()


class TestCache:
    @pytest.mark.parametrize("nbytes", [1, 100, 5000, 64 << 10, MIB - 1, MIB, 3 * MIB, 40 * MIB])
    def test_a_freed_block_is_used_again(self, nbytes):
        a = torch.zeros(nbytes, dtype=torch.uint8, device="tiledev")
        segments, hits = stats("segment.all.current", "cache_hits")
        del a
        b = torch.zeros(nbytes, dtype=torch.uint8, device="tiledev")
        assert stats("segment.all.current", "cache_hits") == [segments, hits + 1]
        assert b.sum().item() == 0

    def test_a_block_is_not_used_for_much_less(self):
        a = zeros(8 * FLOATS)
        (before,) = stats("cached_bytes")
        del a
        b = zeros(4 * FLOATS)
        assert stats("cached_bytes") == [before + 8 * MIB]
        assert b.sum().item() == 0

    def test_blocks_in_use_are_not_shared(self):
        tensors = [zeros(size).fill_(i) for i, size in enumerate([10, 11, 12, 300_000, 300_001])]
        for i, tensor in enumerate(tensors):
            assert tensor.eq(i).all()

    def test_empty_cache_gives_back_what_is_free_and_nothing_else(self):
        kept, dropped = zeros(2 * FLOATS).add_(1), zeros(8 * FLOATS)
        before, cached = stats("reserved_bytes.all.current", "cached_bytes")
        del dropped
        assert stats("reserved_bytes.all.current") == [before]
        assert stats("cached_bytes") == [cached + 8 * MIB]
        torch.tiledev.empty_cache()
        assert stats("reserved_bytes.all.current") == [before - cached - 8 * MIB]
        assert stats("cached_bytes") == [0]
        torch.accelerator.empty_cache()
        assert kept.eq(1).all()

    def test_it_waits_for_nothing(self):
        a = zeros(4) + 1
        torch.tiledev.empty_cache()
        assert tiledev.has_pending_graph()
        assert a.tolist() == [1] * 4

    def test_it_is_bounded_by_the_recent_peak(self):
        code = """
            import torch, tiledev
            for mib in range(64, 256, 24):
                kept = torch.empty(mib << 20, dtype=torch.uint8, device="tiledev")
                kept[0].zero_()
                tiledev.wait()
                del kept
            stats = torch.tiledev.memory_stats()
            print(stats["cache_misses"], stats["cached_bytes"] >> 20)
        """
        misses, cached = map(int, scripts.check(code).split())
        assert misses >= 8
        assert 128 <= cached <= 256

    @pytest.mark.filterwarnings("ignore:.*cannot be recorded")
    def test_an_op_may_resize_its_memory(self):
        positions = torch.empty(1, dtype=torch.int64, device="tiledev").fill_(7)
        positions.cpu()
        torch.nonzero(torch.ones(3000, device="tiledev"), out=positions.resize_(0))
        assert positions.shape == (3000, 1)
        assert positions.sum().item() == sum(range(3000))

    def test_small_steps_stay_flat(self):
        net = mlp(support.DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        x, flat = torch.ones(8, 4, device="tiledev"), []
        for step in range(1000):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            if step % 100 == 99:
                flat.append(stats("reserved_bytes.all.current")[0])
        assert max(flat) - flat[0] < 4096, flat  # how many steps overlap is up to timing

    def test_large_steps_take_nothing_from_the_system(self):
        def step():
            for size in (3 * FLOATS, 5 * FLOATS + 7, 1000, 5 * FLOATS, 70_000):
                zeros(size).copy_(zeros(1).expand(size))[0].item()

        step()
        (before,) = stats("cache_misses")
        for _ in range(20):
            step()
        assert stats("cache_misses") == [before]

    def test_threads(self):
        failed = []

        def work(seed):
            for i in range(60):
                size = (seed * 7919 + i * 104_729) % 400_000 + 1
                tensor = zeros(size).fill_(seed)
                if i % 7 == seed:
                    torch.tiledev.empty_cache()
                if not bool(tensor.eq(seed).all()):
                    failed.append((seed, i))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


class TestStatistics:
    def test_they_add_up(self):
        a, b, c = zeros(3 * FLOATS), zeros(1000) + 1, zeros(10)
        support.synchronize()
        del a
        now = torch.tiledev.memory_stats()
        for name in ("allocated_bytes", "reserved_bytes", "allocation", "segment"):
            current, peak, added, gone = (
                now[f"{name}.all.{kind}"] for kind in ("current", "peak", "allocated", "freed")
            )
            assert 0 <= current <= peak, name
            assert current == added - gone, name
        in_use = now["reserved_bytes.all.current"] - now["cached_bytes"]
        assert now["allocated_bytes.all.current"] <= in_use
        assert now["cached_bytes"] >= 3 * MIB
        assert torch.tiledev.memory_reserved() == now["reserved_bytes.all.current"]
        assert torch.tiledev.max_memory_reserved() == now["reserved_bytes.all.peak"]
        assert b.sum().item() + c.sum().item() == 1000

    def test_the_peak_of_reserved_memory(self):
        torch.tiledev.reset_peak_memory_stats()
        (before,) = stats("reserved_bytes.all.peak")
        a = zeros(16 * FLOATS)
        support.synchronize()
        del a
        torch.tiledev.empty_cache()
        assert torch.tiledev.max_memory_reserved() >= before + 16 * MIB
        assert torch.tiledev.memory_reserved() < torch.tiledev.max_memory_reserved()
        torch.tiledev.reset_peak_memory_stats()
        assert torch.tiledev.max_memory_reserved() == torch.tiledev.memory_reserved()


class TestLimit:
    def test_the_error_names_what_is_needed_and_what_is_there(self, limited):
        weights = zeros(1024, 8, 1024)
        moved = torch.ones(3 * FLOATS).to("tiledev")
        support.synchronize()
        lost = zeros(60 * FLOATS)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            lost.cpu()
        text = str(caught.value)
        assert "asked for 60.0 MiB" in text
        assert "memory_limit" in text
        assert "[aten::zero_] failed on tiledev" in text
        largest, second = (text.index(size) for size in ("32.0 MiB  Float[1024, 8", "3.0 MiB  Fl"))
        assert largest < second
        assert text.count(f"{__file__}:") >= 3
        assert "in zeros" in text
        assert weights.sum().item() + moved.sum().item() == 3 * FLOATS

    def test_all_else_goes_on(self, limited):
        kept = zeros(40 * FLOATS)
        support.synchronize()
        lost = zeros(40 * FLOATS)
        after, apart = lost + 1, zeros(10) + 1
        with pytest.raises(torch.OutOfMemoryError):
            support.synchronize()
        assert apart.tolist() == [1] * 10
        with pytest.raises(torch.OutOfMemoryError, match="zero_"):
            after.cpu()
        del kept, lost, after
        again = zeros(40 * FLOATS) + 1  # the zeros need no memory of their own
        assert again[-1].item() == 1
        twice = again + again
        with pytest.raises(torch.OutOfMemoryError, match=r"aten::add"):
            twice.cpu()
        del again, twice
        again = zeros(60 * FLOATS)
        assert again.sum().item() == 0

    def test_results_of_kernels_count(self, limited):
        row = zeros(FLOATS)
        support.synchronize()
        lost = row.repeat(64)
        with pytest.raises(torch.OutOfMemoryError):
            lost.cpu()
        assert row.repeat(60).sum().item() == 0

    def test_copies_to_the_device_raise_at_once(self, limited):
        with pytest.raises(torch.OutOfMemoryError, match=r"asked for 65\.0 MiB"):
            torch.zeros(65 * FLOATS).to("tiledev")
        assert torch.zeros(60 * FLOATS).to("tiledev").sum().item() == 0

    @pytest.mark.filterwarnings("ignore:.*cannot be recorded")
    def test_fallbacks_raise_at_once(self, limited):
        mask = torch.ones(8 * MIB, dtype=torch.bool, device="tiledev")
        with pytest.raises(torch.OutOfMemoryError, match="largest live tensors"):
            mask.nonzero()
        assert mask[:100].nonzero().shape == (100, 1)

    def test_the_cache_makes_room(self, limited):
        allowed = tiledev._C.context_settings()["memory_limit"]
        torch.tiledev.empty_cache()
        torch.tiledev.reset_peak_memory_stats()
        others = torch.tiledev.memory_reserved()  # scratch that workers keep from earlier tests
        for mib in (30, 40, 50, 20, 60):
            assert zeros(mib * FLOATS).sum().item() == 0
        assert torch.tiledev.max_memory_reserved() <= allowed + others + MIB
        assert stats("num_alloc_retries") == [0]

    def test_scratch_counts(self):
        tiledev.shutdown_context()
        tiledev.init_context(2, memory_limit=12 * MIB + torch.tiledev.memory_allocated())
        # Not float32, of which no tile needs scratch here.
        x = torch.ones(2 * FLOATS, dtype=torch.float64, device="tiledev")
        tiledev.set_axis_group_name(x, {0: "scratch test"})
        tiledev.wait()

        def chain(tile):  # its temporaries take two tiles
            tiledev.set_axis_group_tiling("scratch test", tile)
            return ((x + 1) * (x + 2) * (x + 3).sqrt()).cpu()

        try:
            with pytest.raises(torch.OutOfMemoryError, match=r"asked for 8\.0 MiB.*memory_limit"):
                chain(2 * FLOATS)
            tiledev.wait()
            (before,) = stats("work_bytes.all.current")
            torch.tiledev.reset_peak_memory_stats()
            assert chain(FLOATS // 8).eq(12).all()
            now, peak = stats("work_bytes.all.current", "work_bytes.all.peak")
            assert now <= before  # a little may lie with the kept plans of earlier tests
            assert 0 < peak - before <= MIB  # two tiles of each worker
        finally:
            tiledev.clear_axis_group_tiling("scratch test")
            tiledev.shutdown_context()

    def test_errors_are_counted(self, limited):
        (before,) = stats("num_ooms")
        lost = zeros(65 * FLOATS)
        with pytest.raises(torch.OutOfMemoryError):
            lost.cpu()
        assert stats("num_ooms")[0] > before  # each worker may find out

    def test_the_end_of_the_context_ends_the_limit(self, limited):
        tiledev.shutdown_context()
        assert tiledev._C.context_settings()["memory_limit"] is None
        assert zeros(100 * FLOATS)[0].item() == 0

    def test_a_fraction_of_the_hosts_memory(self, limited):
        _, total = torch.tiledev.mem_get_info()
        torch.tiledev.set_per_process_memory_fraction(0.5)
        assert tiledev._C.context_settings()["memory_limit"] == total // 2
        assert zeros(100 * FLOATS)[0].item() == 0
        torch.tiledev.memory.set_per_process_memory_fraction(0.0, "tiledev:0")
        lost = zeros(1)
        with pytest.raises(torch.OutOfMemoryError):
            lost.cpu()

    @pytest.mark.parametrize(
        ("fraction", "error"), [(1.5, ValueError), (-0.1, ValueError), (1, TypeError)]
    )
    def test_bad_fractions_are_named(self, fraction, error):
        with pytest.raises(error, match="got fraction="):
            torch.tiledev.set_per_process_memory_fraction(fraction)


BEYOND = {
    "empty": lambda: torch.empty(1 << 50, device="tiledev"),
    "zeros": lambda: torch.zeros(1 << 46, dtype=torch.int8, device="tiledev"),
    "storage": lambda: torch.UntypedStorage(1 << 50, device="tiledev"),
    "resize_": lambda: zeros(3).resize_(1 << 50),
    "a result": lambda: zeros(8).expand(1 << 44, 8).clone(),
    "out=": lambda: torch.add(zeros(1).expand(1 << 50), 1, out=zeros(0)),
    "product": lambda: zeros(1, 1).expand(1 << 44, 1) @ zeros(1, 1 << 10),
    "cumsum": lambda: zeros(1).expand(1 << 44).cumsum(0),
}


class TestTheSystemHasNoMore:
    """16 TiB: within the addresses of the device, beyond the memory of any host."""

    HUGE = 1 << 44

    @pytest.mark.parametrize("op", ["fill_", "add"])
    def test_it_is_the_same_error(self, op):
        small, huge = zeros(3), zeros(1).char().expand(self.HUGE)
        support.synchronize()  # the error names tensors that have memory
        if op == "fill_":
            huge = torch.empty(self.HUGE, dtype=torch.int8, device="tiledev").fill_(1)
        else:
            huge = huge + 1
        with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
            support.synchronize()
        assert "largest live tensors" in str(caught.value)
        assert f"{__file__}:" in str(caught.value)
        del huge
        assert (small + 1).tolist() == [1, 1, 1]

    @pytest.mark.parametrize("what", BEYOND)
    def test_beyond_the_addresses(self, what):
        """The call itself is refused, in the words of all such errors."""
        small = zeros(1 << 20)
        support.synchronize()
        live = torch.tiledev.memory_stats()["active.all.current"]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            BEYOND[what]()
        text = str(caught.value)
        assert re.search(r"out of memory: asked for \d+\.\d [TP]iB, with .* allocated", text)
        assert "addresses for" in text
        assert re.search(rf"largest live tensors.*4\.0 MiB .* at {__file__}:", text, re.DOTALL)
        del caught, text
        assert (small + 1).sum().item() == 1 << 20
        assert torch.tiledev.memory_stats()["active.all.current"] <= live + 2
