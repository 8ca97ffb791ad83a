"""Terms: what a problem's sums are of, and how many there are, as inputs for checks are drawn by it."""

from __future__ import annotations

import functools
import math

from kgen.dsl.expr import Expr, walk
from kgen.dsl.operator import Graph
from kgen.dsl.ops import CONTRACTIONS, OPS, PRODUCTS, REDUCTIONS, SCANS, operands_as
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import evaluate as size_of


@functools.lru_cache(maxsize=256)
def longest_product(problem: Problem) -> int:
    """The terms of the longest sum of products; 0 without any."""
    whole = problem.origin or problem
    sizes = {**problem.sizes, **whole.sizes}
    return max((summed(node, whole, sizes) for node in problem.graph.nodes if node.op in PRODUCTS), default=0)


@functools.lru_cache(maxsize=256)
def exponentiated(graph: Graph) -> tuple[Expr, ...]:
    """The product that exponentials are taken of, and the one of these, as in attention; nothing where there are no two such."""
    products = tuple(n for n in graph.nodes if n.op in PRODUCTS)
    if len(products) != 2:
        return ()
    powers = (n for n in walk(products[1].args[:1]) if n.op == "exp")
    return products if any(x is products[0] for power in powers for x in walk((power,))) else ()


def longest(problem: Problem, operand: Operand) -> tuple[int, tuple[int, ...]]:
    """The terms of the longest sum or reduction, and the axes of the operand that are reduced or scanned, without products.

    Of weights that are exponentials of a product, as in attention, the operand's elements that one result depends on: one that is
    NaN among them decides it.
    """
    whole = problem.origin or problem
    sizes = {**problem.sizes, **whole.sizes}
    most, axes = 1, set()
    nodes = problem.graph.nodes
    pair = exponentiated(problem.graph)
    if pair:
        dims = {dim for n in pair for dim in (n.args[0].shape.dims[-1], n.args[1].shape.dims[-2])}
        spec = next(spec for spec in problem.graph.inputs if spec.name == operand.name)
        return math.prod(size_of(dim, sizes) for dim in spec.shape.dims if dim in dims), ()
    for node in nodes:
        if node.op in CONTRACTIONS:
            most = max(most, summed(node, whole, sizes))
        if node.op in REDUCTIONS | SCANS and not any(n.op in PRODUCTS for n in nodes):
            rank, own = len(node.args[0].shape.dims), len(operand.shape)
            if node.attr is None:
                axes |= set(range(own))
            else:
                axes |= {
                    own + (a if a < 0 else a - rank)
                    for a in (node.attr if isinstance(node.attr, tuple) else (node.attr,))
                }
    return most, tuple(sorted(a for a in axes if a >= 0))


def added_exponents(problem: Problem) -> dict[str, int]:
    """The float inputs that are added up along an axis before exp is taken, as decay is, with how many they are."""
    sizes, nodes = {**problem.sizes, **(problem.origin or problem).sizes}, problem.graph.nodes
    powers = [n for n in nodes if n.op == "exp"]
    sums = [n for n in nodes if n.op == "cumsum" and any(n is x for x in walk(tuple(powers)))]
    return {
        leaf.attr: size_of(node.shape.dims[node.attr], sizes)
        for node in sums
        for leaf in walk(node.args)
        if leaf.op == "input" and leaf.dtype.is_float
    }


def summed(node: Expr, whole: Problem, sizes: dict[str, int]) -> int:
    """How many terms a sum has at most."""
    dims = node.args[0].shape.dims
    if node.op in PRODUCTS or node.attr == -1:
        return size_of(dims[-1], sizes)
    for added in operands_as(node, "added"):
        inner = summed(added, whole, sizes) if OPS[added.op].kind == "scatter" else 1
        return whole.elements_of(node.args[0].shape) * inner
    if isinstance(node.attr, tuple):
        return math.prod(size_of(dims[axis], sizes) for axis in node.attr)
    return max(o.elements for o in whole.inputs)
