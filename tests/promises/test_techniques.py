"""Every technique of every schedule: its configs are some, for a problem that an operator's default or small suite has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from operators import GRADIENTS

from kgen.dsl.choice import choice
from kgen.dsl.errors import DefinitionError
from kgen.dsl.family import family_of, schedules, suites_of
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import sm
from kgen.gpu.target import resolve
from kgen.ops import operators
from kgen.tuner.space import Space

SHIPPED = [schedule for schedule in schedules().values() if schedule.__module__.startswith("kgen.ops.")]
#: What runs the most schedules.
H200 = resolve("H200")


def problems(schedule: type[Schedule]) -> Iterator[Problem]:
    """The problems that a schedule serves, of two suites of all operators: of each the small ones of all dtypes first."""
    served = [o for o in (*operators().values(), *GRADIENTS) if schedule in family_of(o.graphs[0]).schedules]
    for suite, number in itertools.product(("default", "small"), range(3)):
        for operator in served:
            for graph in operator.graphs:
                found = suites_of(operator)[suite]
                if number < len(found):
                    problem = family_of(graph).normalise(Problem.dense(graph, found[number]))
                    if schedule.applies(problem):
                        yield problem


@pytest.mark.parametrize("schedule", SHIPPED, ids=lambda schedule: schedule.__name__)
def test_a_technique_has_configs(schedule: type[Schedule]) -> None:
    assert 3 <= len(schedule.techniques) <= 11
    left = {name: schedule.where(**domains) for name, domains in schedule.techniques.items()}
    assert len(set(map(str, left.values()))) == len(left)
    for problem in problems(schedule):
        left = {name: space for name, space in left.items() if not Space.asked(space, problem, H200).count}
        if not left:
            break
    assert not left


def test_a_technique_names_what_there_is() -> None:
    class Base(Schedule):
        template = "base"
        target = sm(75)
        width = choice(1, 2, allows=(4,))
        techniques = {"wide": {"width": (2, 4)}, "narrow": {"width": 1}}

    class Derived(Base):
        width = choice(2)

    assert list(Base.techniques) == ["wide", "narrow"]
    assert Derived.techniques == {"Derived": {}}
    with pytest.raises(
        DefinitionError,
        match="technique 'wider' of Wider: width=8 is outside its domain 1, 2; its template also takes 4",
    ):
        type("Wider", (Base,), {"techniques": {"wider": {"width": (4, 8)}}})
    with pytest.raises(DefinitionError, match="technique 'deep' of Deep has no field depth; its fields are width"):
        type("Deep", (Base,), {"techniques": {"deep": {"depth": 1}}})
