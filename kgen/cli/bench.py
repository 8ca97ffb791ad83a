"""kgen bench: kgen measured beside its opponents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kgen.cli import options
from kgen.cli.output import note, print_table, write_text


class _JsonToFile(TyperCommand):
    """Lets `--json` stand without a file: then the JSON goes to stdout."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for at in [i for i, text in enumerate(args) if text == "--json"]:
            following = args[at + 1 : at + 2]
            if not following or (following[0].startswith("-") and following[0] != "-"):
                args = [*args[:at], "--json=-", *args[at + 1 :]]
        return super().parse_args(ctx, args)


SETTINGS = {"cls": _JsonToFile}


def run(
    op: options.Operator,
    shape: options.Shapes = None,
    suite: options.Suite = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    vs: Annotated[
        str, typer.Option(metavar="NAMES", help="Opponents: cublas, torch, compile, triton, copy; separated by commas.")
    ] = "torch",
    gpu: options.Gpu = "auto",
    variants: Annotated[
        bool, typer.Option("--variants", help="Also a row for each technique that the schedules name (kgen show OP).")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="20s|100", help="With --variants: tune each technique and then OP first, each for at most so long."
        ),
    ] = None,
    between: Annotated[
        bool,
        typer.Option(
            "--between", help="Also time calls with another kernel between any two, so that none overlaps its like."
        ),
    ] = False,
    host: Annotated[
        bool,
        typer.Option(
            "--host", help="Instead: the host's time of a warm call, beside torch's; of the smallest problem."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the operands.")] = 0,
    db: options.Database = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="[FILE]", help="Write JSON to FILE; without FILE, to stdout alone."),
    ] = None,
) -> None:
    """Measure an operator beside what you would use instead.

    On the same operands, in one process, in turns. Needs a GPU. Tune first: the config is the best one known.
    """
    from pathlib import Path

    from kgen.bench import opponent_names
    from kgen.cli import problems
    from kgen.dsl.errors import ArgumentError, DeviceError
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.budget import Budget

    operator = problems.restricted(op, schedule, fields)
    chosen = problems.select(operator, shape, suite, dtype, transposed, layout)
    opponents = [name.strip() for name in vs.split(",")]
    unknown = [name for name in opponents if name not in opponent_names()]
    if unknown or len(set(opponents)) < len(opponents):
        told = f"unknown opponent {unknown[0]!r}" if unknown else f"an opponent is named twice in {vs!r}"
        raise ArgumentError(f"{told}; expected some of {', '.join(opponent_names())}")
    if json is not None and json != "-" and not Path(json).absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {json}: there is no such folder; name another file")
    if budget is not None and not variants:
        raise ArgumentError("--budget is for --variants; kgen tune finds the config that is measured else")
    if host and (variants or between or json is not None):
        raise ArgumentError("--host prints a table of its own; expected it without --variants, --between and --json")
    spent = None if budget is None else Budget.parse(budget)
    here = find_gpu(gpu)
    if here.device is None:
        missing = f"{here.target} is not in this machine" if here.found else "no GPU was found"
        raise DeviceError(f"{missing}: a benchmark measures on a GPU, the emulator's times mean nothing")
    if host:
        _host(operator, chosen if shape or suite else [min(chosen, key=lambda one: one.bytes)], here.device, db)
        return
    from kgen.bench import Settings
    from kgen.bench import run as measure
    from kgen.bench.table import comparison_table, participants_table
    from kgen.bench.techniques import techniques, tune_each

    if not shape and suite is None:
        note(problems.suite_told(operator, chosen, "measuring"))
    with _database(db):
        settings = Settings(seed=seed, between=between)
        if spent is not None:
            tune_each(operator, chosen, spent, here.device, note)
        kinds = techniques(operator, here.device, here.target) if variants else []
        result = measure(
            operator, chosen, [*opponents, *kinds], device=here.device, settings=settings, progress=_Steps(len(chosen))
        )
    if json == "-":
        print(result.to_json(), end="")
        return
    if json is not None:
        write_text(Path(json), result.to_json())
    table = participants_table(result) if variants else comparison_table(result)
    _print(table)


def _print(table: Any) -> None:
    print_table(table.header, table.rows)
    for line in table.notes:
        print(line)


def _host(operator: Any, chosen: Any, device: int, db: str | None) -> None:
    from kgen.bench.host import overhead, overhead_table

    with _database(db):
        _print(overhead_table([overhead(operator, problem, device) for problem in chosen]))


class _Steps:
    """Tells each new problem on stderr."""

    def __init__(self, total: int) -> None:
        self.total, self.last = total, ""

    def __call__(self, problem: str, step: str, done: int) -> None:
        if problem != self.last:
            note(f"{done + 1}/{self.total} {problem}")
            self.last = problem


@contextmanager
def _database(url: str | None) -> Iterator[None]:
    """The user's database is another one for a while: calls of an operator find theirs by this variable."""
    if url is None:
        yield
        return
    from kgen.cli import machine
    from kgen.runtime import dispatch

    with machine.reading(url):
        pass  # one that cannot be read is an error here, not a warning
    before = os.environ.get("KGEN_DATABASE")
    os.environ["KGEN_DATABASE"] = url
    dispatch.forget()
    try:
        yield
    finally:
        dispatch.forget()
        if before is None:
            del os.environ["KGEN_DATABASE"]
        else:
            os.environ["KGEN_DATABASE"] = before
