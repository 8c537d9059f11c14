"""sdpa_eager: F.scaled_dot_product_attention, composed of plain ops."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests import support
from tests.compare import assert_same
from tests.nn.test_sdpa import LOOSE, MASKS, B, E, L, S, drawn, qkv, visible
from tiledev.nn import sdpa_eager


def gradients(attend, inputs, device="cpu", **options):
    """The output of attention and the gradients of its inputs, of the mask too if it has one."""
    leaves = [None if x is None else x.detach().to(device, copy=True) for x in inputs]
    for leaf, x in zip(leaves, inputs, strict=True):
        if x is not None:
            leaf.requires_grad_(x.requires_grad or x is not inputs[-1])
    support.seed(1)
    out = attend(*leaves, **options)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device)
    (out * weight.view(out.shape)).sum().backward()
    return [out, *(leaf.grad for leaf in leaves if leaf is not None and leaf.requires_grad)]


def check(inputs, **options):
    """The same as PyTorch's on the CPU, and on the device the same as itself on the CPU."""
    tolerance = LOOSE[inputs[0].dtype]
    theirs = dict(options)
    theirs.pop("batch_ndim", None)
    want = gradients(F.scaled_dot_product_attention, inputs, **theirs)
    got = gradients(sdpa_eager, inputs, **options)
    torch.testing.assert_close(got, want, check_stride=False, **tolerance)
    assert_same(lambda device: gradients(sdpa_eager, inputs, device, **options), **tolerance)


class TestAgainstPyTorch:
    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("kind", MASKS)
    def test_masks(self, kind, dtype):
        mask = MASKS[kind]()
        if mask is not None and mask.is_floating_point():
            mask = mask.to(dtype)
        check([*qkv(dtype), mask])

    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("queries", [1, 5, 7, 11])
    def test_causal_with_unequal_lengths(self, queries, dtype):
        check([*qkv(dtype, queries=queries), None], is_causal=True)

    @pytest.mark.parametrize("scale", [None, 0.3, 0.0, -0.5, 3.0])
    def test_scale(self, scale):
        check([*qkv(), None], scale=scale)

    @pytest.mark.parametrize("kind", ["none", "bool [B, 1, L, S]", "float [1, H, 1, S]"])
    @pytest.mark.parametrize("heads", [1, 2, 4])
    def test_gqa(self, heads, kind):
        check([*qkv(heads=heads), MASKS[kind]()], enable_gqa=True)

    def test_a_mask_with_a_gradient(self):
        check([*qkv(), drawn(B, 1, 1, S).requires_grad_()])

    def test_a_mask_beside_is_causal(self):
        check([*qkv(), visible(L, S)], is_causal=True)

    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("kind", ["bool", "float"])
    @pytest.mark.parametrize("rows", [[0], [1, 4], [0, 1, 2, 3, 4]], ids=str)
    def test_empty_rows(self, rows, kind, dtype):
        mask = visible(B, 1, L, S)
        mask[:, :, rows] = False
        if kind == "float":
            mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)
        check([*qkv(dtype), mask])

    @pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3), (0, 3)], ids=lambda b: str(list(b)))
    def test_batch_ndim(self, batch):
        inputs = [drawn(*batch, L, E), drawn(*batch, S, E), drawn(*batch, S, 3)]
        check([*inputs, None], batch_ndim=len(batch))

    def test_batches_broadcast(self):
        q, k, v = qkv(heads=1)
        check([q, k, v, visible(L, S)])

    @pytest.mark.parametrize("sizes", [(0, S, E), (L, 0, E), (L, S, 0)], ids=str)
    def test_zero_sizes(self, sizes):
        queries, keys, size = sizes
        check([*qkv(queries=queries, keys=keys, size=size), None])


