"""Attention by weights without a normaliser: which graphs are found, what masks and padding leave of them, what ptxas makes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from launches import launch

from kgen import emulator
from kgen.codegen.source import joined
from kgen.dsl import functions as F
from kgen.dsl.any_order import unordered
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import family_of, normalised
from kgen.dsl.gradient import backward, training
from kgen.dsl.indexing import arange, size, take
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DType, bf16, bool_, e4m3, f16, f32, i32, i64
from kgen.emulator import Options
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.numerics.philox import uniform
from kgen.ops.attention import AttentionMma, AttentionWgmma
from kgen.ops.attention.algebra import attention
from kgen.ops.attention.heads import Mask
from kgen.ops.attention.sigmoid import sigmoid_variant
from kgen.ops.attention.text import mask_bounds
from kgen.ops.attention_gradient import AttentionGradientMma, AttentionGradientOnePass, AttentionGradientWgmma
from kgen.tuner.execute import Runner
from kgen.tuner.verify import Gate

M, N, D, E, P = dims("M N D E P")
H200, A100 = resolve("H200"), resolve("A100-SXM4-80GB")
ROW, COLUMN = arange(M, 1), arange(N)

MMA: tuple[type[Schedule], dict[str, Any]] = (AttentionMma, {"BR": 32, "BC": 16, "stages": 2})
SPLITS: tuple[type[Schedule], dict[str, Any]] = (AttentionMma, {"BR": 16, "BC": 16, "splits": 3})
WGMMA: tuple[type[Schedule], dict[str, Any]] = (
    AttentionWgmma,
    {"BR": 64, "BC": 32, "pingpong": False, "persistent": False},
)
CLUSTER: tuple[type[Schedule], dict[str, Any]] = (
    AttentionWgmma, {"BR": 64, "BC": 64, "pingpong": False, "persistent": False, "splits": 2, "cluster": True},
)  # fmt: skip


def defined(weights: Callable[[Expr], Expr]) -> Graph:
    """The graph of weights(q @ k.T) @ v."""

    @Operator
    def attended(
        q: Tensor[f16, ..., M, D], k: Tensor[f16, ..., N, D], v: Tensor[f16, ..., N, E]
    ) -> Tensor[f16, ..., M, E]:
        return cast(weights(q @ k.T), f16) @ v

    return attended.graphs[0]


@pytest.mark.parametrize(
    ("weights", "conditions"),
    [
        (lambda s: F.sigmoid(0.5 * s - F.log(cast(size(N), f32))), 0),
        (lambda s: where((ROW >= COLUMN) & (COLUMN > ROW - 8), F.sigmoid(s), 0.0), 2),
        (lambda s: F.sigmoid(where(ROW >= COLUMN, s, -math.inf)), 1),  # of -infinity it is 0
        (lambda s: where(ROW >= COLUMN, F.relu(s) * F.relu(s) / cast(size(N), f32), 0.0), 1),
        (
            lambda s: where(COLUMN >= ROW + 1, 0.1 * s, 0.0),
            1,
        ),  # no state has these: they are no row's own and all behind it
        (lambda s: F.tanh(s) * cast(abs(ROW - COLUMN), f32), 0),
        (lambda s: F.exp(s), 0),
        (lambda s: s + 1.0, 0),
    ],
)
def test_forms_that_are(weights: Callable[[Expr], Expr], conditions: int) -> None:
    graph = defined(weights)
    found = attention(graph)
    assert found is not None
    assert found.softmax is None
    assert family_of(graph).name == "attention"
    bounds = mask_bounds(normalised(Problem.dense(graph, {"...": (2,), "M": 9, "N": 9, "D": 16, "E": 16})))
    assert (len(bounds.lower) + len(bounds.upper), bounds.whole) == (conditions, True)


@pytest.mark.parametrize(
    "weights",
    [
        lambda s: s,  # a chain of products
        lambda s: 0.125 * s / cast(size(N), f32),
        lambda s: F.sigmoid(s) / F.sum(F.sigmoid(s)),
        lambda s: F.sigmoid(s - F.amax(s)),
        lambda s: F.cumsum(F.sigmoid(s)),
        lambda s: where(ROW >= COLUMN, F.cumsum(s), 0.0),
    ],
)
def test_forms_that_are_not(weights: Callable[[Expr], Expr]) -> None:
    assert attention(defined(weights)) is None


def test_causal_multiples_are_linear_attention() -> None:
    @Operator
    def square(
        q: Tensor[f16, ..., N, D], k: Tensor[f16, ..., N, D], v: Tensor[f16, ..., N, E]
    ) -> Tensor[f16, ..., N, E]:
        return cast(where(arange(N, 1) >= arange(N), 0.125 * (q @ k.T), 0.0), f16) @ v

    assert attention(square.graphs[0]) is not None
    assert family_of(square.graphs[0]).name == "linear_attention"


def test_layers_are_not_attention() -> None:
    """Matrices that all rows share are as wide as a layer; of rows by ids, and where places count, they are a head's."""

    @Operator
    def layers(x: Tensor[f16, ..., M, D], w: Tensor[f16, N, D], u: Tensor[f16, N, E]) -> Tensor[f16, ..., M, E]:
        return cast(F.gelu(x @ w.T), f16) @ u

    @Operator
    def taken(
        q: Tensor[f16, ..., M, D], k: Tensor[f16, P, D], v: Tensor[f16, P, E], ids: Tensor[i64, ..., N]
    ) -> Tensor[f16, ..., M, E]:
        return cast(F.sigmoid(q @ take(k, ids).T), f16) @ take(v, ids)

    @Operator
    def one_head(q: Tensor[f16, M, D], k: Tensor[f16, N, D], v: Tensor[f16, N, E]) -> Tensor[f16, M, E]:
        return cast(where(ROW >= COLUMN, F.sigmoid(q @ k.T), 0.0), f16) @ v

    assert attention(one_head.graphs[0]) is not None
    assert attention(layers.graphs[0]) is None
    assert family_of(layers.graphs[0]).name == "program"
    assert attention(taken.graphs[0]) is not None


