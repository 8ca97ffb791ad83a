"""kgen space: how many configs there are for a problem, exactly."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgen.cli import options
from kgen.cli.output import print_json, print_table

if TYPE_CHECKING:
    from kgen.dsl.problem import NormalProblem
    from kgen.dsl.target import Target
    from kgen.tuner.space import Space


def run(
    op: options.Operator,
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    gpu: options.Gpu = "auto",
    sample: Annotated[
        int, typer.Option(metavar="N", min=0, max=10_000, help="Print N valid configs drawn at random.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draw.")] = 0,
    json: options.Json = False,
) -> None:
    """Count the valid configs for a problem, and those searched.

    Exactly, by schedule. What is valid computes the problem; with each rule that leaves valid configs out of the search goes
    how many it does.
    """
    from kgen.cli import problems
    from kgen.dsl.family import family_of, normalised
    from kgen.dsl.program import several_launches
    from kgen.dsl.schedule import as_space
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.space import Space

    operator = problems.restricted(op, schedule, fields)
    problem = problems.select_one(operator, shape, dtype, transposed, layout)
    family = family_of(problem.graph)
    if not family.schedules:
        raise several_launches(problem.graph)
    normal = normalised(problem)
    target = find_gpu(gpu).target
    within = operator.restriction.within(normal, target)
    named = within or [as_space(schedule) for schedule in family.schedules if schedule.applies(normal)]
    spaces = [Space.valid(space, normal, target) for space in named]
    total = sum(space.count for space in spaces)
    source = random.Random(seed)
    drawn = [
        source.choices(spaces, [space.count for space in spaces])[0].draw(source) for _ in range(sample if total else 0)
    ]
    counts = [_counts(space, normal, target, asked=within is not None) for space in spaces]
    searched = sum(count["searched"] for count in counts)
    if json:
        facts = {**problems.as_json(problem), "gpu": str(target), "schedules": counts, "valid": total}
        print_json({**facts, "searched": searched, "sample": [repr(config) for config in drawn]})
        return
    print(f"{problem} on {target}")
    rows = [(c["schedule"], *(f"{c[n]:,}" for n in ("domain", "valid", "searched")), _left_out(c)) for c in counts]
    header = ("schedule", "product of domains", "valid", "searched", "left out of the search by")
    print_table(header, [*rows, ("all", "", f"{total:,}", f"{searched:,}", "")])
    for config in drawn:
        print(repr(config))


def _counts(valid: Space, problem: NormalProblem, target: Target, asked: bool) -> dict[str, Any]:
    """How many configs of a schedule there are, are valid and are searched, and by what the others are left out, with why."""
    from kgen.dsl.choice import reason_of
    from kgen.dsl.schedule import domain_size
    from kgen.tuner.space import left_out

    schedule = valid.schedule
    found = left_out(valid, problem, target, asked)
    return {
        "schedule": str(valid.given) if valid.given.domains else schedule.__name__,
        "domain": domain_size(valid.given),
        "valid": valid.count,
        "searched": valid.count - sum(found.values()),
        "left_out": [{"rule": n, "configs": c, "reason": reason_of(getattr(schedule, n))} for n, c in found.items()],
        "needs": None if schedule.target.runs_on(target.arch) else str(schedule.target),
    }


def _left_out(count: dict[str, Any]) -> str:
    if count["needs"]:
        return f"needs {count['needs']}"
    return ", ".join(f"{entry['rule']} {entry['configs']:,}" for entry in count["left_out"])
