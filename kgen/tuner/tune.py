"""tune: the best config for a problem, found, verified and stored. What is known is never tried again."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kgen.dsl.errors import ArgumentError
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.tuner.budget import Budget
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Progress, Silent
from kgen.tuner.run import Run
from kgen.tuner.search import SAMPLERS
from kgen.tuning_db import MEASURED, MODELLED, Store

if TYPE_CHECKING:
    from kgen.tuner.supervisor import IdleWorkers


def tune(
    problem: Problem,
    *,
    target: Target,
    store: Store,
    device: int | None,
    budget: Budget | None = None,
    sampler: str = "posterior",
    progress: Progress | None = None,
    seed: int = 0,
    cache: CubinCache | None = None,
    idle: IdleWorkers | None = None,
    first: Iterable[Schedule] = (),
    within: Sequence[SearchSpace] | None = None,
) -> Outcome:
    """Tunes a problem for `target` and stores every trial and the best in `store`.

    `device` is the index of the GPU that `target` describes. None: there is none, and the result is modelled, not measured.
    `budget` (default 60 s) is the most that this and earlier runs for the same problem, GPU and compiler may spend: a search
    ends before it where little is left to find. Where earlier runs leave nothing to do the outcome is theirs and nothing is
    compiled. `sampler`: posterior, tpe, random or ranking. `cache` keeps cubins (default: kgen's cache folder). `idle`:
    from where this run takes its worker, and where it leaves it to the next. `first`: configs to measure at
    once, after the default. `within`: the spaces to search; what is found there is stored as the best of them, not as the
    best of the problem. Ctrl-C ends the search and returns the best so far; KeyboardInterrupt where there is none.

    Raises ArgumentError for an empty problem, ConfigError where no config is valid, ToolchainError without NVRTC,
    CacheError where nothing can be compiled into the cache, DeviceError where the GPU cannot be used, DatabaseError where
    nothing can be stored.
    """
    if sampler not in SAMPLERS:
        raise ArgumentError(f"unknown sampler {sampler!r}; expected one of {', '.join(SAMPLERS)}")
    problem = normalised(problem)
    if problem.empty:
        raise ArgumentError(f"{problem} has no element to compute: there is nothing to tune")
    budget, progress = budget or Budget(), progress or Silent()
    origin = MODELLED if device is None else MEASURED
    progress.begin(problem, budget, origin)
    run = Run(problem, target, store, budget, origin, progress, within)
    found = run.finished()
    if found is not None:
        return found
    cache = cache or CubinCache()
    if device is None:
        from kgen.tuner.modelled import tune_modelled

        return tune_modelled(run, cache)
    from kgen.tuner.measured import Measured
    from kgen.tuner.supervisor import Supervisor

    return Measured(run, device, sampler, seed, cache, functools.partial(Supervisor, idle=idle), first=first).tune()
