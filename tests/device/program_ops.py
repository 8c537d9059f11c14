"""Lines of random programs that compute: see program_rules.py for what a rule is."""

from tests.device.program_rules import RULES, rule

__all__ = ["RULES"]


def words(text: str) -> list[str]:
    return text.split()


UNARY = words(
    "abs neg exp sin tanh sigmoid relu sqrt square sign floor erf isnan logical_not "
    "reciprocal log1p expm1 positive nan_to_num trunc"
)
UNARY_INPLACE = words("abs_ neg_ sin_ tanh_ sigmoid_ relu_ square_ sign_ floor_ zero_ logical_not_")
BINARY = words("add sub mul maximum minimum eq lt ge ne logical_and fmax atan2 hypot copysign")
BINARY_INPLACE = words("add_ sub_ mul_ copy_ logical_or_ eq_ gt_")
REDUCTIONS = words("sum mean amax amin prod any all logsumexp argmax std var norm count_nonzero")
SCANS = words("cumsum cumprod softmax log_softmax logcumsumexp sort argsort flip cummax")


@rule(8)
def unary(w):
    return f"{w.new()} = {w.tensor()}.{w.choice(UNARY)}()"


@rule(8)
def binary(w):
    one, two = w.broadcastable()
    if w.chance(0.3):
        two = w.scalar()
    return f"{w.new()} = torch.{w.choice(BINARY)}({one}, {two})"


@rule(3)
def binary_scalar(w):
    name = w.tensor()
    forms = [
        "{s} - {t}",
        "{s} * {t}",
        "{t} / {d}",
        "{t} // {d}",
        "{t} % {d}",
        "{t} ** 2",
        "{s} < {t}",
    ]
    text = w.choice(forms).format(s=w.scalar(), t=name, d=w.choice(["2", "3", "2.5", "-3"]))
    return f"{w.new()} = {text}"


@rule(7)
def unary_inplace(w):
    return f"{w.tensor()}.{w.choice(UNARY_INPLACE)}()"


@rule(8)
def binary_inplace(w):
    one, two = w.broadcastable()
    method = w.choice(BINARY_INPLACE)
    if method == "copy_" or w.dtype(one) != w.dtype(two):
        two = w.source_for(one, two)
    elif w.chance(0.4) and method not in ("copy_", "logical_or_"):
        two = w.scalar()
    return f"{one}.{method}({two})"


@rule(4)
def other_inplace(w):
    name = w.tensor()
    one, two = w.broadcastable()
    dim = w.dim(name)
    index = w.indices(name, dim)
    text = w.choice(
        [
            f"{name}.fill_({w.integer(0, 3)})",
            f"{name}.clamp_(0, {w.integer(1, 5)})",
            f"{name}.masked_fill_({one} > 1, {w.integer(0, 3)})",
            f"{name}.index_fill_({dim}, {index}, {w.integer(0, 3)})",
            f"{name}.transpose_({dim}, {w.dim(name)})",
            f"{name}.unsqueeze_({dim})",
            f"{name}.squeeze_()",
            f"{name}.cumsum_({dim})",
            f"{name}.fill_diagonal_({w.integer(0, 3)})",
            f"{one}.addcmul_({two}, {two}, value=2)",
            f"{one}.lerp_({two}, 0.5)",
            f"{one}.bitwise_xor_({two})",
            f"torch._foreach_add_([{one}, {name}], 1)",
            f"torch._foreach_mul_([{one}], [{two}])",
            f"{name}.tril_()",
            f"{name}.div_(2)",
            f"{name}.floor_divide_(2)",
        ]
    )
    return text


@rule(4)
def index_read(w):
    name = w.tensor()
    dim = w.dim(name)
    index = w.indices(name, dim)
    body = w.choice(
        [
            f"{name}.index_select({dim}, {index})",
            f"{name}[{w.subscript_indices(name, 0)}]",
            f"{name}[..., {w.subscript_indices(name, -1)}]",
            f"{name}[{name} > 1]",
            f"{name}.masked_select({name} < 3)",
            f"{name}.nonzero()",
            f"torch.take_along_dim({name}, {index}, None)"
            if dim == 0
            else f"{name}.roll(1, {dim})",
            f"{name}.gather({dim}, torch.zeros_like({name}, dtype=torch.int64))",
            f"{name}.unique()",
        ]
    )
    return f"{w.new()} = {body}"


@rule(4)
def index_write(w):
    name = w.tensor()
    dim = w.dim(name)
    length = w.length(name, dim)
    picks = w.distinct(length)
    once = f"torch.tensor({picks}, dtype=torch.int64, device=dev)"
    zeros = f"torch.zeros_like({name}, dtype=torch.int64)"
    source = f"{name}.index_select({dim}, {once}).clone()"
    first = f"torch.tensor({w.distinct(w.length(name, 0))}, dtype=torch.int64, device=dev)"
    return w.choice(
        [
            f"{name}.index_add_({dim}, {w.indices(name, dim, len(picks))}, {source})",
            f"{name}.index_copy_({dim}, {once}, {source}.flip(0))",
            f"{name}[{w.subscript_indices(name, 0)}] = 2",
            f"{name}[..., {w.subscript_indices(name, -1)}] = 3",
            f"{name}.index_put_(({first},), {name}[0].clone(), accumulate=True)",
            f"{name}.scatter_({dim}, torch.zeros_like({name}[:1], dtype=torch.int64), 1)",
            f"{name}.scatter_add_({dim}, {zeros}, {name}.clone())",
            f"{name}.scatter_reduce_({dim}, {zeros}, {name}.clone(), 'amax')",
            f"{name}[{name} > 1] = 1",
            f"{name}.masked_scatter_({name} > 1, torch.ones_like({name}, "
            "memory_format=torch.contiguous_format))",
        ]
    )


