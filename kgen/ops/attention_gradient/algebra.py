"""Products by weights that are made of other products, in the graph's own nodes: what the gradients of attention are.

A result is `weights @ c` or `weights.T @ c`, times a number: weights are pointwise over one or two inner products such as q @ k.T
and grad @ v.T, over where they stand, and over other inputs there, such as one number a row. An exponential of a score less a
number of its row in each tells these graphs from others of several products; without it, as of sigmoid attention, all matrices
are those of heads. Seen from the side of a result's rows, every inner product is `r @ c.T` of rows r that stay and columns c
that pass; of the transposed weights these sides are changed over. Where sums may be made in any order (`Graph.unordered`),
results of both sides are one graph: tiles of the columns of weights stay, and what each of them adds to the rows' result is
added up in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from kgen.dsl.expr import Expr, Shape, walk, with_arguments
from kgen.dsl.operator import Graph
from kgen.dsl.ops import POINTWISE
from kgen.dsl.partition import rewritten
from kgen.dsl.product import factors
from kgen.dsl.types import DType, bf16, f16
from kgen.ops.attention.algebra import are_of_heads, is_dropout
from kgen.ops.attention_gradient.weights import has_product, of_row

_NUMBERS = frozenset({"const", "scalar", "size"})
_LEAVES = _NUMBERS | {"arange", "input", "random"}


@dataclass(frozen=True)
class Inner:
    """An inner product, `row @ column.T` of these inputs."""

    product: Expr
    row: str
    column: str


@dataclass(frozen=True)
class Outer:
    """A result: weights, rounded, times the input `column`, times `factor`, or None for 1."""

    weight: Expr
    column: str
    factor: Expr | None


@dataclass(frozen=True)
class Gradient:
    """`outers` are the graph's results, in order. `transposed`: the rows of the results are the columns of the weights. `summed`:
    results are sums over the last axis of heads, as of queries that share keys. `dropped` is where weights have been dropped,
    a condition on random numbers, None where none are. `across`, where there is one, is the result of the other side, number
    `across_place` of the graph's: its weights are those of one of `outers`.
    """

    graph: Graph
    dtype: DType
    transposed: bool
    summed: bool
    inners: tuple[Inner, ...]
    outers: tuple[Outer, ...]
    dropped: Expr | None
    across: Outer | None = None
    across_place: int = -1

    @property
    def places(self) -> tuple[int, ...]:
        """Which of the graph's results each of `outers` is."""
        return tuple(i for i in range(len(self.graph.results)) if i != self.across_place)

    @property
    def rows(self) -> tuple[str, ...]:
        """The inputs of which a block has a tile of rows."""
        return tuple(dict.fromkeys(inner.row for inner in self.inners))

    @property
    def columns(self) -> tuple[str, ...]:
        """The inputs of which a block goes over all rows."""
        return tuple(dict.fromkeys([*(i.column for i in self.inners), *(o.column for o in self.outers)]))


@functools.lru_cache(maxsize=1024)
def gradient(graph: Graph) -> Gradient | None:
    """The graph so, or None where it is anything else."""
    graph = graph.merged
    found = [_outer(result) for result in graph.results]
    results = [one for one in found if one is not None]
    if len(results) < len(found):
        return None
    across, across_place = None, -1
    straight = [i for i, (_, transposed, _) in enumerate(results) if not transposed]
    if graph.unordered and len(straight) == 1 < len(results):
        (across_place,) = straight
        across, _, summed = results.pop(across_place)
        if summed or all(across.weight is not outer.weight for outer, _, _ in results):
            return None
    if not 1 <= len(results) <= 2 or len({one[1:] for one in results}) > 1:
        return None
    (_, transposed, summed), outers = results[0], tuple(outer for outer, _, _ in results)
    weights = tuple(outer.weight for outer in outers)
    products = [n for n in walk(weights) if n.op == "matmul"]
    inners = [inner for inner in (_inner(product, transposed) for product in products) if inner is not None]
    if not 1 <= len(inners) <= 2 or len(inners) < len(products) or not all(_is_pointwise(w, products) for w in weights):
        return None
    dropped = [n for n in walk(weights) if any(x.op == "random" for x in n.args)]
    if len(dropped) > 1 or not all(is_dropout(n) and n.shape == products[0].shape for n in dropped):
        return None
    dtypes = {spec.name: spec.dtype for spec in graph.inputs}
    condition = dropped[0] if dropped else None
    made = Gradient(
        graph, dtypes[inners[0].row], transposed, summed, tuple(inners), outers, condition, across, across_place
    )
    if across is not None and (dropped or across.column not in made.rows):
        return None
    if {dtypes[name] for name in (*made.rows, *made.columns)} not in ({f16}, {bf16}) or len(made.columns) > 2:
        return None
    if not all(map(_has_exponential, weights)):  # of a single product by rows these are attention itself
        own = [spec.shape for spec in graph.inputs if spec.name in (*made.rows, *made.columns)]
        if not are_of_heads(own, weights) or not (transposed or len(inners) == 2):
            return None
    return made if _is_whole(made) else None


