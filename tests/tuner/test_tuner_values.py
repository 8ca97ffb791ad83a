"""Budgets, records and the study: the tuner's small values."""

from __future__ import annotations

import pytest
from tuner_samples import N, problem_of

from kgen.dsl import functions as F
from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.dsl.types import f32
from kgen.numerics.operands import make_operands
from kgen.ops.elementwise import Elementwise
from kgen.tuner.budget import Budget
from kgen.tuner.candidates import Candidates
from kgen.tuner.records import config_text, gpu_facts, problem_key, read_config, toolchain
from kgen.tuner.study import study
from kgen.tuning_db import ConfigText


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60s", Budget(seconds=60)),
        ("2m", Budget(seconds=120)),
        ("1.5h", Budget(seconds=5400)),
        ("0.5s", Budget(seconds=0.5)),
        (" 200 ", Budget(trials=200)),
    ],
)
def test_budgets_are_read(text: str, expected: Budget) -> None:
    assert Budget.parse(text) == expected


@pytest.mark.parametrize("text", ["", "s", "fast", "-3s", "0", "0s", "1.5", "2d", "1e3s", "10 20"])
def test_malformed_budgets_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="budget"):
        Budget.parse(text)


def test_what_a_budget_still_asks_for() -> None:
    assert Budget() == Budget(seconds=60)
    assert Budget(seconds=60).covered_by({"seconds": 60.0, "trials": 3})
    assert not Budget(seconds=60).covered_by({"seconds": 59.0, "trials": 3000})
    assert Budget(trials=10).covered_by({"seconds": 1.0, "trials": 10})
    assert not Budget(trials=10).covered_by({"seconds": 1000.0, "trials": 9})
    assert Budget(trials=10, seconds=5).covered_by({"seconds": 6.0, "trials": 9})
    assert Budget(seconds=1e6).covered_by({"exhausted": True})
    assert not Budget(trials=1).covered_by({})
    assert str(Budget(seconds=60)) == "60 s"


def test_records_go_both_ways(target: Target) -> None:
    problem = problem_of("gelu", {"...": (2**20,)})
    config = Elementwise.default(problem, target)
    stored = config_text(config)
    assert read_config(stored) == config
    assert read_config(ConfigText(stored.schedule, 7, stored.text, stored.key)) is None
    assert (
        read_config(ConfigText(stored.schedule, 1, stored.text.replace("threads=128", "threads=512"), stored.key))
        is None
    )
    assert read_config(ConfigText("Gone", 1, "Gone(a=1)", stored.key)) is None
    key = problem_key(problem)
    assert (key.operator, key.family, key.sizes) == ("gelu", "elementwise", {"n0": 2**20})
    assert key.digest == problem.graph.digest
    facts = gpu_facts(target)
    assert (facts.name, facts.arch, facts.sm_count, facts.power_limit) == ("H200", "sm_90a", 132, 700)
    assert toolchain() == toolchain()


def test_two_problems_with_one_text_are_told_apart_by_operator() -> None:
    a, b = (problem_key(problem_of(name, {"...": (64,)})) for name in ("gelu", "silu"))
    assert a.text == b.text
    assert a.key != b.key


def test_the_study_reports_regret(target: Target) -> None:
    """A space whose time is known everywhere: regrets fall with trials, and reach nought when all is tried."""
    problem = problem_of("gelu", {"...": (2**20,)})
    some = list(Candidates(problem, target).ranking)[::20]
    seconds = {c: None if i % 9 == 4 else 1e-3 * (1 + ((i * 37 + 30) % 61) / 61) for i, c in enumerate(some)}
    rows = study(
        seconds,
        problem,
        target,
        trials=(4, 16, len(some)),
        runs=4,
        contestants=(("tpe", 4), ("random", 0), ("ranking", 0)),
    )
    assert len(rows) == 9
    for sampler in ("tpe", "random", "ranking"):
        medians = [row.median for row in rows if row.sampler == sampler]
        assert medians == sorted(medians, reverse=True)
        assert medians[-1] == 0
        assert medians[0] > 0
    assert {row.runs for row in rows if row.sampler == "ranking"} == {1}
    with pytest.raises(ArgumentError, match="nothing to study"):
        study(dict.fromkeys(some), problem, target)


def scaled(x: Tensor[f32, N], var: Tensor[f32, N], y: Tensor[f32, N], eps: float = 1e-5) -> Tensor[f32, N]:
    return x * F.rsqrt(eps + var) + F.sqrt(y) * y


def test_what_only_roots_are_taken_of_is_not_negative() -> None:
    """A variance drawn below 0 gives NaN, and a small tensor of NaN alone shows nothing."""
    problem = Problem.dense(Operator(scaled).graphs[0], {"N": 64})
    for kind in ("normal", "integers"):
        made = make_operands(problem, kind, 1)
        assert [name for name in ("x", "var", "y") if (made[name] < 0).any()] == ["x", "y"]
    assert (make_operands(problem, "special", 1)["var"] < 0).any()
