"""Cases of linear attention: with and without decay, both ways, ragged lengths, narrow and wide heads, layouts."""

from __future__ import annotations

import functools
import random
from functools import partial

from attention_cases import DTYPES, place
from cases import Group
from rowwise_cases import judge

from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import family_of
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import f32
from kgen.ops.linear_attention import LinearAttention, LinearAttentionWgmma
from kgen.ops.linear_attention.heads import variant

N, D, E = dims("N D E")
EXPRESSIONS = ("undecayed", "decay", "backwards", "undecayed backwards", "gated", "plain")
OPERANDS = ("dense", "padded", "heads inside", "misaligned", "columns")
LENGTHS = ("one", "below a chunk", "chunk", "above a chunk", "several")
HEADS = ("one", "several", "none")
#: Columns of keys and of values, by schedule.
WIDTHS: dict[type[Schedule], dict[str, tuple[int, int]]] = {
    LinearAttention: {"64": (64, 64), "128": (64, 128), "narrow": (16, 48), "odd": (37, 51), "wide": (200, 24)},
    LinearAttentionWgmma: {
        "64": (64, 64),
        "128": (128, 128),
        "narrow": (16, 40),
        "wide": (200, 24),
        "values": (64, 328),
    },
}


@functools.cache
def operator(dtype: str, expression: str) -> Operator:
    """Linear attention of a kind, for one dtype."""
    t = DTYPES[dtype]
    if expression not in ("gated", "plain"):
        return variant(decay="undecayed" not in expression, backwards="backwards" in expression)

    def gated(q: Expr, k: Expr, v: Expr, gate: Expr, strength: float) -> Expr:
        """Decay of one number for all heads, made of a gate; the weights' factors in another order, the mask the other way."""
        total = F.cumsum(-abs(gate * strength))
        weights = (q @ k.T) * F.exp(total.T - total) * (0.5 * strength)
        return cast(where(arange(N) <= arange(N, 1), weights, 0.0), t) @ v

    def plain(q: Expr, k: Expr, v: Expr) -> Expr:
        return cast(where(arange(N, 1) >= arange(N), q @ k.T, 0.0), t) @ v

    q, k, v, out = Tensor[t, ..., N, D], Tensor[t, ..., N, D], Tensor[t, ..., N, E], Tensor[f32, ..., N, E]
    given = {"q": q, "k": k, "v": v}
    function = gated if expression == "gated" else plain
    more = {"gate": Tensor[f32, 1, N], "strength": float} if expression == "gated" else {}
    function.__annotations__ = {**given, **more, "return": Tensor[t, ..., N, E] if expression == "gated" else out}
    return Operator(function, f"linear_attention_{expression}_{dtype}")


def _traits(schedule: type[Schedule]) -> dict[str, tuple[str, ...]]:
    """What a problem may be like: where TMA copies, rows are aligned and results of the operands' dtype."""
    expressions, operands = (
        (EXPRESSIONS[:-1], OPERANDS[:3]) if schedule is LinearAttentionWgmma else (EXPRESSIONS, OPERANDS)
    )
    widths = tuple(WIDTHS[schedule])
    return {"expression": expressions, "operands": operands, "length": LENGTHS, "heads": HEADS, "width": widths}


def _make(
    schedule: type[Schedule], dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]]:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    among = _traits(schedule)
    traits = {trait: source.choice(values) for trait, values in among.items()}
    fixed: dict[str, Value] = {}
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    if fixed.get("warps") == 8 or value == 32:
        traits["width"] = source.choice(("64", "128"))
    if name == "consumers":
        traits["width"] = {1: "wide", 2: "128"}.get(int(value), "values")
    if fixed.get("WV") == 128:
        traits["width"] = source.choice(("64", "values"))
    if name == "segments" and value != 1:
        traits |= {"heads": source.choice(("one", "none")), "length": "several", "width": source.choice(("64", "128"))}
    chunk = 64
    if schedule is LinearAttention:
        chunk = int(fixed.setdefault("BC", source.choice((16, 32, 64))))
    length = {
        "one": 1,
        "below a chunk": chunk - 3,
        "chunk": chunk,
        "above a chunk": chunk + 1,
        "several": max(3, int(fixed.get("segments", 1))) * chunk + 7,
    }
    depth, width = WIDTHS[schedule][traits["width"]]
    leading = {"one": (1, 1), "several": (2, 2), "none": ()}[traits["heads"]]
    graph = operator(dtype, traits["expression"]).graph({"q": DTYPES[dtype]})
    sizes = {"N": length[traits["length"]], "D": depth, "E": width}
    operands = []
    for spec in (*graph.inputs, *graph.outputs):
        named = tuple(sizes.get(str(d), d) for d in spec.shape.dims)
        shape = (*leading, *named) if spec.shape.leading else named
        if spec.dtype.bits == 16:
            operands.append(place(spec, shape, traits["operands"]))  # type: ignore[arg-type]
        else:
            operands.append(Operand(spec.name, spec.dtype, shape, dense_strides(shape)))  # type: ignore[arg-type]
    return family_of(graph).normalise(Problem.bind(graph, operands)), fixed, traits


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    q, v = problem.inputs[0], problem.inputs[2]
    return q.elements * (v.shape[-1] + 64) / 1.2e7


def groups() -> list[Group]:
    """A group for each schedule and dtype."""
    return [
        Group(
            f"{schedule.__name__}-{dtype}-{number}",
            schedule,
            partial(_make, schedule, dtype),
            _traits(schedule),
            _cost,
            judge=judge,
        )
        for schedule in WIDTHS
        for number, dtype in enumerate(("f16", "bf16"))
    ]
