"""Errors: of shapes and dtypes at the call, of values at the wait, and what survives them."""

import re
import subprocess
import sys

import pytest
import torch

import tiledev
from tests import support
from tests.compare import assert_same

pytestmark = pytest.mark.tiledev_only


@pytest.fixture(autouse=True)
def clean_slate():
    support.settle()
    yield
    support.settle()


def bad_index(device=support.DEVICE):
    """A recorded gather whose index is out of range: it fails when it runs."""
    return torch.arange(3.0, device=device).gather(0, torch.tensor([8], device=device))


CALLS = {
    "add": lambda x: x + x.new_ones(7),
    "add_ broadcasting the wrong way": lambda x: x[0].add_(x),
    "add_ with a float": lambda x: x.long().add_(0.5),
    "matmul": lambda x: x @ x,
    "mm dtypes": lambda x: torch.mm(x, x.t().double()),
    "bmm": lambda x: torch.bmm(x, x),
    "view": lambda x: x.t().view(-1),
    "reshape": lambda x: x.reshape(7, 7),
    "cat": lambda x: torch.cat([x, x.t()]),
    "stack": lambda x: torch.stack([x, x[0]]),
    "dim": lambda x: x.sum(5),
    "expand": lambda x: x.expand(4, 4),
    "index dtype": lambda x: x.gather(0, x),
    "gather shape": lambda x: x.gather(0, x.new_zeros(9, 9, 9).long()),
    "conv": lambda x: torch.nn.functional.conv2d(x, x),
    "linear": lambda x: torch.nn.functional.linear(x, x.t()),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (5,)),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(x, x[0].long()),
    "bool minus": lambda x: x.bool() - x.bool(),
    "not implemented": lambda x: x.bool().floor(),
    "not implemented in place": lambda x: x.cfloat().cummax(0),
    "std of integers": lambda x: x.long().std(),
    "out dtype": lambda x: torch.add(x, x, out=x.new_zeros(2, 3).long()),
    "narrow": lambda x: x.narrow(0, 1, 5),
    "squeeze": lambda x: x.squeeze(3),
    "as_strided": lambda x: x.as_strided((9, 9), (9, 1)),
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "empty max": lambda x: x[:0].max(),
    "copy_": lambda x: x.copy_(x.new_ones(5)),
    "embedding": lambda x: torch.nn.functional.embedding(x, x),
    "scatter": lambda x: x.scatter_(0, x.new_zeros(1, 1).long(), x.long()),
}


@pytest.mark.parametrize("name", CALLS)
def test_raised_at_the_call_with_pytorchs_text(name):
    texts = []
    for device in ("cpu", support.DEVICE):
        x = torch.arange(6.0).reshape(2, 3).to(device)
        with pytest.raises(Exception) as caught:
            CALLS[name](x)
        texts.append((caught.type, str(caught.value)))
    assert texts[1][0] is texts[0][0]
    assert texts[1][1][:50] == texts[0][1][:50]


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_call_leaves_no_trace(name):
    x = torch.arange(6.0).reshape(2, 3).to(support.DEVICE)
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)):
        CALLS[name](x)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (x + 1).sum().item() == 21
    support.synchronize()


