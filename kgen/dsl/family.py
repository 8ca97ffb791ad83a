"""Family: the operators one set of templates serves, and the registry that finds the family of a graph.

A process needs few of the families that come with kgen: each is imported when a graph comes that it might serve (`announce`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.errors import DefinitionError, told_of
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.schedule import Schedule


@dataclass(frozen=True)
class Family:
    """`matches` tells whether it serves a graph. `normalise` maps problems that run alike to one of them.

    `dims` are a graph's dimensions in the order a shape is written (M, N, K); `suites` are named lists of sizes, the one
    called "default" is tuned where the user names no shape. An operator may name others, see `suites_of`. Of the families that
    match a graph the one of the highest `priority` serves it: one that serves only some graphs of another's, and these better,
    has a higher one. One without schedules serves graphs that are computed in several launches, see `kgen.dsl.program`.
    """

    name: str
    schedules: tuple[type[Schedule], ...]
    matches: Callable[[Graph], bool]
    normalise: Callable[[Problem], Problem]
    dims: Callable[[Graph], tuple[str, ...]]
    suites: Callable[[Graph], Mapping[str, Sequence[Sizes]]]
    priority: int = 0


@dataclass(frozen=True)
class Announced:
    """A family that registers itself when it is loaded: its priority, and whether it might serve a graph, by the ops there."""

    priority: int
    might_serve: Callable[[Graph], bool]
    load: Callable[[], object]


_FAMILIES: dict[str, Family] = {}
_ANNOUNCED: list[Announced] = []


#: Families that operators brought with them, by the operator's name: for its graphs alone, before all others.
_OWN: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Adds a family. DefinitionError where its name is taken."""
    if not isinstance(family, Family):
        raise DefinitionError(f"a family is a kgen.Family, got {type(family).__name__} {told_of(family)}")
    if family.name in _FAMILIES:
        raise DefinitionError(f"a family named {family.name} is registered already")
    _FAMILIES[family.name] = family
    _forget()
    return family


def announce(*families: Announced) -> None:
    """Has families loaded before a graph is looked up that they might serve."""
    _ANNOUNCED.extend(families)
    _forget()


def _registered() -> list[Family]:
    """All families, the announced ones loaded."""
    for family in _ANNOUNCED:
        family.load()
    return [*_FAMILIES.values()]


def _serving(graph: Graph, in_one_launch: bool = False) -> list[Family]:
    """The families that serve the graph, of the highest priority that such a family has."""
    priorities = {f.priority for f in _FAMILIES.values()} | {f.priority for f in _ANNOUNCED}
    for priority in sorted(priorities, reverse=True):
        for announced in _ANNOUNCED:
            if announced.priority == priority and announced.might_serve(graph):
                announced.load()
        families = [f for f in _FAMILIES.values() if f.priority == priority and (f.schedules or not in_one_launch)]
        found = [f for f in families if f.matches(graph)]
        if found:
            return found
    return []


def of_a_family(schedule: type[Schedule]) -> bool:
    """Whether a schedule is a registered family's, or a subclass of one."""
    return any(issubclass(schedule, family.schedules) for family in _registered() if family.schedules)


def adopt(operator: Operator, schedules: Sequence[type[Schedule]]) -> None:
    """Makes schedules, none of them a shipped family's, the family of an operator; a later operator of its name takes its place.

    Problems are as the caller puts them, sizes in the order of the operator's dimensions, 1024 of each by default.
    """
    digests = {graph.digest for graph in operator.graphs}
    _OWN[operator.name] = Family(
        operator.name,
        tuple(schedules),
        matches=lambda graph: graph.digest in digests,
        normalise=lambda problem: problem,
        dims=lambda graph: graph.dims,
        suites=lambda graph: {"default": [dict.fromkeys(graph.dims, 1024)]},
    )
    _forget()


@functools.lru_cache(maxsize=4096)
def family_of(graph: Graph) -> Family:
    """The family that serves the graph; DefinitionError where none does, or where several of one priority would."""
    own = _OWN.get(graph.name)
    if own is not None and own.matches(graph):
        return own
    found = _serving(graph)
    if len(found) > 1:
        raise DefinitionError(
            f"{graph.where}: the families {', '.join(f.name for f in found)} all serve {graph.name}, with priority "
            f"{found[0].priority}; expected one of a higher priority: Family(..., priority={found[0].priority + 1})"
        )
    if found:
        return found[0]
    inputs, names = ", ".join(map(str, graph.inputs)), ", ".join(family.name for family in _registered())
    raise DefinitionError(
        f"{graph.where}: no family serves {graph.name} with {inputs}, nor a few launches one after another; there are: "
        f"{names or 'none'}; make several operators of it, or give it a template of its own"
    )


@functools.lru_cache(maxsize=4096)
def has_kernel(graph: Graph) -> bool:
    """Whether a family with schedules serves the graph: in one launch."""
    own = _OWN.get(graph.name)
    if own is not None and own.matches(graph):
        return True
    return bool(_serving(graph, in_one_launch=True))


def normalised(problem: Problem) -> NormalProblem:
    """The problem as the schedules of its family take it, and as the database knows it; problems that run alike are one.

    One that is normalised already is itself. DefinitionError where no family serves its graph.
    """
    return NormalProblem(family_of(problem.graph).normalise(problem))


def _forget() -> None:
    """What serves a graph may be another family from now on."""
    for known in (family_of, has_kernel):
        known.cache_clear()


def suites_of(operator: Operator) -> Mapping[str, Sequence[Sizes]]:
    """The suites of an operator by name: those of the family that serves it, and before them its own."""
    graph = operator.graphs[0]
    return {**family_of(graph).suites(graph), **operator.suites}


def schedules(wanted: str = "") -> dict[str, type[Schedule]]:
    """All schedules of all families and those that operators named, by name: what a stored config's text is read with.

    Where a family that is loaded has the one that is `wanted`, no others are loaded for it.
    """
    shipped = _shipped_schedules([*_FAMILIES.values()])
    if wanted not in shipped:
        shipped = _shipped_schedules(_registered())
    own = {schedule.__name__: schedule for family in _OWN.values() for schedule in family.schedules}
    return {**own, **_NAMED, **shipped}


def _shipped_schedules(families: Sequence[Family]) -> dict[str, type[Schedule]]:
    return {schedule.__name__: schedule for family in families for schedule in family.schedules}


#: Subclasses of families' schedules that operators named. A later one takes the place of an earlier one of its name, as a cell
#: of a notebook that is run again defines both anew.
_NAMED: dict[str, type[Schedule]] = {}


def name_schedule(schedule: type[Schedule], graph: Graph) -> None:
    """Makes a schedule known by its name. DefinitionError where it does not serve the graph, or where the name is another's."""
    family = family_of(graph)
    if not issubclass(schedule, family.schedules):
        expected = ", ".join(s.__name__ for s in family.schedules)
        raise DefinitionError(
            f"{schedule.__name__} does not serve {graph.name}; expected one of {expected}, or a subclass"
        )
    shipped = _shipped_schedules(_registered())
    if shipped.get(schedule.__name__, schedule) is not schedule:
        raise DefinitionError(
            f"a schedule named {schedule.__name__} comes with kgen already; give {schedule.__qualname__} another name"
        )
    if schedule not in family.schedules:
        _NAMED[schedule.__name__] = schedule
