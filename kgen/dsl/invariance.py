"""Invariance: which values do not depend on a number that an expression subtracts and adds again, as softmax does its maximum.

Each value is followed as the number m grows: it stays, or it grows by a multiple of m, or by a power of e to the m. That is
enough to show it of softmax, logsumexp and what is made of them; where nothing can be shown, nothing is claimed. An infinite m
does not grow at all, so nothing has to be shown of it: a guard, where(m == -infinity, 0, m), grows as m does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Union

from kgen.dsl.expr import Expr

#: How a value moves with a number m: not at all; as m * c; by the factor exp(m * c); or not known how.
Way = Union[tuple[str, float], None]
STILL: tuple[str, float] = ("plus", 0.0)


def ways(nodes: Iterable[Expr], moved: Expr) -> dict[int, Way]:
    """How every value moves with that of one node."""
    found: dict[int, Way] = {}
    for node in nodes:
        given = [found[id(a)] for a in node.args]
        rule = WAYS_OF.get(node.op)
        if node is moved:
            found[id(node)] = ("plus", 1.0)
        elif all(way == STILL for way in given):
            found[id(node)] = STILL
        else:
            found[id(node)] = rule(node, given) if rule and None not in given else None
    return found


def _combined(sign: int, factor: bool) -> Callable[[Expr, list[Way]], Way]:
    """Of sums (and differences) where `factor` is False, else of products (and quotients)."""

    def way(node: Expr, given: list[Way]) -> Way:
        (left, a), (right, b) = (g if g is not None else STILL for g in given)
        kinds = {kind for kind, c in ((left, a), (right, b)) if c}
        if kinds == {"plus"} and not factor:
            return "plus", a + sign * b
        if kinds == {"times"} and factor:
            total = a + sign * b
            return ("times", total) if total else STILL
        return (left, a) if not factor and (left, a) == (right, b) else None

    return way


def _if(kind: str, then: str) -> Callable[[Expr, list[Way]], Way]:
    return lambda node, given: (then, given[0][1]) if given[0] is not None and given[0][0] == kind else None


def _compared(node: Expr, given: list[Way]) -> Way:
    """A sum stays as finite as it is, and a product on its side of 0."""
    for way, x in zip(given, node.args[::-1]):
        number = abs(x.attr) if x.op == "const" and way not in (None, STILL) else None
        if way is not None and number == {"plus": math.inf, "times": 0}[way[0]]:
            return STILL
    return None


def _either(node: Expr, given: list[Way]) -> Way:
    condition, a, b = given
    if condition != STILL:
        return None
    if _is_guard(node):
        return b
    zeros = [x.op == "const" and x.attr == 0 for x in node.args[1:]]
    if a == b or (zeros[0] and b is not None and b[0] == "times"):
        return b
    return a if zeros[1] and a is not None and a[0] == "times" else None


def _is_guard(node: Expr) -> bool:
    """Whether it is where(x == infinity, instead, x): x wherever that is finite."""
    condition, _, x = node.args
    bound = condition.args[1] if condition.op == "eq" and condition.args[0] is x else None
    return bound is not None and bound.op == "const" and abs(bound.attr) == math.inf


WAYS_OF: dict[str, Callable[[Expr, list[Way]], Way]] = {
    "add": _combined(1, factor=False),
    "sub": _combined(-1, factor=False),
    "mul": _combined(1, factor=True),
    "div": _combined(-1, factor=True),
    "exp": _if("plus", "times"),
    "log": _if("times", "plus"),
    "sum": _if("times", "times"),
    "where": _either,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _compared),
}
