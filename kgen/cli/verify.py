"""kgen verify: whether a kernel computes what its operator means, on the GPU or on the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import options
from kgen.cli.output import config_told, note, print_json, print_table

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.dsl.schedule import Schedule
    from kgen.runtime.machine import Machine
    from kgen.tuner.far import Far
    from kgen.tuner.variants import Variant
    from kgen.tuner.verify import Verdict

#: Problems up to so much work run on the emulator as they are; for larger ones, its variants alone.
_EMULATED_WORK = 1 << 22


def run(
    op: options.Operator,
    shape: options.Shapes = None,
    suite: options.Suite = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    schedule: options.Schedules = None,
    fields: options.Fields = None,
    config: options.Config = None,
    gpu: options.Gpu = "auto",
    emulate: Annotated[bool, typer.Option("--emulate", help="Run on the emulator even where the GPU is here.")] = False,
    db: options.Database = None,
    whole: options.Whole = False,
    json: options.Json = False,
) -> None:
    """Verify that a kernel computes what its operator means.

    Exact, random and special inputs, guard bands, unchanged inputs, equal repeats; the exit code is 1 where it does not. Where
    the GPU is not in this machine the emulator runs it, on small problems that cut the config's tiles and turn its loops, and
    on elements beyond 2^32.
    """
    from kgen.cli import machine, problems
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.records import as_json, evidence_text

    operator = problems.restricted(op, schedule, fields, config)
    chosen = problems.select(operator, shape, suite, dtype, transposed, layout)
    here = find_gpu(gpu)
    if not shape and suite is None:
        chosen = chosen[-1:]
        note(f"no --shape given: verifying {chosen[0]}")
    configs = [machine.choose(problem, here, config, db, operator.restriction) for problem in chosen]
    emulated = emulate or here.device is None
    if emulated and not emulate:
        note(
            f"{here.target} is not in this machine: verifying on the emulator"
            if here.found
            else "found no GPU: verifying on the emulator"
        )
    rows, told = [], []
    for problem, choice in zip(chosen, configs):
        for case, verdict in _verify(choice.config, problem, here, emulated):
            shown = config_told(choice.config, problem, here.target, whole)
            rows.append((str(case), "ok" if verdict.ok else "WRONG", evidence_text(verdict.evidence), shown))
            told.append({**problems.as_json(problem), "verified": str(case), "config": repr(choice.config), "how": choice.how,
                         "ok": verdict.ok, "evidence": as_json(verdict.evidence)})  # fmt: skip
    if json:
        print_json({"gpu": str(here.target), "emulated": emulated, "results": told})
    else:
        print_table(("problem", "verdict", "evidence", "config"), rows)
    if not all(entry["ok"] for entry in told):
        raise typer.Exit(1)


def _verify(config: Schedule, problem: Problem, here: Machine, emulated: bool) -> list[tuple[Problem | Far, Verdict]]:
    """The problems that were run, each with its verdict."""
    from kgen.dsl.family import normalised
    from kgen.tuner.variants import Variant, few, variants

    normal = normalised(problem)
    cases = list(variants(config, normal, here.target, same_source=not emulated))
    if not emulated:
        cases.append(Variant(config, normal, here.target.sm_count))
    elif not cases or (problem.work <= _EMULATED_WORK and normal.key not in [case.problem.key for case in cases]):
        cases.append(Variant(config, normal, few(config, normal)))
    if not emulated:
        return [(case.problem, _on_gpu(case, here)) for case in cases]
    from kgen.tuner.emulated import judge, judge_far

    return [*((case.problem, judge(case)) for case in cases), *judge_far(config, normal, here.target)]


def _on_gpu(case: Variant, here: Machine) -> Verdict:
    from kgen.gpu import driver
    from kgen.gpu.cache import CubinCache
    from kgen.gpu.compile import compile
    from kgen.gpu.kernel import load
    from kgen.tuner.execute import Runner
    from kgen.tuner.verify import Gate

    assert here.device is not None, "the GPU is not here"
    source = case.config.source(case.problem)
    binary = compile(source, here.target.arch, cache=CubinCache())
    with driver.current(here.device):
        runner = Runner(load(binary, source, here.device), source, case.symbols)
        try:
            return Gate(case.problem, f"cuda:{here.device}").check(runner)
        finally:
            runner.close()
