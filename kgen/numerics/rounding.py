"""What rounding may lead a graph's results away by, element by element.

A running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, second edition, section 3.3): each step errs
by some units of roundoff of its own value, and hands on what its operands are off by, to first order. What a step hands on is
seen by moving its operands up and down, which holds of any op, and of a condition that may come out otherwise too. Errors of a
sum's terms are taken to be independent of one another, so that their squares add up.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph
from kgen.dsl.ops import CONTRACTIONS, OPS, accumulator
from kgen.dsl.types import compute_dtype
from kgen.numerics.dtypes import round_to
from kgen.numerics.parts import by_parts
from kgen.numerics.reference import fitted
from kgen.numerics.values import VALUES, Arithmetic, reduced

#: Units of roundoff that a step errs by: of arithmetic, which is rounded once; and of a function or a quotient.
_ONCE, _FUNCTION = 1, 16
#: Terms of a product after which tensor cores cut the sum: of factors of 16 bits; of fewer bits there are more.
_CUT = 16


def is_pointwise(graph: Graph) -> bool:
    """Whether each result is computed of single elements, so that its error is that of a few steps."""
    return not any(node.op in CONTRACTIONS or node.op == "external" for node in graph.nodes)


def is_narrow(node: Expr) -> bool:
    """Whether a node is a product of factors of at most 16 bits, which tensor cores add up in f32."""
    return OPS[node.op].kind == "product" and any(x.dtype.is_float and x.dtype.bytes <= 2 for x in node.args)


def units_of_sum(terms: float, narrow: bool) -> float:
    """Units of roundoff that a sum in f32 of products errs by, of what it has come to; `narrow`: of factors of at most 16 bits.

    Added one after another (Higham and Mary, 2019), or by tensor cores, which cut (`kgen.tuner.verify` has both sources).
    """
    return max(math.sqrt(terms), terms / _CUT if narrow else 0.0)


def rounding(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """For each result, in its shape and in float64, how far from `evaluate`'s one may be that is computed in the graph's own
    dtypes, 0 where nothing finite can be said; of bools 1 where they may come out otherwise.
    """
    return tuple(_errors(graph, tensors, scalars, Arithmetic()))


def _errors(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], how: Arithmetic) -> list[Tensor]:
    how.begin(graph, tensors, scalars)
    parts = by_parts(graph, tensors, how, lambda part: _errors(graph, part, scalars, how))
    if parts is not None:
        return parts
    last = {id(arg): i for i, node in enumerate(graph.nodes) for arg in node.args}
    last.update({id(result): len(graph.nodes) for result in graph.results})
    values, errors = dict[int, Tensor](), dict[int, Tensor]()
    for i, node in enumerate(graph.nodes):
        args = [values[id(arg)] for arg in node.args]
        value = values[id(node)] = VALUES[node.op](node, args, how)
        error = _handed_on(node, value, args, [errors[id(arg)] for arg in node.args], how)
        errors[id(node)] = (error + _own(node, value, args, how)).nan_to_num(0.0, 0.0, 0.0)
        for arg in node.args:
            if last[id(arg)] == i:
                values.pop(id(arg), None)
                errors.pop(id(arg), None)
    found = ((errors[id(result)], values[id(result)].shape) for result in graph.results)
    return [fitted(graph, k, error.expand(shape), tensors) for k, (error, shape) in enumerate(found)]


def _handed_on(node: Expr, value: Tensor, args: list[Tensor], errors: list[Tensor], how: Arithmetic) -> Tensor:
    """What a step's value is off by where its operands are."""
    none = torch.zeros((), dtype=torch.float64, device=value.device)
    if not any(bool(off.any()) for off in errors):
        return none
    if node.op == "argmax":  # any of those is the largest that may be
        (x,), (off,) = args, errors
        rivals = x + off >= reduced("amax", x - off, node.attr)
        return (reduced("sum", rivals.double(), node.attr) > 1) * float(
            x.shape[-1] if node.attr is not None else x.numel()
        )
    if OPS[node.op].sums:
        squares = [_squared(x) for x in args]
        each = (
            _root(node, [*squares[:i], off.expand(args[i].shape).square(), *squares[i + 1 :]], how)
            for i, off in enumerate(errors)
            if bool(off.any()) and args[i].is_floating_point()
        )
        return functools.reduce(torch.add, each, none)
    ways = [[*_moved(arg, off)] if bool(off.any()) else [] for arg, off in zip(args, errors)]
    none = none.expand(value.shape)

    def furthest(places: Iterable[Sequence[Tensor]]) -> Tensor:
        found = (_difference(value, VALUES[node.op](node, list(place), how)) for place in places)
        return functools.reduce(torch.maximum, found, none)

    if node.dtype.kind == "bool":  # what is compared may be off together
        return furthest(itertools.product(*([arg, *moved] for arg, moved in zip(args, ways))))
    each = (furthest([*args[:i], x, *args[i + 1 :]] for x in moved) for i, moved in enumerate(ways) if moved)
    return functools.reduce(torch.add, each, none)


def _squared(x: Tensor) -> Tensor:
    return x.double().square() if x.is_floating_point() else x


def _root(node: Expr, squares: list[Tensor], how: Arithmetic) -> Tensor:
    """The root of a sum of the terms' squares, or of a mean's."""
    found = VALUES[node.op](node, squares, how).double().clamp_min(0.0)
    count = squares[0].numel() / max(1, found.numel()) if node.op == "mean" else 1.0
    return (found / count).sqrt()


def _moved(x: Tensor, off: Tensor) -> Iterator[Tensor]:
    """A value as far off as it may be, either way."""
    if x.dtype is torch.bool:
        yield x ^ (off > 0)
    elif x.is_floating_point():
        yield from (x + off, x - off)
    else:
        yield from (x + off.ceil().long(), x - off.ceil().long())


def _own(node: Expr, value: Tensor, args: list[Tensor], how: Arithmetic) -> Tensor:
    """What a step errs by itself."""
    row, dtype = OPS[node.op], accumulator(node)
    if node.op == "const":
        return _difference(value, round_to(value, compute_dtype(node.dtype)))
    if not (node.dtype.is_float and dtype.is_float and row.exactness in ("exact", "rounded")):
        return torch.zeros((), dtype=torch.float64, device=value.device)
    units: float = _ONCE if row.exactness == "exact" else _FUNCTION
    size = value.abs().double()
    if row.sums:
        count = args[0].shape[-1] if row.kind in ("product", "scan") else args[-1].numel() / max(1, value.numel())
        units += units_of_sum(count, is_narrow(node))
        size = size + _root(node, [_squared(x) for x in args], how)
    return units * 2.0**-dtype.digits * size


def _difference(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() - b.double()).abs().nan_to_num(math.inf, math.inf)
