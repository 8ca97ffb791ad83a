"""Cases of attention: its schedules over masks, scores of several kinds, shared heads, ragged lengths and layouts."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace
from functools import partial
from typing import Any

from cases import TARGET, Group
from rowwise_cases import judge

from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast, matmul, where
from kgen.dsl.family import family_of
from kgen.dsl.indexing import arange, size
from kgen.dsl.operator import Operator, Tensor, TensorSpec
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims, evaluate
from kgen.dsl.types import bf16, f16, f32, i32
from kgen.gpu.target import resolve
from kgen.ops.attention import AttentionMma, AttentionWgmma, AttentionWide
from kgen.ops.attention.heads import attend, variant
from kgen.ops.attention.sigmoid import sigmoid_variant

G, M, N, D, E = dims("G M N D E")
#: A GPU of two multiprocessors without cp.async.
TURING = replace(resolve("T4"), sm_count=2)
#: Of operands, by what groups are called; f16acc is summed in f16.
DTYPES = {"f16": f16, "bf16": bf16, "f16acc": f16}
EXPRESSIONS = (
    "full",
    "causal",
    "window",
    "bias",
    "softcap",
    "sinks",
    "dropout",
    "gated",
    "plain",
    "slopes",
    "documents",
    "ranges",
    "fp8",
    "partial",
    "negative scale",
    "factors",
    "sigmoid",
    "relu",
    "lengths",
    "pages",
)
#: Those that are summed in f16, both products or one.
HALF = (
    "full",
    "causal",
    "window",
    "bias",
    "softcap",
    "sinks",
    "dropout",
    "half scores",
    "half values",
    "lengths",
    "pages",
)
OPERANDS = ("dense", "padded", "heads inside", "misaligned", "columns")
LENGTHS = ("one", "below a tile", "tile", "above a tile", "several")
HEADS = ("one", "several", "shared")
#: Columns of keys and of values, by schedule.
WIDTHS: dict[type[Schedule], dict[str, tuple[int, int]]] = {
    AttentionMma: {
        "64": (64, 64), "128": (128, 64), "narrow": (16, 48), "odd": (37, 51), "two": (64, 130), "wide": (264, 300),
        "widest": (16, 520),
    },
    AttentionWgmma: {"64": (64, 64), "128": (128, 64), "narrow": (16, 48), "deep": (320, 64)},
    AttentionWide: {"512": (512, 512), "latent": (576, 504), "ragged": (16, 320), "widest": (64, 1000)},
}  # fmt: skip


@functools.cache
def operator(dtype: str, expression: str) -> Operator:
    """Attention of a kind, for one dtype."""
    t = DTYPES[dtype]
    of_sums: dict[str, Any] = {"f16acc": dtype == "f16acc"}
    if expression in ("full", "bias"):
        return variant("full", bias=expression == "bias", lse=expression == "bias", **of_sums)
    if expression in ("causal", "window"):
        return variant(expression, lse=expression == "causal", **of_sums)  # type: ignore[arg-type]
    if expression == "lengths":
        return variant("causal", lengths=True, lse=True, **of_sums)
    if expression == "pages":
        return variant("full", lengths=True, page=8, bias=True, **of_sums)
    if expression == "softcap":
        return variant("window", softcap=True, **of_sums)
    if expression == "sinks":
        return variant("causal", sinks=True, lse=True, **of_sums)
    if expression == "sigmoid":
        return sigmoid_variant("causal")
    if expression == "fp8":
        return variant("causal", fp8=True, lse=True)
    if expression == "partial":
        return variant("causal", partial=True, lse=True)
    if expression == "dropout":
        return variant("causal", dropout=True, **of_sums)

    def plain(q: Expr, k: Expr, v: Expr) -> Expr:
        """Without a guard: rows that are left nothing are NaN."""
        scores = where(arange(M, 1) + (size(N) - size(M)) >= arange(N), 0.125 * (q @ k.T), -math.inf)
        e = F.exp(scores - F.amax(scores))
        return cast(e / F.sum(e), t) @ v

    def gated(q: Expr, k: Expr, v: Expr, gate: Expr) -> tuple[Expr, Expr]:
        """Exponentials below a number of the row beside its maximum, and a factor that each row has of its own."""
        scores = 0.125 * (q @ k.T)
        e = F.exp(scores - (F.amax(scores) + 0.5 * gate))
        return cast(e / F.sum(e) * (gate + F.amax(scores)), t) @ v, F.sum(e)

    def slopes(q: Expr, k: Expr, v: Expr, slope: Expr) -> Expr:
        """ALiBi, of heads that also know their number."""
        distance = cast(abs(arange(M, 1) - arange(N)), f32)
        return attend(0.1 * (q @ k.T) - slope * distance * cast(arange(G, 1, 1) + 1, f32), v)[0]

    def documents(q: Expr, k: Expr, v: Expr, rows: Expr, columns: Expr) -> tuple[Expr, Expr]:
        """Rows see the columns of their own document, up to their own place."""
        seen = (rows == columns) & (arange(N) <= arange(M, 1))
        return attend(where(seen, 0.125 * (q @ k.T), -math.inf), v)

    def ranges(q: Expr, k: Expr, v: Expr, begin: Expr, shift: Expr) -> tuple[Expr, Expr]:
        """Rows see the columns from where their head's begin, up to a place that their own number moves."""
        seen = (begin <= arange(N)) & (arange(N) <= arange(M, 1) + shift)
        return attend(where(seen, 0.125 * (q @ k.T), -math.inf), v)

    def negative_scale(q: Expr, k: Expr, v: Expr, scale: float) -> Expr:
        return attend(scale * -1.0 * (q @ k.T), v)[0]

    def half_scores(q: Expr, k: Expr, v: Expr) -> tuple[Expr, Expr]:
        return attend(0.125 * matmul(q, k.T, f16), v)

    def half_values(q: Expr, k: Expr, v: Expr) -> tuple[Expr, Expr]:
        return attend(0.125 * (q @ k.T), v, accumulate=f16)

    def factors(q: Expr, k: Expr, v: Expr, factor: Expr) -> tuple[Expr, Expr]:
        """A factor of each head, of any sign."""
        return attend(where(arange(M, 1) >= arange(N), 0.125 * (q @ k.T * factor), -math.inf), v)

    def relu(q: Expr, k: Expr, v: Expr, gate: Expr, bias: Expr) -> Expr:
        """Without a normaliser, with a factor that each row has of its own."""
        scores = F.relu(0.125 * (q @ k.T) + bias) / cast(size(N), f32)
        seen = (arange(N) <= arange(M, 1) + 9) & (arange(M, 1) - 40 <= arange(N))
        return gate * (cast(where(seen, scores, 0.0), t) @ v)

    q, k, v = Tensor[t, ..., G, M, D], Tensor[t, ..., 1, N, D], Tensor[t, ..., 1, N, E]
    out, given = Tensor[t, ..., G, M, E], {"q": q, "k": k, "v": v}
    annotations: dict[str, dict[str, Any]] = {
        "plain": {**given, "return": out},
        "gated": {**given, "gate": Tensor[f32, G, M, 1], "return": tuple[out, Tensor[f32, ..., G, M]]},
        "slopes": {**given, "slope": Tensor[f32, G, 1, 1], "return": out},
        "documents": {
            **given, "rows": Tensor[i32, M, 1], "columns": Tensor[i32, N],
            "return": tuple[out, Tensor[f32, ..., G, M]],
        },
        "ranges": {
            **given, "begin": Tensor[i32, G, M, 1], "shift": Tensor[i32, M, 1],
            "return": tuple[out, Tensor[f32, ..., G, M]],
        },
        "factors": {**given, "factor": Tensor[f32, G, 1, 1], "return": tuple[out, Tensor[f32, ..., G, M]]},
        "relu": {**given, "gate": Tensor[f32, G, M, 1], "bias": Tensor[t, G, M, N], "return": out},
        "negative_scale": {**given, "scale": float, "return": out},
        "half_scores": {**given, "return": tuple[out, Tensor[f32, ..., G, M]]},
        "half_values": {**given, "return": tuple[out, Tensor[f32, ..., G, M]]},
    }  # fmt: skip
    name = expression.replace(" ", "_")
    function = locals()[name]
    function.__annotations__ = annotations[name]
    return Operator(function, f"attention_{name}_{dtype}")


