"""A default from a list of configs is the one that the list gives config by config; a new shape of a class makes none of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.gradient import backward, training
from kgen.dsl.operator import Graph
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.program import program_of
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import TARGETS
from kgen.ops.attention.heads import variant
from kgen.tuner import listed

H200, A100 = TARGETS["H200"], TARGETS["A100-SXM4-80GB"]
_PLAIN = {"bias": False, "softcap": False, "lse": False, "lengths": False, "page": 0}
_LENGTHS = (1, 2, 3, 8, 16, 17, 33, 64, 65, 100, 128, 129, 256, 300, 777, 1024, 2048, 3000, 8192)


def attention_sizes(source: random.Random) -> Sizes:
    length = source.choice
    depth = length((32, 64, 72, 80, 128, 128, 192, 256, 288, 512))
    sizes = {"G": length((1, 1, 2, 4, 8)), "M": length(_LENGTHS), "N": length(_LENGTHS), "D": depth}
    return {"...": (length((1, 2, 3, 16)), length((1, 2, 8))), **sizes, "E": length((depth, depth, 64))}


def gradient_sizes(source: random.Random) -> Sizes:
    sizes = attention_sizes(source)
    return {**sizes, "D": 128, "E": 128} if sizes["D"] > 256 else sizes  # type: ignore[operator]


def of_gradient(kind: str) -> Graph:
    made = backward(training(variant(kind, **_PLAIN).graphs[0]), (0,), (0, 1, 2)).graph
    assert made is not None
    return made


GRAPHS: dict[str, tuple[Graph, Callable[[random.Random], Sizes]]] = {
    "attention": (variant("full", **_PLAIN).graphs[0], attention_sizes),
    "causal": (variant("causal", **_PLAIN).graphs[0], attention_sizes),
    "window": (variant("window", **_PLAIN).graphs[1], attention_sizes),
    "gradient": (of_gradient("full"), gradient_sizes),
    "causal gradient": (of_gradient("causal"), gradient_sizes),
}


def problems(name: str, count: int) -> Iterator[NormalProblem]:
    graph, sizes = GRAPHS[name]
    source = random.Random(name)
    for _ in range(count):
        program = program_of(Problem.dense(graph, sizes(source)))
        yield from map(normalised, program.launches)


def one_by_one(schedule: Any, like: object, configs: Any, problem: Any, target: Any, ranked: Any = None) -> Any:
    """As `best_of`, by the rules and the model of each config by itself."""
    found = configs()
    found = sorted(found, key=ranked or (lambda config: config.estimate(problem, target)))
    best = next((config for config in found if not config.rejections(problem, target)), None)
    if best is None:
        raise ConfigError("none")
    return best


def is_listed(schedule: Any) -> bool:
    return "best_of" in schedule.default.__func__.__code__.co_names


def default(schedule: type[Schedule], problem: NormalProblem, target: Any) -> Schedule | None:
    try:
        return schedule.default(problem, target)
    except ConfigError:
        return None


@pytest.mark.parametrize("name", GRAPHS)
def test_the_best_of_columns_is_the_best_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    asked = [
        (schedule, problem, target)
        for i, problem in enumerate(problems(name, 40))
        for target in ((H200, A100) if i % 4 == 0 else (H200,))
        for schedule in family_of(problem.graph).schedules
        if schedule.target.runs_on(target.arch) and schedule.applies(problem) and is_listed(schedule)
    ]  # fmt: skip
    by_columns = [default(*one) for one in asked]
    monkeypatch.setattr(listed, "best_of", one_by_one)
    for one, found in zip(asked, by_columns):
        assert found == default(*one), one
        compared += found is not None
    assert compared >= 40


@pytest.mark.parametrize("name", GRAPHS)
def test_a_new_shape_makes_no_config_but_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, last = [], set()
    for problem in problems(name, 12):
        for schedule in family_of(problem.graph).schedules:
            if schedule.applies(problem) and is_listed(schedule):
                known.append((schedule, problem))
    for schedule, problem in known:
        default(schedule, problem, H200)
    monkeypatch.setattr(Schedule, "__init__", _refused)
    for schedule, problem in known:  # each of a class that is known
        last.add(default(schedule, problem, H200))
    assert len(last) > 3


def _refused(*args: object, **values: object) -> None:
    raise AssertionError("a config was made")
