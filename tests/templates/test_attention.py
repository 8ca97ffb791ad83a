"""attention: every value of every field of both schedules over masks, scores, shared heads, ragged lengths and layouts."""

import random
from collections.abc import Callable

import pytest
from suite import names, run_and_compile

from kgen import emulator
from kgen.codegen.names import plain
from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import normalised
from kgen.dsl.indexing import arange, size, take
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import f16, f32, i32
from kgen.emulator import Options
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops.attention import AttentionMma, AttentionWgmma, AttentionWide
from kgen.ops.attention.algebra import attention
from kgen.ops.attention.heads import variant
from kgen.ops.attention.problem import describe
from kgen.ops.attention.text import mask_bounds
from kgen.tuner.execute import Runner
from kgen.tuner.verify import Gate

M, N, D, E, P = dims("M N D E P")
H200 = resolve("H200")


@pytest.mark.parametrize("name", [*names("AttentionMma"), *names("AttentionWgmma"), *names("AttentionWide")])
def test_cases(name: str) -> None:
    run_and_compile(name)


def defined(scores: Callable[[Expr, Expr], Expr], weights: Callable[[Expr], Expr] | None = None) -> Graph:
    """The graph of weights(scores(q, k)) @ v; softmax unless others are given."""

    def softmax(s: Expr) -> Expr:
        e = F.exp(s - F.amax(s))
        return e / F.sum(e)

    @Operator
    def attended(
        q: Tensor[f16, ..., M, D], k: Tensor[f16, ..., N, D], v: Tensor[f16, ..., N, E]
    ) -> Tensor[f16, ..., M, E]:
        return cast((weights or softmax)(scores(q, k)), f16) @ v

    return attended.graphs[0]


def test_forms_that_are_attention() -> None:
    plain = attention(defined(lambda q, k: 0.5 * (q @ k.T)))
    assert plain is not None
    assert plain.score is plain.product  # the factor is left to the exponential
    assert plain.scale is not None
    divided = attention(defined(lambda q, k: (q @ k.T) * F.rsqrt(cast(size(D), f32))))
    assert divided is not None and divided.scale is not None  # noqa: PT018
    negative = attention(defined(lambda q, k: -0.5 * (q @ k.T)))
    assert negative is not None and negative.scale is None  # noqa: PT018

    def by_reciprocal(s: Expr) -> Expr:
        e = F.exp(s - F.amax(s))
        return F.reciprocal(F.sum(e)) * e

    def scaled(s: Expr) -> Expr:
        e = F.exp(s - F.amax(s))
        return 2.0 * e / F.sum(e)

    assert attention(defined(lambda q, k: q @ k.T, by_reciprocal))
    assert attention(defined(lambda q, k: q @ k.T, scaled)) is None  # 2 e is no number of the row


@pytest.mark.parametrize(
    "weights",
    [
        lambda s: F.sigmoid(s),
        lambda s: (
            F.exp(s) / F.sum(F.exp(s))
        ),  # not below the maximum: it may overflow block by block as it may in the whole
        lambda s: F.exp(s - F.amax(s)) / F.sum(s),
        lambda s: F.exp(s - F.mean(s)) / F.sum(F.exp(s - F.mean(s))),
        lambda s: F.exp(s - F.amax(s)) / F.sum(F.exp(2.0 * s - F.amax(s))),
    ],
)
def test_forms_that_are_not(weights: Callable[[Expr], Expr]) -> None:
    assert attention(defined(lambda q, k: q @ k.T, weights)) is None


@pytest.mark.parametrize(
    ("of_values", "attends"),
    [
        (lambda ids, other: ids, True),
        (lambda ids, other: ids + 0, False),  # not the same rows for all that is known
        (lambda ids, other: take(other, ids), False),  # ids of ids that may not be there
    ],
)
def test_rows_that_are_taken(of_values: Callable[[Expr, Expr], Expr], attends: bool) -> None:
    @Operator
    def attended(
        q: Tensor[f16, ..., M, D],
        k: Tensor[f16, P, D],
        v: Tensor[f16, P, E],
        ids: Tensor[i32, ..., N],
        other: Tensor[i32, N],
    ) -> Tensor[f16, ..., M, E]:
        scores = q @ take(k, ids).T
        e = F.exp(scores - F.amax(scores))
        return cast(e / F.sum(e), f16) @ take(v, of_values(ids, other))

    assert (attention(attended.graphs[0]) is not None) == attends


