"""kgen tune: the fastest config for each problem, found, verified and stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgen.cli import options
from kgen.cli.output import config_told, format_time, note, print_json, print_table, trial_json, trial_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.cli.jobs import Job
    from kgen.cli.ranges import Piece
    from kgen.dsl.problem import Problem
    from kgen.runtime.machine import Machine
    from kgen.runtime.operator import KernelOperator
    from kgen.tuner.budget import Budget
    from kgen.tuner.outcome import Outcome
    from kgen.tuning_db import Store

_INTERRUPTED = 130


def run(
    op: options.OptionalOperator = None,
    shape: options.Shapes = None,
    suite: options.Suite = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    gpu: options.Gpu = "auto",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="60s|200",
            help="The most for each problem, 60s without it, or for a range, 5m: a time (60s, 2m, 1h) or a number of trials.",
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="How configs are proposed: posterior, tpe, random or ranking.")
    ] = "posterior",
    db: options.Database = None,
    backward: options.Backward = False,
    deferred: Annotated[
        bool, typer.Option("--deferred", help="Tune what was first called while a CUDA graph was captured; without OP.")
    ] = False,
    checks: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of a range: at how many random sizes its buckets are checked.")
    ] = 32,
    kernels: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of a range: of how many kernels its buckets are at most.")
    ] = 96,
    whole: options.Whole = False,
    json: options.Json = False,
) -> None:
    """Find the fastest config for an operator and store it.

    A range of sizes, --shape M=1..8192,N=64,K=64 (or M=64..8192:64, or M=1,8,64), is tuned to buckets: parts of it that one
    config serves each, with what they lose to the best; --budget is then for all of the range, of each launch.
    Without --shape the operator's default suite is tuned. A search ends where little is left to find, at the latest with
    the budget. Every trial is stored at once, and what is known is not tried again; Ctrl-C keeps what is done. Where the GPU
    is not in this machine, configs are ranked by the cost model, compiled, run on the emulator and stored as modelled: nothing
    of that is a measurement.
    """
    from kgen.cli import jobs, machine, problems, progress, ranges
    from kgen.dsl.errors import ArgumentError
    from kgen.runtime import dispatch
    from kgen.runtime.machine import find_gpu
    from kgen.runtime.tuning import tune_on
    from kgen.tuner.budget import Budget
    from kgen.tuner.search import SAMPLERS
    from kgen.tuner.supervisor import idle_workers

    # All that can be wrong is found before anything is written.
    named = (shape, suite, dtype, transposed, layout, schedule, fields, backward or None)
    if deferred == (op is not None) or (deferred and any(option is not None for option in named)):
        raise ArgumentError("expected an operator with its options, or --deferred without any of them: kgen tune OP")
    ranged = [ranges.Range.parse(text) for text in shape or () if ranges.is_range(text)]
    if ranged and (backward or len(ranged) < len(shape or ())):
        raise ArgumentError(
            f"the range {ranged[0].text} was given beside another shape or --backward; expected ranges alone"
        )
    chosen = []
    if op is not None:
        operator = problems.restricted(op, schedule, fields)
        ends = [end for one in ranged for end in one.ends]
        asked = problems.select(operator, ends or shape, suite, dtype, transposed, layout)
        pieces = ranges.pieces(
            ranged, lambda text: problems.select(operator, [text], None, dtype, transposed, layout)[0]
        )
        chosen = jobs.of_operator(operator, problems.of_training(operator, asked) if backward else asked)
    # A range of one dimension searches some ten problems, 2 to 8 s each, before it times others.
    spent = Budget.parse(budget if budget is not None else "5m" if ranged else "60s")
    if sampler not in SAMPLERS:
        raise ArgumentError(f"unknown sampler {sampler!r}; expected one of {', '.join(SAMPLERS)}")
    here = find_gpu(gpu)
    for job in chosen:
        dispatch.default(job.problem, here.target, job.operator.restriction)
    with machine.open_database(db) as store:
        _tell(here)
        if ranged:
            _tune_ranges(operator, pieces, here, store, spent, sampler, checks, kernels, whole, json)
            return
        if op is None:
            chosen = jobs.of_notes(store, here.target)
            note(f"{len(chosen)} launches are deferred on {here.target}")
        elif not shape and suite is None:
            note(problems.suite_told(operator, asked, "tuning"))
        shown = progress.progress()
        interrupted = False
        try:
            with idle_workers() as idle:
                for job in chosen:
                    outcome = tune_on(
                        here,
                        job.problem,
                        store,
                        job.operator.restriction,
                        budget=spent,
                        sampler=sampler,
                        progress=shown,
                        idle=idle,
                    )
                    if outcome.interrupted:
                        raise KeyboardInterrupt
                    if job.settles is not None and outcome.measured:
                        store.settle(job.settles)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            shown.close()
            done = shown.outcomes
            if done or interrupted or not chosen:
                _report(op, chosen, done, here, store.where, whole, json)
    if interrupted:
        note(f"interrupted after {len(done)} of {len(chosen)} problems; what was done is stored in {store.where}")
        raise typer.Exit(_INTERRUPTED)


def _tune_ranges(
    operator: KernelOperator,
    pieces: Sequence[Piece],
    here: Machine,
    store: Store,
    budget: Budget,
    sampler: str,
    checks: int,
    kernels: int,
    whole: bool,
    json: bool,
) -> None:
    from kgen.cli import progress, ranges
    from kgen.tuner.supervisor import idle_workers

    shown = progress.progress()
    try:
        with idle_workers() as idle:
            interrupted = ranges.tune(
                operator,
                pieces,
                here,
                store,
                whole=whole,
                json=json,
                budget=budget,
                sampler=sampler,
                checks=checks,
                kernels=kernels,
                progress=shown,
                idle=idle,
            )
    finally:
        shown.close()
    if interrupted:
        note(f"interrupted; what was done is stored in {store.where}")
        raise typer.Exit(_INTERRUPTED)


def _tell(here: Machine) -> None:
    """Says what is done instead of measuring, where the GPU is not here."""
    if here.device is not None:
        return
    if here.found:
        note(f"{here.target} is not in this machine")
    else:
        note(f"found no GPU: tuning for {here.target}, the most likely one; --gpu names another")
    note(
        f"configs are ranked by the cost model for {here.target}, the best are compiled and run on the emulator, and "
        f"stored as modelled; nothing is measured"
    )


def _report(
    op: str | None,
    jobs: Sequence[Job],
    outcomes: Sequence[Outcome],
    here: Machine,
    database: str,
    whole: bool,
    json: bool,
) -> None:
    origin = "modelled" if here.device is None else "measured"
    # What is restricted is one operator with its restriction; what was put off is not restricted.
    operator = jobs[0].operator if jobs and op else None
    space = str(operator.restriction) if operator else ""
    if json:
        told = [_as_json(job.problem, outcome, here, job.operator) for job, outcome in zip(jobs, outcomes)]
        facts = {"operator": operator.__name__ if operator else None, "space": space, "gpu": str(here.target)}
        facts |= {"origin": origin, "database": database}
        print_json({**facts, "requested": len(jobs), "results": told})
    elif outcomes:
        header = ("problem", f"{origin} time", f"{origin} vs default", "vs torch", "trials", "config")
        rows = [_row(job.problem, outcome, here, job.operator, whole) for job, outcome in zip(jobs, outcomes)]
        print_table(header, rows)
        among = f" as the best of {space}" if space else ""
        note(f"stored in {database}{among}")


def _row(problem: Problem, outcome: Outcome, here: Machine, operator: KernelOperator, whole: bool) -> tuple[str, ...]:
    counts = ", ".join(f"{number} {status}" for status, number in outcome.counts.items())
    time = trial_time(outcome.trial) if outcome.measured else format_time(outcome.trial.modelled_seconds or 0.0)
    return (
        str(problem),
        time,
        _factor(_over_default(outcome, here, operator)),
        _factor(outcome.comparison.get("speedup_over_opponent")),
        "none, it was known" if outcome.cached else counts,
        config_told(outcome.config, problem, here.target, whole),
    )


def _over_default(outcome: Outcome, here: Machine, operator: KernelOperator) -> float | None:
    """How many times the winner is faster than the default config: as measured beside it, or by the model."""
    from kgen.runtime import dispatch

    if outcome.measured:
        return outcome.comparison.get("speedup_over_default")
    default = dispatch.default(outcome.problem, here.target, operator.restriction).config
    return default.estimate(outcome.problem, here.target) / outcome.config.estimate(outcome.problem, here.target)


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"


def _as_json(problem: Problem, outcome: Outcome, here: Machine, operator: KernelOperator) -> dict[str, Any]:
    from kgen.cli.problems import as_json

    return {
        **as_json(problem),
        "config": repr(outcome.config),
        "trial": trial_json(outcome.trial),
        "origin": outcome.trial.origin,
        "speedup_over_default": _over_default(outcome, here, operator),
        "comparison": dict(outcome.comparison),
        "trials": dict(outcome.counts),
        "cached": outcome.cached,
        "interrupted": outcome.interrupted,
        "elapsed_seconds": outcome.elapsed,
    }
