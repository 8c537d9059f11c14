"""Long runs: counters and memory stay flat, long chains finish in bounded memory."""

import gc
import time

import pytest
import torch

import tiledev
from tests import support
from tests.device.models import mlp

pytestmark = pytest.mark.tiledev_only

GAUGES = ("live_nodes", "live_buffers", "allocated_bytes")


def resident():
    """Resident memory of this process in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def gauges():
    support.synchronize()
    now = support.counters()
    return {name: now[name] for name in GAUGES}


@pytest.fixture(autouse=True)
def nothing_left_over():
    gc.collect()
    support.settle()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_thousand_training_steps_stay_flat(optimizer):
    torch.manual_seed(0)
    net = mlp(support.DEVICE)
    optimizer = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01)
    x, y = torch.ones(8, 4, device=support.DEVICE), torch.zeros(8, 2, device=support.DEVICE)
    seen, memory = [], []
    for step in range(1000):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            seen.append(gauges())
            memory.append(resident())
            plans = tiledev.plan_cache_stats()["misses"]
        if step == 19:
            plans_early = plans
    assert seen[1:] == seen[1:2] * (len(seen) - 1)
    assert plans == plans_early
    assert memory[-1] - memory[9] < 10, "resident memory grew"


def test_losses_that_are_only_collected():
    net = mlp(support.DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, losses = torch.ones(8, 4, device=support.DEVICE), []
    for _ in range(200):
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    del loss
    stacked = torch.stack(losses)
    assert stacked[0].item() > stacked[-1].item()
    losses.clear()
    before = gauges()["live_buffers"]
    del stacked
    assert gauges()["live_buffers"] == before - 1


def test_a_loop_without_readout_flushes_itself():
    support.synchronize()
    before = support.counters()
    x = torch.zeros(4, device=support.DEVICE)
    most = 0
    for step in range(60_000):
        x = x + 1
        if step % 1000 == 0:
            most = max(most, support.counters()["live_nodes"])
    after = support.counters()
    assert after["self_flushes"] > before["self_flushes"]
    assert most < 50_000
    assert x.tolist() == [60_000.0] * 4


def test_large_results_flush_by_bytes():
    before, start = support.counters()["self_flushes"], resident()
    x = torch.zeros(2**20, device=support.DEVICE)
    for _ in range(2000):  # 8 GB of results, 4 MB of them alive at a time
        x = x + 1
    assert support.counters()["self_flushes"] > before
    assert resident() - start < 3000
    assert x[0].item() == 2000


def chain(length):
    """Seconds and MiB that a chain of tiny ops takes, without a readout until its end."""
    x = torch.zeros(2, device=support.DEVICE)
    start, began = resident(), time.perf_counter()
    for _ in range(length):
        x = x + 1
    grown = resident() - start
    assert x.tolist() == [float(length)] * 2
    return time.perf_counter() - began, grown, resident() - start


def test_a_chain_of_100_000_ops():
    _, pending, left = chain(100_000)
    assert pending < 400
    assert left < 400


def test_a_chain_of_1_000_000_ops_in_bounded_memory():
    _, pending, left = chain(1_000_000)
    assert pending < 600
    assert left < 600


def test_a_long_chain_through_autograd():
    x = torch.ones(2, device=support.DEVICE, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y * 1.0001
    y.sum().backward()
    want = torch.tensor(1.0001, dtype=torch.float64) ** 5000
    torch.testing.assert_close(x.grad.cpu().double(), want.expand(2), rtol=1e-2, atol=0)


def test_views_of_views_do_not_pile_up():
    base = torch.zeros(8, device=support.DEVICE)
    start = gauges()
    for _ in range(1000):
        view = base[1:][1:].view(-1)[:3]
        view.add_(1)
        if _ % 100 == 0:
            view.cpu()
    del view
    assert gauges() == start
    assert base.tolist() == [0, 0, 1000, 1000, 1000, 0, 0, 0]


def test_many_short_lived_tensors():
    keep = torch.zeros(3, device=support.DEVICE)
    start, memory = gauges(), resident()
    for _ in range(20_000):
        torch.ones(100, device=support.DEVICE).mul_(2)
    assert gauges() == start
    assert resident() - memory < 100
    assert keep.tolist() == [0, 0, 0]


@pytest.mark.parametrize("read", ["item", "cpu", "copy"])
def test_many_readouts(read):
    x = torch.zeros(3, device=support.DEVICE)
    host = torch.zeros(3)
    gauges()
    reads = {"item": lambda: x[0].item(), "cpu": x.cpu, "copy": lambda: host.copy_(x)}
    start, memory = gauges(), resident()
    for _ in range(5000):
        x.add_(1)
        reads[read]()
    assert gauges() == start
    assert resident() - memory < 50
    assert x[0].item() == 5000
