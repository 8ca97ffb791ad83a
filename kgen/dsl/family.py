"""Family: the operators one set of templates serves, and the registry that finds the family of a graph."""

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


_FAMILIES: dict[str, Family] = {}


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


def of_a_family(schedule: type[Schedule]) -> bool:
    """Whether a schedule is a registered family's, or a subclass of one."""
    return any(issubclass(schedule, family.schedules) for family in _FAMILIES.values() if family.schedules)


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
    found: list[Family] = []
    for family in sorted(_FAMILIES.values(), key=lambda family: -family.priority):
        if found and family.priority < found[0].priority:
            break
        if family.matches(graph):
            found.append(family)
    if len(found) > 1:
        raise DefinitionError(
            f"{graph.where}: the families {', '.join(f.name for f in found)} all serve {graph.name}, with priority "
            f"{found[0].priority}; expected one of a higher priority: Family(..., priority={found[0].priority + 1})"
        )
    if found:
        return found[0]
    raise DefinitionError(
        f"{graph.where}: no family serves {graph.name} with {', '.join(map(str, graph.inputs))}, nor a few launches one after "
        f"another; there are: {', '.join(_FAMILIES) or 'none'}; make several operators of it, or give it a template of its own"
    )


@functools.lru_cache(maxsize=4096)
def has_kernel(graph: Graph) -> bool:
    """Whether a family with schedules serves the graph: in one launch."""
    own = _OWN.get(graph.name)
    if own is not None and own.matches(graph):
        return True
    return any(family.schedules and family.matches(graph) for family in _FAMILIES.values())


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


def schedules() -> dict[str, type[Schedule]]:
    """All schedules of all families and those that operators named, by name: what a stored config's text is read with."""
    shipped = {schedule.__name__: schedule for family in _FAMILIES.values() for schedule in family.schedules}
    own = {schedule.__name__: schedule for family in _OWN.values() for schedule in family.schedules}
    return {**own, **_NAMED, **shipped}


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
    shipped = {s.__name__: s for family in _FAMILIES.values() for s in family.schedules}
    if shipped.get(schedule.__name__, schedule) is not schedule:
        raise DefinitionError(
            f"a schedule named {schedule.__name__} comes with kgen already; give {schedule.__qualname__} another name"
        )
    if schedule not in family.schedules:
        _NAMED[schedule.__name__] = schedule
