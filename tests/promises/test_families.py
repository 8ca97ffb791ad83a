"""Which family serves an operator is stated: no graph is left to two families of one priority, whatever the order of import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from operators import OPERATORS, small

import kgen
from kgen import ops
from kgen.dsl import family as families
from kgen.dsl.errors import DefinitionError
from kgen.dsl.family import family_of, normalised, register_family
from kgen.dsl.program import launches_of

#: How those that come with kgen are announced, by name.
ANNOUNCED = {one.load().family.name: one for one in families._ANNOUNCED}
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


def test_files_are_listed_with_their_operators() -> None:
    for module, names in ops.FILES.items():
        assert names.split() == [operator.name for operator in import_module(f"kgen.ops.{module}").OPERATORS]


def test_every_family_is_loaded_for_what_it_serves() -> None:
    """Where a family matches, what announces it says that it might serve, at its own priority."""
    assert {name: one.priority for name, one in ANNOUNCED.items()}.items() <= {
        (name, family.priority) for name, family in families._FAMILIES.items()
    }
    definitions = [operator.definition for operator in OPERATORS.values()]
    definitions += [launch for definition in definitions for launch in launches_of(definition)]
    for graph in (graph for definition in definitions for graph in definition.graphs):
        serving = {name for name in ANNOUNCED if families._FAMILIES[name].matches(graph)}
        assert serving <= {name for name, one in ANNOUNCED.items() if one.might_serve(graph)}, graph.name


@pytest.mark.parametrize(
    ("name", "sizes", "folders"),
    [
        ("hgemm", {"M": 64, "N": 64, "K": 64}, {"gemm"}),
        ("gelu", {"...": 4096}, {"elementwise"}),
        ("softmax", {"...": 64, "N": 64}, {"rowwise"}),
    ],
)
def test_a_process_loads_the_families_that_it_needs(name: str, sizes: Mapping[str, object], folders: set[str]) -> None:
    code = (
        f"import kgen, sys\nfrom kgen.runtime import dispatch\nproblem = kgen.{name}.problem({sizes})\n"
        "dispatch.serve(problem, dispatch.EMULATED).config.source(problem)\n"
        "print(*{m.split('.')[2] for m in sys.modules if m.startswith('kgen.ops.')} - {'common'})"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == folders
