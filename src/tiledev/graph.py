"""Looking at the pending graph."""

from __future__ import annotations

from typing import Literal

from tiledev import _C

__all__ = ["dump_graph"]


def dump_graph(format: Literal["text", "dot"] = "text") -> str:
    """Returns the graph of the ops that are recorded and not run yet.

    Args:
        format: "text", a line for each node in the order of recording, or "dot", the graph in
            Graphviz's language (`dot -Tsvg`).

    Returns:
        The dump; dumping runs nothing and changes nothing.

    Raises:
        ValueError: `format` is something else.

    Example:
        >>> tiledev.execute()
        >>> a = torch.ones(2, device="tiledev") + 1
        >>> "add" in tiledev.dump_graph()
        True
    """
    if format not in ("text", "dot"):
        raise ValueError(f"[dump_graph] got format={format!r}; pass 'text' or 'dot'")
    return _C.format_graph(format)
