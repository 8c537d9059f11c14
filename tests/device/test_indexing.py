"""Reading and writing by slices, masks and index tensors, on the device and on the CPU."""

import pytest
import torch

from tests import support
from tests.compare import assert_same


def base(device, dtype=torch.float32):
    return torch.arange(24, device=device).reshape(4, 6).to(dtype)


READS = {
    "integer tensor": lambda x, i: x[torch.tensor([0, 2, 2], device=i)],
    "negative": lambda x, i: x[torch.tensor([-1, 0], device=i)],
    "two tensors": lambda x, i: x[torch.tensor([0, 1], device=i), torch.tensor([5, 4], device=i)],
    "broadcast": lambda x, i: x[torch.tensor([[0], [3]], device=i), torch.tensor([1, 2], device=i)],
    "second dim": lambda x, i: x[:, torch.tensor([1, 1, 0], device=i)],
    "ellipsis": lambda x, i: x[..., torch.tensor([2], device=i)],
    "with slice": lambda x, i: x[1:, torch.tensor([0, 5], device=i)],
    "with none": lambda x, i: x[None, torch.tensor([1], device=i)],
    "bool": lambda x, i: x[torch.tensor([True, False, True, False], device=i)],
    "bool matrix": lambda x, i: x[(torch.arange(24) % 5 == 0).reshape(4, 6).to(i)],
    "bool and integer": lambda x, i: x[
        torch.tensor([True, False, False, True], device=i), torch.tensor([0, 1], device=i)
    ],
    "zero dim": lambda x, i: x[torch.tensor(2, device=i)],
    "uint8": lambda x, i: x[torch.tensor([1, 0, 1, 0], dtype=torch.uint8, device=i)],
    "int32": lambda x, i: x[torch.tensor([1, 0], dtype=torch.int32, device=i)],
    "empty": lambda x, i: x[torch.tensor([], dtype=torch.int64, device=i)],
    "list": lambda x, i: x[[0, 2], [1, 3]],
    "out of range": lambda x, i: x[4],
    "too many": lambda x, i: x[0, 0, 0],
    "float index": lambda x, i: x[torch.tensor([0.5], device=i)],
    "mask of another shape": lambda x, i: x[torch.tensor([True, False], device=i)],
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("where", ["same", "cpu"])
@pytest.mark.parametrize("name", READS)
def test_read(name, where):
    def body(device):
        x = base(device).requires_grad_()
        read = READS[name](x, "cpu" if where == "cpu" else device)
        return [read, *torch.autograd.grad((read * 2).sum(), x)]

    assert_same(body)


WRITES = {
    "slice": lambda x, i: x.__setitem__((slice(1, 3), slice(None, None, 2)), 7),
    "row from tensor": lambda x, i: x.__setitem__(0, torch.arange(6, device=x.device)),
    "row from cpu scalar": lambda x, i: x.__setitem__(1, torch.tensor(5)),
    "broadcast": lambda x, i: x.__setitem__(slice(None), torch.ones(4, 1, device=x.device)),
    "other dtype": lambda x, i: x.__setitem__(2, torch.ones(6, dtype=torch.int8, device=x.device)),
    "element": lambda x, i: x.__setitem__((3, -1), 100),
    "integers": lambda x, i: x.__setitem__(torch.tensor([0, 3], device=i), -1),
    "pairs": lambda x, i: x.__setitem__(
        (torch.tensor([0, 1], device=i), torch.tensor([2, 3], device=i)),
        torch.tensor([50, 60], dtype=x.dtype, device=x.device),
    ),
    "mask": lambda x, i: x.__setitem__((x > 10).to(i), 0),
    "row mask": lambda x, i: x.__setitem__(torch.tensor([True, False, True, False], device=i), 9),
    "mask with values": lambda x, i: x.__setitem__(
        (x.detach().cpu() % 7 == 0).to(i), torch.arange(4, dtype=x.dtype, device=x.device)
    ),
    "from itself": lambda x, i: x.__setitem__(slice(0, 2), x[2:]),
    "wrong shape": lambda x, i: x.__setitem__(0, torch.ones(5, device=x.device)),
    "add": lambda x, i: x[torch.tensor([1, 2], device=i)].__iadd__(1),
    "augmented": lambda x, i: exec("x[i] += 3", {"x": x, "i": torch.tensor([1, 2], device=i)}),
}


@pytest.mark.parametrize("where", ["same", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_write(name, dtype, where):
    def body(device):
        x = base(device, dtype)
        view = x[1:]
        WRITES[name](x, "cpu" if where == "cpu" else device)
        return [x, view]

    assert_same(body)


def test_filling_a_buffer_in_a_loop():
    def body(device):
        buffer, total = torch.zeros(10, 3, device=device), torch.zeros(3, device=device)
        for index in range(10):
            row = torch.full((3,), float(index), device=device)
            buffer[index] = row
            row.mul_(100)
            total += buffer[index]
        return [buffer, total]

    assert_same(body)


def test_index_methods():
    def body(device):
        x = base(device)
        rows = torch.tensor([0, 2, 0], device=device)
        ones = torch.ones(3, 6, device=device)
        return [
            x.index_select(0, rows),
            x.gather(1, torch.tensor([[0, 1], [2, 2], [5, 5], [0, 0]], device=device)),
            x.clone().index_add_(0, rows, ones),
            x.clone().index_add_(0, rows, ones, alpha=2.5),
            x.clone().index_copy_(0, rows[:2], ones[:2]),
            x.clone().index_fill_(1, rows, -1),
            x.clone().index_put_((rows,), ones, accumulate=True),
            x.clone().scatter_(1, rows.expand(4, 3), 7.0),
            x.clone().scatter_add_(0, rows.expand(6, 3).t(), ones),
            x.clone().scatter_reduce_(0, rows.expand(6, 3).t(), ones, "mean"),
            x.take(torch.tensor([0, 23, 5], device=device)),
            x.clone().put_(torch.tensor([1, 1], device=device), ones[0, :2], accumulate=True),
            x.take_along_dim(x.argsort(1, descending=True), 1),
            x.masked_fill(x > 3, 0),
            x.masked_select(x > 20),
            x.clone().masked_scatter_(x > 20, ones),
            torch.where(x > 3),
            torch.nonzero(x > 21),
            torch.searchsorted(torch.arange(6.0, device=device), ones[0]),
            torch.bincount(rows, minlength=5),
        ]

    assert_same(body)


def test_masks_that_choose_nothing_or_all():
    def body(device):
        x = base(device)
        x[x < 0] = 5
        none, everything = x[x < 0], x[x >= 0]
        x[x >= 0] = 1
        return [
            none,
            everything,
            x,
            x[x > 5].sum(),
            x.new_zeros(0)[torch.tensor([], device=device).bool()],
        ]

    assert_same(body)


@pytest.mark.tiledev_only
def test_an_index_on_the_cpu_may_change_after_recording():
    x = torch.arange(6.0, device=support.DEVICE)
    index, mask = torch.tensor([1, 2]), torch.tensor([True, False, False, False, False, True])
    picked = x[index]
    x[index] = 0
    x[mask] = 9
    index.fill_(5)
    mask.zero_()
    assert picked.tolist() == [1, 2]
    assert x.tolist() == [9, 0, 0, 3, 4, 9]
