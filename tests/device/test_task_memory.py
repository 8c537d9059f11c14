"""The memory that ATen's kernels ask for inside of tasks, and the results that lie in place."""

import gc
import os

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.tiling import context, tiny_tiles

pytestmark = pytest.mark.tiledev_only

DEVICE = support.DEVICE
MIB = 1 << 20


def work_bytes(kind="current"):
    return torch.tiledev.memory_stats()[f"work_bytes.all.{kind}"]


def pictures(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def settled():
    support.settle()
    yield
    support.settle()


def conv(device, x, w):
    x, w = (t.to(device).requires_grad_() for t in (x, w))
    y = F.conv2d(x, w, padding=1)
    y.backward(torch.ones_like(y))
    return y.detach().cpu(), x.grad.cpu(), w.grad.cpu()


@pytest.mark.parametrize("tiles", ["automatic", "tiny", "whole"])
def test_convolution(tiles):
    x, w = pictures(16, 32, 64, 64), pictures(32, 32, 3, 3, seed=1)
    with tiny_tiles() if tiles == "tiny" else context(2):
        if tiles == "whole":
            tiledev._C.set_tiling_mode("whole")
        results = conv(DEVICE, x, w)
        for result, right in zip(results, conv("cpu", x, w), strict=True):
            torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-2)


def test_temporaries_count_as_work_until_they_go():
    x, w = pictures(16, 32, 64, 64), pictures(32, 32, 3, 3, seed=1)
    with context(2):
        conv(DEVICE, x, w)
        before = work_bytes()
        torch.tiledev.reset_peak_memory_stats()
        for _ in range(3):
            conv(DEVICE, x, w)
        gc.collect()
        assert work_bytes("peak") > before + MIB  # what oneDNN lays out anew
        assert work_bytes() <= before + MIB


def test_an_adopted_result_counts_once():
    with context(1):
        tiledev._C.set_tiling_mode("whole")
        x = torch.randn(2 * MIB // 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)
        tiledev.wait()
        allocated, work = torch.tiledev.memory_allocated(), work_bytes()
        y = torch.fft.fft(x)  # runs as recorded: its result becomes the buffer's memory
        tiledev.wait()
        assert torch.tiledev.memory_allocated() - allocated == y.numel() * 8
        assert work_bytes() <= work
        z = y.cpu()
        del y
        assert torch.tiledev.memory_allocated() == allocated
        torch.testing.assert_close(z, torch.fft.fft(x.cpu()), rtol=1e-4, atol=1e-2)


def test_a_kernel_beyond_the_limit_fails_and_the_device_goes_on():
    x, w = pictures(16, 32, 64, 64), pictures(32, 32, 3, 3, seed=1)  # 8 MiB
    tiledev.shutdown_context()
    tiledev.init_context(1, memory_limit=torch.tiledev.memory_allocated() + 17 * MIB)
    try:
        a, b = x.to(DEVICE), w.to(DEVICE)
        y = F.conv2d(a, b, padding=1)
        with pytest.raises(torch.OutOfMemoryError, match="memory_limit"):
            F.conv2d(y, b, padding=1).cpu()
        assert (b + 1).cpu().equal(w + 1)
    finally:
        tiledev.shutdown_context()


SWAPPED = {
    # Two results of one size, made in either order, and a temporary of that size before them.
    "two": lambda x: torch.frexp(x),
    "sorted": lambda x: x.double().sort(-1),
    "median": lambda x: (x.median(-1), x.t().median(-1)),
    "pooled": lambda x: F.max_pool2d(x[None, None], 3, 1, 1, return_indices=True),
    "transposed": lambda x: x.t().abs(),
    "unfolded": lambda x: F.unfold(x[None, None], 2),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_results_of_functional_calls(name):
    x = pictures(1024, 1030)
    with context(2):
        results, right = SWAPPED[name](x.to(DEVICE)), SWAPPED[name](x)
        flat = torch.utils._pytree.tree_leaves
        for result, expected in zip(flat(results), flat(right), strict=True):
            assert result.stride() == expected.stride()
            torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_uses_the_cpu():
    x, w = pictures(8, 16, 64, 64), pictures(16, 16, 3, 3, seed=1)
    with context(2):
        for _ in range(5):
            keep = [F.conv2d(x.to(DEVICE), w.to(DEVICE), padding=1) for _ in range(4)]
            tiledev.execute()
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                os._exit(int(F.conv2d(x, w, padding=1).isnan().any()))
            assert os.waitpid(child, 0)[1] == 0
            del keep


def test_results_stay_the_same_while_their_places_are_learned():
    """The first call copies results for which oneDNN made temporaries of their size before."""
    x, w = pictures(16, 32, 64, 64), pictures(32, 32, 3, 3, seed=1)
    right = conv("cpu", x.clone(), w.clone())
    with context(2):
        for _ in range(4):
            for result, expected in zip(conv(DEVICE, x, w), right, strict=True):
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-2)
