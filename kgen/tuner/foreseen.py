"""Foreseen: the defaults of a weight's products with any number of rows, told before they are asked.

Every prompt has another length, so that most first calls differ from one before in the number of rows, M, alone. M is rounded
up to one of 671 numbers: a product gets the config that is the best by the model at that one, which is valid at fewer rows too,
and by the model 0.02% behind the best at M in the mean (docs/notes/search.md). Where a weight was asked for a second one, a
thread has C++ tell those of all. What is no such line is asked as it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from kgen.dsl.problem import NormalProblem, Operand
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import recorded
from kgen.tuner.best import timed
from kgen.tuner.traced import sizes_of
from kgen.tuning_db import machines

Config = TypeVar("Config", bound=Schedule)

#: Up to so many rows they are rounded up to a multiple of the step; more are not.
_STEPS = ((256, 1), (1024, 8), (4096, 16), (8192, 32))
_ROWS = [*chain(*(range(low + step, high + 1, step) for (low, _), (high, step) in zip(((1, 1), *_STEPS), _STEPS)))]
#: Lines that are kept.
_MOST = 256


class _Line:
    """Problems that differ in M alone: of each rounded M that is known the best config, and its modelled seconds."""

    def __init__(self) -> None:
        self.told: dict[int, recorded.Told] = {}
        self.begun = False


_lines: dict[Hashable, _Line] = {}


def first(schedule: type[Config], problem: NormalProblem, target: Target) -> tuple[Config, float]:
    """The default of a problem to which the schedule applies, with its modelled seconds. ConfigError where no config is valid."""
    places = rows_of(problem)
    if places is None:
        return timed(schedule, problem, target)[0]
    sizes = sizes_of(problem)
    rows = rounded(sizes[places[0]])
    for place in places:
        sizes[place] = 0
    # Of the sizes and strides that are left, and the alignments, follow the class and the form.
    aligned = tuple(o.align for o in problem.operands)
    key = schedule, problem.graph.digest, tuple(sizes), aligned, target, machines.digest()
    line = _lines.get(key)
    if line is None:
        if len(_lines) >= _MOST:
            _lines.clear()
        line = _lines[key] = _Line()
    told = line.told.get(rows)
    if told is None:
        at = with_rows(problem, rows)
        told = line.told[rows] = timed(schedule, at, target)[0]
        if len(line.told) > 1 and not line.begun:
            line.begun = True
            recorded.threads().submit(_foresee, line, schedule, at, target)
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


def _foresee(line: _Line, schedule: type[Schedule], problem: NormalProblem, target: Target) -> None:
    """Tells those of the line that nobody asked for yet. Where no recording tells them, what is asked next has it tried again."""
    left = [rows for rows in _ROWS if rows not in line.told]
    places, sizes = rows_of(problem) or [], sizes_of(problem)
    asked = []
    for rows in left:
        one = [*sizes]
        for place in places:
            one[place] = rows
        asked.append(one)
    reach = recorded.REACH if schedule.last else 1
    found = recorded.bests(schedule, problem, target, asked, reach, 1)
    line.told |= {rows: told[0] for rows, told in zip(left, found) if told}
    line.begun = any(found)


def wait() -> None:
    """Until what is being recorded is there, and what is being foreseen."""
    recorded.wait()
