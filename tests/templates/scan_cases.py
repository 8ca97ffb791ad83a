"""The cases of the scan template: every dtype, rows around vectors, warps and tiles, expressions before and after."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache, partial

from cases import Group
from rowwise_cases import LENGTHS, OPERANDS, ROWS, _length, _place, judge

from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, DType, f64, i64
from kgen.ops.scan import Scan, ScanSpan, ScanSplit, ScanThread
from kgen.ops.scan.split import GROUP
from kgen.ops.scan.thread import rows_of_thread

(N,) = dims("N")

#: Those that are exact on small whole numbers, and those of floats.
EXACT_EXPRESSIONS = ("sum", "shifted", "weighted", "several")
FLOAT_EXPRESSIONS = ("product", "exponentials", "mixed")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator over rows of one dtype."""
    t = DTYPES[dtype]
    wide = t if t.is_float else i64
    full, made = Tensor[t, ..., N], Tensor[wide, ..., N]

    def sum(x: Expr) -> Expr:
        return F.cumsum(x)

    def shifted(x: Expr, s: Expr, alpha: Expr) -> Expr:
        return F.cumsum(x + s) * alpha - x

    def weighted(x: Expr, w: Expr, s: Expr, alpha: Expr) -> Expr:
        return F.cumsum(x * w + s) * alpha - x

    def several(x: Expr, y: Expr, b: Expr) -> tuple[Expr, Expr]:
        return F.cumsum(x) - F.cumsum(x - y), F.cumsum(b) + y

    def product(x: Expr) -> Expr:
        return F.cumprod(x)

    def exponentials(x: Expr) -> Expr:
        return F.logcumsumexp(x)

    def mixed(x: Expr, y: Expr) -> tuple[Expr, Expr]:
        return F.exp(x - F.logcumsumexp(x)), F.cumsum(x * x) + F.cumprod(1 / (1 + abs(y)))

    annotations = {
        "sum": {"x": full, "return": made},
        "shifted": {"x": full, "s": Tensor[t, ..., 1], "alpha": int, "return": made},
        "weighted": {"x": full, "w": Tensor[t, N], "s": Tensor[t, ..., 1], "alpha": int, "return": made},
        "several": {"x": full, "y": full, "b": Tensor[t, N], "return": tuple[made, made]},
        "product": {"x": full, "return": made},
        "exponentials": {"x": full, "return": made},
        "mixed": {"x": full, "y": full, "return": tuple[made, made]},
    }
    function: Callable[..., object] = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"scan_{expression}")


def expressions(dtype: DType, schedule: type[Schedule]) -> tuple[str, ...]:
    """Those that a dtype and a schedule have; of f64 those that the reference, which is f64, can judge."""
    exact = EXACT_EXPRESSIONS[:2] if schedule is ScanThread else EXACT_EXPRESSIONS
    return (*exact, *FLOAT_EXPRESSIONS) if dtype.is_float and dtype is not f64 else exact


def _make(
    schedule: type[Schedule], dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    fixed: dict[str, Value] = {
        name: source.choice(schedule.fields[name].values)
        for name in ("pack", "vectors", "row_threads", "threads")
        if name in schedule.fields and (name != "threads" or schedule is not Scan)
    }
    traits = {
        "expression": source.choice(expressions(DTYPES[dtype], schedule)),
        "operands": source.choice(OPERANDS[:2] if source.random() < 0.5 else OPERANDS),
        "length": source.choice(LENGTHS),
        "rows": source.choice(ROWS),
    }
    if name in traits:
        traits[name] = str(value)
    elif name in schedule.fields:
        fixed[name] = value
    if name == "threads" and schedule is Scan:
        fixed["row_threads"] = source.choice((1, 4, 32, value))
    graph = operator(dtype, traits["expression"]).graphs[0]
    if schedule is ScanSpan:
        fixed["span_bytes"] = 8192
    if schedule in (ScanSpan, ScanThread):
        traits["operands"] = "dense"
    pack, row_threads = int(fixed.get("pack", 1)), int(fixed.get("row_threads", fixed.get("threads", 1)))
    tile = pack * row_threads * int(fixed.get("vectors", 1))
    length = source.randint(1, 16) if schedule is ScanThread else _length(source, traits["length"], pack, tile)
    if schedule is ScanSplit:  # rows of several tiles, now and then of several groups of them
        length += tile * source.choice((1, 2, 5) if tile > 1024 else (1, 3, GROUP, 2 * GROUP + 1))
    block = max(1, source.choice((32, 64, 128)) // row_threads)
    rows = {"one": 1, "two": 2, "below a block": max(1, block - 1), "above a block": block + 1, "prime": 13}[
        traits["rows"]
    ]
    special = source.choice(((0,), (0, 1, 2, 3, 4), (1, 2, 3)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple(length if d is N else int(d) for d in spec.shape.dims)
        head = (rows, 2) if spec.shape.leading else ()
        kind = traits["operands"] if number in special else "dense"
        operands.append(_place(spec, (*head, *named), kind, number >= len(graph.inputs)))
    return family_of(graph).normalise(Problem.bind(graph, operands)), fixed, traits


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    rows = math.prod(problem.leading[:-1])
    if isinstance(config, ScanSplit):
        blocks = rows * math.ceil(problem.leading[-1] / (config.threads * config.pack * config.vectors))
    elif isinstance(config, ScanSpan):
        blocks = math.ceil(rows / max(1, config.rows(problem)))
    elif isinstance(config, ScanThread):
        blocks = math.ceil(rows / (config.threads * rows_of_thread(problem)))
    else:
        assert isinstance(config, Scan)
        blocks = math.ceil(rows / (config.threads // config.row_threads))
    return max(math.prod(problem.leading) / 1e5, blocks * config.threads / 20000)


def groups() -> list[Group]:
    """A group for each schedule and dtype, and one more of f16, bf16 and f32."""
    return [
        Group(
            f"{schedule.__name__}-{name}-{number}",
            schedule,
            partial(_make, schedule, name),
            {"expression": expressions(DTYPES[name], schedule), "operands": OPERANDS, "length": LENGTHS, "rows": ROWS},
            _cost,
            judge=judge,
        )
        for schedule in (Scan, ScanSpan, ScanSplit, ScanThread)
        for number, name in enumerate(("f16", "bf16", "f32", "f64", "i32", "i8", "i64", "f16", "bf16", "f32"))
    ]
