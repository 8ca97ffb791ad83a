"""Recorded: the choice among a class's configs as arithmetic, run by C++, in a tenth of the time that it takes array by array.

`kgen.tuner.columns` says what is chosen: rules, model, order. Here both are run once with a traced problem (`kgen.tuner.traced`) and
what they compute is written down as programs for each table: which rows are valid, how long they take with the plain values of the `last` fields, and
how long the best of them with all. cpp/choose.cpp runs them. A recording serves the sizes for which its guards hold; another is made
for others. Where a schedule cannot be traced, or there is no compiler, the choice is made array by array.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kgen.codegen import settings
from kgen.codegen.cache_folder import open_folder, using
from kgen.codegen.host_compiler import is_built, produce, toolchain
from kgen.dsl.errors import KgenError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner.columns import Labels, ProblemClass, Table
from kgen.tuner.traced import OPS, NotTraced, Trace, Traced, form_of, sizes_of, traced

_SOURCE = Path(__file__).parent / "cpp" / "choose.cpp"
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-w", "-fvisibility=hidden")
#: `FIELDS` in choose.cpp.
_FIELDS = 8
_GUARD, _ALIVE = len(OPS), len(OPS) + 1
_CODES = {op: code for code, op in enumerate(OPS)}
#: Recordings of a class that are kept.
_MOST = 64


class _Column(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("row_stride", ctypes.c_int32), ("last_stride", ctypes.c_int32)]


class _Program(ctypes.Structure):
    _fields_ = [
        ("columns", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("column_count", "registers", "count")),
        ("results", ctypes.c_int32 * (2 + _FIELDS)),
    ]


class _Part(ctypes.Structure):
    _fields_ = [
        ("begins", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("groups", "last", "table", "variant", "variants", "field_count")),
        *((name, _Program) for name in ("valid", "plain", "whole")),
    ]


class _Found(ctypes.Structure):
    _fields_ = [
        ("misfit", ctypes.c_double),
        ("seconds", ctypes.c_double),
        ("order", ctypes.c_int64),
        ("part", ctypes.c_int32),
        ("row", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("fields", ctypes.c_double * _FIELDS),
    ]


@dataclass(frozen=True)
class _Variant:
    """Rows of a table with a value of each field of `by_size`: which of them are valid, and with which values of `last` fields."""

    table: int
    variant: int
    fields: dict[str, Any]
    valid: Any
    last: Any
    misfit: Any
    seconds: Any


class Recorded:
    """The choice among a class's configs, for the sizes that meet the guards."""

    def __init__(self, known: ProblemClass, problem: NormalProblem, target: Target) -> None:
        self.known = known
        self.schedule = known.schedule
        trace, made = traced(problem)
        #: The values of the `last` fields, a combination each.
        self.last = [*itertools.product(*(self.schedule.fields[name].values for name in self.schedule.last))]
        with np.errstate(all="ignore"):  # of rows that are not valid
            found = [
                variant
                for place, table in enumerate(known.tables)
                if table.count
                for variant in self._variants(place, table, made, target)
            ]
        self._inputs = len(trace.inputs)
        self._write(trace, found)

    def _variants(self, place: int, table: Table, problem: NormalProblem, target: Target) -> Iterator[_Variant]:
        """A table's rows with their values of `by_size`, as `ProblemClass.of` makes them."""
        schedule, steps = self.schedule, self.known.steps
        base = _standing(table).as_base()
        shape = base.of_shape()
        found = [({}, shape, self._mask(shape, steps[0] if steps else (), problem, target))]
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
            sized = rows.as_base()
            config = schedule.partial(sized)
            misfit = config.misfit(problem, target)
            last = Table(schedule, sized.fixed, {**sized.own, **self._last_columns()}, sized.count, sized.bases)
            rules = itertools.chain(*steps[1 + len(schedule.by_size) :])
            of_last = self._mask(last, rules, problem, target)
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

    def _mask(self, table: Table, rules: Any, problem: NormalProblem, target: Target) -> Any:
        config, mask = self.schedule.partial(table), np.True_
        for name in rules:
            mask = mask & self.schedule.rules[name](config, problem, target)
        return mask

    def _write(self, trace: Trace, variants: list[_Variant]) -> None:
        """Lays out numbers and programs for choose.cpp."""
        self.variants = variants
        parts = [self._programs(trace, variant) for variant in variants]
        code: list[tuple[int, ...]] = []
        for place, node in enumerate(trace.nodes):
            if node.op and node.is_number:
                code.append((_CODES[node.op], place, *node.args, *(0,) * (3 - len(node.args))))
            if place in trace.guards:
                code.append((_GUARD, 0, place, int(trace.guards[place]), 0))
        self._code = np.array(code, dtype=np.int32).reshape(-1, 5)
        self._numbers = np.zeros(len(trace.nodes))
        for place, node in enumerate(trace.nodes):
            if node.is_number and not node.op and not node.args:
                self._numbers[place] = node.value
        self._kept: list[Any] = []
        self._places: list[np.ndarray] = []
        self._parts = (_Part * len(parts))(*(self._part(trace, *part) for part in zip(variants, parts)))

    def _programs(self, trace: Trace, variant: _Variant) -> tuple[_Instructions, ...]:
        """Which rows are valid; their seconds with plain `last` fields; which of these fields are, with the seconds and all others."""
        valid, term = [], trace.of(np.True_)
        for place in _terms(trace, trace.of(variant.valid)):
            term = trace.note("logical_and", Traced(trace, term), Traced(trace, place)).place
            valid.append(term)
        seconds, misfit = trace.of(variant.seconds), trace.of(variant.misfit)
        fields = [0 if isinstance(value, str) else trace.of(value) for value in variant.fields.values()]
        return (
            _Instructions(trace, valid[-1:], valid),
            _Instructions(trace, [seconds, misfit]),
            _Instructions(trace, [trace.of(variant.last), seconds, *fields]),
        )

    def _part(self, trace: Trace, variant: _Variant, programs: tuple[_Instructions, ...]) -> _Part:
        rows = self.known.tables[variant.table].count
        columns = {at: np.asarray(trace.nodes[at].value, dtype=np.float64) for one in programs for at in one.columns}
        if any(
            value.shape not in {(n, m) for n in (1, rows) for m in (1, len(self.last))} for value in columns.values()
        ):
            raise NotTraced("a column of another shape")
        # Rows whose validity is decided alike lie together.
        deciding = [columns[at][:, 0] for at in programs[0].columns if len(columns[at]) == rows]
        places = np.lexsort(deciding) if deciding else np.arange(rows)
        first = np.zeros(rows, dtype=bool)
        first[0] = True
        for column in deciding:
            first[1:] |= np.diff(column[places]) != 0
        begins = np.append(np.flatnonzero(first), rows).astype(np.int32)
        made = (
            self._program(trace, programs[0], columns, rows, places[begins[:-1]]),
            *(self._program(trace, one, columns, rows, places) for one in programs[1:]),
        )
        self._kept += [begins, places]
        self._places.append(places)
        variants = 1 + max(one.variant for one in self.variants if one.table == variant.table)
        return _Part(
            begins.ctypes.data, places.ctypes.data, len(begins) - 1, len(self.last), variant.table, variant.variant, variants,
            len(variant.fields), *made,
        )  # fmt: skip

    def _program(
        self, trace: Trace, one: _Instructions, columns: dict[int, np.ndarray], rows: int, places: np.ndarray
    ) -> _Program:
        """A program over some rows of the columns."""
        described = (_Column * len(one.columns))()
        for number, at in enumerate(one.columns):
            value = columns[at]
            by_row, by_last = len(value) == rows > 1, value.shape[1] > 1
            value = np.ascontiguousarray(value[places] if by_row else value)
            described[number] = _Column(value.ctypes.data, value.shape[1] if by_row else 0, int(by_last))
            self._kept.append(value)
        code = one.code(trace)
        self._kept += [described, code]
        made = _Program(ctypes.addressof(described), code.ctypes.data, len(described), one.registers, len(code))
        for place, result in enumerate(one.results):
            made.results[place] = one.operand(trace, result)
        return made

    def best(self, choose: Any, problem: NormalProblem, reach: int, count: int) -> list[Schedule] | None:
        """The best configs, the fastest first; None where a guard does not hold."""
        numbers = self._numbers.copy()
        numbers[: self._inputs] = sizes_of(problem)
        found = (_Found * count)()
        there = choose(
            self._code.ctypes.data, len(self._code), numbers.ctypes.data, self._parts, len(self._parts),
            len(self.known.tables), reach, count, found,
        )  # fmt: skip
        return None if there < 0 else [self._config(one) for one in found[:there]]

    def _config(self, found: _Found) -> Schedule:
        schedule, variant = self.schedule, self.variants[found.part]
        table, values = self.known.tables[variant.table], dict[str, Any]()
        row = self._places[found.part][found.row]
        values |= zip(schedule.last, self.last[found.last])
        for place, (name, value) in enumerate(variant.fields.items()):
            values[name] = value if isinstance(value, str) else _typed(schedule, name, found.fields[place])
        for name in schedule.fields:
            if name not in values:
                column = table[name]
                if isinstance(column, Labels):
                    values[name] = column.values[column.codes[row]]
                else:
                    given = column[row] if isinstance(column, np.ndarray) else column
                    values[name] = given if isinstance(given, str) else _typed(schedule, name, given)
        return schedule.partial({name: values[name] for name in schedule.fields})


