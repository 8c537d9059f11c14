"""Failures inside of tiled segments: what is raised, what survives, and that the device goes on."""

import gc
import re
import signal
import time

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.device import scripts

pytestmark = [pytest.mark.tiledev_only, pytest.mark.usefixtures("two_workers")]

DEVICE = support.DEVICE
MIB = 1 << 20
ROWS = 4096


def rows(seed=0):
    return torch.randn(ROWS, 256, generator=torch.Generator().manual_seed(seed))


def index(bad=None, below=256):
    """An index for each row, out of range for the rows in `bad`."""
    i = torch.randint(0, below, (ROWS,), generator=torch.Generator().manual_seed(1))
    for row in bad or []:
        i[row] = below + 7
    return i


FAILURES = {
    "gather": (lambda x, i: (x * 2).gather(1, i[:, None]), "gather", 256),
    "nll_loss": (lambda x, i: F.nll_loss(x.log_softmax(1), i), "nll_loss", 256),
    "nll_loss of rows": (
        lambda x, i: F.nll_loss(x.log_softmax(1), i, reduction="none"),
        "nll_loss",
        256,
    ),
    "index_select": (lambda x, i: (x * 2).index_select(0, i) + 1, "index_select", ROWS),
    "embedding": (lambda x, i: F.embedding(i, x * 2).relu(), "index_select", ROWS),
    "scatter": (lambda x, i: (x * 2).scatter(1, i[:, None], 1.0), "scatter", 256),
    "scatter_add": (lambda x, i: (x * 2).scatter_add(1, i[:, None], x), "scatter_add", 256),
    "division": (lambda x, i: i // (i - i[3000]), "div", 256),
}


def segment_of(*ops):
    """Whether one tiled segment of the last plan runs all of these ops."""
    lines = tiledev.explain().splitlines()[1:]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return any(" tiles of " in head and all(op in body for op in ops) for head, body in pairs)


@pytest.mark.parametrize("bad", [[0], [3000], [ROWS - 1], [5, 2000, 4000]], ids=str)
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_in_a_tile(name, bad):
    make, op, below = FAILURES[name]
    x, i = rows(), index(bad, below)
    with pytest.raises((RuntimeError, IndexError)) as cpu:
        make(x, i)
    x, i = x.to(DEVICE), i.to(DEVICE)
    tiledev.wait()
    failed = make(x, i)
    dependent = (failed + 1) * 2
    total = dependent.sum()
    survivor = (x * 3).relu()
    summed = survivor.sum(0)
    with pytest.raises(cpu.type) as caught:
        tiledev.wait()
    assert op in str(caught.value)
    assert re.search(r"test_failures\.py:\d+", str(caught.value))
    torch.testing.assert_close(survivor.cpu(), (rows() * 3).relu())
    torch.testing.assert_close(summed.cpu(), (rows() * 3).relu().sum(0), rtol=1e-4, atol=1e-2)
    for lost in (failed, dependent, total):
        with pytest.raises(cpu.type, match=op):
            lost.cpu()
    assert_goes_on()


def assert_goes_on():
    tiledev.wait()
    x = rows(9).to(DEVICE)
    torch.testing.assert_close(((x * 2).relu() + 1).cpu(), (rows(9) * 2).relu() + 1)


def test_it_is_one_segment_that_fails_and_survives():
    x, i = rows().to(DEVICE), index([3000]).to(DEVICE)
    tiledev.wait()
    failed, survivor = (x * 2).gather(1, i[:, None]) + 1, (x * 3).relu()
    with pytest.raises(RuntimeError, match="gather"):
        tiledev.wait()
    assert segment_of("gather", "relu"), tiledev.explain()
    torch.testing.assert_close(survivor.cpu(), (rows() * 3).relu())
    del failed


def test_the_counts_of_what_failed_and_was_skipped():
    x, i = rows().to(DEVICE), index([1, 3000]).to(DEVICE)
    tiledev.wait()
    before = support.counters()
    kept = ((x * 2).gather(1, i[:, None]) + 1).sum()
    with pytest.raises(RuntimeError):
        tiledev.wait()
    grown = support.stats_since(before, support.counters())
    assert grown["nodes_failed"] == 1  # though two tiles did
    assert grown["nodes_skipped"] == 2
    del kept


def test_two_steps_of_a_segment_fail():
    x, i = rows().to(DEVICE), index([10]).to(DEVICE)
    tiledev.wait()
    one, two = (x * 2).gather(1, i[:, None]), F.nll_loss(x.log_softmax(1), i)
    with pytest.raises((RuntimeError, IndexError)) as caught:
        tiledev.wait()
    assert "gather" in str(caught.value)
    assert "nll_loss" in str(caught.value)
    for lost in (one, two):
        with pytest.raises((RuntimeError, IndexError)):
            lost.cpu()


def test_the_same_plan_works_before_and_after_a_failure():
    x, good, bad = (t.to(DEVICE) for t in (rows(), index(), index([3000])))
    want = ((rows() * 2).gather(1, index()[:, None]) + 1).sum(0)
    misses = []
    for i in (good, bad, good, bad, bad, good):
        tiledev.wait()
        result, other = ((x * 2).gather(1, i[:, None]) + 1).sum(0), (x * 3).sum(1)
        if i is bad:
            with pytest.raises(RuntimeError, match="gather"):
                tiledev.wait()
        else:
            tiledev.wait()
            torch.testing.assert_close(result.cpu(), want, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(other.cpu(), (rows() * 3).sum(1), rtol=1e-4, atol=1e-3)
        misses.append(tiledev.plan_cache_stats()["misses"])
        del result, other
    assert misses[-1] == misses[0]


def test_many_failures_in_a_row():
    x, bad = rows().to(DEVICE), index([7, 1700, 2900, 4001]).to(DEVICE)
    for _ in range(40):
        kept = (((x * 2).gather(1, bad[:, None]) + 1).relu().sum(), (x * 3).sum())
        with pytest.raises(RuntimeError, match="gather"):
            tiledev.wait()
        del kept
    assert_goes_on()


def test_a_failing_gradient():
    x = rows().to(DEVICE).requires_grad_()
    w = torch.ones(256, device=DEVICE, requires_grad=True)
    loss = F.cross_entropy(x * w, index([3000]).to(DEVICE))
    loss.backward()
    with pytest.raises(IndexError, match="nll_loss"):
        tiledev.wait()
    for lost in (loss, x.grad, w.grad):
        with pytest.raises(IndexError, match="nll_loss"):
            lost.cpu()
    torch.testing.assert_close(x.detach().cpu(), rows())


# ---- told once ----------------------------------------------------------------------------------


def test_two_failures_of_a_plan_and_a_readout():
    """A readout raises its own failure and tells of the other; other waits raise none."""
    x, bad = rows().to(DEVICE), index([3000]).to(DEVICE)
    tiledev.wait()
    early = (x * 2).gather(1, bad[:, None])
    late = x
    for _ in range(20):
        late = late.cumsum(0).softmax(1)
    late = late.index_select(1, bad)  # long after the other
    fine = (x * 3).relu()
    tiledev.execute()
    with pytest.raises(RuntimeError, match="gather") as caught:
        early.cpu()
    assert "Also: [aten::index_select" in str(caught.value)
    for _ in range(2):
        tiledev.wait()
    torch.testing.assert_close(fine.cpu(), (rows() * 3).relu())
    for lost, error in ((late, "index_select"), (early, "gather"), (late + 1, "index_select")):
        with pytest.raises((RuntimeError, IndexError), match=error):
            lost.cpu()
    tiledev.wait()
    assert_goes_on()


def test_failures_of_plans_in_flight_and_a_readout():
    x, bad = rows().to(DEVICE), index([3000]).to(DEVICE)
    tiledev.wait()
    kept = []
    for _ in range(3):
        kept.append((x * 2).gather(1, bad[:, None]))
        tiledev.execute()
    with pytest.raises(RuntimeError, match="gather"):
        kept[1].cpu()
    tiledev.wait()
    for lost in kept:
        with pytest.raises(RuntimeError, match="gather"):
            lost.cpu()
    assert_goes_on()


def test_a_failure_that_comes_after_the_readout_is_raised():
    x, bad = rows().to(DEVICE), index([3000]).to(DEVICE)
    with pytest.raises(RuntimeError, match="gather"):
        (x * 2).gather(1, bad[:, None]).cpu()
    lost = x.index_select(1, bad)
    with pytest.raises((RuntimeError, IndexError), match="index_select"):
        tiledev.wait()
    del lost
    assert_goes_on()


def test_many_failures_are_counted():
    x, bad = rows().to(DEVICE), index([3000]).to(DEVICE)
    kept = [(x * n).gather(1, bad[:, None]) for n in range(9)]
    with pytest.raises(RuntimeError, match="gather") as caught:
        tiledev.wait()
    text = str(caught.value)
    assert text.count("Also: [aten::gather") == 5
    assert "Also: 3 more ops" in text
    del kept


# ---- in place -----------------------------------------------------------------------------------


IN_PLACE = {
    "scatter_": lambda y, i: y.scatter_(1, i[:, None], 5.0),
    "index_add_": lambda y, i: y.index_add_(0, i * 16, y[:, :256].clone()),
    "index_put_": lambda y, i: y.index_put_((i * 16,), y[0]),
    "division": lambda y, i: y.long().div_(i[:, None] - i[3000], rounding_mode="floor"),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_failing_in_place_op(name):
    x, i = rows().to(DEVICE), index([3000]).to(DEVICE)
    tiledev.wait()
    y = x * 1
    before = y + 1
    failed = IN_PLACE[name](y, i)
    after = failed + 1
    with pytest.raises((RuntimeError, IndexError)):
        tiledev.wait()
    torch.testing.assert_close(before.cpu(), rows() + 1)
    torch.testing.assert_close(x.cpu(), rows())
    with pytest.raises((RuntimeError, IndexError)):
        after.cpu()
    failed.fill_(3)
    assert failed.eq(3).all().item()
    assert_goes_on()


def test_training_goes_on_after_bad_labels():
    def body(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = rows().to(device), index(below=10).to(device)
        for step in range(4):
            optimizer.zero_grad()
            if step == 2 and device != "cpu":
                F.cross_entropy(model(x), index([3000], 10).to(device)).backward()
                with pytest.raises(IndexError, match="nll_loss"):
                    tiledev.wait()
                optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    torch.testing.assert_close(body(DEVICE), body("cpu"), rtol=1e-4, atol=1e-5)


def test_a_model_recovers_from_a_step_with_bad_labels():
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 10).to(DEVICE)
    saved = {name: value.cpu() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(rows().to(DEVICE)), index([3000], 10).to(DEVICE)).backward()
    optimizer.step()
    with pytest.raises(IndexError, match="nll_loss"):
        tiledev.wait()
    optimizer.zero_grad()
    model.load_state_dict(saved)
    F.cross_entropy(model(rows().to(DEVICE)), index(below=10).to(DEVICE)).backward()
    optimizer.step()
    tiledev.wait()
    assert all(p.isfinite().all().item() for p in model.parameters())


# ---- memory -------------------------------------------------------------------------------------


@pytest.fixture
def limited():
    """A context whose tensors may take 32 MiB more than those of earlier tests."""
    gc.collect()
    support.settle()
    tiledev.shutdown_context()
    torch.tiledev.empty_cache()
    tiledev.init_context(2, memory_limit=32 * MIB + torch.tiledev.memory_allocated())


def test_out_of_memory_in_the_middle_of_a_plan(limited):
    x = rows().to(DEVICE)  # 4 MiB
    tiledev.wait()
    kept = [x]
    for _ in range(12):
        kept.append((kept[-1] * 1.5).relu())
    total = kept[-1].sum()
    with pytest.raises(torch.OutOfMemoryError, match=r"test_failures\.py:\d+"):
        tiledev.wait()
    with pytest.raises(torch.OutOfMemoryError):
        total.cpu()
    read = lost = 0
    for n, tensor in enumerate(kept):
        try:
            value = tensor.cpu()
        except torch.OutOfMemoryError:
            lost += 1
            continue
        read += 1
        want = rows()
        for _ in range(n):
            want = (want * 1.5).relu()
        torch.testing.assert_close(value, want)
    assert read >= 1
    assert lost >= 4
    del kept, total, tensor
    y = x
    for _ in range(12):
        y = (y * 1.5).relu()
    want = rows()
    for _ in range(12):
        want = (want * 1.5).relu()
    torch.testing.assert_close(y.cpu(), want)


def test_out_of_memory_in_training_and_a_smaller_batch(limited):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to(DEVICE)
    reference = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    reference.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    big = rows().to(DEVICE).repeat(16, 1)  # 64 MiB
    loss = model(big).square().mean()
    loss.backward()
    with pytest.raises(torch.OutOfMemoryError, match=r"asked for .* memory_limit"):
        tiledev.wait()
    with pytest.raises(torch.OutOfMemoryError):
        loss.item()
    del big, loss
    model.zero_grad()
    reference(rows()[:1024]).square().mean().backward()
    model(rows()[:1024].to(DEVICE)).square().mean().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-5)


def test_after_a_caught_error_the_rest_of_the_step_says_nothing(limited):
    """Several ops of a step find no memory; a smaller step follows."""
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    tiledev.wait()

    def step(number, copies):
        optimizer.zero_grad()
        big = rows()[:number].to(DEVICE).repeat(copies, 1)
        loss = (model(big).sort(-1)[0] + big.cumsum(0)).square().mean()
        noise = [big.flip(0).cumprod(0), big.sort(0)]
        loss.backward()
        optimizer.step()
        del noise
        return loss.item()

    with pytest.raises(torch.OutOfMemoryError):
        step(ROWS, 16)
    gc.collect()
    tiledev.wait()
    assert all(p.isfinite().all().item() for p in model.parameters())
    assert step(64, 1) > 0
    tiledev.wait()


def test_scratch_that_the_system_does_not_have_is_an_error_too():
    code = """
        import resource, torch, tiledev
        import torch.nn.functional as F
        tiledev.init_context(2)
        x = torch.ones(2, 32 << 20).to("tiledev")
        (torch.ones(2, 8, device="tiledev") * 2).sum().item()
        weight = torch.ones(2, device="tiledev")
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
        y = ((x.softmax(-1) * 2).softmax(-1)).sum(-1)
        try:
            print(y.tolist())
        except RuntimeError as error:
            print(type(error).__name__)
        print((weight + 1).tolist())
    """
    assert scripts.check(code).splitlines() == ["OutOfMemoryError", "[2.0, 2.0]"]


# ---- interrupts and ends ------------------------------------------------------------------------


LONG = """
    import os, signal, sys, torch, tiledev
    tiledev.init_context(2)
    x = torch.ones(4096, 512).to("tiledev")
    w = torch.eye(512).to("tiledev")
    tiledev.wait()
    def long(y, steps=30):
        for _ in range(steps):
            y = (y @ w).relu() + 0
        return y
"""


def test_an_interrupt_during_a_wait_leaves_the_device_usable():
    code = f"""{LONG}
    y = long(x, 150)
    tiledev.execute()
    print("ready", flush=True)
    try:
        tiledev.wait()
        print("finished")
    except KeyboardInterrupt:
        print("interrupted")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    z = (x * 2).relu()
    print(z.sum().item() == 2 * 4096 * 512)
    tiledev.wait()
    print(y.eq(1).all().item())
    """
    process = scripts.start(code)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    done = scripts.finish(process, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["interrupted", "True", "True"]


@pytest.mark.parametrize(
    "ending",
    [
        "y = long(x); tiledev.execute()",
        "y = long(x)",
        "y = long(x); tiledev.compile_graph()",
        "y = long(x); tiledev.execute(); y = long(y)",
        "long(x).sum().item(); y = long(x); tiledev.execute(); del y, x, w",
    ],
)
def test_exit_with_a_plan_running(ending):
    for process in [scripts.start(f"{LONG}\n    {ending}") for _ in range(2)]:
        done = scripts.finish(process, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def test_exit_with_a_plan_running_that_fails():
    code = f"""{LONG}
    i = torch.arange(4096).to("tiledev")[:, None].expand(4096, 512)
    y = long((x * 2).gather(1, i))
    z = long(x)
    tiledev.execute()
    """
    scripts.check(code, timeout=120)


def chain(x, steps=60):
    for _ in range(steps):
        x = (x * 1.01).relu() + 0.5
    return x


def test_shutdown_with_work_pending():
    x = rows().to(DEVICE)
    running = chain(x)
    tiledev.execute()
    planned = chain(running)
    tiledev.compile_graph()
    pending = chain(planned)
    tiledev.shutdown_context()
    for lost in (planned, pending):
        with pytest.raises(RuntimeError, match="shutdown_context"):
            lost.cpu()
    torch.testing.assert_close(running.cpu(), chain(rows()))
    torch.testing.assert_close(x.cpu(), rows())
    assert_goes_on()


def test_cancelling_at_a_shutdown():
    x = rows().to(DEVICE)
    tiledev.wait()
    results = [x]
    for _ in range(4):
        results.append(chain(results[-1], 300))
        tiledev.execute()
    tiledev._C.shutdown_context(cancel=True)
    with pytest.raises(RuntimeError, match="shutdown_context"):
        results[-1].cpu()
    torch.testing.assert_close(x.cpu(), rows())
    assert_goes_on()


def test_a_new_context_with_other_workers_goes_on():
    x = rows().to(DEVICE)
    for workers in (1, 3, 2):
        y = chain(x, 3)
        tiledev.wait()
        tiledev.shutdown_context()
        tiledev.init_context(workers)
        torch.testing.assert_close((y * 2).cpu(), chain(rows(), 3) * 2)
