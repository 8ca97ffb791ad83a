"""Reference: what an operator must compute, by torch: exactly (float64, int64), and as torch's own kernels would.

`evaluate` is the meaning of a graph: floats in float64, integers in int64, rounded only where the graph casts. `native` takes
the same steps in the operator's own dtypes, which says how large an error is to be expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.expr import Axes, Expr
from kgen.dsl.operator import Graph, left_out
from kgen.dsl.ops import FLOAT_FUNCTIONS, PRODUCTS, REDUCTIONS
from kgen.dsl.problem import broadcast_leading
from kgen.dsl.product import blocked
from kgen.dsl.size import Dim
from kgen.dsl.size import evaluate as size_of
from kgen.dsl.types import DType, compute_dtype, e4m3, e5m2, f16, tf32
from kgen.numerics.dtypes import round_to, torch_dtype
from kgen.numerics.operands import FP8_SUM_DIGITS, sum_digits
from kgen.numerics.philox import uniform
from kgen.numerics.products import (
    blocked_matmul,
    fp8_matmul,
    half_matmul,
    integer_matmul,
    plain_matmul,
    rounded,
    widened_matmul,
)


def _divided(how: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The quotient or remainder of integers, which is 0 where y is."""
    none = y == 0
    return how(x, y.masked_fill(none, 1)).masked_fill(none, 0)


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("neg", "abs", *FLOAT_FUNCTIONS)
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
} | {"floordiv": partial(_divided, torch.floor_divide), "mod": partial(_divided, torch.remainder)}
_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_LOGICAL = {"and": torch.logical_and, "or": torch.logical_or}
#: Operations whose result is exact wherever it is representable.
_EXACT_OPS = frozenset(
    {"input", "scalar", "const", "add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where", "cast", "transpose"}
    | {*PRODUCTS, "sum", "amax", "amin", "argmax", "floor", "ceil", "round", *_COMPARE, *_LOGICAL, "not"}
    | {"arange", "size", "take", "repeat", "scatter_add", "exchange", "random", "floordiv", "mod", "external"}
)
#: Operations whose results are values of their operands, whatever range they have.
_MOVED = frozenset({"input", "scalar", "const", "take", "transpose", "exchange", "repeat", "where", "cast", "external"})


def _is_moved(node: Expr) -> bool:
    return node.op in _MOVED and all(_is_moved(a) for a in node.args)


class _Arithmetic:
    """The exact arithmetic: every float in float64, every integer in int64. `sizes`: the dimensions of what is evaluated."""

    sizes: dict[str, int]

    def held(self, dtype: DType) -> torch.dtype:
        """What a value of `dtype` is kept in."""
        return {"float": torch.float64, "int": torch.int64, "bool": torch.bool}[dtype.kind]

    def load(self, x: Tensor, dtype: DType) -> Tensor:
        return x.to(self.held(dtype))

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return round_to(x, dtype).to(self.held(dtype))

    def matmul(self, node: Expr, a: Tensor, b: Tensor) -> Tensor:
        return integer_matmul(a, b) if node.dtype.kind == "int" else torch.matmul(a, b)

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        """Called with every value as it is computed; gives what the next steps see of it."""
        return value


