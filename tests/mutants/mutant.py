"""Mutants: small bugs that somebody might make in a template or in what generates text, each as a row of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]

Kind = Literal[
    "index", "tail", "phase", "barrier", "race", "fence", "sum", "precision", "initial", "special", "stride", "32-bit",
    "atomic", "workspace", "overlap", "random", "scale",
]  # fmt: skip


@dataclass(frozen=True)
class Where:
    """What renders a mutant's code: an operator, a shape as the command line takes it, and a config.

    The config is the schedule's default for the problem, with `fields` set; where that breaks a rule, the nearest one with
    these fields that breaks none. `options` are further words of the command line, such as --dtype or --transposed.
    """

    operator: str
    shape: str
    schedule: str
    fields: Mapping[str, int | str | bool] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class Mutant:
    """`old` in `file`, where it occurs once, becomes `new`. `unseen` says why nothing that runs on a CPU can tell."""

    name: str
    kind: Kind
    file: str
    old: str
    new: str
    where: Where
    unseen: str = ""

    @property
    def visible(self) -> bool:
        return not self.unseen

    def applied(self) -> str:
        """The file's text with the bug. ValueError where its place is not found exactly once."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: found {text.count(self.old)} times in {self.file}, expected once: {self.old!r}"
            )
        return text.replace(self.old, self.new)


def on(operator: str, shape: str, schedule: str, *options: str, **fields: int | str | bool) -> Where:
    """A Where."""
    return Where(operator, shape, schedule, fields, options)


def all_mutants() -> dict[str, Mutant]:
    """Every mutant by its name."""
    import attention_mutants
    import coordination_mutants
    import gemm_mutants
    import gradient_mutants
    import linear_attention_mutants
    import move_mutants
    import place_mutants
    import row_mutants
    import scatter_mutants
    import third_mutants
    import wgmma_mutants

    modules = (
        gemm_mutants,
        wgmma_mutants,
        row_mutants,
        move_mutants,
        scatter_mutants,
        attention_mutants,
        gradient_mutants,
        linear_attention_mutants,
        coordination_mutants,
        place_mutants,
        third_mutants,
    )
    rows = [mutant for module in modules for mutant in module.MUTANTS]
    found = {mutant.name: mutant for mutant in rows}
    assert len(found) == len(rows), "two mutants of one name"
    return found
