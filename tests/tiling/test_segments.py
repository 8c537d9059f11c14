"""Values under automatic tiles: ops that run tile by tile give what they give on the CPU."""

import re

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.tiling import context

pytestmark = [pytest.mark.tiledev_only, pytest.mark.usefixtures("two_workers")]

DEVICE = support.DEVICE
ROUNDING = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-9, 1e-9),
    torch.bfloat16: (2e-2, 2e-2),
}


def values(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def indices(below, *shape, seed=1):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def as_list(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


def segments(text=None):
    """A dict for each segment of the last plan."""
    lines = (text or tiledev.explain()).splitlines()[1:]
    found = []
    for head, ops in zip(lines[::2], lines[1::2], strict=True):
        tiles = re.search(r"(\d+) tiles of (\d+) units", head)
        found.append(
            {
                "count": int(re.search(r": (\d+) ops", head)[1]),
                "tiles": int(tiles[1]) if tiles else 0,
                "lanes": int(lanes[1]) if (lanes := re.search(r"(\d+) lanes", head)) else 0,
                "scratch": re.search(r"scratch (.*)$", head)[1],
                "ops": re.sub(r" x\d+", "", ops.strip()).split(", "),
            }
        )
    return found


def tiled_segments():
    return [segment for segment in segments() if segment["tiles"] > 1]


def on_device(f, *inputs):
    """The results, and the tiled segments of the plan that made them."""
    moved = [x.to(DEVICE) for x in inputs]
    tiledev.wait()
    results = as_list(f(*moved))
    tiledev.wait()
    return [result.detach().cpu() for result in results], tiled_segments()


def assert_same(f, *inputs, tiled=True):
    want = [result.detach() for result in as_list(f(*(x.clone() for x in inputs)))]
    tiledev.wait()
    moved = [x.to(DEVICE) for x in inputs]
    tiledev.wait()
    results = as_list(f(*moved))
    tiledev.wait()
    assert tiled_segments() or not tiled, tiledev.explain()
    for result, expected in zip(results, want, strict=True):
        rtol, atol = ROUNDING.get(expected.dtype, (0, 0))
        torch.testing.assert_close(
            result.detach().cpu(), expected, rtol=rtol, atol=atol, equal_nan=True
        )


# ---- single ops and chains ----------------------------------------------------------------------


ELEMENTWISE = {
    "chain": lambda x: ((x * 2 + 1).relu() - x.sigmoid()).tanh(),
    "in place": lambda x: x.clone().mul_(3).add_(1).abs_(),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "broadcast along rows": lambda x: x * x[0] + x[:, :1],
    "several results": lambda x: (x + 1, x * x, (x + 1) * x),
    "clamp and types": lambda x: (x.clamp(-1, 1) > 0.5, x.double(), x.long()),
    "transposed": lambda x: (x.t() * 2 + 1).t().contiguous(),
    "fill and zero": lambda x: torch.zeros_like(x).fill_(2).add_(x),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    assert_same(ELEMENTWISE[name], values(4096, 256))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
)
def test_dtypes(dtype):
    x = values(4096, 256, dtype=torch.int64).abs().to(dtype) if dtype == torch.uint8 else None
    x = values(4096, 256, dtype=dtype) if x is None else x
    if dtype == torch.bool:
        assert_same(lambda x: (x & ~x.roll(1, 0), x.any(0), x.all(1), x.sum(0)), x)
    else:
        assert_same(lambda x: (x * x + x, x.amax(0), x.sum(0), x.sum(1), x == x[0]), x)


MATMUL = {
    "chain": lambda x, w: ((x @ w).relu() @ w).relu() @ w,
    "addmm": lambda x, w: F.linear(F.gelu(F.linear(x, w, w[0])), w, w[1]),
    "gradient of a weight": lambda x, w: (x.t() @ (x @ w)) / 4096,
    "transposed": lambda x, w: (w @ x.t()).t() + 1,
    "batched": lambda x, w: torch.bmm(x.view(16, 256, 256), w.expand(16, 256, 256)),
    "batched, reduced": lambda x, w: (x.view(16, 256, 256) @ x.view(16, 256, 256).mT).sum(0),
    "vector": lambda x, w: x @ w[0] + (x.t() @ x[:, 0])[0],
    "baddbmm": lambda x, w: torch.baddbmm(w, x.view(16, 256, 256), x.view(16, 256, 256)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MATMUL)
def test_matmul(name, dtype):
    assert_same(
        MATMUL[name], values(4096, 256, dtype=dtype) / 16, values(256, 256, dtype=dtype) / 16
    )


def test_matmul_in_bfloat16():
    x, w = values(4096, 256), values(256, 256) / 16
    assert_same(lambda x, w: (x @ w).relu() @ w, x.bfloat16(), w.bfloat16())


REDUCTIONS = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "amax": lambda x, dim: x.amax(dim),
    "amin, kept": lambda x, dim: x.amin(dim, keepdim=True),
    "prod": lambda x, dim: (x * 1e-3 + 1).prod(dim),
    "any": lambda x, dim: (x > 4).any(dim),
    "all": lambda x, dim: (x < 3.5).all(dim),
    "max": lambda x, dim: x.max(dim)[0],
    "argmax": lambda x, dim: x.argmax(dim),
    "var": lambda x, dim: x.var(dim),
    "norm": lambda x, dim: x.norm(dim=dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "nansum": lambda x, dim: x.nansum(dim),
    "after a chain": lambda x, dim: (x * 2).relu().sum(dim) + x.square().mean(dim),
}


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dim):
    assert_same(lambda x: REDUCTIONS[name](x * 1, dim), values(4096, 256))


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "prod", "any", "all", "after a chain"])
def test_reductions_to_one_number(name):
    full = {"prod": lambda x: (x * 1e-3 + 1).prod(), "after a chain": lambda x: x.relu().sum()}
    f = full.get(name, lambda x: getattr(x > 3 if name in ("any", "all") else x, name)())
    assert_same(lambda x: f(x * 1), values(4096, 256))


