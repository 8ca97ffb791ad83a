"""Leading dimensions by name: a graph as one over a single further dimension, or over rows of rows."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import replace

from kgen.dsl.derivatives import axes_of
from kgen.dsl.expr import Expr, Shape
from kgen.dsl.operator import Graph
from kgen.dsl.ops import OPS
from kgen.dsl.size import Dim, SizeExpr, symbols_of


@functools.lru_cache(maxsize=4096)
def is_foldable(graph: Graph) -> bool:
    """Whether leading dimensions can be one with the first named one: rows of rows are rows."""
    shapes = [node.shape for node in graph.nodes if node.shape.leading]
    first = {shape.dims[0] for shape in shapes if len(shape.dims) > 1}
    if len(first) != 1 or any(len(shape.dims) < 2 for shape in shapes):
        return False
    row = first.pop()
    for node in graph.nodes:
        rank = len(node.shape.dims)
        sizes = [*node.shape.dims[node.shape.leading :], *(node.attr if isinstance(node.attr, tuple) else (node.attr,))]
        if not isinstance(row, Dim) or any(row.name in symbols_of(s) for s in sizes if isinstance(s, SizeExpr)):
            return False
        kind = OPS[node.op].kind if node.shape.leading else "leaf"
        whole = kind == "reduction" and -rank not in axes_of(node)
        if kind in ("reduction", "move", "position") and not (whole or (node.op == "transpose" and rank > 2)):
            return False
    return True


@functools.lru_cache(maxsize=4096)
def closed(graph: Graph) -> Graph:
    """The graph with one named dimension in place of the leading ones, or with them in the first named one (`is_foldable`)."""
    lead = Dim(fresh("L", names_of(graph)))

    def shape(old: Shape) -> Shape:
        return Shape(old.dims if is_foldable(graph) or not old.leading else (lead, *old.dims))

    made: dict[int, Expr] = {}
    for node in graph.nodes:
        made[id(node)] = replace(node, args=tuple(made[id(a)] for a in node.args), shape=shape(node.shape))
    inputs, outputs = (
        tuple(replace(spec, shape=shape(spec.shape)) for spec in specs) for specs in (graph.inputs, graph.outputs)
    )
    return replace(graph, inputs=inputs, outputs=outputs, results=tuple(made[id(r)] for r in graph.results))


def names_of(graph: Graph) -> set[str]:
    """All names that a graph uses."""
    specs = (*graph.inputs, *graph.outputs)
    return {*graph.dims, *(spec.name for spec in specs), *(spec.name for spec in graph.scalars)}


def fresh(name: str, taken: Collection[str]) -> str:
    """The name, or with underscores behind it one that is not taken."""
    while name in taken:
        name += "_"
    return name
