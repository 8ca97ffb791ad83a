"""The cases of the GEMV template: 1 to 8 vectors on either side, every dtype and layout, shapes around the tiles."""

from __future__ import annotations

import itertools
import random
from functools import partial

from cases import Group
from gemm_cases import (
    BATCHES,
    DTYPES,
    EXPRESSIONS,
    INNER,
    LAYOUTS,
    LIKE_OTHERS,
    OPERANDS,
    OUTER,
    bound_problem,
    inner_size,
    operator,
    outer_size,
)

from kgen.dsl.choice import Value
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.ops.gemm.gemv import Gemv, view

SIDES = ("rows of A", "columns of B")
COUNTS = tuple(map(str, range(1, 9)))


def _make(
    dtype: str, layout: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype and layout, with the named trait or fit for the named field's value."""
    unit = max(1, 16 // DTYPES[dtype][0].bytes)
    traits = {
        "expression": source.choice(EXPRESSIONS[1:4] if source.random() < 0.5 else EXPRESSIONS[1:]),
        "operands": source.choice(OPERANDS[:2] if source.random() < 0.6 else OPERANDS),
        "batch": source.choice(BATCHES[:1] if source.random() < 0.7 else BATCHES),
        "side": source.choice(SIDES),
        "count": source.choice(COUNTS),
        "outer": source.choice(OUTER[1:]),
        "K": source.choice(INNER[1:]),
    }
    fixed: dict[str, Value] = {}
    if name in traits:
        traits[name] = str(value)
    elif name == "splits":
        traits |= {"K": "deep", "batch": "none", "outer": source.choice(OUTER[1:5])}
    elif name == "vectors" and isinstance(value, int):
        traits["count"] = str(source.randint(value // 2 + 1, value))
    elif name == "pack" and isinstance(value, int) and value > 1:
        traits |= {
            "operands": source.choice(("dense", "padded")),
            "outer": source.choice(("tile", "aligned", "several")),
        }
        traits["K"] = source.choice(("tile", "aligned", "even tiles", "odd tiles"))
    if traits["outer"] == "many":
        traits["batch"] = "none"
    splits = value if name == "splits" and isinstance(value, int) else source.choice((2, 4))
    tile, k_tile = source.choice((16, 32, 64, 128)), source.choice((16, 32, 64, 128))
    outer = outer_size(source, traits["outer"], tile, unit)
    sizes = {"K": inner_size(source, traits["K"], k_tile, unit, splits)}
    count = int(traits["count"])
    sizes |= {"M": count, "N": outer} if traits["side"] == SIDES[0] else {"M": outer, "N": count}
    if traits["expression"] == "square":  # both sides are one operand of one size: few rows, and as few columns
        if layout != "NN" or traits["batch"] not in ("none", "one", "two"):
            return None
        sizes = dict.fromkeys("MNK", count)
        traits = {trait: v for trait, v in traits.items() if trait not in ("side", "outer", "K")}
    graph = operator(dtype, traits["expression"]).graphs[0]
    problem = bound_problem(source, graph, sizes, layout, traits["operands"], traits["batch"])
    return (problem, fixed, traits) if Gemv.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator and in the compilers, about 1 for what is just bearable."""
    assert isinstance(config, Gemv)
    v = view(problem)
    blocks = config.blocks_of(v.g) * config.splits
    work = blocks * config.outer_tile(v) * config.vectors * (v.g.K / config.splits + config.k_tile(v))
    unrolled = config.vectors * config.rows * config.unroll * config.width(v)
    return max(work / 3e6, blocks * config.threads / 60000, unrolled / 1024)


def groups() -> list[Group]:
    """A group for each dtype and layout. The layouts share out values of fields, expressions, operands and batches."""
    found = []
    for dtype, number in itertools.product(DTYPES, range(len(LAYOUTS))):
        layout, share = LAYOUTS[number], slice(number, None, len(LAYOUTS))
        if dtype == "tf32" or layout not in LIKE_OTHERS.get(dtype, LAYOUTS):
            continue
        traits = {"expression": EXPRESSIONS[share], "operands": OPERANDS[share], "batch": BATCHES[share]}
        traits |= {"side": SIDES, "count": COUNTS, "outer": OUTER, "K": INNER}
        found.append(
            Group(f"Gemv-{dtype}-{layout}", Gemv, partial(_make, dtype, layout), traits, _cost, turn=(number % 2, 2))
        )
    return found
