"""Weights in the form of which an element has the fewest instructions.

A weight is written as a product: of one coefficient, made of the numbers of its row and of the launch, and of factors that
differ by element. Divisions by a row's number are part of the coefficient, and so are conditions of a row; exp(k * x - m) is
exp2(x * (k * log2(e)) - m * log2(e)), but where a mask may be added to x, as in OnlineSoftmax; a factor that is a sum with a
row's number takes the coefficient in: c * (x - d) is c * x - c * d. What then depends on a row alone is made once a row:
`numbers`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kgen.dsl.expr import Expr, apply, constant, walk, where, with_arguments
from kgen.dsl.operator import Graph
from kgen.dsl.types import f32
from kgen.ops.attention.text import is_far

_NUMBERS = frozenset({"const", "scalar", "size"})
_LOG2_E = math.log2(math.e)
#: The largest f32: what the reciprocal of a denormal is taken for, as infinity times a weight of 0 would be NaN.
_LARGEST = (2.0 - 2.0**-23) * 2.0**127


def arranged(graph: Graph, weights: Iterable[Expr]) -> tuple[Expr, ...]:
    """The weights so, with nodes that mean the same as one. Results of `graph` are no part of it."""
    form = _Form()
    whole = replace(graph, results=tuple(map(form.value, weights)))
    return whole.merged.results


def numbers(weights: Iterable[Expr]) -> list[Expr]:
    """The largest parts of arranged weights that are floats of a row alone, in the order of their first use."""
    found: dict[int, Expr] = {}
    seen = set[int]()
    stack = list(weights)[::-1]
    while stack:
        node = stack.pop()
        if id(node) in seen or node.op == "matmul":
            continue
        seen.add(id(node))
        if node.dtype.is_float and of_row(node):
            found[id(node)] = node
        else:
            stack.extend(reversed(node.args))
    return list(found.values())


def of_row(node: Expr) -> bool:
    """Whether a node has one value for all of a row of weights, made of an input."""
    return node.shape.dims[-1:] == (1,) and any(n.op == "input" for n in walk((node,))) and not has_product(node)


def has_product(node: Expr) -> bool:
    return any(n.op == "matmul" for n in walk((node,)))


def of_launch(node: Expr) -> bool:
    """Whether a node has one value for the whole launch."""
    return not node.shape.dims and all(n.op != "input" and n.op != "arange" for n in walk((node,)))


def _is_outside(node: Expr) -> bool:
    """Whether a coefficient may have it: it does not differ among the elements of a row."""
    return of_launch(node) or of_row(node)


@dataclass(frozen=True)
class _Product:
    """number * inverse * of_row * elements[0] * elements[1] ..., where None is 1. `number` is one of the launch, `inverse` the
    reciprocal of what is divided by. What is of no element is 0 where a condition fails.
    """

    number: Expr | None = None
    inverse: Expr | None = None
    of_row: Expr | None = None
    conditions: tuple[Expr, ...] = ()
    elements: tuple[Expr, ...] = ()

    @property
    def coefficient(self) -> Expr | None:
        """What is of no element; finite in place of the reciprocal of a denormal, whatever number it is multiplied by."""
        scaled = _times(self.inverse, self.number)
        if scaled is not None and self.inverse is not None:
            scaled = _finite(scaled)
        return _times(scaled, self.of_row)

    def times(self, other: _Product) -> _Product:
        return _Product(
            _times(self.number, other.number),
            _times(self.inverse, other.inverse),
            _times(self.of_row, other.of_row),
            self.conditions + other.conditions,
            self.elements + other.elements,
        )

    def guarded(self, factor: Expr) -> Expr:
        """A row's number where all conditions hold, and 0 elsewhere, whatever it is there."""
        for condition in reversed(self.conditions):
            factor = where(condition, factor, 0.0)
        return factor