def test_special_values_in_reductions():
    x = values(4096, 256)
    x[4000, 3], x[17, 5], x[9, 9] = float("nan"), float("inf"), float("-inf")
    assert_same(lambda x: (x.amax(0), x.amin(0), x.sum(0), x.mean(), x.amax(1)), x)
    assert_same(lambda x: (x.argmax(0), x.max(1)[1], x.nansum(0)), x)


ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log_softmax of columns": lambda x: x.log_softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x: F.rms_norm(x, (x.shape[-1],)),
    "cumsum": lambda x: (x / 256).cumsum(-1),
    "cumsum of columns": lambda x: (x / 4096).cumsum(0),
    "sort": lambda x: x.sort(-1)[0],
    "topk": lambda x: x.topk(5, -1)[0],
    "flip": lambda x: x.flip(-1) + x.flip(0),
    "chain": lambda x: F.layer_norm((x * 2).softmax(-1) + x, (x.shape[-1],)).sum(-1),
}


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, dims):
    shape = (4096, 256) if dims == 2 else (16, 256, 256)
    assert_same(lambda x: ROWS[name](x * 1), values(*shape))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("f", [torch.softmax, torch.log_softmax])
def test_gradients_of_softmax(f, dim):
    def body(x, g):
        x = x.detach().requires_grad_()
        y = f(x, dim)
        (y * g).sum().backward()
        return y, x.grad

    assert_same(body, values(32, 64, 256), values(32, 64, 256, seed=1))


