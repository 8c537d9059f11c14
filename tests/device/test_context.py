"""The functions of the package `tiledev`: settings, flushes, statistics and modes."""

import os
import warnings

import pytest
import torch

import tiledev
from tests.device import scripts

pytestmark = pytest.mark.tiledev_only


@pytest.fixture
def fresh():
    """No context before the test, and none of its settings after it."""
    tiledev.shutdown_context()
    yield
    tiledev.shutdown_context()


@pytest.fixture
def clean():
    """Nothing pending before the test."""
    tiledev.execute()
    tiledev.wait()


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="tiledev")


class TestSettings:
    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"ncpu": 0}, ValueError),
            ({"ncpu": -2}, ValueError),
            ({"ncpu": 100_000}, ValueError),
            ({"ncpu": 1.0}, TypeError),
            ({"ncpu": True}, TypeError),
            ({"ncpu": None}, TypeError),
            ({"ncuda": -1}, ValueError),
            ({"ncuda": "0"}, TypeError),
            ({"cpu_fallback": 1}, TypeError),
            ({"verbose": -1}, ValueError),
            ({"verbose": "loud"}, TypeError),
            ({"max_pending_nodes": 0}, ValueError),
            ({"max_pending_nodes": 1e5}, TypeError),
            ({"max_pending_bytes": 0}, ValueError),
            ({"max_pending_bytes": -1}, ValueError),
            ({"memory_limit": 0}, ValueError),
            ({"memory_limit": "4GiB"}, TypeError),
            ({"pin_workers": 1}, TypeError),
        ],
    )
    def test_bad_arguments_are_named(self, fresh, arguments, error):
        (name,) = arguments
        with pytest.raises(error, match=rf"\[init_context\] got {name}="):
            tiledev.init_context(**arguments)
        assert not tiledev.is_context_initialized()

    def test_only_the_counts_of_workers_are_positional(self):
        with pytest.raises(TypeError):
            tiledev.init_context(1, 0, True)

    def test_cuda_workers_without_cuda_name_the_build(self, fresh, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(RuntimeError, match="without CUDA") as caught:
            tiledev.init_context(ncuda=1)
        assert torch.__version__ in str(caught.value)
        assert "install" in str(caught.value)

    def test_cuda_workers_with_cuda_are_not_there_yet(self, fresh, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(NotImplementedError, match="no CUDA workers yet"):
            tiledev.init_context(ncuda=1)

    def test_settings_are_taken(self, fresh):
        tiledev.init_context(1, cpu_fallback=False, max_pending_nodes=77, memory_limit=1 << 30)
        assert tiledev.is_context_initialized()
        settings = tiledev._C.context_settings()
        assert settings["ncpu"] == 1
        assert settings["cpu_fallback"] is False
        assert settings["max_pending_nodes"] == 77
        assert settings["memory_limit"] == 1 << 30

    def test_the_same_settings_again_are_fine(self, fresh):
        tiledev.init_context(ncpu=2)
        assert (ones(3) + 1).tolist() == [2, 2, 2]
        tiledev.init_context(ncpu=2)

    def test_the_first_op_makes_the_default_context(self, fresh):
        assert not tiledev.is_context_initialized()
        assert ones(2).sum().item() == 2
        assert tiledev.is_context_initialized()
        tiledev.init_context()

    def test_other_settings_after_work_say_what_to_do(self, fresh):
        ones(2).sum().item()
        with pytest.raises(RuntimeError, match="shutdown_context"):
            tiledev.init_context(ncpu=3)
        tiledev.shutdown_context()
        tiledev.init_context(ncpu=3)
        assert ones(2).sum().item() == 2

    def test_shutdown_twice_and_use_after(self, fresh):
        tiledev.shutdown_context()
        tiledev.shutdown_context()
        assert not tiledev.is_context_initialized()
        assert (ones(2) * 3).tolist() == [3, 3]

    def test_values_outlive_the_context(self, fresh):
        a = ones(3) * 2
        tiledev.execute()
        tiledev.wait()
        tiledev.shutdown_context()
        assert a.tolist() == [2, 2, 2]

    def test_values_that_shutdown_left_pending_cannot_be_read(self, fresh):
        base = ones(3)
        base.cpu()
        a = base * 2
        tiledev.shutdown_context()
        with pytest.raises(RuntimeError, match="shutdown_context"):
            a.tolist()
        assert base.tolist() == [1, 1, 1]

    def test_a_limit_on_pending_nodes_flushes(self, fresh):
        tiledev.init_context(max_pending_nodes=50)
        a = ones(4)
        for _ in range(200):
            a = a + 1
        assert len(tiledev.pending_op_names()) <= 50
        assert a.tolist() == [201] * 4

    def test_a_limit_on_pending_bytes_flushes(self, fresh):
        tiledev.init_context(max_pending_bytes=1 << 20)
        a = ones(1 << 16)
        for _ in range(100):
            a = a + 1
        assert len(tiledev.pending_op_names()) <= 8
        assert a[0].item() == 101


class TestFlushes:
    def test_ops_are_recorded_in_order(self, clean):
        a = ones(2).mul(3).relu()
        names = tiledev.pending_op_names()
        assert [name for name in names if "mul" in name or "relu" in name] == names[-2:]
        assert tiledev.has_pending_graph()
        assert a.tolist() == [3, 3]

    def test_execute_leaves_nothing_pending(self, clean):
        a = ones(2) + 1
        tiledev.execute()
        assert not tiledev.has_pending_graph()
        assert tiledev.pending_op_names() == []
        tiledev.wait()
        assert a.tolist() == [2, 2]

    def test_compile_and_run_are_its_halves(self, clean):
        a = ones(2) + 1
        before = tiledev._C.counters()["nodes_run"]
        tiledev.compile_graph()
        assert tiledev._C.counters()["nodes_run"] == before
        tiledev.run()
        tiledev.wait()
        assert tiledev._C.counters()["nodes_run"] > before
        assert a.tolist() == [2, 2]

    def test_flushing_nothing_does_nothing(self, clean):
        flushes = tiledev._C.counters()["flushes"]
        for call in (tiledev.compile_graph, tiledev.run, tiledev.execute, tiledev.wait):
            call()
        assert tiledev._C.counters()["flushes"] == flushes

    def test_ops_recorded_after_compile_run_as_well(self, clean):
        a = ones(2) + 1
        tiledev.compile_graph()
        b = a * 5
        tiledev.run()
        assert b.tolist() == [10, 10]
        assert a.tolist() == [2, 2]

    def test_a_readout_runs_only_what_it_needs(self, clean):
        wanted, other = ones(2) + 1, ones(2).exp()
        assert wanted.tolist() == [2, 2]
        assert any("exp" in name for name in tiledev.pending_op_names())
        assert other.tolist() == pytest.approx([2.71828] * 2, rel=1e-5)

    def test_reset_forgets(self, clean):
        base = ones(2)
        base.cpu()
        a = base + 1
        tiledev.reset_graph()
        assert not tiledev.has_pending_graph()
        with pytest.raises(RuntimeError, match="reset_graph"):
            a.tolist()
        assert (base * 4).tolist() == [4, 4]

    def test_an_error_appears_at_the_wait_with_op_and_line(self, clean):
        table, fine = ones(4, 2), ones(2) + 1
        index = torch.tensor([9], device="tiledev")
        lost = table.index_select(0, index)
        tiledev.execute()
        with pytest.raises(IndexError, match=r"index_select[\s\S]*test_context\.py:\d+"):
            tiledev.wait()
        tiledev.wait()  # an error is raised once
        with pytest.raises(IndexError, match="index_select"):
            lost.tolist()
        assert fine.tolist() == [2, 2]
        assert (table + 1).sum().item() == 16

    def test_plans_are_found_again(self, clean):
        def step(value: float) -> list[float]:
            return (torch.full((5,), value, device="tiledev") * value).relu().tolist()

        step(1.0)
        before = tiledev.plan_cache_stats()
        step(2.0)
        after = tiledev.plan_cache_stats()
        assert after["misses"] == before["misses"]
        assert after["hits"] > before["hits"]


class TestModes:
    def test_eager_runs_at_once_and_ends(self, clean):
        with tiledev.eager():
            a = ones(2) + 1
            assert not tiledev.has_pending_graph()
            with tiledev.eager():
                pass
            ones(2).add_(1)
            assert not tiledev.has_pending_graph()
        b = a + 1
        assert tiledev.has_pending_graph()
        assert b.tolist() == [3, 3]

    def test_eager_raises_at_the_line(self, clean):
        index = torch.tensor([9], device="tiledev")
        table = ones(4)
        with tiledev.eager(), pytest.raises(IndexError):
            table.index_select(0, index)
        assert (ones(2) + 1).tolist() == [2, 2]

    def test_eager_runs_what_was_pending_first(self, clean):
        a = ones(2) + 1
        with tiledev.eager():
            b = a * 2
        assert b.tolist() == [4, 4]

    def test_an_exception_ends_eager(self, clean):
        with pytest.raises(KeyError), tiledev.eager():
            raise KeyError
        assert not tiledev._C.is_eager()

    def test_restricting_to_the_cpu(self, clean):
        tiledev.restrict_cpu()
        assert (ones(2) + 1).tolist() == [2, 2]
        tiledev.restore_where()
        assert (ones(2) + 1).tolist() == [2, 2]

    def test_restricting_to_workers_that_are_not_there(self, clean):
        with pytest.raises(RuntimeError, match=r"\[restrict_cuda\]"):
            tiledev.restrict_cuda()
        assert (ones(2) + 1).tolist() == [2, 2]


class TestFallback:
    """torch.nonzero has a result whose shape depends on the data, so it cannot be recorded."""

    def test_it_is_counted(self, clean):
        tiledev.reset_stats()
        assert tiledev.fallback_stats() == {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                ones(3).nonzero()
        (name,) = (name for name in tiledev.fallback_stats() if "nonzero" in name)
        assert tiledev.fallback_stats()[name] == 3
        tiledev.reset_stats()
        assert tiledev.fallback_stats() == {}

    def test_it_warns_once_for_each_op(self):
        code = """
            import warnings, torch, tiledev
            warnings.simplefilter("always")
            with warnings.catch_warnings(record=True) as caught:
                for _ in range(3):
                    torch.ones(3, device="tiledev").nonzero()
            print(sum("nonzero" in str(warning.message) for warning in caught))
        """
        assert scripts.check(code) == "1\n"

    def test_it_can_be_forbidden(self, fresh):
        tiledev.init_context(cpu_fallback=False)
        a = ones(3) + 1
        pending = tiledev.pending_op_names()
        with pytest.raises(NotImplementedError, match="nonzero"):
            a.nonzero()
        assert tiledev.pending_op_names() == pending
        assert tiledev.fallback_stats().get("aten::nonzero", 0) == 0
        assert a.tolist() == [2, 2, 2]


class TestInformation:
    def test_built_info(self):
        info = tiledev.built_info()
        assert info.version == tiledev.__version__
        assert info.torch_running == torch.__version__
        minor = [version.split(".")[:2] for version in (info.torch_built, info.torch_running)]
        assert minor[0] == minor[1]
        assert info.compiler
        assert info.build_type
        with pytest.raises(AttributeError):
            info.version = "2"

    @pytest.mark.parametrize("rich", [True, False])
    def test_print_info(self, capsys, monkeypatch, rich):
        if rich:
            pytest.importorskip("rich")
        else:
            monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
        ones(2).sum().item()
        tiledev.print_info()
        out = capsys.readouterr().out
        for word in (torch.__version__, tiledev.__version__, "ncpu", "hits", "nodes_run"):
            assert word in out

    def test_print_info_without_a_context(self, fresh, capsys):
        tiledev.print_info()
        assert "not made yet" in capsys.readouterr().out
        assert not tiledev.is_context_initialized()

    def test_dump_graph(self, clean):
        a = ones(2).mul(3)
        pending = tiledev.pending_op_names()
        text, dot = tiledev.dump_graph(), tiledev.dump_graph("dot")
        assert "mul" in text
        assert dot.startswith("digraph")
        assert dot.rstrip().endswith("}")
        assert "mul" in dot
        assert tiledev.pending_op_names() == pending
        assert a.tolist() == [3, 3]

    def test_dump_graph_names_a_bad_format(self):
        with pytest.raises(ValueError, match=r"\[dump_graph\] got format='svg'"):
            tiledev.dump_graph("svg")

    def test_everything_public_is_documented(self):
        for name in tiledev.__all__:
            assert getattr(tiledev, name).__doc__, name


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="threads can be bound on Linux only"
)
def test_pinned_workers():
    code = """
        import os, pathlib, torch, tiledev
        tiledev.init_context(ncpu=2, pin_workers=True)
        x = torch.randn(300, 300, device="tiledev")
        whole = torch.linalg.inv(x).sum()
        tiled = (torch.randn(2000, 500, device="tiledev") + 1).sum()
        tiledev.wait()
        cores = {"tiledev_0": [], "tiledev_1": []}
        for task in pathlib.Path("/proc/self/task").iterdir():
            name = (task / "comm").read_text().strip()
            if name in cores:  # threads that an op has started inherit the name
                cores[name].append(os.sched_getaffinity(int(task.name)))
        mine = sorted(os.sched_getaffinity(0))
        for index, found in enumerate(cores.values()):
            assert {mine[index % len(mine)]} in found, cores
            assert all(core in ({mine[index % len(mine)]}, set(mine)) for core in found), cores
        print("ok")
    """
    assert scripts.check(code) == "ok\n"
