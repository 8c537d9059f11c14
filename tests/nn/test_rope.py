"""RoPE: both conventions, any layout, positions and scalings."""

import copy
import math

import pytest
import torch

from tests import support
from tests.compare import assert_same
from tests.nn.test_sdpa import LOOSE, drawn
from tiledev.nn import RoPE, rope_frequencies


def reference(x, positions, *, base=10000.0, interleaved=False, rotary=None, factor=1.0):
    """One number at a time, over [batch, heads, seq, head_size] and positions [batch][seq]."""
    out = x.clone().double()
    half = (rotary or x.size(-1)) // 2
    for b, h, s, i in (
        (b, h, s, i)
        for b in range(x.size(0))
        for h in range(x.size(1))
        for s in range(x.size(2))
        for i in range(half)
    ):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        angle = positions[b][s] / base ** (2 * i / (2 * half)) / factor
        one, two = x[b, h, s, first].item(), x[b, h, s, second].item()
        out[b, h, s, first] = one * math.cos(angle) - two * math.sin(angle)
        out[b, h, s, second] = two * math.cos(angle) + one * math.sin(angle)
    return out


def run(rope, x, positions, device):
    leaf = x.to(device, copy=True).requires_grad_()
    out = rope(leaf, None if positions is None else positions.to(device))
    (
        out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device).view_as(out)
    ).sum().backward()
    return [out, leaf.grad]


POSITIONS = {
    "default": (None, [[0, 1, 2, 3]] * 2),
    "[seq]": (torch.tensor([3, 100, 0, 7]), [[3, 100, 0, 7]] * 2),
    "[batch, seq]": (torch.tensor([[0, 1, 2, 3], [9, 8, 1, 1]]), [[0, 1, 2, 3], [9, 8, 1, 1]]),
    "[1, seq]": (torch.tensor([[5, 6, 7, 8]]), [[5, 6, 7, 8]] * 2),
}


@pytest.mark.parametrize("dtype", LOOSE, ids=str)
@pytest.mark.parametrize("rotary", [None, 4])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_values_and_gradients(kind, interleaved, rotary, dtype):
    given, plain = POSITIONS[kind]
    x = drawn(2, 3, 4, 8, dtype=dtype)
    rope = RoPE(8, interleaved=interleaved, rotary_size=rotary)
    want = reference(x, plain, interleaved=interleaved, rotary=rotary)
    got = run(rope, x, given, support.DEVICE)
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float64 else LOOSE[dtype]
    torch.testing.assert_close(got[0].detach().cpu(), want.to(dtype), **LOOSE[dtype])
    assert got[0].dtype == dtype
    assert_same(lambda device: run(rope, x, given, device), **tolerance)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_projection_layout(interleaved, device):
    x, positions = drawn(2, 4, 8, 3).to(device), POSITIONS["[batch, seq]"][0].to(device)
    ours = RoPE(8, interleaved=interleaved, seq_dim=-3, dim=-2)(x, positions)
    heads_first = RoPE(8, interleaved=interleaved)(x.permute(0, 3, 1, 2), positions)
    torch.testing.assert_close(ours, heads_first.permute(0, 2, 3, 1))


