"""kgen verify: whether a kernel computes what its operator means, on the GPU or on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import options
from kgen.cli.output import config_told, note, print_json, print_table

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.dsl.program import Program
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
    on elements beyond 2^32. Of an operator that takes several launches each is verified, and then all of them in order.
    """
    from kgen.cli import machine, problems
    from kgen.dsl.program import program_of
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.records import as_json, evidence_text

    operator = problems.restricted(op, schedule, fields, config)
    chosen = problems.select(operator, shape, suite, dtype, transposed, layout)
    here = find_gpu(gpu)
    if not shape and suite is None:
        chosen = chosen[-1:]
        note(f"no --shape given: verifying {chosen[0]}")
    programs = [program_of(problem) for problem in chosen]
    choices = [[machine.choose(p, here, config, db, operator.restriction) for p in one.launches] for one in programs]
    emulated = emulate or here.device is None
    if emulated and not emulate:
        note(
            f"{here.target} is not in this machine: verifying on the emulator"
            if here.found
            else "found no GPU: verifying on the emulator"
        )
    rows, told = [], []
    for program, own in zip(programs, choices):
        for problem, choice in zip(program.launches, own):
            for case, verdict in _verify(choice.config, problem, here, emulated):
                shown = config_told(choice.config, problem, here.target, whole)
                rows.append((str(case), "ok" if verdict.ok else "WRONG", evidence_text(verdict.evidence), shown))
                told.append({**problems.as_json(problem), "verified": str(case), "config": repr(choice.config), "how": choice.how,
                             "ok": verdict.ok, "evidence": as_json(verdict.evidence)})  # fmt: skip
        if not program.single:
            case, verdict = _verify_program(program, [choice.config for choice in own], here, emulated)
            rows.append((str(case), "ok" if verdict.ok else "WRONG", evidence_text(verdict.evidence), "all launches"))
            told.append({**problems.as_json(program.problem), "verified": str(case), "ok": verdict.ok,
                         "evidence": as_json(verdict.evidence)})  # fmt: skip
    if json:
        print_json({"gpu": str(here.target), "emulated": emulated, "results": told})
    else:
        print_table(("problem", "verdict", "evidence", "config"), rows)
    if not all(entry["ok"] for entry in told):
        raise typer.Exit(1)


def _verify(config: Schedule, problem: Problem, here: Machine, emulated: bool) -> list[tuple[Problem | Far, Verdict]]:
    """The problems that were run, each with its verdict."""
    from kgen.dsl.family import normalised
    from kgen.dsl.program import Program
    from kgen.tuner.variants import Variant, few, variants

    normal = normalised(problem)
    cases = list(variants(config, normal, here.target, same_source=not emulated))
    if not emulated:
        cases.append(Variant(config, normal, here.target.sm_count))
    elif not cases or (problem.work <= _EMULATED_WORK and normal.key not in [case.problem.key for case in cases]):
        cases.append(Variant(config, normal, few(config, normal)))
    if not emulated:
        return [(case.problem, _on_gpu(Program(case.problem, (case.problem,)), [case], here)) for case in cases]
    from kgen.tuner.emulated import judge_all

    return [*judge_all(config, normal, here.target, cases)]


def _verify_program(
    program: Program, configs: Sequence[Schedule], here: Machine, emulated: bool
) -> tuple[Problem, Verdict]:
    """What was run of all launches in order, and the verdict. On the emulator a large problem is made smaller."""
    from kgen.dsl.family import normalised
    from kgen.dsl.program import program_of
    from kgen.runtime import dispatch
    from kgen.tuner.ragged import smaller
    from kgen.tuner.variants import Variant

    if emulated and program.problem.work > _EMULATED_WORK:
        program = program_of(smaller(program.problem))
    cases = []
    for launch, config in zip(program.launches, configs):
        normal = normalised(launch)
        fits = not config.broken(normal, here.target)
        own = config if fits else dispatch.default(launch, here.target).config
        cases.append(Variant(own, normal, here.target.sm_count))
    if not emulated:
        return program.problem, _on_gpu(program, cases, here)
    from kgen.tuner.emulated import judge_program

    return program.problem, judge_program(program, cases)


def _on_gpu(program: Program, cases: Sequence[Variant], here: Machine) -> Verdict:
    from kgen.gpu import driver
    from kgen.gpu.cache import CubinCache
    from kgen.gpu.compile import compile
    from kgen.gpu.kernel import load
    from kgen.tuner.execute import ProgramRunner, Runner
    from kgen.tuner.verify import Gate

    assert here.device is not None, "the GPU is not here"
    runners = []
    with driver.current(here.device):
        for case in cases:
            source = case.config.source(case.problem)
            binary = compile(source, here.target.arch, cache=CubinCache())
            runners.append(Runner(load(binary, source, here.device), source, case.symbols))
        runner = ProgramRunner(program, runners)
        try:
            return Gate(program.problem, f"cuda:{here.device}").check(runner)
        finally:
            runner.close()
