"""Progress of a tuning run on stderr: a bar on a terminal, and a line for each problem."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from kgen.cli.output import note, raw, trial_time, visible

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.tuner.budget import Budget
    from kgen.tuner.outcome import Outcome
    from kgen.tuning_db import TrialRecord


class Lines:
    """One line when a problem ends. `outcomes` are those that were reached: stored, whatever happens afterwards."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def begin(self, problem: Problem, budget: Budget, origin: str) -> None:
        self.begun = time.monotonic()

    def stage(self, text: str) -> None:
        pass

    def space(self, count: int, known: int) -> None:
        told = f", {known} known" if known else ""
        self.told = f"{count} configs{told}"

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        pass

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        found = "known from before" if outcome.cached else f"{outcome.trials} of {self.told} tried"
        note(f"{outcome.problem}: {trial_time(outcome.trial)} ({found}, {outcome.elapsed:.1f} s)")

    def close(self) -> None:
        pass


class Bar(Lines):
    """The same with a bar between the two that fills as the budget is spent."""

    def __init__(self) -> None:
        super().__init__()
        from rich import progress
        from rich.console import Console

        columns = (
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.TextColumn("{task.fields[told]}", markup=False),
            progress.TimeElapsedColumn(),
        )
        self.bar = progress.Progress(*columns, console=Console(file=raw(sys.stderr)), transient=True)
        self.task: Any = None
        self.tried = 0

    def begin(self, problem: Problem, budget: Budget, origin: str) -> None:
        super().begin(problem, budget, origin)
        self.budget, self.tried = budget, 0
        total = budget.seconds if budget.seconds is not None else budget.trials
        self.task = self.bar.add_task(visible(str(problem)), total=total if origin == "measured" else None, told="")
        self.bar.start()

    def stage(self, text: str) -> None:
        self._update(text)

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        self.tried += 1
        self._update(f"{self.tried} tried, best {trial_time(best)}" if best else f"{self.tried} tried")

    def _update(self, told: str) -> None:
        spent = time.monotonic() - self.begun if self.budget.seconds is not None else self.tried
        self.bar.update(self.task, completed=spent, told=visible(told))

    def end(self, outcome: Outcome) -> None:
        self.close()
        super().end(outcome)

    def close(self) -> None:
        """Clears the bar."""
        if self.task is not None:
            self.bar.stop()
            self.bar.remove_task(self.task)
            self.task = None


def progress() -> Lines:
    """The one that suits stderr."""
    return Bar() if sys.stderr.isatty() else Lines()
