"""Gradients of attention: every value of every field of both schedules over masks, sides, shared heads, lengths and layouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attention_gradient_cases import launch
from suite import names, run_and_compile

from kgen.dsl import functions as F
from kgen.dsl.any_order import is_spared, ordered, unordered
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import Expr, cast
from kgen.dsl.family import normalised
from kgen.dsl.gradient import backward, training
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.partition import partition
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.size import dims
from kgen.dsl.types import f16
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops.attention.heads import variant
from kgen.ops.attention_gradient import AttentionGradientMma, AttentionGradientOnePass, AttentionGradientWgmma
from kgen.ops.attention_gradient.algebra import conditions, gradient
from kgen.ops.attention_gradient.text import mask_bounds

M, N, D, E = dims("M N D E")
H200 = resolve("H200")
SCHEDULES = ("AttentionGradientMma", "AttentionGradientWgmma", "AttentionGradientOnePass")


@pytest.mark.parametrize("name", [x for s in SCHEDULES for x in names(s)])
def test_cases(name: str) -> None:
    run_and_compile(name)


def gradients_of(weights: Callable[[Expr], Expr], score: Callable[[Expr], Expr] = lambda s: 0.5 * s) -> Graph:
    """The gradients of weights(score(q @ k.T)) @ v."""

    @Operator
    def attended(
        q: Tensor[f16, ..., M, D], k: Tensor[f16, ..., N, D], v: Tensor[f16, ..., N, E]
    ) -> Tensor[f16, ..., M, E]:
        return cast(weights(score(q @ k.T)), f16) @ v

    made = backward(training(attended.graphs[0]), (0,), (0, 1, 2)).graph
    assert made is not None
    return made


def softmax(s: Expr) -> Expr:
    e = F.exp(s - F.amax(s))
    return e / F.sum(e)


@pytest.mark.parametrize(
    "score", [lambda s: s, lambda s: 20.0 * F.tanh(s), lambda s: s * s, lambda s: F.sigmoid(s) - s]
)
def test_any_score_takes_three_launches(score: Callable[[Expr], Expr]) -> None:
    """One for the sums of rows, one for the queries' gradient, and one for those of keys and values."""
    cut = partition(gradients_of(softmax, score))
    assert cut is not None
    sums, queries, keys = cut.graphs
    assert [str(spec) for spec in sums.outputs] == ["sum_1: f32[..., M, 1]"]
    assert not gradient(queries).transposed  # type: ignore[union-attr]
    assert gradient(keys).transposed  # type: ignore[union-attr]
    assert [spec.name for spec in (*queries.outputs, *keys.outputs)] == ["grad_q", "grad_k", "grad_v"]


@pytest.mark.parametrize("weights", [F.sigmoid, F.relu, F.silu, lambda s: F.exp(s), lambda s: s * s])
def test_weights_without_a_normaliser_take_two_launches(weights: Callable[[Expr], Expr]) -> None:
    """No row is summed up for them; in any order one launch is all."""
    made = gradients_of(weights)
    cut = partition(made)
    assert cut is not None
    queries, keys = (gradient(part) for part in cut.graphs)
    assert queries is not None and not queries.transposed  # noqa: PT018
    assert keys is not None and keys.transposed  # noqa: PT018
    assert cut.cuts == ()
    free = unordered(made)
    assert partition(free) is None
    assert gradient(free) is not None
    assert is_spared(made)


def test_two_layers_are_no_attention() -> None:
    """Matrices that all leading axes share are as wide as layers are, and left to products of their own."""

    @Operator
    def layers(x: Tensor[f16, ..., M, D], w: Tensor[f16, N, D], u: Tensor[f16, N, E]) -> Tensor[f16, ..., M, E]:
        return cast(F.sigmoid(x @ w.T), f16) @ u

    for wanted in ((0,), (1, 2)):
        made = backward(training(layers.graphs[0]), (0,), wanted).graph
        assert made is not None
        cut = partition(made)
        assert cut is not None
        assert all(gradient(part) is None for part in cut.graphs)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("name", ["full", "causal", "window"])
def test_no_workspace_grows_with_both_lengths(name: str, dropout: bool) -> None:
    """Between the launches are numbers of rows alone."""
    whole = training(variant(name, lse=True, dropout=dropout).graphs[0])  # type: ignore[arg-type]
    made = backward(whole, (0, 1), (0, 1, 2)).graph
    assert made is not None
    sizes = {"...": (1, 2), "G": 2, "M": 1000, "N": 3000, "D": 64, "E": 32}
    program = program_of(Problem.dense(made, sizes))
    assert [w.elements for w in program.workspaces] == [1 * 2 * 2 * 1000]