VIEWS = {
    "transpose": lambda x: (x.view(16, 256, 256).transpose(0, 1) * 2 + 1).sum(0),
    "permute": lambda x: x.view(16, 16, 16, 256).permute(3, 0, 2, 1).relu().contiguous(),
    "expand": lambda x: (x[:1].expand(4096, 256) * x + x[:, :1].expand(4096, 256)).sum(0),
    "strided slices": lambda x: x[::2] * 2 + x[1::2],
    "strided columns": lambda x: x[:, ::3].relu() + x[:, 1::3].relu()[:, :1],
    "halves": lambda x: (x[:2048] + 1) * x[2048:],
    "shifted": lambda x: x[1:] - x[:-1],
    "reversed halves": lambda x: torch.cat([x[2048:] * 2, x[:2048] * 3]),
    "narrow": lambda x: x.narrow(1, 13, 100).exp() + x.narrow(1, 99, 100),
    "select": lambda x: x[:, 3].sigmoid() + x[7].sum(),
    "unfold": lambda x: x.unfold(0, 4, 2).sum(-1) * 2,
    "diagonal": lambda x: x.view(16, 256, 256).diagonal(dim1=1, dim2=2) * 2,
    "heads": lambda x: x.view(16, 256, 8, 32).transpose(1, 2).contiguous().view(-1, 256).sum(0),
    "flattened": lambda x: (x.flatten() * 2).view(1024, -1).sum(1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    assert_same(VIEWS[name], values(4096, 256), tiled=name not in ("select", "diagonal"))


def write_rows(x):
    y = x * 1
    y[:2048].mul_(2)
    y[2048:] += x[:2048]
    return y


def write_columns(x):
    y = x * 1
    y[:, ::2].add_(1)
    y[:, 1::2] = y[:, ::2] * 3
    return y


def write_shifted(x):
    y = x * 1
    y[1:].add_(x[:-1])
    y[:-1] *= x[1:]
    return y


def read_before_and_after(x):
    y = x * 1
    before = y + 1
    y.mul_(5)
    after = y + before
    y.zero_()
    return before, after, y


def write_through_a_transpose(x):
    y = x * 1
    y.t().add_(x.t() * 2)
    y.view(-1)[5:].neg_()
    return y.sum(0), y


def write_one_row(x):
    y = x * 2
    y[77] = -1
    y[:, 3] = 4
    return y.relu(), y.sum(0)


def accumulate(x):
    total = torch.zeros_like(x[0])
    for part in x.chunk(4):
        total += (part * 2).sum(0)
    return total


def write_into_broadcast_source(x):
    row = x.sum(0)
    y = x * row
    row.mul_(2)
    return y + row, row


IN_PLACE = [
    write_rows,
    write_columns,
    write_shifted,
    read_before_and_after,
    write_through_a_transpose,
    write_one_row,
    accumulate,
    write_into_broadcast_source,
]


@pytest.mark.parametrize("f", IN_PLACE, ids=lambda f: f.__name__)
def test_in_place(f):
    assert_same(f, values(4096, 256))


JOINING = {
    "cat rows": lambda x, y: torch.cat([x * 2, y + 1]).relu(),
    "cat columns": lambda x, y: torch.cat([x * 2, y, x], 1).sum(1),
    "stack": lambda x, y: torch.stack([x, y * 2], 1) + 1,
    "stack, last": lambda x, y: torch.stack([x, y], -1).sum(-1),
    "unbind": lambda x, y: sum(part.relu() for part in x.view(4, 1024, 256).unbind(0)),
    "unbind the middle": lambda x, y: sum(p * 2 for p in x.view(1024, 4, 256).unbind(1)),
    "split": lambda x, y: torch.cat([p * i for i, p in enumerate(x.split(100, 1))], 1),
    "chunk": lambda x, y: torch.stack(list(map(torch.mul, x.chunk(4), y.chunk(4)))),
    "repeat": lambda x, y: (x[:1024].repeat(4, 1) + y).sum(0),
    "roll": lambda x, y: x.roll(5, 0) * y,
    "pad": lambda x, y: F.pad(x * 2, (1, 2, 3, 4)),
}


@pytest.mark.parametrize("name", JOINING)
def test_joining_and_parting(name):
    assert_same(JOINING[name], values(4096, 256), values(4096, 256, seed=1), tiled=False)


def test_gradient_of_unbind():
    def body(x):
        x = x.detach().requires_grad_()
        q, k, v = x.view(4096, 3, 128).unbind(1)
        (q * k + v.relu()).square().sum().backward()
        return x.grad

    assert_same(body, values(4096, 384))


LOOKUPS = {
    "index_select": lambda x, i: (x * 2).index_select(0, i) + 1,
    "index_select columns": lambda x, i: x.index_select(1, i % 256).relu(),
    "embedding": lambda x, i: F.embedding(i.view(64, 64), x).relu(),
    "gather": lambda x, i: (x * 2).gather(1, (i[:, None] % 256).expand(4096, 8)),
    "gather rows": lambda x, i: x.gather(0, i[:, None].expand(4096, 256)) + 1,
    "advanced": lambda x, i: x[i] * 2,
    "scatter": lambda x, i: torch.zeros_like(x).scatter(1, i[:, None] % 256, 1.0) + x,
    "scatter_add": lambda x, i: torch.zeros_like(x).scatter_add(1, i[:, None] % 256, x) * 2,
    "index_add": lambda x, i: torch.zeros_like(x).index_add(0, i, x),
    "masked": lambda x, i: x.masked_fill(x > 1, 0).sum(0),
    "one_hot": lambda x, i: F.one_hot(i % 10, 10).sum(0),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name):
    assert_same(LOOKUPS[name], values(4096, 256), indices(4096, 4096), tiled=False)


def test_gradient_of_an_embedding():
    def body(table, i):
        table = table.detach().requires_grad_()
        F.layer_norm(F.embedding(i, table), (64,)).square().mean().backward()
        return table.grad * 1000

    assert_same(body, values(1000, 64), indices(1000, 64, 128))


# ---- training -----------------------------------------------------------------------------------


def mlp():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 10),
    )


