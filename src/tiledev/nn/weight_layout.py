"""Attention weights between Hugging Face's layouts and the projection layout of `tiledev.nn.SDPA`.

In the projection layout each of q, k, v and o is a plain `[out, in]` weight of a `torch.nn.Linear`,
and heads lie side by side: row `d * heads + h` of q's weight makes feature d of head h, so that
`q(x).unflatten(-1, (head_size, heads))` is [batch, seq, head_size, heads]. Hugging Face's models
have that in row `h * head_size + d`, some of them q, k and v in one weight, and GPT-2 transposed.

Values are moved and never computed with: a round trip gives the same bits.

Example:
    >>> import torch
    >>> state = {"h.0.q_proj.weight": torch.arange(4.0).view(4, 1)}
    >>> state |= {f"h.0.{x}_proj.weight": torch.zeros(4, 1) for x in "kv"}
    >>> state |= {"h.0.o_proj.weight": torch.zeros(1, 4)}
    >>> ours = to_projection(state, "llama", heads=2)
    >>> ours["h.0.q.weight"].flatten()
    tensor([0., 2., 1., 3.])
    >>> from_projection(ours, "llama", heads=2)["h.0.q_proj.weight"].flatten()
    tensor([0., 1., 2., 3.])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "FAMILIES",
    "Family",
    "from_projection",
    "heads_inside",
    "heads_outside",
    "to_projection",
]

_PARTS = ("q", "k", "v", "o")
_KINDS = ("weight", "bias")


@dataclass(frozen=True)
class Family:
    """Where models of a family keep an attention layer's weights, as names below the layer.

    Attributes:
        q: name of the query projection. A fused family has the same name for q, k and v.
        k: name of the key projection.
        v: name of the value projection.
        o: name of the output projection.
        transposed: weights are [in, out], as in transformers' Conv1D.
        by_head: a fused weight holds q, k and v of the first head, then those of the second, ...;
            otherwise all of q, all of k, all of v.
    """

    q: str
    k: str
    v: str
    o: str
    transposed: bool = False
    by_head: bool = False

    @property
    def fused(self) -> bool:
        """Whether q, k and v lie in one weight."""
        return self.q == self.k == self.v


FAMILIES: Mapping[str, Family] = {
    "llama": Family("q_proj", "k_proj", "v_proj", "o_proj"),  # Mistral, Qwen2, Gemma, Mixtral too
    "bart": Family("q_proj", "k_proj", "v_proj", "out_proj"),  # GPT-Neo, OPT, CLIP, Whisper too
    "phi": Family("q_proj", "k_proj", "v_proj", "dense"),
    "bert": Family("self.query", "self.key", "self.value", "output.dense"),  # RoBERTa too
    # ViT: its checkpoints and transformers 4; transformers 5 has names as llama.
    "vit": Family("attention.query", "attention.key", "attention.value", "output.dense"),
    "distilbert": Family("q_lin", "k_lin", "v_lin", "out_lin"),
    "t5": Family("q", "k", "v", "o"),
    "gpt2": Family("c_attn", "c_attn", "c_attn", "c_proj", transposed=True),
    "gpt_neox": Family(
        "query_key_value", "query_key_value", "query_key_value", "dense", False, True
    ),
    "phi3": Family("qkv_proj", "qkv_proj", "qkv_proj", "o_proj"),
}


def to_projection(
    state: Mapping[str, Tensor],
    family: str | Family,
    *,
    heads: int,
    kv_heads: int | None = None,
    prefix: str = "",
) -> dict[str, Tensor]:
    """Rewrites Hugging Face attention weights into the projection layout.

    Args:
        state: a state dict; weights of any dtype on any device.
        family: a key of `FAMILIES`, or names of your own.
        heads: heads of q.
        kv_heads: heads of k and v; default: heads.
        prefix: attention layers whose name starts so are converted ("model.layers.0."); default:
            all that the state dict has.

    Returns:
        A new state dict in the order of `state`. Of each converted layer `L` it has `L.q.weight`
        [head_size * heads, in], `L.k.weight` and `L.v.weight` [head_size * kv_heads, in],
        `L.o.weight` [out, head_size * heads], and biases where `state` has them. All other entries
        are the very tensors of `state`.

    Raises:
        ValueError: no layer is found, a weight is missing, or a shape does not fit the heads; the
            message names it.
    """
    family, heads, kv_heads = _arguments("to_projection", family, heads, kv_heads)
    result = dict(state)
    for layer in _layers(state, family.q, prefix, "to_projection"):
        parts = _read(state, layer, family, heads, kv_heads)
        for name, part in parts.items():
            count = heads if name[0] in "qo" else kv_heads
            if name == "o.bias":
                converted = part
            else:
                converted = heads_inside(
                    part, count, dim=int(name == "o.weight"), name=layer + name
                )
            parts[name] = converted
        _check_heads(parts, layer, heads, kv_heads)
        result = _replace(result, layer, _names(family), _PARTS, parts)
    return result


def from_projection(
    state: Mapping[str, Tensor],
    family: str | Family,
    *,
    heads: int,
    kv_heads: int | None = None,
    prefix: str = "",
) -> dict[str, Tensor]:
    """Undoes `to_projection`, with the same arguments; see there.

    Returns:
        A new state dict with the names, shapes and values of the family's own.

    Raises:
        ValueError: no layer is found, a weight is missing, only some of a fused family's q, k and v
            have a bias, or a shape does not fit the heads; the message names it.
    """
    family, heads, kv_heads = _arguments("from_projection", family, heads, kv_heads)
    result = dict(state)
    for layer in _layers(state, "q", prefix, "from_projection"):
        parts = _take(state, layer, _PARTS)
        _check_heads(parts, layer, heads, kv_heads)
        for name, part in parts.items():
            if name != "o.bias":
                count = heads if name[0] in "qo" else kv_heads
                dim = int(name == "o.weight")
                parts[name] = heads_outside(part, count, dim=dim, name=layer + name)
        written = _write(parts, layer, family, heads, kv_heads)
        result = _replace(result, layer, _PARTS, _names(family), written)
    return result


def heads_inside(x: Tensor, heads: int, *, dim: int = 0, name: str = "x") -> Tensor:
    """Reorders an axis from [heads, head_size] to [head_size, heads], flattened.

    Args:
        x: any shape and dtype.
        heads: divides the axis.
        dim: the axis: 0 for what makes heads (q, k, v), 1 for the weight that reads them (o).
        name: what errors call x.

    Returns:
        A new contiguous tensor of x's shape.

    Raises:
        ValueError: heads does not divide the axis.

    Example:
        >>> heads_inside(torch.arange(6), heads=2)
        tensor([0, 3, 1, 4, 2, 5])
    """
    size = _head_size(x, heads, dim, name)
    return _swap(x, dim, heads, size)


def heads_outside(x: Tensor, heads: int, *, dim: int = 0, name: str = "x") -> Tensor:
    """Undoes `heads_inside`.

    Example:
        >>> heads_outside(torch.tensor([0, 3, 1, 4, 2, 5]), heads=2)
        tensor([0, 1, 2, 3, 4, 5])
    """
    size = _head_size(x, heads, dim, name)
    return _swap(x, dim, size, heads)


def _unflatten(x: Tensor, dim: int, *sizes: int) -> Tensor:
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _swap(x: Tensor, dim: int, outer: int, inner: int) -> Tensor:
    """The axis from [outer, inner] to [inner, outer], in new memory."""
    swapped = _unflatten(x, dim, outer, inner).transpose(dim, dim + 1)
    return swapped.flatten(dim, dim + 1).clone(memory_format=torch.contiguous_format)


def _head_size(x: Tensor, heads: int, dim: int, name: str) -> int:
    if not 0 <= dim < x.dim() or x.size(dim) % heads:
        raise ValueError(
            f"[weight_layout] {name} has shape {list(x.shape)}: "
            f"axis {dim} cannot be split into {heads} heads"
        )
    return x.size(dim) // heads


def _arguments(
    call: str, family: str | Family, heads: int, kv_heads: int | None
) -> tuple[Family, int, int]:
    if isinstance(family, str):
        if family not in FAMILIES:
            raise ValueError(f"[{call}] family is {family!r}: {', '.join(FAMILIES)} are known")
        family = FAMILIES[family]
    kv_heads = heads if kv_heads is None else kv_heads
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"[{call}] {heads} heads for {kv_heads} kv_heads: both must be positive, and heads a "
            "multiple of kv_heads"
        )
    if family.by_head and kv_heads != heads:
        raise ValueError(f"[{call}] {family.q} holds q, k and v by head: kv_heads must be heads")
    return family, heads, kv_heads


def _names(family: Family) -> tuple[str, ...]:
    return tuple(dict.fromkeys((family.q, family.k, family.v, family.o)))


def _layers(state: Mapping[str, Tensor], q: str, prefix: str, call: str) -> list[str]:
    """The attention layers below the prefix: what stands before the name of q's weight."""
    end = f"{q}.weight"
    names = [name for name in state if name.startswith(prefix) and name.endswith(end)]
    layers = [name[: -len(end)] for name in names]
    layers = [layer for layer in layers if not layer or layer.endswith(".")]
    if not layers:
        raise ValueError(f"[{call}] no name is {prefix!r} ... {end!r}: wrong prefix or family?")
    return layers


