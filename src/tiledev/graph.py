"""Looking at the pending graph and at the plan of the last flush."""

from __future__ import annotations

import json
from typing import Literal

from tiledev import _C
from tiledev._drawing import draw_html, draw_svg

__all__ = ["dump_graph", "explain"]


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


def explain(format: Literal["text", "dot", "svg", "html", "json"] = "text") -> str:
    """Returns what the plan of the last flush does.

    A plan is a list of segments: ops that run one after the other on each tile. A line says how a
    segment is cut, what it reads and writes in memory, and how much scratch each worker needs; or
    why it is not cut.

    Args:
        format: "text"; "json", the same for programs; or a drawing of the segments and of what each
            waits for: "dot" (Graphviz's language), "svg", or "html", a page of its own.

    Returns:
        The description; empty if nothing was flushed yet.

    Raises:
        ValueError: `format` is something else.

    Example:
        >>> y = torch.ones(512, 512, device="tiledev").relu() + 1
        >>> tiledev.wait()
        >>> "segments=" in tiledev.explain().splitlines()[0]
        True
    """
    if format not in ("text", "dot", "svg", "html", "json"):
        raise ValueError(
            f"[explain] got format={format!r}; pass 'text', 'dot', 'svg', 'html' or 'json'"
        )
    if format in ("text", "dot", "json"):
        return _C.explain(format)
    plan = _C.explain("json")
    if not plan:
        return ""
    return draw_svg(json.loads(plan)) if format == "svg" else draw_html(json.loads(plan))
