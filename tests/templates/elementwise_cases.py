"""The cases of the elementwise template: every dtype, all kinds of broadcasts and strides, sizes around vectors and blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache, partial

from cases import Group

from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import family_of
from kgen.dsl.functions import floor, maximum, relu, swap_halves, swap_pairs
from kgen.dsl.indexing import arange, size, take
from kgen.dsl.indexing import random as random_numbers
from kgen.dsl.operator import Operator, Tensor, TensorSpec
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, DType, bool_, f16, f32, f64, i32, i64
from kgen.ops.elementwise import Elementwise

M, N, P = dims("M N P")

EXPRESSIONS = (
    "sum",
    "row",
    "column",
    "value",
    "scalars",
    "select",
    "outputs",
    "narrowed",
    "compared",
    "leading",
    "floored",
)
#: Of an even number of columns where the name says so.
POSITIONS = (
    "counted",
    "transposed",
    "dropped",
    "even halves",
    "even pairs",
    "even table",
    "even paired table",
    "even floored",
)
OPERANDS = ("dense", "transposed", "padded", "odd pitch", "strided", "align element", "align 4", "align 8")
SHAPES = ("one", "prime", "below a vector", "above a vector", "below a block", "above a block", "several", "column")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator of two dimensions, exact on small whole numbers."""
    t = DTYPES[dtype]
    full = Tensor[t, M, N]

    def sum(x: Expr, y: Expr) -> Expr:
        return 2 * x - y

    def row(x: Expr, b: Expr) -> Expr:
        return x + b

    def column(x: Expr, w: Expr) -> Expr:
        return x * w

    def value(x: Expr, s: Expr) -> Expr:
        return x - s

    def scalars(x: Expr, alpha: Expr, n: Expr) -> Expr:
        return alpha * x + n

    def select(x: Expr, y: Expr) -> Expr:
        return where((x > y) & ~(x == 3) | (y < -2), relu(x), maximum(y, -x))

    def outputs(x: Expr, y: Expr) -> tuple[Expr, Expr]:
        return x + y, x * y

    def narrowed(x: Expr, y: Expr) -> Expr:
        return cast(cast(x, f16) * y, i32) + 1

    def compared(x: Expr, y: Expr) -> Expr:
        return x >= y

    def leading(x: Expr, y: Expr) -> Expr:
        return x * y

    def floored(x: Expr, b: Expr, n: Expr) -> Expr:
        return x * floor(b * 0.5) + floor(n * 0.5)

    def counted(x: Expr) -> Expr:
        return x + (arange(M, 1) % 7) * (arange(N) // 3) - size(N)

    def transposed(x: Expr, y: Expr) -> Expr:
        return x - y.T

    def dropped(x: Expr, seed: Expr, offset: Expr) -> Expr:
        return where(random_numbers(x, seed, offset * 2 + 1) < 0.5, x, 0)

    def even_halves(x: Expr, b: Expr) -> Expr:
        other = swap_halves(x + b)
        return where(arange(N) // (size(N) // 2) == 0, -other, other) + x * 2

    def even_pairs(x: Expr, b: Expr) -> Expr:
        return swap_pairs(x * (arange(N) % 3)) - b

    def even_floored(x: Expr, b: Expr) -> Expr:
        low = arange(N) % (size(N) // 2) % 7
        return swap_halves(x) * floor(low * 0.5) - b

    def even_table(x: Expr, p: Expr) -> Expr:
        return swap_halves(x) + take(take(p, arange(M), axis=0), arange(N) % (size(N) // 2), axis=-1)

    def even_paired_table(x: Expr, p: Expr) -> Expr:
        return x * 3 - take(p, arange(N) // 2, axis=-1)

    two = {"x": full, "y": full}
    wide = Tensor[f32, M, N]
    annotations = {
        "sum": {**two, "return": full},
        "row": {"x": full, "b": Tensor[t, N], "return": full},
        "column": {"x": full, "w": Tensor[t, M, 1], "return": full},
        "value": {"x": full, "s": Tensor[t, 1], "return": full},
        "scalars": {"x": full, "alpha": float, "n": int, "return": full if t.is_float else wide},
        "select": {**two, "return": full if t.is_float else wide},
        "outputs": {**two, "return": tuple[full, full if t.bits == 64 else wide]},
        "narrowed": {**two, "return": Tensor[i32, M, N]},
        "compared": {**two, "return": Tensor[bool_, M, N]},
        "floored": {"x": full, "b": Tensor[t, N], "n": int, "return": full if t is f64 else wide},
        "leading": {"x": Tensor[t, ..., N], "y": Tensor[t, ...], "return": Tensor[t, ..., N]},
        "counted": {"x": full, "return": wide if t.bits < 64 else full},
        "transposed": {"x": full, "y": Tensor[t, N, M], "return": wide if t.bits < 64 else full},
        "dropped": {"x": full, "seed": i64, "offset": i64, "return": wide if t.bits < 64 else full},
        "even halves": {
            "x": Tensor[t, ..., N],
            "b": Tensor[t, ..., N],
            "return": Tensor[wide.dtype if t.bits < 64 else t, ..., N],
        },
        "even pairs": {"x": full, "b": Tensor[t, N], "return": wide if t.bits < 64 else full},
        "even floored": {"x": full, "b": Tensor[t, N], "return": full if t is f64 else wide},
        "even table": {"x": full, "p": Tensor[t, M, P], "return": wide if t.bits < 64 else full},
        "even paired table": {"x": full, "p": Tensor[t, M, P], "return": wide if t.bits < 64 else full},
    }
    function: Callable[..., object] = locals()[expression.replace(" ", "_")]
    if t is bool_:
        function = {"sum": lambda x, y: x & ~y, "row": lambda x, b: x | b}.get(expression, function)
        function.__name__ = expression
    if expression == "leading":
        annotations["leading"]["y"] = Tensor[t, ..., N]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"{expression.replace(' ', '_')}_{dtype}")


def _shape(source: random.Random, trait: str, pack: int, block: int) -> tuple[int, int]:
    rows = source.choice((1, 3, 8))
    wide = {
        "one": 1,
        "prime": source.choice((7, 37, 131)),
        "below a vector": max(1, 2 * pack - 1),
        "above a vector": 2 * pack + 1,
        "below a block": block - 1,
        "above a block": block + 1,
        "several": 3 * block + 5 * pack,
        "column": 1,
    }[trait]
    return (1 if trait == "one" else 131 if trait == "column" else rows, wide)


def _place(spec: TensorSpec, shape: tuple[int, ...], kind: str) -> Operand:
    """The operand with the strides and the alignment that its kind stands for."""
    size = spec.dtype.bytes
    unit = max(1, 16 // size)
    strides = dense_strides(shape)
    if len(shape) >= 2 and kind == "transposed":
        swapped = dense_strides((*shape[:-2], shape[-1], shape[-2]))
        strides = (*swapped[:-2], swapped[-1], swapped[-2])
    elif kind in ("padded", "odd pitch", "strided"):
        step = 2 if kind == "strided" else 1
        pitch = max(shape[-1], 1) * step
        pitch = -(-pitch // unit) * unit + unit if kind == "padded" else pitch + 3 - pitch % 2
        strides = (*(s * pitch for s in dense_strides(shape[:-1])), step)
    align = {"align element": size, "align 4": max(4, size), "align 8": 8}.get(kind, 16)
    return Operand(spec.name, spec.dtype, shape, strides, align)


def _make(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    known = _expressions(DTYPES[dtype])
    fields = Elementwise.fields
    fixed: dict[str, Value] = {"pack": source.choice(fields["pack"].values), "threads": source.choice((128, 256))}
    fixed["items"] = source.choice(fields["items"].values)
    traits = {
        "expression": source.choice(known),
        "operands": source.choice(OPERANDS),
        "shape": source.choice(SHAPES),
    }
    if name in traits:
        traits[name] = str(value)
    else:
        fixed[name] = value
    if name == "along" and value != "vectors" and DTYPES[dtype] is not bool_:
        fit = ("floored", "row") if value == "repeats" else ("even floored", "even halves")
        traits["expression"] = source.choice(fit)
    graph = operator(dtype, traits["expression"]).graphs[0]
    block = int(fixed["threads"]) * int(fixed["items"]) * int(fixed["pack"])
    rows, columns = _shape(source, traits["shape"], int(fixed["pack"]), block)
    columns += columns % 2 if traits["expression"].startswith("even") else 0
    if name == "along" or source.random() < 0.3:  # dimensions that stay apart have whole vectors
        rows, columns = source.choice((8, 16)), -(-columns // (2 * int(fixed["pack"]))) * 2 * int(fixed["pack"])
    special = source.choice(((0,), (1,), (0, 1, 2, 3), (2, 3)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple({"M": rows, "N": columns, "P": columns // 2}.get(str(d), d) for d in spec.shape.dims)
        head = {0: (rows, 1), 1: (1, 2)}.get(number, (rows, 2)) if spec.shape.leading else ()
        kind = traits["operands"] if number in special else "dense"
        operands.append(_place(spec, (*head, *(int(n) for n in named)), kind))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return problem, fixed, traits


def _expressions(dtype: DType) -> tuple[str, ...]:
    return ("sum", "row", "compared") if dtype is bool_ else (*EXPRESSIONS, *POSITIONS)


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator, about 1 for what is just bearable."""
    return math.prod(problem.leading) / 4e5


def groups() -> list[Group]:
    """Three groups for each dtype."""
    return [
        Group(
            f"Elementwise-{t.name}-{number}",
            Elementwise,
            partial(_make, t.name),
            {"expression": _expressions(t), "operands": OPERANDS, "shape": SHAPES},
            _cost,
        )
        for t in DTYPES.values()
        for number in range(3 if t.name != "tf32" else 0)
    ]
