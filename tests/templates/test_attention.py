"""attention: every value of every field of both schedules over masks, scores, shared heads, ragged lengths and layouts."""

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from launches import launch
from suite import names, run_and_compile

from kgen import emulator
from kgen.codegen.names import plain
from kgen.dsl import functions as F
from kgen.dsl.choice import Value
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import Expr, cast, matmul, where
from kgen.dsl.family import normalised
from kgen.dsl.indexing import arange, size, take
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DType, bf16, f16, f32, f64, i32
from kgen.emulator import Options
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops.attention import AttentionMma, AttentionWgmma, AttentionWide
from kgen.ops.attention.algebra import attention
from kgen.ops.attention.heads import attend, variant
from kgen.ops.attention.problem import describe
from kgen.ops.attention.text import mask_bounds
from kgen.runtime.dispatch import default
from kgen.runtime.operator import KernelOperator
from kgen.tuner.execute import Runner
from kgen.tuner.verify import Gate

M, N, D, E, P = dims("M N D E P")
H200, T4 = resolve("H200"), resolve("T4")


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

    def dropped(s: Expr) -> Expr:
        e = F.exp(s - F.amax(s))
        return F.dropout(e / F.sum(e), 0.1, 3, 0)

    def with_sink(s: Expr) -> Expr:
        e = F.exp(s - F.maximum(F.amax(s), 0.0))
        return e / (F.sum(e) + F.exp(0.0 - F.maximum(F.amax(s), 0.0)))

    def below_another(s: Expr) -> Expr:
        e = F.exp(s - (F.amax(s) - 3.0))
        return e / F.sum(e)

    assert attention(defined(lambda q, k: q @ k.T, by_reciprocal))
    assert attention(defined(lambda q, k: q @ k.T, with_sink))
    assert attention(defined(lambda q, k: q @ k.T, below_another))
    assert attention(defined(lambda q, k: q @ k.T, scaled))
    assert attention(defined(lambda q, k: q @ k.T, dropped)).dropped is not None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "weights",
    [
        lambda s: F.sigmoid(s) / F.sum(F.sigmoid(s)),
        lambda s: (
            F.exp(s) / F.sum(F.exp(s))
        ),  # not below the maximum: it may overflow block by block as it may in the whole
        lambda s: F.exp(s - F.amax(s)) / F.sum(s),
        lambda s: F.exp(s - F.mean(s)) / F.sum(F.exp(s - F.mean(s))),
        lambda s: F.exp(s - F.amax(s)) / F.sum(F.exp(2.0 * s - F.amax(s))),
        lambda s: F.exp(s - F.maximum(F.amax(s), 0.0)) / F.sum(F.exp(s - F.amax(s))),  # of one origin each
        lambda s: F.dropout(F.dropout(F.exp(s - F.amax(s)) / F.sum(F.exp(s - F.amax(s))), 0.1, 3, 0), 0.1, 4, 0),
        lambda s: F.dropout(F.exp(s - F.amax(s)), 0.1, 3, 0) / F.sum(F.dropout(F.exp(s - F.amax(s)), 0.1, 3, 0)),
        lambda s: F.exp(s - F.amax(2.0 * s)) / F.sum(F.exp(s - F.amax(2.0 * s))),
        lambda s: F.exp(s - F.maximum(F.amax(s), s)) / F.sum(F.exp(s - F.maximum(F.amax(s), s))),
    ],
)
def test_forms_that_are_not(weights: Callable[[Expr], Expr]) -> None:
    assert attention(defined(lambda q, k: q @ k.T, weights)) is None


def test_weights_of_8_bits_are_below_powers_of_two() -> None:
    found = attention(variant("causal", fp8=True, sinks=True).graphs[0])
    assert found is not None
    assert found.softmax is not None
    assert (found.transposed, found.softmax.raised) == (True, 8)
    sizes = {"...": (1, 2), "G": 2, "M": 70, "N": 112, "D": 64, "E": 64}
    problem = normalised(Problem.dense(found.graph, sizes))
    assert not AttentionMma.applies(problem)
    assert not AttentionWide.applies(problem)
    assert AttentionWgmma.default(problem, H200).broken(problem, H200) == []


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


