"""kgen export: a kernel as CUDA C++ of the user's own, with a launch function, a test and a CMake project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgen.cli import options
from kgen.cli.output import config_told, note, print_json


def run(
    op: options.Operator,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new or empty folder, or an earlier export.")
    ],
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    config: options.Config = None,
    gpu: options.Gpu = "auto",
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="sm_XX", help="Architecture to build for; repeatable; default: that of the GPU."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds other files.")] = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Export a kernel as CUDA C++ that builds with nvcc alone.

    With a C launch function, a test, and a CMake project."""
    from kgen.cli import machine, problems
    from kgen.export import export
    from kgen.gpu.target import architecture
    from kgen.runtime.machine import find_gpu

    operator = problems.restricted(op, schedule, fields, config)
    problem = problems.select_one(operator, shape, dtype, transposed, layout)
    here = find_gpu(gpu)
    archs = [architecture(text) for text in arch or ()]
    choice = machine.choose(problem, here, config, db, operator.restriction)
    written = export(problem, choice.config, here.target, out, archs=archs, force=force, origin=choice.origin)
    if json:
        facts = {**problems.as_json(problem), "gpu": str(here.target), "config": repr(choice.config)}
        facts |= {"how": choice.how, "origin": choice.origin}
        print_json({**facts, "files": [str(path) for path in written]})
        return
    note(f"{problem} for {here.target}: {config_told(choice.config, problem, here.target)} ({choice.told})")
    for path in written:
        print(path)
