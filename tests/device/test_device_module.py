"""torch.tiledev and what torch itself does with it: accelerator, streams, memory, amp, profiler."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tiledev
from tests.device import scripts

pytestmark = pytest.mark.tiledev_only


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="tiledev")


class TestDevice:
    def test_there_is_one(self):
        assert torch.tiledev.is_available()
        assert torch.tiledev.device_count() == 1
        assert torch.tiledev.current_device() == 0
        assert ones(1).device == torch.device("tiledev", 0)
        assert ones(1).get_device() == 0

    @pytest.mark.parametrize("device", [0, "tiledev", "tiledev:0", torch.device("tiledev"), None])
    def test_it_can_be_selected(self, device):
        torch.tiledev.set_device(device)
        with torch.tiledev.device(device):
            assert torch.tiledev.current_device() == 0

    def test_negative_indices_select_nothing(self):
        torch.tiledev.set_device(-1)
        with torch.tiledev.device(-1):
            assert torch.tiledev.current_device() == 0

    @pytest.mark.parametrize(
        ("device", "error"),
        [(1, RuntimeError), ("tiledev:1", RuntimeError), ("cpu", ValueError), (0.5, TypeError)],
    )
    def test_others_cannot(self, device, error):
        with pytest.raises(error, match=r"\[set_device\]"):
            torch.tiledev.set_device(device)

    def test_device_of(self):
        for value in (ones(1), torch.ones(1), ones(1).untyped_storage()):
            with torch.tiledev.device_of(value):
                assert torch.tiledev.current_device() == 0

    def test_default_device(self):
        with torch.device("tiledev"):
            assert torch.arange(3).is_tiledev
            assert torch.nn.Linear(2, 2).weight.is_tiledev

    def test_a_device_that_is_not_there(self):
        with pytest.raises(RuntimeError):
            torch.ones(2, device="tiledev:1")

    def test_generated_methods(self):
        a = torch.ones(2)
        assert a.tiledev().is_tiledev
        assert not a.is_tiledev
        assert torch.nn.Linear(2, 2).tiledev().weight.is_tiledev
        assert a.untyped_storage().tiledev().is_tiledev
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
        assert packed.tiledev().is_tiledev

    def test_properties(self):
        properties = torch.tiledev.get_device_properties("tiledev:0")
        assert properties.total_memory > 1 << 28
        assert properties.multi_processor_count >= 1
        assert properties.name == torch.tiledev.get_device_name()
        assert torch.float32 in torch.tiledev.get_device_capability()["supported_dtypes"]
        assert torch.tiledev.is_bf16_supported()

    def test_init_makes_the_context(self):
        tiledev.shutdown_context()
        assert not torch.tiledev.is_initialized()
        torch.tiledev.init()
        assert torch.tiledev.is_initialized()
        torch.tiledev.init()

    def test_everything_public_is_there_and_documented(self):
        for name in torch.tiledev.__all__:
            assert getattr(torch.tiledev, name).__doc__, name


class TestAccelerator:
    def test_it_is_the_accelerator(self):
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() == torch.device("tiledev")
        assert torch.accelerator.device_count() == 1
        assert torch.accelerator.current_device_index() == 0
        torch.accelerator.set_device_index(0)
        with torch.accelerator.device_index(0):
            pass

    def test_synchronize_runs_what_is_pending(self):
        a = ones(3) + 1
        torch.accelerator.synchronize()
        assert not tiledev.has_pending_graph()
        assert a.tolist() == [2, 2, 2]

    def test_streams(self):
        stream = torch.accelerator.current_stream()
        assert stream.device.type == "tiledev"
        torch.accelerator.set_stream(stream)
        with torch.Stream("tiledev") as other:
            a = ones(2) + 1
            other.synchronize()
        event = other.record_event()
        event.synchronize()
        stream.wait_event(event)
        stream.wait_stream(other)
        assert event.query()
        assert stream.query()
        assert a.tolist() == [2, 2]

    def test_memory(self):
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        a = ones(1 << 20) + 1
        torch.accelerator.synchronize()
        assert torch.accelerator.memory_allocated() - before >= a.nbytes
        assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
        assert torch.accelerator.memory_reserved() >= a.nbytes
        generic, ours = torch.accelerator.memory_stats(), torch.tiledev.memory_stats()
        own = {"cached_bytes", "cache_hits", "cache_misses"}
        own |= {"work_bytes.all.current", "work_bytes.all.peak"}
        assert set(ours) - set(generic) == own
        assert {name: generic[name] for name in ours if name not in own} == {
            name: value for name, value in ours.items() if name not in own
        }
        torch.accelerator.empty_cache()
        torch.accelerator.reset_accumulated_memory_stats()
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free <= total

    def test_capability(self):
        assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


class TestSynchronize:
    def test_it_runs_and_waits(self):
        a = ones(3) + 1
        torch.tiledev.synchronize()
        assert not tiledev.has_pending_graph()
        assert tiledev._C.counters()["nodes_in_flight"] == 0
        assert a.tolist() == [2, 2, 2]

    def test_it_raises_what_failed(self):
        ones(4).index_select(0, torch.tensor([7], device="tiledev")).add_(1)
        lost = ones(4).index_select(0, torch.tensor([7], device="tiledev"))
        with pytest.raises(IndexError):
            torch.tiledev.synchronize("tiledev:0")
        del lost

    def test_it_checks_its_argument(self):
        with pytest.raises(ValueError, match=r"\[synchronize\]"):
            torch.tiledev.synchronize("cpu")


class TestStreams:
    def test_there_is_one_stream(self):
        current = torch.tiledev.current_stream()
        assert isinstance(current, torch.Stream)
        assert current == torch.tiledev.default_stream() == torch.tiledev.Stream()
        assert current == torch.accelerator.current_stream()
        assert current.device == torch.device("tiledev", 0)

    def test_selecting_it(self):
        stream = torch.tiledev.Stream(priority=-1)
        torch.tiledev.set_stream(stream)
        with torch.tiledev.stream(stream), torch.tiledev.stream(None):
            a = ones(2) + 1
        stream.wait_stream(torch.tiledev.current_stream())
        assert stream.query()
        assert not tiledev.has_pending_graph()
        assert a.tolist() == [2, 2]

    def test_record_stream(self):
        ones(2).record_stream(torch.tiledev.current_stream())

    def test_events_wait_for_what_came_before(self):
        a = ones(2) + 1
        event = torch.tiledev.current_stream().record_event()
        event.wait()
        torch.tiledev.current_stream().wait_event(event)
        event.synchronize()
        assert not tiledev.has_pending_graph()
        assert event.query()
        assert a.tolist() == [2, 2]

    def test_elapsed_time_is_that_of_the_work(self):
        a = torch.rand(700, 700, device="tiledev")
        start, end = (torch.tiledev.Event(enable_timing=True) for _ in range(2))
        start.record()
        b = a @ a @ a
        end.record()
        end.synchronize()
        assert 0.5 < start.elapsed_time(end) < 60_000
        assert b.isfinite().all()

    def test_elapsed_time_says_what_is_missing(self):
        timed, untimed = torch.tiledev.Event(enable_timing=True), torch.tiledev.Event()
        with pytest.raises(RuntimeError, match="not recorded"):
            timed.elapsed_time(timed)
        timed.record()
        with pytest.raises(RuntimeError, match="enable_timing=True"):
            timed.elapsed_time(untimed)

    def test_generic_events_wait_but_take_no_times(self):
        start, end = (torch.Event("tiledev", enable_timing=True) for _ in range(2))
        start.record()
        a = ones(8) + 1
        end.record()
        end.synchronize()
        assert not tiledev.has_pending_graph()
        assert a.tolist() == [2] * 8
        with pytest.raises(NotImplementedError, match=r"torch\.tiledev\.Event"):
            start.elapsed_time(end)


class TestMemory:
    def test_it_follows_the_tensors(self):
        torch.tiledev.synchronize()
        torch.tiledev.reset_peak_memory_stats()
        before = torch.tiledev.memory_allocated()
        a = ones(1 << 20) + 1
        torch.tiledev.synchronize()
        during = torch.tiledev.memory_allocated()
        assert during - before >= a.nbytes
        del a
        torch.tiledev.synchronize()
        assert torch.tiledev.memory_allocated() <= before
        assert torch.tiledev.max_memory_allocated() >= during
        torch.tiledev.reset_peak_memory_stats()
        assert torch.tiledev.max_memory_allocated() < during
        assert torch.tiledev.max_memory_reserved() >= torch.tiledev.memory_reserved() >= 0

    def test_nothing_is_allocated_by_recording(self):
        torch.tiledev.synchronize()
        before = torch.tiledev.memory_allocated()
        a = torch.empty(1 << 20, device="tiledev").fill_(1) * 2
        assert torch.tiledev.memory_allocated() == before
        assert a[0].item() == 2

    def test_summary_and_cache(self):
        torch.tiledev.empty_cache()
        assert "allocated_bytes.all.current" in torch.tiledev.memory_summary()
        assert len(torch.tiledev.memory_summary(abbreviated=True).splitlines()) >= 3
        free, total = torch.tiledev.mem_get_info()
        assert 0 < free <= total
        with pytest.raises(RuntimeError, match=r"\[memory_allocated\]"):
            torch.tiledev.memory_allocated(1)


class TestAmp:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast(self, dtype):
        assert dtype in torch.tiledev.get_amp_supported_dtype()
        assert torch.amp.is_autocast_available("tiledev")
        a = ones(4, 4)
        with torch.tiledev.amp.autocast(dtype=dtype):
            product = a @ a
            assert product.dtype == dtype
            assert product.softmax(0).dtype == torch.float32
            with torch.autocast("tiledev", enabled=False):
                assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.float32
        assert product.tolist() == [[4] * 4] * 4

    def test_an_unknown_dtype_warns_and_disables(self):
        with pytest.warns(UserWarning, match="tiledev"), torch.autocast("tiledev", torch.float64):
            assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32

    def test_grad_scaler_skips_a_step_that_overflows(self):
        weight = torch.nn.Parameter(ones(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.tiledev.amp.GradScaler(init_scale=4.0, growth_interval=1)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0, 0, 0]
        assert scaler.get_scale() == 8
        optimizer.zero_grad()
        scaler.scale(weight.sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0, 0, 0]
        assert scaler.get_scale() == 4

    def test_custom_function(self):
        class Double(torch.autograd.Function):
            @staticmethod
            @torch.tiledev.amp.custom_fwd(cast_inputs=torch.float32)
            def forward(ctx, a):
                return a * 2

            @staticmethod
            @torch.tiledev.amp.custom_bwd
            def backward(ctx, grad):
                return grad * 2

        a = ones(2).bfloat16().requires_grad_()
        with torch.autocast("tiledev", dtype=torch.bfloat16):
            result = Double.apply(a)
        assert result.dtype == torch.float32
        result.sum().backward()
        assert a.grad.tolist() == [2, 2]


class TestTorchUtilities:
    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_checkpoint_replays_dropout(self, use_reentrant):
        def block(a):
            return torch.nn.functional.dropout(a, 0.5) * 2

        a = ones(1000).requires_grad_()
        result = checkpoint(block, a, use_reentrant=use_reentrant)
        result.sum().backward()
        assert torch.equal(result.detach().cpu(), a.grad.cpu())
        assert 0 < (a.grad == 0).sum().item() < 1000

    def test_pinned_memory(self):
        pinned = torch.ones(8).pin_memory()
        assert pinned.is_pinned()
        assert torch.empty(3, pin_memory=True).is_pinned()
        assert not torch.ones(8).is_pinned()
        assert pinned.to("tiledev", non_blocking=True).tolist() == [1] * 8

    def test_data_loader_pins(self):
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
        batches = [batch for (batch,) in loader]
        assert all(batch.is_pinned() for batch in batches)
        sums = [batch.to("tiledev", non_blocking=True).sum() for batch in batches]
        assert [total.item() for total in sums] == [6, 22]

    def test_profiler(self):
        with torch.profiler.profile() as profile:
            (ones(4) + 1).sum().item()
        assert any("add" in event.key for event in profile.key_averages())

    def test_profiler_of_the_device(self, capfd):
        with torch.autograd.profiler.profile(use_device="tiledev") as profile:
            (ones(4) + 1).sum().item()
        assert profile.key_averages()
        assert "ERROR" not in capfd.readouterr().err

    def test_deterministic_mode_fills(self):
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.empty(3, device="tiledev").isnan().all()
            assert torch.empty(3, device="tiledev", dtype=torch.int32).tolist() == [2**31 - 1] * 3
        finally:
            torch.use_deterministic_algorithms(False)

    def test_dynamo_knows_the_device(self):
        code = """
            import sys, torch, tiledev
            assert "torch._dynamo" not in sys.modules
            import torch._dynamo
            from torch._dynamo.device_interface import get_interface_for_device
            for name in ("tiledev", "tiledev:0"):
                assert get_interface_for_device(name).current_device() == 0

            from tiledev._dynamo import backend

            def function(a):
                return (a * 2).relu().sum()

            a = torch.ones(3, device="tiledev", requires_grad=True)
            for chosen in ("eager", "aot_eager", backend):
                torch._dynamo.reset()
                a.grad = None
                result = torch.compile(function, backend=chosen, fullgraph=True)(a)
                result.backward()
                assert (result.item(), a.grad.tolist()) == (6.0, [2.0, 2.0, 2.0])
        """
        done = scripts.run(code, timeout=240)
        assert done.returncode == 0, done.stderr
