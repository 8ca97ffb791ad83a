"""What a graph of two products computes by way of attention, found by algebra: no op is looked for by the name softmax.

A graph is attention where every element of its result is a sum over j of weight(i, j) * v[j, :], and weight is a pointwise
function of one score s = (q @ k.T)[i, j], of where it stands, and of reductions of row i: its largest score m and the sum l of
exponentials exp(s - m). What makes it possible block by block is that exp(s - m) = exp(s - n) * exp(n - m): what was summed up
under another maximum n is only to be multiplied. So of a weight the factors that no j has (such as 1 / l) are left to the end,
and what remains must be exp(s - m), which the sum l has too (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018; Dao et al., "FlashAttention", 2022). A row may have another origin n in place of m, such as the larger of m and
a sink's logit: exp(s - n) is exp(s - m) * exp(m - n), whose second factor is left to the end with the others. Weights may be
dropped by random numbers after the sum l has had their exponentials.

In general what was summed up under h(m) is multiplied by h(n) / h(m). Where no row is reduced, as in sigmoid attention
(Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", 2024), h is 1: a weight without a normaliser
is any pointwise function of the score and of where it stands, and nothing is kept of a row beside its sums of values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, Shape, apply, constant, walk, where, with_arguments
from kgen.dsl.operator import Graph
from kgen.dsl.ops import POINTWISE, PRODUCTS, REDUCTIONS
from kgen.dsl.partition import rewritten
from kgen.dsl.ranges import never_negative, within
from kgen.dsl.types import DType, f16, f32
from kgen.ops.attention.masks import bounds

_NUMBERS = frozenset({"const", "scalar", "size"})
#: What a score may be computed of beside the product: numbers, where it stands, and other inputs there.
_BESIDE = _NUMBERS | {"arange", "input"}


class Softmax(NamedTuple):
    """What kernels keep of a row to normalise by: `maximum` is the node of m, and `total` the one that stands for l.

    Where weights are rounded to 8 bits, exponentials are taken below `origin`, which an attention's `rows` may name too, in place
    of m: of powers of two rounding is the same under any maximum so far. They are 2 to the `raised` times as large then.
    """

    maximum: Expr
    total: Expr
    origin: Expr
    raised: int


@dataclass(frozen=True)
class Attention:
    """`result[i, :] = row(m, l) * sum over j of exp(s - m) * v[j, :]`, all of it in the graph's own nodes.

    s is `scale * score`, where `score` is pointwise over `product`, and `scale` a positive number or None for 1. `softmax` has m
    and l; without it the sum is of score * v[j, :]. `rows` are expressions of m and l, of numbers and of inputs that have one
    value a row: the first is the factor above, the others are the graph's further outputs. `context` is the second
    product, whose result the graph's first output is. v is 0 in rows where one of `kept`, which bound them from above, does not
    hold. Where there are `ids`, one for each column, keys and values are those rows of k and v, and 0 where there is no such row.
    Where `dropped`, `random < p`, there is no weight in the sum of the result, as there is in l. Where `transposed`, v is [E, N].
    """

    graph: Graph
    q: str
    k: str
    v: str
    dtype: DType
    product: Expr
    score: Expr
    scale: Expr | None
    softmax: Softmax | None
    rows: tuple[Expr, ...]
    context: Expr
    kept: tuple[Expr, ...]
    ids: Expr | None
    dropped: Expr | None
    transposed: bool

    @property
    def hidden(self) -> float:
        """What a mask makes of a score."""
        return 0.0 if self.softmax is None else -math.inf

    @property
    def of_row(self) -> tuple[Expr, ...]:
        """The nodes that kernels have once a row is summed up."""
        return () if self.softmax is None else self.softmax[:3]

    @property
    def sums(self) -> tuple[DType, DType]:
        """What scores and results are summed in: f32, or f16 where the definition says so."""
        return self.product.attr, self.context.attr


@functools.lru_cache(maxsize=1024)
def attention(graph: Graph) -> Attention | None:
    """The graph as attention, or None where it is anything else."""
    graph = graph.merged
    products = [n for n in graph.nodes if n.op in PRODUCTS]
    if len(products) != 2 or any(n.op != "matmul" for n in products):
        return None
    product, context = products
    query, columns, weights = product.args[0], product.args[1], context.args[0]
    if columns.op != "transpose":
        return None
    key, ids = _taken(columns.args[0])
    transposed = context.args[1].op == "transpose"
    kept_values, kept = _kept(context.args[1].args[0] if transposed else context.args[1])
    value, value_ids = _taken(kept_values)
    if any(x.op != "input" or x.dtype != value.dtype for x in (query, key, value)):
        return None
    if any(n.attr is not f32 and (n.attr is not f16 or value.dtype is not f16) for n in products):
        return None
    if ids is not value_ids or (ids is not None and key.shape.dims[0] != value.shape.dims[0]):
        return None
    # Of 8 bits tensor cores take columns of values, as they lie there.
    if transposed != (value.dtype.bits == 8) or (transposed and (kept or ids is not None)):
        return None
    if weights.op != "cast" or all(n is not product for n in walk((weights,))):
        return None
    rows = _Rows(product)
    reductions = [n for n in graph.nodes if n.op in REDUCTIONS]
    if reductions:
        found = _normalised(rows, weights, reductions)
    else:
        # Sums of f16 are kept in range by the sum that weights are divided by.
        attends = context.attr is f32 and (ids is not None or are_of_heads([key.shape, value.shape], [weights]))
        found = _unnormalised(rows, weights) if attends else None
    after = rows.multiple(_unrounded(graph.results[0]), lambda node: node is context)
    if found is None or after is None or after.dropped is not None or not all(map(rows.is_row, graph.results[1:])):
        return None
    positive = {s.name for s in graph.scalars if s.low >= 0}
    score, scale = (found.score, None) if found.softmax is None else _scaled(found.score, positive)
    factors = [x.factor for x in (found.taken, after) if x.factor is not None]
    of_rows = (functools.reduce(lambda a, b: a * b, factors) if factors else constant(1.0), *graph.results[1:])
    if found.softmax is not None and found.origin is not None:
        of_rows = _moved(of_rows, found.softmax, found.origin)
    return Attention(
        graph, query.attr, key.attr, value.attr, value.dtype, product, score, scale, found.softmax, of_rows, context, kept, ids,
        found.taken.dropped, transposed,
    )  # fmt: skip


class _Weights(NamedTuple):
    """What weights are made of: `taken` has their factor and what drops them; exponentials are defined to be below `origin`."""

    score: Expr
    taken: _Multiple
    softmax: Softmax | None = None
    origin: Expr | None = None


def _normalised(rows: _Rows, weights: Expr, reductions: list[Expr]) -> _Weights | None:
    """Weights that are exponentials below their row's maximum, of which the row's sum is known too."""
    lifted, raised = _raised(weights)
    taken = rows.multiple(lifted, lambda node: node.op == "exp")
    totals = [n for n in reductions if n.op == "sum"]
    if taken is None or len(totals) != 1 or not rows.is_row(totals[0]):
        return None
    exponent, summed = rows.exponent(taken.node, raised > 0), totals[0].args[0]
    if exponent is None or summed is not taken.node:
        return None
    score, maximum, origin = exponent
    if maximum.args[0] is not score or not _pointwise(score, rows.product):
        return None
    if {id(n) for n in reductions} != {id(maximum), id(totals[0])}:
        return None
    own = Expr("origin", (), maximum.dtype, maximum.shape) if raised else maximum
    return _Weights(score, taken, Softmax(maximum, totals[0], own, raised), origin)


def _unnormalised(rows: _Rows, weights: Expr) -> _Weights | None:
    """Weights that are pointwise. A multiple of all scores is none: that is a chain of products, and sooner made of those of keys
    and values.
    """
    taken = rows.multiple(weights.args[0], lambda node: _pointwise(node, rows.product))
    if taken is None:
        return None
    weight = _mask_outside(taken.node)
    bare, conditions = mask(weight, 0.0)
    while bare.op in ("mul", "div") and any(map(is_number, bare.args)):
        bare = bare.args[0] if is_number(bare.args[1]) else bare.args[1]
    return None if bare is rows.product and not conditions else _Weights(weight, taken)


def _mask_outside(weight: Expr) -> Expr:
    """A weight with the mask outside of what makes 0 of a score of -infinity."""
    if weight.op in ("exp", "exp2", "sigmoid") and _masked(weight.args[0], -math.inf):
        condition, score, _ = weight.args[0].args
        return where(condition, _mask_outside(apply(weight.op, score)), 0.0)
    return weight


def are_of_heads(matrices: Iterable[Shape], weights: Iterable[Expr]) -> bool:
    """Whether keys and values are those of heads: there is one for each, or weights know where they stand. What all rows share
    else are a layer's weights, and as wide.
    """
    return all(m.leading or len(m.dims) > 2 for m in matrices) or any(n.op == "arange" for n in walk(tuple(weights)))


def _moved(rows: tuple[Expr, ...], softmax: Softmax, origin: Expr) -> tuple[Expr, ...]:
    """A row's factor and its results, where sums of exponentials are taken below softmax.origin instead of below `origin`."""
    if origin is softmax.origin:
        return rows
    factor, total = F.exp(softmax.origin - origin), softmax.total

    def rule(node: Expr, arguments: tuple[Expr, ...]) -> Expr:
        return total * factor if node is total else with_arguments(node, arguments)

    first, *others = rewritten(rows, rule)
    return factor * first, *others


