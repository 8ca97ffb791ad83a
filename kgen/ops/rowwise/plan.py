"""The plan of a row-wise graph: its reductions in phases, its expressions over what is known by then.

A phase is a pass over a row that reduces expressions of the inputs and of what earlier phases found; the results are one
pass more. Every quotient by a value of the row becomes a product with its reciprocal, which is found once a row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Shape, broadcast, walk
from kgen.dsl.operator import Graph, TensorSpec
from kgen.dsl.ops import LEAVES, POINTWISE, REDUCTIONS
from kgen.dsl.size import Size
from kgen.dsl.types import f32

_LEAVES = LEAVES | {"arange", "size", "random"}
ROW_REDUCTIONS = REDUCTIONS & {"sum", "mean", "amax", "amin", "argmax"}


@dataclass(frozen=True)
class Plan:
    """`phases`: the reductions of each pass; `online`: by the id of an amax or a mean, the sum of exponentials of what is less
    that maximum, or the variance about that mean, which is found in the same pass.

    `divisors[p]` are what is multiplied by instead of dividing, known after p phases: nodes "reciprocal_of" of the divisor, with
    attr "inverse", or "mantissa" and "scale" whose product it is where the divisor may be of any size.
    `full` is the shape of a whole row and what stands before it, `row` its last dimension; `results` one node an output.
    Of a sum over the one column where arange is a value of the row, asked for by results of the row alone, a node "pick" is left:
    of that value, and of what is summed.
    """

    full: Shape
    row: Size
    phases: tuple[tuple[Expr, ...], ...]
    online: dict[int, Expr]
    divisors: tuple[tuple[Expr, ...], ...]
    results: tuple[Expr, ...]


def is_reduction(node: Expr) -> bool:
    """Whether a node reduces the last axis."""
    return node.op in ROW_REDUCTIONS


def full_shape(graph: Graph) -> Shape:
    """The shape that all of a graph's nodes broadcast to."""
    return broadcast(tuple(n for n in graph.nodes if n.op not in ("const", "scalar", "size")))


def has_full_shape(graph: Graph) -> bool:
    """Whether all of a graph's nodes broadcast to one shape."""
    try:
        full_shape(graph)
    except DefinitionError:
        return False
    return True


def is_full(spec: TensorSpec, row: Size) -> bool:
    """Whether an operand runs along the row."""
    return spec.shape.dims[-1:] == (row,)


@functools.lru_cache(maxsize=256)
def matches(graph: Graph) -> bool:
    """Whether the graph reduces over its last axis, and else is pointwise."""
    nodes = graph.nodes
    reductions = [n for n in nodes if n.op in ROW_REDUCTIONS]
    if not reductions or not all(n.op in _LEAVES or n.op in POINTWISE or n.op in ROW_REDUCTIONS for n in nodes):
        return False
    if any(n.attr != -1 for n in reductions):
        return False
    row = reductions[0].args[0].shape.dims[-1]
    lasts = {n.shape.dims[-1] for n in nodes if n.shape.dims} | {s.shape.dims[-1] for s in graph.inputs if s.shape.dims}
    if row == 1 or not lasts <= {row, 1} or any(n.args[0].shape.dims[-1] != row for n in reductions):
        return False
    if not has_full_shape(graph):
        return False
    full = full_shape(graph)
    if any(n.op == "random" and n.shape != full for n in nodes):
        return False
    # Each output has a place for every row.
    return all(
        _rows(spec, node, row) == (full.dims[:-1], full.leading) for spec, node in zip(graph.outputs, graph.results)
    )


def _rows(spec: TensorSpec, node: Expr, row: Size) -> tuple[tuple[Size, ...], bool]:
    """The dimensions of an output before the row's own."""
    dims = spec.shape.dims if is_squeezed(spec, node) else spec.shape.dims[:-1]
    return dims, spec.shape.leading


def is_squeezed(spec: TensorSpec, node: Expr) -> bool:
    """Whether an output is declared without the reduced axis."""
    return len(spec.shape.dims) < len(node.shape.dims) and node.shape.dims[-1] == 1


@functools.lru_cache(maxsize=256)
def plan_of(graph: Graph, online: bool) -> Plan:
    """The plan; `online` finds a row's maximum and sum of exponentials, or its mean and variance, in one phase."""
    full = full_shape(graph)
    row = full.dims[-1]
    results = _rewritten(graph.results, row)
    nodes = walk(results)
    partner = _online(nodes) if online else {}
    fused = {id(second): first for first, second in ((_first_of(s), s) for s in partner.values())}
    depth: dict[int, int] = {}
    for node in nodes:
        below = max((depth[id(a)] for a in node.args), default=0)
        depth[id(node)] = depth[id(fused[id(node)])] if id(node) in fused else below + is_reduction(node)
    reductions = [n for n in nodes if is_reduction(n) and id(n) not in fused]
    last = max(depth[id(n)] for n in reductions)
    phases = tuple(tuple(n for n in reductions if depth[id(n)] == p + 1) for p in range(last))
    quotients = [n for n in nodes if n.op == "reciprocal_of"]
    divisors = tuple(tuple(n for n in quotients if depth[id(n)] == p) for p in range(last + 1))
    return Plan(full, row, phases, partner, divisors, results)


