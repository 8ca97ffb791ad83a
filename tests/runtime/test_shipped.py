"""The configs that come with kgen: all are of their problems, and the model of gemm_wgmma takes those of products for good."""

from __future__ import annotations

import math
import re
import statistics

import numpy as np
import pytest

from kgen.dsl.config_text import parse_config
from kgen.dsl.family import family_of, schedules
from kgen.dsl.problem import NormalProblem, Problem
from kgen.gpu.target import resolve
from kgen.ops import operators
from kgen.ops.gemm import WgmmaGemm
from kgen.runtime.operator import KernelOperator
from kgen.tuner import records
from kgen.tuner.columns import scored
from kgen.tuning_db import BestRecord, packs

H200 = resolve("H200")
RECORDS = packs.read_pack(packs.SHIPPED / "h200.json")[1]


def problem_of(record: BestRecord) -> Problem:
    """The problem of hgemm that a record is for."""
    sizes = dict(record.problem.sizes)
    if "batches0" in sizes:
        sizes["..."] = (sizes.pop("batches0"),)
    found = re.match(r"a:(\w+)\[.*\]row b:\w+\[.*\](row|col) out", record.problem.text)
    assert found is not None
    operator = KernelOperator(operators()["hgemm"])
    problem = operator.problem(sizes, dtype=found[1], layouts={"b": found[2]})
    problem = family_of(problem.graph).normalise(problem)
    assert problem.key == record.problem.text
    return problem


PRODUCTS = [r for r in RECORDS if r.problem.operator == "hgemm" and r.trial.config.schedule == "WgmmaGemm"]


def test_no_problem_is_there_twice() -> None:
    keys = [(r.problem.operator, r.problem.digest, r.problem.text) for r in RECORDS]
    assert len(keys) == len(set(keys)) > 200


def test_what_is_kept_of_them_for_a_graph_is_all_that_they_have_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    digest, gpu = PRODUCTS[0].problem.digest, records.gpu_facts(H200)
    mine = [record for record in RECORDS if record.problem.digest == digest]
    assert len(mine) > 10

    def check() -> None:
        by_sizes = packs._Shipped(gpu).bests(digest)
        for sizes, found in by_sizes.items():
            assert found == [record for record in mine if record.problem.sizes == dict(sizes)]
        assert sum(map(len, by_sizes.values())) == len(mine)

    check()
    monkeypatch.setattr(packs._Shipped, "_packs", property(lambda self: pytest.fail("the whole packs were read")))
    check()


def test_they_are_of_the_operators_as_they_are() -> None:
    digests = {graph.digest for operator in operators().values() for graph in operator.graphs}
    assert {r.problem.digest for r in RECORDS} <= digests


def test_shipped_products_are_in_their_spaces() -> None:
    for record in PRODUCTS:
        config, problem = parse_config(record.trial.config.text, schedules()), problem_of(record)
        assert not config.rejections(problem, H200), (problem, config)


#: The widths of tiles that were searched when these were found; sums were not shared within clusters.
WIDTHS = (8, 16, 32, 64, 96, 112, 128, 160, 192, 208, 224, 256)


def first_of(problem: NormalProblem) -> float:
    """The least modelled time of what was searched then, of transposed products those of at most 256 rows."""
    least = math.inf
    for table, seconds in scored(WgmmaGemm, problem, H200):
        searched = np.isin(table["BN"], WIDTHS) & np.logical_not(table["work"] == "cluster_k")
        if (not table["swap_ab"] or problem.sizes["M"] <= 256) and searched.any():
            least = min(least, float(seconds[searched].min()))
    return least


@pytest.mark.parametrize("part", range(4))
def test_the_model_takes_what_was_fastest_for_fast(part: int) -> None:
    """By its own times 2.3% behind its first in the mean of all, and 10.7% off the clock.

    It was 1.8% before `contention`, by whose first choices the worst products are faster (docs/notes/gemm_wgmma.md): what is
    shipped was found from the choices of models before it.
    """
    behind, off = [], []
    for record in PRODUCTS[part::4]:
        config, problem = parse_config(record.trial.config.text, schedules()), problem_of(record)
        estimate = config.estimate(problem, H200)
        behind.append(estimate / first_of(problem))
        off.append(abs(math.log(estimate / record.trial.seconds)))
    assert statistics.fmean(behind) < 1.035
    assert max(behind) < 1.3
    assert statistics.fmean(off) < 0.12
    assert max(off) < 0.5
