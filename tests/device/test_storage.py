"""Storages: identity, sizes, set_, resize_, .data, pinned memory, very large tensors."""

import itertools

import pytest
import torch

from tests import support
from tests.compare import assert_same


def test_pointers_are_unique_and_not_null():
    tensors = [torch.empty(size, device=support.DEVICE) for size in (1, 1, 3, 100, 100_000)]
    tensors += [tensor + 1 for tensor in tensors]
    pointers = [tensor.data_ptr() for tensor in tensors]
    assert 0 not in pointers
    assert len(set(pointers)) == len(pointers)
    ends = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    for (_, end), (start, _) in itertools.pairwise(ends):
        assert end <= start, "the ranges of two tensors overlap"


def test_pointers_of_views_and_after_running():
    x = torch.arange(6.0, device=support.DEVICE)
    before = x.data_ptr()
    assert x[2:].data_ptr() == before + 8
    assert x.view(2, 3).data_ptr() == x.untyped_storage().data_ptr() == before
    x.add_(1)
    support.synchronize()
    assert x.data_ptr() == before
    assert x.tolist() == [1, 2, 3, 4, 5, 6]


def test_sizes():
    def body(device):
        x = torch.zeros(4, 5, dtype=torch.float64, device=device)
        view = x[1:, ::2]
        return [
            [x.nbytes, view.nbytes, x.untyped_storage().nbytes()],
            [view.untyped_storage().nbytes(), x.element_size(), view.storage_offset()],
            [torch.empty(0, device=device).untyped_storage().nbytes()],
            [x.expand(3, 4, 5).untyped_storage().nbytes()],
        ]

    assert_same(body)


def test_set():
    def body(device):
        x, y = torch.arange(6.0, device=device), torch.zeros(2, device=device)
        y.set_(x)
        y[0] = 9
        z = torch.empty(0, device=device).set_(x.untyped_storage(), 2, (2, 2), (1, 2))
        z.mul_(2)
        empty = torch.ones(3, device=device).set_()
        return [x, y, z, empty, [y.is_set_to(x), z.is_set_to(x)]]

    assert_same(body)


def test_resize():
    def body(device):
        x = torch.arange(6.0, device=device)
        view = x[2:]
        x.resize_(2, 2)
        small = x.clone()
        x.resize_(6)
        grown = torch.ones(2, device=device).resize_(3, 3).fill_(4)
        like = torch.ones(1, device=device).resize_as_(grown).fill_(5)
        return [x, view, small, grown, like]

    assert_same(body)


def test_storage_resize():
    def body(device):
        x = torch.arange(4.0, device=device)
        x.untyped_storage().resize_(0)
        gone = x.untyped_storage().nbytes()
        x.untyped_storage().resize_(16)
        return [x.fill_(2), [gone, x.untyped_storage().nbytes()]]

    assert_same(body)


def test_data():
    def body(device):
        x = torch.ones(3, device=device, requires_grad=True)
        x.data.mul_(3)
        y = x.data
        x.data = torch.arange(2.0, device=device)
        return [x, y, [x.requires_grad, y.requires_grad, x.is_leaf]]

    assert_same(body)


@pytest.mark.tiledev_only
def test_pinned_memory():
    x = torch.arange(4.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert torch.empty(3, pin_memory=True).is_pinned()
    moved = pinned.to(support.DEVICE, non_blocking=True)
    pinned.zero_()
    assert moved.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_more_than_two_to_the_31_elements():
    count = 2**31 + 8
    x = torch.zeros(count, dtype=torch.int8, device=support.DEVICE)
    x[-1] = 3
    x.add_(1)
    assert x[-8:].tolist() == [1] * 7 + [4]
    assert x.sum(dtype=torch.int64).item() == count + 3
    assert x.argmax().item() == count - 1
    assert x[count - 4 :].clone().tolist() == [1, 1, 1, 4]
    assert x.nbytes == count
