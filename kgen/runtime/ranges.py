"""Ranges of sizes on the GPU that is meant: tuning them, and the sizes that stand for their buckets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.restriction import UNRESTRICTED, Restriction
from kgen.dsl.schedule import Schedule
from kgen.dsl.span import Span
from kgen.dsl.target import Target
from kgen.runtime import buckets, dispatch
from kgen.runtime.machine import Machine
from kgen.tuner.budget import Budget
from kgen.tuner.division import Point
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Progress
from kgen.tuner.range_bench import RangeBench
from kgen.tuner.ranges import KERNELS
from kgen.tuner.records import gpu_facts, problem_key, space_text
from kgen.tuner.supervisor import IdleWorkers, Supervisor
from kgen.tuner.tune import tune
from kgen.tuner.tune_range import CHECKS, Axes, RangeOutcome, parts, portfolio, tune_range
from kgen.tuning_db import Store


def tune_range_on(
    here: Machine,
    names: Sequence[str],
    spans: Sequence[Span],
    problem: Callable[[Point], Problem],
    store: Store,
    restriction: Restriction = UNRESTRICTED,
    *,
    budget: Budget,
    checks: int = CHECKS,
    kernels: int = KERNELS,
    sampler: str = "posterior",
    progress: Progress | None = None,
    idle: IdleWorkers | None = None,
) -> RangeOutcome:
    """Tunes the problems that `problem` makes of a size for each of `spans`, of one class; see kgen.tuner.tune_range.

    On a GPU, what earlier buckets and packs have for such problems, and what serves the smallest and the largest, is timed first.
    """

    @functools.lru_cache(maxsize=1024)
    def normal(sizes: Point) -> NormalProblem:
        return normalised(problem(sizes))

    def search(one: NormalProblem, share: Budget, first: Sequence[Schedule]) -> Outcome:
        return tune(
            one, target=here.target, device=here.device, store=store, budget=share, sampler=sampler, progress=progress,
            idle=idle, first=first, within=restriction.within(one, here.target),
        )  # fmt: skip

    ends = tuple(span.low for span in spans), tuple(span.high for span in spans)
    bench = RangeBench(
        normal,
        target=here.target,
        device=here.device,
        store=store,
        budget=budget,
        search=search,
        default=lambda one: dispatch.default(one, here.target, restriction).config,
        within=restriction.within(normal(ends[1]), here.target),
        supervise=functools.partial(Supervisor, idle=idle),
    )
    known: dict[Schedule, None] = {}
    if here.device is not None:  # by the model alone only what a search has compiled and verified takes part
        served = [dispatch.choose(normal(end), here.target, store, restriction).config for end in ends]
        known = dict.fromkeys([*portfolio(bench, ends[1]), *served])
    return tune_range(names, spans, bench, checks=checks, kernels=kernels, known=known)


def corners(
    names: Sequence[str],
    spans: Sequence[Span],
    problem: Callable[[Point], Problem],
    target: Target,
    store: Store | None,
    restriction: Restriction = UNRESTRICTED,
) -> list[tuple[Problem, dispatch.Choice]]:
    """The ends of all buckets within a range, each with the choice of its bucket: none where nothing was tuned.

    Of one range, what was chosen for the nearest of them by ratio is the config of a size's own bucket.
    """

    def normal(sizes: Point) -> NormalProblem:
        return normalised(problem(sizes))

    gpu = gpu_facts(target)
    points: dict[Point, None] = {}
    for part in parts(names, spans, normal):
        high, axes = normal(tuple(span.high for span in part)), Axes(names, part, normal)
        spaces = tuple(dict.fromkeys(("", space_text(restriction.within(high, target)))))
        for record in buckets.found(high, problem_key(high), gpu, store, spaces, whole_class=True):
            points |= dict.fromkeys(axes.corners(record, part))
    chosen = [
        (whole, dispatch.of_bucket(normalised(whole), target, store, restriction)) for whole in map(problem, points)
    ]
    return [(whole, choice) for whole, choice in chosen if choice is not None]
