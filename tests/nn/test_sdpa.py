"""F.scaled_dot_product_attention on the device takes whatever the CPU takes, and gives the same."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

import tiledev
from tests import support
from tests.compare import assert_same

B, H, L, S, E = 2, 4, 5, 7, 8
LOOSE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
}


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def visible(*shape):
    """A bool mask of which each query sees something."""
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True
    return mask


def check(
    q, k, v, mask=None, *, view=lambda x: x, mask_view=lambda x: x, tolerances=None, **options
):
    """Output and gradients of attention over views of q, k, v and the mask."""

    def body(device):
        leaves = [x.to(device, copy=True).requires_grad_() for x in (q, k, v)]
        given = None
        if mask is not None:
            given = mask.detach().to(device, copy=True).requires_grad_(mask.requires_grad)
        views = [view(x) for x in leaves]
        seen = None if given is None else mask_view(given)
        support.seed(1)
        out = F.scaled_dot_product_attention(*views, attn_mask=seen, **options)
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device)
        (out * weight.view(out.shape)).sum().backward()
        with torch.no_grad():
            plain = F.scaled_dot_product_attention(*views, attn_mask=seen, **options)
        grads = [x.grad for x in leaves]
        return [out, *grads, *([] if given is None or given.grad is None else [given.grad]), plain]

    assert_same(body, **(tolerances or LOOSE[q.dtype]))


def qkv(dtype=torch.float32, *, heads=H, queries=L, keys=S, size=E, values=E):
    return (
        drawn(B, H, queries, size, dtype=dtype),
        drawn(B, heads, keys, size, dtype=dtype),
        drawn(B, heads, keys, values, dtype=dtype),
    )


MASKS = {
    "none": lambda: None,
    "bool [L, S]": lambda: visible(L, S),
    "bool [1, S]": lambda: visible(1, S),
    "bool [B, 1, 1, S]": lambda: visible(B, 1, 1, S),
    "bool [B, 1, L, S]": lambda: visible(B, 1, L, S),
    "bool [1, H, L, 1]": lambda: torch.ones(1, H, L, 1, dtype=torch.bool),
    "bool [B, H, L, S]": lambda: visible(B, H, L, S),
    "bool [H, L, S]": lambda: visible(H, L, S),
    "float [L, S]": lambda: drawn(L, S),
    "float [1, H, 1, S]": lambda: drawn(1, H, 1, S),
    "float [B, H, L, S]": lambda: drawn(B, H, L, S),
    "float -inf": lambda: torch.zeros(B, 1, L, S).masked_fill(~visible(B, 1, L, S), -math.inf),
}


class TestOptions:
    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("kind", MASKS)
    def test_masks(self, kind, dtype):
        mask = MASKS[kind]()
        if mask is not None and mask.is_floating_point():
            mask = mask.to(dtype)
        check(*qkv(dtype), mask)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
    def test_a_float32_mask_over_another_dtype(self, dtype):
        check(*qkv(dtype), drawn(L, S))

    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("queries", [1, 5, 7, 11])
    def test_causal_with_unequal_lengths(self, queries, dtype):
        check(*qkv(dtype, queries=queries), is_causal=True)

    @pytest.mark.parametrize("scale", [None, 0.3, 1.0, 0.0, -0.5, 20.0])
    @pytest.mark.parametrize("kind", ["none", "bool [L, S]"])
    def test_scale(self, scale, kind):
        # The last bit of scores near 100 is 1e-5; the CPU is as far from the exact gradients.
        tolerances = {"rtol": 1e-4, "atol": 1e-4} if scale == 20.0 else None
        check(*qkv(), MASKS[kind](), scale=scale, tolerances=tolerances)

    @pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
    @pytest.mark.parametrize("kind", ["none", "bool [B, 1, L, S]", "float [1, H, 1, S]"])
    @pytest.mark.parametrize("heads", [1, 2, 4])
    def test_gqa(self, heads, kind, options):
        check(*qkv(heads=heads), MASKS[kind](), enable_gqa=True, **options)

    def test_gqa_with_other_heads_in_the_values(self):
        q, k, _ = qkv(heads=2)
        check(q, k, drawn(B, 1, S, E), enable_gqa=True)

    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("kind", ["none", "bool [B, 1, L, S]", "float [L, S]"])
    @pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
    def test_dropout(self, p, kind, dtype):
        mask = MASKS[kind]()
        check(*qkv(dtype), mask.to(dtype) if kind[0] == "f" else mask, dropout_p=p)

    @pytest.mark.parametrize("options", [{"is_causal": True}, {"enable_gqa": True}], ids=str)
    def test_dropout_with(self, options):
        check(*qkv(heads=2 if "enable_gqa" in options else H), dropout_p=0.3, **options)

    @pytest.mark.parametrize("dropout_p", [0.0, 0.3])
    @pytest.mark.parametrize("shape", [(L, S), (B, 1, 1, S), (1, H, L, S)], ids=str)
    def test_a_mask_with_a_gradient(self, shape, dropout_p):
        check(*qkv(), drawn(*shape).requires_grad_(), dropout_p=dropout_p)

    def test_a_mask_beside_is_causal(self):
        check(*qkv(), drawn(L, S), is_causal=True)


class TestEmptyRows:
    @pytest.mark.parametrize("dropout_p", [0.0, 0.3])  # the fused kernel and the composed form
    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("kind", ["bool", "float"])
    @pytest.mark.parametrize("rows", [[0], [1, 4], [0, 1, 2, 3, 4]], ids=str)
    def test_rows_without_a_key(self, rows, kind, dtype, dropout_p):
        mask = visible(B, 1, L, S)
        mask[:, :, rows] = False
        if kind == "float":
            mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)
        check(*qkv(dtype), mask, dropout_p=dropout_p)

    def test_the_row_is_zero(self):
        q, k, v = (x.to(support.DEVICE).requires_grad_() for x in qkv())
        mask = torch.ones(L, S, dtype=torch.bool)
        mask[2] = False
        out = F.scaled_dot_product_attention(q, k, v, mask.to(support.DEVICE))
        out.sum().backward()
        assert out[:, :, 2].eq(0).all()
        assert out[:, :, 1].ne(0).all()
        assert q.grad[:, :, 2].eq(0).all()


class TestInputs:
    @pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.3}], ids=str)
    @pytest.mark.parametrize(
        "batch", [(), (3,), (2, 3), (2, 1, 3), (0, 3), (2, 0), (0,)], ids=lambda b: str(list(b))
    )
    def test_batch_shapes(self, batch, options):
        check(drawn(*batch, L, E), drawn(*batch, S, E), drawn(*batch, S, E), **options)

    @pytest.mark.parametrize("sizes", [(0, S, E), (L, 0, E), (0, 0, E), (L, S, 0)], ids=str)
    def test_zero_sizes(self, sizes):
        queries, keys, size = sizes
        check(*qkv(queries=queries, keys=keys, size=size))
        check(*qkv(queries=queries, keys=keys, size=size), is_causal=True)

    def test_values_of_another_size(self):
        check(*qkv(values=3))
        check(*qkv(values=3), visible(B, 1, L, S))

    def test_broadcast_batches(self):
        q, k, v = qkv()
        check(q, k[:1], v[:1])
        check(q, k[:, :1], v[:, :1])

    @pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.3}], ids=str)
    @pytest.mark.parametrize(
        "view",
        [
            pytest.param(lambda x: x.transpose(1, 2), id="heads after seq"),
            pytest.param(lambda x: x.transpose(2, 3), id="head_size before seq"),
            pytest.param(lambda x: x.permute(3, 2, 0, 1), id="permuted"),
            pytest.param(lambda x: x[:, :, ::2], id="every other row"),
            pytest.param(lambda x: x[..., 1::2], id="every other feature"),
            pytest.param(lambda x: x[:, 1:, 1:, 2:6], id="offset"),
            pytest.param(lambda x: x[:1].expand(3, -1, -1, -1), id="expanded batch"),
            pytest.param(lambda x: x[:, :1].expand(-1, 3, -1, -1), id="expanded heads"),
            pytest.param(lambda x: x.flip(2), id="flipped"),
        ],
    )
    def test_views(self, view, options):
        check(*(drawn(4, 4, 6, 8) for _ in range(3)), view=view, **options)

    @pytest.mark.parametrize(
        "mask_view",
        [
            pytest.param(lambda m: m.expand(B, H, L, S), id="expanded"),
            pytest.param(lambda m: m.flip(-1), id="flipped"),
            pytest.param(lambda m: m[..., :1, :].expand(B, 1, L, S), id="expanded rows"),
            pytest.param(lambda m: m.transpose(2, 3).contiguous().transpose(2, 3), id="transposed"),
        ],
    )
    @pytest.mark.parametrize("kind", ["bool", "float", "grad"])
    def test_views_of_masks(self, kind, mask_view):
        mask = {
            "bool": lambda: visible(1, 1, L, S),
            "float": lambda: drawn(1, 1, L, S),
            "grad": lambda: drawn(1, 1, L, S).requires_grad_(),
        }[kind]()
        check(*qkv(), mask, mask_view=mask_view)

    def test_one_tensor_for_all(self):
        def body(device):
            x = drawn(B, H, L, E).to(device).requires_grad_()
            F.scaled_dot_product_attention(x, x, x, is_causal=True).square().sum().backward()
            return x.grad

        assert_same(body, rtol=1e-4, atol=1e-5)

    def test_only_some_gradients(self):
        q, k, v = qkv()

        def body(device):
            leaf = v.to(device, copy=True).requires_grad_()
            out = F.scaled_dot_product_attention(q.to(device), k.to(device), leaf)
            out.square().sum().backward()
            return [out, leaf.grad]

        assert_same(body, rtol=1e-4, atol=1e-5)

    def test_more_keys_than_a_block_of_the_kernel(self):
        check(*qkv(queries=130, keys=1100), is_causal=True)
        check(*qkv(queries=130, keys=1100), visible(B, 1, 1, 1100))

    def test_second_gradients_of_the_composed_form(self):
        def body(device):
            leaves = [drawn(L, E).to(device).requires_grad_() for _ in range(3)]
            out = F.scaled_dot_product_attention(*leaves).square().sum()
            first = torch.autograd.grad(out, leaves, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

        assert_same(body, rtol=1e-3, atol=1e-4)


class TestTiles:
    """Large enough that attention is cut by itself; tiny tiles cut it along batch or heads too."""

    @pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"enable_gqa": True}], ids=str)
    @pytest.mark.parametrize("shape", [None, (96, 128), (4, 1, 96, 128), (1, 8, 1, 128)], ids=str)
    @pytest.mark.parametrize("kind", ["bool", "float"])
    def test_values_and_gradients(self, kind, shape, options):
        heads = 2 if "enable_gqa" in options else 8
        q, k, v = drawn(4, 8, 96, 32), drawn(4, heads, 128, 32), drawn(4, heads, 128, 32)
        mask = None if shape is None else visible(*shape) if kind == "bool" else drawn(*shape)
        check(q, k, v, mask, **options)

    @pytest.mark.tiledev_only
    @pytest.mark.parametrize("shape", [None, (96, 128), (4, 1, 96, 128), (1, 8, 1, 128)], ids=str)
    def test_they_are_cut(self, shape):
        q, k, v = (drawn(4, 8, n, 32).to(support.DEVICE).requires_grad_() for n in (96, 128, 128))
        mask = None if shape is None else visible(*shape).to(support.DEVICE)
        support.synchronize()
        F.scaled_dot_product_attention(q, k, v, mask).square().sum().backward()
        support.synchronize()
        lines = tiledev.explain().splitlines()
        heads = [head for head, ops in pairwise(lines) if "flash_attention_for_cpu" in ops]
        assert heads
        assert all(" tiles of " in head for head in heads), tiledev.explain()


class TestErrors:
    @pytest.mark.parametrize(
        ("shapes", "options"),
        [
            (((2, 3, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)), {"enable_gqa": True}),
            (((2, 3, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)), {}),
            (((2, 3, 5, 8), (2, 3, 5, 4), (2, 3, 5, 4)), {}),
            (((8,), (8,), (8,)), {}),
            (((2, 3, 5, 8),) * 3, {"attn_mask": (4, 4)}),
            (((2, 3, 5, 8),) * 3, {"attn_mask": (5,)}),
            (((3, 5, 8),) * 3, {"attn_mask": (5, 5), "is_causal": True}),
            (((2, 3, 5, 8),) * 3, {"dropout_p": 1.5}),
        ],
        ids=str,
    )
    def test_what_the_cpu_refuses(self, shapes, options):
        def body(device):
            given = dict(options)
            if "attn_mask" in given:
                given["attn_mask"] = torch.zeros(given["attn_mask"], device=device)
            inputs = [torch.ones(shape, device=device) for shape in shapes]
            return F.scaled_dot_product_attention(*inputs, **given)

        with pytest.raises((RuntimeError, IndexError)):
            body("cpu")
        assert_same(body)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16], ids=str)
    def test_masks_of_other_dtypes(self, dtype):
        def body(device):
            x = torch.ones(2, 3, 5, 8, device=device)
            mask = torch.zeros(5, 5, dtype=dtype, device=device)
            return F.scaled_dot_product_attention(x, x, x, mask)

        with pytest.raises(RuntimeError):
            body("cpu")
        assert_same(body)
