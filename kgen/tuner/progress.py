"""Progress: what a tuning run tells of itself while it goes on. The command line draws it."""

from __future__ import annotations

from typing import Protocol

from kgen.dsl.problem import Problem
from kgen.tuner.budget import Budget
from kgen.tuner.outcome import Outcome
from kgen.tuning_db import TrialRecord


class Progress(Protocol):
    """Receives events, in this order: begin, stage, space, then any number of trial and stage, then end."""

    def begin(self, problem: Problem, budget: Budget, origin: str) -> None:
        """A run starts; `origin` is "measured" or "modelled"."""

    def stage(self, text: str) -> None:
        """What is being done now, in a few words."""

    def space(self, count: int, known: int) -> None:
        """How many configs are valid, and how many of them are known from before."""

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        """A config was tried and stored; `best` is the best so far."""

    def end(self, outcome: Outcome) -> None:
        """The run is over."""


class Silent:
    """Says nothing."""

    def begin(self, problem: Problem, budget: Budget, origin: str) -> None:
        pass

    def stage(self, text: str) -> None:
        pass

    def space(self, count: int, known: int) -> None:
        pass

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        pass

    def end(self, outcome: Outcome) -> None:
        pass
