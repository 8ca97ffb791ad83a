"""Recorded: the choice among a class's configs as arithmetic that C++ runs, in a tenth of the time it takes array by array.

`kgen.tuner.best` says what is chosen, `kgen.tuner.recorder` makes a recording. One serves the sizes for which its guards hold;
for others there is another. Where a schedule cannot be traced, or there is no compiler, the choice is made array by array.

A class of many rows that is asked often gets one more recording, of few of them that are nearly as good (`kgen.tuner.covering`):
from then on, in all processes, it tells the best one config of a problem.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import chooser, instructions
from kgen.tuner.columns import ProblemClass, Table, problem_class
from kgen.tuner.covering import Row, Sizes, covering
from kgen.tuner.instructions import Arrays, Found, Part
from kgen.tuner.kept import found_on_disk, kept
from kgen.tuner.pauses import rest
from kgen.tuner.recorder import Recorder, combinations
from kgen.tuner.traced import NotTraced, form_of, sizes_of
from kgen.tuning_db import machines

#: Recordings of a class, and classes, that are kept.
_MOST = 64
#: A class of so many rows that was asked so often is covered: what few shapes need is not worth some seconds of a thread.
_MANY, _OFTEN = 1024, 4
#: The seconds of one step of that: a process that ends waits for it.
_STEP = 0.1
#: The best rows by all fields but the `last`, for which these are tried: of all rows, and of those that cover a class.
REACH, _FEW_REACH = 32, 8
#: The best configs of each of the sizes that are drawn.
_COUNT = 64


class Recorded:
    """The choice among a class's configs, for the sizes that meet the guards."""

    def __init__(self, schedule: type[Schedule], written: bytes) -> None:
        self.schedule = schedule
        about, self._arrays = Arrays.read(written)
        self._code, numbers = (self._arrays.found[about[name]] for name in ("code", "numbers"))
        self._numbers = numbers.astype(np.float64)
        self._inputs, self._tables = about["inputs"], about["tables"]
        self._about = about["parts"]
        self._kept: list[Any] = []
        self._configs: dict[tuple[Any, ...], Schedule] = {}
        #: How many rows its tables have.
        self.count = sum({one["table"]: len(self._arrays.found[one["places"]]) for one in self._about}.values())
        self._parts = (Part * len(self._about))(
            *(instructions.part(one, self._arrays, self._kept) for one in self._about)
        )
        self.last = combinations(schedule)

    def best(self, choose: Any, problem: NormalProblem, reach: int, count: int) -> list[Schedule] | None:
        """The best configs, the fastest first; None where a guard does not hold."""
        found = self._found(choose, sizes_of(problem), reach, count)
        return None if found is None else [self._config(one) for one in found]

    def rows(self, choose: Any, sizes: Sequence[int], reach: int, count: int) -> dict[Row, float]:
        """The rows of the best configs at sizes and strides, with their least seconds; none where a guard does not hold."""
        seconds: dict[Row, float] = {}
        for one in self._found(choose, sizes, reach, count) or ():
            about = self._about[one.part]
            row = about["table"], int(self._arrays.found[about["places"]][one.row])
            seconds.setdefault(row, one.seconds)
        return seconds

    def _found(self, choose: Any, sizes: Sequence[int], reach: int, count: int) -> Sequence[Found] | None:
        numbers = self._numbers.copy()
        numbers[: self._inputs] = sizes
        found = (Found * count)()
        there = choose(
            self._code.ctypes.data, len(self._code), numbers.ctypes.data, self._parts, len(self._parts),
            len(self._tables), reach, count, found,
        )  # fmt: skip
        return None if there < 0 else found[:there]

    def _config(self, found: Found) -> Schedule:
        """The config of a row, made once: first calls of many sizes come to the same few."""
        about = self._about[found.part]
        key = (found.part, found.row, found.last, *found.fields[: len(about["fields"])])
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = self._made(found, about)
        return config

    def _made(self, found: Found, about: dict[str, Any]) -> Schedule:
        schedule = self.schedule
        row = self._arrays.found[about["places"]][found.row]
        values = dict(zip(schedule.last, self.last[found.last]))
        for place, (name, text) in enumerate(about["fields"].items()):
            values[name] = _typed(schedule, name, found.fields[place]) if text is None else text
        for name, value in self._tables[about["table"]].items():
            if isinstance(value, list):
                value = self._arrays.found[value[0]][row]
                domain = schedule.fields[name].values
                value = domain[value] if isinstance(domain[0], str) else _typed(schedule, name, value)
            values[name] = value
        return schedule.partial({name: values[name] for name in schedule.fields})


def _typed(schedule: type[Schedule], name: str, value: Any) -> Any:
    return type(schedule.fields[name].values[0])(value)