def dense_of(graph: Graph) -> Problem:
    return normalised(Problem.dense(graph, {"...": (2, 3), "M": 4, "N": 20, "D": 16, "E": 16}))


def test_values_that_are_kept_are_bounded_from_above() -> None:
    """Zeros behind a length are the kernel's to copy; before one they are a launch of their own."""

    def with_values(keep: Callable[[Expr, Expr], Expr]) -> Graph:
        @Operator
        def attended(
            q: Tensor[f16, ..., M, D],
            k: Tensor[f16, ..., N, D],
            v: Tensor[f16, ..., N, E],
            count: Tensor[i32, ..., 1, 1],
        ) -> Tensor[f16, ..., M, E]:
            scores = q @ k.T
            e = F.exp(scores - F.amax(scores))
            return cast(e / F.sum(e), f16) @ cast(where(keep(arange(N, 1), count), v, 0.0), f16)

        return attended.graphs[0]

    kept = attention(with_values(lambda row, count: row < count))
    assert kept is not None and len(kept.kept) == 1  # noqa: PT018
    assert len(describe(dense_of(kept.graph)).limits) == 1
    assert attention(with_values(lambda row, count: row >= count)) is None
    assert attention(with_values(lambda row, count: (row < count) & (row != 3))) is None


@pytest.mark.parametrize("seed", range(40))
def test_bounds_of_a_mask_are_those_of_its_columns(seed: int) -> None:
    """Over tiles of rows, against the mask itself."""
    source = random.Random(seed)
    left, right, shift = (source.randint(-20, 90) for _ in range(3))
    rows, columns, first, count = 100, source.choice((1, 64, 100)), source.randrange(90), source.choice((1, 10))
    graph = variant("window").graphs[0]
    problem = Problem.dense(graph, {"...": (), "G": 1, "M": rows, "N": columns, "D": 16, "E": 16})
    b = mask_bounds(problem)
    known = {"row_first": first, "row_last": min(rows, first + count) - 1, "left": left, "right": right, "shift": shift}

    def value(text: str) -> int:
        return int(eval(plain(text), {"__builtins__": {}}, known))

    seen = {
        i: {j for j in range(columns) if i + shift - left <= j <= i + shift + right}
        for i in range(first, known["row_last"] + 1)
    }
    low, high = (max(0, *map(value, b.lower)), min(columns, *map(value, b.upper)))
    assert set().union(*seen.values()) <= set(range(low, high))
    if left + right >= 0:  # otherwise no column is seen, and any bounds are right
        assert set(
            range(max(0, *map(value, b.full_lower)), min(columns, *map(value, b.full_upper)))
        ) <= set.intersection(*seen.values())
    assert b.whole


@pytest.mark.parametrize(("schedule", "fields"), [(AttentionWide, {"slices": 2}), (AttentionMma, {"slices": 4})])
def test_the_widest_heads(schedule: type[Schedule], fields: dict[str, Value]) -> None:
    graph = variant("causal", lse=True).graphs[0]
    sizes = {"...": (1, 1), "G": 1, "M": 33, "N": 35, "D": 1024, "E": 1024}
    problem = normalised(Problem.dense(graph, sizes))
    config = schedule.default(problem, H200).replace(BC=16, **fields)
    assert config.broken(problem, H200) == []
    source = config.source(problem)
    verdict = Gate(problem).check(Runner(emulator.compile(source), source, config.symbols(problem), Options()))
    assert verdict.ok, verdict.evidence


def test_few_registers_spill_nothing() -> None:
    """The defaults of heads of 64 to 1024 columns, as a GPU would run them."""
    for width in (64, 128, 256, 512, 1024):
        graph = variant("causal", lse=True).graphs[0]
        sizes = {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": width, "E": width}
        problem = normalised(Problem.dense(graph, sizes))
        for schedule in (AttentionWgmma if width <= 256 else AttentionWide, AttentionMma):
            binary = nvrtc(schedule.default(problem, H200).source(problem), H200.arch)
            assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())
