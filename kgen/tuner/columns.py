"""Columns: the configs that a search considers for a problem, as arrays, scored all together by the one text of their model.

A list of configs takes a second to make and to score one by one; a new shape must not wait so long. So the configs of a problem
class (`Schedule.class_of`: dtypes, layouts, alignment) are enumerated once, by the rules that read no sizes, without the fields
whose values depend on sizes. For a shape, the `sized` rules leave rows out, and each field of `by_size` multiplies them by what
is worth considering; both over whole columns. A schedule whose fields hold columns (`Schedule.partial`) answers with columns.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made
from typing import Any

import numpy as np

from kgen.dsl.choice import Undecided, Value
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.tuner.kept import kept
from kgen.tuner.space import Node, Space

#: Sets of rows of a class that are kept.
_MOST = 256
#: Of more configs a search looks at some: to make and to rank so many takes half a second.
_ALL = 65536
#: A place in a domain.
_Code = np.uint8


class Labels:
    """A column of texts, which can be compared with one: places in a domain."""

    __slots__ = ("_known", "codes", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: tuple[str, ...], codes: np.ndarray) -> None:
        self.values, self.codes = values, codes
        self._known: dict[Hashable, np.ndarray] = {}

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, str)
        if other not in self._known:
            self._known[other] = self.codes == (self.values.index(other) if other in self.values else 255)
        return self._known[other]

    def __ne__(self, other: object) -> Any:
        return ~(self == other)

    def __getitem__(self, rows: Any) -> Labels:
        return Labels(self.values, self.codes.take(rows))

    def __len__(self) -> int:
        return len(self.codes)

    def tolist(self) -> list[str]:
        """The texts."""
        return [self.values[code] for code in self.codes.tolist()]

    def chosen(self, values: Mapping[str, Any], other: Any) -> np.ndarray:
        """The value of a table for each text."""
        key = (*values.items(), other)
        if key not in self._known:
            self._known[key] = np.array([values.get(value, other) for value in self.values])[self.codes]
        return self._known[key]


class Table(dict[str, Any]):
    """Configs of one schedule by rows: of each field a column. `Schedule.partial(table)` reads it as the values of a config.

    `fixed` fields are alike in all rows, `own` are columns of this table's. The others, and what is found `once` of a config
    (`kgen.dsl.vector.of_class`, `of_shape`, `of_sizes`), are taken when they are asked for from the tables whose rows these
    are: `bases`, each with the places of the rows in it: that of the class, of the shape, and of the shape with its sizes.
    """

    def __init__(
        self,
        schedule: type[Schedule],
        fixed: dict[str, Value],
        own: dict[str, Any],
        count: int,
        bases: tuple[tuple[Table, np.ndarray | None], ...] = (),
    ) -> None:
        super().__init__({**fixed, **own})
        self.schedule, self.fixed, self.own, self.count, self.bases = schedule, fixed, own, count, bases
        #: What was found `once`, by its function.
        self.found: dict[Hashable, Any] = {}

    def __missing__(self, name: str) -> Any:
        for base, places in self.bases[:1]:
            if base is not self:
                self[name] = column = _taken(base[name], places)
                return column
        raise KeyError(name)

    def as_base(self) -> Table:
        """The same rows as a further base of those that are taken of them."""
        table = Table(self.schedule, self.fixed, self.own, self.count)
        table.bases = (*self.bases, (table, None))
        return table

    def of_shape(self) -> Table:
        """The same rows of a class as the base of a shape's."""
        table = Table(self.schedule, self.fixed, {}, self.count)
        table.bases = ((self, None), (table, None))
        return table

    def once(self, function: Callable[..., Any], rest: tuple[Any, ...], level: int) -> Any:
        """What a function gives for all rows of the base of a level, at these; where there is none yet, for these."""
        if not self.bases:
            return function(self.schedule.partial(self), *rest)
        if function not in self.found:
            base, places = self.bases[level] if level < len(self.bases) else (self, None)
            if base is self:
                self.found[function] = function(self.schedule.partial(self), *rest)
            else:
                self.found[function] = _taken(base.once(function, rest, level), places)
        return self.found[function]

    def rows(self, rows: np.ndarray) -> Table:
        """Some rows, by their numbers or by a mask."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        own = {name: column[rows] for name, column in self.own.items()}
        bases = tuple((base, rows if places is None else places[rows]) for base, places in self.bases)
        return Table(self.schedule, self.fixed, own, len(rows), bases)

    def kept(self, mask: Any) -> Table:
        """The rows for which the mask holds; it may be one truth value for all."""
        if isinstance(mask, (bool, np.bool_)):
            return self if mask else self.rows(np.zeros(0, dtype=int))
        return self if mask.all() else self.rows(mask)

    def times(self, name: str, problem: NormalProblem, target: Target) -> Table:
        """Each row with each value of one more field that is worth it."""
        domain = self.schedule.fields[name].values
        values: tuple[Any, ...] = self.schedule.partial(self).worth(name, problem, target)
        if values is domain:
            return self.with_all((name,))
        if len(values) > 1:
            there = tuple(value for value in values if np.any(value))
            values = there if len(there) == 1 and np.all(there[0]) else values
        count = len(values)
        if count == 1:
            alike = {name: values[0]} if isinstance(values[0], (int, str)) else {}
            table = Table(self.schedule, {**self.fixed, **alike}, dict(self.own), self.count, self.bases)
            table.found.update(self.found)
            if alike:
                return table
            column = np.broadcast_to(values[0], (self.count,))
        else:
            column = np.stack([np.broadcast_to(value, (self.count,)) for value in values], axis=1).ravel()
            given = np.flatnonzero(column)
            table, column = self.rows(given // count), column[given]
        table[name] = table.own[name] = column
        return table

    def with_all(self, names: tuple[str, ...]) -> Table:
        """Each row with all values of further fields, each value of the first of them with all of the next."""
        codes = _product(tuple(len(self.schedule.fields[name].values) for name in names))
        table = self.rows(np.repeat(np.arange(self.count), len(codes[0])))
        for name, code in zip(names, codes):
            table[name] = table.own[name] = _decoded(self.schedule, name, np.tile(code, self.count))
        return table

    def config(self, row: int) -> Schedule:
        """The config of a row."""
        values = {}
        for name, field in self.schedule.fields.items():
            column = self[name]
            if isinstance(column, Labels):
                values[name] = column.values[column.codes[row]]
            else:
                values[name] = type(field.values[0])(column[row]) if isinstance(column, np.ndarray) else column
        return self.schedule.partial(values)

    def configs(self) -> list[Schedule]:
        """The configs of all rows."""
        columns = []
        for name, field in self.schedule.fields.items():
            kind, column = type(field.values[0]), self[name]
            if isinstance(column, Labels):
                columns.append(column.tolist())
            elif isinstance(column, np.ndarray):
                columns.append(column.astype(kind).tolist())
            else:
                columns.append([column] * self.count)
        return [self.schedule.partial(dict(zip(self.schedule.fields, values))) for values in zip(*columns)]


def _taken(value: Any, places: np.ndarray | None) -> Any:
    """Rows of a column, or of several; what is no column is the same for all."""
    if places is None:
        return value
    if isinstance(value, tuple):
        return tuple(_taken(one, places) for one in value)
    if isinstance(value, np.ndarray):
        return value.take(places)
    return value[places] if isinstance(value, Labels) else value


def _decoded(schedule: type[Schedule], name: str, codes: np.ndarray) -> Any:
    values, texts = _domain(schedule, name)  # type: ignore[arg-type]  # mypy takes the hash of instances
    return Labels(texts, codes) if texts else values[codes]


@functools.cache
def _product(counts: tuple[int, ...]) -> np.ndarray:
    """The places in domains of so many values, a row each, in every combination, those of the last the fastest."""
    return np.indices(counts, dtype=_Code).reshape(len(counts), -1)


@functools.cache
def _domain(schedule: type[Schedule], name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    values = schedule.fields[name].values
    return (np.zeros(0), tuple(map(str, values))) if isinstance(values[0], str) else (np.array(values), ())


@dataclass(frozen=True)
class ProblemClass:
    """The configs of all problems of a class, by what no size decides; and when each sized rule can be asked.

    `steps[0]` are rules on what is there at first, `steps[i]` those that can be asked once the i-th field of `by_size`, and then
    of `last`, is.
    """

    schedule: type[Schedule]
    tables: tuple[Table, ...]
    steps: tuple[tuple[str, ...], ...]
    _narrow: dict[tuple[int, bytes], Table] = made(default_factory=dict)

    def of(self, problem: NormalProblem, target: Target) -> list[Table]:
        """The configs that a search considers for one of its problems, without the `last` fields."""
        found = (self._chosen(place, problem, target) for place in range(len(self.tables)))
        found = (self._narrowed(table, problem, target) for table in found if table.count)
        return [table.as_base() for table in found if table.count]

    def completed(self, table: Table, problem: NormalProblem, target: Target) -> Table:
        """Rows of such a table with all values of the `last` fields."""
        if not self.schedule.last:
            return table
        rules = itertools.chain(*self.steps[1 + len(self.schedule.by_size) :])
        table = table.with_all(self.schedule.last)
        return table.kept(self._mask(table, rules, problem, target))

    def _chosen(self, place: int, problem: NormalProblem, target: Target) -> Table:
        """The rows of a table for a shape by the rules that need no more; such rows, which many shapes share, are kept."""
        table = self.tables[place].of_shape()
        mask = self._mask(table, self.steps[0] if self.steps else (), problem, target)
        if isinstance(mask, (bool, np.bool_)) or mask.all():
            return table.kept(mask)
        return self._kept(place, mask).of_shape()

    def _kept(self, place: int, mask: np.ndarray) -> Table:
        key = place, mask.tobytes()
        if key not in self._narrow:
            if len(self._narrow) >= _MOST:
                self._narrow.clear()
            self._narrow[key] = self.tables[place].kept(mask)
        return self._narrow[key]

    def _mask(self, table: Table, rules: Iterable[str], problem: NormalProblem, target: Target) -> Any:
        """Where all the rules hold."""
        config, mask = self.schedule.partial(table), True
        for name in rules:
            mask = mask & self.schedule.rules[name](config, problem, target)
        return mask

    def _narrowed(self, table: Table, problem: NormalProblem, target: Target) -> Table:
        """Rows of a shape with the fields of `by_size`."""
        for field, rules in zip(self.schedule.by_size, self.steps[1:]):
            table = table.times(field, problem, target)
            table = table.kept(self._mask(table, rules, problem, target))
        return table


_known: dict[tuple[type[Schedule], Hashable, Target, bool], ProblemClass] = {}


def problem_class(
    schedule: type[Schedule], problem: NormalProblem, target: Target, whole: bool = False
) -> ProblemClass:
    """The class of a problem, made when the first of its problems comes: the configs that a default is taken from, or those of
    the `whole` schedule; none where these are too many to look at all of them."""
    key = schedule, schedule.class_of(problem), target, whole
    found = _known.get(key)
    if found is None:
        found = _known[key] = _prepared(schedule, problem, target, whole)
    return found


def _prepared(schedule: type[Schedule], problem: NormalProblem, target: Target, whole: bool) -> ProblemClass:
    given = SearchSpace(schedule) if whole else schedule.shortlist(problem, target)
    later = {*schedule.by_class, *schedule.by_size, *schedule.last}
    names = tuple(name for name in schedule.fields if name not in later)
    domains = [schedule.fields[name].values for name in names]

    def made() -> bytes:
        space = Space.of_class(given, problem, target)
        return b"" if whole and space.count > _ALL else _columns(space.root, domains).tobytes()

    of: Hashable = schedule.class_of(problem), tuple(map(len, domains))
    if whole:
        of = "whole", of
    codes = np.frombuffer(kept(schedule, of, target, made), _Code).reshape(len(names), -1)
    alike = [names.index(name) for name in schedule.alike]
    own = [(place, name) for place, name in enumerate(names) if name not in schedule.alike]
    found = []
    for value in _distinct(codes[alike]):
        rows = np.all(codes[alike] == np.array(value, dtype=_Code)[:, None], axis=0)
        fixed = {name: schedule.fields[name].values[code] for name, code in zip(schedule.alike, value)}
        columns = {n: _decoded(schedule, n, codes[place][rows]) for place, n in own}
        table = Table(schedule, fixed, columns, int(rows.sum()))
        for name in schedule.by_class:
            table = table.times(name, problem, target)
        for name in filter(schedule.is_vectorised, schedule.rules):
            table = table.kept(schedule.rules[name](schedule.partial(table), problem, target))
        found.append(table.as_base())
    return ProblemClass(schedule, tuple(found), _steps(schedule, found, problem, target))


def _distinct(codes: np.ndarray) -> list[tuple[int, ...]]:
    """The columns that are there, each once, in the order in which they come first."""
    values, first = np.unique(codes, axis=1, return_index=True)
    return [tuple(values[:, place].tolist()) for place in np.argsort(first)]


def _columns(root: Node, domains: list[tuple[Value, ...]]) -> np.ndarray:
    """Of each field, in a row, the places of its values in all configs below a node."""
    known: dict[int, np.ndarray] = {}

    def below(node: Node, depth: int) -> np.ndarray:
        if depth == len(domains):
            return np.zeros((0, 1), dtype=_Code)
        if id(node) not in known:
            places = {(type(v), v): i for i, v in enumerate(domains[depth])}
            parts = [np.zeros((len(domains) - depth, 0), dtype=_Code)]
            for value, child in node.children:
                rest = below(child, depth + 1)
                own = np.full((1, rest.shape[1]), places[type(value), value], dtype=_Code)
                parts.append(np.vstack([own, rest]))
            known[id(node)] = np.hstack(parts)
        return known[id(node)]

    return below(root, 0)


def table_of(configs: Sequence[Schedule], narrow: bool = False) -> Table:
    """Configs of one schedule, whose `alike` fields are, as a table; values may be outside the domains that are searched.

    `narrow`: all fields that have one value are fixed.
    """
    schedule = type(configs[0])
    chosen: dict[str, Any] = {}
    alike = set[str]()
    for name, values in zip(schedule.fields, zip(*(config.values.values() for config in configs))):
        if narrow and len({(type(value), value) for value in values}) == 1:
            alike.add(name)
        if isinstance(values[0], str):
            texts = tuple(dict.fromkeys(map(str, values)))
            chosen[name] = Labels(texts, np.array([texts.index(str(value)) for value in values], dtype=_Code))
        else:
            chosen[name] = np.array(values)
    fixed = {name: value for name, value in configs[0].values.items() if name in alike or name in schedule.alike}
    own = {name: column for name, column in chosen.items() if name not in fixed}
    return Table(schedule, fixed, own, len(configs))


def _steps(
    schedule: type[Schedule], tables: list[Table], problem: NormalProblem, target: Target
) -> tuple[tuple[str, ...], ...]:
    """When each sized rule can be asked: one that reads a field not yet chosen waits."""
    tables = [table for table in tables if table.count]
    if not tables:
        return ()
    waiting = [name for name in schedule.rules if schedule.is_sized(name)]
    table, steps = tables[0].rows(np.arange(1)), []
    for field in (None, *schedule.by_size, *schedule.last):
        table = table.times(field, problem, target) if field else table
        due = [name for name in waiting if _decided(schedule, name, table, problem, target)]
        waiting = [name for name in waiting if name not in due]
        steps.append(tuple(due))
    return tuple(steps)


def _decided(schedule: type[Schedule], name: str, table: Table, problem: NormalProblem, target: Target) -> bool:
    try:
        schedule.rules[name](schedule.partial(table), problem, target)
    except Undecided:
        return False
    return True


def scored(
    schedule: type[Schedule], problem: NormalProblem, target: Target, whole: bool = False
) -> list[tuple[Table, np.ndarray]]:
    """The configs that a default is taken from, in tables, each with the modelled seconds of its rows; or those of the `whole`
    schedule, of which there is none where they are too many."""
    if not (schedule.target.runs_on(target.arch) and schedule.applies(problem)):
        return []
    known = problem_class(schedule, problem, target, whole)
    tables = known.of(problem, target)
    if whole and sum(table.count for table in tables) > _ALL:
        return []
    complete = [known.completed(table, problem, target) for table in tables]
    return [(table, seconds_of(table, problem, target)) for table in complete if table.count]


def searched(schedule: type[Schedule], problem: NormalProblem, target: Target) -> tuple[Space, dict[Schedule, float]]:
    """`Space.searched`, with the modelled seconds of all its configs where columns tell them.

    They do of a schedule without a shortlist: its default is taken from all that a search considers. And of one with a
    shortlist, where fields of `by_size` take all of their values and there are `_ALL` configs at most.
    """
    is_whole = bool(schedule.shortlist(problem, target).domains)
    by_columns = schedule.by_size and (not is_whole or schedule.worth is Schedule.worth)
    found: dict[Schedule, float] = {}
    if by_columns and schedule.worth_searching(problem, target):
        for table, seconds in scored(schedule, problem, target, is_whole):
            found |= zip(table.configs(), seconds.tolist())
    return (Space(schedule, listed=found.keys()) if found else Space.searched(schedule, problem, target)), found


def seconds_of(table: Table, problem: NormalProblem, target: Target) -> np.ndarray:
    """The modelled seconds of a table's rows."""
    return np.broadcast_to(table.schedule.partial(table).estimate(problem, target), (table.count,))


def modelled(configs: Sequence[Schedule], problem: NormalProblem, target: Target) -> list[float]:
    """The modelled seconds of each config; as columns where a schedule's model takes these."""
    found = [0.0] * len(configs)
    for rows in together(configs).values():
        some = [configs[row] for row in rows]
        seconds = (
            seconds_of(table_of(some), problem, target).tolist() if some[1:] else [some[0].estimate(problem, target)]
        )
        for row, value in zip(rows, seconds):
            found[row] = value
    return found


def together(configs: Sequence[Schedule], rows: Iterable[int] | None = None) -> dict[Hashable, list[int]]:
    """Which of them one table holds: those of a schedule with the same `alike` fields; one by itself where no model takes
    columns. `rows`: of these alone."""
    groups: dict[Hashable, list[int]] = {}
    for row in range(len(configs)) if rows is None else rows:
        config = configs[row]
        alike = (*(getattr(config, name) for name in config.alike),) if config.by_size else row
        groups.setdefault((type(config), alike), []).append(row)
    return groups
