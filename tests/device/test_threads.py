"""Several Python threads record, read and train at once, and get what the CPU gives."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tiledev

THREADS = 8


def in_threads(function: Callable[[int], object], threads: int = THREADS) -> list:
    """Calls `function(i)` in threads that begin together; returns the results in order."""
    barrier = threading.Barrier(threads)

    def begin(index: int) -> object:
        barrier.wait(timeout=30)
        return function(index)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads), timeout=120))


def chain(seed: int, place) -> torch.Tensor:
    """Views, in-place ops, copies and readouts that end in a tensor."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(6, 8, generator=generator).to(place)
    for step in range(25):
        b = a.t().contiguous().mul_(1.01).t()
        a = torch.cat([b[3:], b[:3]]) + a * 0.5
        a[step % 6] = a[(step + 1) % 6] - step
        if step % 5 == seed % 5:
            a = a / (1 + a.abs().max().item())
        if step % 7 == 0:
            a = a.cpu().to(place)
    return a.cpu()


def train(seed: int, place) -> list[float]:
    """Trains a small model; returns its losses."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(shape, generator=generator) for shape in ((16, 8), (4, 16))]
    weights = [weight.to(place).requires_grad_() for weight in weights]
    inputs = torch.randn(32, 8, generator=generator).to(place)
    optimizer = torch.optim.Adam(weights, lr=0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = ((inputs @ weights[0].t()).relu() @ weights[1].t()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def one_kernel_thread():
    """The CPU's reference is computed with as many threads as a worker uses."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_recording_and_reading_at_once(device):
    results = in_threads(lambda index: chain(index, device))
    for index, result in enumerate(results):
        assert torch.equal(result, chain(index, "cpu")), index


def test_training_at_once(device):
    results = in_threads(lambda index: train(index, device))
    for index, result in enumerate(results):
        assert result == pytest.approx(train(index, "cpu"), rel=1e-5), index


def test_reading_one_tensor_at_once(device):
    a = torch.arange(1000.0, device=device)
    b = (a * 2 + 1).view(10, 100)
    results = in_threads(lambda index: b[index].sum().item() + b.sum().item())
    expected = torch.arange(1000.0).mul(2).add(1).view(10, 100)
    assert results == [(expected[i].sum() + expected.sum()).item() for i in range(THREADS)]


def test_writing_parts_of_one_tensor_at_once(device):
    a = torch.zeros(THREADS, 50, device=device)

    def write(index: int) -> None:
        for _ in range(40):
            a[index] += index

    in_threads(write)
    assert torch.equal(a.cpu(), torch.arange(float(THREADS)).mul(40)[:, None].expand(-1, 50))


def test_a_tensor_made_in_one_thread_is_used_in_another(device):
    made = in_threads(lambda index: torch.full((5,), float(index), device=device) * 2)
    assert torch.stack(made).sum().item() == 2 * 5 * sum(range(THREADS))


def test_tensors_freed_in_another_thread(device):
    tensors = [[torch.ones(100, device=device) + i for i in range(50)] for _ in range(THREADS)]
    in_threads(lambda index: tensors[index].clear())
    assert (torch.ones(3, device=device) * 2).tolist() == [2, 2, 2]


def test_seeded_generators_of_their_own(device):
    def draw(index: int) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(index)
        parts = [torch.rand(9, device=device, generator=generator) for _ in range(20)]
        return torch.cat(parts).cpu()

    for index, result in enumerate(in_threads(draw)):
        generator = torch.Generator().manual_seed(index)
        expected = torch.cat([torch.rand(9, generator=generator) for _ in range(20)])
        assert torch.equal(result, expected)


@pytest.mark.tiledev_only
def test_flushes_from_everywhere(device):
    def work(index: int) -> list[float]:
        a = torch.full((7,), float(index), device=device)
        for step in range(60):
            a = a * 0.5 + step
            (tiledev.execute, tiledev.compile_graph, tiledev.run, tiledev.wait)[step % 4]()
        return a.tolist()

    for index, result in enumerate(in_threads(work)):
        a = torch.full((7,), float(index))
        for step in range(60):
            a = a * 0.5 + step
        assert result == a.tolist()


@pytest.mark.tiledev_only
def test_an_error_reaches_the_thread_that_reads(device):
    def work(index: int) -> str:
        table = torch.ones(4, device=device)
        place = 9 if index % 2 else 3
        lost = table.index_select(0, torch.tensor([place], device=device))
        try:
            return str(lost.item())
        except IndexError:
            return "IndexError"

    assert in_threads(work) == ["1.0", "IndexError"] * (THREADS // 2)


@pytest.mark.tiledev_only
def test_waiting_lets_other_threads_run(device):
    """The main thread waits for about a second of work while another one counts."""
    a = torch.ones(900, 900, device=device)
    started = time.perf_counter()
    for _ in range(15):
        a = (a @ a) * 1e-3
    tiledev.execute()
    counted = [0]
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    tiledev.wait()
    waited = time.perf_counter() - started
    done.set()
    counter.join()
    assert counted[0] >= min(waited / 0.001, 100) * 0.05


def threads_of_backward(device) -> set[int]:
    """The threads on which hooks run in a backward pass of two branches."""
    seen = set()
    x = torch.ones(3, device=device, requires_grad=True)
    for branch in (x.exp(), x.sin()):
        branch.register_hook(lambda grad: seen.add(threading.get_ident()))
        branch.sum().backward()
    return seen


def test_backward_runs_on_the_thread_that_asks_for_it(device):
    assert threads_of_backward(device) == {threading.get_ident()}

    def from_another(_):
        return threads_of_backward(device) == {threading.get_ident()}

    assert in_threads(from_another) == [True] * THREADS


@pytest.mark.tiledev_only
def test_backward_runs_on_a_thread_of_autograd_if_the_user_says_so(device):
    torch.ones(1, device=device).neg()  # whatever the first op of this thread sets
    with torch.autograd.set_multithreading_enabled(True):
        assert threading.get_ident() not in threads_of_backward(device)
    assert threads_of_backward(device) == {threading.get_ident()}
