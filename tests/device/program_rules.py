"""The lines that random programs consist of: each rule writes one, for the tensors at hand.

A rule takes the `Writer` (see programs.py) and returns a line of Python or None. It may write
lines that raise, as a shape that does not fit: the device has to raise the same. What it must not
write is what leaves a result to chance or to the order of evaluation: uninitialised memory, random
numbers on the CPU (another generator), values that no integer dtype holds, run-time index errors.
"""

from collections.abc import Callable

Rule = Callable[["Writer"], "str | None"]  # noqa: F821  (programs.py imports this file)

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTS = ("int64", "int32", "uint8", "int8")
DTYPES = (*FLOATS, *INTS, "bool", "complex64")


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

RULES: list[tuple[int, Rule]] = []


def rule(weight: int) -> Callable[[Rule], Rule]:
    """Register a rule; heavier ones are drawn more often."""

    def register(function: Rule) -> Rule:
        RULES.append((weight, function))
        return function

    return register


@rule(4)
def create(w):
    shape, dtype = w.shape(), w.choice(DTYPES)
    kind = w.choice(["randn", "arange", "full", "tensor", "randint", "eye", "empty"])
    if kind == "randn":
        dtype = w.choice(FLOATS)
        body = f"torch.{w.choice(['randn', 'rand'])}({shape}, dtype=torch.{dtype}, device=dev)"
    elif kind == "arange":
        count = w.product(shape)
        body = f"torch.arange({count}, device=dev).reshape({shape}).to(torch.{dtype})"
    elif kind == "full":
        body = f"torch.full({shape}, {w.integer(0, 4)}, dtype=torch.{dtype}, device=dev)"
    elif kind == "tensor":
        values = [w.integer(0, 9) for _ in range(w.integer(1, 6))]
        body = f"torch.tensor({values}, dtype=torch.{dtype}, device=dev)"
    elif kind == "randint":
        body = f"torch.randint(0, 9, {shape}, dtype=torch.{w.choice(INTS)}, device=dev)"
    elif kind == "eye":
        body = f"torch.eye({w.integer(0, 4)}, {w.integer(1, 4)}, device=dev)"
    else:
        body = f"torch.empty({shape}, dtype=torch.{dtype}, device=dev).fill_({w.integer(0, 3)})"
    return f"{w.new()} = {body}"


@rule(2)
def create_like(w):
    kind = w.choice(["zeros_like", "ones_like", "rand_like", "randn_like"])
    return f"{w.new()} = torch.{kind}({w.tensor()})"


@rule(10)
def view(w):
    name = w.tensor()
    dims = w.dims(name)
    if dims == 0:
        grown = w.choice(["[None]", ".expand(3)", ".view(1, 1)", ".unsqueeze(0)"])
        return f"{w.new()} = {name}{grown}"
    one, two = w.dim(name), w.dim(name)
    start = w.integer(0, 2)
    body = w.choice(
        [
            w.subscript(name),
            w.subscript(name),
            f".transpose({one}, {two})",
            f".permute({w.permutation(dims)})",
            f".movedim({one}, {two})",
            f".diagonal({w.integer(-1, 1)}, {one}, {two})",
            f".unfold({one}, {w.integer(1, 2)}, {w.integer(1, 2)})",
            f".select({one}, {w.integer(-1, 1)})",
            f".narrow({one}, {start}, {w.integer(0, 2)})",
            f".unsqueeze({one})",
            f".squeeze({w.choice(['', one])})",
            f".reshape({w.reshaping(name)})",
            f".view({w.reshaping(name)})",
            ".flatten()",
            ".mT",
            f".expand({w.integer(1, 2)}, {', '.join(['-1'] * dims)})",
            f".chunk(2, {one})[{w.integer(0, 1)}]",
            f".split(2, {one})[0]",
            ".detach()",
            ".data",
            ".view_as(" + name + ")",
        ]
    )
    return f"{w.new()} = {name}{body}"


@rule(2)
def as_strided(w):
    name = w.tensor()
    elements = w.storage_elements(name)
    size = [w.integer(1, 3) for _ in range(w.integer(0, 3))]
    stride = [w.integer(0, 4) for _ in size]
    reach = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if reach >= elements:
        return None
    offset = w.integer(0, elements - reach - 1)
    return f"{w.new()} = {name}.as_strided({size}, {stride}, {offset})"


