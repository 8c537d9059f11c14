"""Views of buffers that begin elsewhere in each step: one plan for all of them, and its values."""

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.tiling import context

pytestmark = pytest.mark.tiledev_only

DEVICE = support.DEVICE
MODES = ["auto", "tiny", "whole"]


@pytest.fixture(params=MODES, autouse=True)
def mode(request):
    support.settle()
    with context(2):
        tiledev._C.set_tiling_mode("tiny")
        tiledev._C.set_tiling_mode("whole")  # another mode forgets all plans
        tiledev._C.set_tiling_mode(request.param)
        yield request.param
        support.settle()


def misses():
    return tiledev.plan_cache_stats()["misses"]


def whole(*shape, seed=0):
    """Small whole numbers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).float()


def check(step, steps, *tensors, made=1):
    """Runs `step(n, *tensors)` on both devices: equal results, and `made` plans."""
    expected = [t.clone() for t in tensors]
    found = [t.to(DEVICE) for t in tensors]
    tiledev.wait()
    before = misses()
    results = []
    for n in range(steps):
        results.append(step(n, *found))
        tiledev.wait()
    assert misses() - before == made, tiledev.explain_miss()
    for n, result in enumerate(results):
        wanted = step(n, *expected)
        if wanted is not None:
            torch.testing.assert_close(result.cpu(), wanted, rtol=0, atol=0)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [3, 512])
class TestOneView:
    def test_reading_rows(self, rows):
        check(lambda n, x: (x[n * rows : (n + 1) * rows] * 2 + 1).relu(), 5, whole(5 * rows, 130))

    def test_reading_columns(self, rows):
        check(lambda n, x: (x[:, n : n + 64] * 2).relu(), 5, whole(rows, 130))

    def test_offsets_of_any_size(self, rows):
        check(lambda n, x: x[n * n : n * n + rows] * 3, 5, whole(rows + 20, 65))
        flat = whole(rows * 130 + 20)
        check(lambda n, x: (x[n + 1 : n + 1 + rows * 130] * 3).relu() + 1, 5, flat)

    def test_a_column_of_sums(self, rows):
        check(lambda n, x: x[n * rows : (n + 1) * rows].sum(1), 5, whole(5 * rows, 130))
        check(lambda n, x: x[n * rows : (n + 1) * rows].sum(0), 5, whole(5 * rows, 130))

    def test_writing_rows(self, rows):
        def step(n, x, y):
            x[n * rows : (n + 1) * rows] = y * 2 + n

        check(step, 5, whole(5 * rows, 130), whole(rows, 130, seed=1))

    def test_updating_rows(self, rows):
        def step(n, x, y):
            part = x[n * rows : (n + 1) * rows]
            part.mul_(2).add_(y.relu())
            return (part * 3).sum()

        check(step, 5, whole(5 * rows, 130), whole(rows, 130, seed=1))

    def test_updating_columns(self, rows):
        def step(n, x, y):
            x[:, n : n + 65].mul_(2).add_(y)

        check(step, 5, whole(rows, 130), whole(rows, 65, seed=1))

    def test_from_one_buffer_to_another(self, rows):
        def step(n, x, y):
            y[n * rows : (n + 1) * rows] = x[(4 - n) * rows : (5 - n) * rows] * 2

        check(step, 5, whole(5 * rows, 130), whole(5 * rows, 130, seed=1))

    def test_products(self, rows):
        a, b = whole(5 * rows, 70), whole(5 * 70, 33, seed=1)

        def step(n, a, b):
            return (a[n * rows : (n + 1) * rows] @ b[n * 70 : (n + 1) * 70]).relu()

        check(step, 5, a, b)
        # And again and again: the matrices that are packed stay with their buffer.
        check(lambda n, a, b: step(n % 3, a, b), 12, a, b, made=0)

    def test_products_with_a_matrix_that_changes(self, rows):
        def step(n, a, b):
            if n % 4 == 3:
                b[70:140] = n
            return a[:rows] @ b[n % 2 * 70 : (n % 2 + 1) * 70]

        check(step, 12, whole(rows, 70), whole(5 * 70, 33, seed=1), made=2)


class TestSeveralViews:
    def test_windows_side_by_side(self):
        check(lambda n, x: x[n : n + 256] - x[n + 1 : n + 257], 5, whole(300, 130))

    def test_overlapping_writes(self):
        def step(n, x):
            x[n + 1 : n + 257] = x[n : n + 256] * 2 + 1

        check(step, 5, whole(300, 130))

    def test_writes_into_columns_of_other_rows(self):
        def step(n, x):
            x[n : n + 256, 5:10].mul_(2)
            x[n + 1 : n + 257, :5].add_(x[n : n + 256, 5:10])
            x[n + 256 : n + 512, :5].mul_(3)
            return x.sum(1)

        check(step, 5, whole(600, 10), made=5)  # the sum reads from the beginning

    def test_reads_and_writes_of_shifted_parts(self):
        def step(n, x):
            x[n : n + 256, 5:10].mul_(2)
            x[n + 1 : n + 257, :5].add_(x[n : n + 256, 5:10])
            x[n + 256 : n + 512, :5].mul_(3).add_(x[n + 1 : n + 257, :5])

        check(step, 5, whole(600, 10))

    def test_views_that_are_only_read_lie_anywhere(self):
        # Two plans: one for views that are the same.
        check(lambda n, x: x[n : n + 256] - x[2 * n : 2 * n + 256], 5, whole(300, 130), made=2)
        check(lambda n, x: x[:64] * x[n + 1 : n + 65], 4, whole(70, 130))

    def test_many_views_that_are_only_read(self):
        def step(n, x):
            parts = [x[i * (n + 1) : i * (n + 1) + 64] for i in range(100)]
            return torch.stack(parts) * 2

        # Beyond 64 places it matters where they are.
        check(step, 3, whole(400, 8), made=3)
        check(
            lambda n, x: torch.stack([x[i * n + 1 :][:9] for i in range(1, 60)]),
            3,
            whole(400, 8),
            made=2,
        )

    def test_other_distances_of_what_is_written(self):
        def step(n, x):
            x[n : n + 64].mul_(x[2 * n + 64 : 2 * n + 128])

        check(step, 5, whole(300, 130).clamp(-1, 1), made=5)

    def test_elements_of_other_sizes(self):
        def read(n, x):
            bits = x.view(torch.int16)[n * 64 : n * 64 + 64]
            return (bits[:, :130] + 1) * (x[n * 32 + 1 : n * 32 + 65] > 0)

        def write(n, x):
            x.view(torch.int32)[n + 5 : n + 69, :130].mul_(1)
            x.view(torch.int16)[n * 64 : n * 64 + 64, :130].add_(1)
            x[n * 32 + 1 : n * 32 + 65].mul_(2)

        check(read, 4, whole(300, 130), made=2)
        check(write, 4, whole(300, 130), made=4)


def test_a_part_and_all_of_a_buffer():
    def fill(n, x):
        x[: 256 if n % 2 else 300].fill_(n)

    check(fill, 4, whole(300, 130), made=2)
    filled = torch.zeros(600, 130)

    def second_half(n, x):
        x[300 * (n % 2) : 300 * (n % 2) + 300].fill_(n + 1)

    check(second_half, 4, filled)


def test_a_buffer_that_the_graph_makes():
    def step(n, x):
        y = x * 2
        y[n : n + 64].mul_(3)
        return y[n : n + 64].sum(1) + y[n].sum()

    check(step, 4, whole(300, 130), made=4)


def test_training_on_slices_of_resident_data():
    def train(device):
        torch.manual_seed(0)
        x, y = torch.randn(2048, 64).to(device), torch.randint(10, (2048,)).to(device)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        ).to(device)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses, made = [], []
        for begin in range(0, 2048, 256):
            before = misses()
            opt.zero_grad()
            loss = F.cross_entropy(model(x[begin : begin + 256]), y[begin : begin + 256])
            loss.backward()
            opt.step()
            losses.append(loss.detach())
            made.append(misses() - before)
        return torch.stack(losses).cpu(), made

    found, made = train(DEVICE)
    assert sum(made[2:]) == 0, tiledev.explain_miss()
    torch.testing.assert_close(found, train("cpu")[0], rtol=1e-4, atol=1e-5)


def test_a_cache_of_keys():
    def step(n, cache, keys, positions):
        cache[:, :, n] = keys[:, :, n] + positions[n]
        return cache.sum((0, 1, 2))

    shape = (2, 4, 16, 32)
    # The sum reads the cache from its beginning, so that offsets to it stay.
    check(step, 4, torch.zeros(shape), whole(*shape), whole(16, 32), made=4)

    def write(n, cache, keys, positions):
        cache[:, :, n] = keys[:, :, n] + positions[n]

    check(write, 8, torch.zeros(shape), whole(*shape), whole(16, 32))


def test_one_row_after_the_other():
    check(lambda n, x: x[n] * 2, 8, whole(8, 5))
    check(lambda n, x: x[n // 4, n % 4] * 2, 8, whole(2, 4))
    check(lambda n, x: (x[n : n + 16] + 1).view(1, 16, 8).sum(1), 8, whole(30, 8))


def test_errors_name_what_failed_wherever_it_begins():
    table, index = whole(10, 4).to(DEVICE), torch.arange(12).to(DEVICE)
    for begin in (0, 4):
        assert F.embedding(index[begin : begin + 4], table).cpu().shape == (4, 4)
    with pytest.raises(IndexError):
        F.embedding(index[8:12], table).cpu()
