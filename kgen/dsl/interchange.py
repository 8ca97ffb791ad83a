"""Interchange of sums: a sum over what a product summed over is one over the product's own result, which is there already.

The sum over j of w(i, j) * (sum over e of g(i, e) * v(j, e)) is the sum over e of g(i, e) * (sum over j of w(i, j) * v(j, e)). So
a row of M x N products comes out of one of M x E: of attention it is what Dao et al. ("FlashAttention", 2022) call D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kgen.dsl.expr import Expr, reduction

#: A condition by its node, and whether it holds there.
Condition = tuple[int, bool]


def literal_of(condition: Expr, holds: bool = True) -> Condition:
    """A condition without what negates it."""
    while condition.op == "not":
        condition, holds = condition.args[0], not holds
    return id(condition), holds


def interchanged(terms: Expr, products: Sequence[Expr], holds: frozenset[Condition]) -> Expr | None:
    """The sum over the last axis of terms w * (g @ v.T), by a product w @ v that is there; None where none is.

    That product may round w. Both may be 0 without some conditions: the same ones, but for those of `holds`, without which the
    sum is not wanted.
    """
    whole = _quotient(terms)
    for inner in whole.above:
        if inner.op != "matmul" or inner.args[1].op != "transpose":
            continue
        above, below = [id(x) for x in whole.above if x is not inner], [id(x) for x in whole.below]
        for product in products:
            if product.op == "matmul" and product.args[1] is inner.args[1].args[0]:
                weight = _quotient(_unrounded(product.args[0]))
                same = weight.given - holds == whole.given - holds
                if same and [sorted(map(id, part)) for part in weight[:2]] == [sorted(above), sorted(below)]:
                    return reduction("sum", inner.args[0] * product, -1)
    return None


def _unrounded(node: Expr) -> Expr:
    while node.op == "cast":
        node = node.args[0]
    return node


class _Quotient(NamedTuple):
    """The factors of a product, those of what it is divided by, and the conditions without which it is 0."""

    above: list[Expr]
    below: list[Expr]
    given: frozenset[Condition]


def _quotient(x: Expr) -> _Quotient:
    zeros = [a.op == "const" and a.attr == 0 for a in x.args[1:]] if x.op == "where" else []
    if any(zeros):
        inner = _quotient(x.args[1] if zeros[1] else x.args[2])
        return inner._replace(given=inner.given | _literals(x.args[0], zeros[1]))
    if x.op not in ("mul", "div"):
        return _Quotient([x], [], frozenset())
    left, right = map(_quotient, x.args)
    if x.op == "mul":
        return _Quotient([*left.above, *right.above], [*left.below, *right.below], left.given | right.given)
    if right.given:  # what is divided by 0 is not 0
        return _Quotient(left.above, [*left.below, x.args[1]], left.given)
    return _Quotient([*left.above, *right.below], [*left.below, *right.above], left.given)


def _literals(condition: Expr, holds: bool) -> frozenset[Condition]:
    """The conditions that hold, or do not, wherever this one `holds`, or does not."""
    while condition.op == "not":
        condition, holds = condition.args[0], not holds
    if condition.op == ("and" if holds else "or"):
        return _literals(condition.args[0], holds) | _literals(condition.args[1], holds)
    return frozenset({literal_of(condition, holds)})
