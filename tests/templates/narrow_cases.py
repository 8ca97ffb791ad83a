"""The cases of the transpose_narrow template: both sides, any number of few, matrices that share a block, vectors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache, partial

from cases import TARGET, Group

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, bool_, f32, f64, i64
from kgen.ops.elementwise import TransposeNarrow

M, N = dims("M N")

EXPRESSIONS = ("plain", "scaled")
FEW = ("2", "3", "4", "5", "6", "8", "20", "21", "63", "64")
ROWS = ("a block", "above", "below", "several", "two matrices", "small matrices")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator that transposes its one input, exact on small whole numbers; `scaled` into a wider dtype."""
    t = DTYPES[dtype]
    wide = f64 if t is f64 else i64 if t.kind == "int" else f32

    def plain(x: Expr) -> Expr:
        return x.T

    def scaled(x: Expr, n: Expr) -> Expr:
        return cast(x.T, wide) * n + 1

    annotations = {
        "plain": {"x": Tensor[t, ..., M, N], "return": Tensor[t, ..., N, M]},
        "scaled": {"x": Tensor[t, ..., M, N], "n": int, "return": Tensor[wide, ..., N, M]},
    }
    function: Callable[..., object] = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"narrow_{expression}_{dtype}")


def _make(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    traits = {
        "expression": "plain" if DTYPES[dtype] is bool_ else source.choice(EXPRESSIONS),
        "few": source.choice(FEW),
        "rows": source.choice(ROWS),
    }
    fixed: dict[str, Value] = {
        "span": source.choice(("input", "output")),
        "pack": source.choice((1, 2, 4)),
        "vectors": source.choice((1, 2)),
        "threads": source.choice((64, 128)),
    }
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    graph = operator(dtype, traits["expression"]).graphs[0]
    pack = int(fixed["pack"])
    block = int(fixed["threads"]) * pack * int(fixed["vectors"])
    few = int(traits["few"])
    rows = {"a block": block, "above": block + pack, "below": block - pack, "several": 2 * block + 3 * pack}
    rows |= {"two matrices": block + 5 * pack, "small matrices": max(pack, block // 8 + pack)}
    matrices = {"two matrices": 3, "small matrices": 20}.get(traits["rows"], 1)
    many = rows[traits["rows"]]
    shape = (many, few) if fixed["span"] == "input" else (few, many)
    head = (matrices,) if matrices > 1 else ()
    operands = []
    for spec, axes in zip((*graph.inputs, *graph.outputs), (shape, shape[::-1])):
        sizes = (*head, *axes)
        operands.append(Operand(spec.name, spec.dtype, sizes, dense_strides(sizes)))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return (problem, fixed, traits) if TransposeNarrow.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    return math.prod(problem.leading) / 2e5


def groups() -> list[Group]:
    """A group for each dtype."""
    return [
        Group(
            f"TransposeNarrow-{t.name}-0",
            TransposeNarrow,
            partial(_make, t.name),
            {"expression": EXPRESSIONS[:1] if t is bool_ else EXPRESSIONS, "few": FEW, "rows": ROWS},
            _cost,
            lambda fixed: TARGET,
        )
        for t in DTYPES.values()
        if t.name not in ("tf32", "e5m2")
    ]