def _typed(schedule: type[Schedule], name: str, value: Any) -> Any:
    return type(schedule.fields[name].values[0])(value)


def _standing(table: Table) -> Table:
    """A class's table with its columns upright, so that they meet those of the `last` fields in all combinations."""

    def upright(column: Any) -> Any:
        if isinstance(column, Labels):
            return Labels(column.values, column.codes.reshape(-1, 1))
        return column.reshape(-1, 1) if isinstance(column, np.ndarray) else column

    return Table(table.schedule, table.fixed, {name: upright(table[name]) for name in table.own}, table.count)


def _terms(trace: Trace, place: int) -> Iterator[int]:
    """What all has to hold for a conjunction, in order."""
    node = trace.nodes[place]
    if node.op == "logical_and":
        for arg in node.args:
            yield from _terms(trace, arg)
    else:
        yield place


class _Instructions:
    """The instructions that give some results; `questions` are asked on the way: whether they hold for any row."""

    def __init__(self, trace: Trace, results: Sequence[int], questions: Sequence[int] = ()) -> None:
        self.results = list(results)
        self._order: list[int] = []
        #: The columns that are read, numbered.
        self.columns: dict[int, int] = {}
        self._questions = set(questions)
        seen = set[int]()
        for result in (*questions, *results):
            self._visit(trace, result, seen)
        self._registers: dict[int, int] = {}
        self.registers = self._allocate(trace)

    def _visit(self, trace: Trace, place: int, seen: set[int]) -> None:
        stack = [(place, False)]
        while stack:
            at, done = stack.pop()
            node = trace.nodes[at]
            if done:
                self._order.append(at)
            elif not node.op and not node.is_number:
                self.columns.setdefault(at, len(self.columns))
            elif at not in seen and not node.is_number:
                seen.add(at)
                stack.append((at, True))
                stack += ((arg, False) for arg in reversed(node.args))

    def _allocate(self, trace: Trace) -> int:
        """Gives each value a register; one that is read for the last time leaves its own to the next. How many there are."""
        last = {arg: i for i, at in enumerate(self._order) for arg in trace.nodes[at].args}
        last |= dict.fromkeys(self.results, len(self._order))
        free: list[int] = []
        count = 0
        for i, at in enumerate(self._order):
            if not free:
                free.append(count)
                count += 1
            self._registers[at] = free.pop()
            free += {self._registers[arg] for arg in trace.nodes[at].args if last[arg] == i and arg in self._registers}
            if last.get(at, -1) < i:
                free.append(self._registers[at])
        return count

    def operand(self, trace: Trace, place: int) -> int:
        """What an instruction names a value by: its index and, in the lowest bits, `Kind` of choose.cpp."""
        node = trace.nodes[place]
        if node.is_number:
            return place << 2 | 1
        return self._registers[place] << 2 if node.op else self.columns[place] << 2 | 2

    def code(self, trace: Trace) -> np.ndarray:
        """All instructions, a row each: op, register, operands."""
        found = []
        for at in self._order:
            node = trace.nodes[at]
            args = [self.operand(trace, arg) for arg in node.args]
            found.append((_CODES[node.op], self._registers[at], *args, *args[:1] * (3 - len(args))))
            if at in self._questions:
                found.append((_ALIVE, 0, self.operand(trace, at), 0, 0))
        return np.array(found, dtype=np.int32).reshape(-1, 5)


