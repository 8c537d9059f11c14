"""Comparing what an op left on the device with what it left on the CPU."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests import support
from tests.transfer import tensors_in


@dataclass(frozen=True)
class Problem:
    """One difference. `kind` is stride for the soft class, else what differed."""

    kind: str
    where: str
    message: str

    @property
    def soft(self) -> bool:
        return self.kind == "stride"

    def __str__(self) -> str:
        return f"[{self.kind}] {self.where}: {self.message}"


@dataclass
class Outcome:
    """What a call left behind: values, gradients and its inputs, or the error that it raised."""

    result: Any = None
    grads: Any = None
    second_grads: Any = None
    inputs: list[torch.Tensor] = field(default_factory=list)
    error: Exception | None = None
    raised_at: str = ""  # "call" or "wait"
    on_device: bool = True  # whether anything told the call to work on the device


def significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dims that have more than one element: the others are arbitrary."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return ()
    return tuple(s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def alias_pattern(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor the index of the first one that shares its storage."""
    first: dict[int, int] = {}
    pattern = []
    for index, tensor in enumerate(tensors):
        strided = tensor.layout == torch.strided
        key = tensor.untyped_storage()._cdata if strided else -1 - index
        pattern.append(first.setdefault(key, index))
    return pattern


def compare_error(got: Outcome, want: Outcome, where: str) -> list[Problem]:
    """Both must raise the same type, or neither."""
    if type(got.error) is type(want.error):
        return []
    cpu = "nothing" if want.error is None else f"{type(want.error).__name__}: {want.error}"
    here = "nothing" if got.error is None else f"{type(got.error).__name__}: {got.error}"
    return [Problem("error", where, f"CPU raised {_head(cpu)}; the device {_head(here)}")]


def compare_metadata(got: torch.Tensor, want: torch.Tensor, where: str) -> list[Problem]:
    """Everything but the values."""
    problems = []
    if got.dtype != want.dtype:
        problems.append(Problem("dtype", where, f"{got.dtype}, expected {want.dtype}"))
    if got.shape != want.shape:
        problems.append(Problem("shape", where, f"{list(got.shape)}, not {list(want.shape)}"))
    if got.layout != want.layout:
        problems.append(Problem("layout", where, f"{got.layout}, expected {want.layout}"))
    if (got.is_conj(), got.is_neg()) != (want.is_conj(), want.is_neg()):
        problems.append(Problem("conj", where, "conjugate or negative bits differ"))
    if got.requires_grad != want.requires_grad:
        problems.append(Problem("grad", where, f"requires_grad is {got.requires_grad}"))
    if not problems and significant_strides(got) != significant_strides(want):
        text = f"{got.stride()}, expected {want.stride()} for shape {list(want.shape)}"
        problems.append(Problem("stride", where, text))
    return problems


def compare_values(got: torch.Tensor, want: torch.Tensor, where: str, **tolerance) -> list[Problem]:
    """`got` must be on the CPU already. NaN equals NaN; integers and bools are exact.

    The default tolerance is assert_close's, with the largest element as the measure of an absolute
    error: the order of summation shows in elements that are small by cancellation.
    """
    if identical(got, want):
        return []
    try:
        tolerance = tolerance or _default_tolerance(want)
        torch.testing.assert_close(
            got, want, equal_nan=True, check_stride=False, check_layout=False, **tolerance
        )
    except AssertionError as error:
        return [Problem("value", where, _head(str(error)))]
    except Exception as error:  # a dtype or layout that assert_close knows nothing of
        return [Problem("value", where, f"{type(error).__name__} while comparing: {error}")]
    return []


def _default_tolerance(want: torch.Tensor) -> dict[str, float]:
    rtol, atol = torch.testing._comparison.default_tolerances(want.dtype)
    if want.layout != torch.strided or not (want.is_floating_point() or want.is_complex()):
        return {"rtol": rtol, "atol": atol}
    finite = want.abs().double().nan_to_num(0, 0, 0)
    largest = finite.max().item() if finite.numel() else 0.0
    share = 1e-5 if want.dtype in (torch.float32, torch.complex64) else rtol
    return {"rtol": rtol, "atol": max(atol, share * largest)}


