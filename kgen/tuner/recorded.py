"""Recorded: the choice among a class's configs as arithmetic that C++ runs, in a tenth of the time it takes array by array.

`kgen.tuner.best` says what is chosen. Here the rules and the model are run once with a traced problem (`kgen.tuner.traced`), and
what they compute becomes programs for each table (`kgen.tuner.instructions`): which rows are valid, how long these take with the
plain values of the `last` fields, and how long the best of them with all. A recording serves the sizes for which its guards hold;
for others there is another. Where a schedule cannot be traced, or there is no compiler, the choice is made array by array.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import chooser, instructions
from kgen.tuner.columns import Labels, ProblemClass, Table, problem_class
from kgen.tuner.instructions import Arrays, Found, Instructions, Part, Rows
from kgen.tuner.kept import found_on_disk, kept
from kgen.tuner.traced import NotTraced, Trace, Traced, form_of, sizes_of, traced
from kgen.tuning_db import machines

#: Recordings of a class, and classes, that are kept.
_MOST = 64
#: The threads whose calls are under way.
_calling: set[int] = set()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While a thread is in here recordings hardly go on: beside one, which keeps the interpreter's lock for 5 ms at a time, a
    first call of 3 ms took 20 to 40."""
    thread = threading.get_ident()
    _calling.add(thread)
    try:
        yield
    finally:
        _calling.discard(thread)


def _rest() -> None:
    """Waits until no call is under way, or 20 ms: between two steps of a recording, a millisecond or two each."""
    until = time.monotonic() + 0.02
    while _calling and time.monotonic() < until:
        time.sleep(0.001)


@dataclass(frozen=True)
class _Variant:
    """Rows of a table with values of the fields of `by_size`: which are valid, and with which values of `last` fields."""

    table: int
    variant: int
    fields: dict[str, Any]
    valid: Any
    last: Any
    misfit: Any
    seconds: Any


class _Recorder:
    """Rules and model of a class as they are computed for a problem."""

    def __init__(self, known: ProblemClass, problem: NormalProblem, target: Target) -> None:
        self.known = known
        self.schedule = known.schedule
        self.trace, made = traced(problem)
        self.last = _combinations(self.schedule)
        with np.errstate(all="ignore"):  # of rows that are not valid
            self.variants = [
                variant
                for place, table in enumerate(known.tables)
                if table.count
                for variant in self._variants(place, table, made, target)
            ]

    def _variants(self, place: int, table: Table, problem: NormalProblem, target: Target) -> Iterator[_Variant]:
        """A table's rows with their values of `by_size`, as `ProblemClass.of` makes them."""
        schedule, steps = self.schedule, self.known.steps
        base = _standing(table).as_base()
        shape = base.of_shape()
        found: list[tuple[dict[str, Any], Table, Any]] = [
            ({}, shape, self._mask(shape, steps[0] if steps else (), problem, target))
        ]
        for field, rules in zip(schedule.by_size, steps[1:]):
            more = []
            for fields, rows, mask in found:
                values = schedule.partial(rows).worth(field, problem, target)
                whole = values is schedule.fields[field].values
                for value in values:
                    child = Table(schedule, {**rows.fixed}, {**rows.own, field: value}, rows.count, rows.bases)
                    child.found.update(rows.found)
                    there = mask if whole or len(values) == 1 else mask & (value != 0)
                    more.append(({**fields, field: value}, child, there & self._mask(child, rules, problem, target)))
            found = more
        for number, (fields, rows, mask) in enumerate(found):
            _rest()
            sized = rows.as_base()
            config = schedule.partial(sized)
            misfit = config.misfit(problem, target)
            last = Table(schedule, sized.fixed, {**sized.own, **self._last_columns()}, sized.count, sized.bases)
            of_last = self._mask(last, itertools.chain(*steps[1 + len(schedule.by_size) :]), problem, target)
            _rest()
            seconds = schedule.partial(last).estimate(problem, target)
            yield _Variant(place, number, fields, mask, of_last, misfit, seconds)

    def _last_columns(self) -> dict[str, Any]:
        made = {}
        for place, name in enumerate(self.schedule.last):
            values = self.schedule.fields[name].values
            codes = np.array([[values.index(row[place]) for row in self.last]], dtype=np.uint8)
            texts = isinstance(values[0], str)
            made[name] = Labels(tuple(map(str, values)), codes) if texts else np.array(values)[codes]
        return made

    def _mask(self, table: Table, rules: Iterable[str], problem: NormalProblem, target: Target) -> Any:
        config = self.schedule.partial(table)
        mask: Any = np.True_
        for name in rules:
            _rest()
            mask = mask & self.schedule.rules[name](config, problem, target)
        return mask

    def written(self) -> bytes:
        """The recording, as `Recorded` takes it."""
        trace, arrays = self.trace, Arrays()
        programs = [_programs(trace, variant) for variant in self.variants]
        code, numbers = instructions.numbers(trace)
        rows: dict[int, Rows] = {}
        parts = []
        for variant, (valid, plain, whole) in zip(self.variants, programs):
            place, table = variant.table, self.known.tables[variant.table]
            alike = [one for one, other in zip(programs, self.variants) if other.table == place]
            if place not in rows:
                rows[place] = Rows(trace, table.count, len(self.last), [one for one, _, _ in alike], arrays)
            mine = rows[place]
            part: dict[str, Any] = {
                "begins": mine.begins,
                "places": mine.places,
                "groups": mine.groups,
                "last": len(self.last),
                "table": place,
                "variant": variant.variant,
                "variants": len(alike),
                "fields": {name: value if isinstance(value, str) else None for name, value in variant.fields.items()},
            }
            _rest()
            for name, one in {"valid": valid, "plain": plain, "whole": whole}.items():
                part[name] = one.described(arrays, mine.columns(one.columns, one is valid, arrays))
            parts.append(part)
        about = {
            "code": arrays.add(code),
            "numbers": arrays.add(numbers),
            "inputs": len(trace.inputs),
            "parts": parts,
            "tables": [self._fields(table, arrays) for table in self.known.tables],
        }
        return arrays.written(about)

    def _fields(self, table: Table, arrays: Arrays) -> dict[str, Any]:
        """Of a table's other fields the value, or in a list the place of their column: of numbers, or of places in the domain."""
        found: dict[str, Any] = {}
        for name in self.schedule.fields:
            if name not in (*self.schedule.by_size, *self.schedule.last):
                column = table[name]
                if isinstance(column, Labels):
                    column = column.codes
                found[name] = [arrays.add(column)] if isinstance(column, np.ndarray) else column
        return found


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
        self._parts = (Part * len(self._about))(
            *(instructions.part(one, self._arrays, self._kept) for one in self._about)
        )
        self.last = _combinations(schedule)

    def best(self, choose: Any, problem: NormalProblem, reach: int, count: int) -> list[Schedule] | None:
        """The best configs, the fastest first; None where a guard does not hold."""
        numbers = self._numbers.copy()
        numbers[: self._inputs] = sizes_of(problem)
        found = (Found * count)()
        there = choose(
            self._code.ctypes.data, len(self._code), numbers.ctypes.data, self._parts, len(self._parts),
            len(self._tables), reach, count, found,
        )  # fmt: skip
        return None if there < 0 else [self._config(one) for one in found[:there]]

    def _config(self, found: Found) -> Schedule:
        schedule, about = self.schedule, self._about[found.part]
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


