"""kgen export: an operator as CUDA C++ of the user's own, with a launch function, a test and a CMake project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import options
from kgen.cli.output import config_told, note, print_json
from kgen.dsl.errors import ArgumentError

if TYPE_CHECKING:
    from kgen.runtime.dispatch import Choice


def run(
    op: options.Operator,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new or empty folder, or an earlier export.")
    ],
    shape: options.Shape = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SUITE|SHAPE,...|RANGE",
            help="Several problems in one export, whose launch takes the config made for the nearest sizes: a file with a "
            "shape a line (then layout=TN or transposed=a where they differ), a named list, 64x64x64,128x64x64, or "
            "M=1..8192,N=64,K=64 (its buckets where it was tuned, else the powers of two between).",
        ),
    ] = None,
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
    form: Annotated[
        str,
        typer.Option(
            metavar="cuda|cubin|fatbin|torch",
            help="CUDA source; or binaries with a loader; or source with an extension of torch around it.",
        ),
    ] = "cuda",
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --form torch: torch.ops.NAME; default: kgen_OP.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds other files.")] = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Export an operator as CUDA C++ that builds with nvcc alone.

    With a C launch function, a test, and a CMake project."""
    from kgen.cli import machine, problems, ranges
    from kgen.cli import shapes as lists
    from kgen.dsl.partition import partition
    from kgen.dsl.program import program_of
    from kgen.dsl.target import architecture
    from kgen.export import Entry, export_launches, export_many
    from kgen.runtime.machine import find_gpu

    operator = problems.restricted(op, schedule, fields, config)
    if shapes is not None and shape is not None:
        raise ArgumentError("--shape and --shapes were both given; expected one of them")
    if shapes is None:
        found = [problems.select_one(operator, shape, dtype, transposed, layout)]
    else:
        found = lists.select(operator, shapes, dtype, transposed, layout)
    here = find_gpu(gpu)
    archs = [architecture(text) for text in arch or ()]
    whole = found[0]
    several = partition(whole.graph) is not None
    if several and shapes is not None:
        raise ArgumentError(
            f"{whole.graph.name} takes several launches, and --shapes is for operators of one; give --shape"
        )
    found = [launch for problem in found for launch in program_of(problem).launches]
    choices = [machine.choose(problem, here, config, db, operator.restriction) for problem in found]
    if shapes is not None and config is None and ranges.is_range(shapes) and not Path(shapes).is_file():
        with machine.reading(db) as store:
            found, choices = ranges.by_buckets(
                ranges.Range.parse(shapes), operator, (dtype, transposed, layout), here, store, found, choices
            )
    entries = [Entry(problem, choice.config, _origin(choice)) for problem, choice in zip(found, choices)]
    options = {"archs": archs, "force": force, "form": form, "namespace": namespace}
    if several:
        written = export_launches(whole, entries, here.target, out, **options)  # type: ignore[arg-type]
    else:
        written = export_many(entries, here.target, out, **options)  # type: ignore[arg-type]
    facts = [
        {**problems.as_json(p), "config": repr(c.config), "how": c.how, "origin": c.origin}
        for p, c in zip(found, choices)
    ]
    if json:
        same = facts[0] if shapes is None and not several else {"launches" if several else "problems": facts}
        print_json({**same, "gpu": str(here.target), "form": form, "files": [str(path) for path in written]})
        return
    for problem, choice in zip(found, choices):
        note(f"{problem} for {here.target}: {config_told(choice.config, problem, here.target)} ({choice.told})")
    for path in written:
        print(path)


def _origin(choice: Choice) -> str:
    """What the exported file says of a config: nothing there names kgen."""
    made = f", by version {choice.record.toolchain.kgen} of the generator" if choice.record else ""
    return f"{choice.origin}{made}"
