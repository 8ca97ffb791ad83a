"""The cases of the templates that add at ids: every kind of sum and of result, ids in and out of range, all layouts."""

from __future__ import annotations

import math
import random
from functools import cache, partial

from cases import Group
from elementwise_cases import _place

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr
from kgen.dsl.family import family_of
from kgen.dsl.functions import maximum
from kgen.dsl.indexing import arange, scatter_add
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, i8, i32, i64
from kgen.ops.scatter import ScatterAdd, ScatterBins, ScatterRows

K, M, N, V = dims("K M N V")

#: Of vectors, of rows, and of bins.
EXPRESSIONS = ("rows", "minus", "finished", "middle", "last", "fused", "outputs", "leading", "counts", "weights")
ROWS = ("rows", "minus", "finished", "fused", "outputs")
BINS = ("counts", "counts of a matrix", "weights", "scaled", "column", "finished bins")
OPERANDS = ("dense", "padded", "odd pitch", "strided", "transposed", "align element", "align 4")
SHAPES = ("one", "prime", "below a run", "above a run", "several")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator that adds at ids, exact on small whole numbers. An id of -1 is outside the result."""
    t = DTYPES[dtype]
    held = i32 if t is i8 else t

    def rows(x: Expr, ids: Expr, y: Expr, alpha: Expr) -> Expr:
        return x + alpha * scatter_add(V, ids - 1, y, accumulate=held)

    def minus(x: Expr, ids: Expr, y: Expr) -> Expr:
        return x - scatter_add(V, ids, y, accumulate=held)

    def finished(ids: Expr, y: Expr, b: Expr) -> Expr:
        return maximum(2 * scatter_add(V, ids - 1, y) - b, arange(N))

    def middle(ids: Expr, y: Expr) -> Expr:
        return scatter_add(V, ids - 1, y, axis=-2)

    def last(x: Expr, ids: Expr, y: Expr) -> Expr:
        return x + scatter_add(V, ids - 1, y, axis=-1, accumulate=held)

    def fused(ids: Expr, y: Expr, w: Expr, c: Expr) -> Expr:
        return scatter_add(V, ids, y * w + c)

    def outputs(ids: Expr, y: Expr, x: Expr) -> tuple[Expr, Expr]:
        found = scatter_add(V, ids, y)
        return found, found + x

    def leading(ids: Expr, y: Expr) -> Expr:
        return 2 * scatter_add(V, ids, y, axis=-2, accumulate=held)

    def counts(ids: Expr) -> Expr:
        return scatter_add(V, ids - 1, 1)

    def counts_of_a_matrix(ids: Expr) -> Expr:
        return scatter_add(V, ids, 2) + arange(V)

    def weights(ids: Expr, y: Expr) -> Expr:
        return scatter_add(V, ids - 1, y, accumulate=held)

    def scaled(ids: Expr, y: Expr, x: Expr, alpha: Expr) -> Expr:
        return x + scatter_add(V, ids, y, accumulate=held) * alpha

    def column(ids: Expr, y: Expr) -> Expr:
        return scatter_add(V, ids - 1, y + y, accumulate=held)

    def finished_bins(ids: Expr, y: Expr) -> Expr:
        return maximum(scatter_add(V, ids, y), 0)

    ids, y, full = Tensor[i64, M], Tensor[t, M, N], Tensor[held, V, N]
    both = {"ids": Tensor[i32, M, N], "y": y}
    annotations = {
        "rows": {"x": full, "ids": ids, "y": y, "alpha": int, "return": full},
        "minus": {"x": full, "ids": ids, "y": y, "return": full},
        "finished": {"ids": Tensor[i32, M], "y": y, "b": Tensor[t, N], "return": full},
        "middle": {"ids": ids, "y": Tensor[t, K, M, N], "return": Tensor[held, K, V, N]},
        "last": {"x": Tensor[held, K, V], "ids": ids, "y": Tensor[t, K, M], "return": Tensor[held, K, V]},
        "fused": {"ids": ids, "y": y, "w": Tensor[t, N], "c": Tensor[t, M, 1], "return": full},
        "outputs": {"ids": ids, "y": y, "x": full, "return": tuple[full, full]},
        "leading": {"ids": ids, "y": Tensor[t, ..., M, N], "return": Tensor[held, ..., V, N]},
        "counts": {"ids": Tensor[i64 if t.bits > 8 else i8, ...], "return": Tensor[i32, V]},
        "counts_of_a_matrix": {"ids": Tensor[i32, M, N], "return": Tensor[i32, V]},
        "weights": {**both, "return": Tensor[held, V]},
        "scaled": {**both, "x": Tensor[held, V], "alpha": int, "return": Tensor[held, V]},
        "column": {"ids": ids, "y": Tensor[t, M], "return": Tensor[held, V]},
        "finished_bins": {**both, "return": Tensor[held, V]},
    }
    name = expression.replace(" ", "_")
    function = locals()[name]
    function.__annotations__ = annotations[name]
    return Operator(function, f"scatter_{name}_{dtype}")


def _make(
    schedule: type[Schedule], dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    vectors = schedule is not ScatterBins
    expressions = {ScatterAdd: EXPRESSIONS, ScatterBins: BINS, ScatterRows: ROWS}[schedule]
    traits = {
        "expression": source.choice(expressions),
        "operands": source.choice(OPERANDS),
        "shape": source.choice(SHAPES),
    }
    fixed: dict[str, Value] = {}
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    if schedule is ScatterAdd and name in ("lanes", "atomic", "pack"):
        traits["expression"] = source.choice(("rows", "minus", "finished", "middle", "fused", "leading"))
    graph = operator(dtype, traits["expression"]).graphs[0]
    run = int(fixed.get("items", 4)) * int(fixed.get("rounds", 2))
    pack = int(fixed.setdefault("pack", source.choice(schedule.fields["pack"].values)))
    fixed["threads"] = fixed.get("threads", source.choice(schedule.fields["threads"].values))
    rows = {"one": 1, "prime": 37, "below a run": max(1, run - 1), "above a run": run + 1, "several": 150}[
        traits["shape"]
    ]
    columns = source.choice((1, 2, 3, 8)) * pack
    if name == "lanes":
        columns = pack * int(fixed["lanes"])
        fixed["threads"] = max(int(fixed["threads"]), int(fixed["lanes"]))
    elif vectors:
        fixed["lanes"] = 1 << source.randint(0, (max(1, columns // pack) - 1).bit_length())
    sizes = {"M": rows, "N": columns, "K": 3, "V": source.choice((1, 5, 33))}
    special = source.choice(((0,), (1,), (0, 1, 2, 3), (2, 3)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple(int(sizes.get(str(d), d)) for d in spec.shape.dims)  # type: ignore[call-overload]
        head = ((rows, 5) if traits["expression"] == "counts" else (2, 1)) if spec.shape.leading else ()
        kind = traits["operands"] if number in special and (*head, *named) else "dense"
        operands.append(_place(spec, (*head, *named), kind))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return (problem, fixed, traits) if schedule.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    return max(math.prod(o.shape) for o in problem.operands) / 4e4


def groups() -> list[Group]:
    """Groups for each schedule and dtype."""
    found = []
    for schedule, dtypes, expressions in (
        (ScatterAdd, ("f16", "f32", "bf16", "f64", "i8", "i64", "f16", "f32", "bf16", "f16"), EXPRESSIONS),
        (ScatterBins, ("f32", "i32", "f16", "f64", "i8", "i32", "i8", "f16", "i8"), BINS),
        (ScatterRows, ("f16", "f32", "bf16", "f64", "i8", "i64", "f32", "f16"), ROWS),
    ):
        traits = {"expression": expressions, "operands": OPERANDS, "shape": SHAPES}
        for number, dtype in enumerate(dtypes):
            make = partial(_make, schedule, dtype)
            found.append(Group(f"{schedule.__name__}-{dtype}-{number}", schedule, make, traits, _cost))
    return found
