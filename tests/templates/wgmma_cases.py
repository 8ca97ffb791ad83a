"""The cases of gemm_wgmma: its dtypes in all layouts, tiles cut at every side, shared sums, operands beyond TMA."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from cases import TARGET, Group
from gemm_cases import (
    BATCHES,
    EXPRESSIONS,
    LAYOUTS,
    LIKE_OTHERS,
    OPERANDS,
    bound_problem,
    inner_size,
    operator,
    outer_size,
)

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr
from kgen.dsl.functions import relu
from kgen.dsl.indexing import repeat
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, ceil_div, dims
from kgen.dsl.target import Target
from kgen.dsl.types import bf16, e4m3, e5m2, f16, f32
from kgen.ops.gemm import WgmmaGemm
from kgen.ops.gemm.problem import describe

DTYPES = ("f16", "f16acc", "bf16", "tf32", "e4m3", "e5m2", "scaled")
OUTER = ("one", "prime", "below", "tile", "above", "aligned", "several")
INNER = ("one", "below", "tile", "above", "odd tiles", "even tiles", "aligned", "prime", "deep")

M, N, K = dims("M N K")

#: fp8 with scales: of how many rows of a and columns of b each, what is multiplied, what comes out, whether a bias is added.
SCALED = {
    "blocks": (1, 128, e4m3, bf16, False),
    "vectors": (1, 1, e4m3, f16, False),
    "both blocks": (128, 128, e5m2, f32, True),
    "narrow": (8, 48, e4m3, f32, False),
    "bias": (1, 128, e4m3, bf16, True),
}


@cache
def scaled_graph(kind: str) -> Graph:
    """The graph of a product of fp8 with scales."""
    rows, columns, t, out, biased = SCALED[kind]

    def blocks(extent: Dim, count: int) -> Any:
        return extent if count == 1 else ceil_div(extent, count)

    def spread(x: Expr, extent: Dim, count: int, axis: int) -> Expr:
        return x if count == 1 else repeat(x, count, extent, axis)

    def plain(a: Expr, b: Expr, scale_a: Expr, scale_b: Expr) -> Expr:
        left = spread(repeat(scale_a, 128, K), M, rows, -2)
        right = spread(repeat(scale_b, 128, K, axis=-2), N, columns, -1)
        return (left * a) @ (b * right)

    def bias(a: Expr, b: Expr, scale_a: Expr, scale_b: Expr, bias: Expr) -> Expr:
        return relu(plain(a, b, scale_a, scale_b) + bias)

    function = bias if biased else plain
    depth = ceil_div(K, 128)
    function.__annotations__ = {"a": Tensor[t, ..., M, K], "b": Tensor[t, ..., K, N]}
    function.__annotations__ |= {"scale_a": Tensor[f32, ..., blocks(M, rows), depth]}
    function.__annotations__ |= {"scale_b": Tensor[f32, ..., depth, blocks(N, columns)]}
    function.__annotations__ |= {"bias": Tensor[f32, N]} if biased else {}
    function.__annotations__ |= {"return": Tensor[out, ..., M, N]}
    return Operator(function, f"scaled_{kind.replace(' ', '_')}").graphs[0]


#: Workers that share a tile evenly must all be there at once.
_WIDE = replace(TARGET, sm_count=132)


def _target(fixed: Mapping[str, Value]) -> Target:
    return _WIDE if fixed.get("work") in ("split_k", "cluster_k") else TARGET


def _make(
    dtype: str, layout: str, source: random.Random, name: str, value: Any
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    size = {"f16": 2, "f16acc": 2, "bf16": 2, "tf32": 4}.get(dtype, 1)
    unit = 16 // size
    plain = tuple(SCALED) if dtype == "scaled" else EXPRESSIONS[1:]
    traits = {
        "expression": source.choice(plain[:3] if source.random() < 0.5 else plain),
        "operands": source.choice(OPERANDS[:2] if source.random() < 0.6 else OPERANDS),
        "batch": source.choice(BATCHES[:1] if source.random() < 0.7 else BATCHES),
        "M": source.choice(OUTER),
        "N": source.choice(OUTER),
        "K": source.choice(INNER[:-1]),
    }
    fixed: dict[str, Value] = {
        "BM": source.choice((64, 128, 128)),
        "BN": source.choice((8, 16, 32, 64, 96, 128)),
        "BK": source.choice((128 // size, 256 // size)),
    }
    splits = 1
    if name in traits:
        traits[name] = value
    elif name in ("BM", "BN", "BK", "consumers", "pingpong", "cluster", "work"):
        fixed[name] = value
    if fixed.get("consumers") == 3:
        fixed["BM"] = 192
    elif fixed["BM"] in (192, 256):
        fixed["consumers"] = 3 if fixed["BM"] == 192 else 2
    if fixed.get("pingpong"):
        traits |= {"M": "several", "batch": source.choice(("none", "one"))}
    if name == "epilogue_stages" and value > 1:  # of 64 columns each, stored by TMA, which takes whole 16 bytes
        fixed |= {"store": "tma", "BN": 64 * value}
        whole = ("tile", "aligned")
        traits |= {"operands": "dense", "M": source.choice(whole), "N": source.choice(whole)}
    if name in ("group", "raster"):
        fixed |= {"BM": 64, "BN": source.choice((16, 32, 64))}
        traits |= {"M": "several", "N": "several", "K": "above"}
    if name == "splits" or traits["K"] == "deep" or fixed.get("work", "tiles") != "tiles":
        splits = value if name == "splits" and isinstance(value, int) else source.choice((2, 4))
        works = ("split_k", "stream_k", "cluster_k")[: 3 if splits <= 8 else 2]
        fixed.setdefault("work", source.choice(works) if splits > 1 else "tiles")
        if fixed["work"] != "tiles":
            fixed |= {
                "splits": splits,
                "BM": 64,
                "BN": source.choice((8, 16, 64)),
                "BK": 128 // size,
                "pingpong": False,
            }
            traits |= {"K": "deep", "batch": "none"}
            if splits > 16:
                traits |= {"M": "below", "N": "below"}
    sizes = {
        "M": outer_size(source, traits["M"], int(fixed["BM"]), unit),
        "N": outer_size(source, traits["N"], int(fixed["BN"]), unit),
        "K": inner_size(source, traits["K"], int(fixed["BK"]), unit, splits),
    }
    if traits["expression"] == "square":  # both sides are one operand of one size
        if layout != "NN" or traits["batch"] not in ("none", "one", "two"):
            return None
        traits = {trait: v for trait, v in traits.items() if trait not in "NK"}
    expression = traits["expression"]
    graph = scaled_graph(expression) if dtype == "scaled" else operator(dtype, expression).graphs[0]
    problem = bound_problem(source, graph, sizes, layout, traits["operands"], traits["batch"])
    return (problem, fixed, traits) if problem is not None and WgmmaGemm.applies(problem) else None


def cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    g = describe(problem)
    rows, columns = (g.N, g.M) if config.values["swap_ab"] else (g.M, g.N)
    tiles = -(-rows // config.values["BM"]) * -(-columns // config.values["BN"]) * g.batches
    return tiles * config.values["BM"] * config.values["BN"] * (g.K + config.values["BK"]) / 6e7


def groups() -> list[Group]:
    """A group for each dtype and layout. The layouts share out values of fields, expressions, operands and batches."""
    found = []
    for dtype, number in itertools.product(DTYPES, range(len(LAYOUTS))):
        layout, share = LAYOUTS[number], slice(number, None, len(LAYOUTS))
        if layout not in LIKE_OTHERS.get(dtype, LAYOUTS):
            continue
        expressions = tuple(SCALED) if dtype == "scaled" else EXPRESSIONS
        traits = {"expression": expressions[share], "operands": OPERANDS[share], "batch": BATCHES[share]}
        traits |= {"M": OUTER, "N": OUTER, "K": INNER}
        name = f"WgmmaGemm-{dtype}-{layout}"
        found.append(Group(name, WgmmaGemm, partial(_make, dtype, layout), traits, cost, _target, turn=(number % 2, 2)))
    return found