def run(
    schedule: tuple[type[Schedule], dict[str, Any]], graph: Graph, inputs: list[torch.Tensor], **scalars: float
) -> torch.Tensor:
    """The result, of poison where no kernel writes."""
    q, _, v, *_ = inputs
    out = torch.full((*q.shape[:-1], v.shape[-1]), math.nan, dtype=q.dtype)
    launch(graph, [*inputs, out], *schedule, scalars)
    return out


@pytest.mark.parametrize("schedule", [MMA, SPLITS, WGMMA, CLUSTER], ids=str)
def test_columns_beyond_the_last_weigh_nothing(schedule: tuple[type[Schedule], dict[str, Any]]) -> None:
    """Though their keys are zeros, of which this weight is infinite, and infinity times a value of 0 is NaN."""
    q, k, v = (torch.rand(2, n, 64).half() + 0.5 for n in (21, 37, 37))
    graph = defined(lambda s: F.reciprocal(s))
    found = run(schedule, graph, [q, k, v])
    want = (1 / (q.double() @ k.double().mT)) @ v.double()
    torch.testing.assert_close(found.double(), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("schedule", [MMA, SPLITS, WGMMA, CLUSTER], ids=str)
def test_blocks_that_a_mask_hides_are_not_read(schedule: tuple[type[Schedule], dict[str, Any]]) -> None:
    """NaN behind the diagonal's block of columns, and in memory beside the operands."""
    rows, columns, BC = 16, 150, int(schedule[1]["BC"])
    q, k, v = (torch.randn(2, 1, n, 64).half() for n in (rows, columns, columns))
    seen = torch.arange(rows)[:, None] >= torch.arange(columns)
    want = torch.where(seen, torch.sigmoid(0.125 * q.double() @ k.double().mT - 1.5), 0.0) @ v.double()
    behind = torch.arange(columns)[:, None] >= -(-rows // BC) * BC
    graph = sigmoid_variant("causal").graph({"q": f16})
    given = [q[:, :, None], *(x.masked_fill(behind, math.nan)[:, :, None] for x in (k, v))]
    found = run(schedule, graph, given, scale=0.125, shift=0, bias=-1.5)
    torch.testing.assert_close(found[:, :, 0].double(), want, rtol=0, atol=4e-3)


@pytest.mark.parametrize("schedule", [MMA, SPLITS, WGMMA, CLUSTER], ids=str)
def test_data_says_what_weighs(schedule: tuple[type[Schedule], dict[str, Any]]) -> None:
    """Values up to a length, NaN behind it; a mask of every element; weights that are dropped; a factor of each row."""
    lengths = torch.tensor([0, 1, 70, 100], dtype=torch.int32)
    q, k, v = (torch.randn(4, n, 64).half() for n in (33, 100, 100))
    gate, allowed = torch.randn(33, 1), torch.rand(33, 100) < 0.7
    there = torch.arange(100)[:, None] < lengths[:, None, None]
    behind = [x.masked_fill(~there, math.nan) for x in (k, v)]

    @Operator
    def attended(
        q: Tensor[f16, ..., M, D], k: Tensor[f16, ..., N, D], v: Tensor[f16, ..., N, E], lengths: Tensor[i32, ..., 1, 1],
        gate: Tensor[f32, M, 1], allowed: Tensor[bool_, M, N],
    ) -> Tensor[f16, ..., M, E]:  # fmt: skip
        weights = where((lengths > COLUMN) & allowed, F.silu(q @ k.T), 0.0)
        kept = cast(where(arange(N, 1) < lengths, v, 0.0), f16)
        return (cast(F.dropout(weights, 0.25, 3, 0), f16) @ kept) * gate

    found = run(schedule, attended.graphs[0], [q, *behind, lengths.view(4, 1, 1), gate, allowed])
    s = q.double() @ k.double().mT
    dropped = uniform(torch.arange(s.numel()).view(s.shape), 3, 0) < 0.25
    weights = (s * torch.sigmoid(s) / 0.75).masked_fill(dropped | ~allowed | ~there.mT, 0.0)
    want = gate.double() * (weights @ v.double())
    error = 2**-10 * (gate.double().abs() * (weights.abs() @ v.double().abs()))
    assert ((found.double() - want).abs() <= error + 1e-6).all()


@pytest.mark.parametrize(("heads", "dtype"), [(True, e4m3), (False, f16), (False, bf16)], ids=str)
def test_the_gate_passes(heads: bool, dtype: DType) -> None:
    """Of 8 bits, whose values lie column by column, and of one head, which has no axis for heads."""
    lead = (...,) if heads else ()
    shapes = {"q": (*lead, M, D), "k": (*lead, N, D), "v": (*lead, *((E, N) if dtype is e4m3 else (N, E)))}

    def attended(q: Expr, k: Expr, v: Expr) -> Expr:
        weights = where(ROW + 40 >= COLUMN, F.silu(0.1 * (q @ k.T)) / cast(size(N), f32), 0.0)
        return cast(weights, dtype) @ (v.T if dtype is e4m3 else v)

    attended.__annotations__ = {name: Tensor[(dtype, *shape)] for name, shape in shapes.items()}
    attended.__annotations__["return"] = Tensor[(bf16 if dtype is e4m3 else dtype, *lead, M, E)]
    graph = Operator(attended).graphs[0]
    sizes = {"M": 77, "N": 160, "D": 64, "E": 64} | ({"...": (2,)} if heads else {})
    problem = normalised(Problem.dense(graph, sizes))
    config = AttentionWgmma.default(problem, H200)
    source = config.source(problem)
    verdict = Gate(problem).check(Runner(emulator.compile(source), source, config.symbols(problem), Options()))
    assert verdict.ok, verdict.evidence


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_gradients_spill_nothing(width: int, mask: Mask) -> None:
    """Neither by the two launches nor in one pass; nothing is kept of the forward pass."""
    sizes = {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": width, "E": width}
    whole = training(sigmoid_variant(mask).graphs[0])
    assert len(whole.outputs) == 1
    made = backward(whole, (0,), (0, 1, 2)).graph
    assert made is not None
    two = [
        (p, s)
        for p in program_of(Problem.dense(made, sizes)).launches
        for s in (AttentionGradientWgmma, AttentionGradientMma)
    ]
    for launched, schedule in [*two, (Problem.dense(unordered(made), sizes), AttentionGradientOnePass)]:
        problem = normalised(launched)
        binary = nvrtc(schedule.default(problem, H200).source(problem), H200.arch)
        assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_few_registers_spill_nothing(width: int, mask: Mask) -> None:
    """The defaults, as a GPU would run them; of a row nothing is kept, nor of its sums anything multiplied."""
    sizes = {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": width, "E": width}
    problem = normalised(Problem.dense(sigmoid_variant(mask).graphs[0], sizes))
    for schedule, target in ((AttentionWgmma, H200), (AttentionMma, H200), (AttentionMma, A100)):
        source = schedule.default(problem, target).source(problem)
        binary = nvrtc(source, target.arch)
        assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())
        kernel = joined([source]).partition('extern "C"')[2]
        assert "NoNormaliser" in kernel
        assert not any(word in kernel for word in ("OnlineSoftmax", "scale_rows", "maximum", "finish_row"))
