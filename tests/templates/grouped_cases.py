"""The cases of grouped products on gemm_wgmma: groups empty, of one row and of several tiles, and rows behind the last."""

from __future__ import annotations

import itertools
import random
from functools import cache, partial
from typing import Any

from cases import Group
from gemm_cases import DTYPES as ALL_DTYPES
from gemm_cases import OPERANDS, bound_problem, inner_size, outer_size
from wgmma_cases import cost

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, grouped_matmul
from kgen.dsl.functions import relu
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f32, i32
from kgen.ops.gemm import WgmmaGemm

M, N, K, G = dims("M N K G")

DTYPES = ("f16", "f16acc", "bf16")
#: Layouts of a and of each matrix of b; a in columns is copied, as TMA could not begin at any row.
LAYOUTS = ("NN", "NT", "TN", "TT")
EXPRESSIONS = ("plain", "bias", "outputs", "transposed")
GROUPS = {"one": 1, "few": 3, "several": 7, "many": 40}
ROWS = ("one", "prime", "below", "tile", "above", "several", "many")
COLUMNS = ("one", "prime", "below", "tile", "above", "aligned", "several")
INNER = ("one", "below", "tile", "above", "odd tiles", "aligned", "prime")


@cache
def grouped_graph(dtype: str, expression: str) -> Graph:
    """A graph with one grouped product, exact on small whole numbers."""
    t, total, out = ALL_DTYPES[dtype]
    product = partial(grouped_matmul, accumulate=total)

    def plain(a: Expr, b: Expr, offsets: Expr) -> Expr:
        return product(a, b, offsets)

    def bias(a: Expr, b: Expr, offsets: Expr, bias: Expr) -> Expr:
        return relu(product(a, b, offsets) + bias)

    def outputs(a: Expr, b: Expr, offsets: Expr, weights: Expr, c: Expr) -> tuple[Expr, Expr]:
        total = product(a, b, offsets)
        return total, total * weights + c

    def transposed(a: Expr, b: Expr, offsets: Expr) -> Expr:
        return product(a, b.T, offsets)

    result = Tensor[out, M, N]
    beside = {
        "bias": {"bias": Tensor[f32, N]},
        "outputs": {"weights": Tensor[f32, M, 1], "c": result, "return": tuple[result, Tensor[f32, M, N]]},
        "transposed": {"b": Tensor[t, G, N, K]},
    }
    function: Any = {"plain": plain, "bias": bias, "outputs": outputs, "transposed": transposed}[expression]
    annotations = {"a": Tensor[t, M, K], "b": Tensor[t, G, K, N], "offsets": Tensor[i32, G + 1], "return": result}
    function.__annotations__ = annotations | beside.get(expression, {})
    return Operator(function, f"grouped_{expression}_{dtype}").graphs[0]


def grouped_problem(
    source: random.Random, dtype: str, expression: str, layout: str, kind: str, sizes: dict[str, int]
) -> Problem | None:
    """A (normalised) problem: `kind` of operands as in gemm_cases."""
    return bound_problem(source, grouped_graph(dtype, expression), sizes, layout, kind, "none")


def _make(
    dtype: str, layout: str, source: random.Random, name: str, value: Any
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    traits = {
        "expression": source.choice(EXPRESSIONS),
        "operands": source.choice(OPERANDS[:2] if source.random() < 0.6 else OPERANDS),
        "groups": source.choice(tuple(GROUPS)),
        "M": source.choice(ROWS),
        "N": source.choice(COLUMNS),
        "K": source.choice(INNER),
    }
    fixed: dict[str, Value] = {
        "work": "tiles",
        "store": "shared",
        "BM": source.choice((64, 128)),
        "BN": source.choice((8, 16, 32, 64, 96, 128)),
        "BK": source.choice((64, 128)),
    }
    if name in traits:
        traits[name] = value
    elif name in WgmmaGemm.fields:
        fixed[name] = value
    if fixed.get("consumers") == 3:
        fixed["BM"] = 192
    elif fixed["BM"] in (192, 256):
        fixed["consumers"] = 3 if fixed["BM"] == 192 else 2
    if fixed.get("pingpong") or name in ("group", "raster"):
        fixed |= {"BM": 64, "BN": source.choice((16, 32, 64))}
        traits |= {"M": "many", "N": "several", "K": "above"}
    swap_ab = fixed.setdefault("swap_ab", source.random() < 0.5)
    rows, columns = (fixed["BN"], fixed["BM"]) if swap_ab else (fixed["BM"], fixed["BN"])
    sizes = {
        "M": outer_size(source, traits["M"], min(int(rows), 128), 8) if traits["M"] != "many" else 4 * int(rows) + 5,
        "N": outer_size(source, traits["N"], int(columns), 8),
        "K": inner_size(source, traits["K"], int(fixed["BK"]), 8, 1),
        "G": GROUPS[traits["groups"]],
    }
    problem = grouped_problem(source, dtype, traits["expression"], layout, traits["operands"], sizes)
    return (problem, fixed, traits) if problem is not None and WgmmaGemm.applies(problem) else None


def groups() -> list[Group]:
    """A group for each dtype and layout."""
    traits = {"expression": EXPRESSIONS, "groups": tuple(GROUPS), "M": ROWS, "N": COLUMNS, "K": INNER}
    found = []
    for dtype, number in itertools.product(DTYPES, range(len(LAYOUTS))):
        layout, share = LAYOUTS[number], OPERANDS[number :: len(LAYOUTS)]
        name = f"WgmmaGemm-grouped-{dtype}-{layout}"
        found.append(
            Group(name, WgmmaGemm, partial(_make, dtype, layout), {**traits, "operands": share}, cost, turn=(number, 4))
        )
    return found