def _combinations(schedule: type[Schedule]) -> list[tuple[Any, ...]]:
    """The values of the `last` fields, of each combination."""
    return [*itertools.product(*(schedule.fields[name].values for name in schedule.last))]


def _typed(schedule: type[Schedule], name: str, value: Any) -> Any:
    return type(schedule.fields[name].values[0])(value)


def _standing(table: Table) -> Table:
    """A class's table with its columns upright, so that they meet those of the `last` fields in all combinations."""

    def upright(column: Any) -> Any:
        if isinstance(column, Labels):
            return Labels(column.values, column.codes.reshape(-1, 1))
        return column.reshape(-1, 1) if isinstance(column, np.ndarray) else column

    return Table(table.schedule, table.fixed, {name: upright(table[name]) for name in table.own}, table.count)


def _programs(trace: Trace, variant: _Variant) -> tuple[Instructions, Instructions, Instructions]:
    """Whether rows are valid; seconds with plain `last` fields, misfits; whether such are valid, seconds, the other fields."""
    _rest()
    so_far, term = [], trace.of(np.True_)
    for place in _terms(trace, trace.of(variant.valid)):
        term = trace.note("logical_and", Traced(trace, term), Traced(trace, place)).place
        so_far.append(term)
    seconds, misfit = trace.of(variant.seconds), trace.of(variant.misfit)
    fields = [trace.of(0 if isinstance(value, str) else value) for value in variant.fields.values()]
    return (
        Instructions(trace, [term], so_far),
        Instructions(trace, [seconds, misfit]),
        Instructions(trace, [trace.of(variant.last), seconds, *fields]),
    )


def _terms(trace: Trace, place: int) -> Iterator[int]:
    """What all has to hold for a conjunction, in order."""
    node = trace.nodes[place]
    if node.op == "logical_and":
        for arg in node.args:
            yield from _terms(trace, arg)
    else:
        yield place


class _Recordings:
    """The recordings of a class, for problems of one form and the constants of models as they are.

    What is not kept on disk is made by a thread: no call waits for it.
    """

    def __init__(self, schedule: type[Schedule], of: Hashable, target: Target) -> None:
        self._schedule, self._of, self._target = schedule, of, target
        self.found: list[Recorded] = []
        self._possible = True
        self._making = threading.Lock()

    def best(self, problem: NormalProblem, reach: int, count: int) -> list[Schedule] | None:
        """As `kgen.tuner.best.by_columns`; None where it cannot be told this way, or not yet."""
        choose = chooser.function()
        if choose is None or not self._possible:
            return None
        if not self.found and (data := found_on_disk(self._schedule, ("recorded", self._of), self._target)):
            self.found.append(Recorded(self._schedule, data))
        for recorded in self.found:
            told = recorded.best(choose, problem, reach, count)
            if told is not None:
                return told
        return None

    def record(self, problem: NormalProblem, reach: int, chosen: list[Schedule]) -> None:
        """Has one more recording made, for sizes such as this problem's; the first of a class is kept."""
        if chooser.function() and self._possible and self._making.acquire(blocking=False):
            _threads().submit(self._make, problem, reach, chosen)

    def _make(self, problem: NormalProblem, reach: int, chosen: list[Schedule]) -> None:
        try:
            known = problem_class(self._schedule, problem, self._target)

            def written() -> bytes:
                made = _Recorder(known, problem, self._target).written()
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
    """As `kgen.tuner.best.by_columns`; None where it cannot be told this way, or not yet."""
    return _recordings(schedule, problem, target).best(problem, reach, count)


def record(
    schedule: type[Schedule], problem: NormalProblem, target: Target, reach: int, chosen: list[Schedule]
) -> None:
    """Has a thread record the choice for the class of a problem, of which array by array these were `chosen`."""
    _recordings(schedule, problem, target).record(problem, reach, chosen)


def wait() -> None:
    """Until what is being recorded is there."""
    _threads().submit(lambda: None).result()
