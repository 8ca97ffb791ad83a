"""Best: the configs of a schedule that the model likes best for a problem, told by a recording or array by array.

A recording says the same as `by_columns`, which is what is meant, and serves where nothing can be recorded.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import recorded
from kgen.tuner.columns import ProblemClass, Table, problem_class, seconds_of
from kgen.tuner.recorded import Told

Config = TypeVar("Config", bound=Schedule)

#: Modelled seconds, a table, the number of a row.
_Row = tuple[float, Table, int]


def best(schedule: type[Config], problem: NormalProblem, target: Target, count: int = 1) -> list[Config]:
    """The configs of the least modelled time, the fastest first, of equals the first of their table.

    Values of `last` fields are tried for the best by all others. ConfigError where no config is valid.
    """
    return [config for config, _ in with_seconds(schedule, problem, target, count)]


def with_seconds(
    schedule: type[Config], problem: NormalProblem, target: Target, count: int = 1
) -> list[tuple[Config, float]]:
    """As `best`, with their modelled seconds."""
    found: list[Told] = []
    if schedule.target.runs_on(target.arch) and schedule.applies(problem):
        reach = max(recorded.REACH, count) if schedule.last else count
        told = recorded.best(schedule, problem, target, reach, count) if schedule.recorded else None
        found = by_columns(schedule, problem, target, reach, count) if told is None else told
        if told is None and found and schedule.recorded:
            recorded.record(schedule, problem, target, reach, [config for config, _ in found])  # for those to come
    if not found:
        raise ConfigError(
            f"no {schedule.__name__} config is valid for {problem} on {target}{_missing(schedule, problem, target)}"
        )
    return found  # type: ignore[return-value]  # of this schedule, as its tables are


def by_columns(schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, count: int) -> list[Told]:
    """The best `count` of what the best `reach` with plain `last` fields give with all values of those."""
    known = problem_class(schedule, problem, target)
    found: list[_Row] = []
    plain = {name: known.schedule.fields[name].values[0] for name in known.schedule.last}
    for table in _fitting(known.of(problem, target), problem, target):
        table.update(plain)
        found += _least(table, seconds_of(table, problem, target), reach)
    found = sorted(found, key=lambda entry: entry[0])[:reach]
    if known.schedule.last:
        found = _with_last(known, found, problem, target, count)
    return [(table.config(row), seconds) for seconds, table, row in found]


def _missing(schedule: type[Schedule], problem: NormalProblem, target: Target) -> str:
    """What the plainest config of a schedule that serves the problem breaks."""
    if not (schedule.target.runs_on(target.arch) and schedule.applies(problem)):
        return ""
    plain = schedule(**{name: field.values[0] for name, field in schedule.fields.items()})
    told = [rejection.reason for rejection in plain.broken(problem, target)]
    return f"; expected: {'; '.join(told)}" if told else ""


def _with_last(known: ProblemClass, top: list[_Row], problem: NormalProblem, target: Target, count: int) -> list[_Row]:
    """The best of these rows with all values of the `last` fields."""
    found: list[_Row] = []
    for number in dict.fromkeys(id(table) for _, table, _ in top):
        mine = [(table, row) for _, table, row in top if id(table) == number]
        whole = known.completed(mine[0][0].rows(np.array([row for _, row in mine])), problem, target)
        found += _least(whole, seconds_of(whole, problem, target), count) if whole.count else []
    return sorted(found, key=lambda entry: entry[0])[:count]


def _fitting(tables: list[Table], problem: NormalProblem, target: Target) -> list[Table]:
    """The rows whose misfit is the least there is."""
    misfits = [table.schedule.partial(table).misfit(problem, target) for table in tables]
    least = min((np.min(misfit) for misfit in misfits), default=0)
    found = (table.kept(misfit <= least) for table, misfit in zip(tables, misfits))
    return [table for table in found if table.count]


def _least(table: Table, seconds: np.ndarray, count: int) -> list[_Row]:
    """The rows of the least seconds, in order."""
    rows = np.arange(len(seconds))
    if count < len(seconds):  # most need no order
        rows = np.flatnonzero(seconds <= np.partition(seconds, count - 1)[count - 1])
    rows = rows[np.argsort(seconds[rows], kind="stable")[:count]]
    return [(float(seconds[row]), table, int(row)) for row in rows]
