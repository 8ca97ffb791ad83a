"""Ranges: what can be said at once of the values of index expressions, by the rows of their ops."""

from __future__ import annotations

from collections.abc import Iterable

from kgen.dsl.expr import Expr, fold, walk
from kgen.dsl.ops import OPS, POINTWISE
from kgen.dsl.size import Size


def never_negative(value: Expr) -> bool:
    """Whether a value cannot be below 0, whatever the operands (as far as is seen at once)."""

    def rule(node: Expr, operands: list[bool]) -> bool:
        row = OPS.get(node.op)
        return row.sign(node, operands) if row else node.op == "position"  # in a lowered expression

    return fold(value, rule)


def within(ids: Expr, size: Size) -> bool:
    """Whether ids surely lie in an axis of that size: its arange, that of n times the size divided by n, or minimum(what is never
    negative, size - 1).
    """
    if ids.op == "arange":
        return ids.shape.dims[0] == size
    if ids.op == "const":
        return isinstance(size, int) and 0 <= ids.attr < size
    if ids.op == "floordiv" and ids.args[0].op == "arange" and ids.args[1].op == "const":
        return bool(ids.args[0].shape.dims[0] == size * ids.args[1].attr)
    return ids.op == "minimum" and any(
        _is_last(last, size) and never_negative(other) for last, other in (ids.args, ids.args[::-1])
    )


def _is_last(node: Expr, size: Size) -> bool:
    one = node.op == "sub" and node.args[1].op == "const" and node.args[1].attr == 1
    return one and node.args[0].op == "size" and node.args[0].attr == size


def limits(nodes: Iterable[Expr]) -> dict[str, Size]:
    """The int inputs that say how many elements of an axis there are, by `arange(N) < lengths`, with the axis."""
    compared = (n.args for n in nodes if n.op == "lt" and n.args[0].op == "arange" and n.args[1].op == "input")
    return {count.attr: place.shape.dims[0] for place, count in compared if count.dtype.kind == "int"}


def begins(nodes: Iterable[Expr]) -> dict[str, Size]:
    """The int inputs that say where elements of an axis begin, by `begin <= arange(N)`, with the axis."""
    compared = (n.args if n.op == "le" else n.args[::-1] for n in nodes if n.op in ("le", "ge"))
    found = ((first.attr, place) for first, place in compared if first.op == "input" and place.op == "arange")
    return {name: place.shape.dims[0] for name, place in found}


def monotone(ids: Expr) -> bool:
    """Whether ids of one axis surely do not fall from one position to the next, nor below 0."""

    def rule(node: Expr, operands: list[bool]) -> bool:
        if node.op == "arange":
            return True
        row = OPS[node.op]
        return any(operands) and all(
            (rises and i in row.rises) or _is_fixed(x, row.exactness == "chosen")
            for i, (x, rises) in enumerate(zip(node.args, operands))
        )

    return fold(ids, rule)


def _is_fixed(node: Expr, of_any_sign: bool) -> bool:
    """Whether a value is the same at every position; and not negative, where that matters."""
    fixed = all(n.op in ("size", "const") or n.op in POINTWISE for n in walk((node,)))
    return fixed and (of_any_sign or never_negative(node))
