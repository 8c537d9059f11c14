"""Runs one entry of the op database on the device and on the CPU and lists what differs."""

import functools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tests import support
from tests.compare import Outcome, Problem, compare_outcomes
from tests.ops import entries
from tests.transfer import Transfer, tensors_in

SEED = 1234
TWICE = 2  # the samples whose gradients are differentiated again
FILL = 77  # what an out= argument holds before the call


@dataclass
class Report:
    """How an entry fared."""

    name: str
    samples: int = 0
    checks: int = 0
    problems: list[Problem] = field(default_factory=list)
    fallback: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failures(self) -> list[Problem]:
        return [problem for problem in self.problems if not problem.soft]

    @property
    def strides(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.soft]

    @property
    def status(self) -> str:
        """failed, fallback (right, but not recorded) or recorded."""
        if self.failures:
            return "failed"
        return "fallback" if self.fallback else "recorded"


def check_entry(
    op: Any,
    dtype: torch.dtype = torch.float32,
    cap: int = entries.SAMPLE_CAP,
    variants: bool = True,
    grad_cap: int | None = None,
    tolerance: Mapping[str, float] | None = None,
) -> Report:
    """Every sample of an entry: forward, gradients and, with `variants`, in-place and out=."""
    report = Report(entries.entry_name(op))
    started, before = time.perf_counter(), support.fallback_stats()
    differentiable = entries.has_gradients(op, dtype)
    for index, sample in enumerate(entries.samples(op, dtype, cap, differentiable)):
        grads = differentiable and (grad_cap is None or index < grad_cap)
        _check_sample(op, sample, index, grads, variants, report, **(tolerance or {}))
        report.samples += 1
    support.settle()
    report.fallback = support.stats_since(before, support.fallback_stats())
    report.seconds = time.perf_counter() - started
    return report


def _check_sample(
    op: Any,
    sample: Any,
    index: int,
    grads: bool,
    variants: bool,
    report: Report,
    **tolerance: float,
) -> None:
    twice = grads and index < TWICE and op.supports_gradgrad
    runs = [("forward", functools.partial(_run_forward, twice=twice), grads)]
    if variants and _has_inplace(op, sample):
        runs.append(("in-place", _run_inplace, grads and op.supports_inplace_autograd))
    if variants and op.supports_out:
        runs += [(f"out={style}", _out_runner(style), False) for style in _out_styles(op)]
    values = report.name not in entries.UNINITIALISED
    for name, run, with_grads in runs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = run(op, sample, "cpu", with_grads)
            if want is None:  # the variant does not apply
                continue
            got = run(op, sample, support.DEVICE, with_grads)
            report.problems += compare_outcomes(
                got, want, f"{report.name} sample {index} {name}", values=values, **tolerance
            )
        report.checks += 1


def attempt(device: str, body: Callable[[Outcome], None]) -> Outcome:
    """Run `body` from the fixed seed; a run-time error may come as late as the wait."""
    outcome = Outcome()
    support.seed(SEED)
    try:
        outcome.raised_at = "call"
        body(outcome)
        outcome.raised_at = "wait"
        if device != "cpu":
            support.synchronize()
        outcome.raised_at = ""
    except Exception as error:
        outcome.error = error
        if device != "cpu":
            support.settle()
    return outcome


def _move(sample: Any, device: str, requires_grad: bool) -> tuple[Any, tuple, dict, Transfer]:
    transfer = Transfer(device, requires_grad)
    value, args, kwargs = transfer((sample.input, tuple(sample.args), dict(sample.kwargs)))
    return value, args, kwargs, transfer


def _run_forward(op: Any, sample: Any, device: str, grads: bool, twice: bool = False) -> Outcome:
    value, args, kwargs, moved = _move(sample, device, grads)

    def body(outcome: Outcome) -> None:
        outcome.inputs = moved.tensors
        outcome.on_device = bool(moved.tensors) or moved.names_device
        outcome.result = op(value, *args, **kwargs)
        if grads:
            result = sample.output_process_fn_grad(outcome.result)
            outcome.grads = gradients(result, moved.tensors, create_graph=twice)
        if twice:
            outcome.second_grads = gradients(outcome.grads, moved.tensors)

    return attempt(device, body)


