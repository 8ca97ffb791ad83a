"""The cases of the gather templates: ids along rows, columns and both, nested, computed, out of range; windows of sums."""

from __future__ import annotations

import math
import random
from functools import cache, partial

from cases import Group
from elementwise_cases import _place

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, where
from kgen.dsl.family import family_of
from kgen.dsl.indexing import arange, scatter_add, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, i32, i64
from kgen.ops.gather import Gather, GatherSum

M, N, V, W, K = dims("M N V W K")

EXPRESSIONS = (
    *("rows", "columns", "elements", "both", "behind", "beside", "nested", "inner", "transposed", "flat", "fixed"),
    *("outputs", "leading", "positions"),
)
SUMS = ("both", "rows", "columns", "three", "epilogue", "product")
OPERANDS = ("dense", "padded", "odd pitch", "strided", "transposed", "align element", "align 4")
#: Cases beyond those that single values need, for pairs of values.
DRAWS = ("first", "second", "third", "fourth", "fifth")
SHAPES = ("one", "prime", "below a vector", "above a vector", "above a block", "several", "column")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator that reads by index, exact on small whole numbers. An id of -1 is outside every axis."""
    t = DTYPES[dtype]
    full = Tensor[t, M, N]
    wide = full if t.bits >= 32 or t.is_float else Tensor[i32, M, N]

    def rows(x: Expr, ids: Expr, y: Expr) -> Expr:
        return 2 * take(x, ids - 1) - y

    def columns(x: Expr, ids: Expr) -> Expr:
        return take(x, ids - 1, axis=-1) + 1

    def elements(x: Expr, ids: Expr) -> Expr:
        return take(x, ids - 1)

    def both(x: Expr) -> Expr:
        row, column = arange(M) * size(V) // size(M), arange(N) * size(W) // size(N)
        return take(take(x, row, axis=-2), column, axis=-1)

    def behind(x: Expr, y: Expr) -> Expr:
        place = arange(M)
        return where(arange(M, 1) < size(V), take(x, place), take(y, place - size(V)))

    def beside(x: Expr, y: Expr) -> Expr:
        place = arange(N)
        return where(place < size(V), take(x, place, axis=-1), take(y, place - size(V), axis=-1))

    def nested(x: Expr, places: Expr, ids: Expr) -> Expr:
        return take(x, take(places, ids))

    def inner(x: Expr, b: Expr, ids: Expr) -> Expr:
        return take(x + b, ids - 1) + 3

    def transposed(x: Expr, ids: Expr) -> Expr:
        return take(x.T, ids)

    def flat(x: Expr, ids: Expr) -> Expr:
        return take(x, ids - 1)

    def fixed(x: Expr, ids: Expr) -> Expr:
        return take(x, ids - 1) + take(x, size(V) - 1)

    def outputs(x: Expr, ids: Expr, w: Expr) -> tuple[Expr, Expr]:
        found = take(x, ids)
        return found, found + w

    def leading(x: Expr, ids: Expr, alpha: Expr) -> Expr:
        return take(x, ids) * alpha

    def positions(x: Expr, ids: Expr) -> Expr:
        return take(x + arange(V, 1), ids) + arange(N)

    ids, table = Tensor[i64, M], Tensor[t, V, N]
    annotations = {
        "rows": {"x": table, "ids": ids, "y": full, "return": wide},
        "columns": {"x": Tensor[t, M, V], "ids": Tensor[i32, N], "return": wide},
        "elements": {"x": Tensor[t, V], "ids": Tensor[i32, M, N], "return": full},
        "both": {"x": Tensor[t, V, W], "return": full},
        "behind": {"x": table, "y": Tensor[t, W, N], "return": full},
        "beside": {"x": Tensor[t, M, V], "y": Tensor[t, M, W], "return": full},
        "nested": {"x": table, "places": Tensor[i32, W], "ids": ids, "return": full},
        "inner": {"x": table, "b": Tensor[t, N], "ids": ids, "return": wide},
        "transposed": {"x": Tensor[t, N, V], "ids": ids, "return": full},
        "flat": {"x": Tensor[t, V], "ids": Tensor[i64, N], "return": Tensor[t, N]},
        "fixed": {"x": Tensor[t, V], "ids": Tensor[i32, N], "return": Tensor[wide.dtype, N]},
        "outputs": {"x": table, "ids": ids, "w": Tensor[t, N], "return": tuple[full, wide]},
        "leading": {"x": table, "ids": Tensor[i64, ...], "alpha": int, "return": Tensor[wide.dtype, ..., N]},
        "positions": {"x": table, "ids": ids, "return": wide},
    }
    function = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"{expression}_{dtype}")


@cache
def sums(dtype: str, expression: str) -> Operator:
    """An operator that adds up what ids that never fall lead to an element."""
    t = DTYPES[dtype]
    row, column = arange(M) * size(V) // size(M), arange(N) * size(W) // size(N)
    result = Tensor[t if t.is_float else i32, ..., V, W]

    def both(x: Expr) -> Expr:
        return scatter_add(V, row, scatter_add(W, column, x, axis=-1), axis=-2)

    def rows(x: Expr) -> Expr:
        return scatter_add(V, row, x, axis=-2)

    def columns(x: Expr) -> Expr:
        return scatter_add(W, column, x, axis=-1)

    def three(x: Expr) -> Expr:
        whole = scatter_add(W, column, scatter_add(V, row, x, axis=-2), axis=-1)
        return scatter_add(K, arange(K), whole, axis=-3)

    def epilogue(x: Expr, y: Expr, b: Expr, alpha: Expr) -> Expr:
        return y + alpha * scatter_add(V, row, scatter_add(W, column, x, axis=-1), axis=-2) - b

    def product(x: Expr, w: Expr, c: Expr) -> Expr:
        return scatter_add(V, row, scatter_add(W, column, x * w + c, axis=-1), axis=-2) + arange(W)

    full = Tensor[t, ..., M, N]
    annotations = {
        "both": {"x": full, "return": result},
        "rows": {"x": Tensor[t, ..., M, W], "return": result},
        "columns": {"x": Tensor[t, ..., V, N], "return": result},
        "three": {"x": Tensor[t, K, M, N], "return": Tensor[result.dtype, K, V, W]},
        "epilogue": {"x": full, "y": Tensor[t, ..., V, W], "b": Tensor[t, W], "alpha": int, "return": result},
        "product": {"x": full, "w": Tensor[t, N], "c": Tensor[t, M, 1], "return": result},
    }
    function = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"sums_{expression}_{dtype}")


def _shape(source: random.Random, trait: str, pack: int, block: int) -> tuple[int, int]:
    rows = source.choice((1, 3, 8, 20))
    wide = {
        "one": 1,
        "prime": source.choice((7, 37, 131)),
        "below a vector": max(1, 2 * pack - 1),
        "above a vector": 2 * pack + 1,
        "above a block": min(block, 1200) + 1,
        "several": 4 * pack,
        "column": 1,
    }[trait]
    return (1 if trait == "one" else 131 if trait == "column" else rows), wide


def _make(
    schedule: type[Schedule], dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    gathered = schedule is Gather
    fixed: dict[str, Value] = {"pack": source.choice(schedule.fields["pack"].values), "threads": 128}
    traits = {
        "expression": source.choice(EXPRESSIONS if gathered else SUMS),
        "operands": source.choice(OPERANDS),
        "shape": source.choice(SHAPES),
    }
    if name in traits or name == "draw":
        traits[name] = str(value)
    else:
        fixed[name] = value
    graph = (operator if gathered else sums)(dtype, traits["expression"]).graphs[0]
    pack = int(fixed["pack"])
    if name == "lanes":
        fixed["threads"] = max(128, int(fixed["lanes"]))
        traits["shape"] = "above a block" if int(fixed["lanes"]) > 16 else traits["shape"]
        pack = fixed["pack"] = 2 if int(fixed["lanes"]) > 128 else pack
    else:
        fixed["threads"] = (
            fixed.get("threads", 128) if name == "threads" else source.choice(schedule.fields["threads"].values)
        )
    rows, columns = _shape(source, traits["shape"], pack, pack * max(32, int(fixed.get("lanes", 0))))
    if gathered and name != "lanes":
        most = (max(1, columns // pack) - 1).bit_length()
        fixed["lanes"] = 1 << source.randint(max(0, most - 3), min(most, 8))
        rows = max(rows, 20) if name == "items" and rows > 1 else rows
    sizes = {"M": rows, "N": columns, "K": 2}
    sizes |= {"V": source.choice((1, 5, 24)), "W": source.choice((1, 4, 33))}
    if traits["expression"] == "behind":
        sizes |= {"V": rows // 2, "W": rows - rows // 2}
    elif traits["expression"] == "beside":
        sizes |= {"V": columns // 2, "W": columns - columns // 2}
    elif traits["expression"] == "both" and gathered and source.random() < 0.5:
        sizes |= {"V": max(1, rows // 2), "W": max(1, columns // 2)}
    elif not gathered:
        factors = source.choice(((1, 2), (2, 2), (3, 1), (2, 3), (1, 1), (5, 7)))
        sizes = {
            "V": rows,
            "W": columns,
            "M": rows * factors[0] - rows // 2,
            "N": columns * factors[1] - columns // 3,
            "K": 2,
        }
    special = source.choice(((0,), (1,), (0, 1, 2, 3), (2, 3)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple(int(sizes.get(str(d), d)) for d in spec.shape.dims)  # type: ignore[call-overload]
        head = (2, 3) if spec.shape.leading else ()
        kind = traits["operands"] if number in special and (*head, *named) else "dense"
        operands.append(_place(spec, (*head, *named), kind))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return problem, fixed, traits


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    return max(math.prod(o.shape) for o in problem.operands) / 4e4


def groups() -> list[Group]:
    """A group for each schedule and dtype."""
    found = []
    for schedule, dtypes, expressions in (
        (Gather, ("f16", "f32", "i8", "bf16", "f64", "f16", "i32", "i8"), EXPRESSIONS),
        (GatherSum, ("f16", "f32", "i8", "bf16", "f64", "f16", "i32", "f32"), SUMS),
    ):
        traits = {"expression": expressions, "operands": OPERANDS, "shape": SHAPES}
        traits |= {"draw": DRAWS} if schedule is Gather else {}
        for number, dtype in enumerate(dtypes):
            make = partial(_make, schedule, dtype)
            found.append(Group(f"{schedule.__name__}-{dtype}-{number}", schedule, make, traits, _cost))
    return found
