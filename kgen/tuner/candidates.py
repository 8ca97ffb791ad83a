"""Candidates: every config that a search considers for a problem on a target, over all schedules of the family, ranked.

The set is exact and counted (`space.py`). The ranking is that of the cost model, over all configs of the schedules that it takes
all together (`columns.py`), and over all others where there are EXHAUSTIVE at most. Beyond that it is of those that a best-first
walk finds: it starts from the defaults and from draws of the whole space, and follows the changes of one field that the model
likes best.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Iterable, Sequence

from kgen.dsl.choice import Value
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace, default_of
from kgen.dsl.target import Target
from kgen.tuner.columns import modelled, searched
from kgen.tuner.space import Space, emptied_by

#: Spaces up to this size are ranked whole; larger ones by as many looks at the model.
EXHAUSTIVE = 5000


class Candidates:
    """The configs of a search of a normalised problem, or those of them given as `only`. ConfigError where there is none.

    `within`: the spaces that are searched instead of the whole family's.
    """

    def __init__(
        self,
        problem: NormalProblem,
        target: Target,
        only: Iterable[Schedule] | None = None,
        within: Sequence[SearchSpace] | None = None,
    ) -> None:
        self.problem, self.target, self.named = problem, target, within is not None
        schedules = family_of(problem.graph).schedules
        self._modelled: dict[Schedule, float] = {}
        if within is not None:
            spaces = [Space.asked(space, problem, target) for space in within]
        elif only is None:
            spaces = []
            for schedule in schedules:
                space, seconds = searched(schedule, problem, target)
                spaces.append(space)
                self._modelled |= seconds
        else:
            chosen = list(only)
            spaces = [Space.of(schedule, [c for c in chosen if type(c) is schedule]) for schedule in schedules]
        self.spaces = [space for space in spaces if space.count]
        if not self.spaces and within is not None:
            told = "; ".join(f"{space} is emptied by {emptied_by(space, problem, target)}" for space in within)
            raise ConfigError(f"no config is valid for {problem} on {target}: {told}")
        if not self.spaces:
            raise ConfigError(
                f"no config is valid for {problem} on {target}; `kgen explain` says which rules forbid them"
            )

    @property
    def count(self) -> int:
        """How many configs there are."""
        return sum(space.count for space in self.spaces)

    def __contains__(self, config: Schedule) -> bool:
        return any(config in space for space in self.spaces)

    def space_of(self, config: Schedule) -> Space:
        """The space that a config belongs to."""
        return next(space for space in self.spaces if space.schedule is type(config))

    @functools.cached_property
    def default(self) -> Schedule:
        """The best, by the model, of the schedules' defaults: what is used without tuning.

        Where one is not in its space, as may be in a space that the user named, the best that the model finds there.
        """
        if self.named and not all(map(self._default_in, self.spaces)):
            return self.ranking[0]
        found = [self._default_of(space) for space in self.spaces]
        return min([config for config in found if config.by_default] or found, key=self.estimate)

    def _default_in(self, space: Space) -> Schedule | None:
        try:
            config = default_of(space.schedule, self.problem, self.target)
        except ConfigError:
            return None
        return config if config in space else None

    def _default_of(self, space: Space) -> Schedule:
        return self._default_in(space) or next(iter(space))

    def estimate(self, config: Schedule) -> float:
        """The modelled time of a config in seconds."""
        known = self._modelled.get(config)
        return config.estimate(self.problem, self.target) if known is None else known

    @functools.cached_property
    def ranking(self) -> list[Schedule]:
        """Configs by modelled time, the fastest first; ties in the fixed order."""
        known = set(map(type, self._modelled))
        others = [space for space in self.spaces if space.schedule not in known]
        if sum(space.count for space in others) <= EXHAUSTIVE:
            configs = [config for space in others for config in space]
            seconds = self._modelled | dict(zip(configs, modelled(configs, self.problem, self.target)))
        else:
            seconds = self._modelled | self._explore(others)
        return sorted(seconds, key=lambda config: (seconds[config], self.order(config)))

    def _explore(self, spaces: Sequence[Space]) -> dict[Schedule, float]:
        source = random.Random(0)
        found: dict[Schedule, float] = {}
        heap: list[tuple[float, int, Schedule]] = []

        def look(configs: Iterable[Schedule]) -> None:
            new = [config for config in dict.fromkeys(configs) if config not in found]
            for config, seconds in zip(new, modelled(new, self.problem, self.target)):
                found[config] = seconds
                heapq.heappush(heap, (seconds, len(found), config))

        look(map(self._default_of, spaces))
        for space in spaces:
            look(space.draw(source) for _ in range(EXHAUSTIVE // 10))
        while heap and len(found) < EXHAUSTIVE:
            _, _, best = heapq.heappop(heap)
            look(self.space_of(best).neighbours(best))
        return found

    def seeds(self, count: int) -> list[Schedule]:
        """The first configs to try: the default, then the top of the ranking, without those one field away from another."""
        chosen = [self.default]
        for config in self.ranking:
            if len(chosen) >= count:
                break
            if all(_differences(config, other) > 1 for other in chosen):
                chosen.append(config)
        return chosen

    def order(self, config: Schedule) -> tuple[int, ...]:
        """The place of a config in the fixed order of schedules, fields and domains: it decides ties."""
        number, places = self._places[type(config)]
        values = config.values
        return (number, *[there[values[name]] for name, there in places.items()])

    @functools.cached_property
    def _places(self) -> dict[type[Schedule], tuple[int, dict[str, dict[Value, int]]]]:
        """Of each schedule the number of its first space, and of each field the places of its values there."""
        found: dict[type[Schedule], tuple[int, dict[str, dict[Value, int]]]] = {}
        for number, space in enumerate(self.spaces):
            fields = space.given.fields.items()
            places = {name: {value: i for i, value in enumerate(values)} for name, values in fields}
            found.setdefault(space.schedule, (number, places))
        return found


def _differences(a: Schedule, b: Schedule) -> int:
    """How many fields of two configs differ; all of them where the schedules do."""
    if type(a) is not type(b):
        return len(a.fields)
    return sum(value != b.values[name] for name, value in a.values.items())
