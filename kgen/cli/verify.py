"""kgen verify: whether a kernel computes what its operator means, on the GPU or on the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgen.cli import options
from kgen.cli.output import config_told, note, print_json, print_table

if TYPE_CHECKING:
    from kgen.dsl.problem import Problem
    from kgen.dsl.schedule import Schedule
    from kgen.runtime.machine import Machine

#: Problems up to so much work run on the emulator as they are; for larger ones, a small one whose edges cut the tiles.
_EMULATED_WORK = 1 << 22
#: Multiprocessors of the emulated GPU: few, so that loops over tiles do loop.
_SM_COUNT = 2


def run(
    op: options.Operator,
    shape: options.Shapes = None,
    suite: options.Suite = None,
    dtype: options.DType = None,
    transposed: options.Transposed = None,
    layout: options.Layout = None,
    config: options.Config = None,
    gpu: options.Gpu = "auto",
    emulate: Annotated[bool, typer.Option("--emulate", help="Run on the emulator even where the GPU is here.")] = False,
    db: options.Database = None,
    whole: options.Whole = False,
    json: options.Json = False,
) -> None:
    """Verify that a kernel computes what its operator means.

    Exact and random inputs, guard bands, unchanged inputs, equal repeats; the exit code is 1 where it does not. Where
    the GPU is not in this machine the emulator runs it, on a small problem whose edges cut the config's tiles.
    """
    from kgen.cli import machine, problems
    from kgen.runtime.machine import find_gpu
    from kgen.tuner.records import as_json

    operator = problems.find_operator(op)
    chosen = problems.select(operator, shape, suite, dtype, transposed, layout)
    here = find_gpu(gpu)
    if not shape and suite is None:
        chosen = chosen[-1:]
        note(f"no --shape given: verifying {chosen[0]}")
    configs = [machine.choose(problem, here, config, db) for problem in chosen]
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
            rows.append((str(case), "ok" if verdict.ok else "WRONG", _evidence(verdict.evidence), shown))
            told.append({**problems.as_json(problem), "verified": str(case), "config": repr(choice.config), "how": choice.how,
                         "ok": verdict.ok, "evidence": as_json(verdict.evidence)})  # fmt: skip
    if json:
        print_json({"gpu": str(here.target), "emulated": emulated, "results": told})
    else:
        print_table(("problem", "verdict", "evidence", "config"), rows)
    if not all(entry["ok"] for entry in told):
        raise typer.Exit(1)


def _verify(config: Schedule, problem: Problem, here: Machine, emulated: bool) -> list[tuple[Problem, Any]]:
    """The problems that were run, each with its verdict."""
    from kgen.dsl.family import family_of
    from kgen.tuner.ragged import ragged

    normal = family_of(problem.graph).normalise(problem)
    variant = ragged(config, normal, here.target, same_source=not emulated)
    whole = not emulated or problem.work <= _EMULATED_WORK or variant is None
    cases = [case for case in (variant, normal if whole else None) if case is not None]
    judge = _on_emulator if emulated else _on_gpu
    return [(case, judge(config, case, here)) for case in cases]


def _on_emulator(config: Schedule, problem: Problem, here: Machine) -> Any:
    from kgen import emulator
    from kgen.tuner.execute import Runner
    from kgen.tuner.ragged import symbols
    from kgen.tuner.verify import Gate

    source = config.source(problem)
    return Gate(problem).check(Runner(emulator.compile(source), source, symbols(config, problem, _SM_COUNT)))


def _on_gpu(config: Schedule, problem: Problem, here: Machine) -> Any:
    from kgen.gpu import driver
    from kgen.gpu.cache import CubinCache
    from kgen.gpu.compile import compile
    from kgen.gpu.kernel import load
    from kgen.tuner.execute import Runner
    from kgen.tuner.ragged import symbols
    from kgen.tuner.verify import Gate

    assert here.device is not None, "the GPU is not here"
    source = config.source(problem)
    binary = compile(source, here.target.arch, cache=CubinCache())
    with driver.current(here.device):
        runner = Runner(load(binary, source, here.device), source, symbols(config, problem, here.target.sm_count))
        try:
            return Gate(problem, f"cuda:{here.device}").check(runner)
        finally:
            runner.close()


def _evidence(evidence: Any) -> str:
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in evidence.items()
    )
