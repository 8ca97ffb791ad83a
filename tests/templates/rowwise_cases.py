"""The cases of the row-wise template: rows around vectors and threads, nested reductions, all kinds of operands and outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache, partial

from cases import Case, Group

from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, where
from kgen.dsl.family import family_of
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator, Tensor, TensorSpec
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DTYPES, DType, bool_, f32, f64, i32, i64
from kgen.emulator import Options
from kgen.ops.rowwise import Rowwise, RowwiseCluster, RowwiseSpan
from kgen.tuner.execute import AnyKernel, Runner
from kgen.tuner.verify import Gate

M, N = dims("M N")

#: Those of floats, and those that integers have too: exact on small whole numbers.
FLOAT_EXPRESSIONS = ("softmax", "norm", "chain", "masked", "quotient", "dropped")
EXACT_EXPRESSIONS = ("sums", "nested", "weighted", "chosen", "picked", "first", "lone")
OPERANDS = ("dense", "padded", "odd pitch", "strided", "transposed", "broadcast", "align element", "align 8")
LENGTHS = ("one", "prime", "below a vector", "above a vector", "below a tile", "tile", "above a tile", "long")
ROWS = ("one", "two", "below a block", "above a block", "prime")
PARTS = ("one", "within one", "several", "within several")


@cache
def operator(dtype: str, expression: str) -> Operator:
    """An operator over rows of one dtype."""
    t = DTYPES[dtype]
    wide = t if t.bits == 64 else f32 if t.is_float else i64
    full, row = Tensor[t, ..., N], Tensor[t, ..., 1]

    def softmax(x: Expr, scale: Expr) -> Expr:
        e = F.exp(x * scale - F.amax(x * scale))
        return e / F.sum(e)

    def norm(x: Expr, w: Expr, b: Expr, eps: Expr) -> tuple[Expr, Expr]:
        mean = F.mean(x)
        rstd = F.rsqrt(F.mean((x - mean) * (x - mean)) + eps)
        return (x - mean) * rstd * w + b, rstd

    def chain(x: Expr, r: Expr, eps: Expr) -> tuple[Expr, Expr]:
        y = x + r
        z = y * F.rsqrt(F.mean(y * y) + eps)
        return F.gelu(z - F.amax(z)) + F.mean(abs(z)), y

    def masked(x: Expr, mask: Expr) -> tuple[Expr, Expr]:
        y = where(mask, x, -20.0)
        e = F.exp(y - F.amax(y))
        return e / F.sum(e), F.amax(y) + F.log(F.sum(e))

    def quotient(x: Expr, s: Expr) -> Expr:
        return x / (F.sum(abs(x)) + 1) + x / (abs(s) + 2)

    def dropped(x: Expr, seed: Expr) -> Expr:
        return F.dropout(x - F.amax(x), 0.5, seed, 3)

    def sums(x: Expr) -> tuple[Expr, Expr, Expr]:
        return x + F.amin(x), F.sum(x), F.amax(x)

    def nested(x: Expr, s: Expr) -> Expr:
        return F.amax(x * 2 - F.amin(x)) - F.amin(F.amax(x) - x) + s * x

    def weighted(x: Expr, w: Expr, s: Expr) -> tuple[Expr, Expr]:
        return x * w - F.amax(w) + s, F.sum(where(x > s, 1, 0))

    def chosen(x: Expr, target: Expr) -> Expr:
        return F.sum(where(arange(N) == target, x, 0))

    def picked(x: Expr, w: Expr, target: Expr) -> tuple[Expr, Expr]:
        return F.sum(x), F.sum(where(target == arange(N), x * w + arange(N), 0))

    def first(x: Expr) -> Expr:
        return F.argmax(x)

    def lone(x: Expr) -> Expr:
        return x - F.amax(x)

    annotations = {
        "softmax": {"x": full, "scale": float, "return": full},
        "norm": {
            "x": full,
            "w": Tensor[t, N],
            "b": Tensor[f32, N],
            "eps": float,
            "return": tuple[full, Tensor[wide, ..., 1]],
        },
        "chain": {"x": full, "r": full, "eps": float, "return": tuple[full, full]},
        "masked": {"x": full, "mask": Tensor[bool_, ..., N], "return": tuple[full, Tensor[wide, ...]]},
        "quotient": {"x": full, "s": row, "return": full},
        "dropped": {"x": full, "seed": i64, "return": full},
        "sums": {"x": full, "return": tuple[Tensor[wide, ..., N], Tensor[wide, ..., 1], Tensor[wide, ...]]},
        "nested": {"x": full, "s": row, "return": Tensor[wide, ..., N]},
        "weighted": {
            "x": full,
            "w": Tensor[t, N],
            "s": row,
            "return": tuple[Tensor[wide, ..., N], Tensor[i32, ..., 1]],
        },
        "chosen": {"x": Tensor[t, M, N], "target": Tensor[i32, M, 1], "return": Tensor[wide, M]},
        "picked": {
            "x": Tensor[t, M, N],
            "w": Tensor[t, N],
            "target": Tensor[i64, M, 1],
            "return": tuple[Tensor[wide, M], Tensor[wide, M, 1]],
        },
        "first": {"x": full, "return": Tensor[i64, ...]},
        "lone": {"x": Tensor[t, N], "return": Tensor[wide, N]},
    }
    function: Callable[..., object] = locals()[expression]
    function.__annotations__ = annotations[expression]
    return Operator(function, f"row_{expression}")


def expressions(dtype: DType) -> tuple[str, ...]:
    """Those that a dtype has; of f64 those that the reference, which is f64, can judge."""
    return (*FLOAT_EXPRESSIONS, *EXACT_EXPRESSIONS) if dtype.is_float and dtype is not f64 else EXACT_EXPRESSIONS


def _length(source: random.Random, trait: str, pack: int, tile: int) -> int:
    return {
        "one": 1,
        "prime": source.choice((7, 37, 131)),
        "below a vector": max(1, pack - 1),
        "above a vector": pack + 1,
        "below a tile": max(1, tile - pack),
        "tile": tile,
        "above a tile": tile + pack,
        "long": 3 * tile + 5 * pack,
    }[trait]


def _place(spec: TensorSpec, shape: tuple[int, ...], kind: str, output: bool) -> Operand:
    """The operand with the strides and the alignment that its kind stands for."""
    size = spec.dtype.bytes
    unit = max(1, 16 // size)
    strides = dense_strides(shape)
    if len(shape) >= 2 and kind == "transposed":
        swapped = dense_strides((*shape[:-2], shape[-1], shape[-2]))
        strides = (*swapped[:-2], swapped[-1], swapped[-2])
    elif kind == "broadcast" and not output and len(shape) >= 2:
        strides = (*strides[:-2], 0, 1)
    elif kind in ("padded", "odd pitch", "strided") and shape:
        step = 2 if kind == "strided" else 1
        pitch = max(shape[-1], 1) * step
        pitch = -(-pitch // unit) * unit + unit if kind == "padded" else pitch + 3 - pitch % 2
        strides = (*(s * pitch for s in dense_strides(shape[:-1])), step)
    align = {"align element": size, "align 8": 8}.get(kind, 16)
    return Operand(spec.name, spec.dtype, shape, strides, align)


def _make(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """A problem of the dtype, with the named trait or fit for the named field's value."""
    fields = Rowwise.fields
    fixed: dict[str, Value] = {
        "pack": source.choice((1, 2, 4, 8)),
        "row_threads": source.choice((1, 4, 8, 32, 64, 128, 256)),
    }
    traits = {
        "expression": source.choice(expressions(DTYPES[dtype])),
        "operands": source.choice(OPERANDS[:2] if source.random() < 0.5 else OPERANDS),
        "length": source.choice(LENGTHS),
        "rows": source.choice(ROWS),
    }
    if name in traits:
        traits[name] = str(value)
    elif name in fields:
        fixed[name] = value
    if name == "cluster" and isinstance(value, int) and value > 1:
        fixed["row_threads"] = source.choice((32, 64))
    if name == "algorithm" and value == "online":
        if "softmax" not in expressions(DTYPES[dtype]):
            return None
        traits["expression"] = source.choice(("softmax", "masked"))
    if name == "columns" and value == "early":
        traits["expression"] = "weighted"
    if name == "shift" and value:
        fixed["pack"] = source.choice((2, 4, 8))
        traits |= {
            "expression": source.choice(("lone", "sums", "nested", "weighted", "chosen", "picked")),
            "operands": "dense",
        }
        traits["length"] = source.choice(("prime", "above a vector"))
    if name == "keep":
        traits["operands"] = "dense"
    graph = operator(dtype, traits["expression"]).graphs[0]
    pack, threads = int(fixed["pack"]), int(fixed["row_threads"])
    cluster = int(fixed.get("cluster", 1))
    length = _length(source, traits["length"], pack, pack * threads * cluster)
    block = max(1, source.choice((32, 64, 128)) // threads)
    rows = {"one": 1, "two": 2, "below a block": max(1, block - 1), "above a block": block + 1, "prime": 13}[
        traits["rows"]
    ]
    special = source.choice(((0,), (0, 1, 2, 3, 4), (1, 2, 3)))
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple({"M": rows, "N": length}.get(str(d), d) for d in spec.shape.dims)
        output = number >= len(graph.inputs)
        head = ((rows, 1) if spec.name == "mask" else (rows, 2)) if spec.shape.leading else ()
        kind = traits["operands"] if number in special else "dense"
        operands.append(_place(spec, (*head, *(int(n) for n in named)), kind, output))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return problem, fixed, traits


def _cost(config: Schedule, problem: Problem) -> float:
    """Time on the emulator and in the compilers, about 1 for what is just bearable."""
    assert isinstance(config, Rowwise)
    unrolled = config.vectors(problem) * config.pack
    blocks = math.ceil(math.prod(problem.leading[:-1]) / (config.threads // config.row_threads)) * config.cluster
    return max(math.prod(problem.leading) / 2e5, blocks * config.threads / 40000, unrolled / 160)


#: Those of one phase, and those with operands of [N].
_ONE_PHASE = ("softmax", "norm", "masked", "dropped", "sums", "weighted", "chosen", "picked", "first", "lone")
_WITH_COLUMNS = ("norm", "weighted", "picked")


def _make_cluster(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """The same for RowwiseCluster: rows of so many parts, whole or not, more and fewer than there are clusters."""
    fields = RowwiseCluster.fields
    pack = source.choice([n for n in (1, 2, 4, 8, 16) if n * DTYPES[dtype].bytes <= 16])
    fixed: dict[str, Value] = {"threads": 128, "unroll": source.choice((1, 1, 2)), "pack": pack}
    traits = {
        "expression": source.choice([e for e in expressions(DTYPES[dtype]) if e in _ONE_PHASE]),
        "operands": source.choice(("dense", "padded", "broadcast")),
        "parts": source.choice(PARTS),
        "rows": source.choice(ROWS),
    }
    if name in traits:
        traits[name] = str(value)
    elif name in fields:
        fixed[name] = value
    if name == "columns" and value != "late" and traits["expression"] not in _WITH_COLUMNS:
        traits["expression"] = "weighted"
    if name == "blocks_per_sm" and isinstance(value, int) and value > 1:
        fixed["unroll"] = 1
    fixed["cluster"] = fixed.get("cluster", source.choice((2, 2, 4, 8)))
    fixed["columns"] = fixed.get("columns", source.choice(("early", "shared", "late")))
    if traits["expression"] not in _WITH_COLUMNS:
        fixed["columns"] = "late"
    graph = operator(dtype, traits["expression"]).graphs[0]
    part = math.prod(int(fixed[f]) for f in ("cluster", "threads", "pack", "unroll"))
    # Every operand along the row starts and ends at a multiple of 16 bytes: the masks of a byte too.
    length = {"one": part, "within one": part // 2 + 16, "several": 3 * part, "within several": 2 * part + 48}[
        traits["parts"]
    ]
    rows = {"one": 1, "two": 2, "below a block": 3, "above a block": 5, "prime": 7}[traits["rows"]]
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple({"M": rows, "N": length}.get(str(d), d) for d in spec.shape.dims)
        head = ((rows, 1) if spec.name == "mask" else (rows, 2)) if spec.shape.leading else ()
        kind = traits["operands"] if number != 1 else "dense"
        operands.append(_place(spec, (*head, *(int(n) for n in named)), kind, number >= len(graph.inputs)))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return problem, fixed, traits


def _cost_cluster(config: Schedule, problem: Problem) -> float:
    """The same for RowwiseCluster."""
    assert isinstance(config, RowwiseCluster)
    unrolled = config.unroll * config.pack * (config.parts(problem) if config.columns == "early" else 1)
    rows = math.prod(problem.leading[:-1])
    work = rows * config.cluster * (config.threads + 32)
    return max(math.prod(problem.leading) / 2e5, work / 40000, unrolled / 64)


#: Those with a row to keep, and of these those of which no result is one value a row.
_WITH_ROWS = tuple(e for e in (*FLOAT_EXPRESSIONS, *EXACT_EXPRESSIONS) if e != "lone")
_FULL_ALONE = ("softmax", "chain", "quotient", "dropped", "nested")


def _make_span(
    dtype: str, source: random.Random, name: str, value: Value
) -> tuple[Problem, dict[str, Value], dict[str, str]] | None:
    """The same for RowwiseSpan: rows around the threads that share one, more and fewer than a block has."""
    fixed: dict[str, Value] = {
        "row_threads": source.choice((1, 2, 4, 8, 16, 32)),
        "threads": source.choice((64, 64, 128)),
        "turns": source.choice((1, 2, 4)),
        "pack": source.choice([n for n in (1, 2, 4) if n * DTYPES[dtype].bytes <= 16]),
        "columns": source.choice(("early", "late")),
    }
    traits = {
        "expression": source.choice([e for e in expressions(DTYPES[dtype]) if e in _WITH_ROWS]),
        "length": source.choice(LENGTHS),
        "rows": source.choice(ROWS),
    }
    if name in traits:
        traits[name] = str(value)
    elif name in RowwiseSpan.fields:
        fixed[name] = value
    if name == "columns" and value == "early":
        traits["expression"] = "weighted"
    fixed.setdefault("span", source.choice(("block", "thread")) if name in ("rows", "expression") else "block")
    own, length = fixed["span"] == "thread", 0
    if own:  # rows of one vector
        if traits["expression"] not in _FULL_ALONE:
            if name == "expression":
                return None
            traits["expression"] = source.choice([e for e in expressions(DTYPES[dtype]) if e in _FULL_ALONE])
        turns = source.choice([n for n in (1, 2, 4, 8, 16) if n * DTYPES[dtype].bytes <= 16])
        length, traits["length"] = 16 // DTYPES[dtype].bytes // turns, "below a vector"
        fixed |= {"row_threads": 1, "pack": 1, "turns": turns}
    if traits["expression"] not in _WITH_COLUMNS:
        fixed["columns"] = "late"
    graph = operator(dtype, traits["expression"]).graphs[0]
    threads = int(fixed["row_threads"])
    length = length or _length(source, traits["length"], int(fixed["pack"]), threads)
    block = int(fixed["threads"]) // threads * int(fixed["turns"])
    count = {"one": 1, "two": 2, "below a block": block - 1, "above a block": block + 1, "prime": 13}[traits["rows"]]
    head = (max(1, count),) if traits["expression"] != "masked" else (max(1, count), 1)
    operands = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        named = tuple(int({"M": head[0], "N": length}.get(str(d), d)) for d in spec.shape.dims)
        shape = (*(head if spec.shape.leading else ()), *named)
        operands.append(_place(spec, shape, "dense", number >= len(graph.inputs)))
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    return problem, fixed, traits


def _cost_span(config: Schedule, problem: Problem) -> float:
    """The same for RowwiseSpan."""
    assert isinstance(config, RowwiseSpan)
    blocks = math.ceil(math.prod(problem.leading[:-1]) / config.rows)
    work = blocks * config.threads * config.turns
    return max(math.prod(problem.leading) / 2e5, work / 40000, config.vectors(problem) / 64)


def judge(case: Case, kernel: AnyKernel, device: str = "cpu") -> None:
    """The gate: exact results of whole numbers bit for bit, others within the tolerance, nothing else touched."""
    source = kernel.source
    symbols = {**case.config.symbols(case.problem), "SM_COUNT": case.target.sm_count}
    options = Options(seed=case.seed, async_mode=case.async_mode, threads=1)
    runner = Runner(kernel, source, symbols, options)
    try:
        # Special inputs are the gate's own tests: squares that overflow are NaN by Welford's sums, infinite by two passes.
        verdict = Gate(case.problem, device, case.seed, special=False).check(runner)
    finally:
        runner.close()
    seen = verdict.evidence
    if case.problem.inputs[0].dtype is f64 and seen.get("check") == "tolerance":
        # The reference is f64 too: two orders of one sum differ, and no other implementation says by how much.
        assert seen["error"] <= 1e-14 * max(1.0, abs(seen["expected"])), seen
    else:
        assert verdict.ok, seen


def groups() -> list[Group]:
    """Two groups for each dtype, one of clusters that loop, and one of spans."""
    found = []
    for name in ("f16", "bf16", "f32", "f64", "i32", "i8") * 2:
        traits = {"expression": expressions(DTYPES[name]), "operands": OPERANDS, "length": LENGTHS, "rows": ROWS}
        found.append(Group(f"Rowwise-{name}-{len(found)}", Rowwise, partial(_make, name), traits, _cost, judge=judge))
    for name in ("f16", "bf16", "f32", "f64", "i32", "i8"):
        one_phase = tuple(e for e in expressions(DTYPES[name]) if e in _ONE_PHASE)
        traits = {"expression": one_phase, "operands": ("dense", "padded", "broadcast"), "parts": PARTS, "rows": ROWS}
        make = partial(_make_cluster, name)
        found.append(Group(f"RowwiseCluster-{name}", RowwiseCluster, make, traits, _cost_cluster, judge=judge))
        kept = tuple(e for e in expressions(DTYPES[name]) if e in _WITH_ROWS)
        traits = {"expression": kept, "length": LENGTHS, "rows": ROWS}
        make = partial(_make_span, name)
        found.append(Group(f"RowwiseSpan-{name}", RowwiseSpan, make, traits, _cost_span, judge=judge))
    return found
