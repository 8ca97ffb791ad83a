"""The cases of the GEMM templates: every dtype and layout; shapes from 0 and 1 to several tiles; all kinds of operands."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import cache, partial

from cases import Group

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast, matmul
from kgen.dsl.family import family_of
from kgen.dsl.functions import relu
from kgen.dsl.operator import Graph, Operator, Tensor, TensorSpec
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims, evaluate
from kgen.dsl.types import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, i32, tf32
from kgen.ops.gemm import MmaGemm, SimtGemm
from kgen.ops.gemm.problem import describe

M, N, K = dims("M N K")

#: What is multiplied, what it is summed in, what comes out.
DTYPES: dict[str, tuple[DType, DType, DType]] = {
    "f16": (f16, f32, f16),
    "f16acc": (f16, f16, f16),
    "bf16": (bf16, f32, bf16),
    "f32": (f32, f32, f32),
    "f64": (f64, f64, f64),
    "tf32": (tf32, f32, f32),
    "i8": (i8, i32, i32),
    "e4m3": (e4m3, f32, bf16),
    "e5m2": (e5m2, f32, f16),
}

EXPRESSIONS = ("square", "plain", "axpby", "bias", "outputs", "scalar", "rounded", "transposed")
LAYOUTS = ("NN", "NT", "TN", "TT")
#: In two layouts alone: what is loaded is as of e4m3, and only conversions differ.
LIKE_OTHERS = {"e5m2": ("NN", "TN")}
OPERANDS = ("dense", "padded", "odd pitch", "strided", "align element", "align 4", "align 8")
BATCHES = ("none", "one", "two", "b shared", "a shared", "expanded", "apart")
OUTER = ("one", "prime", "below", "tile", "above", "aligned", "several", "many")
INNER = ("zero", "one", "below", "tile", "above", "odd tiles", "even tiles", "aligned", "prime", "deep")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator with one contraction, exact on small whole numbers."""
    t, total, out = DTYPES[dtype]
    a, b = Tensor[t, ..., M, K], Tensor[t, ..., K, N]
    result, wide = Tensor[out, ..., M, N], out if total is i32 else f32
    product = partial(matmul, accumulate=total)

    def plain(a: Expr, b: Expr) -> Expr:
        return product(a, b)

    def axpby(a: Expr, b: Expr, c: Expr, alpha: Expr, beta: Expr) -> Expr:
        return alpha * product(a, b) + beta * c

    def bias(a: Expr, b: Expr, bias: Expr) -> Expr:
        return relu(product(a, b) + bias) if total is not i32 else product(a, b) + bias

    def outputs(a: Expr, b: Expr, weights: Expr) -> tuple[Expr, Expr]:
        total = product(a, b)
        return total, total * 2 + weights

    def scalar(a: Expr, b: Expr, s: Expr) -> Expr:
        return product(a, b) * s

    def rounded(a: Expr, b: Expr, residual: Expr) -> Expr:
        return cast(product(a, b), f16) + residual

    def transposed(a: Expr, b: Expr) -> Expr:
        return product(a.T, b.T)

    def square(a: Expr) -> Expr:
        return product(a, a)

    annotations = {
        "plain": {"a": a, "b": b, "return": result},
        "axpby": {"a": a, "b": b, "c": result, "alpha": float, "beta": float, "return": result},
        "bias": {"a": a, "b": b, "bias": Tensor[wide, N], "return": result},
        "outputs": {"a": a, "b": b, "weights": Tensor[wide, M, 1], "return": tuple[result, Tensor[wide, ..., M, N]]},
        "scalar": {"a": a, "b": b, "s": Tensor[wide, 1], "return": result},
        "rounded": {"a": a, "b": b, "residual": Tensor[f16, ..., M, N], "return": Tensor[f32, ..., M, N]},
        "transposed": {"a": Tensor[t, ..., K, M], "b": Tensor[t, ..., N, K], "return": result},
        "square": {"a": Tensor[t, ..., M, M], "return": Tensor[out, ..., M, M]},
    }
    if total is i32:
        annotations["axpby"]["c"] = annotations["axpby"]["return"] = Tensor[f32, ..., M, N]
    function: Callable[..., object] = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"{expression}_{dtype}")


