"""kgen fit: the constants of the cost models, fitted to times that were measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import options
from kgen.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from kgen.cli.trials import Times
    from kgen.dsl.target import Target
    from kgen.tuner.fit import Regret

_HEADER = ("model", "choice", "problems", "mean", "90th", "worst")


def run(
    grid: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Times of a grid (benchmarks/grid.py) instead of a database's. Repeatable."),
    ] = None,
    gpu: options.Gpu = "auto",
    db: options.Database = None,
    held_out: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, metavar="SHARE", help="Of the problems, kept from the fit to tell its regret."),
    ] = 0.25,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The machine's file; default: where kgen looks for it.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Fit the cost models to measured times.

    Prints the regret of the model's first choice, and of the best of its first four, on problems that the fit has not seen. A
    model's constants are taken where the first choice got no worse there. Defaults, and the order in which configs are tried,
    follow from them at once.
    """
    from kgen.cli.trials import by_model
    from kgen.dsl.errors import ArgumentError
    from kgen.dsl.machine import Fitted, Machine
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.fit import fit
    from kgen.tuning_db import machines

    target = find_gpu(gpu).target
    measured = by_model(_times(grid or [], db, target))
    if not measured:
        raise ArgumentError(f"nothing was measured on {target} that a model could be fitted to; kgen tune measures")
    models = {
        n: m for known in reversed(machines.machines()) if known.gpu == target.name for n, m in known.models.items()
    }
    rows: list[tuple[str, ...]] = []
    told = {}
    taken: dict[str, Fitted] = {}
    for kind, times in sorted(measured.items(), key=lambda item: item[0].model):
        note(f"fitting {kind.model} to {len(times)} problems")
        try:
            done = fit(kind, times, machines.constants(kind, target), target, held_out)
        except ArgumentError as error:
            note(str(error))
            continue
        count = sum(len(m.times) for m in times)
        if done.after.first[0] <= done.before.first[0]:
            taken[kind.model] = done.fitted(
                f"{count} times of {len(times)} problems by kgen fit, {held_out:.0%} held out"
            )
        told[kind.model] = {**asdict(done), "taken": kind.model in taken}
        for when, regret in (("before", done.before), ("after", done.after)):
            rows += [_row(kind.model, f"first, {when}", regret, regret.first)]
            rows += [_row("", f"best of four, {when}", regret, regret.of_four)]
    if taken:
        path = out or machines.user_folder() / machines.file_name(target.name)
        machines.write_machine(path, Machine(target.name, {**models, **taken}))
        machines.forget()
        note(f"wrote {path}, with new constants of {', '.join(taken)}")
    else:
        note("wrote nothing: no model's first choice got better")
    if json:
        print_json(told)
    else:
        print_table(_HEADER, rows)


def _times(grids: list[Path], db: str | None, target: Target) -> Iterator[Times]:
    from kgen.cli import machine
    from kgen.cli.trials import of_database, of_grid
    from kgen.dsl.errors import DatabaseError
    from kgen.tuner import records

    for path in grids:
        yield from of_grid(path, target.name)
    if not grids:
        store = machine.existing_database(db, True)
        if store is None:
            raise DatabaseError("no tuning database yet; kgen tune makes one")
        with store:
            yield from of_database(store, records.gpu_facts(target))


def _row(model: str, choice: str, regret: Regret, told: tuple[float, float, float]) -> tuple[str, ...]:
    return (model, choice, str(regret.problems), *(f"{value:.1%}" for value in told))