def _is_whole(made: Gradient) -> bool:
    """Whether all results have the heads that the weights have, or 1 of the axis of them that is summed over."""
    results, outputs = made.graph.results, made.graph.outputs
    for outer, place in zip((*made.outers, made.across), (*made.places, made.across_place)):
        if outer is None:
            continue
        (*heads, rows, columns), node, spec = outer.weight.shape.dims, results[place], outputs[place]
        if made.summed and outer is not made.across:
            heads[-1:] = [1]
        whole = (*heads, columns if made.transposed and outer is not made.across else rows, node.shape.dims[-1])
        if spec.shape != node.shape or node.shape != Shape(whole, outer.weight.shape.leading):
            return False
    return True


def _outer(node: Expr) -> tuple[Outer, bool, bool] | None:
    """A result, whether its weights are transposed, and whether it is a sum over the last axis of heads."""
    node = node.args[0] if node.op == "cast" else node
    factor, summed = None, False
    while node.op in ("mul", "sum"):
        numbers = [_is_number(x) for x in node.args]
        if node.op == "mul" and any(numbers):
            number = node.args[numbers.index(True)]
            factor = number if factor is None else number * factor
        elif node.op == "sum" and node.attr == (-3,) and not summed:
            summed = True
        else:
            return None
        node = node.args[numbers.index(False)]
    if node.op != "matmul":
        return None
    weight, column = node.args
    transposed = weight.op == "transpose"
    weight = weight.args[0] if transposed else weight
    if column.op != "input" or weight.op != "cast" or weight.dtype is not column.dtype:
        return None
    return Outer(weight.args[0], column.attr, factor), transposed, summed


def _inner(product: Expr, transposed: bool) -> Inner | None:
    found = factors(product)
    if not found or any(f.scale for f in found) or found[0].transposed or not found[1].transposed:
        return None
    row, column = found[::-1] if transposed else found
    return Inner(product, row.name, column.name)


def _is_number(node: Expr) -> bool:
    """Whether a node has one value for the whole launch."""
    return all(n.op in _NUMBERS or n.op in POINTWISE for n in walk((node,)))


def _is_pointwise(weight: Expr, products: list[Expr]) -> bool:
    """Whether a weight is pointwise over the products."""
    inside = {id(n) for product in products for n in walk((product,))}
    return all(n.op in POINTWISE or n.op in _LEAVES or id(n) in inside for n in walk((weight,)))


def _has_exponential(weight: Expr) -> bool:
    """Whether a weight has an exponential of a score less a number of its row."""
    return any(
        n.op == "exp" and n.args[0].op == "sub" and of_row(n.args[0].args[1]) and has_product(n.args[0].args[0])
        for n in walk((weight,))
    )


# Where weights are 0.


def conditions(made: Gradient) -> list[Expr]:
    """The conditions without which all weights are 0, but for those of a row alone."""
    first, *others = (_needed(outer.weight) for outer in made.outers)
    shared = [condition for i, condition in first.items() if all(i in other for other in others)]
    return [condition for condition in shared if condition.shape.dims[-1:] != (1,)]


def _needed(weight: Expr) -> dict[int, Expr]:
    """The conditions without which a weight is 0, by node."""
    if weight.op == "where":
        condition, a, b = weight.args
        if _is_const(b, 0):
            return _conjuncts(condition) | _needed(a)
        return _needed(b) if _is_const(a, 0) else {}
    if weight.op == "mul":
        return _needed(weight.args[0]) | _needed(weight.args[1])
    if weight.op in ("div", "neg", "cast"):
        return _needed(weight.args[0])
    return _seen(weight.args[0]) if weight.op == "exp" else {}


def _seen(score: Expr) -> dict[int, Expr]:
    """The conditions without which a score is -infinity, by node."""
    if score.op == "where" and _is_const(score.args[2], -math.inf):
        return _conjuncts(score.args[0]) | _seen(score.args[1])
    if score.op == "sub" and not has_product(score.args[1]):
        return _seen(score.args[0])
    if score.op == "add":
        return _seen(score.args[0]) | _seen(score.args[1])
    return {}


def _is_const(node: Expr, value: float) -> bool:
    return node.op == "const" and bool(node.attr == value)


def _conjuncts(condition: Expr) -> dict[int, Expr]:
    if condition.op == "and":
        return _conjuncts(condition.args[0]) | _conjuncts(condition.args[1])
    return {id(condition): condition}


def unmasked(roots: Iterable[Expr], held: Iterable[Expr]) -> list[Expr]:
    """The expressions where these conditions hold."""
    true = {id(condition) for condition in held}

    def rule(node: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if node.op == "where" and all(i in true for i in _conjuncts(node.args[0])):
            return arguments[1]
        return with_arguments(node, arguments)

    return rewritten(roots, rule)