def _times(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else a * b


class _Form:
    """Writes nodes so, each once."""

    def __init__(self) -> None:
        self._values: dict[int, Expr] = {}

    def value(self, node: Expr) -> Expr:
        """A node's value in this form."""
        if id(node) not in self._values:
            self._values[id(node)] = self._made(node)
        return self._values[id(node)]

    def _made(self, node: Expr) -> Expr:
        if not node.args or node.op == "matmul" or _is_outside(node):
            return node
        product = self._product(node)
        if product.coefficient is None and not product.conditions:
            if len(product.elements) == 1:
                return product.elements[0]
            return functools.reduce(lambda a, b: a * b, product.elements)
        coefficient = constant(1.0) if product.coefficient is None else product.coefficient
        first, rest = self._taken_in(product, coefficient)
        return functools.reduce(lambda a, b: a * b, rest, first)

    def _taken_in(self, product: _Product, coefficient: Expr) -> tuple[Expr, list[Expr]]:
        """The coefficient times one of the elements, a sum with a row's number where there is one, and the others."""
        elements = list(product.elements)
        guarded = product.guarded(coefficient)
        for element in elements:
            terms = _terms(element)
            rows = [x for x in terms if _is_outside(x[0])]
            if rows and len(rows) < len(terms) and any(of_row(x) for x, _ in rows):
                rest = [x for x in terms if not _is_outside(x[0])]
                shift = product.guarded(coefficient * _sum(rows))
                return guarded * _sum(rest) + shift, [x for x in elements if x is not element]
        return guarded, elements

    def _product(self, node: Expr) -> _Product:
        """A node as a product."""
        if _is_outside(node):
            return _Product(number=node) if of_launch(node) else _Product(of_row=node)
        if node.op == "mul":
            return self._product(node.args[0]).times(self._product(node.args[1]))
        if node.op == "neg":
            return _Product(number=constant(-1.0)).times(self._product(node.args[0]))
        if node.op == "div" and _is_outside(node.args[1]):
            return _Product(inverse=apply("reciprocal", node.args[1])).times(self._product(node.args[0]))
        if node.op == "where" and of_row(node.args[0]):
            condition, a, b = node.args
            if _is_zero(b):
                return _Product(conditions=(condition,)).times(self._product(a))
            if _is_zero(a):
                return _Product(conditions=(apply("not", condition),)).times(self._product(b))
        if node.op == "exp":
            return _Product(elements=(self._power(node.args[0]),))
        return _Product(elements=(with_arguments(node, tuple(map(self.value, node.args))),))

    def _power(self, exponent: Expr) -> Expr:
        """e to an element, as a power of 2."""
        rows = [x for x in _terms(exponent) if of_row(x[0])]
        rest = [x for x in _terms(exponent) if not of_row(x[0])]
        if len(rest) == 1 and rest[0][1]:
            product = self._product(rest[0][0])
            if not product.conditions and product.coefficient is not None:
                inside = functools.reduce(lambda a, b: a * b, product.elements)
                scaled = inside * (product.coefficient * _LOG2_E)
                return apply("exp2", scaled - _in_base_2(rows) if rows else scaled)
        if rows and is_far(node for x, _ in rest for node in _beside_products(x)):
            return apply("exp2", (self.value(_sum(rest)) + _sum(rows)) * _LOG2_E)
        scaled = self.value(_sum(rest)) * _LOG2_E
        return apply("exp2", scaled - _in_base_2(rows) if rows else scaled)


def _in_base_2(rows: list[tuple[Expr, bool]]) -> Expr:
    """What a row takes off its exponents, infinite only where it is: else -infinity, a masked score, would be NaN less that."""
    origin = _sum([(x, not plus) for x, plus in rows])
    return where(abs(origin) == math.inf, origin, _finite(origin * _LOG2_E))


def _finite(x: Expr) -> Expr:
    return apply("maximum", apply("minimum", x, _LARGEST), -_LARGEST)


def _beside_products(node: Expr) -> Iterator[Expr]:
    """The nodes that one is made of, without products and what they are made of."""
    if node.op != "matmul":
        yield node
        for x in node.args:
            yield from _beside_products(x)


def _terms(node: Expr) -> list[tuple[Expr, bool]]:
    """The terms of a sum, and whether each is added."""
    if node.dtype is f32 and node.op in ("add", "sub"):
        a, b = node.args
        return _terms(a) + [(x, plus == (node.op == "add")) for x, plus in _terms(b)]
    if node.dtype is f32 and node.op == "neg":
        return [(x, not plus) for x, plus in _terms(node.args[0])]
    return [(node, True)]


def _sum(terms: list[tuple[Expr, bool]]) -> Expr:
    """The sum of terms, one that is added first where there is one."""
    (first, plus), *rest = sorted(terms, key=lambda term: not term[1])
    return functools.reduce(lambda a, b: a + b[0] if b[1] else a - b[0], rest, first if plus else -first)


def _is_zero(node: Expr) -> bool:
    return node.op == "const" and bool(node.attr == 0)
