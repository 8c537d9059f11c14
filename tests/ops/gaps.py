"""What the device does not do as the CPU does it: entry of PyTorch's databases -> reason.

An entry that begins to pass fails its test until it is taken off here.
"""

SPARSE = "the device has dense tensors only"
VALUES = "the shape of a result depends on values"

# Wrong, or raises where the CPU does not.
FAILS: dict[str, str] = {
    "sparse_mm_reduce": SPARSE,
    "sparse_sampled_addmm": SPARSE,
    "tensor_split": "indices have to be on the CPU, as for CUDA",
    "to_sparse": SPARSE,
}

# Right, but through the CPU fallback: not recorded.
FALLBACK: dict[str, str] = {
    "__getitem__": f"{VALUES} (boolean masks)",
    "_segment_reduce_lengths": "no Meta kernel for segment_reduce",
    "_segment_reduce_offsets": "no Meta kernel for segment_reduce",
    "argwhere": VALUES,
    "combinations": f"{VALUES} (masked_select)",
    "index_fill": f"{VALUES} (unique, in the gradient)",
    "index_put": f"{VALUES} (boolean masks)",
    "linalg_lstsq": f"{VALUES} (residuals depend on the rank)",
    "linalg_lstsq_grad_oriented": f"{VALUES} (residuals depend on the rank)",
    "masked_fill": f"{VALUES} (masked_select, in the gradient)",
    "masked_scatter": f"{VALUES} (masked_select, in the gradient)",
    "masked_select": VALUES,
    "nonzero": VALUES,
    "prod": f"{VALUES} (nonzero, in the gradient)",
    "repeat_interleave": VALUES,
    "unique": VALUES,
    "unique_consecutive": VALUES,
}

# Right values in other strides than the CPU's.
STRIDES: dict[str, str] = {}

# Invalid inputs that raise another type than on the CPU, or nothing.
ERROR_INPUTS: dict[str, str] = {}

# Entry -> dtype -> reason, for the dtypes of test_dtypes.
DTYPES: dict[str, dict[str, str]] = {}

# Names in module_db and optim_db.
MODULES: dict[str, str] = {}
OPTIMIZERS: dict[str, str] = {"SparseAdam": SPARSE}


def complaints(name: str, status: str, strides: bool, details: list[str]) -> list[str]:
    """How an entry's result departs from the lists above; nothing if it is as listed.

    Args:
        name: the entry.
        status: recorded, fallback, failed, crashed or hung.
        strides: whether strides differed.
        details: the differences, for the message.
    """
    expected = "failed" if name in FAILS else "fallback" if name in FALLBACK else "recorded"
    found = []
    if status != expected:
        if status == "recorded":
            found.append(f"{name} passes now: take it off {expected.upper()} in tests/ops/gaps.py")
        else:
            found.append(f"{name} is {status}, expected {expected}: {'; '.join(details[:5])}")
    if strides and name not in STRIDES and status in ("recorded", "fallback"):
        found.append(f"{name} has other strides: {'; '.join(details[:5])}")
    if name in STRIDES and not strides and status in ("recorded", "fallback"):
        found.append(f"{name} has the CPU's strides now: take it off STRIDES in tests/ops/gaps.py")
    return found
