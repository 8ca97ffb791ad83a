"""Space: a set of configs of one schedule as a decision diagram: exact, counted, and small where the list is long.

What is valid computes the problem; a search considers those of them that no `pruning` rule, nor `worth_searching`, leaves out.

A list of a million valid configs takes a minute to make. But most fields meet few rules, so that most subtrees of the
enumeration are alike: what one looks like depends only on the rules still open and on the earlier fields those rules read.
`_build` watches which these are, and makes each distinct subtree once. A rule that lacks one field alone is asked at
once which values of it are allowed. Nothing is assumed of a rule but that it is a function of what it reads.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from kgen.dsl.choice import Rule, Undecided, Value, reason_of
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Rejection, Schedule, SearchSpace, as_space
from kgen.dsl.target import Target


@dataclass(frozen=True, eq=False)
class Node:
    """What the next field may be, each value with the node of the field after; `count` configs lie below."""

    children: tuple[tuple[Value, Node], ...]
    count: int

    def child(self, value: Value) -> Node | None:
        """The node behind a value, None where no valid config has it."""
        return next((node for v, node in self.children if v == value and type(v) is type(value)), None)


_LEAF = Node((), 1)
_EMPTY = Node((), 0)


#: Without the detour by `super()`: rules read fields millions of times.
_fixed: Callable[[dict[str, Value], str], Value] = dict.__getitem__


class _Watched(dict[str, Value]):
    """The fields fixed so far, which notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.asked.add(name)
        return _fixed(self, name)

    def values(self) -> Any:
        self.asked.update(self)
        return super().values()


