"""Ranges of sizes, as `--shape M=1..8192,N=64,K=64` has them: tuned to buckets, and what is told of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.cli.output import config_told, note, print_json, print_table
from kgen.dsl.errors import ArgumentError
from kgen.dsl.span import Span

if TYPE_CHECKING:
    from kgen.dsl.problem import NormalProblem, Problem
    from kgen.runtime.dispatch import Choice
    from kgen.runtime.machine import Machine
    from kgen.runtime.operator import KernelOperator
    from kgen.tuner.division import Check, Point
    from kgen.tuner.tune_range import RangeOutcome
    from kgen.tuning_db import Store

#: Between two dimensions of a shape: a list of sizes has commas too.
_BETWEEN = re.compile(r",(?=\s*(?:\.\.\.|[A-Za-z_]\w*)\s*=)")
_LIST = re.compile(r"\s*(?:\.\.\.|[A-Za-z_]\w*)\s*=\s*\d+(?:\s*,\s*\d+)+\s*")


def is_range(shape: str) -> bool:
    """Whether a shape names several sizes of a dimension: M=1..8192, M=64..8192:64 or M=1,8,64."""
    return re.search(r"\d\s*\.\.\s*\d", shape) is not None or any(map(_LIST.fullmatch, _BETWEEN.split(shape)))


@dataclass(frozen=True)
class Range:
    """A shape with several sizes of a dimension, as in `M=1..8192,N=64`; `fixed` are leading sizes such as 8x16, as they are."""

    text: str
    spans: Mapping[str, Span]
    fixed: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Range:
        """The range of a text. ArgumentError where it is malformed."""
        spans: dict[str, Span] = {}
        fixed: dict[str, str] = {}
        for item in _BETWEEN.split(text):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                raise ArgumentError(
                    f"malformed range {text!r}; expected named sizes, as in M=1..8192,N=4096,K=64..4096:64"
                )
            if name in spans or name in fixed:
                raise ArgumentError(f"shape {text!r} names {name} twice; expected each dimension once")
            if name == "..." and not re.fullmatch(r"[\d.:,\s]+", value):
                fixed[name] = value
            else:
                spans[name] = Span.parse(value)
        return cls(text, spans, fixed)

    def shape(self, sizes: Sequence[int]) -> str:
        """The shape with these sizes of its spans, as `--shape` takes it."""
        return ",".join(f"{name}={size}" for name, size in {**self.fixed, **dict(zip(self.spans, sizes))}.items())

    @property
    def ends(self) -> tuple[str, str]:
        """The shapes of its smallest and its largest sizes."""
        return self.shape([s.low for s in self.spans.values()]), self.shape([s.high for s in self.spans.values()])

    def part(self, spans: Mapping[str, Span]) -> Range:
        """The part of it with these spans, and with the smallest size of every other dimension."""
        if spans == self.spans:
            return self
        smallest = {name: str(span.low) for name, span in self.spans.items() if name not in spans}
        text = ",".join(f"{name}={sizes}" for name, sizes in {**self.fixed, **spans}.items())
        return Range(text, spans, {**self.fixed, **smallest})

    def told(self, sizes: Sequence[object]) -> str:
        """Sizes, or spans, by the names of its spans."""
        return ",".join(f"{name}={size}" for name, size in zip(self.spans, sizes))


@dataclass(frozen=True)
class Piece:
    """A launch of a range, or of a part of it: problems of one class, which are tuned to buckets together.

    `launch` is the largest of them; `problem` makes that of a size for each span.
    """

    range: Range
    launch: Problem
    problem: Callable[[Point], Problem]


def pieces(ranges: Sequence[Range], select: Callable[[str], Problem]) -> list[Piece]:
    """What is tuned of ranges: each launch that an operator takes over the dimensions that it has, in parts of one class each.

    `select` makes the problem of a shape. Raises ArgumentError where one of them cannot be tuned over a range.
    """
    from kgen.dsl.family import normalised
    from kgen.dsl.program import program_of
    from kgen.tuner.tune_range import parts

    found = []
    for one in ranges:
        for number, launch in enumerate(program_of(select(one.ends[1])).launches):
            own = {*launch.graph.dims, "..."} if launch.leading else {*launch.graph.dims}
            whole = one.part({name: span for name, span in one.spans.items() if name in own})
            names = [*whole.spans]

            def problem(sizes: Point, number: int = number, one: Range = whole) -> Problem:
                return program_of(select(one.shape(sizes))).launches[number]

            def normal(sizes: Point, problem: Callable[[Point], Problem] = problem) -> NormalProblem:
                return normalised(problem(sizes))

            for spans in parts(names, [*whole.spans.values()], normal):
                largest = problem(tuple(span.high for span in spans))
                found.append(Piece(whole.part(dict(zip(names, spans))), largest, problem))
    return found


def tune(
    operator: KernelOperator,
    asked: Sequence[Piece],
    here: Machine,
    store: Store,
    *,
    whole: bool,
    json: bool,
    **options: Any,
) -> bool:
    """Tunes pieces of ranges, and tells the buckets; whether it was interrupted.

    `options` are those of kgen.runtime.ranges.tune_range_on.
    """
    from kgen.runtime.ranges import tune_range_on

    told: list[dict[str, Any]] = []
    interrupted = False
    for piece in asked:
        one, spans = piece.range, piece.range.spans
        try:
            outcome = tune_range_on(
                here, [*spans], [*spans.values()], piece.problem, store, operator.restriction, **options
            )
        except KeyboardInterrupt:
            interrupted = True
            break
        interrupted = outcome.division.interrupted
        told.append(_as_json(one, piece.launch, outcome))
        if not json:
            _print(one, piece.launch, outcome, here, whole)
        if interrupted:
            break
    origin = "modelled" if here.device is None else "measured"
    if json:
        facts = {"operator": operator.__name__, "space": str(operator.restriction), "gpu": str(here.target)}
        print_json({**facts, "origin": origin, "database": store.where, "ranges": told})
    elif told:
        note(f"stored in {store.where}")
    return interrupted


def by_buckets(
    one: Range,
    operator: KernelOperator,
    layouts: tuple[str | None, str | None, str | None],
    here: Machine,
    store: Store | None,
    ladder: Sequence[Problem],
    choices: Sequence[Choice],
) -> tuple[list[Problem], list[Choice]]:
    """The problems and choices that stand for a range: the ends of its buckets, and of a ladder what is in none."""
    from kgen.cli import problems
    from kgen.dsl.family import normalised
    from kgen.runtime import dispatch, ranges

    def problem(sizes: Point) -> Problem:
        return problems.select(operator, [one.shape(sizes)], None, *layouts)[0]

    found = ranges.corners([*one.spans], [*one.spans.values()], problem, here.target, store, operator.restriction)
    for other, choice in zip(ladder, choices):
        if dispatch.of_bucket(normalised(other), here.target, store, operator.restriction) is None:
            found.append((other, choice))
    return [other for other, _ in found], [choice for _, choice in found]


def _as_json(one: Range, launch: Problem, outcome: RangeOutcome) -> dict[str, Any]:
    from kgen.tuner.tune_range import is_stored

    found = outcome.division

    def check(c: Check[Any]) -> dict[str, Any]:
        times = {"seconds": c.seconds, "best": repr(c.best), "best_seconds": c.best_seconds, "regret": c.regret}
        return {"sizes": one.told(c.sizes), "config": repr(c.config), **times}

    return {
        "range": one.text,
        "kernel": launch.graph.name,
        "portfolio": [repr(config) for config in found.portfolio],
        "buckets": [
            {
                "sizes": one.told(b.spans),
                "config": repr(b.config),
                "regret": b.regret,
                "mean": b.mean,
                "stored": is_stored(b),
            }
            for b in found.buckets
        ],
        "bound": found.bound,
        "p95": found.quantile(0.95),
        "worst": found.quantile(1.0),
        "share_beyond_worst": found.beyond,
        "checks": [check(c) for c in found.checks],
        "unserved": [one.told(sizes) for sizes in found.unserved],
        "points": found.points,
        "trials": outcome.trials,
        "elapsed_seconds": outcome.elapsed,
        "interrupted": found.interrupted,
    }


def _print(one: Range, launch: Problem, outcome: RangeOutcome, here: Machine, whole: bool) -> None:
    from kgen.tuner.tune_range import WORST, is_stored

    found, origin = outcome.division, outcome.origin
    note(
        f"{launch.graph.name} {one.text}: {len(found.buckets)} buckets of {len(found.portfolio)} configs, from {found.points} "
        f"sizes and {len(found.checks)} checks ({outcome.trials} trials, {outcome.elapsed:.1f} s)"
    )
    rows = [
        (one.told(b.spans), _percent(b.regret), config_told(b.config, launch, here.target, whole))
        for b in found.buckets
    ]
    print_table(("sizes", f"{origin} regret", "config"), rows)
    left = sum(not is_stored(bucket) for bucket in found.buckets)
    if left:
        print(
            f"{left} of them not stored, having a mean regret above {_percent(WORST)}: more budget would cut them further"
        )
    if found.checks:
        print(
            f"{origin} regret at {len(found.checks)} random sizes: p95 {_percent(found.quantile(0.95))}, worst "
            f"{_percent(found.quantile(1.0))}; bound {_percent(found.bound)} (with 95% confidence at most "
            f"{_percent(found.beyond)} of the sizes are beyond the worst)"
        )
    else:
        print(
            f"{origin} regret between the timed sizes: not checked, the budget was used up; bound {_percent(found.bound)}"
        )
    if found.unserved:
        print(f"{len(found.unserved)} checked sizes have no config of a bucket, such as {one.told(found.unserved[0])}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
