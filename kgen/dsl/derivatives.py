"""What each op's derivative is, as expressions of the same language: a rule for each operand, by the op's name.

A rule takes a node and the adjoint of its value, and gives the operand's adjoint before broadcast axes are added up. In place of
a rule, ZERO says that nothing flows there (comparisons, ids, roundings), and a text why there is no derivative. Rules use a
node's own value where that does, so that an operator's result can be kept in place of what it was made of. At edges they give
what torch gives: ties of maxima share evenly, limits by a number pass at the bound, relu and abs have 0 at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Union

from kgen.dsl.expr import Expr, Shape, apply, cast, constant, matmul, reduction, scan, walk, where
from kgen.dsl.functions import cos, exp, log, sin
from kgen.dsl.indexing import arange, exchange, scatter_add, size, take
from kgen.dsl.ops import OPS
from kgen.dsl.size import Dim, SizeExpr
from kgen.dsl.types import compute_dtype

#: The adjoint of an operand, of a node and its adjoint; nothing; or the reason why there is none.
Rule = Union[Callable[[Expr, Expr], Expr | None], None, str]
ZERO: Rule = None


def is_number(node: Expr) -> bool:
    """Whether a value is the same for every element: of numbers alone."""
    return node.shape == Shape() and not any(n.op == "input" or OPS[n.op].kind == "external" for n in walk((node,)))


def axes_of(node: Expr) -> tuple[int, ...]:
    """The axes that a reduction goes over, counted from the end."""
    if node.attr is None:
        return tuple(range(-len(node.args[0].shape.dims), 0))
    return node.attr if isinstance(node.attr, tuple) else (node.attr,)


def count_of(x: Expr, axes: Iterable[int]) -> Expr | None:
    """How many elements there are along axes, in the dtype that x is computed in; None for one."""
    count: Expr | None = None
    for dim in (x.shape.dims[axis] for axis in axes):
        if dim != 1:
            dtype = compute_dtype(x.dtype)
            one = cast(size(dim), dtype) if isinstance(dim, SizeExpr) else constant(float(dim), dtype)  # type: ignore[arg-type]
            count = one if count is None else count * one
    return count


def transposed(node: Expr) -> Expr:
    """The last two axes swapped; of a product, that of its factors, which is a product again, and so of sums of products."""
    if node.op == "matmul":
        a, b = node.args
        return matmul(transposed(b), transposed(a), node.attr)
    if node.op == "mul" and is_number(node.args[0]):
        return node.args[0] * transposed(node.args[1])
    if node.op == "mul" and is_number(node.args[1]):
        return transposed(node.args[0]) * node.args[1]
    if node.op == "sum" and max(axes_of(node)) < -2:
        return reduction("sum", transposed(node.args[0]), node.attr)
    return node.T


def _half(mine: int) -> Rule:
    """Of maximum and minimum: 1/2 each where two tensors tie; a number limits, and lets pass what is at the limit."""

    def rule(node: Expr, g: Expr) -> Expr:
        x, other = node.args[mine], node.args[1 - mine]
        chosen = apply("gt" if node.op == "maximum" else "lt", x, other)
        if is_number(other):
            return where(chosen | (x == other), g, 0.0)
        return where(x == other, 0.5 * g, where(chosen, g, 0.0))

    return rule


def _extreme(node: Expr, g: Expr) -> Expr:
    hit = node.args[0] == node
    return where(hit, g / reduction("sum", where(hit, constant(1.0, node.dtype), 0.0), node.attr), 0.0)


def _power_base(node: Expr, g: Expr) -> Expr:
    x, y = node.args
    return where(y == 0, 0.0, g * y * apply("pow", x, y - 1))


def _power_exponent(node: Expr, g: Expr) -> Expr:
    x, y = node.args
    return where((x == 0) & (y >= 0), 0.0, g * node * log(x))


def _over_square(mine: int) -> Rule:
    def rule(node: Expr, g: Expr) -> Expr:
        y, x = node.args
        square = x * x + y * y
        return where(square == 0, 0.0, g * (x if mine == 0 else -y) / square)

    return rule


def _sign(node: Expr, g: Expr) -> Expr:
    x = node.args[0]
    return where(x > 0, g, where(x < 0, -g, 0.0))


def _times(mine: int) -> Rule:
    def rule(node: Expr, g: Expr) -> Expr | None:
        x, other = node.args[mine], node.args[1 - mine]
        if x is not other:
            return g * other
        return g * (2 * other) if mine == 0 else None  # of a square, both at once

    return rule


def _mean(node: Expr, g: Expr) -> Expr:
    count = count_of(node.args[0], axes_of(node))
    return g if count is None else g / count


# Products: adjoints are rounded to the dtype of the factors, as they are multiplied with them.


def _split(g: Expr) -> tuple[Expr | None, Expr]:
    """The numbers that an adjoint is multiplied by, and the rest."""
    if g.op == "mul":
        for number, rest in (g.args, g.args[::-1]):
            if is_number(number):
                more, rest = _split(rest)
                return (number if more is None else number * more), rest
    return None, g


def _product(g: Expr, factor: Expr, multiply: Callable[[Expr], Expr]) -> Expr:
    number, rest = _split(g)
    found = multiply(rest if rest.dtype is factor.dtype else cast(rest, factor.dtype))
    return found if number is None else number * found


def _left(node: Expr, g: Expr) -> Expr:
    b = node.args[1]
    return _product(g, b, lambda d: matmul(d, b.T))


def _right(node: Expr, g: Expr) -> Expr:
    a = node.args[0]
    return _product(g, a, lambda d: matmul(a.T, d))


# Moves.


def _taken(node: Expr, g: Expr) -> Expr:
    table, ids = node.args
    dim = table.shape.dims[node.attr]
    if _only_adds_axes(node):
        for _ in ids.shape.dims[1:]:
            g = take(g, constant(0), axis=node.attr)
        return g
    moved = _moved_by(ids)
    if moved is not None:
        return take(g, arange(dim) - moved, axis=node.attr)
    return scatter_add(dim, ids, g, axis=node.attr)


def _moved_by(ids: Expr) -> Expr | None:
    """The number by which ids are consecutive positions; None where they are not."""
    for i, place in enumerate(ids.args if ids.op in ("add", "sub") else ()):
        other = ids.args[1 - i]
        if place.op == "arange" and place.shape == ids.shape and is_number(other) and (ids.op == "add" or i == 0):
            return other if ids.op == "add" else -other
    return constant(0) if ids.op == "arange" else None


def _only_adds_axes(take: Expr) -> bool:
    """Whether every element is taken once, with axes of size 1 behind its own."""
    table, ids = take.args
    return ids.op == "arange" and ids.shape.dims[0] == table.shape.dims[take.attr]


def _added(node: Expr, g: Expr) -> Expr:
    return take(g, node.args[0], axis=node.attr[1])


def _repeated(node: Expr, g: Expr) -> Expr:
    count, axis = node.attr
    dim, whole = node.args[0].shape.dims[axis], node.shape.dims[axis]
    return scatter_add(dim, arange(whole) // count, g, axis=axis)


_NO_MATRICES = "the gradient of its matrices is a product of each group's rows, which no op expresses"

#: Every op, a rule for each operand.
DERIVATIVES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("input", "scalar", "const", "arange", "size"), ()),
    "add": (lambda n, g: g, lambda n, g: g),
    "sub": (lambda n, g: g, lambda n, g: -g),
    "mul": (_times(0), _times(1)),
    "div": (lambda n, g: g / n.args[1], lambda n, g: -g * n / n.args[1]),
    "pow": (_power_base, _power_exponent),
    "atan2": (_over_square(0), _over_square(1)),
    "maximum": (_half(0), _half(1)),
    "minimum": (_half(0), _half(1)),
    "neg": (lambda n, g: -g,),
    "abs": (_sign,),
    "exp": (lambda n, g: g * n,),
    "exp2": (lambda n, g: g * n * math.log(2),),
    "expm1": (lambda n, g: g * (n + 1),),
    "log": (lambda n, g: g / n.args[0],),
    "log2": (lambda n, g: g / (n.args[0] * math.log(2)),),
    "log1p": (lambda n, g: g / (n.args[0] + 1),),
    "sqrt": (lambda n, g: g / (2 * n),),
    "rsqrt": (lambda n, g: g * (-0.5 * (n * n * n)),),
    "tanh": (lambda n, g: g * (1 - n * n),),
    "erf": (lambda n, g: g * (2 / math.sqrt(math.pi) * exp(-n.args[0] * n.args[0])),),
    "erfc": (lambda n, g: g * (-2 / math.sqrt(math.pi) * exp(-n.args[0] * n.args[0])),),
    "sigmoid": (lambda n, g: g * (n * (1 - n)),),
    "sin": (lambda n, g: g * cos(n.args[0]),),
    "cos": (lambda n, g: -g * sin(n.args[0]),),
    "reciprocal": (lambda n, g: -g * (n * n),),
    **dict.fromkeys(("floor", "ceil", "round", "not"), (ZERO,)),
    **dict.fromkeys(("floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"), (ZERO, ZERO)),
    # Which of the two is chosen, the reverse mode itself keeps (see kgen.dsl.gradient).
    "where": (ZERO, lambda n, g: g, lambda n, g: g),
    "cast": (lambda n, g: g,),
    "matmul": (_left, _right),
    "grouped_matmul": (
        lambda n, g: _product(
            g, n.args[1], lambda d: Expr("grouped_matmul", (d, n.args[1].T, n.args[2]), n.dtype, n.args[0].shape, n.attr)
        ),
        _NO_MATRICES,
        ZERO,
    ),
    "sum": (lambda n, g: g,),
    "mean": (_mean,),
    "amax": (_extreme,),
    "amin": (_extreme,),
    "argmax": (ZERO,),
    # What follows an element, itself included, is all less what is before it.
    "cumsum": (lambda n, g: reduction("sum", g, -1) - scan("cumsum", g) + g,),
    **dict.fromkeys(("cumprod", "logcumsumexp"), ("its adjoint sums from the end of a row; scans begin at its start",)),
    "transpose": (lambda n, g: transposed(g),),
    "exchange": (lambda n, g: exchange(g, n.attr),),
    "repeat": (_repeated,),
    "take": (_taken, ZERO),
    "random": (ZERO, ZERO),
    "scatter_add": (ZERO, _added),
    "external": (),
}  # fmt: skip


def rule_of(node: Expr, place: int) -> Rule:
    """The rule for one of a node's operands."""
    if OPS[node.op].kind == "external":
        return f"{node.attr.name} is computed by a template of its own" if node.dtype.is_float else ZERO
    if OPS[node.op].kind == "product" and node.args[0].dtype.bits == 8 and node.dtype.is_float:
        return "gradients of fp8 factors would need scales of their own"
    if node.op == "repeat" and not isinstance(node.args[0].shape.dims[node.attr[1]], Dim):
        return "the sum over what is repeated has a size that is no dimension"
    if node.op == "take" and place == 0 and not _only_adds_axes(node):
        table, ids = node.args
        if len(ids.shape.dims) != 1 or not isinstance(table.shape.dims[node.attr], Dim):
            return "elements are added at ids of one axis, along a named dimension"
    if node.op == "cast" and not node.dtype.is_float:
        return ZERO
    if node.op not in DERIVATIVES:
        return f"{node.op} has no row in kgen.dsl.derivatives"
    return DERIVATIVES[node.op][place]
