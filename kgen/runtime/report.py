"""Report: what a warm-up met and did, as data and as a table, printed by itself or by rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kgen.dsl.problem import Problem
from kgen.runtime.dispatch import Choice
from kgen.tuner.outcome import Outcome

HEADER = ("operator", "problem", "config", "source", "seconds", "tuning")


@dataclass
class Met:
    """A problem that an operator met: the config of each launch and how it was found, and the seconds of compiling and loading.

    `outcome` is that of its tuning, where it was tuned.
    """

    name: str
    problem: Problem
    choices: Sequence[Choice]
    seconds: float = 0.0
    outcome: Outcome | None = None

    @property
    def untuned(self) -> bool:
        """Whether a launch has no config that was tuned for it, or given."""
        return any(choice.how in ("nearest", "default") for choice in self.choices)

    @property
    def row(self) -> tuple[str, ...]:
        """What the table has of it."""
        return (
            self.name,
            str(self.problem),
            "; ".join(repr(choice.config) for choice in self.choices),
            "; ".join(dict.fromkeys(choice.told for choice in self.choices)),
            f"{self.seconds:.2f}",
            "-" if self.outcome is None else _told(self.outcome),
        )


@dataclass
class Report:
    """The problems of a warm-up, in the order in which they were met, each once."""

    problems: list[Met] = field(default_factory=list)

    def add(self, met: Met) -> None:
        """Adds a problem; of one that is there, its seconds."""
        for known in self.problems:
            if (known.name, known.problem) == (met.name, met.problem):
                known.seconds += met.seconds
                return
        self.problems.append(met)

    @property
    def seconds(self) -> float:
        """Seconds of compiling and loading, of all threads together."""
        return sum(met.seconds for met in self.problems)

    def __str__(self) -> str:
        rows = [HEADER, *(met.row for met in self.problems)]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(cell.ljust(n) for cell, n in zip(row, widths)).rstrip() for row in rows)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(*HEADER, box=None, pad_edge=False)
        for met in self.problems:
            table.add_row(*map(Text, met.row))
        return table


def _told(outcome: Outcome) -> str:
    outcomes = (*outcome.earlier, outcome)
    kind = "measured" if outcome.measured else "modelled"
    factor = outcome.comparison.get("speedup_over_default")
    told = f", {factor:.2f}x the default" if factor is not None and len(outcomes) == 1 else ""
    return f"{sum(one.trials for one in outcomes)} trials, {kind}{told}"
