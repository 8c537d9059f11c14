"""Views share memory with their base, and in-place ops on either are seen by both."""

import pytest
import torch

from tests.compare import assert_same

VIEWS = {
    "slice": lambda x: x[1:3, ::2],
    "negative index": lambda x: x[-1],
    "ellipsis": lambda x: x[..., 1],
    "none": lambda x: x[:, None],
    "transpose": lambda x: x.t(),
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "view": lambda x: x.view(2, 10),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(0, (2, 2)),
    "expand": lambda x: x[:, :1].expand(4, 3),
    "broadcast_to": lambda x: x.broadcast_to(2, 4, 5),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "unfold overlapping": lambda x: x.unfold(0, 3, 1),
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(3, 1)[2],
    "tensor_split": lambda x: x.tensor_split(2, 1)[0],
    "unbind": lambda x: x.unbind(1)[3],
    "squeeze": lambda x: x[1:2].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "as_strided": lambda x: x.as_strided((2, 3), (2, 5), 3),
    "as_strided of a view": lambda x: x[1:].as_strided((2, 2), (1, 1), 0),
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(torch.empty(20, device=x.device)),
    "view dtype": lambda x: x.view(torch.int32),
    "view smaller dtype": lambda x: x.view(torch.int16),
    "view_as_complex": lambda x: torch.view_as_complex(x[:, :2].unflatten(1, (1, 2))),
    "alias": lambda x: torch.ops.aten.alias(x),
    "data": lambda x: x.data,
    "empty slice": lambda x: x[2:2],
    "chain": lambda x: x.t()[1:].unfold(0, 2, 1).transpose(0, 2)[..., 1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_memory(name):
    def body(device):
        base = torch.arange(20.0, device=device).reshape(4, 5)
        view = VIEWS[name](base)
        before = view.clone()
        base.add_(1)
        after = view.clone()
        facts = [view.storage_offset(), view.is_contiguous(), view._is_view(), view.stride()]
        return [view, before, after, view.contiguous(), base, facts]

    assert_same(body)


@pytest.mark.parametrize("name", VIEWS)
def test_writing_through_a_view(name):
    def body(device):
        base = torch.arange(20.0, device=device).reshape(4, 5)
        view = VIEWS[name](base)
        other = base[1:]
        view.fill_(3)
        base[0].mul_(2)
        view.add_(1)
        return [base, other, view]

    assert_same(body)


@pytest.mark.parametrize("name", VIEWS)
def test_copying_into_a_view(name):
    def body(device):
        base = torch.arange(20.0, device=device).reshape(4, 5)
        view = VIEWS[name](base)
        view.copy_(torch.full(view.shape, 7, dtype=view.dtype))
        view.copy_(view.clone())
        return [base, view]

    assert_same(body)


def test_views_of_complex_tensors():
    def body(device):
        x = torch.tensor([1 + 2j, 3 - 4j], device=device)
        x.real.mul_(2)
        x.imag[0] = 9
        torch.view_as_real(x)[1, 1] = 5
        x.conj().imag.add_(1)
        return [x, x.real, x.imag, x.mH, x.conj().real]

    assert_same(body)


def test_views_of_views_after_in_place_ops():
    def body(device):
        base = torch.zeros(3, 4, device=device)
        rows = list(base.unbind(0))
        for index, row in enumerate(rows):
            row.add_(index)
            row[1:].mul_(10)
        base.t()[0].fill_(-1)
        return [base, rows, base.t().contiguous(), base[:, 1:].sum()]

    assert_same(body)


def test_metadata_in_place():
    def body(device):
        x = torch.arange(6.0, device=device).reshape(2, 3)
        y = x.view(3, 2)
        x.t_()
        x.unsqueeze_(0)
        x.transpose_(0, 2)
        x.squeeze_()
        x.as_strided_((2, 2), (1, 2), 1)
        x.add_(10)
        return [x, y, x.swapaxes_(0, 1)]

    assert_same(body)


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 1, 5), (0, 2, 3, 4), (2, 2, 2, 3, 2)], ids=str
)
def test_memory_formats(shape):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d

    def body(device):
        x = torch.arange(float(torch.Size(shape).numel()), device=device).reshape(shape)
        y = x.to(memory_format=last)
        return [
            y,
            y.contiguous(),
            y.contiguous(memory_format=last),
            x.clone(memory_format=last),
            y.clone(),
            y + 1,
            y + x,
            torch.empty_like(y).fill_(1),
            y.to(torch.float64),
            y.to(torch.float64, memory_format=torch.contiguous_format),
            y.relu(),
            [y.is_contiguous(memory_format=last), y.is_contiguous()],
        ]

    assert_same(body)


def test_strides_of_results():
    def body(device):
        x = torch.arange(24.0, device=device).reshape(2, 3, 4)
        permuted, gappy = x.permute(2, 0, 1), x[:, :, ::2]
        return [
            permuted + 1,
            permuted * x.permute(2, 0, 1),
            permuted.contiguous(),
            permuted.clone(),
            gappy.clone(),
            gappy + 1,
            permuted.exp(),
            x[:, :1].expand(2, 3, 4) + 1,
            torch.cat([permuted, permuted]),
            permuted.sum(1),
            permuted.float().softmax(0),
        ]

    assert_same(body)


def test_overlapping_writes_are_refused():
    assert_same(lambda device: torch.ones(3, device=device).expand(2, 3).add_(1))
    assert_same(lambda device: torch.ones(1, device=device).expand(3).mul_(2))

    def shifted(device):
        x = torch.arange(5.0, device=device)
        return x[1:].add_(x[:-1])

    assert_same(shifted)


def test_views_outlive_their_base():
    def body(device):
        base = torch.arange(10.0, device=device)
        view = base[3:6]
        base.mul_(2)
        del base
        view += 1
        return view, view.untyped_storage().nbytes()

    assert_same(body)
