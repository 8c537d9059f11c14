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


@rule(4)
def assign(w):
    name = w.tensor()
    target = name + (w.subscript(name) if w.dims(name) else "[...]")
    if w.chance(0.5):
        return f"{target} = {w.integer(0, 5)}"
    source = w.source_for(name, w.tensor())
    return f"{target} = {source}{w.choice(['', '', '[:1]', '.sum()', '[0]'])}"


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
    if not w.reaches_its_storage(name):
        return None
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
