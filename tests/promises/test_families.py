"""Which family serves an operator is stated: no graph is left to two families of one priority, whatever the order of import."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from operators import OPERATORS, small

import kgen
from kgen.dsl import family as families
from kgen.dsl.errors import DefinitionError
from kgen.dsl.family import family_of, normalised, register_family

#: Who else would serve graphs of a family, and why it does not.
OTHERS = {
    "elementwise": {"gather"},  # pointwise graphs are gathers of which nothing is taken
    "linear_attention": {"attention"},  # weights that separate are pointwise, too
}


@pytest.mark.parametrize("name", OPERATORS)
def test_one_family_of_the_highest_priority_serves_an_operator(name: str) -> None:
    for graph in OPERATORS[name].definition.graphs:
        serving = family_of(graph)
        others = [f for f in families._FAMILIES.values() if f is not serving and f.matches(graph)]
        if serving.name == graph.name:  # a family of its own, which no other graph has
            continue
        assert all(other.priority < serving.priority for other in others)
        assert {other.name for other in others} <= OTHERS.get(serving.name, set())


@pytest.mark.parametrize("name", OPERATORS)
def test_a_problem_is_normalised_once(name: str) -> None:
    for graph in OPERATORS[name].definition.graphs:
        once = normalised(small(graph))
        assert normalised(once) == once
        assert once.origin is None or once.origin == small(graph)


def test_there_is_one_way_to_normalise() -> None:
    """`normalised`, which says so in its type: nobody else asks the family."""
    files = [file for file in Path(kgen.__file__).parent.rglob("*.py") if ".normalise(" in file.read_text("utf-8")]
    assert [file.name for file in files] == ["family.py"]


def test_every_other_family_that_is_listed_would_serve_some() -> None:
    graphs = [graph for operator in OPERATORS.values() for graph in operator.definition.graphs]
    for name, others in OTHERS.items():
        served = [graph for graph in graphs if family_of(graph).name == name]
        assert all(any(families._FAMILIES[other].matches(graph) for graph in served) for other in others)


def test_two_families_of_one_priority_are_told_apart_by_a_higher_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = OPERATORS["gelu"].definition.graphs[0]
    monkeypatch.setattr(families, "_FAMILIES", dict(reversed(families._FAMILIES.items())))
    families._forget()
    assert family_of(graph).name == "elementwise"  # in any order
    second = register_family(replace(family_of(graph), name="second"))
    with pytest.raises(DefinitionError, match=r"elementwise, second all serve gelu, with priority 1; .*priority=2"):
        family_of(graph)
    del families._FAMILIES["second"]
    assert register_family(replace(second, name="third", priority=2)) is family_of(graph)
    families._forget()
