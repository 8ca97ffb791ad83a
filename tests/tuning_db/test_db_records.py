"""The values refuse what has no meaning; the nearest shapes are the nearest."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest

from kgen.dsl.errors import DatabaseError
from kgen.tuning_db import BestRecord, ConfigText, GpuFacts, ProblemKey, Toolchain, nearest

TIMES = {"seconds": 2e-5, "lower": 1e-5, "upper": 3e-5, "samples": 5}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"status": "fine"}, "status of a trial is 'fine'; expected one of ok"),
        ({"origin": "guessed"}, "origin of a trial is 'guessed'"),
        ({"modelled_seconds": 1e-5}, "modelled_seconds of a measured trial"),
        ({"origin": "modelled", **TIMES, "modelled_seconds": 1e-5}, "measured time of a modelled trial"),
        ({"origin": "modelled"}, "modelled_seconds of a modelled trial is None"),
        ({"status": "wrong", **TIMES}, "measured time of a measured trial with status wrong"),
        ({"origin": "modelled", "status": "rejected", "modelled_seconds": 1e-5}, "modelled trial with status rejected"),
        ({"seconds": None}, "seconds of a measured trial is None"),
        ({"seconds": 0.0}, "seconds of a measured trial is 0.0"),
        ({"seconds": -1e-5}, "seconds of a measured trial"),
        ({"seconds": math.nan}, "seconds of a measured trial"),
        ({"upper": math.inf}, "upper of a measured trial"),
        ({"upper": 10**400}, "upper of a measured trial"),
        ({"seconds": True}, "seconds of a measured trial is True"),
        ({"lower": 2.05e-5}, "lower <= seconds <= upper"),
        ({"samples": 0}, "samples of a measured trial is 0"),
        ({"samples": 3.0}, "samples of a measured trial"),
        ({"registers": -1}, "registers is -1"),
        ({"spills": 2**40}, "spills is"),
        ({"source_digest": "xyz"}, "source digest is 'xyz'"),
        ({"clocks": {"sm": math.nan}}, "clocks"),
        ({"evidence": {1: "x"}}, "evidence"),
        ({"evidence": {"x": object()}}, "evidence"),
        ({"evidence": "text"}, "evidence"),
        ({"created_at": datetime(2025, 1, 1)}, "created_at"),
        ({"verified": 1}, "verified is 1"),
        ({"config": "MmaGemm()"}, "config of a trial"),
    ],
)
def test_a_trial_without_meaning_is_refused(trial, changes, match):
    with pytest.raises(DatabaseError, match=match):
        trial(**changes)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (GpuFacts, ("", "sm_90", 132, 0)),
        (GpuFacts, ("H200", "90", 132, 0)),
        (GpuFacts, ("H200", "sm_90", 0, 0)),
        (GpuFacts, ("H200", "sm_90", True, 0)),
        (GpuFacts, ("H200", "sm_90", 132, -1)),
        (GpuFacts, ("H200", "sm_90", 132, 0, 0)),
        (GpuFacts, ("H200", "sm_90", 132, 0, 700, "")),
        (Toolchain, ("", "0.1", "ab" * 8)),
        (Toolchain, ("13.5", "0.1", "not hex!")),
        (ProblemKey, ("h gemm", "ab" * 8, "M=1", "gemm")),
        (ProblemKey, ("hgemm", "ABCDEFGH", "M=1", "gemm")),
        (ProblemKey, ("hgemm", "ab" * 8, "", "gemm")),
        (ProblemKey, ("hgemm", "ab" * 8, "M=1", "gemm", {"M": -1})),
        (ProblemKey, ("hgemm", "ab" * 8, "M=1", "gemm", {"M": 1.5})),
        (ProblemKey, ("hgemm", "ab" * 8, "M=1", "gemm", {"1 OR 1": 1})),
        (ConfigText, ("Mma Gemm", 1, "MmaGemm()", "ab" * 8)),
        (ConfigText, ("MmaGemm", -1, "MmaGemm()", "ab" * 8)),
        (ConfigText, ("MmaGemm", 1, "", "ab" * 8)),
        (ConfigText, ("MmaGemm", 1, "MmaGemm()", "../../etc")),
    ],
)
def test_a_key_without_meaning_is_refused(kind, values):
    with pytest.raises(DatabaseError, match="; expected "):
        kind(*values)


def test_every_field_of_a_gpu_and_a_toolchain_is_in_its_key(gpu, toolchain):
    others = [replace(gpu, **c) for c in (
        {"name": "x"}, {"arch": "sm_90"}, {"sm_count": 114}, {"l2_bytes": 1}, {"power_limit": None}, {"driver": None}
    )]  # fmt: skip
    assert len({gpu.key, *(other.key for other in others)}) == 7
    assert [gpu.same_card(other) for other in others] == [False] * 4 + [True] * 2
    versions = [replace(toolchain, nvrtc="1"), replace(toolchain, kgen="1"), replace(toolchain, schema="00" * 8)]
    assert len({toolchain.key, *(other.key for other in versions)}) == 4


def test_nearest_orders_by_the_ratio_of_sizes(gpu, toolchain, problem, trial):
    generator = random.Random(7)
    for _ in range(200):
        shapes = {tuple(generator.choice([1, 2, 3, 16, 17, 100, 4096, 2**20]) for _ in "MN") for _ in range(9)}
        records = [BestRecord(problem(M, N), gpu, toolchain, trial()) for M, N in sorted(shapes)]
        generator.shuffle(records)
        wanted = {"N": generator.randint(1, 5000), "M": generator.randint(1, 5000)}
        found = nearest(records, wanted)
        assert sorted(map(id, found)) == sorted(map(id, records))

        def ratio(record, wanted=wanted):
            return math.prod(max(wanted[n] / s, s / wanted[n]) for n, s in record.problem.sizes.items())

        ratios = [ratio(record) for record in found]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(ratios))
        assert nearest(reversed(records), wanted) == found
        exact = records[0].problem.sizes
        assert nearest(records, exact)[0].problem.sizes == exact


def test_nearest_compares_like_with_like(gpu, toolchain, problem, trial):
    other = replace(problem(), sizes={"M": 64, "N": 64, "K": 64})
    measured = BestRecord(problem(), gpu, toolchain, trial())
    modelled = BestRecord(problem(), gpu, toolchain, trial(origin="modelled", modelled_seconds=1e-9))
    records = [modelled, BestRecord(other, gpu, toolchain, trial()), measured]
    assert nearest(records, {"M": 64, "N": 64}) == [measured, modelled]
    assert nearest(records, {"M": 64}) == []
    assert nearest([], {"M": 64}) == []
    zero = BestRecord(problem(0, 64), gpu, toolchain, trial())
    assert nearest([zero], {"M": 64, "N": 0}) == [zero]
