"""Copies in every direction, with casts, broadcasting, strides and sources that change."""

import copy

import pytest
import torch

from tests import support
from tests.compare import assert_same

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.reshape(6, 4).t(),
    "sliced": lambda x: x.new_zeros(8, 12)[::2, 1::2].copy_(x),
    "broadcast": lambda x: x[:1].expand(4, 6),
}


def place(direction, device):
    """Devices of source and destination; both are the CPU for the oracle."""
    source, destination = direction.split("->")
    return (device if name == "dev" else "cpu" for name in (source, destination))


@pytest.mark.parametrize("direction", ["dev->dev", "cpu->dev", "dev->cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source_dtype", DTYPES, ids=str)
def test_copy_with_cast(direction, layout, source_dtype):
    def body(device):
        there, here = place(direction, device)
        source = LAYOUTS[layout]((torch.arange(24.0) % 7).reshape(4, 6).to(source_dtype).to(there))
        done = []
        for dtype in DTYPES:
            whole = torch.full((4, 6), 1, dtype=dtype, device=here)
            strided = torch.full((6, 8), 1, dtype=dtype, device=here)
            whole.copy_(source)
            strided[:, ::2].t().copy_(source)
            done += [whole.to(device), strided.to(device)]
        return done

    assert_same(body)


@pytest.mark.parametrize("direction", ["dev->dev", "cpu->dev", "dev->cpu"])
@pytest.mark.parametrize("shape", [(), (1,), (6,), (1, 6), (4, 1), (1, 1, 1)], ids=str)
def test_copy_with_broadcasting(direction, shape):
    def body(device):
        there, here = place(direction, device)
        source = torch.arange(float(torch.Size(shape).numel()), device=there).reshape(shape)
        return torch.zeros(2, 4, 6, device=here).copy_(source).to(device)

    assert_same(body)


@pytest.mark.parametrize("direction", ["dev->dev", "cpu->dev", "dev->cpu"])
def test_copy_of_a_wrong_shape_is_refused(direction):
    def body(device):
        there, here = place(direction, device)
        return torch.zeros(2, 3, device=here).copy_(torch.zeros(4, device=there))

    assert_same(body)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_the_source_may_change_or_go(non_blocking):
    source = torch.arange(1000.0)
    moved = source.to(support.DEVICE, non_blocking=non_blocking, copy=True)
    target = torch.zeros(1000, device=support.DEVICE)
    target.copy_(source, non_blocking=non_blocking)
    sliced = source[::2].to(support.DEVICE, non_blocking=non_blocking, copy=True)
    expected = source.clone()
    source.fill_(-1)
    del source
    assert torch.equal(moved.cpu(), expected)
    assert torch.equal(target.cpu(), expected)
    assert torch.equal(sliced.cpu(), expected[::2])


def test_a_readout_is_a_copy():
    x = torch.arange(3.0, device=support.DEVICE)
    first = x.to("cpu", copy=True)
    x.add_(1)
    second = x.to("cpu", copy=True)
    first.fill_(9)
    assert second.tolist() == x.tolist() == [1, 2, 3]


def test_many_times_into_one_tensor():
    x = torch.zeros(4, device=support.DEVICE)
    seen = []
    for step in range(20):
        x.copy_(torch.full((4,), float(step)))
        seen.append(x + 1)
        if step % 7 == 0:
            assert x.cpu().tolist() == [step] * 4
    assert torch.stack(seen).cpu()[:, 0].tolist() == list(range(1, 21))


def test_between_device_tensors():
    def body(device):
        x, y = torch.arange(4.0, device=device), torch.zeros(4, device=device)
        y.copy_(x)
        x.add_(1)
        z = y.clone()
        y.mul_(2)
        x[:2].copy_(x[2:])
        x.copy_(x)
        return [x, y, z, x.to(device), torch.zeros(2, 2, device=device).copy_(x.view(2, 2).t())]

    assert_same(body)


def test_to_returns_itself_when_nothing_changes():
    x = torch.ones(2, device=support.DEVICE)
    assert x.to(support.DEVICE) is x
    assert x.to(torch.float32) is x
    assert x.to(x.device, copy=True) is not x
    assert x.to(torch.zeros(1, device=support.DEVICE)) is x


def test_to_keeps_strides():
    source = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    moved = source.to(support.DEVICE, copy=True)
    assert moved.stride() == source.stride()
    assert moved.to("cpu", copy=True).stride() == source.stride()
    gappy = torch.arange(24.0).reshape(4, 6)[:, ::2].to(support.DEVICE, copy=True)
    assert gappy.stride() == (3, 1)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)], ids=str)
def test_zero_dim_and_empty(shape):
    def body(device):
        x = torch.ones(shape).to(device)
        return [
            x,
            x.cpu().to(device),
            x.clone(),
            x + 1,
            x.sum(),
            x.double(),
            x.clone().copy_(x * 2),
        ]

    assert_same(body)


def test_deepcopy_keeps_sharing():
    x = torch.arange(6.0, device=support.DEVICE)
    one, two = copy.deepcopy([x, x.view(2, 3)])
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    assert one.data_ptr() != x.data_ptr()
    one[0] = 5
    assert two[0, 0].item() == 5
    assert x[0].item() == 0


def test_conversions_by_method():
    def body(device):
        x = torch.tensor([0.5, 1.5, 2.5], device=device)
        return [
            x.double(),
            x.half(),
            x.bfloat16(),
            x.int(),
            x.long(),
            x.byte(),
            x.bool(),
            x.cfloat(),
            x.type(torch.int16),
            x.type_as(torch.ones(1, dtype=torch.float64, device=device)),
            x.int().float(),
        ]

    assert_same(body)


def test_a_view_is_copied_onto_itself():
    t = torch.zeros(2, 5, 2, device=support.DEVICE).as_strided([1, 3], [0, 0], 0)
    t[0].copy_(t[0])  # overlaps itself, but there is nothing to do
    assert t.tolist() == [[0.0, 0.0, 0.0]]
