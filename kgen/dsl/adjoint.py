"""Adjoints: what reverse mode passes from node to node, and the sums over axes that an operand was broadcast along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kgen.dsl.derivatives import axes_of, count_of, is_number
from kgen.dsl.expr import Expr, Shape, cast, reduction, where
from kgen.dsl.indexing import arange
from kgen.dsl.interchange import Condition, interchanged, literal_of


class LeadingSum(Exception):
    """A sum over leading dimensions was met, which only named ones can have."""


@dataclass(frozen=True)
class Adjoint:
    """`value` where the condition holds, else 0."""

    value: Expr
    holds: Expr | None = None

    def settled(self) -> Expr:
        return self.value if self.holds is None else where(self.holds, self.value, 0.0)

    def under(self, condition: Expr) -> Adjoint:
        return Adjoint(self.value, condition if self.holds is None else self.holds & condition)


def plus(a: Expr, b: Expr) -> Expr:
    """The sum of two adjoints, of one denominator, and under one condition, where they have one."""
    if (
        a.op == b.op == "where"
        and literal_of(a.args[0]) == literal_of(b.args[0])
        and _is_zero(a.args[2])
        and _is_zero(b.args[2])
    ):
        return where(a.args[0], plus(a.args[1], b.args[1]), 0.0)
    if a.op == b.op == "div" and a.args[1] is b.args[1]:
        return (a.args[0] + b.args[0]) / a.args[1]
    return a + b


def spread(g: Expr, whole: Shape) -> Expr:
    """An adjoint in its whole shape, for what goes by positions."""
    if whole.leading and not g.shape.leading:
        raise LeadingSum
    rank = len(whole.dims)
    for axis, dim in enumerate(whole.dims):
        own = g.shape.dims[axis - rank] if rank - axis <= len(g.shape.dims) else 1
        if own != dim:
            g = g + cast(arange(dim, *(1,) * (rank - axis - 1)) * 0, g.dtype)  # type: ignore[arg-type]
    return g


def repeats_along(whole: Shape, axes: Sequence[int], like: Expr) -> Expr | None:
    return count_of(Expr("const", (), like.dtype, whole, 0.0), axes) if axes else None


def _is_same_along(node: Expr, axes: Iterable[int]) -> bool:
    rank = len(node.shape.dims)
    return all(node.shape.dims[a] == 1 if -a <= rank else not node.shape.leading for a in axes)


def total_of(
    x: Expr, axes: tuple[int, ...], products: Sequence[Expr] = (), holds: frozenset[Condition] = frozenset()
) -> Expr | None:
    """The sum over axes, with all that is the same along them outside of it, so that sums wait for none; None for 0.

    `products` are values that are there already, of which sums are made where they can be (kgen.dsl.interchange); `holds` are
    conditions under which the sum is wanted.
    """

    def total(part: Expr, holds: frozenset[Condition] = holds) -> Expr | None:
        return total_of(part, axes, products, holds)

    if x.op == "neg":
        return _outside(total(x.args[0]), lambda inner: -inner)
    if x.op == "where" and _is_zero(x.args[2]) and _is_same_along(x.args[0], axes):
        inner = total(x.args[1], holds | {literal_of(x.args[0])})
        return None if inner is None else where(x.args[0], inner, 0.0)
    if x.op == "mul":
        for factor, rest in (x.args, x.args[::-1]):
            if _is_same_along(factor, axes) and not _is_same_along(rest, axes):
                return _outside(total(rest), _times(factor))
        for factor, rest in (x.args, x.args[::-1]):
            if factor.op == "neg":
                return total(-(factor.args[0] * rest))
            if factor.op == "where" and _is_zero(factor.args[2]) and _is_same_along(factor.args[0], axes):
                return total(where(factor.args[0], factor.args[1] * rest, 0.0))
    if x.op == "div" and _is_same_along(x.args[1], axes) and not _is_same_along(x.args[0], axes):
        return _outside(total(x.args[0]), lambda inner: inner / x.args[1])
    if x.op == "sub" and x.args[1].op == "mean" and x.args[1].args[0] is x.args[0] and axes_of(x.args[1]) == axes:
        return None
    if x.op in ("add", "sub") and all(_has_factor(part, axes) for part in x.args):
        left, right = (total(part) for part in x.args)
        if left is None or right is None:
            return left if right is None else right if x.op == "add" else -right
        return left + right if x.op == "add" else left - right
    found = interchanged(x, products, holds) if axes == (-1,) else None
    return found if found is not None else reduction("sum", x, axes if axes != (-1,) else -1)


def _times(factor: Expr) -> Callable[[Expr], Expr]:
    return lambda total: total * factor


def _outside(total: Expr | None, made: Callable[[Expr], Expr]) -> Expr | None:
    """What is made of a sum outside of it, under the condition that the sum has: where that fails it may be NaN."""
    if total is not None and total.op == "where" and _is_zero(total.args[2]):
        return where(total.args[0], made(total.args[1]), 0.0)
    return None if total is None else made(total)


def _is_zero(x: Expr) -> bool:
    return x.op == "const" and x.attr == 0


def _has_factor(x: Expr, axes: tuple[int, ...]) -> bool:
    """Whether something that is the same along the axes would come out of its sum."""
    if x.op in ("add", "sub"):
        return all(_has_factor(part, axes) for part in x.args)
    if x.op == "neg":
        return _has_factor(x.args[0], axes)
    factors = x.args if x.op == "mul" else x.args[1:] if x.op == "div" else ()
    return any(_is_same_along(f, axes) and not is_number(f) for f in factors) and not _is_same_along(x, axes)
