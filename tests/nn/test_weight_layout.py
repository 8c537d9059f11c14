"""weight_layout: Hugging Face's attention weights in the projection layout, and back to the bit."""

import pytest
import torch
import torch.nn.functional as F

from tests import support
from tests.nn.test_sdpa import drawn
from tiledev.nn import SDPA
from tiledev.nn.weight_layout import (
    FAMILIES,
    Family,
    from_projection,
    heads_inside,
    heads_outside,
    to_projection,
)

EMBED, HEADS, SIZE = 10, 4, 3
# family, kv_heads, whether there are biases
VARIANTS = [
    ("llama", 2, False),
    ("llama", 1, True),
    ("bart", 4, True),
    ("phi", 4, True),
    ("bert", 4, True),
    ("vit", 4, True),
    ("distilbert", 4, True),
    ("t5", 4, False),
    ("gpt2", 4, True),
    ("gpt2", 4, False),
    ("gpt_neox", 4, True),
    ("gpt_neox", 4, False),
    ("phi3", 2, False),
    ("phi3", 4, True),
]


def layer_state(family, kv_heads, biases, layer="", dtype=torch.float32):
    """A random attention layer as Hugging Face stores it."""
    names = FAMILIES[family]
    rows = {names.q: HEADS * SIZE, names.k: kv_heads * SIZE, names.v: kv_heads * SIZE}
    if names.fused:
        rows = {names.q: (HEADS + 2 * kv_heads) * SIZE}
    shapes = {name: (count, EMBED) for name, count in rows.items()} | {
        names.o: (EMBED, HEADS * SIZE)
    }
    state = {}
    for name, (out, into) in shapes.items():
        shape = (into, out) if names.transposed else (out, into)
        state[f"{layer}{name}.weight"] = drawn(*shape, dtype=dtype)
        if biases:
            state[f"{layer}{name}.bias"] = drawn(out, dtype=dtype)
    return state


def theirs(state, family, kv_heads, x):
    """Attention as Hugging Face's models compute it from their own weights."""
    names = FAMILIES[family]

    def linear(name, x):
        weight = state[f"{name}.weight"]
        return F.linear(x, weight.t() if names.transposed else weight, state.get(f"{name}.bias"))

    rows = [HEADS * SIZE, kv_heads * SIZE, kv_heads * SIZE]
    if names.by_head:  # GPTNeoXAttention: view(..., heads, 3 * head_size).chunk(3)
        q, k, v = linear(names.q, x).unflatten(-1, (HEADS, 3 * SIZE)).chunk(3, dim=-1)
    elif names.fused:  # GPT2Attention, Phi3Attention: slices of the features
        parts = linear(names.q, x).split(rows, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, SIZE)) for part in parts)
    else:
        q, k, v = (
            linear(name, x).unflatten(-1, (-1, SIZE)) for name in (names.q, names.k, names.v)
        )
    heads_first = (part.transpose(1, 2) for part in (q, k, v))
    out = F.scaled_dot_product_attention(*heads_first, enable_gqa=kv_heads != HEADS)
    return linear(names.o, out.transpose(1, 2).flatten(-2))


def ours(state, kv_heads, x):
    """Attention through plain linear layers and SDPA."""

    def linear(name, x):
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    q, k, v = (
        linear(name, x).unflatten(-1, (SIZE, heads))
        for name, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads))
    )
    return linear("o", SDPA(enable_gqa=kv_heads != HEADS)(q, k, v).flatten(-2))


def on_device(state):
    return {name: tensor.to(support.DEVICE) for name, tensor in state.items()}


def assert_same_state(got, want):
    assert list(got) == list(want)
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name
        assert got[name].dtype == tensor.dtype
        assert got[name].is_contiguous()


