"""A program ends cleanly from any state: exit code 0 and nothing on stderr."""

import signal
import textwrap
import time

import pytest

from tests.device import scripts

pytestmark = pytest.mark.tiledev_only

BACKWARD = """
    import torch, tiledev
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model.to("tiledev")
    loss = model(torch.ones(8, 16, device="tiledev")).square().mean()
    loss.backward()
"""

# With a thread of autograd's own, as PyTorch has it for other accelerators.
BACKWARD_ELSEWHERE = BACKWARD.replace(
    "loss.backward()",
    "with torch.autograd.set_multithreading_enabled(True):\n        loss.backward()",
)

STATES = {
    "nothing": "import torch, tiledev",
    "a context": "import tiledev; tiledev.init_context(2)",
    "pending work": """
        import torch, tiledev
        a = torch.ones(1000, device="tiledev")
        for _ in range(100):
            a = a * 1.01
    """,
    "a compiled graph": """
        import torch, tiledev
        a = torch.ones(1000, device="tiledev") + 1
        tiledev.compile_graph()
    """,
    "running work": """
        import torch, tiledev
        a = torch.ones(600, 600, device="tiledev")
        for _ in range(30):
            a = a @ a * 1e-3
        tiledev.execute()
    """,
    "failed work": """
        import torch, tiledev
        a = torch.ones(4, device="tiledev")
        lost = a.index_select(0, torch.tensor([9], device="tiledev")) + 1
        tiledev.execute()
    """,
    "failed work that is pending": """
        import torch, tiledev
        a = torch.ones(4, device="tiledev")
        lost = a.index_select(0, torch.tensor([9], device="tiledev")) + 1
    """,
    "a reported error": """
        import torch, tiledev
        a = torch.ones(4, device="tiledev")
        lost = a.index_select(0, torch.tensor([9], device="tiledev"))
        try:
            lost.cpu()
        except IndexError:
            pass
    """,
    "an explicit shutdown": """
        import torch, tiledev
        a = torch.ones(4, device="tiledev") + 1
        tiledev.shutdown_context()
        b = a + 1
    """,
    "a thread that recorded": """
        import threading, torch, tiledev
        def work():
            global a
            a = (torch.ones(64, 64, device="tiledev", requires_grad=True) * 2).sum()
            a.backward()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """,
    "a daemon thread that sleeps": """
        import threading, time, torch, tiledev
        def work():
            a = torch.ones(64, device="tiledev", requires_grad=True)
            (a * 2).sum().backward()
            done.set()
            time.sleep(1000)
        done = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        done.wait()
    """,
    "a caught interrupt": """
        import torch, tiledev
        a = torch.ones(8, device="tiledev")
        try:
            b = a + 1
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    """,
    "eager mode": """
        import torch, tiledev
        mode = tiledev.eager()
        mode.__enter__()
        a = torch.ones(8, device="tiledev", requires_grad=True)
        (a * 2).sum().backward()
    """,
    "a generator in use": """
        import torch, tiledev
        torch.manual_seed(1)
        generator = torch.Generator("tiledev")
        a = torch.rand(8, device="tiledev", generator=generator) + torch.rand(8, device="tiledev")
    """,
    "a tensor in a cycle": """
        import torch, tiledev
        class Holder: pass
        holder = Holder()
        holder.self, holder.a = holder, torch.ones(8, device="tiledev") + 1
        del holder
    """,
    "a tensor used at exit": """
        import atexit, torch
        a = torch.ones(8)
        atexit.register(lambda: a.to("tiledev").add(1).sum().item())
        import tiledev
        b = a.to("tiledev") + 1
    """,
    "an optimizer step": BACKWARD
    + """
    torch.optim.Adam(model.parameters()).step()
    """,
}


def run_forked(code: str, runs: int) -> None:
    """Runs a program in children of one process that has done all imports, which is fast.

    A fork before the first use of the device is harmless, and a child that reaches the end of the
    program takes the whole way out: atexit handlers, modules, interpreter, static objects.
    """
    program = f"""
import os, sys, torch, tiledev
for run in range({runs}):
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"run {{run}} ended with status {{status}}")
else:
    sys.exit()
"""
    scripts.check(program + textwrap.dedent(code), timeout=300)


def run_many(code: str, runs: int, at_once: int = 2) -> None:
    """Runs a program many times in processes of their own, some at once."""
    for _ in range(0, runs, at_once):
        for process in [scripts.start(code) for _ in range(at_once)]:
            done = scripts.finish(process)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("state", STATES)
def test_exit_with(state):
    scripts.check(STATES[state])


@pytest.mark.parametrize("code", [BACKWARD, BACKWARD_ELSEWHERE], ids=["here", "elsewhere"])
def test_exit_right_after_backward(code):
    run_many(code, 6)


@pytest.mark.parametrize("code", [BACKWARD, BACKWARD_ELSEWHERE], ids=["here", "elsewhere"])
def test_exit_right_after_backward_40_times_in_children(code):
    run_forked(code, 40)


def test_exit_does_not_wait_for_all_ops_of_a_long_task():
    code = """
        import time, torch, tiledev
        x = torch.rand(1500, 1500, device="tiledev") / 1500
        (x @ x).sum().item()
        begin = time.monotonic()
        (x @ x).sum().item()
        of_one = time.monotonic() - begin
        y = x
        for _ in range(300):
            y = y @ x
        tiledev.execute()
        print(of_one, time.monotonic(), flush=True)
    """
    done = scripts.run(textwrap.dedent(code))
    end = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    of_one, begin = map(float, done.stdout.split())
    assert end - begin < 100 * of_one + 5


@pytest.mark.parametrize("state", ["running work", "failed work", "a thread that recorded"])
def test_exit_8_times_in_children_with(state):
    run_forked(STATES[state], 8)


@pytest.mark.slow
def test_exit_right_after_backward_100_times():
    run_many(BACKWARD_ELSEWHERE, 100)


def test_exit_code_of_the_program_is_kept():
    done = scripts.run(textwrap.dedent(BACKWARD) + "import sys; sys.exit(7)")
    assert (done.returncode, done.stderr) == (7, "")


def test_an_uncaught_error_is_the_only_thing_printed():
    done = scripts.run(textwrap.dedent(BACKWARD) + "raise ValueError('mine')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: mine"
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("doing", ["torch.tiledev.synchronize()", "pass"])
def test_an_interrupt_ends_a_program_that_waits_or_records(doing):
    code = f"""
        import torch, tiledev
        a = torch.ones(99, 99, device="tiledev")
        print("ready", flush=True)
        while True:
            a = (a @ a) * 1e-2
            {doing}
    """
    process = scripts.start(code)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    done = scripts.finish(process, timeout=30)
    assert done.returncode in (1, -signal.SIGINT)
    assert done.stderr.splitlines()[-1].startswith("KeyboardInterrupt")
    assert "terminate called" not in done.stderr


def test_work_goes_on_after_an_interrupt():
    code = """
        import os, signal, threading, time, torch, tiledev
        a = torch.ones(1500, 1500, device="tiledev")
        for _ in range(20):
            a = (a @ a) * 1e-4
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            torch.tiledev.synchronize()
            time.sleep(5)
        except KeyboardInterrupt:
            print("interrupted")
        torch.tiledev.synchronize()
        print(a.isfinite().all().item(), (torch.ones(2, device="tiledev") + 1).tolist())
    """
    assert scripts.check(code) == "interrupted\nTrue [2.0, 2.0]\n"