def outer_size(source: random.Random, trait: str, tile: int, unit: int) -> int:
    return {
        "one": 1,
        "prime": source.choice((2, 7, 13, 31, 37)),
        "below": tile - 1,
        "tile": tile,
        "above": tile + 1,
        "aligned": tile + unit,
        "several": 2 * tile + source.choice((3, 5, unit)),
        "many": 16 * tile + source.choice((1, -1, 0)),
    }[trait]


def inner_size(source: random.Random, trait: str, tile: int, unit: int, splits: int) -> int:
    return {
        "zero": 0,
        "one": 1,
        "below": tile - 1,
        "tile": tile,
        "above": tile + 1,
        "odd tiles": 3 * tile,
        "even tiles": 4 * tile,
        "aligned": 2 * tile + unit,
        "prime": source.choice((3, 37, 67, 131)),
        "deep": 2 * tile * splits + source.choice((0, 1, unit, tile)),
    }[trait]


def _heads(batch: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The leading sizes of a (and of c, and of the result) and of b."""
    return {
        "none": ((), ()),
        "one": ((3,), (3,)),
        "two": ((2, 3), (2, 3)),
        "b shared": ((3,), ()),
        "a shared": ((), (3,)),
        "expanded": ((2, 3), (2, 3)),
        "apart": ((2, 1), (1, 3)),
    }[batch]


def _place(
    source: random.Random, spec: TensorSpec, shape: tuple[int, ...], column_major: bool, kind: str, expanded: bool
) -> Operand:
    """The operand with the strides and the alignment that its kind stands for."""
    size, own = spec.dtype.bytes, min(2, len(spec.shape.dims))
    rows, columns = (shape[-2], shape[-1]) if own == 2 else (1, shape[-1])
    outer, inner = (columns, rows) if column_major else (rows, columns)
    step = 2 if kind == "strided" else 1
    pitch = max(inner, 1) * step
    unit = max(1, 16 // size)
    if kind == "padded":
        pitch = -(-pitch // unit) * unit + unit
    elif kind == "odd pitch":
        pitch += 3 - pitch % 2
    last = (step, pitch) if column_major else (pitch, step)
    gap = unit if kind == "padded" else 1 if kind == "odd pitch" else 0
    matrix = max(outer, 1) * pitch + gap
    head = tuple(s * matrix for s in dense_strides(shape[: len(shape) - own]))
    if expanded:
        head = (*head[:-1], 0)
    align = {"align element": size, "align 4": max(4, size), "align 8": 8}.get(kind, 16)
    return Operand(spec.name, spec.dtype, shape, (*head, *last[2 - own :]), align)


def bound_problem(
    source: random.Random, graph: Graph, sizes: dict[str, int], layout: str, kind: str, batch: str
) -> Problem | None:
    head_a, head_b = _heads(batch)
    full = max(head_a, head_b, key=len) if batch != "apart" else (2, 3)
    touched = source.choice(("ab", "a", "b", "abc"))
    operands = []
    for spec in (*graph.inputs, *graph.outputs):
        named = tuple(evaluate(d, sizes) for d in spec.shape.dims)
        head = {"a": head_a, "b": head_b}.get(spec.name, full) if spec.shape.leading else ()
        special = kind if spec.name in touched or ("c" in touched and spec.name not in "ab") else "dense"
        if spec.name == "offsets" and special == "strided":  # refused: see test_gemm_grouped.py
            special = "dense"
        transposed = spec.name in "ab" and layout["ab".index(spec.name)] == "T"
        if spec.name in ("scale_a", "scale_b"):
            transposed = source.random() < 0.5
        expanded = batch == "expanded" and spec.name == "b"
        operands.append(_place(source, spec, (*head, *named), transposed, special, expanded))
    return family_of(graph).normalise(Problem.bind(graph, operands))


def _make(
    dtype: str, layout: str, schedule: type[Schedule], source: random.Random, name: str, value: str
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype and layout, with the named trait or fit for the named field's value."""
    unit = max(1, 16 // DTYPES[dtype][0].bytes)
    traits = {
        "expression": source.choice(EXPRESSIONS[1:4] if source.random() < 0.5 else EXPRESSIONS[1:]),
        "operands": source.choice(OPERANDS[:2] if source.random() < 0.6 else OPERANDS),
        "batch": source.choice(BATCHES[:1] if source.random() < 0.7 else BATCHES),
        "M": source.choice(OUTER[:-1]),
        "N": source.choice(OUTER[:-1]),
        "K": source.choice(INNER[1:-1]),
    }
    small = (16, 32, 64) if source.random() < 0.8 else (16, 32, 64, 128)
    fixed: dict[str, Value] = {"BM": source.choice(small), "BN": source.choice(small)}
    fixed["BK"] = source.choice(schedule.fields["BK"].values)
    splits = 1
    if name in traits:
        traits[name] = value
    elif name in ("BM", "BN", "BK"):
        fixed[name] = value
    elif name in ("WM", "WN") and isinstance(value, int):
        tile = "BM" if name == "WM" else "BN"
        fixed[tile] = source.choice([v for v in schedule.fields[tile].values if isinstance(v, int) and v % value == 0])
    elif name in ("TM", "TN") and isinstance(value, int):
        tile, rows = ("BM", 4) if name == "TM" else ("BN", 8)
        tiles = schedule.fields[tile].values
        fixed[tile] = source.choice([v for v in tiles if isinstance(v, int) and v % (rows * value) == 0])
    elif name in ("group", "raster"):
        traits |= {"M": source.choice(("many", "several")), "N": source.choice(("many", "several"))}
        fixed |= {"BM": 16, "BN": source.choice((16, 32))}
    elif name == "pack":
        traits["operands"] = source.choice(("dense", "padded"))
        traits |= {axis: source.choice(("tile", "aligned", "above")) for axis in "MNK"}
    elif name == "splits" and isinstance(value, int):
        splits = value
        fixed["BK"] = source.choice((16, 32))
        traits |= {"K": "deep", "batch": "none", "M": source.choice(OUTER[:4]), "N": source.choice(OUTER[:5])}
    if "many" in (traits["M"], traits["N"]):
        fixed |= {"BM": 16, "BN": 16}
        traits["batch"] = "none"
    if traits["K"] == "deep":
        splits = splits if name == "splits" else source.choice((2, 4))
        fixed["splits"] = splits
    sizes = {
        "M": outer_size(source, traits["M"], int(fixed["BM"]), unit),
        "N": outer_size(source, traits["N"], int(fixed["BN"]), unit),
        "K": inner_size(source, traits["K"], int(fixed["BK"]), unit, splits),
    }
    if traits["expression"] == "square":  # both sides are one operand of one size
        if layout != "NN" or traits["batch"] not in ("none", "one", "two"):
            return None
        traits = {trait: v for trait, v in traits.items() if trait not in "NK"}
    problem = bound_problem(
        source, operator(dtype, traits["expression"]).graphs[0], sizes, layout, traits["operands"], traits["batch"]
    )
    return (problem, fixed, traits) if schedule.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator and in the compilers, about 1 for what is just bearable."""
    g = describe(problem)
    values = config.values
    tiles = -(-g.M // values["BM"]) * -(-g.N // values["BN"]) * g.batches
    work = tiles * values["BM"] * values["BN"] * (g.K + values["BK"])
    if "TM" in values:
        unrolled = values["TM"] * values["TN"] * values["BK"] if values["stages"] else 0
        return max(work / (3e6 if values["stages"] else 1e6), unrolled / 2048)
    return work / 2e7


def groups() -> list[Group]:
    """A group for each schedule, dtype and layout. The layouts share out values of fields, expressions, operands and batches."""
    found = []
    for schedule, dtype, number in itertools.product((MmaGemm, SimtGemm), DTYPES, range(len(LAYOUTS))):
        layout, share = LAYOUTS[number], slice(number, None, len(LAYOUTS))
        if dtype == "tf32" if schedule is SimtGemm else dtype in ("f32", "f64"):
            continue
        if layout not in LIKE_OTHERS.get(dtype, LAYOUTS):
            continue
        traits = {"expression": EXPRESSIONS[share], "operands": OPERANDS[share], "batch": BATCHES[share]}
        traits |= {"M": OUTER, "N": OUTER, "K": INNER}
        name = f"{schedule.__name__}-{dtype}-{layout}"
        found.append(
            Group(name, schedule, partial(_make, dtype, layout, schedule), traits, _cost, turn=(number % 2, 2))
        )
    return found
