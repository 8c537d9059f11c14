"""tiledev: a PyTorch device that records ops into a graph and runs them as planned tasks.

Importing torch makes the device available; importing tiledev gives the functions that control it.

Example:
    >>> import torch, tiledev
    >>> a = torch.ones(2, 3, device="tiledev") * 2  # recorded
    >>> (a + 1).sum().item()  # read out: runs what it needs
    18.0
"""

# The order of the imports matters: torch's import comes back for _autoload, and nothing else of
# the package can be imported before the device is registered.
from tiledev._entry_point import _autoload as _autoload

# isort: split
from tiledev import _registration as _registration

# isort: split
from tiledev import _C as _C
from tiledev import _build_info
from tiledev.context import (
    compile_graph,
    eager,
    execute,
    fallback_stats,
    has_pending_graph,
    init_context,
    is_context_initialized,
    pending_op_names,
    plan_cache_stats,
    reset_graph,
    reset_stats,
    restore_where,
    restrict_cpu,
    restrict_cuda,
    run,
    shutdown_context,
    wait,
)
from tiledev.graph import dump_graph
from tiledev.info import BuiltInfo, built_info, print_info

__version__ = _build_info.VERSION

__all__ = [
    "BuiltInfo",
    "__version__",
    "built_info",
    "compile_graph",
    "dump_graph",
    "eager",
    "execute",
    "fallback_stats",
    "has_pending_graph",
    "init_context",
    "is_context_initialized",
    "pending_op_names",
    "plan_cache_stats",
    "print_info",
    "reset_graph",
    "reset_stats",
    "restore_where",
    "restrict_cpu",
    "restrict_cuda",
    "run",
    "shutdown_context",
    "wait",
]
