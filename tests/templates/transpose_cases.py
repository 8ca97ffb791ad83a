"""The cases of the transpose template: plain, batched and fused, any permutation, lines of any alignment, tiles cut anywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from cases import TARGET, Group

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast
from kgen.dsl.family import family_of
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, bool_, f32, f64, i64
from kgen.ops.elementwise import Transpose

B, M, N = dims("B M N")

EXPRESSIONS = ("plain", "permuted", "sum", "itself", "bias", "outputs", "counted")
PERMUTATIONS = ((0, 2, 1), (2, 1, 0), (2, 0, 1), (1, 2, 0))
OPERANDS = ("dense", "padded", "odd pitch", "align element", "align 4")
SHAPES = ("tile", "above", "below", "several", "prime", "thin")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """an operator that transposes an input, exact on small whole numbers."""
    t = DTYPES[dtype]
    wide = f64 if t is f64 else i64 if t.kind == "int" else f32
    transposed = Tensor[t, ..., N, M]

    def plain(x: Expr) -> Expr:
        return x.T

    def permuted(x: Expr) -> Expr:
        return x

    def sum(x: Expr, y: Expr, s: Expr) -> Expr:
        return x.T + y - s

    def itself(x: Expr) -> Expr:
        return x + x.T

    def bias(x: Expr, b: Expr, c: Expr) -> Expr:
        return x.T * b + c

    def outputs(x: Expr) -> tuple[Expr, Expr]:
        return x.T, x.T + 1

    def counted(x: Expr, n: Expr) -> Expr:
        return cast(x.T, wide) + arange(N, 1) * n - arange(M)

    annotations = {
        "plain": {"x": Tensor[t, ..., M, N], "return": transposed},
        "permuted": {"x": Tensor[t, B, M, N], "return": Tensor[t, B, M, N]},
        "sum": {"x": Tensor[t, ..., M, N], "y": transposed, "s": Tensor[t, 1], "return": Tensor[wide, ..., N, M]},
        "itself": {"x": Tensor[t, M, M], "return": Tensor[wide, M, M]},
        "bias": {"x": Tensor[t, ..., M, N], "b": Tensor[t, M], "c": Tensor[t, N, 1], "return": Tensor[wide, ..., N, M]},
        "outputs": {"x": Tensor[t, M, N], "return": tuple[Tensor[t, N, M], Tensor[wide, N, M]]},
        "counted": {"x": Tensor[t, ..., M, N], "n": int, "return": Tensor[wide, ..., N, M]},
    }
    function: Callable[..., object] = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"{expression}_{dtype}")


def _size(source: random.Random, trait: str, tile: int) -> int:
    return {
        "tile": tile,
        "above": tile + source.choice((1, 2, 3)),
        "below": max(1, tile - source.choice((1, 3))),
        "several": 2 * tile + source.choice((0, 8, 13)),
        "prime": source.choice((2, 5, 37, 101)),
        "thin": source.choice((2, 3, 8)),
    }[trait]


def _place(o: Operand, kind: str, order: tuple[int, ...] | None = None) -> Operand:
    """The operand with the strides and alignment of its kind, its axes in memory in the given order."""
    order = order or tuple(range(len(o.shape)))
    stored = [o.shape[a] for a in order]
    size = o.dtype.bytes
    unit = max(1, 16 // size)
    strides = list(dense_strides(stored))
    if kind in ("padded", "odd pitch") and len(stored) > 1:
        pitch = -(-stored[-1] // unit) * unit + unit if kind == "padded" else stored[-1] + 3 - stored[-1] % 2
        strides = [*(s * pitch for s in dense_strides(stored[:-1])), 1]
    placed = [0] * len(stored)
    for axis, stride in zip(order, strides):
        placed[axis] = stride
    align = {"align element": size, "align 4": max(4, size)}.get(kind, 16)
    return replace(o, strides=tuple(placed), align=align)


def _make(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    known = EXPRESSIONS[:2] if DTYPES[dtype] is bool_ else EXPRESSIONS
    traits = {
        "expression": source.choice(known),
        "operands": source.choice(OPERANDS),
        "rows": source.choice(SHAPES),
        "columns": source.choice(SHAPES),
    }
    fixed: dict[str, Value] = {
        "tile_rows": source.choice((16, 32, 64)),
        "tile_columns": source.choice((16, 32, 64)),
        "threads": source.choice((128, 256)),
    }
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    graph = operator(dtype, traits["expression"]).graphs[0]
    rows = _size(source, traits["rows"], int(fixed["tile_rows"]))
    columns = _size(source, traits["columns"], int(fixed["tile_columns"]))
    if traits["expression"] == "itself":
        columns = rows
    head = source.choice(((), (3,), (2, 2))) if rows * columns < 20000 else ()
    sizes = {"B": 3, "M": columns, "N": rows}
    order = None
    if traits["expression"] == "permuted":
        order = source.choice(PERMUTATIONS)
        sizes = {"B": 3, "M": columns, "N": columns} | {"BMN"[order[-1]]: rows}
        if order[-1] != 0 and rows * columns > 4000:
            sizes["B"] = 2
        if math.prod(sizes.values()) > 50000:
            sizes |= {k: min(n, 20) for k, n in sizes.items() if k != "BMN"[order[-1]] and k != "N"}
    special = source.choice(((0,), (1, 2), (0, 1, 2, 3)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        shape = tuple(int(sizes.get(str(d), d)) for d in spec.shape.dims)
        shape = ((*head, *shape) if spec.shape.leading else shape) or (1,)
        plain = Operand(spec.name, spec.dtype, shape, dense_strides(shape))
        kind = traits["operands"] if number in special else "dense"
        operands.append(_place(plain, kind, order if number == 0 else None))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return (problem, fixed, traits) if Transpose.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    return math.prod(problem.leading) / 1e5


def groups() -> list[Group]:
    """A group for each dtype, two for f16."""
    return [
        Group(
            f"Transpose-{t.name}-{number}",
            Transpose,
            partial(_make, t.name),
            {
                "expression": EXPRESSIONS[:2] if t is bool_ else EXPRESSIONS,
                "operands": OPERANDS,
                "rows": SHAPES,
                "columns": SHAPES,
            },
            _cost,
            lambda fixed: TARGET,
        )
        for t in DTYPES.values()
        for number in range(2 if t.name == "f16" else 1)
        if t.name not in ("tf32", "e5m2")
    ]