@pytest.mark.parametrize(
    ("mask", "bounded", "whole"),
    [
        (lambda i, j, a, b: (a <= j) & (j < b), "lower upper", True),
        (lambda i, j, a, b: (a + i > j) & (i >= j), "upper upper", True),
        (lambda i, j, a, b: F.maximum(a, b - 3) < j, "lower", True),
        (lambda i, j, a, b: (a == j) & (j <= b), "upper", False),
        (lambda i, j, a, b: j - i <= a, "", False),  # no column alone
        (lambda i, j, a, b: a <= b, "", False),
    ],
)
def test_bounds_that_are_data(mask: Callable[[Expr, Expr, Expr, Expr], Expr], bounded: str, whole: bool) -> None:
    @Operator
    def attended(
        q: Tensor[f16, ..., M, D],
        k: Tensor[f16, ..., N, D],
        v: Tensor[f16, ..., N, E],
        a: Tensor[i32, M, 1],
        b: Tensor[i32, ..., M, 1],
    ) -> Tensor[f16, ..., M, E]:
        return attend(where(mask(arange(M, 1), arange(N), a, b), q @ k.T, -math.inf), v)[0]

    found = mask_bounds(dense_of(attended.graphs[0]))
    assert " ".join(["lower"] * len(found.lower) + ["upper"] * len(found.upper)) == bounded
    assert (len(found.full_lower), len(found.full_upper), found.whole) == (len(found.lower), len(found.upper), whole)


@pytest.mark.parametrize(
    ("schedule", "fields"),
    [
        (AttentionMma, {"BR": 32, "BC": 16, "stages": 1}),
        (AttentionMma, {"BR": 32, "BC": 16, "pack_gqa": True, "splits": 3}),
        (AttentionWgmma, {"BR": 64, "BC": 64, "pingpong": False, "persistent": False, "order": "longest_first"}),
        (AttentionWgmma, {"BR": 128, "BC": 64, "pingpong": True, "persistent": True, "order": "paired", "group": 1}),
    ],
    ids=str,
)
def test_columns_of_no_row_of_a_tile_are_not_read(schedule: type[Schedule], fields: dict[str, Any]) -> None:
    """Ranges that grow from tile to tile, some of them empty: all columns but a tile's own blocks are NaN, tile by tile."""
    rows, columns, BR, BC, group = 150, 390, int(fields["BR"]), int(fields["BC"]), 2
    source = torch.Generator().manual_seed(BR)
    q, k, v = (
        torch.randn(2, g, n, 64, generator=source).half() for g, n in ((group, rows), (1, columns), (1, columns))
    )
    begin = torch.arange(rows) + torch.randint(0, 150, (rows,), generator=source)
    end = begin + torch.randint(-3, 90, (rows,), generator=source)
    seen = (begin[:, None] <= torch.arange(columns)) & (torch.arange(columns) < end[:, None])
    scores = (q.double() @ k.double().mT * 0.125).masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, -1).masked_fill(~seen.any(-1, keepdim=True), 0)
    want, in_tile = weights @ v.double(), BR // group if fields.get("pack_gqa") else BR
    for first in range(0, rows, in_tile):
        own = slice(first, min(rows, first + in_tile))
        low, high = int(begin[own].min()) // BC * BC, -(-int(end[own].max()) // BC) * BC
        outside = (torch.arange(columns) < low) | (torch.arange(columns) >= high)
        given = [x.masked_fill(outside[:, None], math.nan) for x in (k, v)]
        out, lse = torch.empty_like(q), torch.empty(2, group, rows)
        ranges = (x.int()[:, None].contiguous() for x in (begin, end))
        graph = variant("ranges", lse=True).graph({"q": f16})
        launch(graph, [q, *given, *ranges, out, lse], schedule, fields, {"scale": 0.125})
        torch.testing.assert_close(out[:, :, own].double(), want[:, :, own], rtol=0, atol=4e-3)


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
    for width, mask in (
        (64, "causal"),
        (128, "causal"),
        (256, "causal"),
        (128, "ranges"),
        (512, "causal"),
        (1024, "causal"),
    ):
        graph = variant(mask, lse=True).graphs[0]  # type: ignore[arg-type]
        sizes = {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": width, "E": width}
        problem = normalised(Problem.dense(graph, sizes))
        if width in (64, 128):
            eight = normalised(Problem.dense(variant(mask, lse=True, fp8=True).graphs[0], sizes))  # type: ignore[arg-type]
            binary = nvrtc(AttentionWgmma.default(eight, H200).source(eight), H200.arch)
            assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())
        for schedule in (AttentionWgmma if width <= 256 else AttentionWide, AttentionMma):
            binary = nvrtc(schedule.default(problem, H200).source(problem), H200.arch)
            assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())


