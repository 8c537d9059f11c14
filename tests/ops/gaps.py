"""What the device does not do as the CPU does it: entry of PyTorch's databases -> reason.

An entry that begins to pass fails its test until it is taken off here.
"""

# Wrong, or raises where the CPU does not.
FAILS: dict[str, str] = {}

# Right, but through the CPU fallback: not recorded.
FALLBACK: dict[str, str] = {}

# Right values in other strides than the CPU's.
STRIDES: dict[str, str] = {}

# Invalid inputs that raise another type than on the CPU, or nothing.
ERROR_INPUTS: dict[str, str] = {}

# Entry -> dtype -> reason, for the dtypes of test_dtypes.
DTYPES: dict[str, dict[str, str]] = {}

# Names in module_db and optim_db.
MODULES: dict[str, str] = {}
OPTIMIZERS: dict[str, str] = {}


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
