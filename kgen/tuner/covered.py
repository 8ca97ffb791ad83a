"""Covered: the best config of a problem among few rows of its class that are nearly as good as all (`kgen.tuner.covering`).

A class of many rows that is asked often is covered by a thread, once a machine: a recording of these rows is kept on disk. What
it tells takes a quarter of the time of what all rows tell, and is 0.02 to 0.04% behind in the mean, at worst 3%, by the model
(docs/notes/search.md); so it is one of two answers, and who asks says which to take (`kgen.runtime.dispatch`).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import chooser, recorded
from kgen.tuner.columns import ProblemClass, Table, problem_class
from kgen.tuner.covering import Sizes, covering
from kgen.tuner.kept import found_on_disk, kept
from kgen.tuner.pauses import rest
from kgen.tuner.recorded import REACH, Recorded
from kgen.tuner.recorder import Recorder

#: A class of so many rows that was asked so often is covered: what few shapes need is not worth some seconds of a thread.
_MANY, _OFTEN = 1024, 4
#: The seconds of one step of that: a process that ends waits for it.
_STEP = 0.1
#: The best rows by all fields but the `last`, for which these are tried; of all rows `REACH`.
_FEW_REACH = 8
#: The best configs of each of the sizes that are drawn.
_COUNT = 64


class _Covered:
    """The recording of the rows that cover a class, for problems of one form and the constants of models as they are."""

    def __init__(self, schedule: type[Schedule], of: Hashable, target: Target) -> None:
        self._schedule, self._of, self._target = schedule, ("covering", of), target
        data = found_on_disk(schedule, self._of, target)
        self.few = Recorded(schedule, data) if data else None
        self._asked, self._begun = 0, False
        #: Whether a thread is covering the class.
        self.is_covering = False

    def best(self, choose: Any, problem: NormalProblem) -> tuple[Schedule, float] | None:
        """As `best`."""
        self._asked += 1
        if self.few is not None:
            return self.few.first(choose, problem, _FEW_REACH)
        is_often = self._asked >= _OFTEN and not self._begun
        if is_often and Sizes(problem).told and recorded.rows(self._schedule, problem, self._target) >= _MANY:
            self._begun = self.is_covering = True
            recorded.threads().submit(self._go_on, self._made(choose, problem))
        return None

    def _go_on(self, steps: Iterator[None]) -> None:
        """Some steps of what covers the class; those that follow are another task, which no process that ends begins."""
        until, is_left = time.monotonic() + _STEP, False
        try:
            while time.monotonic() < until:
                rest()
                next(steps)
            recorded.threads().submit(self._go_on, steps)
            is_left = True
        except (StopIteration, TypeError, RuntimeError):  # at its end, NotTraced, or where the process ends
            pass
        finally:
            self.is_covering = is_left

    def _made(self, choose: Any, problem: NormalProblem) -> Iterator[None]:
        schedule, target = self._schedule, self._target
        known = problem_class(schedule, problem, target)
        whole = Recorded(schedule, Recorder(known, problem, target).written())
        rows = yield from covering(problem, lambda sizes: whole.rows(choose, sizes, REACH, _COUNT))
        if rows:
            masks = [np.zeros(table.count, dtype=bool) for table in known.tables]
            for place, row in rows:
                masks[place][row] = True
            few = ProblemClass(schedule, tuple(map(Table.kept, known.tables, masks)), known.steps)
            self.few = Recorded(schedule, kept(schedule, self._of, target, Recorder(few, problem, target).written))


_known: dict[tuple[type[Schedule], Hashable, Target], _Covered] = {}


def best(schedule: type[Schedule], problem: NormalProblem, target: Target) -> tuple[Schedule, float] | None:
    """The best of the rows that cover the class of a problem to which the schedule applies, with its modelled seconds; None where
    the class is not covered, or not yet, or none of them is valid."""
    choose = chooser.function() if schedule.recorded else None
    if choose is None:
        return None
    key = recorded.class_key(schedule, problem, target)
    found = _known.get(key)
    if found is None:
        if len(_known) >= recorded.MOST:
            _known.clear()
        found = _known[key] = _Covered(*key)
    return found.best(choose, problem)


def wait() -> None:
    """Until what is being recorded is there, and what is being covered."""
    recorded.wait()
    while any(one.is_covering for one in _known.values()):
        recorded.wait()
