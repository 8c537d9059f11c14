"""Tile rules: which large calls are cut into tiles, under which conditions."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import tiledev

DEVICE = "tiledev"
pytestmark = pytest.mark.usefixtures("two_workers")


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def classes(count, *shape):
    target = torch.randint(count, shape, generator=torch.Generator().manual_seed(1))
    target.view(-1)[::7] = -100
    return target


def indices(count, *shape):
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(2))


def gradients(f):
    """The results of f, and the gradients of what it takes."""

    def run(*inputs):
        leaves = [x.detach().requires_grad_(x.is_floating_point() and x.dim() > 1) for x in inputs]
        out = f(*leaves)
        out.square().sum().backward()
        return out.detach(), *(x.grad for x in leaves if x.grad is not None)

    return run


def norm(order):
    return lambda x: torch.linalg.vector_norm(x, order)


def attention(**options):
    return gradients(lambda *inputs: F.scaled_dot_product_attention(*inputs, **options))


def cross_entropy(reduction):
    return gradients(lambda x, y, *w: F.cross_entropy(x, y, *w, reduction=reduction))


def batch_norm(x, weight, bias, mean, var):
    return F.batch_norm(x, mean, var, weight, bias)


IMAGE, KERNEL, BIAS = values(1, 32, 40, 40), values(64, 32, 3, 3) / 17, values(64)
HEADS = [values(1, 1, 320, 32, seed=s) for s in range(3)]
FEW_KEYS = [HEADS[0], HEADS[1][:, :, :50].contiguous(), HEADS[2][:, :, :50].contiguous()]
ROWS, TARGET, WEIGHTS = values(4096, 20), classes(20, 4096), values(20, seed=3).abs()
PIXELS, PIXEL_TARGET = values(2, 20, 48, 48), classes(20, 2, 48, 48)
X = values(300, 400)

# What is called; the inputs; ops that must be cut, each into several tiles.
CASES = {
    # convolution: out channels where there is one image only
    "conv": (gradients(lambda *a: F.conv2d(*a, padding=1)), [IMAGE, KERNEL, BIAS],
             ["convolution", "convolution_backward"]),
    "conv_no_bias": (gradients(lambda *a: F.conv2d(*a, stride=2)), [IMAGE, KERNEL],
                     ["convolution", "convolution_backward"]),
    "conv_channels_last": (lambda *a: F.conv2d(*a, padding=1),
                           [IMAGE.contiguous(memory_format=torch.channels_last), KERNEL, BIAS],
                           ["convolution"]),
    "conv1d": (F.conv1d, [values(1, 16, 4000), values(32, 16, 3), values(32)], ["convolution"]),
    "conv3d": (F.conv3d, [values(1, 4, 12, 20, 20), values(16, 4, 3, 3, 3), values(16)],
               ["convolution"]),
    "conv_transpose": (F.conv_transpose2d, [IMAGE, KERNEL.transpose(0, 1).contiguous(), BIAS],
                       ["convolution"]),
    "conv_depthwise": (lambda *a: F.conv2d(*a, groups=32), [IMAGE, values(32, 1, 3, 3)],
                       ["convolution"]),
    "conv_groups": (gradients(lambda *a: F.conv2d(*a, groups=2)),
                    [values(4, 32, 20, 20), values(64, 16, 3, 3)],
                    ["convolution", "convolution_backward"]),
    # attention: queries, unless a later one sees more keys
    "attention": (attention(), HEADS, ["attention_for_cpu", "attention_for_cpu_backward"]),
    "attention_few_keys": (attention(scale=0.3), FEW_KEYS,
                           ["attention_for_cpu", "attention_for_cpu_backward"]),
    "attention_mask": (attention(), [*HEADS, values(320, 320, seed=4) > 0],
                       ["attention_for_cpu", "attention_for_cpu_backward"]),
    "attention_row_mask": (attention(), [*HEADS, values(1, 320, seed=4) > 0],
                           ["attention_for_cpu", "attention_for_cpu_backward"]),
    "attention_causal": (attention(is_causal=True), [values(2, 4, 96, 16)] * 3,
                         ["attention_for_cpu", "attention_for_cpu_backward"]),
    # losses
    **{f"cross_entropy_{reduction}_{name}": (cross_entropy(reduction), inputs,
                                             [f"{op}_forward", f"{op}_backward"])
       for reduction in ("none", "sum", "mean")
       for name, inputs, op in (
           ("rows", [ROWS, TARGET], "nll_loss"),
           ("weighted", [ROWS, TARGET, WEIGHTS], "nll_loss"),
           ("images", [PIXELS, PIXEL_TARGET], "nll_loss2d"),
           ("images_weighted", [PIXELS, PIXEL_TARGET, WEIGHTS], "nll_loss2d"))},
    # normalization in evaluation
    "batch_norm": (gradients(batch_norm),
                   [values(8, 16, 24, 24), values(16), values(16), values(16), values(16).abs()],
                   ["native_batch_norm_backward"]),
    # reductions of all elements
    **{f"norm_{ord}": (norm(ord), [X], ["linalg_vector_norm"])
       for ord in (2, 1, 0, float("inf"), -float("inf"))},
    "norm_by_row": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), [X], ["linalg_vector_norm"]),
    "logsumexp": (lambda x: x.logsumexp((0, 1)), [X], ["logsumexp"]),
    "max": (lambda x: x.max(), [X], ["max"]),
    "min": (lambda x: x.min(), [X], ["min"]),
    "count_nonzero": (lambda x: torch.count_nonzero(x > 1), [X], ["count_nonzero"]),
    "var": (lambda x: x.var(), [X], ["sum"]),
    "std_biased": (lambda x: x.std(correction=0, keepdim=True), [X], ["sum"]),
    "var_mean": (lambda x: torch.var_mean(x, (-1, 0)), [X], ["sum"]),
    "std_mean": (lambda x: torch.std_mean(x), [X.double()], ["sum"]),
    "argmax": (lambda x: x.argmax(), [X], ["max"]),
    "argmax_of_equals": (lambda x: (x > 2).float().argmax(), [X], ["max"]),
    "argmin_keepdim": (lambda x: x.argmin(keepdim=True), [X], ["min"]),
    "argmin_of_nans": (lambda x: torch.where(x > 2, torch.nan, x).argmin(), [X], ["min"]),
    # results that have memory already
    "sum_out": (lambda x: torch.sum(x, (0, 1), out=x.new_empty(())), [X], ["sum"]),
    "sum_out_part": (lambda x: torch.sum(x, 0, out=x.new_zeros(2, 400)[1]), [X], ["sum"]),
    "max_out": (lambda x: torch.max(x, 1, out=(x.new_empty(300), x.new_empty(300).long())), [X],
                ["max"]),
    "softmax_out": (lambda x: torch.softmax(x, 1, dtype=None, out=torch.empty_like(x)), [X],
                    ["_softmax"]),
    "mm_out": (lambda x: torch.mm(x, x.t(), out=x.new_empty(300, 300)), [X], ["mm"]),
    # indices
    "gather_some": (lambda x, i: x.gather(1, i), [X, indices(400, 256, 300)], ["gather"]),
    "gather_rows": (lambda x, i: x.gather(0, i), [X, indices(300, 500, 300)], ["gather"]),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, x), [X, indices(400, 300, 300)],
                    ["scatter_add"]),
    "scatter_add_": (lambda x, i: x.clone().scatter_add_(1, i, x), [X, indices(400, 256, 300)],
                     ["scatter_add_"]),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(1, i, x, "amax"), [X, indices(400, 300, 400)],
                       ["scatter_reduce"]),
    "index_add": (lambda x, i: x.index_add(0, i, x[:200]), [X, indices(300, 200)], ["index_add"]),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:200]),
                   [X, torch.arange(299, 99, -1)], ["index_copy"]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3.0), [X, indices(400, 100)], ["index_fill_"]),
    "select_gradient": (gradients(lambda x: x[:, 3] * 2), [values(300, 40, 50)], ["zero_"]),
    # complex numbers
    "complex_mul": (lambda x: (x * x + 1j).exp(), [torch.complex(X, X + 1)], ["mul", "add", "exp"]),
    "complex_mm": (lambda x: x @ x.t(), [torch.complex(X, X + 1)], ["mm"]),
    "complex_sum": (lambda x: (x.sum(0), x.sum()), [torch.complex(X, X + 1)], ["sum"]),
    "complex_abs": (lambda x: x.abs().double(), [torch.complex(X, X + 1)], ["abs"]),
    # others
    "masked_fill": (lambda x, v: x.masked_fill(x > 0, v), [X, torch.tensor(2.0)], ["masked_fill_"]),
    "glu": (gradients(F.glu), [X], ["glu", "glu_backward"]),
    "prelu": (gradients(F.prelu), [X, torch.tensor([0.2])], ["_prelu_kernel"]),
    "roll": (lambda x: x.roll(3, 0), [X], ["roll"]),
    "flip": (lambda x: x.flip(0), [X], ["flip"]),
    "tril": (lambda x: x.tril(1), [values(16, 60, 60)], ["tril"]),
    "median": (lambda x: x.median(1), [X], ["median"]),
    "kthvalue": (lambda x: x.kthvalue(7, 1), [X], ["kthvalue"]),
}  # fmt: skip


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def run_on(device, f, inputs):
    return [x.cpu() for x in flat(f(*(x.to(device) for x in inputs)))]


def was_cut(op):
    segments = json.loads(tiledev.explain(format="json"))["segments"]
    names = [s["ops"].split(", ") for s in segments if s["tiles"] > 1]
    ops = [name.split(" x")[0].removeprefix("tiledev::") for some in names for name in some]
    return any(name == op or name.endswith("_" + op) for name in ops)


@pytest.mark.parametrize("mode", ["auto", "tiny"])
@pytest.mark.parametrize("case", CASES)
def test_a_large_call_is_cut(case, mode):
    f, inputs, cut = CASES[case]
    expected = run_on("cpu", f, inputs)
    tiledev._C.set_tiling_mode(mode)
    on_device = [x.to(DEVICE) for x in inputs]
    tiledev.wait()
    result = flat(f(*on_device))
    tiledev.wait()
    for op in cut:
        assert was_cut(op), (op, tiledev.explain())
    torch.testing.assert_close([x.cpu() for x in result], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", ["auto", "tiny"])
def test_a_sum_into_memory_that_its_own_tiles_read(mode):
    tiledev._C.set_tiling_mode(mode)

    def f(x):
        x = x + 0
        torch.sum(x @ x.t(), 0, out=x.view(-1))
        return x

    torch.testing.assert_close(run_on(DEVICE, f, [X[:, :1]]), run_on("cpu", f, [X[:, :1]]))


@pytest.mark.parametrize("correction", [0, 1, 300 * 400, 300 * 400 + 1])
def test_variance_of_all_elements(correction):
    x = X * 3 + 1000
    found = torch.var(x.to(DEVICE), correction=correction).cpu()
    torch.testing.assert_close(found, torch.var(x.double(), correction=correction).float())


def test_gradients_through_reductions_of_all_elements():
    def f(x):
        return x.var() + x.std(correction=0) + x.norm() + x.max() + x.logsumexp((0, 1))

    torch.testing.assert_close(
        run_on(DEVICE, gradients(f), [X]), run_on("cpu", gradients(f), [X]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("dims", [(0, 0), (0, 2), (-3, 0)])
@pytest.mark.parametrize("op", [torch.var, torch.std, torch.var_mean, torch.std_mean])
def test_dimensions_that_are_none(op, dims):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        op(X, dims)
    with pytest.raises(type(expected.value), match=r"[Dd]im"):
        op(X.to(DEVICE), dims)


def test_a_target_beyond_the_classes_is_an_error_in_all_forms():
    bad = TARGET.clone()
    bad[5] = 20
    for weight in (None, WEIGHTS.to(DEVICE)):
        loss = F.cross_entropy(ROWS.to(DEVICE), bad.to(DEVICE), weight)
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            loss.item()


@pytest.mark.parametrize("wrong", ["if", "if groups", "if groups=", "if =1", "if groups=many"])
def test_a_condition_that_is_none(wrong):
    with pytest.raises(ValueError, match=r"\[tile_rule\]"):
        tiledev.tile_rule("aten::bincount", f"n,_->_; {wrong}")


def test_a_condition_on_an_argument_that_the_op_does_not_have():
    with pytest.raises(ValueError, match="fit no overload"):
        tiledev.tile_rule("aten::bincount", "n,_->_; if color=1")


def test_rules_by_condition():
    @torch.library.custom_op("rules_test::scale", mutates_args=(), device_types="cpu")
    def scale(x: torch.Tensor, by_row: bool) -> torch.Tensor:
        return x / x.sum(1, keepdim=True) if by_row else x / x.sum(0, keepdim=True)

    @scale.register_fake
    def _(x, by_row):
        return torch.empty_like(x)

    tiledev.tile_rule("rules_test::scale", "mn->mn; whole n; if by_row=True")
    tiledev.tile_rule("rules_test::scale", "mn->mn; whole m")
    with pytest.raises(ValueError, match="has a rule already"):
        tiledev.tile_rule("rules_test::scale", "mn->mn")
    x = X.abs() + 1
    for by_row in (True, False):
        y = scale(x.to(DEVICE), by_row)
        tiledev.wait()
        assert was_cut("rules_test::scale"), tiledev.explain()
        torch.testing.assert_close(y.cpu(), scale(x, by_row))
