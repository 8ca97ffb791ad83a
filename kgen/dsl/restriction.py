"""Restriction: which configs may serve an operator, where not all that its family has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Union

from kgen.dsl.choice import Value, listed
from kgen.dsl.errors import ConfigError, KgenError
from kgen.dsl.family import adopt, family_of, name_schedule, of_a_family
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace, as_space
from kgen.dsl.target import Target

#: What a user names a set of configs by.
Named = Union[type[Schedule], SearchSpace]


@dataclass(frozen=True)
class Restriction:
    """The configs of `spaces`, of all schedules of the family where there is none, whose fields have the values in `fields`.

    A schedule that lacks one of these fields, or takes none of the values given for it, is left out.
    """

    spaces: tuple[SearchSpace, ...] = ()
    fields: tuple[tuple[str, tuple[Value, ...]], ...] = ()

    def among(self, space: Named | Sequence[Named], graph: Graph) -> Restriction:
        """Those of its configs that are in the spaces or of the schedules named.

        ConfigError, DefinitionError where these do not serve the graph, or have nothing in common with it.
        """
        spaces = _spaces(space, graph.name)
        for one in spaces:
            name_schedule(one.schedule, graph)
        own = {one.schedule: one for one in self.spaces}
        for one in spaces:
            if own and one.schedule not in own:
                raise ConfigError(f"{graph.name} has no {one.schedule.__name__}; it is restricted to {self}")
        return replace(self, spaces=tuple(own.get(s.schedule, s).where(**dict(s.domains)) for s in spaces))

    def __bool__(self) -> bool:
        return bool(self.spaces or self.fields)

    def __str__(self) -> str:
        told = [*map(str, self.spaces), *(f"{name}={'|'.join(map(repr, values))}" for name, values in self.fields)]
        return ", ".join(told)

    def pinned(self, graph: Graph, **fields: Value | Collection[Value]) -> Restriction:
        """Those of its configs with these values of fields, a value or several. ConfigError where no schedule has such ones."""
        given = {name: listed(values) for name, values in fields.items()}
        known = dict(self.fields)
        for name, values in given.items():
            if any(value not in known.get(name, values) for value in values):
                told = ", ".join(map(repr, known[name]))
                raise ConfigError(f"{graph.name}: {name} is {told} already; expected one of these, got {values!r}")
            for value in values:
                replace(self, fields=((name, (value,)),))._narrowed(graph)  # each means something to some schedule
        found = replace(self, fields=tuple(sorted({**known, **given}.items())))
        found._narrowed(graph)
        return found

    def within(self, problem: NormalProblem, target: Target) -> tuple[SearchSpace, ...] | None:
        """The spaces to search for a normalised problem on a target; None: no restriction.

        Where no schedule is named, those that are never the best there are left out while others remain.
        """
        if not self:
            return None
        found = self._narrowed(problem.graph)
        if not self.spaces:
            able = [s for s in found if s.schedule.target.runs_on(target.arch) and s.schedule.applies(problem)]
            worth = [s for s in able if s.schedule.worth_searching(problem, target)]
            found = tuple(worth or able or found)
        return found

    def _narrowed(self, graph: Graph) -> tuple[SearchSpace, ...]:
        """The spaces with the fields narrowed. ConfigError, with every schedule's reason, where none is left."""
        found: list[SearchSpace] = []
        reasons: list[str] = []
        for space in self.spaces or map(as_space, family_of(graph).schedules):
            try:
                for name, values in self.fields:
                    space = space.where(**{name: self._taken(space, name, values)})
            except KgenError as error:
                reasons.append(str(error))
            else:
                found.append(space)
        if not found:
            raise ConfigError(f"{graph.name} has no schedule for that: {'; '.join(reasons)}")
        return tuple(found)

    @staticmethod
    def _taken(space: SearchSpace, name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Those of the values that a space has; all of them, for the error that tells of it, where it has none."""

        def has(value: Value) -> bool:
            try:
                space.where(**{name: value})
            except ConfigError:
                return False
            return True

        return tuple(value for value in values if has(value)) or values


#: All configs of the family.
UNRESTRICTED = Restriction()


def restriction_of(operator: Operator, space: Named | Sequence[Named]) -> Restriction:
    """The restriction that an operator's definition names. Schedules that no family has become a family, the operator's own.

    ConfigError, DefinitionError where they do not serve the operator.
    """
    spaces = _spaces(space, operator.name)
    if any(of_a_family(one.schedule) for one in spaces):
        return UNRESTRICTED.among(spaces, operator.graphs[0])
    adopt(operator, [one.schedule for one in spaces])
    restricted = any(one.domains for one in spaces)
    return UNRESTRICTED.among(spaces, operator.graphs[0]) if restricted else UNRESTRICTED


def _spaces(space: Named | Sequence[Named], name: str) -> tuple[SearchSpace, ...]:
    """What a user gives as one or several schedules, each once."""
    given = tuple(space) if isinstance(space, (tuple, list)) else (space,)
    for one in given:
        if not isinstance(one, SearchSpace) and not (isinstance(one, type) and issubclass(one, Schedule)):
            raise ConfigError(
                f"{name}: a space is a schedule such as kgen.MmaGemm, or kgen.MmaGemm.where(...), got {one!r}"
            )
    spaces = tuple(map(as_space, given))
    names = [one.schedule.__name__ for one in spaces]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{name}: expected one or several schedules, each once, got {', '.join(names) or 'none'}")
    return spaces
