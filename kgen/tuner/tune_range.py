"""tune_range: buckets for a range of sizes of one operator, found, checked and stored."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.span import Span
from kgen.tuner.division import Bucket, Division, Point
from kgen.tuner.range_bench import RangeBench
from kgen.tuner.ranges import KERNELS, divide
from kgen.tuner.records import gpu_facts, problem_key, read_config, space_text, toolchain
from kgen.tuning_db import MEASURED, MODELLED, BucketRecord, NewBucket, buckets_of, set_buckets

#: Sizes that are drawn to check the buckets of a range.
CHECKS = 32
#: A bucket of more regret in the mean is not stored, as where the budget ended early: a default may well be better.
WORST = 0.05


@dataclass(frozen=True)
class RangeOutcome:
    """What tuning a range came to: the stored buckets, with what was timed to find and check them.

    `trials` were tried in `elapsed` seconds; `origin` is "measured" or "modelled".
    """

    division: Division[Schedule]
    origin: str
    trials: int
    elapsed: float


class Axes:
    """How the sizes of a range's problems, as they are stored, follow from the sizes that the user named.

    `problem` makes the problem of a size for each of `spans`. Raises ArgumentError where a bucket cannot tell these problems by
    their sizes: where one of these is no multiple of a named one or depends on two ranges, or where strides differ.
    """

    def __init__(self, names: Sequence[str], spans: Sequence[Span], problem: Callable[[Point], NormalProblem]) -> None:
        low = tuple(span.low for span in spans)
        first = problem(low)
        self.fixed = first.sizes
        #: The axis that a stored size goes along, and by what factor.
        self.along: dict[str, tuple[int, int]] = {}
        for axis, span in enumerate(spans):
            for size in {span.sizes[min(1, len(span) - 1)], span.high} - {span.low}:
                other = problem((*low[:axis], size, *low[axis + 1 :]))
                cannot = f"{first.graph.name}: cannot tune the range {names[axis]}={span}"
                if _class_of(other) != _class_of(first):
                    a, b = min(zip(first.operands, other.operands), key=lambda pair: pair[0].layout == pair[1].layout)
                    raise ArgumentError(
                        f"{cannot}: its kernel takes {a} for {names[axis]}={span.low} and {b} for {names[axis]}={size}, but "
                        "the strides of a bucket's problems are alike; expected --shape with each size by itself"
                    )
                for name in [n for n in self.fixed if other.sizes[n] != self.fixed[n]]:
                    factor = self.fixed[name] // span.low
                    known = self.along.setdefault(name, (axis, factor))
                    if known[0] != axis:
                        raise ArgumentError(
                            f"{cannot} together with {names[known[0]]}={spans[known[0]]}: dimensions that lie densely behind "
                            "one another are taken as one; expected a range of one of them"
                        )
                    if other.sizes[name] != factor * size:
                        raise ArgumentError(
                            f"{cannot}: its kernel has the sizes {self.fixed[name]} for {names[axis]}={span.low} and "
                            f"{other.sizes[name]} for {names[axis]}={size}, no multiples of it; expected --shape with each "
                            "size by itself"
                        )

    def spans(self, bucket: Bucket[Schedule]) -> dict[str, str]:
        """The sizes of a bucket by the names under which they are stored."""
        found = {name: str(size) for name, size in self.fixed.items()}
        moving = {name: bucket.spans[axis].times(factor) for name, (axis, factor) in self.along.items()}
        return found | {name: str(span) for name, span in moving.items()}

    def corners(self, record: BucketRecord, spans: Sequence[Span]) -> Iterator[Point]:
        """The corners of the part of a bucket that is within `spans`."""
        if any(size not in record.sizes[name] for name, size in self.fixed.items() if name not in self.along):
            return
        sides = []
        for axis, span in enumerate(spans):
            served = [(record.sizes[name], factor) for name, (own, factor) in self.along.items() if own == axis]
            first = bisect.bisect_left(span.sizes, max((-(-s.low // factor) for s, factor in served), default=1))
            last = bisect.bisect_right(span.sizes, min((s.high // factor for s, factor in served), default=span.high))
            part = span.sizes[first:last]
            ends = [
                next((n for n in sizes if all(n * factor in s for s, factor in served)), None)
                for sizes in (part, reversed(part))
            ]
            sides.append(dict.fromkeys(n for n in ends if n is not None))
        yield from itertools.product(*sides)


def parts(
    names: Sequence[str], spans: Sequence[Span], problem: Callable[[Point], NormalProblem]
) -> list[tuple[Span, ...]]:
    """The range in parts whose problems are of one class each: a size of 1 stands apart where an axis of it is left out.

    Raises the ArgumentError of `Axes`.
    """
    ends = [dict.fromkeys((span.low, span.high)) for span in spans]
    for axis, span in enumerate(spans):
        pairs = (
            [_class_of(problem((*rest[:axis], size, *rest[axis:]))) for size in span.sizes[:2]]
            for rest in itertools.product(*ends[:axis], *ends[axis + 1 :])
        )
        if span.low == 1 < len(span) and any(one != other for one, other in pairs):
            cut = (span.part(0, 0), span.part(1, len(span) - 1))
            return [found for part in cut for found in parts(names, (*spans[:axis], part, *spans[axis + 1 :]), problem)]
    Axes(names, spans, problem)
    return [tuple(spans)]


def tune_range(
    names: Sequence[str],
    spans: Sequence[Span],
    bench: RangeBench,
    *,
    checks: int = CHECKS,
    kernels: int = KERNELS,
    known: Iterable[Schedule] = (),
    seed: int = 0,
) -> RangeOutcome:
    """Divides a range into buckets, and stores them in place of those that lay within it.

    `spans` are the sizes of each of `names`, `kernels` the most configs of its buckets; `known`: configs to time from the
    beginning. It ends with the bench's budget, and after an interrupt keeps what is known by then. Raises what
    `kgen.tuner.tune.tune` raises, and the ArgumentError of `Axes`, which none of `parts` has.
    """
    axes = Axes(names, spans, bench.problem)
    with contextlib.closing(bench):
        found = divide(spans, bench, checks=checks, portfolio=known, kernels=kernels, seed=seed)
    evidence = _evidence(found)
    new = []
    for bucket in filter(is_stored, found.buckets):
        sizes = _timed(bucket, bench)
        if sizes is not None:
            problem = bench.problem(sizes)
            told = {
                "operands": (problem.origin or problem).key,
                "regret": round(bucket.regret, 4),
                "mean": round(bucket.mean, 4),
                **evidence,
            }
            new.append(NewBucket(bench.stored[bucket.config, sizes], axes.spans(bucket), told))
    if new:
        set_buckets(bench.store, new, space_text(bench.within))
    origin = MODELLED if bench.device is None else MEASURED
    return RangeOutcome(found, origin, bench.trials, bench.elapsed)


def is_stored(bucket: Bucket[Schedule]) -> bool:
    """Whether a bucket is good enough to be served."""
    return bucket.mean <= WORST


def portfolio(bench: RangeBench, sizes: Point) -> list[Schedule]:
    """The configs of the buckets that are stored for these sizes' class, or came with a pack: to begin with."""
    key, gpu = problem_key(bench.problem(sizes)), gpu_facts(bench.target)
    stored = buckets_of(bench.store, key, gpu, toolchain(), space_text(bench.within))
    configs = (read_config(record.trial.config, bench.within) for record in stored)
    return [*dict.fromkeys(config for config in configs if config is not None)]


def _class_of(problem: NormalProblem) -> tuple[object, ...]:
    """What problems have in common whose buckets are looked up together."""
    return problem_key(problem).form, *problem.sizes


def _evidence(found: Division[Schedule]) -> Mapping[str, Any]:
    """How the range that a bucket belongs to was checked, as JSON."""
    worst = found.quantile(1.0)
    if worst is None:
        return {"checked": 0}
    return {"checked": len(found.checks), "p95": round(found.quantile(0.95) or 0.0, 4), "worst": round(worst, 4)}


def _timed(bucket: Bucket[Schedule], bench: RangeBench) -> Point | None:
    """Sizes with a stored trial of a bucket's config: its largest that were timed, else where the config was found."""
    inside = [sizes for sizes in bucket.timed if (bucket.config, sizes) in bench.stored]
    found = inside or [sizes for config, sizes in bench.stored if config == bucket.config]
    return found[-1] if found else None