def test_products_depend_on_distances_alone(device):
    rope, q, k = RoPE(8), *(drawn(1, 8, dtype=torch.float64).to(device) for _ in range(2))

    def product(at, other):
        turned = [rope(x, torch.tensor([p], device=device)) for x, p in ((q, at), (k, other))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(product(7, 3), product(104, 100))
    assert not torch.isclose(product(7, 3), product(7, 4))


def test_half_precision_is_rounded_once(device):
    x, positions = drawn(1, 1, 4, 8), torch.tensor([1000, 2000, 4000, 8001])
    got = RoPE(8).half().to(device)(x.half().to(device), positions.to(device))
    want = RoPE(8)(x.half().float(), positions).half()
    assert torch.equal(got.cpu(), want)


def test_meta_and_copies():
    with torch.device("meta"):
        rope = RoPE(8)
    rope = copy.deepcopy(rope).to_empty(device=support.DEVICE)
    assert rope.state_dict() == {}
    x = drawn(2, 1, 3, 8).to(support.DEVICE)
    assert torch.equal(rope(x), RoPE(8)(x))


class TestScaling:
    def test_linear_is_positions_divided(self, device):
        x = drawn(1, 1, 4, 8, dtype=torch.float64).to(device)
        scaled = RoPE(8, scaling={"type": "linear", "factor": 4})
        got = scaled(x, torch.tensor([4, 8, 12, 400], device=device))
        want = RoPE(8)(x, torch.tensor([1, 2, 3, 100], device=device))
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)

    def test_ntk_keeps_the_first_pair_and_divides_the_last(self):
        plain, _ = rope_frequencies(16)
        scaled, factor = rope_frequencies(16, scaling={"rope_type": "ntk", "factor": 8.0})
        assert factor == 1.0
        assert scaled[0] == plain[0] == 1.0
        assert scaled[-1] == pytest.approx(plain[-1] / 8)

    def test_llama3(self):
        # Llama 3.1's own numbers.
        scaling = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        plain, _ = rope_frequencies(128, 500000.0)
        scaled, factor = rope_frequencies(128, 500000.0, scaling)
        assert factor == 1.0
        for before, after in zip(plain, scaled, strict=True):
            wavelength = 2 * math.pi / before
            if wavelength < 8192 / 4:
                assert after == before
            elif wavelength > 8192:
                assert after == pytest.approx(before / 8)
            else:
                smooth = (8192 / wavelength - 1) / (4 - 1)
                assert after == pytest.approx((1 - smooth) * before / 8 + smooth * before)
        assert len({after / before for before, after in zip(plain, scaled, strict=True)}) > 3

    def test_yarn(self):
        scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
        plain, _ = rope_frequencies(64)
        scaled, factor = rope_frequencies(64, scaling=scaling)
        assert factor == pytest.approx(0.1 * math.log(4) + 1)
        ratios = [after / before for before, after in zip(plain, scaled, strict=True)]
        # Pairs 10 and 23: those that turn 32 times and once in 4096 positions, rounded outwards.
        assert ratios[:11] == [1.0] * 11
        assert ratios[23:] == pytest.approx([0.25] * 9)
        assert ratios[11:23] == pytest.approx([1 - 0.75 * (i - 10) / 13 for i in range(11, 23)])
        _, factor = rope_frequencies(64, scaling=scaling | {"attention_factor": 1.5})
        assert factor == 1.5

    def test_yarns_factor_scales_the_result(self, device):
        x = drawn(1, 1, 4, 8).to(device)
        scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        longer = RoPE(8, scaling=scaling)(x).norm() / x.norm()
        assert longer.item() == pytest.approx(0.1 * math.log(4) + 1, rel=1e-5)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rotary_size": 10}, r"\[RoPE\] rotary_size is 10, head_size only 8"),
            ({"rotary_size": 3}, r"\[rope_frequencies\] rotary_size is 3"),
            ({"scaling": {"rope_type": "dynamic", "factor": 2}}, "rope_type is 'dynamic'"),
            ({"scaling": {"rope_type": "linear"}}, "'linear' needs \"factor\""),
            ({"scaling": {"type": "llama3", "factor": 2}}, 'needs "low_freq_factor"'),
        ],
        ids=str,
    )
    def test_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            RoPE(8, **options)

    def test_shapes(self, device):
        with pytest.raises(ValueError, match=r"\[RoPE\] axis -1 of x \[2, 3, 4\] is 4"):
            RoPE(8)(torch.ones(2, 3, 4, device=device))
        for shape in [(4,), (3, 3), (2, 4), (1, 1, 3), ()]:
            with pytest.raises(ValueError, match=r"\[RoPE\] position_ids has shape"):
                RoPE(8)(torch.ones(2, 3, 8, device=device), torch.zeros(shape, device=device))
