"""Listed: a default from a list of configs, all scored at once, as columns; what no size decides of them is found once a class.

For schedules whose default is the model's best of a list that is written by hand, or of all where they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector
from kgen.tuner.columns import table_of

Config = TypeVar("Config", bound=Schedule)

_UNKNOWN, _BROKEN, _VALID = range(3)
#: Lists that are kept.
_MOST = 1024


class Listed:
    """The configs of a list, for all problems of a class: as columns, and what is known of each by rules that read no sizes."""

    def __init__(self, configs: Sequence[Schedule]) -> None:
        self.schedule = type(configs[0])
        self.table = table_of(configs, narrow=True)
        self.columns = self.schedule.partial(self.table)
        self._known = np.full(len(configs), _UNKNOWN, dtype=np.uint8)
        self._sized = [test for name, test in self.schedule.rules.items() if self.schedule.is_sized(name)]
        self._others = [test for name, test in self.schedule.rules.items() if not self.schedule.is_sized(name)]

    def best(self, ranked: Callable[[Any], Sequence[Vector]], problem: NormalProblem, target: Target) -> Schedule:
        """The valid config of which `ranked` is least, of equals the first."""
        count = self.table.count
        keys = [np.broadcast_to(key, (count,)) for key in ranked(self.columns)]
        kept = self._known != _BROKEN
        for test in self._sized:
            kept = kept & test(self.columns, problem, target)
        order = np.lexsort(keys[::-1]) if keys else np.arange(count)
        for row in order[kept[order]].tolist():
            config = self.table.config(row)
            if self._is_valid(row, config, problem, target):
                return config
        # Of the ends of the list the one that breaks fewer rules says best what is missing.
        ends = [self.table.config(row).broken(problem, target) for row in (order[0], order[-1])]
        expected = "; ".join(rejection.reason for rejection in min(ends, key=len))
        name = self.schedule.template.split(".")[0]
        raise ConfigError(f"no {name} config is valid for {problem} on {target}; expected: {expected}")

    def _is_valid(self, row: int, config: Schedule, problem: NormalProblem, target: Target) -> bool:
        """Asked of those alone that come first for some size."""
        if self._known[row] == _UNKNOWN:
            whole = all(test(config, problem, target) for test in self._others)
            self._known[row] = _VALID if whole else _BROKEN
        return bool(self._known[row] == _VALID)


_known: dict[tuple[Any, ...], Listed] = {}


def best_of(
    schedule: type[Config],
    like: Hashable,
    configs: Callable[[], Sequence[Config]],
    problem: NormalProblem,
    target: Target,
    ranked: Callable[[Config], Sequence[Vector]] | None = None,
) -> Config:
    """The model's best of `configs`, a list that is made once for all problems of a class (`Schedule.class_of`) and `like`.

    The rules that are `sized`, and the model, take columns. Of equal times the first of the list is the best. `ranked` gives
    other numbers to be least, the first of them before the next; none of them where the first of the list is to be taken.
    ConfigError where no config is valid.
    """
    key = schedule, schedule.class_of(problem), like, target
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[key] = Listed(configs())
    modelled = ranked or (lambda config: (config.estimate(problem, target),))
    return found.best(modelled, problem, target)  # type: ignore[return-value]  # of this schedule, as its list is
