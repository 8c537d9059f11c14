"""Writing, running and comparing random programs.

A program is a list of lines of Python over tensors t0, t1 ... on `dev`, tensors c0, c1 ... on the
CPU and leaves p0, p1 ... that have gradients. While writing, each line runs on the CPU, so that the
next one knows shapes and dtypes; afterwards the whole program runs on the CPU and on the device,
and all that can be seen has to agree bit for bit.
"""

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests import support
from tests.compare import alias_pattern, significant_strides
from tests.device.program_ops import RULES
from tests.device.program_rules import INTS
from tests.device.program_tiles import tile, untile

MAX_ELEMENTS = 400
MAX_LIVE = 12
KEEP_ERRORS = 0.15  # of the lines that raise: the device must raise as well


class Run:
    """The state of a program on one device."""

    def __init__(self, device: str):
        self.lines: list[str] = []
        self.errors: list[str] = []  # per line: the type raised, or ""
        self.texts: list[str] = []  # and its message
        self.seen: list[Any] = []
        self.names: dict[str, Any] = {"torch": torch, "F": F, "dev": device, "seen": self.seen}
        self.names.update(_flushes(device))
        self.names.update({"tile": tile, "untile": untile})
        torch.manual_seed(0)

    def execute(self, line: str) -> str:
        """Run a line and note whether it raised."""
        try:
            exec(line, self.names)
            error = text = ""
        except Exception as caught:
            error, text = type(caught).__name__, str(caught)
        self.lines.append(line)
        self.errors.append(error)
        self.texts.append(text)
        return error

    def raised(self, number: int) -> str:
        """What a line raised, for messages."""
        text = " ".join(self.texts[number].split())[:200]
        return f"{self.errors[number]} ({text})" if self.errors[number] else "nothing"

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {k: v for k, v in self.names.items() if isinstance(v, torch.Tensor)}


def _flushes(device: str) -> dict[str, Callable[[], None]]:
    if device == "cpu":
        return dict.fromkeys(("flush", "wait", "synchronize"), lambda: None)
    import tiledev

    return {"flush": tiledev.execute, "wait": tiledev.wait, "synchronize": support.synchronize}


