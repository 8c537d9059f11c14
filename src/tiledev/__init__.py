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
from tiledev.axes import (
    AxisGroup,
    axis_groups,
    clear_axis_group_tiling,
    format_axis_groups,
    print_axis_groups,
    set_axis_group_name,
    set_axis_group_tiling,
)
from tiledev.context import (
    compile_graph,
    eager,
    execute,
    explain_miss,
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
from tiledev.graph import dump_graph, explain
from tiledev.info import BuiltInfo, built_info, print_info
from tiledev.rules import tile_rule
from tiledev.tracing import trace

__version__ = _build_info.VERSION

__all__ = [
    "AxisGroup",
    "BuiltInfo",
    "__version__",
    "axis_groups",
    "built_info",
    "clear_axis_group_tiling",
    "compile_graph",
    "dump_graph",
    "eager",
    "execute",
    "explain",
    "explain_miss",
    "fallback_stats",
    "format_axis_groups",
    "has_pending_graph",
    "init_context",
    "is_context_initialized",
    "pending_op_names",
    "plan_cache_stats",
    "print_axis_groups",
    "print_info",
    "reset_graph",
    "reset_stats",
    "restore_where",
    "restrict_cpu",
    "restrict_cuda",
    "run",
    "set_axis_group_name",
    "set_axis_group_tiling",
    "shutdown_context",
    "tile_rule",
    "trace",
    "wait",
]