class _Ranged(_Arithmetic):
    """The exact arithmetic with infinity beyond the range of what a kernel computes in.

    With `doubtful`, what rounding or the order of a sum decides is another value: denormals are zero; NaN are sums that overflow
    in one order of their terms and not in another, and what is left where large computed values cancel.
    """

    def __init__(self, doubtful: bool = False) -> None:
        self.doubtful = doubtful

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        if not node.dtype.is_float or node.op in _MOVED:
            return value
        held: DType = node.attr if node.op in PRODUCTS else compute_dtype(node.dtype)
        if node.op == "scatter_add":
            held = node.attr[2]
        limits = torch.finfo(torch_dtype(held))
        whole = value
        value = torch.where(value.abs() <= limits.max, value, value.sign() * math.inf)
        if not self.doubtful:
            return value
        value = torch.where(value.abs() < limits.tiny, 0.0, value)
        if node.op in ("sum", "mean", "scatter_add", *PRODUCTS):
            value = torch.where(self._order_decides(node, whole, args, limits), math.nan, value)
        elif node.op in ("add", "sub") and not all(_is_moved(a) for a in node.args):
            largest = torch.maximum(*(a.double().abs() for a in args))
            value = torch.where((largest > 1e3) & (value.abs() < largest / 8), math.nan, value)
        return value

    def _order_decides(self, node: Expr, value: Tensor, args: list[Tensor], limits: torch.finfo) -> Tensor:
        """Where some orders of a sum's terms come to another infinity, or to none, or terms cancel to less than rounding leaves.

        All partial sums lie between that of the negative and that of the positive terms. If only one is beyond the range, and
        the whole sum is too, or a term that is infinite, it is that infinity in every order.
        """
        finite = [a.nan_to_num(0.0, 0.0, 0.0) if a.is_floating_point() else a for a in args]
        plus = [a.clamp_min(0) if a.is_floating_point() else a for a in finite]
        minus = [(-a).clamp_min(0) if a.is_floating_point() else a for a in finite]
        up, down = self._sum_of(node, plus), self._sum_of(node, minus)
        if node.op in PRODUCTS:  # terms are positive where both factors have one sign
            up, down = up + down, self._sum_of(node, [plus[0], *minus[1:]]) + self._sum_of(node, [minus[0], *plus[1:]])
        beyond = min(
            limits.max * (1 + 2.0**-20), torch.finfo(torch.float64).max
        )  # a term at the limit is not yet beyond it
        rises, falls = up > beyond, down > beyond
        sure = ((value > beyond) & ~falls) | ((value < -beyond) & ~rises) | (value.isnan() & ~(rises & falls))
        cancels = value.isfinite() & ((up - down).abs() < 8 * limits.eps * torch.minimum(up, down))
        return ((rises | falls) & ~sure) | cancels

    def _sum_of(self, node: Expr, terms: list[Tensor]) -> Tensor:
        if node.op == "scatter_add":
            return _scatter_add(node, terms, self, self.sizes)
        if node.op in ("sum", "mean"):
            return _reduce("sum", terms[0].double(), node.attr)
        if node.op == "grouped_matmul":
            return _grouped_matmul(node, self, *terms)
        return torch.matmul(terms[0].double(), terms[1].double())


class _Proof(_Arithmetic):
    """The exact arithmetic that also watches whether a kernel's arithmetic has to come to the same values."""

    def __init__(self) -> None:
        self.holds = True

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        if not self.holds:
            return value
        if node.op not in _EXACT_OPS or (node.op == "external" and node.dtype.is_float):
            self.holds = False
        elif node.op in ("sum", "scatter_add", *PRODUCTS):
            sums = [(args, sum_digits(node)), *_block_sums(node, args)]
            self.holds = all(_largest_sum(node, terms, 2.0**digits) <= 2.0**digits for terms, digits in sums)
        elif node.dtype.is_float and node.op not in ("input", "transpose", "take", "repeat", "exchange"):
            held = round_to(value, compute_dtype(node.dtype) if node.op != "cast" else node.dtype)
            self.holds = bool((held.to(torch.float64) == value).all())
        return value


