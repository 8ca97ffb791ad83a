"""kgen explain: which rules reject a config for a problem, or what the model says of it; what torch.compile makes of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kgen.cli import options
from kgen.cli.output import format_time, print_json

if TYPE_CHECKING:
    from kgen.dsl.problem import NormalProblem, Problem
    from kgen.dsl.schedule import Schedule
    from kgen.dsl.target import Target
    from kgen.runtime.machine import Machine
    from kgen.runtime.operator import KernelOperator


def run(
    op: options.OptionalOperator = None,
    shape: options.Shape = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    config: options.Config = None,
    gpu: options.Gpu = "auto",
    db: options.Database = None,
    backward: options.Backward = False,
    model: options.Model = None,
    json: options.Json = False,
) -> None:
    """Say which rules reject a config for a problem.

    Each with its reason; the exit code is 1 then. Of a valid one the modelled time is told. Without --config, the
    config that a call would use. Of an operator that takes several launches, where its graph is cut, and why. With
    --backward, of the call with what it keeps, and of its gradients. With --model, in place of an operator, which parts of
    a model torch.compile(model, backend="kgen") takes, and why not the others.
    """
    from kgen.cli import problems
    from kgen.dsl.errors import ArgumentError
    from kgen.dsl.partition import partition
    from kgen.runtime.machine import find_gpu

    if (op is None) == (model is None):
        raise ArgumentError("expected an operator, or --model file.py:make, and not both")
    if op is None:
        given = (shape, dtype, transposed, layout, schedule, fields, config)
        _model(model or "", backward, json, any(x is not None for x in given))
        return
    operator = problems.restricted(op, schedule, fields, config)
    asked = [problems.select_one(operator, shape, dtype, transposed, layout)]
    if backward and config is not None:
        raise ArgumentError("--config was given beside --backward; expected one of them: each kernel has its own")
    if backward:
        asked = problems.of_training(operator, asked)
    here, found = find_gpu(gpu), []
    for problem in asked:
        if backward and not json:
            print(f"{problem.graph.name} of {problem.key}")  # what is kept, and what gradients are made of
        if partition(problem.graph) is not None:
            found.append(_launches(problem, here, db, json))
        else:
            found.append(_single(problem, here, db, operator, config, json))
    if json:
        print_json({"forward": found[0], "backward": found[1:]} if backward else found[0])
    if not all(facts.get("valid", True) for facts in found):
        raise typer.Exit(1)


def _model(text: str, backward: bool, json: bool, more: bool) -> None:
    """Tells what the backend makes of a model."""
    from kgen.cli import problems
    from kgen.dsl.errors import ArgumentError
    from kgen.runtime.backend import explain

    if more:
        raise ArgumentError("options of an operator were given beside --model; expected --backward, --json or none")
    model, inputs = problems.find_model(text)
    report = explain(model, *inputs, backward=backward)
    if json:
        print_json(report.as_json())
    else:
        print(report)


def _single(
    problem: Problem, here: Machine, db: str | None, operator: KernelOperator, config: str | None, json: bool
) -> dict[str, Any]:
    """Tells of the one config that computes a problem."""
    from kgen.cli import machine, problems
    from kgen.dsl.family import normalised
    from kgen.tuning_db.machines import origin

    normal = normalised(problem)
    if config is not None:
        chosen, how, told = problems.find_config(config), "given", "given"
    else:
        choice = machine.choose(problem, here, None, db, operator.restriction)
        chosen, how, told = choice.config, choice.how, choice.told
    broken = _broken(chosen, normal, here.target)
    valid = all(entry["pruning"] for entry in broken)
    modelled = chosen.estimate(normal, here.target) if valid else None
    if not json:
        print(f"{problem} on {here.target}\n{chosen!r} ({told})")
        for entry in broken:
            print(f"  {'pruned' if entry['pruning'] else 'rejected'} by {entry['rule']}: {entry['reason']}")
        if modelled is not None:
            pruned = ", but not searched" if broken else ""
            of = type(chosen).model
            by = f", by constants {origin(of, here.target)}" if of else ""
            print(f"  valid{pruned}; modelled time {format_time(modelled)}{by}")
    facts = {**problems.as_json(problem), "gpu": str(here.target), "config": repr(chosen), "how": how}
    return {**facts, "valid": valid, "broken": broken, "modelled_seconds": modelled}


def _launches(problem: Problem, here: Machine, db: str | None, json: bool) -> dict[str, Any]:
    """Tells where a graph is cut, and what a call of each launch would use."""
    from kgen.cli import machine, problems
    from kgen.dsl.family import family_of, normalised
    from kgen.dsl.partition import partition
    from kgen.dsl.program import program_of
    from kgen.dsl.restriction import UNRESTRICTED

    cut, program = partition(problem.graph), program_of(problem)
    assert cut is not None
    told = []
    for launch in program.launches:
        choice = machine.choose(launch, here, None, db, UNRESTRICTED)
        seconds = choice.config.estimate(normalised(launch), here.target)
        facts = {**problems.as_json(launch), "family": family_of(launch.graph).name, "config": repr(choice.config)}
        told.append({**facts, "how": choice.how, "told": choice.told, "modelled_seconds": seconds})
    size = sum(o.stored_bytes for o in program.workspaces)
    if not json:
        print(f"{problem} on {here.target}")
        print(
            f"no one kernel computes it: {len(told)} launches, {size} bytes of workspace{', cut at' if cut.cuts else ''}"
        )
        for one in cut.cuts:
            print(f"  {one.why}")
        for launch, entry in zip(program.launches, told):
            print(f"{launch} by {entry['family']}\n  {entry['config']} ({entry['told']})")
            print(f"  modelled time {format_time(entry['modelled_seconds'])}")
    facts = {**problems.as_json(problem), "gpu": str(here.target), "cut_at": [c.why for c in cut.cuts]}
    return {**facts, "workspace_bytes": size, "launches": told}


def _broken(config: Schedule, problem: NormalProblem, target: Target) -> list[dict[str, Any]]:
    """The rules that a config breaks; those that are `pruning` only keep the search from it."""
    from kgen.dsl.choice import reason_of
    from kgen.dsl.family import family_of

    broken: list[dict[str, Any]] = []
    if not config.target.runs_on(target.arch):
        broken.append({"rule": "target", "reason": f"{type(config).__name__} needs {config.target}", "pruning": False})
    if type(config) not in family_of(problem.graph).schedules or not config.applies(problem):
        reason = f"{type(config).__name__} does not serve {problem}"
        return [*broken, {"rule": "applies", "reason": reason, "pruning": False}]
    for rejection in config.rejections(problem, target):
        only_prunes = config.only_prunes(rejection.rule)
        broken.append({"rule": rejection.rule, "reason": rejection.reason, "pruning": only_prunes})
    if not config.worth_searching(problem, target):
        reason = reason_of(config.worth_searching)
        broken.append({"rule": "worth_searching", "reason": reason, "pruning": True})
    return broken