def _has_inplace(op: Any, sample: Any) -> bool:
    return (
        op.inplace_variant is not None
        and isinstance(sample.input, torch.Tensor)
        and not sample.broadcasts_input
    )


def _run_inplace(op: Any, sample: Any, device: str, grads: bool) -> Outcome:
    value, args, kwargs, moved = _move(sample, device, grads)

    def body(outcome: Outcome) -> None:
        target = value.clone() if grads else value
        outcome.inputs = [*moved.tensors, target]
        outcome.result = op.inplace_variant(target, *args, **kwargs)
        if grads:
            outcome.grads = gradients(outcome.result, moved.tensors)

    return attempt(device, body)


def _out_styles(op: Any) -> list[str]:
    unsafe = entries.entry_name(op) in entries.UNSAFE_STRIDED_OUT
    return ["same", "empty"] if unsafe else ["same", "empty", "strided"]


def _out_runner(style: str) -> Callable[[Any, Any, str, bool], Outcome | None]:
    def run(op: Any, sample: Any, device: str, grads: bool) -> Outcome | None:
        template = _out_template(op, sample, style)
        if template is None:
            return None
        value, args, kwargs, moved = _move(sample, device, requires_grad=False)
        out = moved(template)

        def body(outcome: Outcome) -> None:
            outcome.inputs = moved.tensors
            outcome.on_device = bool(moved.tensors) or moved.names_device
            outcome.result = op(value, *args, **kwargs, out=out)

        return attempt(device, body)

    return run


def _out_template(op: Any, sample: Any, style: str) -> Any:
    """Tensors on the CPU for out=: as the result, strided otherwise, or empty to be resized."""
    value, args, kwargs, _ = _move(sample, "cpu", requires_grad=False)
    support.seed(SEED)
    try:
        result = op(value, *args, **kwargs)
    except Exception:
        return None
    outs = tensors_in(result)
    if not outs or any(out.layout != torch.strided for out in outs):
        return None
    if style == "strided" and not any(out.dim() > 1 and out.numel() > 1 for out in outs):
        return None
    made = [_out_like(out, style) for out in outs]
    if isinstance(result, torch.Tensor):
        return made[0]
    return made if isinstance(result, list) else tuple(made)


def _out_like(result: torch.Tensor, style: str) -> torch.Tensor:
    if style == "empty":
        return torch.empty(0, dtype=result.dtype)
    if style == "strided" and result.dim():
        return _strided_like(result)
    return torch.full_like(result, FILL)


def _strided_like(result: torch.Tensor) -> torch.Tensor:
    """Every other element of a transposed tensor."""
    shape = [*reversed(result.shape)]
    shape[-1] *= 2
    return torch.full(shape, FILL, dtype=result.dtype)[..., ::2].permute(
        *reversed(range(result.dim()))
    )


def gradients(
    outputs: Any, inputs: list[torch.Tensor], create_graph: bool = False
) -> list[torch.Tensor]:
    """Gradients of every input that requires one, for random cotangents from a fixed seed."""
    outputs = [out for out in tensors_in(outputs) if out.requires_grad]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not outputs or not leaves:
        return []
    outputs = [out if out.layout == torch.strided else out.to_dense() for out in outputs]
    random = torch.Generator().manual_seed(SEED)
    cotangents = [
        torch.randn(out.shape, dtype=out.dtype, generator=random).to(out.device) for out in outputs
    ]
    grads = torch.autograd.grad(
        outputs, leaves, cotangents, allow_unused=True, create_graph=create_graph
    )
    return [torch.zeros(0, device=leaves[0].device) if grad is None else grad for grad in grads]
