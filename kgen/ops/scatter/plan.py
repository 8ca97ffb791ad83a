"""ScatterPlan: a graph with one scatter_add, seen as values added at ids and a pointwise function of the sums.

Values have axes of their own: along one of them, `along`, ids say where in the result each index goes; of a histogram
(`flat`) all axes together are the index. Where the result is `base + coefficient * sums` in the dtype that sums are made in,
they are made in the output itself, which begins as the base: `direct`. Else they are made in a workspace that is zero before
and after; by `rows`, in registers, of what the dtype is computed in.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kgen.dsl.expr import Expr, Shape, constant, walk
from kgen.dsl.operator import Graph
from kgen.dsl.ops import LEAVES, POINTWISE
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import evaluate
from kgen.dsl.types import DType, bf16, compute_dtype, f16, f32, f64, i32, i64
from kgen.ops.common.lowering import Axis, Coordinate, Lowering, Read

_OPERATIONS = POINTWISE | LEAVES | {"arange", "size", "scatter_add"}
#: The most that is counted in 32 bits: there is room for a step of the whole grid beyond the end.
NARROW = 2**31 - 2**26 - 1
#: What atomic additions exist for.
TOTALS = (f32, f64, f16, bf16, i32, i64)


def scattered(graph: Graph) -> Expr | None:
    """The one scatter_add of a graph whose results are pointwise over it; else None."""
    nodes = graph.nodes
    found = [n for n in nodes if n.op == "scatter_add"]
    if len(found) != 1 or not all(n.op in _OPERATIONS for n in nodes):
        return None
    (node,) = found
    fits = all(spec.shape == node.shape for spec in graph.outputs) and node.attr[2] in TOTALS
    return node if fits else None


def matches(graph: Graph) -> bool:
    """Whether the results are pointwise over the sums of one scatter_add."""
    return scattered(graph) is not None


@dataclass(frozen=True)
class Linear:
    """base + coefficient * sums; None stands for a base of 0 and for a coefficient of 1."""

    base: Expr | None
    coefficient: Expr | None


def linear(result: Expr, sums: Expr) -> Linear | None:
    """A result as a base and a multiple of the sums by a number that is the same everywhere; else None."""
    if result is sums:
        return Linear(None, None)
    inside = [any(n is sums for n in walk((a,))) for a in result.args]
    if result.op not in ("mul", "add", "sub") or inside.count(True) != 1:
        return None
    term, other = result.args if inside[0] else result.args[::-1]
    found = linear(term, sums)
    if found is None or found.base is not None or result.dtype is not sums.dtype:
        return None
    if result.op == "mul":
        fixed = all(n.op in POINTWISE | {"scalar", "const", "size"} for n in walk((other,)))
        return Linear(None, _product(found.coefficient, other)) if fixed else None
    if result.op == "sub" and inside[0]:
        return None
    minus = constant(-1, sums.dtype)
    return Linear(other, _product(found.coefficient, minus) if result.op == "sub" else found.coefficient)


def _product(a: Expr | None, b: Expr) -> Expr:
    return b if a is None else Expr("mul", (a, b), b.dtype, Shape(), None, b.where)


@dataclass(frozen=True)
class ScatterPlan:
    """A normalised problem, lowered.

    `sizes` are those of the axes of the values, `result_sizes` of the result. `id` and `value` are lowered over the former,
    `results` (of the direct form the base; none where that is 0) over the latter, with `sums` for the sums.
    """

    problem: Problem
    total: DType
    flat: bool
    along: int
    sizes: tuple[int, ...]
    result_sizes: tuple[int, ...]
    direct: bool
    values: Lowering
    id: Expr
    value: Expr
    finish: Lowering
    sums: Expr
    results: tuple[Expr, ...]

    @property
    def columns(self) -> int:
        """The size of the axis that vectors run along: the last one, where it is untouched; else 1."""
        return self.sizes[-1] if self.has_columns else 1

    @property
    def has_columns(self) -> bool:
        """Whether the last axis of the values is not the one that ids are along."""
        return not self.flat and self.along < len(self.sizes) - 1

    @property
    def count(self) -> int:
        """How many ids there are for each result."""
        return math.prod(self.sizes) if self.flat else self.sizes[self.along]

    @property
    def batch_axes(self) -> tuple[int, ...]:
        """The axes of the values that are neither along ids nor columns."""
        if self.flat:
            return ()
        return tuple(
            a for a in range(len(self.sizes)) if a != self.along and (a < len(self.sizes) - 1 or not self.has_columns)
        )

    @property
    def batches(self) -> int:
        return math.prod(self.sizes[a] for a in self.batch_axes)

    @property
    def reads(self) -> list[Read]:
        """What ids and values are read from."""
        return [s for s in self.values.steps if isinstance(s, Read)]

    @property
    def finish_reads(self) -> list[Read]:
        """What the results are read from, beside the sums."""
        return [s for s in self.finish.steps if isinstance(s, Read)]

    @property
    def target(self) -> Operand:
        """What sums are made in: the output, or the workspace, which is dense."""
        if self.direct:
            return self.problem.outputs[0]
        strides, step = [], 1
        for n in reversed(self.result_sizes):
            strides.append(step)
            step *= n
        return Operand("sums", self.total, self.result_sizes, tuple(reversed(strides)))

    def kind(self, read: Read) -> str:
        """How the values are read along the columns: by "vector", "strided", or "one" for all."""
        return self._kind(read, len(self.sizes) - 1) if self.has_columns else "one"

    def last_kind(self, read: Read) -> str:
        """The same along the last axis, though it may be the one that ids are along."""
        return self._kind(read, len(self.sizes) - 1)

    def finish_kind(self, read: Read) -> str:
        """The same for what the results are read from."""
        return self._kind(read, len(self.result_sizes) - 1)

    @staticmethod
    def _kind(read: Read, last: int) -> str:
        if all(c != Axis(last) for c, _ in read.terms):
            return "one"
        beside = read.operand.strides[-1] == 1 and (Axis(last), len(read.operand.shape) - 1) in read.terms
        return "vector" if beside else "strided"


@functools.lru_cache(maxsize=256)
def plan(problem: Problem, rows: bool = False) -> ScatterPlan:
    """A problem, normalised, lowered; for kernels that write each of the `rows` of the result once, never the direct form."""
    graph = problem.graph
    node = scattered(graph)
    assert node is not None
    ids, value = node.args
    _, axis, total = node.attr
    total = compute_dtype(total) if rows else total
    flat = node.shape.dims == (node.attr[0],) and (
        value.shape == Shape() or (value.shape == ids.shape and _is_flat(ids))
    )
    shape = ids.shape if flat else value.shape
    lead = problem.leading if shape.leading else ()
    sizes = (*lead, *(evaluate(d, problem.sizes) for d in shape.dims))
    along = len(sizes) - 1 if flat else len(sizes) + axis
    if total is i32 and _counts_beyond(graph, node, math.prod(sizes)):
        total = i64
    values = Lowering(problem, len(sizes))
    everywhere = tuple(None if d == 1 else Axis(len(lead) + a) for a, d in enumerate(shape.dims))
    at: tuple[Coordinate, ...] = (*map(Axis, range(len(lead))), *everywhere)
    id = values.lower(ids, at if flat else (Axis(along),), ())
    found = linear(graph.results[0], node) if len(graph.results) == 1 else None
    direct = found is not None and graph.outputs[0].dtype is total and not rows
    lowered = values.lower(value, at if value.shape == shape else (), ())
    if direct and found is not None and found.coefficient is not None:
        factor = values.lower(found.coefficient, (), ())
        lowered = Expr("mul", (lowered, factor), node.dtype, Shape(), None, node.where)
    result_sizes = problem.outputs[0].shape
    finish = Lowering(problem, len(result_sizes))
    leaf = Expr("sums", (), i64 if total is i64 else node.dtype, Shape(), None)
    results: tuple[Expr, ...]
    if direct and found is not None:
        base = found.base
        results = () if base is None else (finish.expression(base, node.shape),)
    else:
        finish.define(node, finish.coordinates(node.shape), leaf)
        results = tuple(finish.result(i) for i in range(len(problem.outputs)))
    return ScatterPlan(
        problem, total, flat, along, sizes, result_sizes, direct, values, id, lowered, finish, leaf, results
    )


def _counts_beyond(graph: Graph, node: Expr, count: int) -> bool:
    """Whether sums of so many equal numbers may be beyond i32, and they alone are the results, as i64."""
    value = node.args[1]
    whole = all(y.dtype is i64 and r is node for y, r in zip(graph.outputs, graph.results))
    return whole and value.op == "const" and count * abs(value.attr) > NARROW


def _is_flat(ids: Expr) -> bool:
    return ids.shape.leading or len(ids.shape.dims) > 1


def base_input(p: ScatterPlan) -> str | None:
    """The input that the output begins as, where that is one as it is: when it is the output itself, nothing is to be done."""
    if not p.direct or not p.results or p.results[0].op != "read":
        return None
    read: Read = p.results[0].attr
    o, y = read.operand, p.problem.outputs[0]
    same = (o.shape, o.strides, o.dtype) == (y.shape, y.strides, y.dtype)
    return o.name if same and not read.guards else None