def is_uniform(node: Expr, row: Size) -> bool:
    """Whether a node has one value a row."""
    return node.shape.dims[-1:] != (row,)


def _rewritten(roots: tuple[Expr, ...], row: Size) -> tuple[Expr, ...]:
    """The graph with equal nodes merged, and quotients by a row's value as products."""
    made: dict[tuple[object, ...], Expr] = {}
    new: dict[int, Expr] = {}
    picked = _picked(roots, row)

    def merged(node: Expr) -> Expr:
        key = (node.op, repr(node.attr), node.dtype, node.shape, *map(id, node.args))
        return made.setdefault(key, node)

    for node in walk(roots):
        args = tuple(new[id(a)] for a in node.args)
        if id(node) in picked:
            place, value = picked[id(node)]
            new[id(node)] = merged(
                Expr("pick", (new[id(place)], new[id(value)]), node.dtype, node.shape, where=node.where)
            )
        elif node.op == "div" and node.dtype is f32 and _is_row_value(args[1], row) and not is_uniform(args[0], row):
            product = args[0]
            for part in ("inverse",) if is_softmax_sum(args[1]) else ("mantissa", "scale"):
                factor = merged(Expr("reciprocal_of", (args[1],), f32, args[1].shape, part, node.where))
                product = merged(Expr("mul", (product, factor), f32, node.shape, where=node.where))
            new[id(node)] = product
        else:
            same = all(a is b for a, b in zip(args, node.args))
            new[id(node)] = merged(node if same else replace(node, args=args))
    return tuple(new[id(r)] for r in roots)


def _picked(roots: tuple[Expr, ...], row: Size) -> dict[int, tuple[Expr, Expr]]:
    """By the id of a sum over one column at most, where that is and what is summed; if other sums read the same rows."""
    reductions = [n for n in walk(roots) if is_reduction(n)]
    whole = tuple(r for r in roots if not is_uniform(r, row))
    asked = {id(n) for n in walk((*whole, *(a for r in reductions for a in r.args)))}
    found: dict[int, tuple[Expr, Expr]] = {}
    for node in reductions:
        chosen = node.args[0]
        if node.op != "sum" or id(node) in asked or chosen.op != "where" or chosen.args[0].op != "eq":
            continue
        _, value, other = chosen.args
        for column, place in (chosen.args[0].args, chosen.args[0].args[::-1]):
            if (
                (column.op, column.shape.dims) == ("arange", (row,))
                and (place.op == "input" and is_uniform(place, row))
                and (other.op == "const" and other.attr == 0)
                and not any(n.op == "random" or is_reduction(n) for n in walk((value,)))
            ):
                found[id(node)] = place, value
    read = {n.attr for n in walk(tuple(a for r in reductions if id(r) not in found for a in r.args)) if n.op == "input"}
    values = [n for _, value in found.values() for n in walk((value,)) if n.op == "input"]
    rows = [n for n in values if len(n.shape.dims) > 1 or n.shape.leading]
    return found if read and all(n.attr in read for n in rows) else {}


def _is_row_value(node: Expr, row: Size) -> bool:
    return is_uniform(node, row) and node.op != "const"


def _first_of(second: Expr) -> Expr:
    """The amax in sum(exp(y - amax(y))), the mean in mean(square(y - mean(y)))."""
    return second.args[0].args[0].args[1]


def is_softmax_sum(node: Expr) -> bool:
    """Whether a node is sum(exp(y - amax(y))): NaN, or between 1 and the row's length."""
    return node.op == "sum" and node.args[0].op == "exp" and _is_less(node.args[0].args[0], "amax")


def _is_variance(node: Expr) -> bool:
    """Whether a node is the mean of the square of y - mean(y)."""
    if node.op != "mean" or node.args[0].op != "mul":
        return False
    a, b = node.args[0].args
    return a is b and _is_less(a, "mean")


def _is_less(node: Expr, op: str) -> bool:
    """Whether a node is y - op(y)."""
    if node.op != "sub" or not node.dtype.is_float:
        return False
    y, found = node.args
    return found.op == op and found.args[0] is y


def _online(nodes: Iterable[Expr]) -> dict[int, Expr]:
    """By the id of an amax or a mean, the sum of exponentials or the variance that is found along with it."""
    return {id(_first_of(n)): n for n in nodes if is_softmax_sum(n) or _is_variance(n)}