def test_few_registers_spill_nothing_on_turing() -> None:
    """The defaults there, of prompts and of decode."""
    for width, rows, f16acc in ((64, 4096, False), (80, 4096, False), (128, 4096, False), (128, 4096, True),
                                (256, 4096, False), (256, 4096, True), (128, 1, False), (256, 1, False)):  # fmt: skip
        graph = variant("causal", f16acc=f16acc).graphs[0]
        sizes = {"...": (2, 8), "G": 4, "M": rows, "N": 4096, "D": width, "E": width}
        problem = normalised(Problem.dense(graph, sizes))
        config = default(problem, T4).config
        binary = nvrtc(config.source(problem), T4.arch)
        assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ()), config


def of_sums(scores: DType, values: DType, operands: DType = f16) -> Graph:
    """Attention whose products are summed so."""

    @Operator
    def attended(
        q: Tensor[operands, ..., M, D],  # type: ignore[valid-type]
        k: Tensor[operands, ..., N, D],  # type: ignore[valid-type]
        v: Tensor[operands, ..., N, E],  # type: ignore[valid-type]
    ) -> Tensor[operands, ..., M, E]:  # type: ignore[valid-type]
        return attend(0.125 * matmul(q, k.T, scores), v, accumulate=values)[0]

    return attended.graphs[0]


@pytest.mark.parametrize(("scores", "values"), [(f16, f16), (f32, f16), (f16, f32)], ids=str)
def test_sums_in_f16_are_those_of_the_graph(scores: DType, values: DType) -> None:
    """By attention_mma alone, also where TMA and wgmma are; each product by the instruction that sums so."""
    problem = dense_of(of_sums(scores, values))
    found = default(problem, H200).config
    assert isinstance(found, AttentionMma)
    for target, instruction in ((H200, "m16n8k16"), (T4, "m16n8k8")):
        body = default(problem, target).config.source(problem).body
        assert {(instruction, total.name) for total in (scores, values)} == set(
            re.findall(r"ptx::mma_(m16n8k\d+)_f16_(f\d+)", body)
        )
    for schedule in (AttentionWgmma, AttentionWide):
        with pytest.raises(ConfigError, match="summed in f32: in f16 attention_mma sums them"):
            schedule.default(problem, H200)


def test_sums_that_tensor_cores_have_not() -> None:
    assert attention(of_sums(f16, f16, bf16)) is None
    assert attention(of_sums(f64, f32)) is None


def test_infinite_sums_of_f16_are_seen() -> None:
    """Products of 64 times 40 * 40 are beyond f16: a row of infinite scores is NaN, where sums of f32 are fine."""
    q, k, v = torch.full((1, 1, 16, 64), 40.0), torch.full((1, 1, 32, 64), 40.0), torch.ones(1, 1, 32, 64)
    for scores, finite in ((f32, True), (f16, False)):
        out = torch.empty(1, 1, 16, 64, dtype=torch.float16)
        launch(of_sums(scores, f16), [q.half(), k.half(), v.half(), out], AttentionMma, {"BR": 16, "BC": 16}, {})
        assert out.isfinite().all().item() == finite