class Recordings:
    """The recordings of a class, for problems of one form."""

    def __init__(self) -> None:
        self._found: list[Recorded] = []
        self._possible = True

    def best(
        self, known: ProblemClass, problem: NormalProblem, target: Target, reach: int, count: int
    ) -> list[Schedule] | None:
        """As `kgen.tuner.best.by_columns`; None where it cannot be told this way."""
        choose = _function()
        if choose is None or not self._possible:
            return None
        for recorded in self._found:
            found = recorded.best(choose, problem, reach, count)
            if found is not None:
                return found
        try:
            recorded = Recorded(known, problem, target)
        except TypeError:  # what Python does with an int alone, and NotTraced
            self._possible = False
            return None
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found.insert(0, recorded)
        return recorded.best(choose, problem, reach, count)


def best(known: ProblemClass, problem: NormalProblem, target: Target, reach: int, count: int) -> list[Schedule] | None:
    """As `kgen.tuner.best.by_columns`; None where it cannot be told this way."""
    form = form_of(problem)
    found = known.recordings.get(form)
    if found is None:
        found = known.recordings[form] = Recordings()
    return found.best(known, problem, target, reach, count)  # type: ignore[no-any-return]


@cache
def _function() -> Any:
    try:
        path = _built()
    except KgenError:
        return None
    function = ctypes.CDLL(str(path)).kgen_choose
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *[ctypes.c_int32] * 4,
        ctypes.c_void_p,
    ]
    return function


def _built() -> Path:
    command = [toolchain().path, *_FLAGS, *toolchain().cpu_flags, str(_SOURCE)]
    content = hashlib.sha256(_SOURCE.read_bytes())
    for part in (*command, toolchain().version):
        content.update(part.encode() + b"\0")
    folder = (settings.cache_dir() / "choices" / content.hexdigest()[:16]).absolute()
    open_folder(folder)
    target = folder / "kgen_choose.so"
    if not is_built(target):
        with using(folder):
            produce(target, command, "the choice of configs")
    return target
