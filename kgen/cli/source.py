"""kgen source: the CUDA C++ of a kernel."""

from __future__ import annotations

from kgen.cli import options
from kgen.cli.output import config_told, note, print_json, write_text


def run(
    op: options.Operator,
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    config: options.Config = None,
    gpu: options.Gpu = "auto",
    out: options.Out = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Print the CUDA C++ of the kernel for a problem.

    It is one translation unit that needs nothing of kgen."""
    from kgen.cli import machine, problems
    from kgen.dsl.family import normalised
    from kgen.runtime.machine import find_gpu

    operator = problems.restricted(op, schedule, fields, config)
    problems.spare(op, out)
    problem = problems.select_one(operator, shape, dtype, transposed, layout)
    here = find_gpu(gpu)
    choice = machine.choose(problem, here, config, db, operator.restriction)
    source = choice.config.source(normalised(problem))
    if out is not None:
        write_text(out, source.text)
        note(f"wrote {out}: {config_told(choice.config, problem, here.target)} ({choice.told})")
    if json:
        launch = source.launch
        print_json(
            {
                **problems.as_json(problem),
                "gpu": str(here.target),
                "config": repr(choice.config),
                "how": choice.how,
                "origin": choice.origin,
                "entry": source.entry,
                "arch": str(source.arch),
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "digest": source.digest,
                "text": source.text,
            }
        )
    elif out is None:
        print(source.text, end="")