@pytest.mark.parametrize("side", ["queries", "keys", "values"])
def test_masks_bound_both_sides(side: str) -> None:
    """The columns of weights that a tile of queries has, and the rows that one of keys has."""
    graph = launch("f16", "causal", side)
    made = gradient(graph)
    assert made is not None
    assert len(conditions(made)) == 1
    b = mask_bounds(Problem.dense(graph, {"...": (1,), "G": 1, "M": 64, "N": 64, "D": 16, "E": 16}))
    assert b.whole
    assert (len(b.lower), len(b.upper)) == ((0, 1) if side == "queries" else (1, 0))


def test_data_bounds_both_sides() -> None:
    """Of queries by what rows see, of keys by which rows see them; not where heads that differ are summed."""
    sizes = {"...": (1,), "G": 1, "M": 64, "N": 64, "D": 16, "E": 16}
    whole = training(variant("ranges").graphs[0])
    cut = partition(backward(whole, (0,), (0, 1, 2)).graph)  # type: ignore[arg-type]
    assert cut is not None
    queries, keys = (mask_bounds(Problem.dense(graph, sizes)) for graph in cut.graphs[1:])
    assert (queries.lower, queries.upper, queries.whole) == (("seen.first",), ("seen.last",), True)
    assert (keys.lower, keys.upper, keys.whole) == (("seeing.x",), ("seeing.y",), False)
    graph = launch("f16", "ranges", "keys")  # begins are of a head
    assert gradient(graph).summed  # type: ignore[union-attr]
    assert not mask_bounds(Problem.dense(graph, sizes)).bounded


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("side", ["queries", "keys"])
def test_few_registers_spill_nothing(width: int, side: str) -> None:
    """The defaults, as a GPU would run them."""
    sizes = {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": width, "E": width}
    problem = normalised(Problem.dense(launch("f16", "causal", side), sizes))
    for schedule in (AttentionGradientWgmma, AttentionGradientMma):
        binary = nvrtc(schedule.default(problem, H200).source(problem), H200.arch)
        assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())


def test_sums_in_any_order_spare_a_launch() -> None:
    """Of all gradients; not where one side alone is wanted, whose graph stays what it is."""
    whole = training(variant("causal").graphs[0])
    made = backward(whole, (0,), (0, 1, 2)).graph
    assert made is not None
    assert is_spared(made)
    sums, all_of_them = partition(unordered(made)).graphs  # type: ignore[union-attr]
    assert all(part.unordered for part in (sums, all_of_them))
    found = gradient(all_of_them)
    assert found is not None
    assert found.across is not None
    assert [spec.name for spec in all_of_them.outputs] == ["grad_q", "grad_k", "grad_v"]
    assert (found.across_place, found.places, found.transposed) == (0, (1, 2), True)
    assert ordered(unordered(made)) == made != unordered(made)
    queries = backward(whole, (0,), (0,)).graph
    assert queries is not None
    assert not is_spared(queries)


@pytest.mark.parametrize("width", [64, 96, 128])
@pytest.mark.parametrize("expression", ["full", "causal", "window"])
def test_one_pass_spills_nothing(width: int, expression: str) -> None:
    sizes = {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": width, "E": width}
    made = backward(training(variant(expression).graphs[0]), (0,), (0, 1, 2)).graph  # type: ignore[arg-type]
    assert made is not None
    problem = normalised(program_of(Problem.dense(unordered(made), sizes)).launches[-1])
    binary = nvrtc(AttentionGradientOnePass.default(problem, H200).source(problem), H200.arch)
    assert (binary.spill_stores, binary.warnings, binary.fatal_warnings) == (0, (), ())


@pytest.mark.parametrize("wide", [192, 320])
def test_one_pass_leaves_wide_heads_and_masks_of_data_to_three_launches(wide: int) -> None:
    for expression, width in (("full", wide), ("ranges", 64)):
        made = backward(training(variant(expression).graphs[0]), (0,), (0, 1, 2)).graph  # type: ignore[arg-type]
        assert made is not None
        sizes = {"...": (2, 8), "G": 1, "M": 512, "N": 512, "D": width, "E": width}
        problem = normalised(program_of(Problem.dense(unordered(made), sizes)).launches[-1])
        with pytest.raises(ConfigError):
            AttentionGradientOnePass.default(problem, H200)