@rule(6)
def reduce(w):
    name, method = w.tensor(), w.choice(REDUCTIONS)
    if method in ("logsumexp",) or (w.dims(name) and w.chance(0.7)):
        dim = w.dim(name)
        keep = "" if method == "count_nonzero" else w.choice(["", ", keepdim=True"])
        return f"{w.new()} = {name}.{method}(dim={dim}{keep})"
    return f"{w.new()} = {name}.{method}()"


@rule(4)
def scan(w):
    name, method = w.tensor(), w.choice(SCANS)
    argument = f"[{w.dim(name)}]" if method == "flip" else f"{w.dim(name)}"
    part = "[0]" if method in ("sort", "cummax") else ""
    return f"{w.new()} = {name}.{method}({argument}){part}"


@rule(5)
def product(w):
    one, two = w.tensor(), w.tensor()
    if w.chance(0.6):
        two = f"{one}.mT"
    body = w.choice(
        [
            f"torch.matmul({one}, {two})",
            f"{one} @ {two}",
            f"torch.einsum('...ij,...kj->...ik', {one}, {one})",
            f"F.linear({one}, {one})",
            f"torch.outer({one}.flatten()[:4], {two}.flatten()[:3])",
            f"torch.addmm({one}, {one}, {two})",
            f"torch.kron({one}, {two})",
        ]
    )
    return f"{w.new()} = {body}"


@rule(4)
def combine(w):
    one, two = w.broadcastable()
    dim = w.dim(one)
    body = w.choice(
        [
            f"torch.cat([{one}, {one}], {dim})",
            f"torch.cat([{one}, {two}], {dim})",
            f"torch.stack([{one}, {one}.clone()], {dim})",
            f"torch.where({one} > 1, {one}, {two})",
            f"torch.where({one} == {two}, 1, {one})",
            f"torch.lerp({one}, {two}, 0.25)",
            f"torch.addcmul({one}, {two}, {two}, value=0.5)",
            f"torch._foreach_add([{one}, {one}], [{two}, {two}])[1]",
            f"F.pad({one}, (1, 2))",
            f"{one}.repeat(2, *([1] * {one}.dim()))",
            f"{one}.tril()",
            f"F.layer_norm({one}, {one}.shape[-1:])",
            f"torch.broadcast_tensors({one}, {two})[0]",
            f"torch.nn.functional.one_hot({one}.long().clamp(0, 3), 4)",
            f"{one}.topk(1).values",
        ]
    )
    return f"{w.new()} = {body}"


@rule(5)
def out_argument(w):
    one, two = w.broadcastable()
    target = w.tensor()
    if w.chance(0.4) or not w.reaches_its_storage(target):
        target = f"torch.empty(0, dtype=torch.{w.dtype(one)}, device=dev)"
    elif w.chance(0.4):
        target = f"torch.zeros_like({one})"
    pointwise = [
        f"torch.add({one}, {two}, out={target})",
        f"torch.mul({one}, 2, out={target})",
        f"torch.sin({one}, out={target})",
        f"torch.clamp({one}, 0, 1, out={target})",
        f"torch.where({one} > 1, {one}, {two}, out={target})",
    ]
    others = [
        f"torch.sum({one}, dim={w.dim(one)}, out={target})",
        f"torch.matmul({one}, {one}.mT, out={target})",
        f"torch.cat([{one}, {one}], out={target})",
        f"torch.cumsum({one}, {w.dim(one)}, out={target})",
        f"torch.index_select({one}, {w.dim(one)}, {w.indices(one, 0)}, out={target})",
        f"torch.arange({w.integer(0, 6)}, out={target})",
    ]
    # Writing over an input while it is read is defined for pointwise ops on equal views alone.
    if w.share_storage(one, target) or w.share_storage(two, target):
        return f"{w.new()} = torch.add({one}, 1, out={one})"
    body = w.choice(pointwise + others)
    return f"{w.new()} = {body}"


@rule(4)
def differentiate(w):
    name, other = w.broadcastable()
    leaf = w.new("p")
    loss = w.choice(
        [
            "({p} * {o}).tanh().sum()",
            "({p}.mT @ {p}).relu().sum()",
            "{p}.clone().transpose(0, -1).mul_(3).sin().mean()",
            "torch.cat([{p}, {p} * 2]).pow(2).sum()",
            "F.layer_norm({p}, {p}.shape[-1:]).exp().sum()",
            "{p}[..., 1:].sigmoid().sum() + {p}.amax()",
            "torch.where({o} > 1, {p}, {p} * 2).cumsum(-1).sum()",
            "F.softmax({p}.expand(2, *{p}.shape), -1).square().sum()",
        ]
    ).format(p=leaf, o=other)
    end = w.choice(
        [
            "({l}).backward()",
            "({l}).backward(); ({l}).backward()",
            "{p}.grad = torch.autograd.grad({l}, {p})[0].clone()",
            "torch.autograd.grad({l}, {p}, create_graph=True)[0].sum().backward()",
        ]
    ).format(p=leaf, l=loss)
    step = w.choice(["", f"; {leaf}.data.sub_({leaf}.grad, alpha=0.5)", f"; {leaf}.grad.zero_()"])
    return f"{leaf} = {name}.detach().float().clone().requires_grad_(); {end}{step}"
