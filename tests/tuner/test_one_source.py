"""Where a schedule says so, a config has one source for all problems of a class, but for its header."""

import random
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest

from kgen.dsl.errors import ConfigError, KgenError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.program import program_of
from kgen.dsl.schedule import Schedule, source_of
from kgen.dsl.target import TARGETS
from kgen.ops import operators

H200 = TARGETS["H200"]
SIZES = (8, 16, 64, 96, 100, 104, 256, 1000, 1024, 4096, 5120)
NAMES = [
    name
    for name, op in operators().items()
    if any(s.one_source for graph in op.graphs for s in family_of(graph).schedules)
]


@pytest.mark.parametrize("name", NAMES)
def test_a_config_has_one_source_for_a_class(name: str) -> None:
    drawn = random.Random(name)
    classes: dict[tuple[type[Schedule], Hashable], list[tuple[NormalProblem, Schedule]]] = defaultdict(list)
    for graph in operators()[name].graphs[:2]:
        for _ in range(12):
            sizes: dict[str, Any] = {dim: drawn.choice(SIZES) for dim in graph.dims}
            if any(spec.shape.leading for spec in graph.inputs):
                sizes["..."] = (drawn.choice((3, 8)),)
            try:
                (problem,) = map(normalised, program_of(Problem.dense(graph, sizes)).launches)
            except (KgenError, ValueError):  # sizes that the operator does not take, or several launches
                continue
            for schedule in family_of(problem.graph).schedules:
                if schedule.one_source and schedule.applies(problem):
                    try:
                        classes[schedule, schedule.class_of(problem)].append((problem, schedule.default(problem, H200)))
                    except ConfigError:
                        continue
    compared = 0
    for found in classes.values():
        for problem, config in found[:3]:
            for other, _ in found:
                if other != problem and not config.broken(other, H200):
                    assert replace(config.source(problem), header="") == replace(config.source(other), header="")
                    assert source_of(config, problem) is source_of(config, other)
                    compared += 1
    assert compared or name not in ("hgemm", "linear_gelu", "sgemm")
