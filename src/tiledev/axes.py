"""Axis groups: dimensions that ops tie together, their names, and the tiles they are cut into.

An axis group is a set of dimensions that ops walk together: the rows of `x`, of `x @ w` and of
their gradients are one group. tiledev cuts such axes into tiles by itself; naming a group lets you
choose the tiles. Tiles are ranges of indices, not memory layouts: choosing others moves nothing and
changes no result beyond rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tiledev import _C

__all__ = [
    "AxisGroup",
    "axis_groups",
    "clear_axis_group_tiling",
    "format_axis_groups",
    "print_axis_groups",
    "set_axis_group_name",
    "set_axis_group_tiling",
]

SHOWN_TILES = 8
LARGEST_SIZE = 2**63 - 1


@dataclass(frozen=True)
class AxisGroup:
    """One axis group of the pending graph.

    Attributes:
        extent: the length of the axis, as it was named; without a name, of the outer factor where a
            view merges two axes.
        name: the name, or None.
        tiles: the sizes of the tiles that were chosen, or None: tiledev chooses.
        members: how many dimensions of tensors belong to it.
    """

    extent: int
    name: str | None
    tiles: tuple[int, ...] | None
    members: int


def set_axis_group_name(tensor: torch.Tensor, names: Mapping[int, str | None]) -> None:
    """Names the axis groups of dimensions of a tensor.

    A name holds for all tensors that ops tie to this dimension, in later graphs too: naming the
    first input's rows and the weights' dimensions once is enough for forward, backward, the
    optimizer's state and all later steps. A new input (`x.to("tiledev")`) inherits the names that
    an earlier one had in the same place: as the same operand of the same op beside the same tensor,
    such as a weight, named or not. Its extent may differ. A name that you give, or that ops tie
    to one, goes before an inherited one; where two names were seen in one place, or would meet in
    one group, nothing is inherited. Without another tensor, as in `(x * 2).sum()`, nothing is
    either: name the input in each step. `reset_graph()` forgets what could be inherited.

    One name may stand on several groups. A dimension of extent 1, or one that `expand` made, cannot
    be cut: a name for it is fine, and has no effect.

    Args:
        tensor: a tensor on tiledev.
        names: dimension -> name; negative dimensions count from the end. None takes the name of a
            dimension back, also one that was inherited; when you named no other dimension so,
            tensors that ops tied to it lose the name as well, and no later one inherits it. All
            hold or, on an error, none.

    Raises:
        TypeError: `tensor` is not on tiledev, or a key or name is of the wrong type.
        IndexError: there is no such dimension.
        ValueError: the group has another name already, a name is empty, or the sizes chosen for a
            name do not add up to the extent.

    Example:
        >>> x = torch.ones(4, 3, device="tiledev")
        >>> tiledev.set_axis_group_name(x, {0: "batch"})
        >>> tiledev.set_axis_group_name(x, {0: None})  # and back
    """
    call = "set_axis_group_name"
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "tiledev":
        where = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"[{call}] got a tensor on {where}; pass a tensor on tiledev")
    named = []
    for dim, name in names.items():
        index = _as_int(dim)
        if index is None or not (name is None or isinstance(name, str)):
            raise TypeError(f"[{call}] got {{{dim!r}: {name!r}}}; pass {{dimension: name or None}}")
        if not -tensor.dim() <= index < tensor.dim():
            allowed = f"pass {-tensor.dim()} to {tensor.dim() - 1}"
            raise IndexError(
                f"[{call}] got dimension {index} for a tensor of {tensor.dim()} dimensions; "
                + (allowed if tensor.dim() else "it has none that could be named")
            )
        if name == "":
            raise ValueError(f"[{call}] got an empty name for dimension {index}")
        named.append((index % tensor.dim(), name))
    _C.set_axis_group_name(tensor, named)


def set_axis_group_tiling(name: str, sizes: int | Sequence[int]) -> None:
    """Chooses the tiles of the axis groups with a name, from the next flush on.

    Sizes refer to the axis as it was named. Views of it may have another extent there: 128 rows of
    512 are 2 of the 8 blocks of `view(8, 64, ...)`. Ops on views that such tiles do not fit run as
    if nobody had chosen tiles.

    Args:
        name: a name that `set_axis_group_name` gave.
        sizes: an int, the size of each tile (the last one may be shorter); or the exact sizes of
            all tiles, which must add up to the extent.

    Raises:
        ValueError: nobody gave this name, a size is not positive, or the sizes do not add up. If
            the extent changes later (a last, shorter batch), the flush raises.

    Example:
        >>> x = torch.ones(4, 3, device="tiledev")
        >>> tiledev.set_axis_group_name(x, {0: "rows"})
        >>> tiledev.set_axis_group_tiling("rows", [1, 1, 2])
        >>> tiledev.clear_axis_group_tiling("rows")
    """
    call = "set_axis_group_tiling"
    size = _as_int(sizes)
    if size is not None:
        _C.set_axis_group_tiling(name, _check_sizes(call, name, [size])[0], [])
        return
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise TypeError(f"[{call}] got sizes={sizes!r} for {name!r}; pass an int or a list of ints")
    _C.set_axis_group_tiling(name, 0, _check_sizes(call, name, sizes))


def _as_int(value: object) -> int | None:
    """Returns an int, or what stands for one (NumPy's integers); None for anything else."""
    if isinstance(value, (bool, torch.Tensor)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _check_sizes(call: str, name: str, sizes: Sequence[int]) -> list[int]:
    if not sizes:
        raise ValueError(f"[{call}] got no sizes for {name!r}; pass at least one")
    checked = []
    for given in sizes:
        size = _as_int(given)
        if size is None:
            raise TypeError(f"[{call}] got size {given!r} for {name!r}; pass ints")
        if size < 1:
            raise ValueError(f"[{call}] got size {size} for {name!r}; pass sizes from 1")
        checked.append(size)
    if sum(checked) > LARGEST_SIZE:
        raise ValueError(
            f"[{call}] got sizes for {name!r} that add up to {sum(checked)}; no axis has more than "
            f"{LARGEST_SIZE} elements"
        )
    return checked


def clear_axis_group_tiling(name: str | None = None) -> None:
    """Lets tiledev choose the tiles of a name again, or of all names (None); names stay.

    Raises:
        ValueError: nobody gave this name.
    """
    _C.clear_axis_group_tiling(name)


def axis_groups() -> list[AxisGroup]:
    """Returns the axis groups of the pending graph.

    Raises:
        ValueError: two different names meet in one group.

    Example:
        >>> tiledev.execute()
        >>> y = torch.ones(4, 3, device="tiledev").relu()
        >>> sorted(group.extent for group in tiledev.axis_groups())
        [3, 4]
    """
    return [
        AxisGroup(extent, name or None, tuple(tiles) or None, members)
        for extent, name, tiles, members in _C.axis_groups()[2]
    ]


def format_axis_groups() -> str:
    """Returns the axis groups of the pending graph as text; see `axis_groups` for what it raises.

    Returns:
        A line for the graph, then a line for each group: named ones first.
    """
    nodes, tensors, _ = _C.axis_groups()
    groups = axis_groups()
    tiled = sum(group.tiles is not None for group in groups)
    lines = [
        f"Pending graph: nodes={nodes}, tensors={tensors}, axis_groups={len(groups)}, "
        f"tiled={tiled}/{len(groups)}",
        "Axis groups:",
    ]
    groups.sort(key=lambda group: (group.name is None, -group.members))
    for group in groups:
        name = "" if group.name is None else f" name={group.name!r}"
        lines.append(
            f"  extent={group.extent}{name} tiles={_tiles(group.tiles)} members={group.members}"
        )
    return "\n".join(lines)


def _tiles(tiles: tuple[int, ...] | None) -> str:
    if tiles is None:
        return "auto"
    shown = ",".join(map(str, tiles[:SHOWN_TILES]))
    return shown if len(tiles) <= SHOWN_TILES else f"{shown},... ({len(tiles)} tiles)"


def print_axis_groups() -> None:
    """Prints `format_axis_groups`."""
    print(format_axis_groups(), flush=True)