def run_program(lines: list[str], device: str) -> Run:
    """A whole program from the start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(device)
        for line in lines:
            run.execute(line)
    return run


class Writer:
    """Draws a program line by line; `rng` decides everything."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lines: list[str] = []
        self.count = 0
        self.run = Run("cpu")

    def write(self, length: int) -> list[str]:
        """A program of `length` lines, after three that create something to work on."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._write(length)
        return self.lines

    def _write(self, length: int) -> None:
        create = RULES[0][1]
        weights = [weight for weight, _ in RULES]
        for _ in range(3):
            self._try(create(self))
        for _ in range(4 * length):
            if len(self.lines) >= length + 3:
                break
            self._try(self.rng.choices(RULES, weights)[0][1](self))
            self._prune()

    def _try(self, line: str | None) -> None:
        if line is None:
            return
        error = self.run.execute(line)
        usable = all(self._usable(name) for name in self.run.tensors)
        torn = "out=" in line or "resize_" in line  # what they leave behind is undefined
        if usable and (not error or (not torn and self.chance(KEEP_ERRORS))):
            self.lines.append(line)
        else:  # it may have done half of its work
            self.run = run_program(self.lines, "cpu")

    def _usable(self, name: str) -> bool:
        tensor = self.run.names[name]
        return tensor.numel() <= MAX_ELEMENTS and (name[0] == "p" or not tensor.requires_grad)

    def _prune(self) -> None:
        live = [name for name in self.run.tensors if name[0] == "t"]
        if len(live) > MAX_LIVE:
            self._try(f"del {self.choice(live)}")

    # What rules draw from.

    def new(self, letter: str = "t") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def choice(self, options: Any) -> Any:
        return options[self.rng.randrange(len(options))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def scalar(self) -> str:
        return self.choice(["0", "1", "2", "-1", "3", "0.5", "-1.5", "True"])

    def shape(self) -> list[int]:
        sizes = [0, 1, 1, 2, 2, 3, 3, 4, 5]
        return [self.choice(sizes) for _ in range(self.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]))]

    def product(self, shape: list[int]) -> int:
        return math.prod(shape)

    def tensor(self) -> str:
        live = [name for name in self.run.tensors if name[0] == "t"]
        return self.choice(live) if live else "torch.ones(3, device=dev)"

    def host(self) -> str | None:
        live = [name for name in self.run.tensors if name[0] == "c"]
        return self.choice(live) if live else None

    def value(self, name: str) -> torch.Tensor:
        return self.run.names.get(name, torch.ones(3))

    def dims(self, name: str) -> int:
        return self.value(name).dim()

    def dim(self, name: str) -> int:
        return self.integer(-1, max(self.dims(name) - 1, 0))

    def dtype(self, name: str) -> str:
        return str(self.value(name).dtype).removeprefix("torch.")

    def length(self, name: str, dim: int) -> int:
        return self.value(name).shape[dim] if self.dims(name) else 1

    def storage_elements(self, name: str) -> int:
        tensor = self.value(name)
        return tensor.untyped_storage().nbytes() // tensor.element_size()

    def share_storage(self, one: str, two: str) -> bool:
        pair = [self.run.names.get(name) for name in (one, two)]
        return all(tensor is not None for tensor in pair) and alias_pattern(pair) == [0, 0]

    def reaches_its_storage(self, name: str) -> bool:
        """Whether growing it leaves no gap of uninitialised memory before its first element."""
        return self.value(name).storage_offset() <= self.storage_elements(name)

    def source_for(self, target: str, source: str) -> str:
        """What may be copied into `target` with one outcome only.

        Not floats that no integer dtype holds, nor a source in another dtype on the same memory.
        One element over itself is left out too: whether that raises depends on Python's indexing.
        """
        shared = self.share_storage(target, source)
        one_element = 1 in (self.value(target).numel(), self.value(source).numel())
        if shared and (one_element or self.dtype(target) != self.dtype(source)):
            return f"{self.integral(source) if self.dtype(target) in INTS else source}.clone()"
        return self.integral(source) if self.dtype(target) in INTS else source

    def broadcastable(self) -> tuple[str, str]:
        """Two tensors, mostly of shapes that broadcast, the second one into the first."""
        one = self.tensor()
        fitting = []
        for name, tensor in self.run.tensors.items():
            if name[0] == "t" and _broadcasts(tensor.shape, self.value(one).shape):
                fitting.append(name)
        return one, self.choice(fitting) if fitting and self.chance(0.9) else self.tensor()

    def permutation(self, dims: int) -> str:
        return ", ".join(map(str, self.rng.sample(range(dims), dims)))

    def distinct(self, length: int) -> list[int]:
        return self.rng.sample(range(length), self.integer(0, length))

    def indices(self, name: str, dim: int, count: int | None = None, place: str = "dev") -> str:
        """Indices into a dim that are in range, in a tensor of their own."""
        length = self.length(name, dim)
        count = self.integer(0, 4) if count is None else count
        picks = [self.integer(0, length - 1) for _ in range(count)] if length else []
        return f"torch.tensor({picks}, dtype=torch.int64, device={place})"

    def subscript_indices(self, name: str, dim: int) -> str:
        """Indices for square brackets, where tensors on the CPU are welcome."""
        return self.indices(name, dim, place=self.choice(["dev", "dev", "'cpu'"]))

    def reshaping(self, name: str) -> str:
        count = self.value(name).numel()
        splits = [size for size in (2, 3, 4) if count and count % size == 0]
        options = ["-1", f"{count}", "1, -1", "-1, 1", f"1, {count}"]
        options += [f"{size}, -1" for size in splits] + [f"-1, {size}" for size in splits]
        return self.choice(options)

    def subscript(self, name: str) -> str:
        """Square brackets with at most one ellipsis: PyTorch takes two on the CPU only."""
        part = ["1:", ":2", "::2", "0", "-1", "...", "None", ":", "1:3", ":-1", "-2:"]
        parts = [self.choice(part) for _ in range(self.integer(1, max(1, self.dims(name))))]
        first = parts.index("...") if "..." in parts else len(parts)
        parts[first + 1 :] = [":" if item == "..." else item for item in parts[first + 1 :]]
        return "[" + ", ".join(parts) + "]"

    def integral(self, name: str) -> str:
        """A source that every integer dtype holds: conversions of others are undefined."""
        if self.dtype(name) in INTS or self.dtype(name) == "bool":
            return name
        real = f"{name}.real" if self.dtype(name) == "complex64" else name
        return f"{real}.nan_to_num(0, 9, 0).clamp(0, 9)"


def _broadcasts(shape: torch.Size, into: torch.Size) -> bool:
    if len(shape) > len(into):
        return False
    pairs = zip(reversed(shape), reversed(into), strict=False)
    return all(size in (1, other) for size, other in pairs)


def difference(lines: list[str], device: str = support.DEVICE, tolerance: float = 0) -> str | None:
    """Run the program on the CPU and on the device; what first differs, or None.

    With a tolerance, relative and absolute, floats need not agree bit for bit.

    The last bits of some of PyTorch's kernels (softmax's gradient) depend on how many threads they
    may use: what the CPU gives with one thread is right as well.
    """
    got, threads = run_program(lines, device), torch.get_num_threads()
    try:
        found = _difference(got, run_program(lines, "cpu"), tolerance)
        if found and threads > 1:
            torch.set_num_threads(1)
            found = _difference(got, run_program(lines, "cpu"), tolerance)
        return found
    except Exception as error:
        return f"comparing raised {type(error).__name__}: {error}"
    finally:
        torch.set_num_threads(threads)
        if device != "cpu":
            support.settle()


def _difference(got: Run, want: Run, tolerance: float) -> str | None:
    for number, line in enumerate(want.lines):
        if got.errors[number] != want.errors[number]:
            return f"`{line}` raised {got.raised(number)}; on the CPU {want.raised(number)}"
    if len(got.seen) != len(want.seen):
        return "another number of readouts"
    for index, (mine, theirs) in enumerate(zip(got.seen, want.seen, strict=True)):
        if not _same(mine, theirs, tolerance):
            return f"readout {index} is {mine}, on the CPU {theirs}"
    if got.tensors.keys() != want.tensors.keys():
        return "other names are bound"
    for name, theirs in want.tensors.items():
        found = _tensor_difference(got.tensors[name], theirs, tolerance)
        if found:
            return f"{name}: {found}"
    patterns = [alias_pattern(list(run.tensors.values())) for run in (got, want)]
    return (
        None
        if patterns[0] == patterns[1]
        else f"storages shared as {patterns[0]}, not {patterns[1]}"
    )


def _tensor_difference(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> str | None:
    for what in ("dtype", "shape", "requires_grad"):
        if getattr(got, what) != getattr(want, what):
            return f"{what} {getattr(got, what)}, on the CPU {getattr(want, what)}"
    if significant_strides(got) != significant_strides(want):
        return f"strides {got.stride()}, on the CPU {want.stride()}"
    if got.numel() and got.storage_offset() != want.storage_offset():
        return f"offset {got.storage_offset()}, on the CPU {want.storage_offset()}"
    if not _same(got.detach().cpu(), want.detach(), tolerance):
        return f"values {got.detach().cpu()}, on the CPU {want}"
    if got.untyped_storage().nbytes() != want.untyped_storage().nbytes():
        return "another storage size"
    if not _same(_whole_storage(got).cpu(), _whole_storage(want), tolerance):
        return "values elsewhere in the storage differ"
    if (got.grad is None) != (want.grad is None):
        return "only one has a gradient"
    if want.grad is not None:
        found = _tensor_difference(got.grad, want.grad, tolerance)
        return f"gradient: {found}" if found else None
    return None


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage()
    return flat.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))


def _same(got: Any, want: Any, tolerance: float = 0) -> bool:
    """Equal, for tensors bit for bit but that any NaN is a NaN; or within the tolerance."""
    if isinstance(want, torch.Tensor):
        if got.dtype != want.dtype or got.shape != want.shape:
            return False
        got, want = got.resolve_conj().resolve_neg(), want.resolve_conj().resolve_neg()
        if tolerance:
            return torch.allclose(got, want, tolerance, tolerance, equal_nan=True)
        if torch.equal(_bits(got), _bits(want)):
            return True
        same = got == want
        if got.is_floating_point():
            same &= torch.signbit(got) == torch.signbit(want)
        return bool((same | (got.isnan() & want.isnan())).all())
    if isinstance(want, list):
        pairs = zip(got, want, strict=False)
        return len(got) == len(want) and all(_same(*pair, tolerance) for pair in pairs)
    if tolerance and isinstance(want, float):
        return _same(torch.tensor(got), torch.tensor(want), tolerance)
    return got == want or (got != got and want != want)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def reduce_program(lines: list[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """Leave out lines as long as the program still fails and the rest does on the CPU as before."""
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(lines))):
            errors = run_program(lines, "cpu").errors
            shorter = lines[:index] + lines[index + 1 :]
            kept = errors[:index] + errors[index + 1 :]
            if run_program(shorter, "cpu").errors == kept and fails(shorter):
                lines, changed = shorter, True
    return lines


def as_script(lines: list[str], found: str) -> str:
    """The program as a script to run by hand, as `python script.py cpu` or `... tiledev`."""
    raising = run_program(lines, "cpu").errors
    body = []
    for line, error in zip(lines, raising, strict=True):
        if error:
            body.append(f"try:\n    {line}\nexcept Exception as error:  # {error} on the CPU")
            body.append("    print(type(error).__name__)")
        else:
            body.append(line)
    return "\n".join(
        [
            f"# {' '.join(found.split())[:400]}",
            "import sys",
            "import torch",
            "import torch.nn.functional as F",
            "",
            "dev, seen = sys.argv[1], []",
            "flush = wait = synchronize = lambda: None",
            "if dev != 'cpu':",
            "    import tiledev",
            "    flush, wait = tiledev.execute, tiledev.wait",
            "    synchronize = torch.tiledev.synchronize",
            *(["from tests.device.program_tiles import tile, untile"] * ("untile()" in lines)),
            "torch.manual_seed(0)",
            *body,
            "for name, value in list(globals().items()):",
            "    if isinstance(value, torch.Tensor):",
            "        print(name, value.stride(), value.detach().cpu(), value.grad)",
            "print(seen)",
        ]
    )
