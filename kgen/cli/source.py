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

    It is one translation unit that needs nothing of kgen, with the kernels of all launches where there are several."""
    from kgen.cli import machine, problems
    from kgen.codegen.source import joined
    from kgen.dsl.family import normalised
    from kgen.dsl.program import program_of
    from kgen.runtime.machine import find_gpu

    operator = problems.restricted(op, schedule, fields, config)
    problems.spare(op, out)
    problem = problems.select_one(operator, shape, dtype, transposed, layout)
    here = find_gpu(gpu)
    launches = program_of(problem).launches
    choices = [machine.choose(launch, here, config, db, operator.restriction) for launch in launches]
    sources = [choice.config.source(normalised(launch)) for choice, launch in zip(choices, launches)]
    text = joined(sources)
    if out is not None:
        write_text(out, text)
        for launch, choice in zip(launches, choices):
            note(f"wrote {out}: {config_told(choice.config, launch, here.target)} ({choice.told})")
    if json:
        told = [
            {
                "config": repr(choice.config),
                "how": choice.how,
                "origin": choice.origin,
                "entry": source.entry,
                "arch": str(source.arch),
                "block": source.launch.block,
                "shared_bytes": source.launch.shared_bytes,
                "digest": source.digest,
            }
            for choice, source in zip(choices, sources)
        ]
        kernel = told[0] if len(told) == 1 else {"launches": told}
        print_json({**problems.as_json(problem), "gpu": str(here.target), **kernel, "text": text})
    elif out is None:
        print(text, end="")