class Block(torch.nn.Module):
    """A block of a small GPT, with its embedding and head."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 64)
        self.norm1, self.norm2 = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
        self.head = torch.nn.Linear(64, 100)

    def forward(self, tokens):
        x = self.embedding(tokens)
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (p.view(batch, length, 4, width // 4).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x).flatten(0, 1)


def gpt():
    torch.manual_seed(4)
    return Block()


def conv_net():
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    )


NETWORKS = {
    "mlp": (mlp, lambda: (values(4096, 256), indices(10, 4096))),
    "gpt": (gpt, lambda: (indices(100, 16, 64), indices(100, 1024, seed=2))),
    "conv": (conv_net, lambda: (values(32, 3, 24, 24), indices(10, 32))),
}
OPTIMIZERS = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=0.003, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.003, weight_decay=0.1, **k),
}


def train(device, network="mlp", optimizer="SGD", steps=3, **kwargs):
    """The losses, the last gradients and the weights."""
    make, data = NETWORKS[network]
    model = make().to(device)
    x, y = (t.to(device) for t in data())
    opt = OPTIMIZERS[optimizer](model.parameters(), **kwargs)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    results = [*losses, *(p.grad for p in model.parameters()), *model.parameters()]
    return [result.detach().cpu() for result in results]


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients(network):
    make, data = NETWORKS[network]

    def body(device):
        model = make().to(device)
        x, y = (t.to(device) for t in data())
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if device != "cpu":
            tiledev.wait()
            assert tiled_segments(), tiledev.explain()
        return [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]

    torch.testing.assert_close(body(DEVICE), body("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_training(network):
    got, want = train(DEVICE, network), train("cpu", network)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer, foreach):
    def body(device):
        p = values(1024, 1024).to(device).requires_grad_()
        q = values(300, 7).to(device).requires_grad_()
        opt = OPTIMIZERS[optimizer]([p, q], foreach=foreach)
        for step in range(4):
            p.grad, q.grad = values(1024, 1024, seed=step).to(device), values(300, 7).to(device)
            opt.step()
        state = [t for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        return [t.detach().cpu() for t in (p, q, *state)]

    torch.testing.assert_close(body(DEVICE), body("cpu"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_gradients(foreach):
    def body(device):
        model = mlp().to(device)
        F.cross_entropy(
            model(values(4096, 256).to(device)), indices(10, 4096).to(device)
        ).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=foreach)
        return [norm.cpu(), *(p.grad.cpu() for p in model.parameters())]

    torch.testing.assert_close(body(DEVICE), body("cpu"), rtol=1e-4, atol=1e-6)


LOSSES = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, y),
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum") / 1000,
    "none": lambda x, y: F.cross_entropy(x, y, reduction="none").mean(),
    "ignored": lambda x, y: F.cross_entropy(x, y % 4, ignore_index=2),
    "weighted": lambda x, y: F.cross_entropy(x, y, weight=torch.arange(1.0, 11, device=x.device)),
    "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "mse": lambda x, y: F.mse_loss(x, F.one_hot(y, 10).float()),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, F.one_hot(y, 10).float()),
    "huber": lambda x, y: F.smooth_l1_loss(x, F.one_hot(y, 10).float()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    def body(x, y):
        x = x.detach().requires_grad_()
        loss = LOSSES[name](x * 2, y)
        loss.backward()
        return loss, x.grad * 1000

    assert_same(body, values(8192, 10), indices(10, 8192))


# ---- what the plan is ---------------------------------------------------------------------------


def test_forward_loss_and_backward_are_one_segment_with_scratch():
    model, (x, y) = mlp().to(DEVICE), (t.to(DEVICE) for t in NETWORKS["mlp"][1]())
    tiledev.wait()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    tiledev.wait()
    (segment,) = tiled_segments()
    assert {"addmm", "relu", "_log_softmax", "nll_loss_forward", "nll_loss_backward"} <= set(
        segment["ops"]
    )
    assert {"mm", "threshold_backward", "sum"} <= set(segment["ops"])
    assert segment["lanes"] == 2
    assert segment["scratch"].endswith("MiB")
    assert loss.item() > 0


def test_a_chain_is_one_segment_and_its_temporaries_are_in_scratch():
    x = values(4096, 256).to(DEVICE)
    tiledev.wait()
    y = ((x * 2).relu() + 1).tanh()
    tiledev.wait()
    (segment,) = segments()
    assert segment["count"] == 4
    assert segment["tiles"] > 1
    assert "writes 4.0 MiB" in tiledev.explain()
    assert y.shape == (4096, 256)


def test_a_convolutional_network_in_evaluation_is_cut_along_the_batch():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    with torch.no_grad():
        for layer in (network[1], network[4]):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            layer.weight.normal_()
        x = values(16, 3, 32, 32)
        expected = network(x)
        result = network.to(DEVICE)(x.to(DEVICE)).cpu()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    (segment,) = tiled_segments()
    assert segment["ops"].count("tiledev::batch_norm_inference") == 2
    assert segment["count"] == 5


def test_independent_chains_of_one_shape_do_not_hinder_each_other():
    x, y = values(4096, 256).to(DEVICE), values(1000, 999).to(DEVICE)
    tiledev.wait()
    for _ in range(3):
        x, y = x * 1.5, y * 2.5
    tiledev.wait()
    assert sorted(segment["count"] for segment in tiled_segments()) == [3, 3]
    torch.testing.assert_close(x.cpu(), values(4096, 256) * 1.5 * 1.5 * 1.5)
    torch.testing.assert_close(y.cpu(), values(1000, 999) * 2.5 * 2.5 * 2.5)


# ---- bits ---------------------------------------------------------------------------------------


def assert_equal_bits(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_run_twice_gives_the_same_bits(network):
    runs = [train(DEVICE, network, optimizer="AdamW") for _ in range(3)]
    assert_equal_bits(runs[1], runs[0])
    assert_equal_bits(runs[2], runs[0])


@pytest.mark.parametrize("network", NETWORKS)
def test_deterministic_for_any_number_of_workers(network, deterministic):
    runs = []
    for workers in (1, 2, 4):
        with context(workers):
            runs.append(train(DEVICE, network, optimizer="Adam"))
    assert_equal_bits(runs[1], runs[0])
    assert_equal_bits(runs[2], runs[0])


def test_deterministic_reductions_for_any_number_of_workers(deterministic):
    def body(x):
        x = x * 1.1
        return x.sum(), x.sum(0), x.mean(0), x.t() @ x, x.relu().sum(1).mean()

    runs = []
    for workers in (1, 2, 3, 4):
        with context(workers):
            runs.append(on_device(body, values(4096, 256))[0])
    for run in runs[1:]:
        assert_equal_bits(run, runs[0])


def test_deterministic_whole_ops_for_any_number_of_workers(deterministic):
    # Each of these has other bits on the CPU with another number of threads.
    def body(x, kernel, images):
        return (
            x[:10, :37] @ x[:37, :32],
            torch.linalg.vector_norm(x, 3),
            F.conv2d(images, kernel, groups=4),
            torch.linalg.solve(x[:200, :200], x[:200, :30]),
        )

    runs = []
    for workers in (1, 2, 3, 4):
        with context(workers):
            runs.append(
                on_device(body, values(4096, 256), values(32, 4, 3, 3), values(1, 16, 32, 32))[0]
            )
    for run in runs[1:]:
        assert_equal_bits(run, runs[0])


@pytest.mark.parametrize("network", ["mlp", "gpt"])
def test_whole_ops_give_the_bits_of_the_cpu(network):
    tiledev._C.set_tiling_mode("whole")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_equal_bits(
            train(DEVICE, network, foreach=False), train("cpu", network, foreach=False)
        )
        assert not tiled_segments()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("network", NETWORKS)
def test_tiny_tiles_give_the_same_within_rounding(network):
    tiledev._C.set_tiling_mode("tiny")
    torch.testing.assert_close(train(DEVICE, network), train("cpu", network), rtol=1e-3, atol=1e-4)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="set_tiling_mode"):
        tiledev._C.set_tiling_mode("huge")


@pytest.mark.parametrize("op", [torch.softmax, torch.log_softmax])
def test_an_out_argument_that_the_kernel_would_write_contiguously(op):
    tiledev._C.set_tiling_mode("tiny")
    x = torch.randn(40, 50)
    out = torch.zeros(40, 50, device=DEVICE)
    op(x.to(DEVICE), 0, out=out)
    torch.testing.assert_close(out.cpu(), op(x, 0))


@pytest.mark.parametrize(
    "op",
    [torch.abs, torch.logit, F.logsigmoid, lambda x: 2 - x, lambda x: x // 0.3],
    ids=["abs", "logit", "logsigmoid", "rsub", "floor_divide"],
)
def test_ops_that_make_their_result_themselves_join_a_chain(op):
    """PyTorch composes `abs` of an empty result and `abs.out`, which gives it its shape."""
    x = torch.rand(400, 500) * 0.8 + 0.1
    y = x.to(DEVICE)
    tiledev.wait()
    result = op(y) * 2 + 1
    tiledev.wait()
    assert len(segments()) == len(tiled_segments()) == 1
    torch.testing.assert_close(result.cpu(), op(x) * 2 + 1)


# ---- temporaries in scratch ---------------------------------------------------------------------


def products_of_parts(join, part):
    """What only slices of a joined temporary are used for, among other temporaries."""

    def f(a, b):
        x, y = part(join([a * 2, b * 2]))
        p, q, r = x @ a, x @ b, x @ x
        return (p + q + r + y).sum(1)

    return f


JOINED = {
    "columns": (lambda both: torch.cat(both, 1), lambda w: w.chunk(2, 1)),
    "rows": (torch.cat, lambda w: w.chunk(2)),
    "stacked": (torch.stack, lambda w: w.unbind()),
    "stacked last": (lambda both: torch.stack(both, 2), lambda w: w.unbind(2)),
}


@pytest.mark.parametrize("size", [32, 48, 64, 500])
@pytest.mark.parametrize("join", JOINED)
def test_a_joined_temporary_of_which_only_parts_are_read(join, size):
    f = products_of_parts(*JOINED[join])
    a, b = values(size, size) / size, values(size, size, seed=1) / size
    assert_same(f, a, b, tiled=size > 100)


def elementwise_of_parts(join, part):
    def f(a, b):
        x, y = part(join([a.softmax(1), b.softmax(1)]))
        p, q, r = x * 2, x.softmax(1) * y, (x * 3).softmax(1)
        return (p + q + r + y).sum(1)

    return f


@pytest.mark.parametrize("join", JOINED)
def test_a_joined_temporary_in_tiles(join):
    f = elementwise_of_parts(*JOINED[join])
    assert_same(f, values(1024, 1024), values(1024, 1024, seed=1))


# ---- ops that ATen tags in one form only --------------------------------------------------------


def written(x):
    return torch.empty_like(x)


OTHER_FORMS = {
    "masked_fill": lambda x, m: x.masked_fill(m, 0.5),
    "masked_fill_": lambda x, m: x.masked_fill_(m, 0.5),
    "masked_fill by a row": lambda x, m: x.masked_fill(m[:1], 0.5) + 1,
    "where, out": lambda x, m: torch.where(m, x, -x, out=written(x)),
    "gelu, out": lambda x, m: torch._C._nn.gelu(x, out=written(x)),
    "softplus, out": lambda x, m: torch._C._nn.softplus(x, out=written(x)),
    "elu, out": lambda x, m: torch._C._nn.elu(x, out=written(x)),
    "mish_": lambda x, m: F.mish(x, inplace=True),
    "threshold_": lambda x, m: F.threshold(x, 0.1, 0.0, inplace=True),
    "eq_": lambda x, m: x.round_().eq_(1),
    "copysign_": lambda x, m: x.copysign_(-1),
    "heaviside_": lambda x, m: x.heaviside_(x.abs()),
    "scatter_": lambda x, m: x.scatter_(1, m.long(), x * 0 + 1),
    "scatter_ of a number": lambda x, m: x.scatter_(1, m.long(), 2.0),
    "scatter, out": lambda x, m: torch.scatter(x, 1, m.long(), 2.0, out=written(x)),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_other_forms_of_ops_with_a_rule_are_cut(name):
    x = values(1024, 1024)
    assert_same(OTHER_FORMS[name], x, x > 0)
    assert all(segment["tiles"] > 1 for segment in segments()), tiledev.explain()


# ---- pooling ------------------------------------------------------------------------------------

POOLING = {
    "max2d": (2, lambda x: F.max_pool2d(x, 2)),
    "max2d with indices": (2, lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0]),
    "avg2d": (2, lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "adaptive avg2d": (2, lambda x: F.adaptive_avg_pool2d(x, 5)),
    "adaptive max2d": (2, lambda x: F.adaptive_max_pool2d(x, 5)),
    "max3d": (3, lambda x: F.max_pool3d(x, 2)),
    "avg3d": (3, lambda x: F.avg_pool3d(x, 2)),
    "adaptive avg3d": (3, lambda x: F.adaptive_avg_pool3d(x, 5)),
}


@pytest.mark.parametrize("leading", [(1, 40), (2, 40), (40, 3), (40,)], ids=str)
@pytest.mark.parametrize("name", POOLING)
def test_pooling_is_cut_along_batch_and_channels(name, leading):
    dims, pool = POOLING[name]
    x = values(*leading, *((40, 40) if dims == 2 else (12, 12, 14)))
    assert_same(pool, x)

    def gradient(x):
        x.requires_grad_()
        pool(x).square().sum().backward()
        return x.grad

    assert_same(gradient, x)


@pytest.mark.parametrize("name", ["max2d", "avg2d", "adaptive avg2d", "adaptive max2d"])
def test_pooling_of_channels_last(name):
    x = values(2, 40, 40, 40).to(memory_format=torch.channels_last)
    assert_same(POOLING[name][1], x)