class TestDropout:
    @pytest.mark.parametrize("dtype", LOOSE, ids=str)
    @pytest.mark.parametrize("p", [0.3, 1.0])
    def test_a_seed_gives_pytorchs_numbers(self, p, dtype):
        check([*qkv(dtype), None], dropout_p=p)

    def test_the_device_drops_what_the_cpu_drops(self):
        # Equal keys: the weights are 1/64, or 0 where they are dropped, and sums of them exact.
        q, k = torch.zeros(2, 2, 16, 8), torch.zeros(2, 2, 64, 8)
        values = torch.eye(64).expand(2, 2, 64, 64)

        def body(device):
            support.seed(3)
            return sdpa_eager(*(x.to(device) for x in (q, k, values)), dropout_p=0.5)

        want = body("cpu")
        assert torch.equal(body(support.DEVICE).cpu(), want)
        assert set(want.unique().tolist()) == {0.0, 2 / 64}

    def test_the_share_that_is_dropped(self):
        q = torch.zeros(1, 1, 256, 1, device=support.DEVICE)
        out = sdpa_eager(q, q, torch.eye(256, device=support.DEVICE)[None, None], dropout_p=0.25)
        assert out.eq(0).float().mean().item() == pytest.approx(0.25, abs=0.01)
        assert out.sum(-1).mean().item() == pytest.approx(1.0, abs=0.01)


class TestDerivatives:
    def test_second_gradients(self):
        def body(device):
            leaves = [x.to(device, copy=True).requires_grad_() for x in qkv(torch.float64)]
            out = sdpa_eager(*leaves, visible(L, S).to(device), is_causal=True).square().sum()
            first = torch.autograd.grad(out, leaves, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

        assert_same(body, rtol=1e-8, atol=1e-9)

    def test_gradcheck_with_an_empty_row(self):
        mask = torch.ones(3, 4, dtype=torch.bool)
        mask[1] = False
        inputs = [torch.randn(1, 2, n, 3, dtype=torch.float64) for n in (3, 4, 4)]
        inputs = [x.to(support.DEVICE).requires_grad_() for x in inputs]
        mask = mask.to(support.DEVICE)
        assert torch.autograd.gradcheck(lambda *x: sdpa_eager(*x, mask), inputs)

    def test_under_vmap(self):
        q, k, v = (x.to(support.DEVICE) for x in qkv())
        got = torch.vmap(lambda *x: sdpa_eager(*x, batch_ndim=1))(q, k, v)
        torch.testing.assert_close(got, sdpa_eager(q, k, v))


class TestErrors:
    @pytest.mark.parametrize(
        ("shapes", "options", "message"),
        [
            (((5, 8), (5, 8), (5, 8)), {}, r"q has shape \[5, 8\]: with batch_ndim=2"),
            (((2, 3, 5, 8), (2, 5, 8), (2, 3, 5, 8)), {}, r"k has shape \[2, 5, 8\]"),
            (((2, 3, 5, 8),) * 3, {"batch_ndim": 1}, "needs 3 axes"),
            (((2, 3, 5, 8), (2, 3, 5, 4), (2, 3, 5, 8)), {}, "head_size is 8 in q and 4 in k"),
            (((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 5, 8)), {}, "k has 6 rows and v 5"),
            (((2, 3, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)), {"enable_gqa": True}, "no multiple of k"),
            (((5, 8),) * 3, {"enable_gqa": True, "batch_ndim": 0}, "an axis of heads"),
            (((2, 3, 5, 8),) * 3, {"dropout_p": 1.5}, "dropout_p is 1.5"),
            (((2, 3, 5, 8),) * 3, {"mask": torch.int64}, "the mask is torch.int64"),
            (((2, 3, 5, 8),) * 3, {"mask": torch.float64}, "the mask is torch.float64"),
        ],
    )
    def test_arguments(self, shapes, options, message, device):
        options = dict(options)
        if "mask" in options:
            options["mask"] = torch.zeros(5, 5, dtype=options["mask"], device=device)
        with pytest.raises(ValueError, match=rf"\[sdpa_eager\] .*{message}"):
            sdpa_eager(*(torch.ones(shape, device=device) for shape in shapes), **options)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
    def test_dtypes(self, dtype, device):
        x = torch.ones(1, 1, 2, 2, device=device)
        with pytest.raises(ValueError, match="one floating dtype"):
            sdpa_eager(x, x.to(dtype), x)
        with pytest.raises(ValueError, match="one floating dtype"):
            sdpa_eager(x.long(), x.long(), x.long())
