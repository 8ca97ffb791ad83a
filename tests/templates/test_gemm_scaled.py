"""fp8 with scales of blocks on GPUs without wgmma: gemm_simt serves it, exactly; the others say that they do not."""

from __future__ import annotations

import random

import pytest
from cases import TARGET, Case, check, draw
from gemm_cases import LAYOUTS, bound_problem
from wgmma_cases import SCALED, scaled_graph

from kgen import emulator
from kgen.dsl.problem import Problem
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops.gemm import Gemv, MmaGemm, SimtGemm, WgmmaGemm

PLAIN = {
    "stages": 0,
    "copy": "register",
    "transpose": False,
    "vector": 1,
    "padding": 0,
    "pack": 1,
    "BK": 16,
    "blocks_per_sm": 1,
}
KINDS = list(zip(SCALED, (*LAYOUTS, "NT"), ("none", "one", "b shared", "a shared", "two")))


def drawn(kind: str, layout: str, batch: str, **sizes: int) -> Problem:
    source = random.Random(kind)
    problem = bound_problem(source, scaled_graph(kind), {"M": 70, "N": 150, "K": 300, **sizes}, layout, "padded", batch)
    assert problem is not None
    return problem


@pytest.mark.parametrize(("kind", "layout", "batch"), KINDS)
def test_without_tensor_cores(kind: str, layout: str, batch: str) -> None:
    problem = drawn(kind, layout, batch)
    source = random.Random(layout)
    for number in range(3):
        config = draw(SimtGemm, problem, TARGET, source, PLAIN) if number else SimtGemm.default(problem, TARGET)
        assert config is not None
        assert config.values["stages"] == 0
        kernel = emulator.compile(config.source(problem))
        check(Case(config, problem, number, "random", {}), kernel)
        assert nvrtc(config.source(problem), resolve("sm_89").arch).warnings == ()


@pytest.mark.parametrize(("kind", "layout", "batch"), KINDS)
def test_schedules_that_know_no_scales(kind: str, layout: str, batch: str) -> None:
    problem = drawn(kind, layout, batch, M=4)
    assert [s.applies(problem) for s in (WgmmaGemm, SimtGemm, MmaGemm, Gemv)] == [True, True, False, False]


def test_a_step_is_one_block_and_a_tile_has_two_accumulators() -> None:
    problem = drawn("blocks", "NT", "none")
    config = WgmmaGemm.default(problem, TARGET)
    assert config.values["BK"] == 128
    broken = {r.rule for r in config.replace(BK=256).rejections(problem, TARGET)}
    assert "blocks_of_scales" in broken
    wide = config.replace(BM=128, BN=256, consumers=2)
    assert "accumulators" in {r.rule for r in wide.rejections(problem, TARGET)}