VALUES = {
    "gather": (bad_index, "gather"),
    "index_select": (
        lambda d: torch.ones(3, device=d).index_select(0, torch.tensor([9], device=d)),
        "index_select",
    ),
    "embedding": (
        lambda d: torch.nn.functional.embedding(
            torch.tensor([7], device=d), torch.ones(3, 2, device=d)
        ),
        "index_select",  # what embedding is made of
    ),
    "cross_entropy": (
        lambda d: torch.nn.functional.cross_entropy(
            torch.ones(1, 3, device=d), torch.tensor([5], device=d)
        ),
        "nll_loss",
    ),
    "singular inverse": (lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)), "linalg"),
    "cholesky": (lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)), "linalg"),
    "division by zero": (
        lambda d: (
            torch.ones(2, dtype=torch.int64, device=d)
            // torch.zeros(2, dtype=torch.int64, device=d)
        ),
        "div",
    ),
    "multinomial": (
        lambda d: torch.multinomial(torch.tensor([-1.0, 1.0], device=d), 1),
        "multinomial",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_error_names_op_and_line(name):
    make, op = VALUES[name]
    with pytest.raises(Exception) as cpu:
        make("cpu")
    at_the_wait = False
    with pytest.raises(cpu.type) as caught:  # noqa: PT012  (both places count)
        kept = make(support.DEVICE)
        at_the_wait = True
        support.synchronize()
    text = str(caught.value)
    assert str(cpu.value).split("\n")[0][:40] in text
    if at_the_wait:
        assert op in text
        assert re.search(r"test_errors\.py:\d+", text)
        del kept


def test_the_line_is_the_one_that_recorded():
    x, index = torch.ones(3, device=support.DEVICE), torch.tensor([8], device=support.DEVICE)
    line = sys._getframe().f_lineno + 1
    kept = torch.gather(x, 0, index)
    other = kept + 1
    with pytest.raises(RuntimeError, match=rf"test_errors\.py:{line}\b"):
        support.synchronize()
    with pytest.raises(RuntimeError, match=rf"test_errors\.py:{line}\b"):
        other.cpu()


@pytest.mark.parametrize("read", ["item", "cpu", "tolist", "print", "bool", "wait", "synchronize"])
def test_every_wait_raises(read):
    bad = bad_index()
    reads = {
        "item": bad.item,
        "cpu": bad.cpu,
        "tolist": bad.tolist,
        "print": lambda: str(bad),
        "bool": lambda: bool(bad),
        "wait": lambda: (tiledev.execute(), tiledev.wait()),
        "synchronize": torch.tiledev.synchronize,
    }
    with pytest.raises(RuntimeError, match="out of bounds"):
        reads[read]()


def test_dependents_are_skipped_and_others_survive():
    survivor = torch.ones(3, device=support.DEVICE)
    bad = bad_index()
    dependent = (bad + 1) * 2
    survivor.mul_(4)
    sibling = survivor + 1
    tiledev.execute()
    with pytest.raises(RuntimeError, match="gather"):
        dependent.cpu()
    assert survivor.tolist() == [4, 4, 4]
    assert sibling.tolist() == [5, 5, 5]
    assert support.counters()["nodes_skipped"] > 0


def test_reading_a_failed_tensor_again_raises_again():
    bad = bad_index()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of bounds"):
            bad.cpu()


@pytest.mark.parametrize("write", ["copy_", "fill_", "zero_"])
def test_a_failed_tensor_can_be_written_anew(write):
    """load_state_dict after a failed step has to bring the parameters back."""
    bad = bad_index()
    with pytest.raises(RuntimeError):
        bad.cpu()
    argument = {"copy_": [torch.tensor([0.0])], "fill_": [0.0], "zero_": []}[write]
    getattr(bad, write)(*argument)
    assert bad.tolist() == [0]


def test_an_error_is_reported_once_by_the_wait():
    kept = bad_index()
    with pytest.raises(RuntimeError):
        support.synchronize()
    support.synchronize()
    del kept


def test_a_dead_failure_never_runs():
    bad_index()
    support.synchronize()


def test_two_errors_are_both_reported():
    index = torch.tensor([8], device=support.DEVICE)
    kept = [bad_index(), torch.ones(2, device=support.DEVICE).index_select(0, index)]
    with pytest.raises((RuntimeError, IndexError)) as caught:
        support.synchronize()
    text = str(caught.value)
    assert "gather" in text
    assert "index_select" in text
    support.synchronize()  # reported once
    for tensor in kept:
        with pytest.raises((RuntimeError, IndexError)):
            tensor.cpu()


def test_in_place_failure_does_not_touch_the_readers_before():
    x = torch.ones(3, device=support.DEVICE)
    before = x + 1
    x.index_add_(0, torch.tensor([7], device=support.DEVICE), torch.ones(1, device=support.DEVICE))
    with pytest.raises((RuntimeError, IndexError)):
        x.cpu()
    assert before.tolist() == [2, 2, 2]


def test_the_device_is_usable_afterwards():
    for _ in range(20):
        kept = bad_index()
        with pytest.raises(RuntimeError):
            support.synchronize()
        assert (torch.ones(3, device=support.DEVICE) * 2).sum().item() == 6
        del kept


def test_training_goes_on_after_an_error():
    def body(device):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            if step == 1 and device != "cpu":
                kept = bad_index()
                with pytest.raises(RuntimeError):
                    support.synchronize()
                del kept
            net(torch.ones(1, 3, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(net.parameters())

    assert_same(body)


def test_errors_in_backward():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("from backward")

    x = torch.ones(3, device=support.DEVICE, requires_grad=True)
    with pytest.raises(ValueError, match="from backward"):
        Broken.apply(x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


SCRIPT = """
import torch
x = torch.arange(3.0, device="tiledev")
for _ in range(50):
    bad = x[:1].gather(0, torch.tensor([9], device="tiledev")) + 1
    try:
        {action}
    except RuntimeError as error:
        assert "gather" in str(error), error
print("alive", x.sum().item())
"""


@pytest.mark.parametrize("action", ["bad.cpu()", "torch.tiledev.synchronize()", "del bad"])
def test_an_error_in_a_worker_never_terminates(action):
    done = subprocess.run(
        [sys.executable, "-c", "import tiledev\n" + SCRIPT.format(action=action)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "alive 3.0" in done.stdout
