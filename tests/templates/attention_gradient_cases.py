"""Cases of attention's gradients: both schedules and both sides over masks, scores, shared heads, ragged lengths and layouts."""

from __future__ import annotations

import functools
import math
import random
from functools import partial

from attention_cases import DTYPES, HEADS, LENGTHS, OPERANDS, D, E, G, M, N, operator, place
from cases import Group
from rowwise_cases import judge

from kgen.dsl.any_order import unordered
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, where
from kgen.dsl.family import family_of
from kgen.dsl.gradient import backward, differentiable, training
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.partition import partition
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.types import f32
from kgen.ops.attention.heads import attend
from kgen.ops.attention_gradient import AttentionGradientMma, AttentionGradientOnePass, AttentionGradientWgmma
from kgen.ops.attention_gradient.problem import matches

EXPRESSIONS = (
    "full",
    "causal",
    "window",
    "softcap",
    "plain",
    "documents",
    "ranges",
    "negative scale",
    "sinks",
    "dropout",
    "sigmoid",
)
#: Whose gradient: that of the queries, of keys and values together, of the values alone.
SIDES = ("queries", "keys", "values")
ONE_PASS_SIDES = ("all", "queries and keys")
WIDTHS = ("64", "128", "narrow", "odd", "two")
#: What one pass serves of expressions, and one that leaves the last columns the most rows.
IN_ONE_PASS = ("full", "causal", "window", "softcap", "plain", "negative scale", "sigmoid", "later")


@functools.cache
def launch(dtype: str, expression: str, side: str) -> Graph:
    """The launch of this family in the gradient of attention of a kind."""
    known = later(dtype) if expression == "later" else operator(dtype, expression)
    whole = training(known.graph({"q": DTYPES[dtype]}))
    places = {"queries": (0,), "keys": (1, 2), "values": (2,), "all": (0, 1, 2), "queries and keys": (0, 1)}[side]
    assert set(places) <= set(differentiable(whole))
    made = backward(whole, (0,), places).graph
    assert made is not None
    made = unordered(made) if 0 in places and len(places) > 1 else made
    cut = partition(made)
    (found,) = (graph for graph in (cut.graphs if cut else (made,)) if matches(graph))
    return found


@functools.cache
def later(dtype: str) -> Operator:
    """Rows see the columns from their own place on."""
    t = DTYPES[dtype]

    def later(q: Expr, k: Expr, v: Expr) -> tuple[Expr, Expr]:
        return attend(where(arange(M, 1) <= arange(N), 0.125 * (q @ k.T), -math.inf), v)

    q, k, v = Tensor[t, ..., G, M, D], Tensor[t, ..., 1, N, D], Tensor[t, ..., 1, N, E]
    out = tuple[Tensor[t, ..., G, M, E], Tensor[f32, ..., G, M]]
    later.__annotations__ = {"q": q, "k": k, "v": v, "return": out}
    return Operator(later, f"attention_later_{dtype}")


def _widths(schedule: type[Schedule]) -> tuple[str, ...]:
    """Those that a schedule has configs for."""
    if schedule is AttentionGradientOnePass:
        return (*WIDTHS[:2], "wide")
    return WIDTHS if schedule is AttentionGradientMma else WIDTHS[:3]


