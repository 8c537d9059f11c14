"""Invalid inputs of an entry: the device has to refuse them as the CPU does."""

import warnings
from dataclasses import dataclass, field
from typing import Any

from tests import support
from tests.compare import Outcome
from tests.ops import entries
from tests.ops.check import attempt
from tests.transfer import Transfer, tensors_in


@dataclass
class ErrorReport:
    """How an entry's invalid inputs were met, in numbers and in words."""

    name: str
    inputs: int = 0
    at_call: int = 0
    at_wait: int = 0
    same_text: int = 0
    problems: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """failed, wait (the right type, but not before the wait) or call."""
        if self.problems:
            return "failed"
        return "wait" if self.at_wait else "call"


def check_error_inputs(op: Any) -> ErrorReport:
    """The same exception type at the call, or at the latest at the wait, with a text."""
    report = ErrorReport(entries.entry_name(op))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, invalid in enumerate(op.error_inputs("cpu")):
            sample = invalid.sample_input
            want = _run(op, sample, "cpu")
            if want.error is None:  # some "errors" are for other devices only
                continue
            report.inputs += 1
            _judge(report, index, _run(op, sample, support.DEVICE), want)
    return report


def _run(op: Any, sample: Any, device: str) -> Outcome:
    value, args, kwargs = Transfer(device)((sample.input, tuple(sample.args), dict(sample.kwargs)))

    def body(outcome: Outcome) -> None:
        outcome.result = op(value, *args, **kwargs)

    return attempt(device, body)


def _judge(report: ErrorReport, index: int, got: Outcome, want: Outcome) -> None:
    expected = f"{type(want.error).__name__}: {want.error}"
    where = f"error input {index}"
    if got.error is None:
        shapes = [list(tensor.shape) for tensor in tensors_in(got.result)]
        report.problems.append(f"{where} accepted, result {shapes}; on the CPU {expected}")
        return
    if type(got.error) is not type(want.error):
        found = f"{type(got.error).__name__}: {got.error}"
        report.problems.append(f"{where} raised {found}; on the CPU {expected}")
        return
    if not str(got.error) and str(want.error):
        report.problems.append(f"{where} raised {type(got.error).__name__} without a text")
        return
    report.same_text += str(got.error) == str(want.error)
    report.at_call += got.raised_at == "call"
    if got.raised_at == "wait":
        report.at_wait += 1
        report.late.append(f"{where}: {expected}")
