"""What `kgen space` counts as valid is what `kgen explain` calls so, and what it says is left out is what explain says prunes."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from operators import GRADIENTS, OPERATORS, small

from kgen.dsl.family import family_of, schedules
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.gpu.target import resolve
from kgen.ops.common.sizes import fill
from kgen.tuner.scored import Scored
from kgen.tuner.space import Space, left_out

H200 = resolve("H200")
SCHEDULES = schedules()


def served_by(schedule: type[Schedule]) -> Problem:
    """A problem of the first operator that a schedule serves."""
    graphs = [operator.definition.graphs[0] for operator in OPERATORS.values()]
    graphs += [operator.graphs[0] for operator in GRADIENTS]
    found = (family_of(g).normalise(small(g)) for g in graphs if issubclass(schedule, family_of(g).schedules))
    return next(problem for problem in found if schedule.applies(problem))


@pytest.mark.parametrize("name", SCHEDULES)
def test_space_and_explain_say_the_same(name: str) -> None:
    schedule = SCHEDULES[name]
    problem = served_by(schedule)
    valid, searched = (kind(schedule, problem, H200) for kind in (Space.valid, Space.searched))
    pruned = left_out(valid, problem, H200)
    assert searched.count == valid.count - sum(pruned.values())
    assert valid.count > 0
    worth, source = schedule.worth_searching(problem, H200), random.Random(0)
    for config in (valid.draw(source) for _ in range(200)):
        assert not config.broken(problem, H200)
        reasons = [r.rule for r in config.rejections(problem, H200)] if worth else ["worth_searching"]
        assert (config in searched) == (not reasons)
        assert not reasons or reasons[0] in pruned


@pytest.mark.parametrize("name", SCHEDULES)
def test_configs_are_scored_together_as_each_by_itself(name: str) -> None:
    """What the buckets of a range rest on; at other sizes some are not valid."""
    schedule, source = SCHEDULES[name], random.Random(1)
    problem = served_by(schedule)
    valid = Space.valid(schedule, problem, H200)
    configs = [*{valid.draw(source): None for _ in range(40)}]
    scored = Scored(H200)
    for elements, side in ((2**10, 16), (2**20, 256), (2**16, 24)):
        graph = problem.graph
        other = family_of(graph).normalise(Problem.dense(graph, fill(graph, elements, side)))
        alone = [
            c.estimate(other, H200) if c.applies(other) and not c.broken(other, H200) else math.inf for c in configs
        ]
        assert scored.seconds(configs, other) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("name", ["Elementwise", "Gather", "GatherSum", "MmaGemm", "SimtGemm"])
def test_a_model_asks_the_target_for_the_threads_of_a_multiprocessor(name: str) -> None:
    schedule = SCHEDULES[name]
    graph = served_by(schedule).graph
    problem = family_of(graph).normalise(Problem.dense(graph, fill(graph, 2**24, 2048)))
    valid, few = Space.valid(schedule, problem, H200), replace(H200, max_threads_per_sm=1024)
    source = random.Random(0)
    configs = [valid.draw(source) for _ in range(100)]
    assert any(config.estimate(problem, few) != config.estimate(problem, H200) for config in configs)
