"""Grouped products: gemm_wgmma at every value of every field that serves them, groups of all sizes, and what is refused."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import TARGET, Case, check, draw
from gemm_cases import OPERANDS
from grouped_cases import EXPRESSIONS, LAYOUTS, grouped_problem
from launches import dense, launch, runner
from suite import names, run_and_compile
from test_gemm_scaled import PLAIN

from kgen import emulator
from kgen.dsl.errors import ArgumentError, DefinitionError
from kgen.dsl.expr import Expr, grouped_matmul
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import f16, i32, i64
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops import operator
from kgen.ops.gemm import Gemv, MmaGemm, SimtGemm, WgmmaGemm
from kgen.ops.gemm.problem import normalise

NAMES = names("WgmmaGemm", "grouped")
M, N, K, G = dims("M N K G")
GRAPH = operator("grouped_hgemm").graphs[0]
HOW = pytest.mark.parametrize(
    ("schedule", "fields"),
    [(WgmmaGemm, {"swap_ab": False, "BN": 32}), (WgmmaGemm, {"swap_ab": True, "BN": 32}), (SimtGemm, {})],
)


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    run_and_compile(name)


@HOW
@pytest.mark.parametrize(
    "offsets",
    [
        [0, 150, 150, 150, 150],  # one group has all rows
        [0, 0, 0, 0, 150],
        [0, 0, 0, 0, 0],  # none has any
        [0, 1, 2, 3, 4],
        [0, 64, 128, 129, 150],  # ends of tiles
        [0, 63, 65, 128, 131],
        [0, 149, 999, 999, 999],  # beyond the last row
        [0, 70, 20, 90, 60],  # not ascending: row t is of the first group with t < its end
    ],
)
def test_wherever_groups_begin(offsets: list[int], schedule: type[Schedule], fields: dict[str, Any]) -> None:
    a = (torch.arange(150 * 72).view(150, 72) % 5 - 2).half()
    b = (torch.arange(4 * 72 * 40).view(4, 72, 40) % 7 - 3).half()
    out = torch.full((150, 40), math.nan, dtype=torch.float16)
    given = torch.tensor(offsets, dtype=torch.int32)
    launch(GRAPH, [a, b, given, out], schedule, fields)
    for row in range(150):
        group = next((g for g in range(4) if row < offsets[g + 1]), None)
        want = torch.zeros(40) if group is None else a[row].float() @ b[group].float()
        assert torch.equal(out[row].float(), want), (row, group)


@HOW
@pytest.mark.parametrize("groups", [1, 3])
def test_no_group_sees_another_s_special_values(groups: int, schedule: type[Schedule], fields: dict[str, Any]) -> None:
    a, b = torch.ones(100, 64, dtype=torch.float16), torch.ones(groups, 64, 24, dtype=torch.float16)
    out = torch.full((100, 24), -1.0, dtype=torch.float16)
    a[90:] = math.nan  # of no group
    b[-1, 5, 3] = math.inf
    offsets = torch.tensor([0, *(30 + 10 * g for g in range(groups))], dtype=torch.int32)
    launch(GRAPH, [a, b, offsets, out], schedule, fields)
    first, last = (int(offsets[-2]), int(offsets[-1]))
    assert (out[last:] == 0).all()
    assert out[first:last, 3].isposinf().all()
    out[first:last, 3] = 64
    assert (out[:last] == 64).all()


def test_results_do_not_depend_on_the_order_of_blocks() -> None:
    problem = dense(GRAPH, {"M": 200, "N": 136, "K": 200, "G": 5})
    source = random.Random(0)
    tensors = {
        "a": torch.randn(200, 200).half(),
        "b": torch.randn(5, 200, 136).half(),
        "offsets": torch.tensor([0, *sorted(source.sample(range(200), 5))], dtype=torch.int32),
        "out": torch.empty(200, 136, dtype=torch.float16),
    }
    first = None
    for seed in range(3):
        runner(WgmmaGemm.default(problem, TARGET), problem, seed=seed, threads=2).run(tensors, {})
        first = tensors["out"].clone() if first is None else first
        assert torch.equal(tensors["out"], first)


def test_the_schedules_that_serve_groups() -> None:
    problem = dense(GRAPH, {"M": 4, "N": 64, "K": 64, "G": 2})
    assert [s.applies(problem) for s in (WgmmaGemm, SimtGemm, MmaGemm, Gemv)] == [True, True, False, False]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "e4m3"])
@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_without_tensor_cores(dtype: str, number: int) -> None:
    source = random.Random(f"{dtype} {number}")
    kind, layout = source.choice(OPERANDS), LAYOUTS[number]
    sizes = {"M": 70, "N": 50, "K": 36, "G": source.choice((1, 5, 90))}
    expression = "plain" if dtype == "i8" and EXPRESSIONS[number] == "bias" else EXPRESSIONS[number]
    problem = grouped_problem(source, dtype, expression, layout, kind, sizes)
    assert problem is not None
    for step in range(2):
        config = draw(SimtGemm, problem, TARGET, source, PLAIN) if step else SimtGemm.default(problem, TARGET)
        assert config is not None
        check(Case(config, problem, number + step, "random", {}), emulator.compile(config.source(problem)))
        assert nvrtc(config.source(problem), resolve("sm_89").arch).warnings == ()


def test_offsets_lie_one_after_the_other() -> None:
    problem = Problem.dense(GRAPH, {"M": 4, "N": 64, "K": 64, "G": 2})
    for stride in (0, 2):
        operands = [replace(o, strides=(stride,)) if o.name == "offsets" else o for o in problem.operands]
        with pytest.raises(ArgumentError, match=rf"offsets has strides \[{stride}\]; expected \[1\]: use contiguous"):
            normalise(Problem.bind(GRAPH, operands))


def test_what_groups_leave_to_other_products() -> None:
    problem = dense(GRAPH, {"M": 512, "N": 512, "K": 4096, "G": 4})
    config = WgmmaGemm.default(problem, TARGET)
    for changes in ({"store": "tma"}, {"store": "direct"}, {"work": "stream_k", "splits": 2}):
        assert "grouped_work" in {r.rule for r in config.replace(**changes).rejections(problem, TARGET)}
    none = dense(GRAPH, {"M": 16, "N": 16, "K": 16, "G": 0})
    assert "no_empty_axis" in {r.rule for r in config.rejections(none, TARGET)}
    apart = grouped_problem(random.Random(1), "f16", "plain", "NN", "dense", {"M": 64, "N": 64, "K": 64, "G": 3})
    assert apart is not None
    assert WgmmaGemm.applies(apart)


def _traced(rows: object, matrices: object, offsets: object) -> None:
    def function(a: Expr, b: Expr, offsets: Expr) -> Expr:
        return grouped_matmul(a, b, offsets)

    function.__annotations__ = {"a": rows, "b": matrices, "offsets": offsets, "return": Tensor[f16, M, N]}
    _ = Operator(function).graphs


@pytest.mark.parametrize(
    ("rows", "matrices", "offsets", "told"),
    [
        (Tensor[f16, ..., M, K], Tensor[f16, G, K, N], Tensor[i32, G + 1], "expects rows of 2 named dimensions"),
        (Tensor[f16, M, K], Tensor[f16, K, N], Tensor[i32, G + 1], "expects matrices of 3 named dimensions"),
        (Tensor[f16, M, K], Tensor[f16, G, K, N], Tensor[i32, G], "expects offsets i32[(G + 1)], got offsets: i32[G]"),
        (Tensor[f16, M, K], Tensor[f16, G, K, N], Tensor[i64, G + 1], "expects offsets i32[(G + 1)], got offsets: i64"),
        (Tensor[f16, M, K], Tensor[f16, G, N, K], Tensor[i32, G + 1], "with N of b: f16[N, K]"),
    ],
)
def test_definitions_that_are_refused(rows: object, matrices: object, offsets: object, told: str) -> None:
    with pytest.raises(DefinitionError) as error:
        _traced(rows, matrices, offsets)
    assert told in str(error.value)


def test_a_bias_by_group_is_refused() -> None:
    def biased(a: Expr, b: Expr, offsets: Expr, bias: Expr) -> Expr:
        return grouped_matmul(a, b, offsets) + bias

    biased.__annotations__ = {"a": Tensor[f16, M, K], "b": Tensor[f16, G, K, N], "offsets": Tensor[i32, G + 1]}
    biased.__annotations__ |= {"bias": Tensor[f16, G, N], "return": Tensor[f16, M, N]}
    with pytest.raises(DefinitionError, match="do not broadcast"):
        _ = Operator(biased).graphs
