"""Products of matrices that tiles take themselves, and the packed matrices that they share."""

import json
import threading

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.tiling import context, tiny_tiles

pytestmark = pytest.mark.tiledev_only

DEVICE = support.DEVICE


@pytest.fixture(autouse=True)
def tiles():
    support.settle()
    with tiny_tiles():
        yield
        support.settle()
    tiledev.clear_axis_group_tiling()


def whole(*shape, seed=0):
    """Small whole numbers: every order of adding up their products gives the same sum."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).float()


def last_plan():
    tiledev.execute()
    return json.loads(tiledev.explain(format="json"))["segments"]


def products():
    return sum(segment["products"] for segment in last_plan())


def takes_products():
    x = torch.ones(90, 90, device=DEVICE)
    y = (x + 1) @ x
    return products() > 0 and y.shape == x.shape


def on_device(f, *tensors):
    return f(*[t.to(DEVICE) for t in tensors])


SHAPES = [
    (3, 1, 1),
    (5, 7, 3),
    (12, 16, 16),
    (13, 255, 17),
    (50, 256, 33),
    (101, 257, 10),
    (200, 600, 40),
    (195, 20, 1040),
    (7, 2100, 2),
]
FORMS = {
    "plain": lambda a, b: a @ b,
    "right transposed": lambda a, b: a @ b.t().contiguous().t(),
    "left transposed": lambda a, b: a.t().contiguous().t() @ b,
    "both transposed": lambda a, b: a.t().contiguous().t() @ b.t().contiguous().t(),
    "parts": lambda a, b: F.pad(a, (3, 5))[:, 3:-5] @ F.pad(b, (2, 4, 1, 1))[1:-1, 2:-4],
    "result transposed": lambda a, b: (b.t() @ a.t()).t(),
    "with a row": lambda a, b: torch.addmm(b[0], a, b),
    "with a row of a matrix": lambda a, b: torch.addmm(b[:1], a, b),
    "with a number": lambda a, b: torch.addmm(b[:1, :1], a, b),
    "with a matrix": lambda a, b: torch.addmm(a[:, :1] * b[:1], a, b),
    "with factors": lambda a, b: torch.addmm(b[0], a, b, beta=2, alpha=-3),
    "with no row": lambda a, b: torch.addmm(b[0] / 0, a, b, beta=0),
    "in place": lambda a, b: (a @ b).addmm_(a, b),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact(shape, form):
    m, k, n = shape
    a, b = whole(m, k), whole(k, n, seed=1)
    # What stands around the product lets it be cut, small as it is.
    f = lambda a, b: F.relu(FORMS[form](a * 2, b)) + 1  # noqa: E731
    result = on_device(f, a, b).cpu()
    assert torch.equal(result, f(a, b))


@pytest.mark.parametrize("rows", [1, 6, 50, 193, 1000])
def test_gradients_are_exact(rows):
    x, grad = whole(rows, 70), whole(rows, 21, seed=3)

    def gradients(x, grad):
        layer = torch.nn.Linear(70, 21).to(x.device)
        with torch.no_grad():
            layer.weight.copy_(whole(21, 70, seed=1))
            layer.bias.copy_(whole(21, seed=2))
        x.requires_grad_()
        y = layer(x)
        y.backward(grad)
        return y, x.grad, layer.weight.grad, layer.bias.grad

    for one, right in zip(on_device(gradients, x, grad), gradients(x, grad), strict=True):
        assert torch.equal(one.cpu(), right)


@pytest.mark.parametrize("k", [3, 256, 700])
def test_rows_have_the_same_bits_in_every_tiling(k):
    if not takes_products():
        pytest.skip("for this CPU ATen takes the products")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, k, generator=generator)
    w = torch.randn(50, k, generator=generator)
    b = torch.randn(50, generator=generator)
    results = []
    with context(2):
        for size in (300, 150, 77, 5, 1):
            on = x.to(DEVICE)
            tiledev.set_axis_group_name(on, {0: "rows"})
            tiledev.set_axis_group_tiling("rows", size)
            results.append(F.linear(on, w.to(DEVICE), b.to(DEVICE)).relu().cpu())
    for result in results[1:]:
        assert torch.equal(result, results[0])
    torch.testing.assert_close(results[0], F.linear(x, w, b).relu(), rtol=1e-5, atol=1e-4)


def test_any_number_of_rows():
    tiles = list(range(1, 28))
    x, w = whole(sum(tiles), 200), whole(200, 40, seed=1)
    with context(2):
        on = x.to(DEVICE)
        tiledev.set_axis_group_name(on, {0: "rows"})
        tiledev.set_axis_group_tiling("rows", tiles)
        result = ((on * 2) @ w.to(DEVICE) + 1).cpu()
    assert torch.equal(result, (x * 2) @ w + 1)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_values_that_are_no_numbers(value):
    a, b = whole(40, 30), whole(30, 20, seed=1)
    a[3, 5] = b[7, 2] = value
    result = on_device(lambda a, b: (a * 1) @ b + 1, a, b).cpu()
    torch.testing.assert_close(result, a @ b + 1, equal_nan=True)


# ---- packed matrices --------------------------------------------------------------------------


def test_tiles_share_a_packed_matrix():
    x, w = whole(200, 64).to(DEVICE), whole(64, 64, seed=1).to(DEVICE)
    y = ((x @ w).relu() @ w @ w.t()).relu()
    segments = last_plan()
    assert y.shape == (200, 64)
    if sum(s["products"] for s in segments) == 0:
        pytest.skip("for this CPU ATen takes the products")
    assert [(s["products"], s["packed"]) for s in segments if s["products"]] == [(3, 2)]
    assert "3 products with 2 packed matrices" in tiledev.explain()


WRITES = {
    "add_": lambda w, new: w.add_(new - 1),
    "copy_ from the host": lambda w, new: w.copy_(new.cpu()),
    "part": lambda w, new: w[3:5].mul_(new[3:5]),
    "element": lambda w, new: w.__setitem__((2, 3), 77.0),
    "data": lambda w, new: w.data.copy_(new),
    "host call": lambda w, new: w.masked_scatter_(w > 0, new),
    "out=": lambda w, new: torch.mul(new, 2, out=w),
    "set_": lambda w, new: w.set_(new),
    "foreach": lambda w, new: torch._foreach_mul_([w], 3.0),
    "sgd": lambda w, new: _sgd(w, new),
}


def _sgd(w, new):
    parameter = torch.nn.Parameter(w)
    parameter.grad = new.clone()
    torch.optim.SGD([parameter], lr=1.0).step()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("runs", [1, 2, 4])
def test_a_packed_matrix_follows_what_is_written(name, runs):
    """It is kept from the second of equal runs on, and only while the matrix stays the same."""
    x, w, new = whole(90, 40), whole(40, 24, seed=1), whole(40, 24, seed=2)

    def results(x, w, new):
        got = []
        for _ in range(2):
            for _ in range(runs):
                got.append((x @ w + 1).cpu())
            WRITES[name](w, new)
        got.append((x @ w + 1).cpu())
        return got

    expected = results(x.clone(), w.clone(), new.clone())
    for one, right in zip(on_device(results, x, w, new), expected, strict=True):
        assert torch.equal(one, right)


def test_writes_in_flight():
    """Nothing waits between the runs and the writes."""
    x, w = whole(90, 40), whole(40, 24, seed=1)

    def results(x, w):
        got = []
        for step in range(30):
            got.append(x @ w + 1)
            if step % 4 == 3:
                w += 1
            if x.device.type == DEVICE:
                tiledev.execute()
        return [y.cpu() for y in got]

    for one, right in zip(on_device(results, x, w), results(x.clone(), w.clone()), strict=True):
        assert torch.equal(one, right)


def test_parts_of_a_table_in_turn():
    """Only some of the views of a buffer are remembered."""
    x, table = whole(90, 40), whole(60, 40, 24, seed=1)

    def results(x, table):
        return [(x @ table[i] + 1).cpu() for _ in range(3) for i in range(0, 60, 2)]

    for one, right in zip(on_device(results, x, table), results(x, table), strict=True):
        assert torch.equal(one, right)


def work_bytes():
    support.settle()
    return torch.tiledev.memory_stats()["work_bytes.all.current"]


def test_packed_matrices_go_with_their_weights():
    if not takes_products():
        pytest.skip("for this CPU ATen takes the products")
    with context(2):
        x, w = torch.ones(600, 512, device=DEVICE), torch.ones(512, 512, device=DEVICE)

        def run(w=w):
            (x @ w + 1).sum().item()

        run()
        before = work_bytes()
        run()
        run()
        assert work_bytes() - before >= w.nbytes  # kept
        torch.tiledev.empty_cache()
        assert work_bytes() - before < w.nbytes
        run()
        run()
        assert work_bytes() - before >= w.nbytes
        w += 1
        tiledev.wait()
        assert work_bytes() - before < w.nbytes
        run()
        run()
        assert work_bytes() - before >= w.nbytes
        del w, run
        assert work_bytes() - before < 512 * 512 * 4


def test_a_kept_matrix_does_not_outlive_its_context():
    x, w, new = whole(600, 64), whole(64, 64, seed=1), whole(64, 64, seed=2)
    with context(2):
        on_x, on_w, on_new = (t.to(DEVICE) for t in (x, w, new))
        mask = torch.ones_like(on_new, dtype=torch.bool)
        for _ in range(3):
            (on_x @ on_w + 1).cpu()
        tiledev.wait()
    with context(2):
        packs = takes_products()
        for _ in range(4):
            (on_x @ on_w + 1).cpu()
        kept = work_bytes()
        torch.tiledev.empty_cache()
        assert not packs or kept - work_bytes() >= w.nbytes
        (on_x @ on_w + 1).cpu()
    tiledev.shutdown_context()
    flat = on_w.view(-1)
    torch.masked_select(on_new, mask, out=flat)  # the host writes it
    with context(2):
        assert torch.equal((on_x @ on_w + 1).cpu(), x @ new + 1)


def test_a_host_write_beside_a_reader():
    """Whatever the reader saw meanwhile, later products are those of what was written."""
    x, w, new = whole(600, 64), whole(64, 64, seed=1), whole(64, 64, seed=2)
    with context(2):
        on_x, on_w, on_new = (t.to(DEVICE) for t in (x, w, new))
        mask = torch.ones_like(on_new, dtype=torch.bool)
        stop = threading.Event()

        def read():
            while not stop.is_set():
                (on_x @ on_w + 1).cpu()

        for value in (on_new, on_new * 2, on_new * 3):
            stop.clear()
            reader = threading.Thread(target=read)
            reader.start()
            for _ in range(20):
                torch.masked_select(value, mask, out=on_w.view(-1))
            stop.set()
            reader.join()
            assert torch.equal((on_x @ on_w + 1).cpu(), x @ value.cpu() + 1)


def test_packing_never_fails_under_a_limit():
    """Where the product fits without it, it fits with it, and nothing counts as out of memory."""
    x, w = torch.ones(2048, 512), torch.ones(512, 1024)
    right = (x @ w).relu()
    ooms = torch.tiledev.memory_stats()["num_ooms"]
    for limit in range(17 * 4, 19 * 4):
        with context(2, memory_limit=(limit << 18) + torch.tiledev.memory_allocated()):
            tiledev._C.set_tiling_mode("auto")
            assert torch.equal(on_device(lambda x, w: (x @ w).relu(), x, w).cpu(), right)
    assert torch.tiledev.memory_stats()["num_ooms"] == ooms


def test_nothing_is_kept_under_a_limit():
    before = work_bytes()
    with context(2, memory_limit=(64 << 20) + torch.tiledev.memory_allocated()):
        x, w = torch.ones(600, 512, device=DEVICE), torch.ones(512, 512, device=DEVICE)
        for _ in range(4):
            assert (x @ w + 1).sum().item() == 600 * 512 * 513
        assert work_bytes() - before < w.nbytes


def test_without_room_each_product_packs_for_itself():
    """The tensors fit, and the scratch; a packed copy of the weight does not."""
    x, w = torch.ones(64, 512), torch.ones(512, 1024)
    with context(2, memory_limit=(3 << 20) + torch.tiledev.memory_allocated()):
        y = on_device(lambda x, w: (x @ w).relu(), x, w)
        assert torch.equal(y.cpu(), (x @ w).relu())


def trained(rows: int, tiles: list[int], workers: int, trace_file) -> list[torch.Tensor]:
    """Gradients of two layers whose tiles along the rows have these sizes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 300, generator=generator)
    layers = [torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 17)]
    network = torch.nn.Sequential(*layers)
    for parameter in network.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    with context(workers), tiledev.trace(trace_file):
        tiledev._C.set_tiling_mode("auto")
        on = x.to(DEVICE)
        network.to(DEVICE)
        tiledev.set_axis_group_name(on, {0: "rows"})
        tiledev.set_axis_group_tiling("rows", tiles)
        network(on).square().sum().backward()
        return [parameter.grad.cpu() for parameter in network.parameters()]


def test_workers_without_work_help_with_the_last_tiles(tmp_path):
    if not takes_products():
        pytest.skip("for this CPU ATen takes the products")
    file, tiles = tmp_path / "trace.json", [10, 1990]

    def helped() -> int:
        events = json.loads(file.read_text())["traceEvents"]
        return sum(event.get("cat") == "help" for event in events)

    alone = trained(2000, tiles, 1, file)
    assert helped() == 0
    helps = 0
    for _ in range(5):
        together = trained(2000, tiles, 3, file)
        helps += helped()
        for one, other in zip(together, alone, strict=True):
            assert torch.equal(one, other)
    assert helps > 0
