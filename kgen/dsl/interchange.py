"""Interchange of sums: a sum over what a product summed over is one over the product's own result, which is there already.

The sum over j of w(i, j) * (sum over e of g(i, e) * v(j, e)) is the sum over e of g(i, e) * (sum over j of w(i, j) * v(j, e)). So
a row of M x N products comes out of one of M x E: of attention it is what Dao et al. ("FlashAttention", 2022) call D.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    That product may round w, and be of w only where conditions of `holds` do.
    """
    above, below = _quotient(terms)
    for inner in above:
        if inner.op != "matmul" or inner.args[1].op != "transpose":
            continue
        rest = [id(x) for x in above if x is not inner], [id(x) for x in below]
        for product in products:
            if product.op == "matmul" and product.args[1] is inner.args[1].args[0]:
                weight, given = _weight(product.args[0])
                if given <= holds and [sorted(map(id, part)) for part in _quotient(weight)] == [*map(sorted, rest)]:
                    return reduction("sum", inner.args[0] * product, -1)
    return None


def _weight(node: Expr) -> tuple[Expr, frozenset[Condition]]:
    """A weight without its rounding, and the conditions without which it is 0."""
    given = set[Condition]()
    while True:
        if node.op == "cast":
            node = node.args[0]
            continue
        zeros = [x.op == "const" and x.attr == 0 for x in node.args[1:]] if node.op == "where" else []
        if not any(zeros):
            return node, frozenset(given)
        given.add(literal_of(node.args[0], zeros[1]))
        node = node.args[1] if zeros[1] else node.args[2]


def _quotient(x: Expr) -> tuple[list[Expr], list[Expr]]:
    """The factors of a product, and of what it is divided by."""
    if x.op not in ("mul", "div"):
        return [x], []
    (above, below), (more, less) = map(_quotient, x.args)
    return ([*above, *more], [*below, *less]) if x.op == "mul" else ([*above, *less], [*below, *more])
