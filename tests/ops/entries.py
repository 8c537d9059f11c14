"""Entries of PyTorch's op database and their sample inputs, generated on the CPU."""

import functools
import itertools
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests import support

SAMPLE_CAP = 40

# Results with uninitialised memory: only the metadata of these can be compared.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}


# PyTorch's CPU kernels take a batched out= for contiguous here: they race and write elsewhere.
UNSAFE_STRIDED_OUT = {"linalg_lu", "lu_unpack", "tril", "triu"}


def entry_name(op: Any) -> str:
    """The name under which an entry is listed, e.g. nn_functional_pad_reflect."""
    return op.formatted_name


@functools.cache
def entries(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Name -> OpInfo of every entry that supports `dtype` on the CPU."""
    return {entry_name(op): op for op in op_db if op.supports_dtype(dtype, "cpu")}


@functools.cache
def error_entries() -> dict[str, Any]:
    """Name -> OpInfo of every entry that lists invalid inputs."""
    return {entry_name(op): op for op in op_db if op.error_inputs_func is not None}


def has_gradients(op: Any, dtype: torch.dtype) -> bool:
    """Whether the CPU differentiates this entry in `dtype`."""
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def samples(op: Any, dtype: torch.dtype, cap: int, requires_grad: bool) -> list[Any]:
    """Up to `cap` sample inputs on the CPU, the same in every run.

    `op.sample_inputs` would seed before each one, with a stack trace each time.
    """
    support.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = op.sample_inputs_func(op, "cpu", dtype, requires_grad)
        return list(itertools.islice(made, cap))
