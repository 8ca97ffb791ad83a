"""Tuning from Python: which GPU, which database, and that later calls see the result."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from kgen.codegen.settings import database
from kgen.dsl.errors import ArgumentError
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.restriction import UNRESTRICTED, Restriction
from kgen.dsl.target import Target
from kgen.runtime import dispatch
from kgen.runtime.machine import Machine, find_gpu
from kgen.tuner.budget import Budget
from kgen.tuner.outcome import Outcome
from kgen.tuner.progress import Progress
from kgen.tuner.supervisor import KEPT, IdleWorkers
from kgen.tuner.tune import tune
from kgen.tuning_db import Store, open_store


def tune_problem(
    problem: Problem,
    *,
    budget: str | Budget,
    gpu: int | str | Target | None,
    progress: Progress | None = None,
    idle: IdleWorkers = KEPT,
    restriction: Restriction = UNRESTRICTED,
) -> Outcome:
    """Tunes a problem, each of its launches, with the user's database; see `KernelOperator.tune`.

    `idle`: from where it takes its worker, and where it leaves it to the next.
    """
    spent = Budget.parse(budget) if isinstance(budget, str) else budget
    if not isinstance(spent, Budget):
        raise ArgumentError(f"a budget is a text such as '60s' or '200', got {type(budget).__name__} {budget!r}")
    if problem.empty:
        raise ArgumentError(f"{problem} has no element to compute: there is nothing to tune; expected sizes above 0")
    here = find_gpu("auto" if gpu is None else gpu)
    if not here.found:
        warnings.warn(
            f"no GPU found: configs are ranked by the cost model for {here.target} and checked on the emulator; name a GPU, "
            f"such as gpu='H200', to model that one",
            dispatch.KgenWarning,
            stacklevel=3,
        )
    with open_store(database()) as store:
        outcomes = [
            tune_on(here, launch, store, restriction, budget=spent, progress=progress, idle=idle)
            for launch in program_of(problem).launches
            if not launch.empty
        ]
    dispatch.forget()
    return replace(outcomes[-1], earlier=tuple(outcomes[:-1]))


def tune_on(
    here: Machine, problem: Problem, store: Store, restriction: Restriction = UNRESTRICTED, **options: Any
) -> Outcome:
    """Tunes a problem for the GPU that is meant, with the options of kgen.tuner.tune; what served before is measured first."""
    served = dispatch.choose(problem, here.target, store, restriction).config
    within = restriction.within(normalised(problem), here.target)
    return tune(problem, target=here.target, device=here.device, store=store, first=[served], within=within, **options)
