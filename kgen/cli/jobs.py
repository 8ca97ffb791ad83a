"""What `kgen tune` has to do: the problems of an operator, or those that calls in captures have put off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.cli import problems
from kgen.cli.output import note
from kgen.dsl.errors import KgenError
from kgen.dsl.program import program_of

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.dsl.target import Target
    from kgen.runtime.operator import KernelOperator
    from kgen.tuning_db import DeferredRecord, Store


@dataclass(frozen=True)
class Job:
    """A launch to tune. `settles` is the note that it is the last launch of."""

    operator: KernelOperator
    problem: Problem
    settles: int | None = None


def of_operator(operator: KernelOperator, asked: Sequence[Problem]) -> list[Job]:
    """The launches of an operator's problems."""
    return [Job(operator, launch) for problem in asked for launch in program_of(problem).launches]


def of_notes(store: Store, target: Target) -> list[Job]:
    """The launches of what was put off on this GPU. Says what is left out: notes of other GPUs, and what is not found again."""
    from kgen.tuner import records

    noted = store.deferred()
    here = [record for record in noted if record.gpu.key == records.gpu_facts(target).key]
    if len(here) < len(noted):
        note(f"{len(noted) - len(here)} problems are deferred on other GPUs than {target}")
    return [job for record in here for job in _of_note(record, store)]


def _of_note(record: DeferredRecord, store: Store) -> Iterator[Job]:
    """Its launches. A note whose operator is another now is taken off, one whose file cannot be loaded is kept."""
    from kgen.runtime import deferred

    try:
        operator = problems.find_operator(record.place)
    except KgenError as error:
        note(f"{record.problem.operator} of {record.place} is left out: {error}")
        return
    try:
        problem = deferred.problem_of(record, operator.definition)
    except KgenError as error:
        note(str(error))
        store.settle(record.id)
        return
    *first, last = program_of(problem).launches
    yield from (Job(operator, launch) for launch in first)
    yield Job(operator, last, record.id)