class Space:
    """A set of configs of one schedule, in the fixed order of fields and domains."""

    def __init__(
        self, given: type[Schedule] | SearchSpace, root: Node | None = None, listed: Set[Schedule] = frozenset()
    ) -> None:
        """Those of a diagram, or those `listed`, whose diagram is made when it is first asked for."""
        self.given, self._root, self._listed = as_space(given), root, listed
        self.schedule, self.fields = self.given.schedule, tuple(self.given.fields)

    @classmethod
    def valid(cls, given: type[Schedule] | SearchSpace, problem: NormalProblem, target: Target) -> Space:
        """The configs that are valid for a problem on a target: those that compute it, whether a search considers them or not."""
        schedule = as_space(given).schedule
        return cls._of_rules(given, problem, target, [n for n in schedule.rules if not schedule.only_prunes(n)])

    @classmethod
    def searched(cls, schedule: type[Schedule], problem: NormalProblem, target: Target) -> Space:
        """The valid configs that a search considers: none where other schedules are known to be better."""
        there = schedule.applies(problem) and schedule.worth_searching(problem, target)
        return cls._of_rules(schedule, problem, target, [*schedule.rules]) if there else cls(schedule, _EMPTY)

    @classmethod
    def asked(cls, given: SearchSpace, problem: NormalProblem, target: Target) -> Space:
        """The configs that a search of a space which the user named considers: the valid ones where `pruning` leaves none."""
        found = cls._of_rules(given, problem, target, [*given.schedule.rules])
        return found if found.count else cls.valid(given, problem, target)

    @classmethod
    def of_class(cls, given: SearchSpace, problem: NormalProblem, target: Target) -> Space:
        """What a search considers for a problem's class: by rules that take no arrays, of the fields that these decide."""
        schedule = given.schedule
        later = {*schedule.by_class, *schedule.by_size, *schedule.last}
        domains = {name: values for name, values in given.fields.items() if name not in later}
        arrays = {name for name in schedule.rules if schedule.is_sized(name) or schedule.is_vectorised(name)}
        rules = [schedule.rules[name] for name in schedule.rules if name not in arrays]
        return cls(schedule, _build(schedule, domains, rules, problem, target))

    @classmethod
    def _of_rules(
        cls, given: type[Schedule] | SearchSpace, problem: NormalProblem, target: Target, rules: Sequence[str]
    ) -> Space:
        schedule = as_space(given).schedule
        there = schedule.target.runs_on(target.arch) and schedule.applies(problem)
        tests = [schedule.rules[name] for name in rules]
        fields = as_space(given).fields
        return cls(given, _build(schedule, fields, tests, problem, target) if there else _EMPTY)

    @classmethod
    def of(cls, schedule: type[Schedule], configs: Iterable[Schedule]) -> Space:
        """Just these configs, of those whose values are in the domains."""
        domains = [set(values) for values in as_space(schedule).fields.values()]
        listed = {c for c in configs if all(v in domain for v, domain in zip(c.values.values(), domains))}
        return cls(schedule, listed=listed)

    @functools.cached_property
    def root(self) -> Node:
        """The first node of the diagram."""
        if self._root is not None:
            return self._root
        places = [{value: i for i, value in enumerate(values)} for values in self.given.fields.values()]

        def below(rows: Sequence[tuple[Value, ...]], depth: int) -> Node:
            if depth == len(places):
                return _LEAF
            groups = itertools.groupby(rows, key=operator.itemgetter(depth))
            children = tuple((value, below([*group], depth + 1)) for value, group in groups)
            return Node(children, sum(child.count for _, child in children))

        rows = [tuple(config.values.values()) for config in self._listed]
        return below(sorted(rows, key=lambda row: [p[v] for p, v in zip(places, row)]), 0)

    @property
    def count(self) -> int:
        """How many configs it has."""
        return len(self._listed) if self._root is None else self._root.count

    def __contains__(self, config: Schedule) -> bool:
        if self._root is None:
            return config in self._listed
        node: Node | None = self.root if type(config) is self.schedule and self.count else None
        for value in config.values.values():
            node = node and node.child(value)
        return node is not None

    def __iter__(self) -> Iterator[Schedule]:
        def below(node: Node, values: tuple[Value, ...]) -> Iterator[Schedule]:
            if node is _LEAF:
                yield self.config(values)
            for value, child in node.children:
                yield from below(child, (*values, value))

        return below(self.root, ())

    def config(self, values: tuple[Value, ...]) -> Schedule:
        """The config with these values, in the order of the fields."""
        return self.schedule(**dict(zip(self.fields, values)))

    def draw(self, source: random.Random) -> Schedule:
        """A config, each equally likely."""
        node, values = self.root, []
        while node is not _LEAF:
            value, node = source.choices(node.children, [child.count for _, child in node.children])[0]
            values.append(value)
        return self.config(tuple(values))

    def neighbours(self, config: Schedule) -> Iterator[Schedule]:
        """The valid configs that differ from this one in one field."""
        own = tuple(config.values.values())

        def paths(node: Node, depth: int, changed: bool, values: tuple[Value, ...]) -> Iterator[Schedule]:
            if depth == len(own):
                if changed:
                    yield self.config(values)
                return
            for value, child in node.children:
                same = value == own[depth] and type(value) is type(own[depth])
                if same or not changed:
                    yield from paths(child, depth + 1, changed or not same, (*values, value))

        return paths(self.root, 0, False, ())


def left_out(valid: Space, problem: NormalProblem, target: Target, asked: bool = False) -> dict[str, int]:
    """How many of the valid configs a search does not consider, by what leaves them out: of several rules the first.

    `asked`: the user named the space, see `Space.asked`.
    """
    schedule, count = valid.schedule, valid.count
    if not count or not (asked or schedule.worth_searching(problem, target)):
        return {"worth_searching": count} if count else {}
    found, root = {}, valid.root
    for name in [name for name in schedule.rules if schedule.only_prunes(name)]:
        count = root.count
        root = _build(schedule, valid.given.fields, [schedule.rules[name]], problem, target, root)
        found[name] = count - root.count
    if asked and not root.count:
        return {}
    return {name: number for name, number in found.items() if number}


def emptied_by(space: SearchSpace, problem: NormalProblem, target: Target) -> Rejection:
    """What leaves a space without a config that is valid for a problem: the first of its rules, in order, with no config left."""
    schedule = space.schedule
    if not schedule.target.runs_on(target.arch):
        return Rejection("target", f"{schedule.__name__} needs {schedule.target}")
    if not schedule.applies(problem):
        return Rejection("applies", f"{schedule.__name__} does not serve {problem}")
    root = None
    for name in [name for name in schedule.rules if not schedule.only_prunes(name)]:
        root = _build(schedule, space.fields, [schedule.rules[name]], problem, target, root)
        if not root.count:
            return Rejection(name, reason_of(schedule.rules[name]))
    raise AssertionError(f"{space} is not empty")


