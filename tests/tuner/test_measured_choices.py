"""What models choose first, of configs that GPUs have timed; and of gemm_wgmma's terms those that single times show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgen
from kgen.cli.trials import by_model, of_grid
from kgen.dsl.family import normalised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import TARGETS
from kgen.ops.common.memory_bound import VectorSchedule
from kgen.ops.elementwise.transpose_model import TransposeConstants
from kgen.ops.gather.gather_model import GatherConstants
from kgen.ops.gemm.wgmma_model import WgmmaConstants
from kgen.ops.reduction.schedule import ReductionConstants
from kgen.ops.scan.scan import ScanConstants
from kgen.ops.scan.span import ScanSpanConstants
from kgen.ops.scan.split import ScanSplitConstants
from kgen.ops.scan.thread import ScanThreadConstants
from kgen.tuner.best import best
from kgen.tuner.fit import Measurement, regret

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200 = TARGETS["H200"]


# Limits are a little above what the model has today (docs/notes/gemm_wgmma.md), so that a change to worse choices is seen.
@pytest.mark.parametrize(
    ("grid", "gpu", "mean", "tenth"),
    [
        ("h200/grid_first_choices.json.gz", "H200", 0.019, 0.050),
        ("h200/grid_kinds.json.gz", "H200", 0.020, 0.055),
        ("h200/grid_bf16.json.gz", "H200", 0.037, 0.090),
        ("h100/grid_bf16.json.gz", "H100 SXM", 0.031, 0.075),
    ],
)
def test_the_first_choice_is_near_the_best_that_was_timed(grid: str, gpu: str, mean: float, tenth: float) -> None:
    told = regret(by_model(of_grid(RESULTS / grid, gpu))[WgmmaConstants], TARGETS[gpu])
    assert told.first[0] < mean
    assert told.first[1] < tenth
    assert told.of_four[0] < told.first[0]


SCANS = ["grid_reductions", "grid_scans", "grid_scans_2", "grid_scans_short", "grid_scans_few"]


def is_default(config: Schedule, problem: NormalProblem) -> bool:
    """Whether a default may have these vectors."""
    vectors = not isinstance(config, VectorSchedule) or config.pack in config.packs(problem)
    return vectors and config in type(config).shortlist(problem, H200)


@pytest.mark.parametrize(
    ("model", "grids", "mean", "tenth"),
    [
        (ReductionConstants, ["grid_reductions"], 0.050, 0.13),
        (ReductionConstants, ["grid_reductions_large"], 0.025, 0.09),
        (ScanConstants, SCANS, 0.033, 0.12),
        (ScanSpanConstants, SCANS, 0.045, 0.14),
        (ScanSplitConstants, SCANS, 0.045, 0.125),
        (ScanThreadConstants, SCANS, 0.020, 0.08),
        (GatherConstants, ["grid_moves"], 0.027, 0.070),
        (TransposeConstants, ["grid_moves", "grid_transposes", "grid_transposes_2"], 0.040, 0.14),
    ],
)
def test_so_is_that_of_what_memory_limits(model: type[Constants], grids: list[str], mean: float, tenth: float) -> None:
    measured = [m for g in grids for m in by_model(of_grid(RESULTS / f"h200/{g}.json.gz", "H200")).get(model, [])]
    searched = [
        Measurement(m.problem, {c: s for c, s in m.times.items() if is_default(c, m.problem)}) for m in measured
    ]
    told = regret([m for m in searched if len(m.times) > 1], H200)
    assert told.problems >= 33
    assert told.first[0] < mean
    assert told.first[1] < tenth
    assert told.of_four[0] < 0.02


def product(m: int, n: int, k: int) -> NormalProblem:
    return normalised(kgen.hgemm.problem(M=m, N=n, K=k, dtype="bf16", layouts={"b": "col"}))


def seconds(problem: NormalProblem, **changed: Any) -> float:
    config = kgen.WgmmaGemm(
        swap_ab=True, BM=64, BN=8, BK=128, consumers=1, pingpong=False, blocks_per_sm=1, cluster="1x1", work="tiles", splits=1,
        store="tma", epilogue_stages=1, stages=10, raster="m", group=8, pdl=True,
    ).replace(**changed)  # fmt: skip
    return float(np.max(config.estimate(problem, H200)))


def test_an_early_start_saves_nothing_where_the_next_kernel_finds_no_room() -> None:
    few_stages = {"BK": 64, "stages": 12}  # two such blocks fit a multiprocessor
    for blocks, large, small in ((64, True, True), (68, False, True), (88, False, True), (112, True, True)):
        problem = product(4, 64 * blocks, 1152)
        for saves, ring in ((large, {}), (small, few_stages)):
            assert (seconds(problem, **ring) < seconds(problem, pdl=False, **ring)) == saves
    (first,) = best(kgen.WgmmaGemm, product(4, 4304, 1152), H200)  # 4.2 us, 5.1 by BK of 128
    assert (first.BM, first.BN, first.BK) == (64, 8, 64)


def test_each_stage_that_a_ring_lacks_costs_half_as_much_in_pingpong() -> None:
    problem, tile = product(1500, 4096, 4096), {"BM": 128, "BN": 128, "BK": 64, "consumers": 2}

    def added(stages: int, pingpong: bool) -> float:
        least, found = (seconds(problem, stages=n, pingpong=pingpong, **tile) for n in (6, stages))
        return found / least - 1

    assert [added(n, False) for n in (5, 7)] == pytest.approx([0.015, 0.0], abs=1e-4)
    assert [added(n, True) for n in (5, 7)] == pytest.approx([0.0075, 0.0], abs=1e-4)


def test_room_for_a_second_block_costs_where_none_comes() -> None:
    problem = product(37, 1024, 1024)
    assert seconds(problem, blocks_per_sm=2, stages=5) - seconds(problem, stages=5) == pytest.approx(6e-7, rel=0.3)
