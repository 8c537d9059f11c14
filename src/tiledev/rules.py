"""Tile rules for ops of other packages."""

from __future__ import annotations

from tiledev import _C

__all__ = ["tile_rule"]


def tile_rule(op: str, rule: str) -> None:
    """Tells tiledev along which axes an op can be cut into tiles.

    An op without a rule runs whole. With one it runs tile by tile, on the CPU tensors of each tile,
    in one chain with the ops around it, like PyTorch's own ops. The op's CPU kernel must therefore
    take inputs with strides, and give for a part of the inputs that part of its results.

    The rule is a line of index notation (docs/architecture.md, Tile rules and axes): the op's
    tensor arguments in the order of its schema, an arrow, its results. Letters are axes; one that
    is missing on the right is reduced, and cut only if the rule says how the parts come together.
    A rule that ends in `; if name=value` holds for calls with that argument (a number or a bool);
    an op may have several, of which the first that holds counts, and at last one without.

    Args:
        op: the op's name, as `"mylib::op"` (all overloads) or `"mylib::op.overload"`.
        rule: `"pointwise"`; or the axes, as `"mk,kn->mn; sum"`.

    Raises:
        ValueError: there is no such op, its schema does not fit the rule, it has a rule already, or
            the text is no rule.

    Example:
        >>> import torch, tiledev
        >>> @torch.library.custom_op("readme::scale_rows", mutates_args=(), device_types="cpu")
        ... def scale_rows(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        ...     return x * by[:, None]
        >>> @scale_rows.register_fake
        ... def _(x, by):
        ...     return torch.empty_like(x)
        >>> tiledev.tile_rule("readme::scale_rows", "mn,m->mn")
        >>> x = torch.ones(2, 3, device="tiledev")
        >>> scale_rows(x, torch.tensor([1.0, 2.0], device="tiledev")).sum().item()
        9.0
    """
    _C.add_rule(op, rule)