def _take(state: Mapping[str, Tensor], layer: str, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The weights and biases of a layer, by their names below it."""
    found: dict[str, Tensor] = {}
    for name in names:
        if layer + name + ".weight" not in state:
            raise ValueError(f"[weight_layout] {layer}{name}.weight is missing")
        for kind in _KINDS:
            if (tensor := state.get(f"{layer}{name}.{kind}")) is None:
                continue
            if tensor.dim() != (2 if kind == "weight" else 1):
                raise ValueError(
                    f"[weight_layout] {layer}{name}.{kind} has shape {list(tensor.shape)}"
                )
            found[f"{name}.{kind}"] = tensor
    return found


def _read(
    state: Mapping[str, Tensor], layer: str, family: Family, heads: int, kv_heads: int
) -> dict[str, Tensor]:
    """q, k, v and o of a layer as [out, in] weights and biases, heads still outside."""
    parts: dict[str, Tensor] = {}
    theirs = _take(state, layer, _names(family))
    for kind in _KINDS:
        found = {
            part: theirs[f"{getattr(family, part)}.{kind}"]
            for part in _PARTS
            if f"{getattr(family, part)}.{kind}" in theirs
        }
        if family.transposed and kind == "weight":
            found = {part: weight.t() for part, weight in found.items()}
        if family.fused and "q" in found:
            name = f"{layer}{family.q}.{kind}"
            split = _split_by_head if family.by_head else _split_in_blocks
            found |= dict(zip("qkv", split(found["q"], heads, kv_heads, name), strict=True))
        parts |= {f"{part}.{kind}": tensor for part, tensor in found.items()}
    return parts


def _split_in_blocks(x: Tensor, heads: int, kv_heads: int, name: str) -> list[Tensor]:
    size = _head_size(x, heads + 2 * kv_heads, 0, name)
    return list(torch.split(x, [size * heads, size * kv_heads, size * kv_heads]))


def _split_by_head(x: Tensor, heads: int, _: int, name: str) -> list[Tensor]:
    size = _head_size(x, 3 * heads, 0, name)
    return [part.flatten(0, 1) for part in _unflatten(x, 0, heads, 3, size).unbind(1)]


def _write(
    parts: Mapping[str, Tensor], layer: str, family: Family, heads: int, kv_heads: int
) -> dict[str, Tensor]:
    """The family's weights and biases of a layer, from q, k, v and o with heads outside."""
    written: dict[str, Tensor] = {}
    for kind in _KINDS:
        found = {part: parts[f"{part}.{kind}"] for part in _PARTS if f"{part}.{kind}" in parts}
        qkv = [found[part] for part in "qkv" if part in found]
        if family.fused and qkv:
            name = f"{layer}{family.q}.{kind}"
            if len(qkv) != 3:
                raise ValueError(
                    f"[weight_layout] {name} needs q, k and v: only some have a {kind}"
                )
            found["q"] = found["k"] = found["v"] = _fuse(qkv, family, heads, name)
        for part, tensor in found.items():
            tensor = tensor.t() if family.transposed and kind == "weight" else tensor
            written[f"{getattr(family, part)}.{kind}"] = tensor.contiguous()
    return written


def _fuse(qkv: list[Tensor], family: Family, heads: int, name: str) -> Tensor:
    if len({part.shape[1:] for part in qkv}) > 1 or qkv[1].shape != qkv[2].shape:
        shapes = [list(part.shape) for part in qkv]
        raise ValueError(f"[weight_layout] {name} cannot hold q, k and v of shapes {shapes}")
    if not family.by_head:
        return torch.cat(qkv)
    return torch.stack(
        [_unflatten(part, 0, heads, part.size(0) // heads) for part in qkv], 1
    ).flatten(0, 2)


def _check_heads(parts: Mapping[str, Tensor], layer: str, heads: int, kv_heads: int) -> None:
    """That q's and k's heads, v's and o's heads, and weights and their biases are of one size."""

    def size(name: str, count: int, dim: int = 0) -> int:
        return _head_size(parts[name], count, dim, layer + name)

    key, value = size("k.weight", kv_heads), size("v.weight", kv_heads)
    for what, got, want in (
        ("q.weight", size("q.weight", heads), key),
        ("o.weight", size("o.weight", heads, 1), value),
    ):
        if got != want:
            other = "k" if what[0] == "q" else "v"
            raise ValueError(
                f"[weight_layout] {layer}{what} has heads of {got} and {other} of {want}: are "
                f"heads={heads} and kv_heads={kv_heads} right?"
            )
    for part in _PARTS:
        bias = parts.get(f"{part}.bias")
        rows = parts[f"{part}.weight"].size(0)
        if bias is not None and bias.size(0) != rows:
            raise ValueError(
                f"[weight_layout] {layer}{part}.bias has {bias.size(0)} values for {rows} rows"
            )


def _replace(
    state: Mapping[str, Tensor],
    layer: str,
    old: tuple[str, ...],
    new: tuple[str, ...],
    tensors: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """`state` with the layer's old entries gone and the new ones where the first of them stood."""
    gone = {f"{layer}{name}.{kind}" for name in old for kind in _KINDS}
    order = (f"{name}.{kind}" for name in new for kind in _KINDS)
    placed = {layer + name: tensors[name] for name in order if name in tensors}
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in gone:
            result |= placed
        else:
            result[name] = tensor
    return result