class _Recordings:
    """The recordings of a class, for problems of one form and the constants of models as they are.

    What is not kept on disk is made by a thread: no call waits for it.
    """

    def __init__(self, schedule: type[Schedule], of: Hashable, target: Target) -> None:
        self._schedule, self._of, self._target = schedule, of, target
        self.found: list[Recorded] = []
        self._possible = True
        self._making = threading.Lock()
        #: That of the rows that cover the class, how often it was asked for, and whether it was begun, and is being made.
        self._covering: Recorded | None = None
        self._asked = 0
        self._begun = self.is_covering = False

    def best(self, problem: NormalProblem, reach: int, count: int) -> list[Schedule] | None:
        """As `kgen.tuner.best.by_columns`, where one is asked for of the rows that cover the class once these are known; None
        where it cannot be told this way, or not yet."""
        choose = chooser.function()
        if choose is None or not self._possible:
            return None
        few = self._few() if count == 1 else None
        if few and (told := few.best(choose, problem, min(reach, _FEW_REACH), 1)):
            return told
        if not self.found and (data := self._on_disk("recorded")):
            self.found.append(Recorded(self._schedule, data))
        for recorded in self.found:
            told = recorded.best(choose, problem, reach, count)
            if told is not None:
                self._cover(problem, recorded)
                return told
        return None

    def _on_disk(self, what: str) -> bytes | None:
        return found_on_disk(self._schedule, (what, self._of), self._target)

    def _few(self) -> Recorded | None:
        """The recording of the rows that cover the class, where there is one."""
        if self._asked == 0 and (data := self._on_disk("covering")):
            self._covering = Recorded(self._schedule, data)
        self._asked += 1
        return self._covering

    def _cover(self, problem: NormalProblem, recorded: Recorded) -> None:
        """Has the class covered, where that is worth it and was not begun."""
        is_worth = self._asked >= _OFTEN and recorded.count >= _MANY
        if is_worth and not self._begun and Sizes(problem).told:
            self._begun = self.is_covering = True
            _threads().submit(self._go_on, self._covered(problem))

    def _go_on(self, steps: Iterator[None]) -> None:
        """Some steps of what covers the class; those that follow are another task, which no process that ends begins."""
        until, is_left = time.monotonic() + _STEP, False
        try:
            while time.monotonic() < until:
                rest()
                next(steps)
            _threads().submit(self._go_on, steps)
            is_left = True
        except (StopIteration, TypeError, RuntimeError):  # at its end, NotTraced, or where the process ends
            pass
        finally:
            self.is_covering = is_left

    def _covered(self, problem: NormalProblem) -> Iterator[None]:
        schedule, target, choose = self._schedule, self._target, chooser.function()
        known = problem_class(schedule, problem, target)
        whole = Recorded(schedule, Recorder(known, problem, target).written())
        rows = yield from covering(problem, lambda sizes: whole.rows(choose, sizes, REACH, _COUNT))
        if rows:
            masks = [np.zeros(table.count, dtype=bool) for table in known.tables]
            for place, row in rows:
                masks[place][row] = True
            few = ProblemClass(schedule, tuple(map(Table.kept, known.tables, masks)), known.steps)
            data = kept(schedule, ("covering", self._of), target, Recorder(few, problem, target).written)
            self._covering = Recorded(schedule, data)

    def record(self, problem: NormalProblem, reach: int, chosen: list[Schedule]) -> None:
        """Has one more recording made, for sizes such as this problem's; the first of a class is kept."""
        if chooser.function() and self._possible and self._making.acquire(blocking=False):
            _threads().submit(self._make, problem, reach, chosen)

    def _make(self, problem: NormalProblem, reach: int, chosen: list[Schedule]) -> None:
        try:
            known = problem_class(self._schedule, problem, self._target)

            def written() -> bytes:
                made = Recorder(known, problem, self._target).written()
                told = Recorded(self._schedule, made).best(chooser.function(), problem, reach, len(chosen))
                if chosen and told != chosen:
                    raise NotTraced("another choice than array by array")
                return made

            of = ("recorded", self._of)
            data = written() if self.found else kept(self._schedule, of, self._target, written)
            if len(self.found) >= _MOST:
                self.found.clear()
            self.found.insert(0, Recorded(self._schedule, data))
        except TypeError:  # what Python does with an int alone, and NotTraced
            self._possible = bool(self.found)
        finally:
            self._making.release()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="kgen-recorded")


_known: dict[tuple[type[Schedule], Hashable, Target], _Recordings] = {}


def _recordings(schedule: type[Schedule], problem: NormalProblem, target: Target) -> _Recordings:
    of = schedule.class_of(problem), form_of(problem), machines.digest()
    found = _known.get((schedule, of, target))
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[schedule, of, target] = _Recordings(schedule, of, target)
    return found


def best(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, count: int
) -> list[Schedule] | None:
    """As `_Recordings.best`, of the class of a problem."""
    return _recordings(schedule, problem, target).best(problem, reach, count)


def record(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, chosen: list[Schedule]
) -> None:
    """Has a thread record the choice for the class of a problem, of which array by array these were `chosen`."""
    _recordings(schedule, problem, target).record(problem, reach, chosen)


def wait() -> None:
    """Until what is being recorded is there, and what is being covered."""
    while True:
        _threads().submit(lambda: None).result()
        if not any(one.is_covering for one in _known.values()):
            return