def _make(
    schedule: type[Schedule], dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    by_tma, one_pass = schedule is not AttentionGradientMma, schedule is AttentionGradientOnePass
    traits = {
        "expression": source.choice(IN_ONE_PASS if one_pass else EXPRESSIONS),
        "side": source.choice(ONE_PASS_SIDES if one_pass else SIDES),
        "operands": source.choice(OPERANDS[:3] if by_tma else OPERANDS),
        "length": source.choice(LENGTHS),
        "heads": source.choice(HEADS),
        "width": source.choice(_widths(schedule)),
    }
    fixed: dict[str, Value] = {}
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    if name == "swizzle":
        traits["width"] = "64" if value == "xor" else "narrow"
    if name == "slices":
        traits["width"] = "128" if value == 1 else source.choice(("wide", "uneven"))
    if name in ("order", "group"):
        # Columns are bounded from above, from below, or not at all.
        last, first = value == "last_first" or value in (4, 16), value in (8, 32)
        bounded, side = ("later", "all") if one_pass else ("causal", "queries")
        traits["expression"], traits["side"] = (bounded if last else "causal" if first else "full"), side
        if first and not one_pass:
            traits["side"] = "keys"
        fixed |= {"order": "last_first" if last else "in_order"}
    if one_pass:
        if name == "BC":
            traits["width"] = "128" if value == 64 else "64"
        if name == "BR":
            traits["width"] = "wide" if value == 64 else "128"
        if name in ("pingpong", "stages") and value in (True, 3):
            traits["width"] = "64"
        if traits["width"] == "wide" and traits["expression"] == "negative scale":
            traits["expression"] = "full"  # exponentials of products of 256 columns leave f16
        fixed |= {"BR": 64 if traits["width"] == "wide" else 128, "BC": 128 if traits["width"] == "64" else 64}
    elif by_tma:
        fixed.setdefault("BC", source.choice((32, 48, 64)))
    else:
        fixed.setdefault("BR", source.choice((16, 32, 64)))
    rows, columns = int(fixed.get("BR", 64)), int(fixed.get("BC", 32))
    lengths = {"one": (1, 1), "below a tile": (rows - 3, columns - 1), "tile": (rows, columns),
               "above a tile": (rows + 1, columns + 3), "several": (2 * rows + 5, 3 * columns + 7)}  # fmt: skip
    m, n = lengths[traits["length"]]
    if traits["side"] != "queries":
        m, n = n, m
    depth, width = {"64": (64, 64), "128": (128, 64), "narrow": (16, 48), "odd": (37, 51), "two": (64, 130),
                    "wide": (256, 256), "uneven": (192, 64)}[traits["width"]]  # fmt: skip
    group = {"one": 1, "several": 1, "shared": 3}[traits["heads"]]
    graph = launch(dtype, traits["expression"], traits["side"])
    sizes = {"G": group, "M": max(1, m), "N": max(1, n), "D": depth, "E": width}
    leading = {"one": (1, 1), "several": (2, 2), "shared": (1, 2)}[traits["heads"]]
    operands = []
    for spec in (*graph.inputs, *graph.outputs):
        named = tuple(sizes.get(str(d), d) for d in spec.shape.dims)
        shape = (*leading, *named) if spec.shape.leading else named
        operands.append(place(spec, shape, traits["operands"]))  # type: ignore[arg-type]
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return (problem, fixed, traits) if schedule.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    sizes = (problem.origin or problem).sizes
    heads = sizes["G"]
    for n in problem.leading:
        heads *= n
    return heads * sizes["M"] * sizes["N"] * (sizes["D"] + sizes["E"]) / 1.2e7


def groups() -> list[Group]:
    """A group for each schedule and dtype."""
    found = []
    for schedule in (AttentionGradientMma, AttentionGradientWgmma, AttentionGradientOnePass):
        by_tma, one_pass = schedule is not AttentionGradientMma, schedule is AttentionGradientOnePass
        traits = {"expression": IN_ONE_PASS if one_pass else EXPRESSIONS,
                  "side": ONE_PASS_SIDES if one_pass else SIDES, "operands": OPERANDS[:3] if by_tma else OPERANDS,
                  "length": LENGTHS, "heads": HEADS, "width": _widths(schedule)}  # fmt: skip
        for number, dtype in enumerate(("f16", "bf16")):
            make = partial(_make, schedule, dtype)
            name = f"{schedule.__name__}-{dtype}-{number}"
            found.append(Group(name, schedule, make, traits, _cost, judge=judge))
    return found
