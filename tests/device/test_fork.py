"""Processes: a forked child gets a clear error, a spawned one works, data loaders are unharmed."""

import textwrap

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.device import scripts

USED = """
    import os, sys, warnings, torch, tiledev
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    a = torch.ones(64, 64, device="tiledev")
    b = (a @ a).sum()
    b.item()
"""
FORK = """
    def in_child(function):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                function()
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)
"""
USES = (
    "torch.ones(2, device='tiledev')",
    "torch.empty(2, device='tiledev')",
    "torch.ones(2).to('tiledev')",
    "a + 1",
    "a.add_(1)",
    "a.cpu()",
    "b.item()",
    "torch.rand(2, device='tiledev')",
    "torch.tiledev.init()",
    "torch.tiledev.synchronize()",
    "tiledev.init_context()",
    "tiledev.execute()",
)


class Numbers(Dataset):
    """Item i is i, and a random number of the worker's."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor(float(index)), torch.rand(())


def program(code: str) -> str:
    return "".join(map(textwrap.dedent, (USED, FORK, code)))


def spawned(queue):
    """What the spawned child does; it has to be importable."""
    a = torch.ones(8, device="tiledev", requires_grad=True)
    (a * 3).sum().backward()
    queue.put(a.grad.cpu().numpy())


@pytest.mark.tiledev_only
def test_use_in_a_forked_child_is_a_clear_error():
    code = f"""
        def attempt(use):
            try:
                exec(use)
            except RuntimeError as error:
                assert "fork" in str(error) and "spawn" in str(error), error
            else:
                raise AssertionError(f"{{use}} raised nothing")

        for use in {USES}:
            assert in_child(lambda: attempt(use)) == 0, use
    """
    scripts.check(program(code))


@pytest.mark.tiledev_only
def test_the_parent_goes_on():
    code = """
        for _ in range(3):
            assert in_child(lambda: None) == 0
            assert (a + 1).sum().item() == 64 * 64 * 2
        def drop():
            global a, b
            del a, b  # freeing is no use
        assert in_child(drop) == 0
        c = a * 2
        assert in_child(drop) == 0
        print(c.sum().item())
    """
    assert scripts.check(program(code)) == "8192.0\n"


@pytest.mark.tiledev_only
def test_a_forked_child_can_work_on_the_cpu_and_exit():
    code = """
        def work():
            torch.manual_seed(3)
            assert torch.tiledev._is_in_bad_fork() and not torch.tiledev.is_initialized()
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.rand(3, 4)).sum().backward()
            optimizer.step()
        print(in_child(work))
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # with atexit handlers, unlike os._exit
        print(os.waitpid(pid, 0)[1])
    """
    assert scripts.check(program(code)) == "0\n0\n"


@pytest.mark.tiledev_only
def test_a_fork_before_first_use_is_free():
    code = """
        import os, torch, tiledev, warnings
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        pid = os.fork()
        print((torch.ones(3, device="tiledev") + 1).sum().item(), flush=True)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    """
    # Both write to one pipe at once: their lines may interleave.
    assert scripts.check(code).replace("\n", "") == "6.06.0"


@pytest.mark.tiledev_only
def test_a_spawned_child_works():
    torch.ones(3, device="tiledev").sum().item()
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=spawned, args=(queue,))
    child.start()
    assert queue.get(timeout=60).tolist() == [3] * 8
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_with_workers(device, method):
    torch.ones(3, device=device).sum().item()
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method, timeout=60
    )
    for _ in range(2):
        total = torch.zeros((), device=device)
        for values, _ in loader:
            total += values.to(device).sum()
        assert total.item() == 120


def test_data_loader_that_pins_with_workers(device):
    torch.ones(3, device=device).sum().item()
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, pin_memory=True, timeout=60)
    batches = [values.to(device, non_blocking=True) for values, _ in loader]
    assert sum(batch.sum().item() for batch in batches) == 120


@pytest.mark.tiledev_only
def test_data_loader_workers_draw_what_they_draw_without_the_device(device):
    def draws(used: bool) -> list[float]:
        code = f"""
            import torch, tiledev
            from torch.utils.data import DataLoader
            from tests.device.test_fork import Numbers
            if {used}:
                torch.rand(3, device="tiledev").sum().item()
            torch.manual_seed(9)
            loader = DataLoader(Numbers(), batch_size=4, num_workers=2)
            print([number for _, numbers in loader for number in numbers.tolist()])
        """
        return scripts.check(code)

    assert draws(True) == draws(False)
