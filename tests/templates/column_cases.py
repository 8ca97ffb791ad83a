"""The cases of column_stats: reductions of three axes over two, or the middle one, memory contiguous along any of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial

from cases import Group
from elementwise_cases import _place
from reduce_cases import exact, placed, total

from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, where
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, f16, f32
from kgen.ops.reduction import ChannelStats, ColumnStats
from kgen.ops.reduction.plan import view

B, C, S = dims("B C S")

COLUMN_DTYPES = ("f16", "bf16", "f32", "f64", "e4m3", "i8")
CHANNEL_DTYPES = ("f16", "f32", "e5m2", "i8")
EXPRESSIONS = ("sum", "pair", "extremes", "weighted", "scaled", "selected", "middle", "first axes", "kept ones")
#: "last": C is the contiguous axis, as of a tensor stored channels last.
OPERANDS = ("dense", "last", "padded", "odd pitch", "strided", "expanded", "align element", "align 8")
LENGTHS = ("one", "few", "prime", "tile", "past a tile", "several")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator over three dimensions, exact on small whole numbers."""
    t, r = DTYPES[dtype], total(DTYPES[dtype])
    full, channel = Tensor[t, B, C, S], Tensor[r, C]
    axes = (-3, -1)

    def sum(x: Expr) -> Expr:
        return F.sum(exact(x), axes)

    def pair(x: Expr, y: Expr) -> tuple[Expr, Expr]:
        return F.sum(exact(x * y), axes), F.sum(exact(y), axes)

    def extremes(x: Expr) -> tuple[Expr, Expr]:
        return F.amax(x, axes), F.amin(x, axes)

    def weighted(x: Expr, w: Expr, v: Expr) -> Expr:
        return F.sum(exact(x * w + v), axes)

    def scaled(x: Expr, w: Expr, alpha: Expr) -> Expr:
        return F.sum(exact(x), axes) * w + alpha

    def selected(x: Expr, y: Expr) -> Expr:
        return F.sum(where(x > y, exact(x), 0), axes)

    def middle(x: Expr) -> Expr:
        return F.sum(exact(x), -2)

    def first_axes(x: Expr, w: Expr) -> Expr:
        return F.sum(exact(x * w), (-3, -2))

    def kept_ones(x: Expr) -> Expr:
        return F.amax(x, -2)

    named = {"first axes": "first_axes", "kept ones": "kept_ones"}
    annotations = {
        "sum": {"x": full, "return": channel},
        "pair": {"x": full, "y": full, "return": tuple[channel, channel]},
        "extremes": {"x": full, "return": tuple[Tensor[t, 1, C, 1], Tensor[t, C]]},
        "weighted": {"x": full, "w": Tensor[t, C, 1], "v": Tensor[t, B, 1, S], "return": channel},
        "scaled": {"x": full, "w": Tensor[f16 if t.is_float else t, C, 1], "alpha": int, "return": channel},
        "selected": {"x": full, "y": full, "return": channel},
        "middle": {"x": Tensor[t, ..., C, S], "return": Tensor[r, ..., S]},
        "first axes": {"x": full, "w": Tensor[t, C, 1], "return": Tensor[r, S]},
        "kept ones": {"x": Tensor[t, ..., C, S], "return": Tensor[t if t.is_float else f32, ..., 1, S]},
    }
    function: Callable[..., object] = locals()[named.get(expression, expression)]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"{named.get(expression, expression)}_{dtype}")


def _length(source: random.Random, trait: str, unit: int) -> int:
    return {
        "one": 1,
        "few": source.choice((2, 3)),
        "prime": source.choice((7, 13, 37)),
        "tile": unit,
        "past a tile": unit + 1,
        "several": 3 * unit + source.choice((0, 8)),
    }[trait]


def _last(o: Operand) -> Operand:
    """The operand with its channels contiguous."""
    if len(o.shape) != 3:
        return o
    _, c, s = o.shape
    return Operand(o.name, o.dtype, o.shape, (c * s, 1, c), o.align)


def _make(
    schedule: type[Schedule], dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    traits = {
        "expression": source.choice(EXPRESSIONS),
        "operands": source.choice(OPERANDS),
        "B": source.choice(LENGTHS[:4]),
        "C": source.choice(LENGTHS),
        "S": source.choice(LENGTHS),
    }
    fixed: dict[str, Value] = {}
    if name in traits:
        traits[name] = str(value)
    elif name == "pack" and isinstance(value, int) and value > 1:
        traits |= {"operands": source.choice(("dense", "last", "padded")), "C": "several", "S": "tile"}
    elif name == "lanes" and isinstance(value, int) and value > 32:
        traits |= {
            "expression": source.choice(("middle", "first axes")),
            "operands": "dense",
            "S": "several",
            "B": "few",
        }
        fixed["pack"] = 1
    elif schedule is ChannelStats and name not in ("threads", "blocks_per_sm") and source.random() < 0.5:
        # Several blocks share a result.
        traits |= {"C": source.choice(("one", "few")), "S": "several"}
        traits["operands"] = source.choice(("dense", "odd pitch", "align 8"))
        fixed |= {"threads": 32, "blocks_per_sm": source.choice((8, 16))}
    graph = operator(dtype, traits["expression"]).graphs[0]
    wide = name == "lanes" and isinstance(value, int) and value > 32
    unit = 100 if wide else source.choice((16, 32, 64))
    units = {"B": 16, "C": 16 if wide else unit, "S": unit}
    sizes = {name: _length(source, traits[name], units[name]) for name in units}
    special = source.choice(((0,), (1,), (0, 1)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        head = (sizes["B"],) if spec.shape.leading else ()
        named = (*head, *(int(sizes.get(str(d), d)) for d in spec.shape.dims))
        kind = traits["operands"] if number in special and number < len(graph.inputs) else "dense"
        placed_one = _place(spec, named, kind)
        operands.append((_last(placed_one) if kind == "last" else placed_one, kind))
    problem = family_of(graph).normalise(Problem.bind(graph, placed(operands)))
    return (problem, fixed, traits) if schedule.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    v = view(problem)
    blocks = v.outputs if isinstance(config, ChannelStats) else v.outputs / (config.lanes * config.pack) + 16
    return max(v.outputs * v.length / 4e4, blocks * config.threads / 4e4)


def groups() -> list[Group]:
    """Groups for each schedule and dtype."""
    traits = {"expression": EXPRESSIONS, "operands": OPERANDS, "B": LENGTHS[:4], "C": LENGTHS, "S": LENGTHS}
    found = [(ColumnStats, f"{name}-{number}") for name in COLUMN_DTYPES for number in range(3)]
    found += [(ChannelStats, f"{name}-{number}") for name in CHANNEL_DTYPES for number in range(4)]
    return [
        Group(f"{s.__name__}-{name}", s, partial(_make, s, name.split("-")[0]), traits, _cost, searched=name[-1] != "0")
        for s, name in found
    ]
