"""kgen space: how many configs there are for a problem, exactly."""

from __future__ import annotations

import random
from typing import Annotated

import typer

from kgen.cli import options
from kgen.cli.output import print_json, print_table


def run(
    op: options.Operator,
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    gpu: options.Gpu = "auto",
    sample: Annotated[
        int, typer.Option(metavar="N", min=0, max=10_000, help="Print N valid configs drawn at random.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draw.")] = 0,
    json: options.Json = False,
) -> None:
    """Count the valid configs of each schedule for a problem, exactly."""
    from kgen.cli import problems
    from kgen.dsl.family import family_of
    from kgen.dsl.schedule import domain_size
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.space import Space

    operator = problems.find_operator(op)
    problem = problems.select_one(operator, shape, dtype, transposed, layout)
    family = family_of(problem.graph)
    normal = family.normalise(problem)
    target = find_gpu(gpu).target
    spaces = [Space.valid(schedule, normal, target) for schedule in family.schedules if schedule.applies(normal)]
    total = sum(space.count for space in spaces)
    source = random.Random(seed)
    drawn = [
        source.choices(spaces, [space.count for space in spaces])[0].draw(source) for _ in range(sample if total else 0)
    ]
    if json:
        counts = [
            {"schedule": s.schedule.__name__, "domain": domain_size(s.schedule), "valid": s.count} for s in spaces
        ]
        facts = {**problems.as_json(problem), "gpu": str(target), "schedules": counts, "valid": total}
        print_json({**facts, "sample": [repr(config) for config in drawn]})
        return
    print(f"{problem} on {target}")
    rows = [(s.schedule.__name__, f"{domain_size(s.schedule):,}", f"{s.count:,}") for s in spaces]
    print_table(("schedule", "product of domains", "valid configs"), [*rows, ("all", "", f"{total:,}")])
    for config in drawn:
        print(repr(config))
