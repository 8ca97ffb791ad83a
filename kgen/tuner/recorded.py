"""Recorded: the choice among a class's configs as arithmetic that C++ runs, in a tenth of the time it takes array by array.

`kgen.tuner.best` says what is chosen, `kgen.tuner.recorder` makes a recording. One serves the sizes for which its guards hold;
for others there is another. Where a schedule cannot be traced, or there is no compiler, the choice is made array by array.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import chooser, instructions
from kgen.tuner.columns import problem_class
from kgen.tuner.instructions import Arrays, Found, Part
from kgen.tuner.kept import found_on_disk, kept
from kgen.tuner.recorder import Recorder, combinations
from kgen.tuner.traced import NotTraced, form_of, sizes_of
from kgen.tuning_db import machines

#: A config, and its modelled seconds.
Told = tuple[Schedule, float]
#: Recordings of a class, and classes, that are kept.
MOST = 64
#: The best rows by all fields but the `last`, for which these are tried.
REACH = 32


class Recorded:
    """The choice among a class's configs, for the sizes that meet the guards."""

    def __init__(self, schedule: type[Schedule], written: bytes) -> None:
        self.schedule = schedule
        about, self._arrays = Arrays.read(written)
        self._code, numbers = (self._arrays.found[about[name]] for name in ("code", "numbers"))
        self._numbers = numbers.astype(np.float64)
        self._addresses = self._code.ctypes.data, len(self._code), self._numbers.ctypes.data, len(numbers)
        self._tables = about["tables"]
        self._about = about["parts"]
        self._kept: list[Any] = []
        self._configs: dict[tuple[Any, ...], Schedule] = {}
        self._parts = (Part * len(self._about))(
            *(instructions.part(one, self._arrays, self._kept) for one in self._about)
        )
        self.last = combinations(schedule)

    def best(self, choose: Any, sizes: Sequence[int], reach: int, count: int) -> list[Told] | None:
        """The best configs at sizes and strides in the order of `sizes_of`, the fastest first; None where a guard fails."""
        (found,) = self.bests(choose, [sizes], reach, count)
        return found

    def bests(self, choose: Any, sizes: Sequence[Sequence[int]], reach: int, count: int) -> list[list[Told] | None]:
        """As `best`, at many sizes and strides."""
        problems, inputs = len(sizes), len(sizes[0])
        given = (ctypes.c_double * (problems * inputs))(*itertools.chain.from_iterable(sizes))
        found, there = (Found * (problems * count))(), (ctypes.c_int32 * problems)()
        choose(
            *self._addresses, given, inputs, problems, self._parts, len(self._parts), len(self._tables), reach, count,
            found, there,
        )  # fmt: skip
        return [
            None if n < 0 else [(self._config(one), one.seconds) for one in found[i * count : i * count + n]]
            for i, n in enumerate(there)
        ]

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

    def bests(self, sizes: Sequence[Sequence[int]], reach: int, count: int) -> list[list[Told] | None]:
        """As `kgen.tuner.best.by_columns` at each of these sizes; None where it cannot be told this way, or not yet."""
        told: list[list[Told] | None] = [None] * len(sizes)
        choose = chooser.function()
        if choose is None or not self._possible:
            return told
        if not self.found and (data := found_on_disk(self._schedule, ("recorded", self._of), self._target)):
            self.found.append(Recorded(self._schedule, data))
        for recorded in [*self.found]:
            left = [place for place, found in enumerate(told) if found is None]
            if not left:
                break
            for place, found in zip(left, recorded.bests(choose, [sizes[place] for place in left], reach, count)):
                told[place] = found
        return told

    def record(self, problem: NormalProblem, reach: int, chosen: list[Schedule]) -> None:
        """Has one more recording made, for sizes such as this problem's; the first of a class is kept."""
        if chooser.function() and self._possible and self._making.acquire(blocking=False):
            threads().submit(self._make, problem, reach, chosen)

    def _make(self, problem: NormalProblem, reach: int, chosen: list[Schedule]) -> None:
        try:
            known = problem_class(self._schedule, problem, self._target)

            def written() -> bytes:
                made = Recorder(known, problem, self._target).written()
                told = Recorded(self._schedule, made).best(chooser.function(), sizes_of(problem), reach, len(chosen))
                if chosen and [config for config, _ in told or ()] != chosen:
                    raise NotTraced("another choice than array by array")
                return made

            of = ("recorded", self._of)
            data = written() if self.found else kept(self._schedule, of, self._target, written)
            if len(self.found) >= MOST:
                self.found.clear()
            self.found.insert(0, Recorded(self._schedule, data))
        except TypeError:  # what Python does with an int alone, and NotTraced
            self._possible = bool(self.found)
        finally:
            self._making.release()


@cache
def threads() -> ThreadPoolExecutor:
    """The thread that makes recordings, one after another."""
    return ThreadPoolExecutor(1, thread_name_prefix="kgen-recorded")


_known: dict[tuple[type[Schedule], Hashable, Target], _Recordings] = {}


def class_key(
    schedule: type[Schedule], problem: NormalProblem, target: Target
) -> tuple[type[Schedule], Hashable, Target]:
    """What a recording is of: a class, the form of its problems, and the constants of models as they are."""
    return schedule, (schedule.class_of(problem), form_of(problem), machines.digest()), target


def _recordings(schedule: type[Schedule], problem: NormalProblem, target: Target) -> _Recordings:
    key = class_key(schedule, problem, target)
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = _Recordings(*key)
    return found


def best(schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, count: int) -> list[Told] | None:
    """The best configs of the class of a problem with their modelled seconds; None where no recording tells them, or not yet."""
    (found,) = bests(schedule, problem, target, [sizes_of(problem)], reach, count)
    return found


def bests(
    schedule: type[Schedule],
    problem: NormalProblem,
    target: Target,
    sizes: Sequence[Sequence[int]],
    reach: int,
    count: int,
) -> list[list[Told] | None]:
    """As `best`, at each of these sizes and strides of the problem's class, in the order of `sizes_of`."""
    return _recordings(schedule, problem, target).bests(sizes, reach, count)


def record(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, chosen: list[Schedule]
) -> None:
    """Has a thread record the choice for the class of a problem, of which array by array these were `chosen`."""
    _recordings(schedule, problem, target).record(problem, reach, chosen)


def wait() -> None:
    """Until what is being recorded is there."""
    threads().submit(lambda: None).result()
