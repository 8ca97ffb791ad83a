"""Recorder: makes a recording of the choice among a class's configs (`kgen.tuner.recorded`), as arithmetic that C++ runs.

Rules and model are run once with a traced problem (`kgen.tuner.traced`), and what they compute becomes programs for each table
(`kgen.tuner.instructions`): which rows are valid, how long these take with the plain values of the `last` fields, and how long
the best of them with all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import instructions
from kgen.tuner.columns import Labels, ProblemClass, Table
from kgen.tuner.instructions import Arrays, Instructions, Rows
from kgen.tuner.pauses import rest
from kgen.tuner.traced import Trace, Traced, traced


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


class Recorder:
    """Rules and model of a class as they are computed for a problem."""

    def __init__(self, known: ProblemClass, problem: NormalProblem, target: Target) -> None:
        self.known = known
        self.schedule = known.schedule
        self.trace, made = traced(problem)
        self.last = combinations(self.schedule)
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
            rest()
            sized = rows.as_base()
            config = schedule.partial(sized)
            misfit = config.misfit(problem, target)
            last = Table(schedule, sized.fixed, {**sized.own, **self._last_columns()}, sized.count, sized.bases)
            of_last = self._mask(last, itertools.chain(*steps[1 + len(schedule.by_size) :]), problem, target)
            rest()
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
            rest()
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
            rest()
            for name, one in {"valid": valid, "plain": plain, "whole": whole}.items():
                part[name] = one.described(arrays, mine.columns(one.columns, one is valid, arrays))
            parts.append(part)
        about = {
            "code": arrays.add(code),
            "numbers": arrays.add(numbers),
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


def combinations(schedule: type[Schedule]) -> list[tuple[Any, ...]]:
    """The values of the `last` fields, of each combination."""
    return [*itertools.product(*(schedule.fields[name].values for name in schedule.last))]


def _standing(table: Table) -> Table:
    """A class's table with its columns upright, so that they meet those of the `last` fields in all combinations."""

    def upright(column: Any) -> Any:
        if isinstance(column, Labels):
            return Labels(column.values, column.codes.reshape(-1, 1))
        return column.reshape(-1, 1) if isinstance(column, np.ndarray) else column

    return Table(table.schedule, table.fixed, {name: upright(table[name]) for name in table.own}, table.count)


def _programs(trace: Trace, variant: _Variant) -> tuple[Instructions, Instructions, Instructions]:
    """Whether rows are valid; seconds with plain `last` fields, misfits; whether such are valid, seconds, the other fields."""
    rest()
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