Waiting = tuple[tuple[int, int], ...]  # rules not decided yet, by index, each with the depth that may decide it
Masks = tuple[
    tuple[int, tuple[Value, ...]], ...
]  # what fields still open may be, by depth, where rules have narrowed it


def _build(
    schedule: type[Schedule],
    fields: Mapping[str, tuple[Value, ...]],
    rules: Sequence[Rule],
    problem: Problem,
    target: Target,
    within: Node | None = None,
) -> Node:
    """The configs that keep the rules: of all with values of the fields, or of those below a node."""
    names, domains = list(fields), list(fields.values())
    depth_of = {name: depth for depth, name in enumerate(names)}
    fixed = _Watched()
    view = schedule.partial(fixed)
    # By depth and by what is open: which earlier fields mattered, then by their values: the subtree.
    known: dict[object, dict[tuple[str, ...], dict[tuple[Value, ...], Node]]] = {}
    unique: dict[object, Node] = {}

    def narrowed(number: int, name: str) -> tuple[Value, ...] | None:
        """The values of an open field that a rule allows, where that field is all it lacks; else None."""
        allowed = []
        try:
            for value in domains[depth_of[name]]:
                fixed[name] = value
                if rules[number](view, problem, target):
                    allowed.append(value)
        except Undecided:
            return None
        finally:
            del fixed[name]
        return tuple(allowed)

    def decide(numbers: list[int], masks: dict[int, tuple[Value, ...]]) -> list[tuple[int, int]] | None:
        """The rules that stay open; None where one is broken. Rules that lack one field alone narrow its mask."""
        waiting = []
        for number in numbers:
            try:
                if not rules[number](view, problem, target):
                    return None
            except Undecided as missing:
                depth = depth_of[missing.field]
                allowed = narrowed(number, missing.field)
                if allowed is None:
                    waiting.append((number, depth))
                    continue
                masks[depth] = tuple(v for v in masks.get(depth, domains[depth]) if v in allowed)
                if not masks[depth]:
                    return None
        return waiting

    def below(depth: int, waiting: Waiting, masks: Masks, within: Node | None) -> tuple[Node, set[str]]:
        """The subtree, and the earlier fields it depends on."""
        if depth == len(names):
            return _LEAF, set()
        if within is not None and not waiting and not masks:
            return within, set()
        tables = known.setdefault((depth, waiting, masks, id(within)), {})
        for mattered, table in tables.items():
            found = table.get(tuple(_fixed(fixed, name) for name in mattered))
            if found is not None:
                return found, set(mattered)
        name, open_masks = names[depth], dict(masks)
        values = open_masks.pop(depth, domains[depth])
        choices = [(v, None) for v in values] if within is None else [c for c in within.children if c[0] in values]
        due = [number for number, at in waiting if at == depth]
        later = [(number, at) for number, at in waiting if at != depth]
        read: set[str] = set()
        children = []
        for value, inside in choices:
            fixed[name] = value
            fixed.asked = set()
            inner = dict(open_masks)
            still = decide(due, inner)
            read |= fixed.asked
            if still is not None:
                child, read_below = below(depth + 1, tuple(sorted(later + still)), tuple(sorted(inner.items())), inside)
                read |= read_below
                if child.count:
                    children.append((value, child))
            del fixed[name]
        read = {name for name in read if depth_of[name] < depth}
        identity = (depth, tuple((value, id(child)) for value, child in children))
        if identity not in unique:
            unique[identity] = Node(tuple(children), sum(child.count for _, child in children))
        mattered = tuple(sorted(read))
        tables.setdefault(mattered, {})[tuple(_fixed(fixed, name) for name in mattered)] = unique[identity]
        return unique[identity], read

    masks: dict[int, tuple[Value, ...]] = {}
    start = decide(list(range(len(rules))), masks)
    return _EMPTY if start is None else below(0, tuple(sorted(start)), tuple(sorted(masks.items())), within)[0]
