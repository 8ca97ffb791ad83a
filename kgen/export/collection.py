"""Collection: what one export is made of: problems with their configs, the distinct kernels among them, and fallbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kgen.codegen.source import Launch, Limit, Param
from kgen.dsl.errors import ArgumentError, KgenError
from kgen.dsl.family import family_of, normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule, default_of
from kgen.dsl.target import Target
from kgen.export.requirements import requirements
from kgen.export.variants import Served, axes, realigned, resized

#: What an axis with a single element has in the problem that a fallback is made for.
_SEVERAL = 33
#: What makes a kernel another one: the digest of its source, the parameters, the launch and the limits.
_Key = tuple[str, tuple[Param, ...], Launch, tuple[Limit, ...]]


@dataclass(frozen=True)
class Entry:
    """A problem as the caller put it, the config for it, and what is known of the config's speed: `origin`, for people."""

    problem: Problem
    config: Schedule
    origin: str = "given"


@dataclass(frozen=True)
class Collection:
    """The kernels of an export: `rows` says which of them serves which problem, `fallbacks` which serve what no row's does.

    With one kernel and no fallback there is nothing to decide: its checks are those of the launch function.
    """

    kernels: tuple[Served, ...]
    rows: tuple[tuple[Entry, int], ...]
    fallbacks: tuple[int, ...] = ()

    @classmethod
    def single(cls, served: Served, origin: str = "given") -> Collection:
        """One problem's kernel, which serves what it can and has no fallback."""
        return cls((served,), ((Entry(served.origin, served.config, origin), 0),))

    @property
    def decides(self) -> bool:
        """Whether the launch function has a choice to make."""
        return len(self.rows) > 1 or len(self.kernels) > 1

    def problems(self, kernel: int) -> list[Problem]:
        """The problems of a kernel, those that it was chosen for."""
        return [entry.problem for entry, number in self.rows if number == kernel]


def collect(entries: Sequence[Entry], target: Target, fallback: bool = False) -> Collection:
    """The kernels of several problems of one operator, equal ones once, and a fallback for each of their layouts.

    One problem has no fallback, unless `fallback` asks for it.
    Raises ArgumentError where the problems are not of one operator in the same dtypes, or cannot be told apart by the same sizes
    and strides.
    """
    if len(entries) == 1 and not fallback:
        (entry,) = entries
        return Collection.single(Served(entry.config, entry.problem, target), entry.origin)
    first = entries[0].problem
    for entry in entries:
        if entry.problem.graph.digest != first.graph.digest:
            raise ArgumentError(
                f"cannot export {first} and {entry.problem} as one; expected one operator in the same dtypes"
            )
    kernels: dict[_Key, Served] = {}
    unique: dict[str, Entry] = {}
    for entry in entries:
        unique.setdefault(entry.problem.key, entry)
    rows = [(e, _place(kernels, Served(e.config, e.problem, target))) for e in unique.values()]
    fallbacks = _fallbacks(kernels, unique.values(), target)
    _check_alike([*kernels.values()])
    return Collection(tuple(kernels.values()), tuple(rows), tuple(fallbacks))


def _place(kernels: dict[_Key, Served], served: Served) -> int:
    """The number of a kernel among those known, which it is added to where it is new."""
    source = served.source
    key = (source.digest, source.params, source.launch, source.limits)
    kernels.setdefault(key, served)
    return [*kernels].index(key)


def _check_alike(kernels: Sequence[Served]) -> None:
    """Raises ArgumentError where problems are no problems of the same sizes and strides once normalised."""
    first = kernels[0]
    for served in kernels[1:]:
        if _form(first.config, first.problem) != _form(first.config, served.problem):
            raise ArgumentError(
                f"cannot export {first.origin} and {served.origin} as one: dimensions that lie densely behind one another are "
                "taken as one, which leaves the two with different ones; export them apart"
            )


def _form(config: Schedule, problem: NormalProblem) -> tuple[list[int], set[str]]:
    """What two normalised problems have in common where the same sizes and strides say what they are."""
    return [len(o.shape) for o in problem.operands], {*config.symbols(problem)}


def _fallbacks(kernels: dict[_Key, Served], entries: Iterable[Entry], target: Target) -> list[int]:
    """For each layout of the problems the kernel that asks for the least, of those known and the defaults of all schedules.

    Of several one of those known, which would serve before any other; else the model chooses, at sizes near the largest problem
    of the layout.
    """
    found: dict[tuple[tuple[int, ...], ...], int] = {}
    layouts = {served: _layout(_awkward(served)) for served in kernels.values()}
    for entry in sorted(entries, key=lambda entry: -entry.problem.work):
        odd = _awkward(Served(entry.config, entry.problem, target))
        layout = _layout(odd)
        if layout in found:
            continue
        known = [served for served, own in layouts.items() if own == layout]
        form = _form(entry.config, known[0].problem)
        others = [served for served in _defaults(odd, target) if _form(entry.config, served.problem) == form]
        demands = [(requirements(served).demands, served) for served in (*known, *others)]
        least = min(n for n, _ in demands)
        normal = normalised(odd)
        asking_least = [served for n, served in demands if n == least]
        candidates = [served for served in asking_least if served in known] or asking_least
        found[layout] = _place(
            kernels, min(candidates, key=lambda s: (s.config.estimate(normal, target), repr(s.config)))
        )
    return [*dict.fromkeys(found.values())]


def _layout(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The order of each operand's axes in memory: all that a layout says but for gaps."""
    return tuple(
        tuple(sorted((a for a in range(len(o.shape)) if o.strides[a]), key=lambda a: (-o.strides[a], a)))
        for o in problem.operands
    )


def _awkward(served: Served) -> Problem:
    """A kernel's problem with odd sizes, gaps between rows and addresses of single elements, as far as the operator has such."""
    config, problem = served.config, served.origin
    form = _form(config, served.problem)

    def alike(other: Problem) -> bool:
        return _form(config, normalised(other)) == form

    for operand in problem.operands:
        apart = realigned(problem, operand.name, operand.dtype.bytes)
        problem = apart if alike(apart) else problem
    sizes: dict[str, int] = {}
    found = problem
    for gap in (0, 1):
        gaps = {o.name: gap for o in problem.operands}
        for name, size in axes(problem).items():
            other = size | 1 if size > 1 else _SEVERAL
            try:
                odd = resized(problem, {**sizes, name: other}, gaps=gaps)
                if alike(odd):
                    found, sizes[name] = odd, other
            except KgenError:  # the operator has no such size
                continue
    return found


def _defaults(problem: Problem, target: Target) -> Iterator[Served]:
    """The default of every schedule that serves the problem without tuning."""
    family = family_of(problem.graph)
    normal = normalised(problem)
    for schedule in family.schedules:
        if schedule.by_default and schedule.target.runs_on(target.arch) and schedule.applies(normal):
            try:
                served = Served(default_of(schedule, normal, target), problem, target)
                served.source  # noqa: B018  # a config that renders
            except KgenError:
                continue
            yield served