def _taken(matrix: Expr) -> tuple[Expr, Expr | None]:
    """The input whose rows a matrix has, and their ids; None where it is the input itself.

    Ids are pointwise over inputs, numbers and places, and what is taken of inputs at places that surely are there.
    """
    if matrix.op != "take" or matrix.args[0].op != "input" or len(matrix.args[0].shape.dims) != 2 or matrix.attr != -2:
        return matrix, None
    stack = [matrix.args[1]]
    while stack:
        node = stack.pop()
        if (
            node.op == "take"
            and node.args[0].op == "input"
            and within(node.args[1], node.args[0].shape.dims[node.attr])
        ):
            continue
        if node.op not in POINTWISE | _BESIDE:
            return matrix, None
        stack.extend(node.args)
    return matrix.args[0], matrix.args[1]


def _kept(value: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """The values of where(condition, values, 0), and the conditions, where these bound the rows of values from above alone."""
    inner = value.args[0] if value.op == "cast" else value
    if (
        inner.op == "where"
        and inner.args[2].op == "const"
        and inner.args[2].attr == 0
        and inner.args[1].dtype is value.dtype
    ):
        conditions = _conjuncts(inner.args[0])
        place = next((n for n in walk(tuple(conditions)) if n.op == "arange"), None)
        limits = bounds(conditions, None, place)
        if place is not None and place.shape.dims[1:] == (1,) and limits.plain and limits.upper and not limits.lower:
            return inner.args[1], tuple(conditions)
    return value, ()


def _unrounded(node: Expr) -> Expr:
    while node.op == "cast":
        node = node.args[0]
    return node


def _raised(weights: Expr) -> tuple[Expr, int]:
    """What is rounded, without a constant power of two, and its logarithm: numbers of 8 bits are coarse below it."""
    inner = weights.args[0]
    if weights.dtype.bits == 8 and inner.op == "mul":
        for a, b in (inner.args, inner.args[::-1]):
            if b.op == "const" and b.attr > 0 and math.frexp(b.attr)[0] == 0.5:
                return a, math.frexp(b.attr)[1] - 1
    return inner, 0


class _Multiple(NamedTuple):
    """A node times a factor, which is one for all of a row, None for 1; 0 where it is `dropped`."""

    node: Expr
    factor: Expr | None = None
    dropped: Expr | None = None

    def times(self, factor: Expr) -> _Multiple:
        return self._replace(factor=factor if self.factor is None else self.factor * factor)


class _Rows:
    """Looks at the nodes between the products: which have a value for each (i, j), and which one for each row i."""

    def __init__(self, product: Expr) -> None:
        self.product = product

    def is_row(self, node: Expr) -> bool:
        """Whether it has one value a row, of reductions of rows, of numbers, and of what is beside them."""
        plain = node.shape.dims[-1:] == (1,) and all(self._is_plain(n) for n in walk((node,)))
        stack = [node]
        while plain and stack:
            n = stack.pop()
            if n.op not in REDUCTIONS:
                plain = n.op in POINTWISE or n.op in _BESIDE
                stack.extend(n.args)
        return plain

    def _is_plain(self, node: Expr) -> bool:
        allowed = POINTWISE | _BESIDE | {"transpose", "take", "random"}
        return node is self.product or node.op in allowed or (node.op in REDUCTIONS and node.attr == -1)

    def multiple(self, node: Expr, is_known: Callable[[Expr], bool]) -> _Multiple | None:
        """The node that another one is a multiple of."""
        if is_known(node):
            return _Multiple(node)
        if node.op == "div" and self._is_factor(node.args[1]):
            found = self.multiple(node.args[0], is_known)
            return found and found.times(apply("div", 1.0, node.args[1]))
        if node.op == "mul":
            for a, b in (node.args, node.args[::-1]):
                if self._is_factor(b):
                    found = self.multiple(a, is_known)
                    return found and found.times(b)
        if node.op != "where":
            return None
        condition, *cases = node.args
        at = next((at for at, case in enumerate(cases) if case.op == "const" and case.attr == 0), None)
        found = None if at is None else self.multiple(cases[1 - at], is_known)
        if found is None:
            return None
        if self.is_row(condition):
            factor = constant(1.0) if found.factor is None else found.factor
            return found._replace(factor=where(condition, *((0.0, factor) if at == 0 else (factor, 0.0))))
        if at == 0 and found.dropped is None and is_dropout(condition) and condition.shape == self.product.shape:
            return found._replace(dropped=condition)
        return None

    def _is_factor(self, node: Expr) -> bool:
        return self.is_row(node) or (not node.shape.dims and is_number(node))

    def exponent(self, node: Expr, guarded: bool) -> tuple[Expr, Expr, Expr] | None:
        """The score, its maximum m, and the origin n of exp(score - n): m, which may be 0 for rows of -infinity alone, or
        another number of the row, as which m counts too where it is `guarded`.
        """
        difference = node.args[0]
        if difference.op != "sub":
            return None
        score, origin = difference.args
        tops = [n for n in walk((origin,)) if n.op in REDUCTIONS]
        if len(tops) != 1 or tops[0].op != "amax" or not self.is_row(origin):
            return None
        is_top = origin is tops[0] or (origin.op == "where" and origin.args[2] is tops[0] and _guards(*origin.args))
        return score, tops[0], tops[0] if is_top and not guarded else origin


def _guards(condition: Expr, instead: Expr, value: Expr) -> bool:
    """Whether where(condition, instead, value) is value, but 0 where that is -infinity."""
    zero = instead.op == "const" and instead.attr == 0
    bound = condition.args[1] if condition.op == "eq" and condition.args[0] is value else None
    return zero and bound is not None and bound.op == "const" and bound.attr == -math.inf


def is_dropout(condition: Expr) -> bool:
    """Whether it is that random numbers are below a number of the launch."""
    return condition.op == "lt" and condition.args[0].op == "random" and is_number(condition.args[1])


def _pointwise(score: Expr, product: Expr) -> bool:
    """Whether a score is pointwise over the product, numbers, places and inputs."""
    stack = [score]
    while stack:
        node = stack.pop()
        if node is product or node.op in _BESIDE:
            continue
        if node.op not in POINTWISE:
            return False
        stack.extend(node.args)
    return True


def _scaled(score: Expr, positive: set[str]) -> tuple[Expr, Expr | None]:
    """A score without its positive factor, and that. `positive` are the scalars that are never below 0."""

    def is_positive(node: Expr) -> bool:
        return is_number(node) and (node.attr in positive if node.op == "scalar" else never_negative(node))

    return factored(score, is_positive)


def factored(score: Expr, is_factor: Callable[[Expr], bool]) -> tuple[Expr, Expr | None]:
    """A score without the factor for which that holds, and that; masks with -infinity are of the one as of the other."""
    if score.op == "mul":
        for a, b in (score.args, score.args[::-1]):
            if is_factor(b):
                return a, b
    if _masked(score, -math.inf):
        condition, value, other = score.args
        inner, factor = factored(value, is_factor)
        return (score, None) if factor is None else (where(condition, inner, other), factor)
    return score, None


def _masked(node: Expr, hidden: float) -> bool:
    return node.op == "where" and node.args[2].op == "const" and bool(node.args[2].attr == hidden)


def is_number(node: Expr) -> bool:
    """Whether a node has one value for the whole launch."""
    return all(n.op in ("const", "scalar", "size") or n.op in POINTWISE for n in walk((node,)))


def is_of_head(node: Expr) -> bool:
    """Whether a node has one value for all scores of a head, and is computed of inputs."""
    inputs = [n for n in walk((node,)) if n.op == "input"]
    known = all(n.op in _NUMBERS or n.op == "input" or n.op in POINTWISE for n in walk((node,)))
    return known and bool(inputs) and all(n.shape.dims[-2:] == (1, 1) for n in inputs)


def mask(score: Expr, hidden: float = -math.inf) -> tuple[Expr, list[Expr]]:
    """A score without its masks, and their conditions: where one does not hold, it is `hidden`."""
    conditions: list[Expr] = []
    while _masked(score, hidden):
        conditions += _conjuncts(score.args[0])
        score = score.args[1]
    return score, conditions


def _conjuncts(condition: Expr) -> list[Expr]:
    """The conditions all of which must hold."""
    stack, found = [condition], list[Expr]()
    while stack:
        node = stack.pop()
        if node.op == "and":
            stack.extend(node.args)
        else:
            found.append(node)
    return found