class _Native(_Arithmetic):
    """The operator's own dtypes, by torch's kernels. `wide`: results are kept in more bits than the matrices have."""

    def __init__(self, graph: Graph) -> None:
        self.result_bits = max(spec.dtype.bits for spec in graph.outputs)

    def held(self, dtype: DType) -> torch.dtype:
        return torch_dtype(dtype)

    def load(self, x: Tensor, dtype: DType) -> Tensor:
        return x.to(torch_dtype(dtype))

    def matmul(self, node: Expr, a: Tensor, b: Tensor) -> Tensor:
        source, total = node.args[0].dtype, node.attr
        if node.dtype.kind == "int":
            return integer_matmul(a, b).to(torch_dtype(node.dtype))
        if source in (e4m3, e5m2):
            return fp8_matmul(a, b)
        if blocked(node):
            return blocked_matmul(a, b, blocked(node))
        if total is f16:
            return half_matmul(a, b)
        if source is tf32:  # for small matrices torch multiplies in f32, whatever is allowed
            a, b = rounded(a, tf32.digits), rounded(b, tf32.digits)
        with plain_matmul():
            if source.bits < 32 <= self.result_bits:
                return widened_matmul(a, b)
            return torch.matmul(a, b).to(torch_dtype(node.dtype))


def _run(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float], how: _Arithmetic) -> list[Tensor]:
    """The results of a graph by the given arithmetic; each value is dropped after its last use."""
    nodes = graph.nodes
    device = next(iter(tensors.values())).device
    last = {id(arg): i for i, node in enumerate(nodes) for arg in node.args}
    last.update({id(result): len(nodes) for result in graph.results})
    values: dict[int, Tensor] = {}
    scalar_types = {spec.name: spec.dtype for spec in graph.scalars}
    sizes, leading = _sizes(graph, tensors)
    how.sizes = sizes
    for i, node in enumerate(nodes):
        args = [values[id(arg)] for arg in node.args]
        if node.op == "input":
            value = how.load(tensors[node.attr], node.dtype)
        elif node.op == "scalar":
            given = torch.tensor(scalars[node.attr], dtype=torch_dtype(scalar_types[node.attr]), device=device)
            value = given.to(how.held(compute_dtype(node.dtype)))
        elif node.op == "const":
            value = torch.tensor(node.attr, dtype=how.held(node.dtype), device=device)
        elif node.op in ("arange", "size", "random"):
            value = _position(node, args, how, sizes, leading, device)
        elif node.op == "scatter_add":
            value = _scatter_add(node, args, how, sizes)
        elif node.op == "repeat":
            count, axis = node.attr
            value = args[0].repeat_interleave(count, axis).narrow(axis, 0, size_of(node.shape.dims[axis], sizes))
        else:
            value = _apply(node, args, how)
        values[id(node)] = how.done(node, value, args)
        for arg in node.args:
            if last[id(arg)] == i:
                values.pop(id(arg), None)
    return [_fitted(graph, k, values[id(result)], tensors) for k, result in enumerate(graph.results)]


def _sizes(graph: Graph, tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], tuple[int, ...]]:
    """The sizes of the dimensions by name, and of the leading ones."""
    sizes: dict[str, int] = {}
    heads = []
    for spec in (*graph.inputs, *graph.outputs):
        if spec.name in tensors:
            shape = tuple(tensors[spec.name].shape)
            own = len(shape) - len(spec.shape.dims)
            sizes |= {d.name: n for d, n in zip(spec.shape.dims, shape[own:]) if isinstance(d, Dim)}
            heads += [shape[:own]] if spec.shape.leading else []
    return sizes, broadcast_leading(graph, heads)


def _position(
    node: Expr,
    args: list[Tensor],
    how: _Arithmetic,
    sizes: dict[str, int],
    leading: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """What depends on the sizes, and on where an element stands."""
    held = how.held(node.dtype)
    if node.op == "size":
        return torch.tensor(sizes[node.attr.name], dtype=held, device=device)
    shape = [size_of(d, sizes) for d in node.shape.dims]
    if node.op == "arange":
        return torch.arange(shape[0], dtype=held, device=device).reshape(shape)
    whole = (*leading, *shape) if node.shape.leading else tuple(shape)
    index = torch.arange(math.prod(whole), device=device).reshape(whole)
    return uniform(index, int(args[0]), int(args[1])).to(held)


def _take(node: Expr, x: Tensor, ids: Tensor) -> Tensor:
    axis, size = node.attr + x.dim(), x.shape[node.attr]
    flat = ids.reshape(-1).long()
    inside = (flat >= 0) & (flat < size)
    if not size:
        found = x.new_zeros((*x.shape[:axis], flat.numel(), *x.shape[axis + 1 :]))
    else:
        found = x.index_select(axis, torch.where(inside, flat, 0))
        mask = inside.reshape(-1, *(1,) * (x.dim() - axis - 1))
        found = torch.where(mask, found, torch.zeros((), dtype=x.dtype, device=x.device))
    return found.reshape((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]))