def place(spec: TensorSpec, shape: tuple[int, ...], kind: str) -> Operand:
    """An operand laid out so; what has fewer than two long axes stays dense."""
    strides, align = dense_strides(shape), 16
    if len(shape) < 3 or spec.dtype.bits != 16:
        return Operand(spec.name, spec.dtype, shape, strides)
    if kind == "padded":
        pitch = math.ceil(shape[-1] / 8) * 8 + 8
        strides = (*dense_strides((*shape[:-1], pitch))[:-1], 1)
    elif kind == "heads inside":
        *head, heads, rows, columns = shape
        own = dense_strides((*head, rows, heads, columns))
        strides = (*own[:-3], own[-2], own[-3], 1)
    elif kind == "misaligned":
        align = 2
    elif kind == "columns":
        own = dense_strides((*shape[:-2], shape[-1], shape[-2]))
        strides = (*own[:-2], own[-1], own[-2])
    return Operand(spec.name, spec.dtype, shape, strides, align)


def _make(
    schedule: type[Schedule], dtype: str, expressions: tuple[str, ...], source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    by_tma, widths = schedule is not AttentionMma, list(WIDTHS[schedule])
    traits = {
        "expression": source.choice(expressions),
        "operands": source.choice(OPERANDS[:3] if by_tma else OPERANDS),
        "length": source.choice(LENGTHS),
        "heads": source.choice(HEADS),
        "width": source.choice(widths),
    }
    fixed: dict[str, Value] = {}
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    if name == "pack_gqa" and value:
        traits["heads"] = "shared"
    if name == "swizzle":
        traits["width"] = "64" if value == "xor" else "narrow"
    if name == "slices" and value != 1:
        traits["width"] = "wide" if value == 2 and not by_tma else "widest"
    if name in ("order", "group"):
        bounded = value == "longest_first" or value in (4, 8, 16, 32)
        some = ("causal", "window", "ranges") if bounded else ("full", "bias")
        traits["expression"] = source.choice([e for e in some if e in expressions])
        fixed |= {"order": "longest_first" if bounded else "in_order"}
    if name == "splits":
        fixed |= {"BR": 64 if by_tma else 16, "BC": 16}
    if schedule is AttentionWide:
        fixed.setdefault("BC", source.choice((16, 48, 64)))
        fixed.setdefault("cluster", source.choice((1, 2)))
    elif by_tma:
        fixed.setdefault("BC", source.choice((64, 80, 96)))
        fixed.setdefault("BR", source.choice((64, 128, 192)))
    else:
        fixed.setdefault("BR", source.choice((16, 32, 64)))
    rows, columns = int(fixed.get("BR", 64)) * int(fixed.get("cluster", 1)), int(fixed.get("BC", 64))
    lengths = {"one": (1, 1), "below a tile": (rows - 3, columns - 1), "tile": (rows, columns),
               "above a tile": (rows + 1, columns + 3), "several": (2 * rows + 5, 3 * columns + 7)}  # fmt: skip
    m, n = lengths[traits["length"]]
    if name == "splits":  # each has a step
        m, n = min(m, rows + 1), columns * int(value) - 5
    depth, width = WIDTHS[schedule][traits["width"]]
    group = {"one": 1, "several": 1, "shared": 3}[traits["heads"]]
    whole = operator(dtype, traits["expression"])
    graph = next(g for g in whole.graphs if DTYPES[dtype] in (g.inputs[0].dtype, g.outputs[0].dtype))
    sizes = {"G": group, "M": max(1, m), "N": n, "D": depth, "E": width}
    leading = {"one": (1, 1), "several": (2, 2), "shared": (1, 2)}[traits["heads"]]
    if traits["expression"] == "pages":
        sizes |= {"L": math.ceil(n / 8), "R": n + 5, "K": leading[1]}
        leading = leading[:1]
    operands = []
    for spec in (*graph.inputs, *graph.outputs):
        named = tuple(evaluate(d, sizes) for d in spec.shape.dims)
        shape = (*leading, *named) if spec.shape.leading else named
        operands.append(place(spec, shape, traits["operands"]))  # type: ignore[arg-type]
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return (problem, fixed, traits) if schedule.applies(problem) else None


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    q, v = problem.inputs[0], problem.inputs[2]
    return q.elements * v.shape[-2] / 1.2e7


def groups() -> list[Group]:
    """A group for each schedule and dtype, and where tiles pass through registers."""
    found = []
    for schedule in WIDTHS:
        by_tma = schedule is not AttentionMma
        for number, dtype in enumerate(("f16", "bf16") if by_tma else ("f16", "bf16", "f16acc", "f16", "f16acc")):
            expressions = HALF if dtype == "f16acc" else EXPRESSIONS[:-1] if by_tma else EXPRESSIONS
            traits = {"expression": expressions, "operands": OPERANDS[:3] if by_tma else OPERANDS, "length": LENGTHS,
                      "heads": HEADS, "width": tuple(WIDTHS[schedule])}  # fmt: skip
            make = partial(_make, schedule, dtype, expressions)
            name = f"{schedule.__name__}-{dtype}-{number}"
            target = TARGET if number < 3 else TURING
            found.append(Group(name, schedule, make, traits, _cost, lambda _, target=target: target, judge=judge))
    return found
