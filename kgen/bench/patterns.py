"""Patterns: finds in a graph what a library has one call for, such as an activation, softmax, or a product with bias.

A pattern is an expression with holes in it, traced from the same functions that definitions use; it matches a node of the
same structure, and the holes take what stands in their place. `kgen.bench.fusions` holds those that torch has a call for.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl import functions
from kgen.dsl.expr import Expr, Shape, matmul
from kgen.dsl.operator import Graph
from kgen.dsl.ops import NUMBERS, OPS
from kgen.dsl.types import DType, f32

Holes = Mapping[str, Expr]


#: Activations of kgen that libraries have as one call, and those with a number beside the tensor.
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_erf", "hardswish", "quick_gelu", "sigmoid", "tanh")
PARAMETRIC = ("elu", "hardshrink")


def hole(name: str, shape: Shape, ops: Collection[str] = (), dtype: DType = f32, exact: bool = False) -> Expr:
    """A place in a pattern: any node fits, or only those of `ops`; where `exact`, of as many dimensions as `shape`.

    Shape and dtype are for the functions that trace the pattern.
    """
    return Expr("hole", (), dtype, shape, (name, ops, exact))


def match(pattern: Expr, node: Expr, bound: Holes | None = None) -> Holes | None:
    """What the holes of `pattern` stand for in `node`, or None where the structure differs. Dtypes do not count."""
    bound = bound or {}
    if pattern.op == "hole":
        name, ops, exact = pattern.attr
        fits = same(bound.get(name, node), node) and (not ops or node.op in ops)
        if exact:
            fits = fits and (len(node.shape.dims), node.shape.leading) == (
                len(pattern.shape.dims),
                pattern.shape.leading,
            )
        return {**bound, name: node} if fits else None
    if pattern.op != node.op or len(pattern.args) != len(node.args):
        return None
    if pattern.op != "matmul" and pattern.attr != node.attr:
        return None
    orders = [node.args, node.args[::-1]] if OPS[pattern.op].commutes else [node.args]
    for arguments in orders:
        found: Holes | None = bound
        for inner, argument in zip(pattern.args, arguments):
            found = None if found is None else match(inner, argument, found)
        if found is not None:
            return found
    return None


def same(a: Expr, b: Expr) -> bool:
    """Whether two nodes compute the same: one node, or alike all the way down."""
    if a is b:
        return True
    alike = (a.op, a.attr, a.dtype, a.shape, len(a.args)) == (b.op, b.attr, b.dtype, b.shape, len(b.args))
    return alike and all(same(x, y) for x, y in zip(a.args, b.args))


def match_all(patterns: Sequence[Expr], nodes: Sequence[Expr]) -> Holes | None:
    """As `match`, of several patterns that share their holes; None where their number differs."""
    found: Holes | None = {} if len(patterns) == len(nodes) else None
    for pattern, node in zip(patterns, nodes):
        found = None if found is None else match(pattern, node, found)
    return found


@functools.cache
def _activation_patterns() -> Mapping[str, Expr]:
    x, number = hole("x", Shape(leading=True)), hole("number", Shape(), NUMBERS)
    patterns = {name: getattr(functions, name)(x) for name in ACTIVATIONS}
    return patterns | {name: getattr(functions, name)(x, number) for name in PARAMETRIC}


@dataclass(frozen=True)
class Activation:
    """A function of one tensor that libraries have as one call; `numbers` are its parameters beside the tensor."""

    name: str
    argument: Expr
    numbers: tuple[Expr, ...]


def activation(node: Expr) -> Activation | None:
    """The activation that `node` computes; None for any other node."""
    for name, pattern in _activation_patterns().items():
        found = match(pattern, node)
        if found is not None:
            return Activation(name, found["x"], tuple(found[n] for n in ("number",) if n in found))
    return None


@dataclass(frozen=True)
class Factor:
    """A matrix of a product: the input it comes from, and whether it is that input's transpose."""

    name: str
    transposed: bool


@dataclass(frozen=True)
class Product:
    """`activation(alpha * a @ b + beta * c)`: what a matrix library computes. Absent parts are None.

    `c` names an input, `alpha` and `beta` are numbers or names of scalars. `accumulate` is the dtype of the sums.
    """

    a: Factor
    b: Factor
    accumulate: DType
    c: str | None = None
    alpha: float | str | None = None
    beta: float | str | None = None
    activation: str | None = None

    @property
    def pure(self) -> bool:
        """Whether it is the product alone."""
        return self.c is None and self.alpha is None and self.activation is None


def product(graph: Graph) -> Product | None:
    """The graph as a product of two inputs with what may follow it, or None when it is anything else."""
    if len(graph.results) != 1:
        return None
    node = _uncast(graph.results[0])
    named = None
    outer = activation(node)
    if outer:
        named, node = outer.name, _uncast(outer.argument)
    for pattern in _product_patterns():
        found = match(pattern, node)
        if found is None:
            continue
        a, b, c = _factor(found["a"]), _factor(found["b"]), found.get("c")
        if a and b:
            sums = next(n.attr or n.dtype for n in graph.nodes if n.op == "matmul")
            numbers = {name: found[name].attr for name in ("alpha", "beta") if name in found}
            return Product(a, b, sums, c.attr if c is not None else None, activation=named, **numbers)
    return None


@functools.cache
def _product_patterns() -> tuple[Expr, ...]:
    matrix = Shape((1, 1))
    plain, c = matmul(hole("a", matrix), hole("b", matrix)), hole("c", matrix, ("input",))
    alpha, beta = hole("alpha", Shape(), NUMBERS), hole("beta", Shape(), NUMBERS)
    return plain, alpha * plain + beta * c, plain + beta * c, alpha * plain + c, plain + c, alpha * plain


def _uncast(node: Expr) -> Expr:
    """The node without casts that only restate the dtype it is computed in."""
    while node.op == "cast" and node.dtype is f32:
        node = node.args[0]
    return node


def _factor(node: Expr) -> Factor | None:
    if node.op == "input":
        return Factor(node.attr, False)
    if node.op == "transpose" and node.args[0].op == "input":
        return Factor(node.args[0].attr, True)
    return None