def _scatter_add(node: Expr, args: list[Tensor], how: _Arithmetic, sizes: dict[str, int]) -> Tensor:
    dim, at, total = node.attr
    ids, values = args[0].long(), args[1]
    size = sizes[dim.name]
    if len(node.args[1].shape.dims) == 0 or node.args[1].shape == node.args[0].shape:
        values, ids = values.expand(ids.shape).reshape(-1), ids.reshape(-1)
    axis = at + values.dim()
    inside = ((ids >= 0) & (ids < size)).nonzero().reshape(-1)
    held = how.held(total)
    found = torch.zeros((*values.shape[:axis], size, *values.shape[axis + 1 :]), dtype=held, device=values.device)
    found.index_add_(axis, ids[inside], values.index_select(axis, inside).to(held))
    return found.to(how.held(node.dtype))


def _exchange(node: Expr, x: Tensor) -> Tensor:
    if node.attr == "halves":
        return x.roll(x.shape[-1] // 2, -1)
    return x.reshape(*x.shape[:-1], -1, 2).flip(-1).reshape(x.shape)


def _apply(node: Expr, args: list[Tensor], how: _Arithmetic) -> Tensor:
    op = node.op
    if op == "take":
        return _take(node, args[0], args[1])
    if op == "exchange":
        return _exchange(node, args[0])
    if op == "external":
        found: Tensor = node.attr.reference(*args)[node.attr.index]
        return found.to(how.held(node.dtype))
    if op == "transpose":
        return args[0].mT
    if op == "cast":
        return how.cast(args[0], node.dtype)
    if op == "matmul":
        return how.matmul(node, args[0], args[1])
    if op == "grouped_matmul":
        return _grouped_matmul(node, how, *args)
    if op in _LOGICAL:
        return _LOGICAL[op](args[0], args[1])
    if op == "not":
        return torch.logical_not(args[0])
    if op in _COMPARE:
        common = torch.promote_types(*(how.held(compute_dtype(a.dtype)) for a in node.args))
        return _COMPARE[op](args[0].to(common), args[1].to(common))
    # What is reduced is held as it is: its own dtype need not be the result's.
    held = how.held(compute_dtype(node.args[0].dtype if op == "argmax" else node.dtype))
    if op == "where":
        return torch.where(args[0], args[1].to(held), args[2].to(held))
    args = [a.to(held) for a in args]
    if op in REDUCTIONS:
        return _reduce(op, args[0], node.attr).to(how.held(node.dtype))
    return _UNARY[op](args[0]) if op in _UNARY else _BINARY[op](args[0], args[1])


def _reduce(op: str, x: Tensor, axis: Axes) -> Tensor:
    if op == "argmax":
        # torch names any of several equals.
        flat = x if axis is not None else x.reshape(-1)
        largest = flat.amax(-1, keepdim=True)
        hit = (flat == largest) | (flat.isnan() & largest.isnan())
        return hit.to(torch.uint8).argmax(-1, keepdim=axis is not None)
    function: Any = getattr(torch, op)
    if axis is None:
        return function(x.reshape(-1), dim=0)  # type: ignore[no-any-return]
    return function(x, dim=axis, keepdim=True)  # type: ignore[no-any-return]


def _fitted(graph: Graph, index: int, value: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """A result in the shape its output is declared with: a reduced last axis dropped, broadcast ones spread."""
    spec, node = graph.outputs[index], graph.results[index]
    for axis in left_out(node, spec):
        value = value.squeeze(axis)
    return value.expand(tensors[spec.name].shape) if spec.name in tensors else value


def evaluate(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """The graph's results in float64 or int64 (bool stays), on the tensors' device, not rounded to the outputs' dtypes.

    `tensors` are the inputs by name; outputs may be among them and then give the shape to broadcast to.
    """
    return tuple(_run(graph, tensors, scalars, _Arithmetic()))


def evaluate_exactly(
    graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[Tensor, ...] | None:
    """As `evaluate`, where these very values leave no rounding to any order of the operator's own arithmetic; else None.

    Then every right kernel gives the same bits: each step's result is representable, each sum is small enough that all its
    partial sums are exact in the accumulator.
    """
    proof = _Proof()
    results = _run(graph, tensors, scalars, proof)
    return tuple(results) if proof.holds else None


def evaluate_ranged(
    graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """As `evaluate`, but what is beyond the range of the dtype that a kernel computes in is infinite; and for each result
    where it is in doubt (a bool for each element): rounding, denormals, or the order of a sum whose terms come near that
    range, decide what comes out.
    """
    ranged, doubtful = (_run(graph, tensors, scalars, _Ranged(doubt)) for doubt in (False, True))
    doubts = (
        ~torch.isclose(a.double(), b.double(), rtol=2.0**-20, atol=1e-30, equal_nan=True)
        for a, b in zip(ranged, doubtful)
    )
    return tuple(ranged), tuple(doubts)


def native(graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> tuple[Tensor, ...]:
    """The graph op by op by torch in its own dtypes, rounded to the outputs' dtypes: the error that is to be expected.

    Matrix products are torch.matmul in the storage dtype (f32 results of narrower matrices keep f32). Accumulation in f16,
    and the fp8 tensor cores' shortened sums, which torch does not offer everywhere, are followed step by step.
    """
    results = _run(graph, tensors, scalars, _Native(graph))
    return tuple(round_to(value, spec.dtype) for value, spec in zip(results, graph.outputs))


# Matrix products.


def _grouped_matmul(node: Expr, how: _Arithmetic, a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    found = a.new_zeros((a.shape[0], b.shape[2]), dtype=how.held(node.dtype))
    begin = 0
    for g, end in enumerate(offsets[1:].clamp(0, a.shape[0]).tolist()):
        if end > begin:
            found[begin:end] = how.matmul(node, a[begin:end], b[g])
            begin = end
    return found


def _block_sums(node: Expr, args: list[Tensor]) -> Iterator[tuple[list[Tensor], int]]:
    """The terms of the sums that tensor cores make of a product's scaled blocks, and the digits they have for each."""
    depth = blocked(node) if node.op == "matmul" else 0
    for k in range(0, args[0].shape[-1] if depth else 0, max(depth, 1)):
        yield [args[0][..., k : k + depth], args[1][..., k : k + depth, :]], FP8_SUM_DIGITS - 1


def _largest_sum(node: Expr, args: list[Tensor], enough: float) -> float:
    """A bound on every partial sum of a contraction of integers, which need be no closer than `enough`.

    Infinity where the values are not integers.
    """
    if any(a.numel() == 0 for a in args):
        return 0.0
    values = [a.double() for a in (args[1:] if node.op == "scatter_add" else args)]
    if not all(bool((v == v.round()).all()) for v in values):
        return math.inf
    if node.op == "scatter_add":
        if values[0].dim() == 0 or values[0].shape == args[0].shape:
            return float(values[0].abs().sum()) * (args[0].numel() if values[0].dim() == 0 else 1)
        return float(values[0].abs().sum(node.attr[1]).max())
    if node.op == "sum":
        return float(_reduce("sum", values[0].abs(), node.attr).max())
    a, b = (v.abs() for v in values[:2])
    if node.op == "grouped_matmul":  # the largest of all groups
        b = b.amax(0)
    quick = float(a.max()) * float(b.max()) * a.shape[-1]
    return quick if quick <= enough else float(torch.matmul(a, b).max())
