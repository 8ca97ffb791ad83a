"""The measured search with a pretended GPU behind a real worker process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.gpu.cache import CubinCache
from kgen.tuner.budget import Budget
from kgen.tuner.candidates import Candidates
from kgen.tuner.measured import Measured
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Silent
from kgen.tuner.run import Run
from kgen.tuner.supervisor import Supervisor
from kgen.tuning_db import MEASURED, Store, TrialRecord

FAKE = Path(__file__).with_name("fake_worker.py")


class Watcher(Silent):
    """Keeps the events, and may act on a trial."""

    def __init__(self, on_trial: Callable[[int], None] = lambda count: None) -> None:
        self.events: list[str] = []
        self.trials: list[TrialRecord] = []
        self.on_trial = on_trial

    def stage(self, text: str) -> None:
        self.events.append(text)

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        self.trials.append(trial)
        self.on_trial(len(self.trials))


def measure(
    problem: Problem,
    target: Target,
    store: Store,
    cubins: CubinCache,
    log: Path,
    budget: Budget,
    *,
    progress: Silent | None = None,
    some: list[Schedule] | None = None,
    within: Sequence[SearchSpace] | None = None,
    limits: tuple[float, float, float] = (60, 20, 20),
    whole: bool = False,
    **options: Any,
) -> Outcome:
    """The measured search with the fake worker."""
    run = Run(problem, target, store, budget, MEASURED, progress or Watcher(), within)
    found = run.finished()
    if found is not None:
        return found
    supervise = functools.partial(Supervisor, command=(sys.executable, str(FAKE), str(log)), limits=limits)
    candidates = Candidates(problem, target, only=some) if some else None  # else all, or those within
    search = Measured(run, 0, options.get("sampler", "tpe"), 0, cubins, supervise, candidates, whole=whole)
    return search.tune()
