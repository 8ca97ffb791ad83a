"""Techniques as participants: a row each, with the best config of that kind, on the CPU with a clock that is told its times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_bench_compare import FakeClock

import kgen
from kgen.bench import run
from kgen.bench.table import participants_table
from kgen.bench.techniques import narrowed, techniques, tune_each
from kgen.dsl.choice import choice
from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import Problem
from kgen.dsl.target import TARGETS
from kgen.runtime.operator import KernelOperator
from kgen.tuner.budget import Budget

TARGET = replace(TARGETS["H200"], l2_bytes=1024)


def measured(operator: KernelOperator, problem: Problem):
    kinds = techniques(operator, None, TARGET)
    return run(operator, [problem], ["torch", *kinds], device=None, target=TARGET, clock=FakeClock)


def test_each_technique_is_a_row_with_a_config_of_it() -> None:
    result = measured(kgen.gelu, kgen.gelu.problem(leading=4096))
    table = participants_table(result)
    rows = {row[1]: row for row in table.rows}
    names = [f"Elementwise: {name}" for name in kgen.Elementwise.techniques]
    assert [*rows][:2] == ["kgen", "torch"]
    assert {*names} <= {*rows}
    assert rows["kgen"][4] == "1.000x"
    assert rows["torch"][4] == "0.667x"
    for name, domains in kgen.Elementwise.techniques.items():
        config = kgen.dsl.config_text.parse_config(
            rows[f"Elementwise: {name}"][5].rsplit(" (", 1)[0], {"Elementwise": kgen.Elementwise}
        )
        assert config in kgen.Elementwise.where(**domains)
    # Transposes do not serve it, and say so.
    assert rows["Transpose: TMA"][2] == "-"
    assert "does not serve gelu" in rows["Transpose: TMA"][5]


def test_techniques_stay_within_an_operators_own_space() -> None:
    narrow = kgen.gelu.using(kgen.Elementwise.where(pack=(1, 4), threads=256))
    result = measured(narrow, narrow.problem(leading=4096))
    rows = {row[1]: row for row in participants_table(result).rows}
    assert "Elementwise: packs of 4" in rows
    assert "Elementwise: packs of 8" not in rows
    assert all("threads=256" in row[5] for name, row in rows.items() if name.startswith("Elementwise"))


class Tall(kgen.Elementwise):
    threads = choice(1024)


def test_a_schedule_of_ones_own_is_one_technique() -> None:
    own = kgen.gelu.using(Tall)
    result = measured(own, own.problem(leading=4096))
    assert [p.name for p in result.comparisons[0].participants] == ["kgen", "torch", "Tall: Tall"]


def test_a_schedule_named_whole_has_the_techniques_beyond_what_is_searched() -> None:
    # `within=interleaved` and the like are taken by the template, but no search considers them.
    named = [p.name for p in techniques(kgen.reduce_sum.using([kgen.Reduce]), None, TARGET)]
    assert named == [f"Reduce: {name}" for name in kgen.Reduce.techniques]


def test_each_technique_is_tuned_and_then_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told = [], []

    def tune(problem: Problem, *, restriction, **options) -> None:
        asked.append((problem, str(restriction)))
        if len(asked) == 1:
            raise ConfigError("no config is valid")

    monkeypatch.setattr("kgen.bench.techniques.tune_problem", tune)
    narrow = kgen.gelu.using(kgen.Elementwise.where(pack=(1, 4), threads=256))
    problem = narrow.problem(leading=4096)
    tune_each(narrow, [problem], Budget.parse("1s"), 0, told.append)
    assert asked == [(problem, str(one.restriction)) for one in (*narrowed(narrow).values(), narrow)]
    assert told.count("no config is valid") == 1
    assert len(told) == len(asked) + 1
