"""kgen explain: which rules reject a config for a problem, or what the model says of it."""

from __future__ import annotations

import typer

from kgen.cli import options
from kgen.cli.output import format_time, print_json


def run(
    op: options.Operator,
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    config: options.Config = None,
    gpu: options.Gpu = "auto",
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Say which rules reject a config for a problem.

    Each with its reason; the exit code is 1 then. Of a valid one the modelled time is told. Without --config, the
    config that a call would use.
    """
    from kgen.cli import machine, problems
    from kgen.dsl.family import family_of

    operator = problems.find_operator(op)
    problem = problems.select_one(operator, shape, dtype, transposed, layout)
    here = machine.find_gpu(gpu)
    family = family_of(problem.graph)
    normal = family.normalise(problem)
    chosen, how = (problems.find_config(config), "given") if config else machine.choose(problem, here, None, db)
    reasons = [f"schedule: {type(chosen).__name__} needs {chosen.target}"] * (
        not chosen.target.runs_on(here.target.arch)
    )
    if type(chosen) not in family.schedules or not chosen.applies(normal):
        reasons.append(f"schedule: {type(chosen).__name__} does not serve {problem}")
    else:
        reasons += [str(rejection) for rejection in chosen.rejections(normal, here.target)]
    modelled = None if reasons else chosen.estimate(normal, here.target)
    if json:
        facts = {**problems.as_json(problem), "gpu": str(here.target), "config": repr(chosen), "how": how}
        print_json({**facts, "valid": not reasons, "rejections": reasons, "modelled_seconds": modelled})
    else:
        print(f"{problem} on {here.target}\n{chosen!r} ({how})")
        for reason in reasons:
            print(f"  rejected by {reason}")
        if modelled is not None:
            print(f"  valid; modelled time {format_time(modelled)}")
    if reasons:
        raise typer.Exit(1)
