"""Run: one tuning run's dealings with the database: what is known, what is stored, what it has spent."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kgen.dsl.errors import KgenError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.target import Target
from kgen.tuner.budget import Budget
from kgen.tuner.build import Built
from kgen.tuner.candidates import Candidates
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Progress
from kgen.tuner.records import as_json, config_text, gpu_facts, problem_key, read_config, space_text, toolchain
from kgen.tuning_db import MEASURED, Store, TrialRecord


class Run:
    """A run for a normalised problem. `origin` is "measured" or "modelled"; `budget` is what this and earlier runs may spend.

    `within`: the spaces to search, where these are not all configs of the family.
    """

    def __init__(
        self,
        problem: NormalProblem,
        target: Target,
        store: Store,
        budget: Budget,
        origin: str,
        progress: Progress,
        within: Sequence[SearchSpace] | None = None,
    ) -> None:
        self.problem, self.target, self.store, self.budget = problem, target, store, budget
        self.within, self.space = within, space_text(within)
        self.origin, self.progress = origin, progress
        self.begun = time.monotonic()
        self.gpu, self.toolchain, self.key = gpu_facts(target), toolchain(), problem_key(problem)
        self.candidates: Candidates | None = None  # what is searched, once that is counted
        self.counts: Counter[str] = Counter()
        self.wrong: Mapping[str, Any] = {}  # what was seen of the last config that was wrong
        self.made: Outcome | None = None  # the outcome, once there is one
        self.best: TrialRecord | None = None
        store.refresh()
        stored = store.best(self.key, self.gpu, origin, self.toolchain, self.space)
        self.stored = stored if stored is not None and self._is_current(stored.trial) else None
        self.spent: dict[str, Any] = dict(self.stored.comparison.get("search", {})) if self.stored else {}

    def _is_current(self, trial: TrialRecord) -> bool:
        """Whether a stored trial is about a kernel that would be generated the same today."""
        config = read_config(trial.config, self.within)
        if config is None or config.broken(self.problem, self.target):
            return False
        try:
            return bool(config.source(self.problem).digest == trial.source_digest)
        except KgenError:
            return False

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    def finished(self) -> Outcome | None:
        """The outcome of earlier runs where they leave this one nothing to do."""
        if self.stored is None or not self.stored.trial.verified or self.stored.comparison.get("provisional"):
            return None
        if not self.budget.covered_by(self.spent):
            return None
        return self.outcome(self.stored.trial, self.stored.comparison, cached=True)

    def known(self, unverified: bool = False) -> dict[Schedule, TrialRecord]:
        """The candidates tried before, with the latest record of each; those of other kernels are left out.

        With `unverified`, also those that nobody has seen run yet: of which no other record is known. None while what is
        searched is not counted: the database also has configs of other spaces.
        """
        if self.candidates is None:
            return {}
        found: dict[Schedule, TrialRecord] = {}
        for trial in self.store.trials(self.key, self.gpu, self.toolchain, self.origin):
            config = read_config(trial.config, self.within)
            if config is None or config not in self.candidates:
                continue
            if trial.verified or (unverified and config not in found):
                found[config] = trial
        return {config: trial for config, trial in found.items() if self._is_current(trial)}

    def interrupted(self, **search: Any) -> Outcome | None:
        """The outcome of a run that was interrupted: the best of what is stored; None where that is nothing.

        The database is asked, for an interrupt may come between storing a trial and taking note of it.
        """
        if self.made is not None:  # it came after the end
            return dataclasses.replace(self.made, interrupted=True)
        if self.stored is not None and not self.counts:
            return self.outcome(self.stored.trial, self.stored.comparison, interrupted=True)
        best = fastest(self.known())
        if best is None:
            return None
        return self.finish(best, {"search": self.search(**search), "provisional": True}, interrupted=True)

    def add(self, built: Built, status: str, evidence: Mapping[str, Any] | None = None, **values: Any) -> TrialRecord:
        """Stores what became of a config, at once, and tells of it. The best so far is kept as the best in the database."""
        trial = trial_of(built, status, self.origin, evidence, **values)
        stored = self._store(trial)
        self.counts[status] += 1
        if status == "wrong":
            self.wrong = trial.evidence
        if status == "ok" and stored.verified and (self.best is None or time_of(stored) < time_of(self.best)):
            self.best = stored
            if self.stored is None or self.stored.comparison.get("provisional"):
                # Not yet compared with anything, but a run that is killed now has left its best.
                self.store.set_best(_id(stored), {"search": self.search(), "provisional": True}, self.space)
        self.progress.trial(stored, self.best)
        return stored

    def _store(self, trial: TrialRecord) -> TrialRecord:
        number = self.store.add_trial(self.gpu, self.toolchain, self.key, trial)
        return TrialRecord(**{**vars(trial), "id": number})

    def refine(self, trial: TrialRecord, **values: Any) -> TrialRecord:
        """Stores a trial's config once more, with a better time."""
        return self._store(TrialRecord(**{**vars(trial), "id": None, "created_at": None, **values}))

    def search(self, completed: bool = False, **more: Any) -> dict[str, Any]:
        """What this and earlier runs have spent. A run that is `completed` has used up the seconds of its budget."""
        seconds = self.spent.get("seconds", 0.0) + self.elapsed
        return {
            "seconds": round(max(seconds, self.budget.seconds or 0.0) if completed else seconds, 3),
            "trials": self.spent.get("trials", 0) + sum(self.counts.values()),
            **more,
        }

    def finish(self, winner: TrialRecord, comparison: dict[str, Any], interrupted: bool = False) -> Outcome:
        """Makes a stored trial the best of the problem."""
        self.store.set_best(_id(winner), comparison, self.space)
        return self.outcome(winner, comparison, interrupted=interrupted)

    def outcome(
        self, trial: TrialRecord, comparison: Any, *, cached: bool = False, interrupted: bool = False
    ) -> Outcome:
        config = read_config(trial.config, self.within)
        assert config is not None, f"stored config {trial.config.text} was current a moment ago"
        made = Outcome(self.problem, config, trial, comparison, dict(self.counts), self.elapsed, cached, interrupted)
        self.made = made
        self.progress.end(made)
        return made


def trial_of(
    built: Built, status: str, origin: str, evidence: Mapping[str, Any] | None = None, **values: Any
) -> TrialRecord:
    """What became of a config, as a record that is not stored yet."""
    binary = built.binary
    return TrialRecord(
        config=config_text(built.config),
        status=status,
        origin=origin,
        source_digest=built.source.digest,
        registers=binary.registers if binary else None,
        spills=binary.spill_stores + binary.spill_loads if binary else None,
        shared=binary.shared_static + built.source.launch.shared_bytes if binary else None,
        evidence=as_json(evidence or {}),
        **values,
    )


def fastest(known: Mapping[Schedule, TrialRecord]) -> TrialRecord | None:
    """The fastest of the trials that are ok."""
    return min((trial for trial in known.values() if trial.status == "ok"), key=time_of, default=None)


def time_of(trial: TrialRecord) -> float:
    """The time of a trial that is ok, in seconds: measured or modelled, as its origin says."""
    value: float | None = trial.seconds if trial.origin == MEASURED else trial.modelled_seconds
    assert value is not None, f"trial {trial.config.text} has no time"
    return value


def _id(trial: TrialRecord) -> int:
    number: int | None = trial.id
    assert number is not None, "the trial was not stored"
    return number
