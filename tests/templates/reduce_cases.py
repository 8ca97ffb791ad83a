"""The cases of the reduce template: every dtype, all kinds of operands and strides, sizes around vectors, blocks and batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial

from cases import Group
from elementwise_cases import _place

from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, DType, f32, f64, i64
from kgen.ops.reduction import Reduce

M, N = dims("M N")

NAMES = ("f16", "bf16", "f32", "f64", "e4m3", "e5m2", "i8", "i32")
EXPRESSIONS = ("sum", "dot", "several", "extremes", "first", "row", "column", "scaled", "selected", "square")
OPERANDS = ("dense", "transposed", "padded", "odd pitch", "strided", "expanded", "align element", "align 4", "align 8")
SHAPES = (
    "one",
    "prime",
    "below a vector",
    "above a vector",
    "below a block",
    "above a block",
    "below a batch",
    "several",
)
SHAPES += ("rows",)


def total(t: DType) -> DType:
    """What the sums of a dtype are returned in."""
    return f64 if t is f64 else f32 if t.is_float else i64


def exact(x: Expr) -> Expr:
    """Integers as those whose sums cannot overflow."""
    return x if x.dtype.is_float else cast(x, i64)


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator of two dimensions reduced to one value, exact on small whole numbers."""
    t, r = DTYPES[dtype], total(DTYPES[dtype])
    full, one = Tensor[t, M, N], Tensor[r]

    def sum(x: Expr) -> Expr:
        return F.sum(exact(x), None)

    def dot(x: Expr, y: Expr) -> Expr:
        return F.sum(exact(x * y), None)

    def several(x: Expr, y: Expr) -> tuple[Expr, Expr, Expr]:
        return F.sum(exact(x), None), F.amax(x - y, None), F.sum(exact(x * y), None) - F.sum(exact(y), None)

    def extremes(x: Expr) -> tuple[Expr, Expr]:
        return F.amax(x, None), F.amin(x, None)

    def first(x: Expr, y: Expr) -> tuple[Expr, Expr]:
        return F.argmax(x, None), F.argmax(y - x, None)

    def row(x: Expr, b: Expr) -> Expr:
        return F.sum(exact(x + b), None)

    def column(x: Expr, w: Expr) -> Expr:
        return F.sum(exact(x * w), None)

    def scaled(x: Expr, s: Expr, alpha: Expr) -> Expr:
        return F.sum(exact(x), None) * alpha + s

    def selected(x: Expr, y: Expr) -> Expr:
        return F.sum(where(x > y, exact(x), 0), None)

    def square(x: Expr) -> Expr:
        return F.sum(exact(x * x), None)

    annotations = {
        "sum": {"x": full, "return": one},
        "dot": {"x": full, "y": full, "return": one},
        "several": {"x": full, "y": full, "return": tuple[one, one, Tensor[r, 1]]},
        "extremes": {"x": full, "return": tuple[Tensor[t, 1, 1], one]},
        "first": {"x": full, "y": full, "return": tuple[Tensor[i64], Tensor[i64]]},
        "row": {"x": full, "b": Tensor[t, N], "return": one},
        "column": {"x": full, "w": Tensor[t, M, 1], "return": one},
        "scaled": {"x": full, "s": Tensor[t, 1], "alpha": int, "return": one},
        "selected": {"x": full, "y": full, "return": one},
        "square": {"x": full, "return": one},
    }
    function: Callable[..., object] = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"{expression}_{dtype}")


def _shape(source: random.Random, trait: str, pack: int, threads: int, items: int) -> tuple[int, int]:
    rows, block, batch = source.choice((1, 3)), threads * pack, threads * pack * items
    wide = {
        "one": 1,
        "prime": source.choice((7, 37, 131)),
        "below a vector": max(1, 2 * pack - 1),
        "above a vector": 2 * pack + 1,
        "below a block": block - 1,
        "above a block": block + 1,
        "below a batch": batch - 1,
        "several": 5 * batch // 2 + 3,
        "rows": source.choice((4, 9)) * pack + source.choice((0, 1)),
    }[trait]
    return (1 if trait == "one" else 131 if trait == "rows" else rows, wide)


def placed(problem_operands: list[tuple[Operand, str]]) -> list[Operand]:
    """Operands as their kinds say; `expanded` ones have their first axis repeated."""
    return [
        Operand(o.name, o.dtype, o.shape, (0, *o.strides[1:]), o.align)
        if kind == "expanded" and len(o.shape) > 1
        else o
        for o, kind in problem_operands
    ]


def _make(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    fields = Reduce.fields
    fixed: dict[str, Value] = {
        "pack": source.choice(fields["pack"].values),
        "threads": source.choice((32, 64, 256)),
        "items": source.choice(fields["items"].values),
    }
    traits = {
        "expression": source.choice(EXPRESSIONS),
        "operands": source.choice(OPERANDS),
        "shape": source.choice(SHAPES),
    }
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    graph = operator(dtype, traits["expression"]).graphs[0]
    shape = _shape(source, traits["shape"], int(fixed["pack"]), int(fixed["threads"]), int(fixed["items"]))
    special = source.choice(((0,), (1,), (0, 1)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple(int({"M": shape[0], "N": shape[1]}.get(str(d), d)) for d in spec.shape.dims)
        kind = traits["operands"] if number in special and number < len(graph.inputs) else "dense"
        operands.append((_place(spec, named, kind), kind))
    problem = family_of(graph).normalise(Problem.bind(graph, placed(operands)))
    return problem, fixed, traits


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    return max(o.elements for o in problem.inputs) / 6e4


def groups() -> list[Group]:
    """Two groups for each dtype."""
    return [
        Group(
            f"Reduce-{name}-{number}",
            Reduce,
            partial(_make, name),
            {"expression": EXPRESSIONS, "operands": OPERANDS, "shape": SHAPES},
            _cost,
            searched=number > 0,
        )
        for name in NAMES
        for number in range(2)
    ]