@pytest.mark.parametrize(("family", "kv_heads", "biases"), VARIANTS)
class TestFamilies:
    def test_attention_is_the_same(self, family, kv_heads, biases):
        state = on_device(layer_state(family, kv_heads, biases))
        x = drawn(2, 5, EMBED).to(support.DEVICE)
        converted = to_projection(state, family, heads=HEADS, kv_heads=kv_heads)
        assert {name: tuple(tensor.shape) for name, tensor in converted.items()} == {
            "q.weight": (SIZE * HEADS, EMBED),
            "k.weight": (SIZE * kv_heads, EMBED),
            "v.weight": (SIZE * kv_heads, EMBED),
            "o.weight": (EMBED, SIZE * HEADS),
        } | (
            {}
            if not biases
            else {
                "q.bias": (SIZE * HEADS,),
                "k.bias": (SIZE * kv_heads,),
                "v.bias": (SIZE * kv_heads,),
                "o.bias": (EMBED,),
            }
        )
        got, want = ours(converted, kv_heads, x), theirs(state, family, kv_heads, x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    def test_round_trip(self, family, kv_heads, biases, dtype):
        state = on_device(layer_state(family, kv_heads, biases, dtype=dtype))
        there = to_projection(state, family, heads=HEADS, kv_heads=kv_heads)
        back = from_projection(there, family, heads=HEADS, kv_heads=kv_heads)
        assert set(back) == set(state)
        assert_same_state({name: back[name] for name in state}, state)
        again = to_projection(back, family, heads=HEADS, kv_heads=kv_heads)
        assert_same_state(again, there)


class TestStateDicts:
    def state(self):
        state = {"embed.weight": drawn(3, EMBED)}
        for index in range(3):
            state |= layer_state("gpt2", HEADS, True, f"h.{index}.attn.")
            state[f"h.{index}.mlp.c_proj.weight"] = drawn(EMBED, EMBED)
        return on_device(state | {"head.weight": drawn(3, EMBED)})

    def test_all_layers(self):
        state = self.state()
        there = to_projection(state, "gpt2", heads=HEADS)
        assert sum(name.endswith("attn.k.weight") for name in there) == 3
        assert not any("c_attn" in name for name in there)
        for name in ("embed.weight", "h.1.mlp.c_proj.weight", "head.weight"):
            assert there[name] is state[name]
        assert next(iter(there)) == "embed.weight"
        assert list(there)[-1] == "head.weight"
        assert_same_state(from_projection(there, "gpt2", heads=HEADS), state)

    def test_a_prefix(self):
        state = self.state()
        there = to_projection(state, "gpt2", heads=HEADS, prefix="h.1.")
        untouched = [name for name in state if not name.startswith("h.1.attn.")]
        assert all(there[name] is state[name] for name in untouched)
        assert "h.1.attn.c_attn.weight" not in there
        assert "h.1.attn.q.weight" in there
        assert_same_state(from_projection(there, "gpt2", heads=HEADS, prefix="h.1."), state)

    def test_the_input_is_left_alone(self):
        state = self.state()
        before = {name: tensor.clone() for name, tensor in state.items()}
        there = to_projection(state, "gpt2", heads=HEADS)
        there["h.0.attn.q.weight"].zero_()
        assert_same_state(state, before)

    def test_a_bias_on_some_of_split_weights(self):
        state = layer_state("bart", HEADS, True)  # Whisper: k has none
        del state["k_proj.bias"]
        state = on_device(state)
        there = to_projection(state, "bart", heads=HEADS)
        assert "k.bias" not in there
        assert_same_state(from_projection(there, "bart", heads=HEADS), state)

    def test_names_of_your_own(self):
        family = Family("wq", "wk", "wv", "wo")
        state = {f"{name}.weight": drawn(12, 12) for name in ("wq", "wk", "wv", "wo")}
        there = to_projection(state, family, heads=HEADS)
        assert torch.equal(there["q.weight"], heads_inside(state["wq.weight"], HEADS))
        assert_same_state(from_projection(there, family, heads=HEADS), state)

    def test_values_of_another_size(self):
        state = {"q.weight": drawn(12, 8), "k.weight": drawn(6, 8)}
        state |= {"v.weight": drawn(10, 8), "o.weight": drawn(8, 20)}
        there = to_projection(state, "t5", heads=4, kv_heads=2)
        assert_same_state(from_projection(there, "t5", heads=4, kv_heads=2), state)

    def test_it_loads_into_linear_layers(self):
        net = torch.nn.ModuleDict({name: torch.nn.Linear(12, 12) for name in "qkvo"})
        state = {
            f"{name}_proj.{kind}": drawn(*[12] * (2 if kind == "weight" else 1))
            for name in ("q", "k", "v", "out")
            for kind in ("weight", "bias")
        }
        net.to(support.DEVICE).load_state_dict(to_projection(state, "bart", heads=3))
        assert torch.equal(net["o"].bias.cpu(), state["out_proj.bias"])


class TestHeads:
    @pytest.mark.parametrize("dim", [0, 1])
    def test_heads_inside_and_outside(self, dim, device):
        x = drawn(12, 12).to(device)
        inside = heads_inside(x, 4, dim=dim)
        assert torch.equal(heads_outside(inside, 4, dim=dim), x)
        at = (slice(None),) * dim
        for head in range(4):
            for feature in range(3):
                mine, source = inside[(*at, feature * 4 + head)], x[(*at, head * 3 + feature)]
                assert torch.equal(mine, source)

    def test_one_head_gives_new_memory(self, device):
        x = drawn(4, 4).to(device)
        assert heads_inside(x, 1).data_ptr() != x.data_ptr()


class TestErrors:
    @pytest.mark.parametrize("call", [to_projection, from_projection])
    @pytest.mark.parametrize(
        ("family", "options", "message"),
        [
            ("lama", {"heads": 4}, "family is 'lama': llama, bart"),
            ("llama", {"heads": 4, "kv_heads": 3}, "4 heads for 3 kv_heads"),
            ("llama", {"heads": 0}, "0 heads for 0 kv_heads"),
            ("gpt_neox", {"heads": 4, "kv_heads": 2}, "kv_heads must be heads"),
            ("llama", {"heads": 4, "prefix": "no."}, "no name is 'no.' ... '.*.weight'"),
        ],
        ids=str,
    )
    def test_arguments(self, call, family, options, message):
        with pytest.raises(ValueError, match=rf"\[{call.__name__}\] .*{message}"):
            call(layer_state("llama", 4, False), family, **options)

    @pytest.mark.parametrize(
        ("family", "change", "message"),
        [
            ("llama", {"k_proj.weight": None}, "x.k_proj.weight is missing"),
            ("llama", {"o_proj.weight": None}, "x.o_proj.weight is missing"),
            (
                "llama",
                {"q_proj.weight": (13, 10)},
                r"x.q.weight has shape \[13, 10\]: axis 0 .* 4 heads",
            ),
            ("llama", {"k_proj.weight": (24, 10)}, "x.q.weight has heads of 3 and k of 6"),
            ("llama", {"o_proj.weight": (10, 16)}, "x.o.weight has heads of 4 and v of 3"),
            ("llama", {"q_proj.weight": (12,)}, r"x.q_proj.weight has shape \[12\]"),
            ("llama", {"q_proj.bias": (16,)}, "x.q.bias has 16 values for 12 rows"),
            ("gpt2", {"c_attn.weight": (36, 10)}, r"x.c_attn.weight has shape .*12 heads"),
            (
                "gpt_neox",
                {"query_key_value.weight": (35, 10)},
                "x.query_key_value.weight has shape",
            ),
            ("phi3", {"qkv_proj.weight": (35, 10)}, "x.qkv_proj.weight has shape"),
        ],
        ids=str,
    )
    def test_shapes_and_names(self, family, change, message):
        state = layer_state(family, HEADS, False, "x.")
        for name, shape in change.items():
            if shape is None:
                del state[f"x.{name}"]
            else:
                state[f"x.{name}"] = torch.zeros(shape)
        with pytest.raises(ValueError, match=rf"\[weight_layout\] {message}"):
            to_projection(state, family, heads=HEADS)

    def test_a_fused_bias_needs_all_three(self):
        there = to_projection(layer_state("gpt2", HEADS, True), "gpt2", heads=HEADS)
        del there["k.bias"]
        with pytest.raises(ValueError, match=r"c_attn.bias needs q, k and v"):
            from_projection(there, "gpt2", heads=HEADS)

    def test_a_fused_weight_needs_one_size(self):
        state = {"q.weight": drawn(12, 8), "k.weight": drawn(12, 8)}
        state |= {"v.weight": drawn(8, 8), "o.weight": drawn(8, 8)}
        with pytest.raises(ValueError, match=r"query_key_value.weight cannot hold"):
            from_projection(state, "gpt_neox", heads=4)
