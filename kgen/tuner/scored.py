"""Scored: the model's times of listed configs for problem after problem, as columns where their schedule's model takes these."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.tuner.columns import seconds_of, table_of, together


class Scored:
    """The model of a target, for configs of `within` where it is given."""

    def __init__(self, target: Target, within: Sequence[SearchSpace] | None = None) -> None:
        self.target, self.within = target, within
        #: Whether a config is valid by the rules that read no sizes, for a class of problems.
        self._whole: dict[tuple[Schedule, Hashable], bool] = {}
        self._tables = functools.lru_cache(maxsize=64)(table_of)

    def seconds(self, configs: Sequence[Schedule], problem: NormalProblem) -> list[float]:
        """The modelled seconds of each config; inf where it is not valid for the problem."""
        found = np.full(len(configs), math.inf)
        asked = [row for row, c in enumerate(configs) if c.applies(problem) and self._is_whole(c, problem)]
        for rows in together(configs, asked).values():
            if len(rows) > 1:
                table = self._tables((*(configs[row] for row in rows),))
                fits = self._passes(table.schedule.partial(table), problem, sized=True)
                found[rows] = np.where(fits, seconds_of(table, problem, self.target), math.inf)
            elif self._passes(configs[rows[0]], problem, sized=True):
                found[rows] = configs[rows[0]].estimate(problem, self.target)
        return [*map(float, found)]

    def _is_whole(self, config: Schedule, problem: NormalProblem) -> bool:
        """Whether it is to be considered, and valid by the rules that read no sizes."""
        key = config, config.class_of(problem)
        if key not in self._whole:
            within = self.within is None or any(config in space for space in self.within)
            self._whole[key] = within and bool(self._passes(config, problem, sized=False))
        return self._whole[key]

    def _passes(self, asked: Schedule, problem: NormalProblem, sized: bool) -> Any:
        """Whether it is valid by the rules that read sizes, or by the others; of columns, for each row."""
        valid: Any = True
        for name, test in asked.rules.items():
            if asked.is_sized(name) == sized and not asked.only_prunes(name):
                valid = valid & test(asked, problem, self.target)
        return valid