def identical(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Bit for bit, quickly; False may still mean equal NaNs."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    try:
        return torch.equal(got, want)
    except RuntimeError:  # float8 has no comparison, sparse has no equal
        if got.layout != torch.strided:
            return False
        return torch.equal(_bytes(got), _bytes(want))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def compare_tensors(
    got: Any, want: Any, where: str, *, values: bool = True, **tolerance
) -> list[Problem]:
    """Compare the tensors inside `got` (on the device) with those inside `want` (on the CPU)."""
    got_list, want_list = tensors_in(got), tensors_in(want)
    if len(got_list) != len(want_list):
        return [Problem("count", where, f"{len(got_list)} tensors, expected {len(want_list)}")]
    problems = []
    for index, (mine, theirs) in enumerate(zip(got_list, want_list, strict=True)):
        spot = f"{where}[{index}]"
        found = compare_metadata(mine, theirs, spot)
        if values and not any(not problem.soft for problem in found):
            found += compare_values(mine.detach().cpu(), theirs.detach(), spot, **tolerance)
        problems += found
    return problems


def compare_plain(got: Any, want: Any, where: str) -> list[Problem]:
    """Results that are no tensors: item(), sizes, tuples of numbers."""
    if isinstance(want, (list, tuple)):
        if type(got) is not type(want) or len(got) != len(want):
            return [Problem("type", where, f"{type(got).__name__}, not {type(want).__name__}")]
        pairs = enumerate(zip(got, want, strict=True))
        return [p for i, (g, w) in pairs for p in compare_plain(g, w, f"{where}[{i}]")]
    if isinstance(want, torch.Tensor):
        kind = type(got)
        return [] if kind is type(want) else [Problem("type", where, f"{kind.__name__}")]
    same = got == want or (got != got and want != want)
    return [] if same else [Problem("value", where, f"{got!r}, expected {want!r}")]


def compare_outcomes(
    got: Outcome, want: Outcome, where: str, *, values: bool = True, **tolerance
) -> list[Problem]:
    """Errors, results, gradients, what became of the inputs, devices and aliasing."""
    problems = compare_error(got, want, where)
    if got.error is not None or want.error is not None:
        return problems
    try:
        problems += compare_tensors(got.result, want.result, where, values=values, **tolerance)
        problems += compare_plain(got.result, want.result, where)
        problems += compare_tensors(
            got.grads, want.grads, f"{where} gradient", values=values, **tolerance
        )
        problems += compare_tensors(
            got.inputs, want.inputs, f"{where} input afterwards", values=values, **tolerance
        )
        problems += compare_tensors(
            got.second_grads, want.second_grads, f"{where} second gradient", **tolerance
        )
    except Exception as error:
        problems.append(Problem("readback", where, f"{type(error).__name__}: {_head(str(error))}"))
        return problems
    problems += _compare_placement(got, want, where)
    return problems


def _compare_placement(got: Outcome, want: Outcome, where: str) -> list[Problem]:
    mine = got.inputs + tensors_in(got.result)
    theirs = want.inputs + tensors_in(want.result)
    problems = []
    if alias_pattern(mine) != alias_pattern(theirs):
        text = f"{alias_pattern(mine)}, expected {alias_pattern(theirs)}"
        problems.append(Problem("alias", where, text))
    expected = torch.device(support.DEVICE).type
    if not got.on_device:
        expected = "cpu"
    wrong = [
        t.device
        for t in tensors_in(got.result) + tensors_in(got.grads)
        if t.device.type != expected
    ]
    if wrong:
        problems.append(Problem("device", where, f"result on {wrong[0]}"))
    return problems


def _head(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + "..."


def assert_same(body: Callable[[str], Any], **tolerance: float) -> None:
    """`body(device)` gives on the device under test what it gives on the CPU, errors included."""
    got, want = _outcome(body, support.DEVICE), _outcome(body, "cpu")
    problems = compare_error(got, want, "")
    if want.error is None and not problems:
        problems += compare_tensors(got.result, want.result, "result", **tolerance)
        problems += compare_plain(got.result, want.result, "result")
    assert not problems, "\n".join(map(str, problems))


def _outcome(body: Callable[[str], Any], device: str) -> Outcome:
    support.seed(0)
    outcome = Outcome()
    try:
        outcome.result = body(device)
    except Exception as error:
        outcome.error = error
    return outcome
