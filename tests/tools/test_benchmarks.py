"""The benchmarks' command, on tiny works."""

import importlib.util
import json
import sys

import pytest
from benchmarks import compare, measure, rivals, works


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_command_writes_times_and_memory(tmp_path, capsys):
    path = tmp_path / "report.json"
    sizes = ["--scale", "small", "--rounds", "1", "--threads", "1"]
    sizes += ["--works", "W1", "--rivals", "cpu", "tiledev"]
    assert compare.main([*sizes, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    (row,), (memory,) = report["times"], report["memory"]
    assert row["work"] == memory["work"] == "W1"
    assert row["ratio"]["cpu"] > 0
    assert row["check"] == "ok"
    assert memory["ratio"] > 0
    assert "W1" in capsys.readouterr().out


def test_a_rival_that_fails_is_left_out(monkeypatch):
    def refuse(worker, request):
        raise measure.WorkerError("no such op")

    monkeypatch.setattr(measure.WorkerProcess, "__init__", lambda *args: None)
    monkeypatch.setattr(measure.WorkerProcess, "__exit__", lambda *args: None)
    monkeypatch.setattr(measure.WorkerProcess, "ask", refuse)
    row = measure.time_work(works.find("W5", "small"), ["cpu", "inductor", "tiledev"], 2, None)
    assert row.errors == {"cpu": "no such op", "tiledev": "no such op"}
    assert row.ratio("cpu") is None


@pytest.mark.parametrize(
    ("found", "verdict"),
    [([1.0, 2.0], "ok"), ([1.0, 2.1], "DIFFERS"), ([float("nan"), 2.0], "DIFFERS"), ([1.0], "DIF")],
)
def test_results_are_compared(found, verdict):
    assert measure.compare(found, [1.0, 2.0], rtol=1e-3).startswith(verdict)


def test_variants_follow_their_origin():
    names = [work.name for work in works.chosen(["W4b", "W5"], variants=True, scale="small")]
    assert names == ["W4b", "W4b-scaled", "W5"]


def test_a_missing_library_is_named(monkeypatch, capsys):
    monkeypatch.setattr(rivals, "find_tcmalloc", lambda: None)
    assert compare.present_rivals(["cpu", "tcmalloc"]) == ["cpu"]
    assert "libtcmalloc-minimal4" in capsys.readouterr().out


def test_a_missing_matplotlib_is_named(monkeypatch, capsys):
    monkeypatch.setattr(compare.report, "missing_for_plot", lambda: "pip install matplotlib")
    with pytest.raises(SystemExit):
        compare.parse_arguments(["--plot", "plot.png"])
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_plot_is_drawn(tmp_path):
    row = measure.Row(works.find("W1", "small"), {"cpu": [2.0], "tiledev": [1.0]})
    compare.report.write_plot(tmp_path / "plot.png", [row], ["cpu", "tiledev"])
    assert (tmp_path / "plot.png").stat().st_size > 0
