"""Foreseen: the defaults of a weight's products with any number of rows, told before they are asked.

Every prompt has another length, so that most first calls differ from one before in the number of rows, M, alone. M is rounded
up to one of 671 numbers: a product gets the config that is the best by the model at that one, which is valid at fewer rows too,
and by the model at most 0.02% behind the best at M in the mean (docs/notes/search.md). Where a weight was asked for a second
one, a thread has C++ tell those of all, which are kept on disk. Problems that are in no such line are asked as they are.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.problem import NormalProblem, Operand
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import recorded
from kgen.tuner.best import with_seconds
from kgen.tuner.kept import found_on_disk, kept
from kgen.tuner.pauses import rest
from kgen.tuner.recorded import Told
from kgen.tuner.traced import sizes_of
from kgen.tuning_db import machines

Config = TypeVar("Config", bound=Schedule)

#: Up to so many rows they are rounded up to a multiple of the step; more are not.
_STEPS = ((256, 1), (1024, 8), (4096, 16), (8192, 32))
_ROWS = [*chain(*(range(low + step, high + 1, step) for (low, _), (high, step) in zip(((1, 1), *_STEPS), _STEPS)))]
_PLACES = {rows: place for place, rows in enumerate(_ROWS)}
#: A number of rows of each class of Gemv, whose classes tell them apart; and those at which classes are looked at for that.
_FEW = (2, 4, 8)
_PROBED = (2, 3, 4, 5, 8, 9, *(2**i for i in range(4, 14)))
#: Lines that are kept.
_MOST = 256


class _Line:
    """Problems that differ in M alone: of rounded numbers of rows the best configs, and their modelled seconds."""

    def __init__(self, schedule: type[Schedule], all_told: bytes | None) -> None:
        self._schedule = schedule
        self.told: dict[int, Told] = {}
        self._configs: dict[int, Schedule] = {}
        #: What `_written` gives of all numbers; None where nobody foresaw them.
        self.all_told = all_told
        self.begun = all_told is not None

    def at(self, rows: int) -> Told | None:
        """Of a rounded number of rows; None where it is not known."""
        told = self.told.get(rows)
        if told is None and self.all_told is not None:
            count, place = len(_ROWS), _PLACES[rows]
            (config,) = struct.unpack_from("<H", self.all_told, 2 * place)
            if config:
                (seconds,) = struct.unpack_from("<d", self.all_told, 2 * count + 8 * place)
                told = self.told[rows] = self._config(config), seconds
        return told

    def _config(self, place: int) -> Schedule:
        config = self._configs.get(place)
        if config is None:
            assert self.all_told is not None
            values = json.loads(self.all_told[10 * len(_ROWS) :].split(b"\n")[place - 1])
            config = self._configs[place] = self._schedule.partial(values)
        return config


def _written(told: Mapping[int, Told]) -> bytes:
    """Of each of `_ROWS` the place of its config, 0 for none, and its seconds; then a line for each config."""
    places = {config: place for place, config in enumerate(dict.fromkeys(config for config, _ in told.values()), 1)}
    of = [told.get(rows) for rows in _ROWS]
    numbers = struct.pack(f"<{len(of)}H", *(places[one[0]] if one else 0 for one in of))
    numbers += struct.pack(f"<{len(of)}d", *(one[1] if one else 0.0 for one in of))
    return numbers + b"\n".join(json.dumps(config.values).encode() for config in places)


_lines: dict[Hashable, _Line] = {}
#: Graphs and targets whose classes are at hand, or soon.
_at_hand: set[Hashable] = set()


def first(schedule: type[Config], problem: NormalProblem, target: Target) -> tuple[Config, float]:
    """The default of a problem to which the schedule applies, with its modelled seconds. ConfigError where no config is valid."""
    places = rows_of(problem)
    if places is None:
        return with_seconds(schedule, problem, target)[0]
    sizes = sizes_of(problem)
    rows = rounded(sizes[places[0]])
    for place in places:
        sizes[place] = 0
    # All that problems of a line have in common: the other sizes, strides and alignments.
    aligned = tuple(o.align for o in problem.operands)
    of = "foreseen", problem.graph.digest, tuple(sizes), aligned, machines.digest()
    line = _lines.get((schedule, of, target))
    if line is None:
        if len(_lines) >= _MOST:
            _lines.clear()
        line = _lines[schedule, of, target] = _Line(schedule, found_on_disk(schedule, of, target))
        if line.all_told is not None and (problem.graph.digest, target) not in _at_hand:
            _at_hand.add((problem.graph.digest, target))
            recorded.threads().submit(_ask_all, with_seconds, problem, target, (rows, *_FEW))
    told = line.at(rows)
    if told is None:
        at = with_rows(problem, rows)
        told = line.told[rows] = with_seconds(schedule, at, target)[0]
        if len(line.told) > 1 and not line.begun:
            line.begun = True
            recorded.threads().submit(_foresee, line, schedule, at, target, of)
    return told  # type: ignore[return-value]  # of this schedule, as its line is


def rounded(rows: int) -> int:
    """The number of rows that stands for `rows`, as large or larger."""
    step = next((step for most, step in _STEPS if rows <= most), 1)
    return -(-rows // step) * step


def rows_of(problem: NormalProblem) -> list[int] | None:
    """Where in `sizes_of` the number of rows stands; None where something else follows from it, or may.

    Rows are the outermost axis of every operand that has them, so that no stride and no alignment follows from their number.
    """
    rows = problem.sizes["M"]
    others = [n for name, n in problem.bindings if name != "M"]
    if not 1 < rows <= _STEPS[-1][0] or rows in others:
        return None
    places, at = list[int](), 0
    for o in problem.operands:
        outermost = max(o.strides, default=0)
        for axis, (n, stride) in enumerate(zip(o.shape, o.strides)):
            if n == rows and 1 < stride == outermost:
                places.append(at + axis)
            elif n not in others and n != 1:
                return None
        at += 2 * len(o.shape)
    return [*places, at + len(problem.leading) + [name for name, _ in problem.bindings].index("M")]


def with_rows(problem: NormalProblem, rows: int) -> NormalProblem:
    """The problem with another number of rows; `rows_of` tells which there is."""

    def of(o: Operand) -> Operand:
        return replace(o, shape=tuple(rows if n == before else n for n in o.shape))

    before = problem.sizes["M"]
    if rows == before:
        return problem
    bindings = tuple((name, rows if name == "M" else n) for name, n in problem.bindings)
    return replace(problem, operands=tuple(map(of, problem.operands)), bindings=bindings)


def _foresee(line: _Line, schedule: type[Schedule], problem: NormalProblem, target: Target, of: Hashable) -> None:
    """Tells all of a line, and what of few rows may be asked next. Where no recording tells it, it is tried again when another
    number of rows is asked."""
    try:
        _tell_all(line, schedule, problem, target, of)
        _ask_all(first, problem, target, _FEW)
    finally:
        line.begun = line.all_told is not None


def _tell_all(line: _Line, schedule: type[Schedule], problem: NormalProblem, target: Target, of: Hashable) -> None:
    if len({schedule.class_of(with_rows(problem, rows)) for rows in _PROBED}) == 1:
        told = _of_class(schedule, problem, target)
    else:
        told = {}
        for few in (with_rows(problem, rows) for rows in range(2, _FEW[-1] + 1)):
            rest()
            if schedule.applies(few):
                told[few.sizes["M"]] = with_seconds(schedule, few, target)[0]
    if told:
        line.all_told = kept(schedule, of, target, lambda: _written(told))


def _of_class(schedule: type[Schedule], problem: NormalProblem, target: Target) -> dict[int, Told]:
    """The defaults of a problem's class with every number of rows; none where no recording tells them."""
    places, sizes, asked = rows_of(problem) or [], sizes_of(problem), []
    for rows in _ROWS:
        for place in places:
            sizes[place] = rows
        asked.append([*sizes])
    found = recorded.bests(schedule, problem, target, asked, recorded.REACH if schedule.last else 1, 1)
    return {rows: one[0] for rows, one in zip(_ROWS, found) if one}


def _ask_all(
    ask: Callable[[type[Schedule], NormalProblem, Target], object],
    problem: NormalProblem,
    target: Target,
    all_rows: Iterable[int],
) -> None:
    """Asks for the defaults of these numbers of rows by all schedules, so that their classes are at hand.

    It would take some ms of a call to make them, where no process has asked yet, or to read them from disk, where all lines that
    a process has asked for so far were told there.
    """
    for few in (with_rows(problem, rows) for rows in all_rows):
        for schedule in family_of(problem.graph).schedules:
            serves = schedule.recorded and schedule.target.runs_on(target.arch) and schedule.applies(few)
            if serves and schedule.worth_searching(few, target):
                rest()
                with contextlib.suppress(ConfigError):
                    ask(schedule, few, target)


def wait() -> None:
    """Until what is being recorded is there, and what is being foreseen."""
    recorded.wait()
    while any(line.begun and line.all_told is None for line in [*_lines.values()]):
        recorded.wait()
