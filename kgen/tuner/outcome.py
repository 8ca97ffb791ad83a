"""Outcome: what a tuning run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.tuning_db import MEASURED, TrialRecord


@dataclass(frozen=True)
class Outcome:
    """The best config known for a problem after a run, and how it was found.

    `trial` is the stored record of the winner: measured (`seconds`) or modelled (`modelled_seconds`), never both.
    `comparison` is what is stored with it: "search" (seconds, trials, exhausted, space), and, where measured, "final", the
    timings of the last round by config, with "default", "opponent", "beats_default" and "beats_opponent". `counts` are the
    new trials of this run by status. `cached` means that nothing was compiled or tried. `elapsed` in seconds.
    """

    problem: NormalProblem
    config: Schedule
    trial: TrialRecord
    comparison: Mapping[str, Any] = field(hash=False)
    counts: Mapping[str, int] = field(hash=False)
    elapsed: float
    cached: bool = False
    interrupted: bool = False
    #: Of the launches before, in order, where an operator takes several.
    earlier: tuple[Outcome, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the winner's time was measured on a GPU."""
        return bool(self.trial.origin == MEASURED)

    @property
    def trials(self) -> int:
        """How many configs this run tried."""
        return sum(self.counts.values())
