"""Draws a plan: its segments in rows, each below all that it waits for."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["draw_html", "draw_svg"]

BOX_WIDTH, BOX_HEIGHT = 280, 74
GAP_X, GAP_Y = 24, 44
SHOWN = 40  # characters in a line of a box

STYLE = (
    "text{font:12px sans-serif}.tiled{fill:#dbeafe;stroke:#1d4ed8}"
    ".whole{fill:#f3f4f6;stroke:#6b7280}path{fill:none;stroke:#9ca3af}"
)


def draw_svg(plan: dict[str, Any]) -> str:
    """Returns the plan, as `explain_json` gives it, as a standalone SVG picture."""
    segments = plan["segments"]
    places = _places(segments)
    width = max((x for x, _ in places), default=0) + BOX_WIDTH + GAP_X
    height = max((y for _, y in places), default=0) + BOX_HEIGHT + GAP_Y
    edges = [
        _edge(places[i], places[successor])
        for i, segment in enumerate(segments)
        for successor in segment["successors"]
    ]
    boxes = [_box(i, segment, places[i]) for i, segment in enumerate(segments)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{STYLE}</style>'
        + "".join(edges + boxes)
        + "</svg>"
    )


def draw_html(plan: dict[str, Any]) -> str:
    """Returns the drawing and a table of the segments as an HTML page."""
    head = ("", "ops", "how", "reads", "writes", "scratch")
    rows = [
        (
            i,
            segment["ops"],
            segment["how"],
            _bytes(segment["bytes_read"]),
            _bytes(segment["bytes_written"]),
            _bytes(segment["scratch_bytes"]),
        )
        for i, segment in enumerate(plan["segments"])
    ]
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    titles = "".join(f"<th>{title}</th>" for title in head)
    title = f"Plan {plan['plan']}: {plan['nodes']} nodes, {len(rows)} segments"
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{draw_svg(plan)}"
        f'<table border="1" cellpadding="4"><tr>{titles}</tr>{body}</table></body></html>'
    )


def _places(segments: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Returns the corner of each box: a row for each length of the longest way to it."""
    rows = [0] * len(segments)
    for i, segment in enumerate(segments):  # segments stand in an order that respects all edges
        for successor in segment["successors"]:
            rows[successor] = max(rows[successor], rows[i] + 1)
    filled: dict[int, int] = {}
    places = []
    for row in rows:
        column = filled.get(row, 0)
        filled[row] = column + 1
        places.append((column * (BOX_WIDTH + GAP_X) + GAP_X, row * (BOX_HEIGHT + GAP_Y) + GAP_Y))
    return places


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + BOX_WIDTH // 2, start[1] + BOX_HEIGHT
    x2, y2 = end[0] + BOX_WIDTH // 2, end[1]
    middle = (y1 + y2) // 2
    return f'<path d="M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"/>'


def _box(number: int, segment: dict[str, Any], place: tuple[int, int]) -> str:
    x, y = place
    kind = "tiled" if segment["tiled"] else "whole"
    lines = (
        f"{number}: {segment['ops']}",
        segment["how"],
        f"reads {_bytes(segment['bytes_read'])}, writes {_bytes(segment['bytes_written'])}",
        f"scratch {_bytes(segment['scratch_bytes'])}",
    )
    texts = "".join(
        f'<text x="{x + 8}" y="{y + 17 + 16 * i}">{escape(_short(line))}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<g><title>{escape(segment["ops"])}</title><rect class="{kind}" x="{x}" y="{y}" '
        f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>{texts}</g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _bytes(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
