"""The context: the workers, the pending graph and the plans of this process.

There is one context in a process. It appears with default settings at the first op on the device,
or before that by `init_context`, and it ends by itself at exit.

An op on a tiledev tensor records a node and returns. The nodes run at a *flush*: `execute`
(`compile_graph` and `run` are its halves), the end of an optimizer step, a readout (`.cpu()`,
`.item()`, `print`), or a limit on what may be pending.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tiledev import _C

__all__ = [
    "compile_graph",
    "eager",
    "execute",
    "explain_miss",
    "fallback_stats",
    "has_pending_graph",
    "init_context",
    "is_context_initialized",
    "pending_op_names",
    "plan_cache_stats",
    "reset_graph",
    "reset_stats",
    "restore_where",
    "restrict_cpu",
    "restrict_cuda",
    "run",
    "shutdown_context",
    "wait",
]

MAX_WORKERS = 1024


def init_context(
    ncpu: int = -1,
    ncuda: int = 0,
    *,
    cpu_fallback: bool = True,
    verbose: int = 0,
    max_pending_nodes: int | None = None,
    max_pending_bytes: int | None = None,
    memory_limit: int | None = None,
    pin_workers: bool = False,
) -> None:
    """Makes the context with these settings; call it before the first op on the device.

    Args:
        ncpu: CPU workers, 1 to 1024, or -1 for every core that the process may use.
        ncuda: CUDA workers; only 0 is possible yet.
        cpu_fallback: run an op that cannot be recorded at once on the CPU, with a warning the
            first time (see `fallback_stats`). False makes such an op a NotImplementedError.
        verbose: 0 is silent; each level above prints more about flushes, plans and tasks.
        max_pending_nodes: a graph of this many nodes is flushed (None: a default).
        max_pending_bytes: a graph whose results take this many bytes is flushed (None: a default).
        memory_limit: bytes that tensors and tasks may take in memory (None: no limit). An op
            that needs more fails with torch.OutOfMemoryError, which names the largest tensors.
        pin_workers: bind each worker to a core of its own, so that its tiles stay in that core's
            cache; for machines that run nothing else. Linux only, ignored elsewhere.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of its range.
        RuntimeError: work has begun with other settings, or torch cannot drive CUDA.
        NotImplementedError: `ncuda` is above 0 on a torch that can drive CUDA.

    Example:
        >>> tiledev.shutdown_context()
        >>> tiledev.init_context(ncpu=2)
        >>> tiledev.is_context_initialized()
        True
    """
    _check_int("ncpu", ncpu, 1, MAX_WORKERS, allowed=-1)
    _check_int("ncuda", ncuda, 0, MAX_WORKERS)
    _check_int("verbose", verbose, 0, 9)
    for name, value in (("cpu_fallback", cpu_fallback), ("pin_workers", pin_workers)):
        if not isinstance(value, bool):
            raise TypeError(f"[init_context] got {name}={value!r}; pass True or False")
    nodes = _limit("max_pending_nodes", max_pending_nodes)
    nbytes = _limit("max_pending_bytes", max_pending_bytes)
    memory = _limit("memory_limit", memory_limit)
    if ncuda > 0:
        _refuse_cuda(ncuda)
    _C.init_context(ncpu, ncuda, cpu_fallback, verbose, nodes, nbytes, memory, pin_workers)


def _limit(name: str, value: int | None) -> int:
    """Returns -1 for None: the default that a context made by the first op takes, too."""
    if value is None:
        return -1
    _check_int(name, value, 1, 2**62)
    return value


def _check_int(name: str, value: int, low: int, high: int, allowed: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"[init_context] got {name}={value!r}; pass an int")
    if value != allowed and not low <= value <= high:
        special = "" if allowed is None else f", or {allowed} for the default"
        raise ValueError(f"[init_context] got {name}={value}; pass {low} to {high}{special}")


def _refuse_cuda(ncuda: int) -> None:
    cuda = torch.version.cuda
    if cuda is None or not torch.cuda.is_available():
        build = "built without CUDA" if cuda is None else f"built for CUDA {cuda}, but finds no GPU"
        raise RuntimeError(
            f"[init_context] got ncuda={ncuda}, but torch {torch.__version__} is {build} "
            f"(torch.version.cuda is {cuda}): pass ncuda=0, or install a CUDA build of torch "
            "(https://pytorch.org/get-started/locally) and a driver that it can use"
        )
    raise NotImplementedError(
        f"[init_context] got ncuda={ncuda}: tiledev has no CUDA workers yet; pass ncuda=0"
    )


def shutdown_context() -> None:
    """Ends the context: runs nothing more, waits for what is running and joins the workers.

    Tensors whose values are still pending can no longer be read; `execute` and `wait` first. Does
    nothing if there is no context. The next op, or `init_context`, makes a new one.
    """
    _C.shutdown_context()


def is_context_initialized() -> bool:
    """Returns whether the context exists."""
    return _C.is_context_initialized()


def compile_graph() -> None:
    """Turns the pending graph into a plan, or finds the plan of an equal graph, without running it.

    Does nothing if nothing is pending.
    """
    _C.compile_graph()


def run() -> None:
    """Starts what `compile_graph` planned, and returns while it runs.

    Compiles what is pending first if nothing is compiled yet.
    """
    _C.run()


def execute() -> None:
    """Flushes: compiles what is pending and starts it; returns while it runs.

    Example:
        >>> a = torch.ones(2, device="tiledev") + 1
        >>> tiledev.execute()
        >>> tiledev.has_pending_graph()
        False
    """
    _C.execute()


def wait() -> None:
    """Flushes, then waits until everything has run.

    Raises:
        RuntimeError: an op failed while it ran (or the error's own type, such as IndexError). The
            message names the op and the line that recorded it. What depended on the op was
            skipped; all other tensors have their values.
    """
    _C.wait()


def has_pending_graph() -> bool:
    """Returns whether ops are recorded that have not been started."""
    return _C.has_pending_graph()


def pending_op_names() -> list[str]:
    """Returns the names of the pending ops, in the order of recording.

    Example:
        >>> tiledev.execute()
        >>> a = torch.ones(2, device="tiledev").relu()
        >>> [name for name in tiledev.pending_op_names() if "relu" in name]
        ['aten::relu']
    """
    return _C.pending_op_names()


def reset_graph() -> None:
    """Forgets what is pending without running it.

    Tensors that the forgotten ops would have written can no longer be read, those that they would
    have changed in place included. Names of axes that were given stay; what later tensors could
    inherit is forgotten (see `set_axis_group_name`).
    """
    _C.reset_graph()


def restrict_cpu() -> None:
    """Lets only CPU workers run tasks, until `restore_where`."""
    _C.restrict_workers("cpu")


def restrict_cuda() -> None:
    """Lets only CUDA workers run the tasks that they can run, until `restore_where`.

    Raises:
        RuntimeError: the context has no CUDA workers.
    """
    _C.restrict_workers("cuda")


def restore_where() -> None:
    """Takes back `restrict_cpu` and `restrict_cuda`: every worker runs tasks."""
    _C.restore_workers()


@contextmanager
def eager() -> Iterator[None]:
    """Runs every op inside at once, so that an error appears at the line that caused it.

    Example:
        >>> with tiledev.eager():
        ...     a = torch.ones(2, device="tiledev") + 1
        ...     tiledev.has_pending_graph()
        False
    """
    previous = _C.set_eager(True)
    try:
        yield
    finally:
        _C.set_eager(previous)


def fallback_stats() -> dict[str, int]:
    """Returns how often each op could not be recorded and ran at once on the CPU.

    Returns:
        Op name -> count, since the start or the last `reset_stats`.
    """
    return _C.fallback_stats()


def reset_stats() -> None:
    """Sets the counts of `fallback_stats` and `plan_cache_stats` to zero."""
    _C.reset_stats()


def plan_cache_stats() -> dict[str, int]:
    """Returns how often a flush found its plan ready ("hits"), had to make it ("misses"), etc."""
    return _C.plan_cache_stats()


def explain_miss() -> str:
    """Returns why the last plan that was not in the cache had to be made.

    Returns:
        A line that names the first difference from the nearest plan; empty if there was no miss.

    Example:
        >>> y = torch.ones(3, device="tiledev") + 1
        >>> tiledev.wait()
        >>> "nodes" in tiledev.explain_miss()
        True
    """
    return _C.explain_miss()
