"""The gate refuses kernels with one small fault each: of the kinds that small, dense, finite problems, run in one way, hide."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from tuner_samples import problem_of

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl import functions as F
from kgen.dsl.family import family_of
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.target import Target
from kgen.dsl.types import f16, f32
from kgen.ops.attention import AttentionMma
from kgen.ops.elementwise import Elementwise
from kgen.ops.gather import Gather
from kgen.ops.gemm import MmaGemm, WgmmaGemm
from kgen.ops.nms import Nms
from kgen.ops.reduction import Reduce
from kgen.ops.rowwise import Rowwise
from kgen.tuner.emulated import judge
from kgen.tuner.variants import variants

SQUARE = {"M": 1024, "N": 1024, "K": 1024}
HEADS = {"...": (1, 1), "G": 1, "M": 64, "N": 64, "D": 64, "E": 64}
LINE, ROWS = {"...": (1 << 20,)}, {"...": (4096,), "N": 1024}
STREAM = {
    "work": "stream_k",
    "splits": 4,
    "pingpong": False,
    "cluster": "1x1",
    "consumers": 2,
    "BM": 128,
    "BN": 128,
    "stages": 4,
}
RING = {"stages": 12, "BM": 64, "BN": 64, "consumers": 1, "pingpong": False, "cluster": "1x1", "epilogue_stages": 1}
PAIR = {"consumers": 2, "BM": 128, "BN": 128, "stages": 4}

#: By what is wrong: the operator, its problem and schedule, the config's fields that differ from the default, and the text
#: with what takes its place.
FAULTS: dict[str, tuple[str, Mapping[str, Any], type[Schedule], Mapping[str, Any], str, str]] = {
    # What small problems do not reach.
    "the shares of a cut tile are not added": (
        "hgemm", SQUARE, WgmmaGemm, STREAM, "sums[i] += __ldcg(mine", "sums[i] += 0 * __ldcg(mine"),
    "a phase is not flipped": ("hgemm", SQUARE, WgmmaGemm, RING, "phase ^= stage == 0;", ""),
    "the unchecked loop adds nothing": ("reduce_sum", LINE, Reduce, {}, "add(Bool<true>());", ""),
    "a persistent block takes one tile": (
        "gelu", LINE, Elementwise, {"blocks_per_sm": 2}, "start += stride", "start = count"),
    "a block's next turn begins too early": (
        "softmax", ROWS, Rowwise, {"keep": "none"}, "tile += VECTORS * STEP", "tile += VECTORS * STEP + STEP"),
    "ends are not looked at where K is whole": (
        "hgemm", SQUARE, MmaGemm, {}, "m0 + BM <= M && n0 + BN <= N && K", "m0 + BM <= M && K"),
    # What one order of warps hides.
    "two barriers are one": (
        "hgemm", SQUARE, WgmmaGemm, PAIR, "  } else if (consumer == First - 1) {\n    ptx::named_barrier_sync<First, 128>();",
        "  } else if (consumer == First - 1) {\n    ptx::named_barrier_sync<Consumers, 128>();"),
    "two barriers of a ping-pong are one": (
        "hgemm", SQUARE, WgmmaGemm, {**PAIR, "BM": 64, "pingpong": True},
        "  } else if (consumer == First - 1) {\n    ptx::named_barrier_sync<First, 128>();",
        "  } else if (consumer == First - 1) {\n    ptx::named_barrier_sync<Consumers, 128>();"),
    # What finite values hide.
    "a maximum begins at a finite number": (
        "reduce_max", LINE, Reduce, {}, "T value = lowest<T>();", "T value = -3.402823466e+38f;"),
    "a maximum drops NaN": ("row_max", ROWS, Rowwise, {}, "ptx::max_nan(a, b)", "fmaxf(a, b)"),
    "a sigmoid overflows": (
        "silu", LINE, Elementwise, {}, "ptx::sigmoid_approximate(static_cast<float>(x))",
        "expf(static_cast<float>(x)) / (1.0f + expf(static_cast<float>(x)))"),
    "a maximum begins at 0": (
        "softmax", ROWS, Rowwise, {"algorithm": "online"}, "T max = lowest<T>();", "T max = 0;"),
    "scores that are NaN come last": ("nms_padded", {"N": 4000}, Nms, {}, "score != score ? ALL", "score != score ? 0"),
    "0 comes before -0": ("nms_padded", {"N": 4000}, Nms, {}, "__float_as_uint(score + 0.0f)", "__float_as_uint(score)"),
    "a probability of 1 divides by 0": (
        "attention_causal_dropout", HEADS, AttentionMma, {}, "v3 ? 0.0f : v5", "v5"),
    "ids are not looked at": (
        "embedding", {"...": (4096,), "V": 256, "C": 256}, Gather, {}, "id >= 0 && id < size", "id <= size"),
}  # fmt: skip


def refusal(config: Schedule, problem: Problem, target: Target) -> dict[str, Any] | None:
    """The evidence against the first variant that the gate refuses; None where it lets all pass."""
    for variant in variants(config, problem, target):
        verdict = judge(variant)
        if not verdict.ok:
            return verdict.evidence
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused(fault: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    name, sizes, schedule, fields, old, new = FAULTS[fault]
    problem = problem_of(name, sizes)
    config = schedule.default(problem, target).replace(**fields)
    config.check(problem, target)
    made = schedule.source

    def faulty(self: Schedule, problem: Problem) -> Source:
        source: Source = made(self, problem)
        return dataclasses.replace(source, body=source.body.replace(old, new, 1))

    assert old in config.source(problem).body
    monkeypatch.setattr(schedule, "source", faulty)
    emulator.compile(config.source(problem))
    assert refusal(config, problem, target) is not None


M, N, K = dims("M N K")


# Operators of this test's own: what is folded is remembered by graph.
def tripled(x: Tensor[f16, ...]) -> Tensor[f16, ...]:
    return x * 3.0


def total_of_three(x: Tensor[f32, ...]) -> Tensor[f32]:
    return F.sum(x * 3.0, None)


def rows_of_three(x: Tensor[f16, ..., N]) -> Tensor[f16, ..., N]:
    return x * 3.0 - F.amax(x)


def product_of_three(a: Tensor[f16, ..., M, K], b: Tensor[f16, ..., K, N]) -> Tensor[f16, ..., M, N]:
    return (a @ b) * 3.0


@pytest.mark.parametrize(
    ("function", "sizes"),
    [(tripled, LINE), (total_of_three, LINE), (rows_of_three, ROWS), (product_of_three, SQUARE)],
)
def test_axes_that_are_not_one_are_not_taken_for_one(
    function: Any, sizes: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All problems that suites name are dense; of others too many axes may be folded."""

    def all_one(axes: Any, sizes: Any, strides: Any) -> list[list[int]]:
        return [found] if (found := list(axes)) else []

    for module in ("gemm.problem", "elementwise.view", "reduction.plan", "rowwise.problem"):
        monkeypatch.setattr(f"kgen.ops.{module}.runs", all_one)
    graph = Operator(function).graphs[0]
    problem = family_of(graph).normalise(Problem.dense(graph, sizes))
    assert refusal(default(problem, target), problem, target) is not None


def default(problem: Problem, target: Target) -> Schedule:
    """The default of the first schedule that serves the problem."""
    family = family_of(problem.graph)
    return next(s for s in family.schedules if s.applies(problem)).default(problem, target)


def never_finite(x: Tensor[f32, N]) -> Tensor[f32, N]:
    return x / (x - x)


def sometimes_finite(x: Tensor[f32, N]) -> Tensor[f32, N]:
    return x / (x - 1.0)


@pytest.mark.parametrize(("function", "check"), [(never_finite, "nothing"), (sometimes_finite, None)])
def test_what_is_never_finite_was_not_verified(function: Any, check: str | None, target: Target) -> None:
    graph = Operator(function).graphs[0]
    problem = family_of(graph).normalise(Problem.dense(graph, {"N": 4096}))
    evidence = refusal(default(problem, target), problem, target)
    assert (evidence or {}).get("check") == check
    if evidence:
        assert "no result is finite" in evidence["message"]