def test_copies_through_registers_take_bf16_too() -> None:
    problem = normalised(Problem.dense(variant("window").graph({"q": bf16}), {"...": (1, 2), "G": 2, "M": 70, "N": 90,
                                                                              "D": 48, "E": 80}))  # fmt: skip
    config = AttentionMma.default(problem, H200).replace(BR=32, BC=32, copy="register", stages=1)
    source = config.source(problem)
    assert source.arch.sm == 80
    assert config.broken(problem, T4)[0].rule == "dtype_of_the_target"
    verdict = Gate(problem).check(Runner(emulator.compile(source), source, config.symbols(problem), Options()))
    assert verdict.ok, verdict.evidence


@pytest.mark.parametrize(
    ("group", "rows", "fields"),
    [
        (4, 1, {"pack_gqa": True, "splits": 2}),
        (8, 5, {"pack_gqa": True, "splits": 8, "blocks_per_sm": 2}),  # more parts than there are steps
        (8, 5, {"pack_gqa": True, "splits": 8, "cluster": True}),
        (1, 3, {"splits": 3, "overlap": False}),
        (4, 2, {"pack_gqa": True, "BC": 48, "stages": 4}),
        (3, 30, {"pack_gqa": True, "splits": 2, "BR": 128}),
        (1, 70, {"BR": 128, "persistent": True, "order": "paired"}),
    ],
)
def test_lengths_by_tma(group: int, rows: int, fields: dict[str, int | bool | str]) -> None:
    """Nothing behind a head's length counts, NaN or not; of a row that sees no key the result is 0."""
    lengths, columns, width = torch.tensor([0, 1, 77, 128, 150]), 150, 64
    q = torch.randn(5, 2, group, rows, width, dtype=torch.bfloat16)
    k, v = (torch.randn(5, 2, 1, columns, width, dtype=torch.bfloat16) for _ in range(2))
    there = (torch.arange(columns) < lengths[:, None]).view(5, 1, 1, columns, 1)
    clean = [torch.where(there, x, 0.0).double() for x in (k, v)]
    behind = [torch.where(there, x, math.nan) for x in (k, v)]
    config = AttentionWgmma(
        **{"order": "longest_first", "group": 1, "BR": 64, "BC": 64, "stages": 2, "pingpong": False, "overlap": True,
           "persistent": False, "pdl": True, **fields}
    )  # fmt: skip
    run = KernelOperator(variant("causal", lengths=True, lse=True)).using(config)
    out, lse = run(q, *behind, lengths.to(torch.int32).view(5, 1, 1, 1, 1), scale=0.125, shift=-rows)
    last = lengths.view(5, 1, 1, 1, 1) - rows + torch.arange(rows).view(1, 1, 1, rows, 1)
    scores = 0.125 * (q.double() @ clean[0].mT)
    scores = torch.where(torch.arange(columns) <= last, scores, -math.inf)
    expected = torch.softmax(scores, -1).nan_to_num() @ clean[1]
    assert (out.double() - expected).abs().max() < 1e-2
    torch.testing.assert_close(lse.double().view(scores.shape[:-1]), scores.logsumexp(-1), atol=1e-3, rtol=0)


def test_defaults_by_length() -> None:
    """Few rows: packed, and split where heads do not fill the GPU, by TMA; many: tiles of a head, as before either was there."""

    def chosen(batch: int, group: int, rows: int, columns: int) -> AttentionWgmma:
        sizes = {"...": (batch, 8), "G": group, "M": rows, "N": columns, "D": 128, "E": 128}
        problem = normalised(Problem.dense(variant("full").graph({"q": bf16}), sizes))
        config = default(problem, H200).config
        assert isinstance(config, AttentionWgmma)
        return config

    for batch, columns in ((1, 1024), (1, 131072), (8, 4096), (64, 8192)):
        config = chosen(batch, 4, 1, columns)
        assert (config.BR, config.pack_gqa) == (64, True)
        assert (config.splits > 1) == (batch * 8 < H200.sm_count)
    for rows in (1024, 4096):
        config = chosen(16384 // rows, 4, rows, rows)
        assert (config.BR, config.pack_gqa, config.splits, config.blocks_per_sm) == (128, False, 1, 1)