@rule(3)
def reinterpret(w):
    name = w.tensor()
    dtype = w.dtype(name)
    if dtype == "complex64":
        body = w.choice(
            [
                f"torch.view_as_real({name}.resolve_conj())",
                f"{name}.conj()",
                f"{name}.real",
                f"{name}.imag",
                f"{name}.conj().imag",
                f"{name}.mH",
            ]
        )
    elif dtype == "float32":
        body = w.choice([f"torch.view_as_complex({name})", f"{name}.view(torch.int32)"])
    elif dtype in ("int64", "int32", "uint8", "int8"):
        body = f"{name}.view(torch.{w.choice(['uint8', 'int16', 'int64'])})"
    else:
        return None
    return f"{w.new()} = {body}"


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
    if w.dtype(one) in INTS and method == "copy_":
        two = w.integral(two)
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
def assign(w):
    name = w.tensor()
    target = name + (w.subscript(name) if w.dims(name) else "[...]")
    if w.chance(0.5):
        return f"{target} = {w.integer(0, 5)}"
    source = w.tensor()
    if w.dtype(name) in INTS:
        source = w.integral(source)
    return f"{target} = {source}{w.choice(['', '', '[:1]', '.sum()', '[0]'])}"


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
    if w.chance(0.4):
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


@rule(5)
def copy(w):
    name = w.tensor()
    dtype = w.choice(DTYPES)
    source = w.integral(name) if dtype in INTS else name
    body = w.choice(
        [
            ".clone()",
            ".clone(memory_format=torch.contiguous_format)",
            ".contiguous()",
            f".to(torch.{dtype})",
            ".to(dev, copy=True)",
            ".resolve_conj()",
            ".new_full((2, 2), 3)",
            ".bool()",
        ]
    )
    return f"{w.new()} = {source if f'torch.{dtype}' in body else name}{body}"


@rule(5)
def to_and_from_host(w):
    name = w.tensor()
    host = w.host()
    if host is None or w.chance(0.3):
        return f"{w.new('c')} = {name}.to('cpu', copy=True)"
    same = w.dtype(name) not in INTS
    return w.choice(
        [
            f"{w.new()} = {host}.to(dev, copy=True)",
            f"{w.new()} = {host}.to(dev, copy=True, non_blocking=True); {host}.fill_(1)",
            f"{name}.copy_({host if same else w.integral(host)})",
            f"{host}.copy_({name if w.dtype(host) not in INTS else w.integral(name)})",
            f"{host}.add_(1)",
            f"{w.new()} = {name} + {host}.sum()",
            f"{name}[:1] = {host if same else w.integral(host)}",
            f"del {host}",
        ]
    )


@rule(4)
def storage(w):
    name, other = w.tensor(), w.tensor()
    elements = w.storage_elements(name)
    return w.choice(
        [
            f"{name}.resize_({w.shape()}).fill_({w.integer(0, 3)})",
            f"{name}.resize_({[w.integer(0, max(elements, 0))]}).fill_(2)",
            f"{name}.set_({other})",
            f"{name}.set_()",
            f"{name}.set_({other}.untyped_storage())",
            f"{name}.data = {other}",
            f"{w.new()} = torch.empty(0, dtype={name}.dtype, device=dev).set_({name})",
            f"seen.append({name}.is_set_to({other}))",
            f"seen.append({name}.untyped_storage().nbytes())",
        ]
    )


@rule(4)
def draw(w):
    name = w.tensor()
    return w.choice(
        [
            f"torch.manual_seed({w.integer(0, 9)})",
            f"{name}.normal_()",
            f"{name}.uniform_()",
            f"{name}.random_(0, 7)",
            f"{name}.bernoulli_(0.5)",
            f"{w.new()} = torch.randperm({w.integer(0, 6)}, device=dev)",
            f"{w.new()} = torch.bernoulli(torch.full({w.shape()}, 0.5, device=dev))",
            f"{w.new()} = F.dropout({name}.float().contiguous(), 0.5)",
            f"{w.new()} = torch.randn(3, generator="
            f"torch.Generator(dev).manual_seed({w.integer(0, 9)}), device=dev)",
            f"{w.new()} = torch.multinomial(torch.ones(4, device=dev), 2)",
        ]
    )


@rule(5)
def read(w):
    name, other = w.tensor(), w.tensor()
    return w.choice(
        [
            f"seen.append({name}.tolist())",
            f"seen.append({name}.float().sum().item())"
            if w.dtype(name) != "complex64"
            else "flush()",
            f"seen.append(bool({name}.any()))",
            f"seen.append(str({name}.shape))",
            f"seen.append(torch.equal({name}, {other}))",
            f"seen.append({name}.to('cpu').clone())",
            f"seen.append(len({name}.nonzero()))",
            f"seen.append(({name} > 0).sum().item())",
        ]
    )


@rule(3)
def flush(w):
    return w.choice(["flush()", "wait()", "synchronize()"])


@rule(3)
def forget(w):
    name, other = w.tensor(), w.tensor()
    return w.choice([f"del {name}", f"{name} = {other}", f"{name} = {name}.clone()"])


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
