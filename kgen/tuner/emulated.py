"""A config, compiled for the emulator and judged by the gate: on a variant of its problem, and beyond 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.errors import ArgumentError, CompileError, ConfigError
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem
from kgen.dsl.program import Program
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import verify
from kgen.tuner.execute import ProgramRunner, Runner
from kgen.tuner.far import Far, check_far, far_problems
from kgen.tuner.variants import Variant


def judge(variant: Variant, ends: bool = True) -> verify.Verdict:
    """The verdict on a variant run on the emulator; a kernel that it cannot compile or launch is wrong. `ends`: see Gate."""

    def run() -> verify.Verdict:
        source = variant.config.source(variant.problem)
        runner = Runner(emulator.compile(source), source, variant.symbols)
        return verify.verify(runner, variant.problem, ends=ends)

    return _judged(run)


def judge_program(program: Program, launches: Sequence[Variant]) -> verify.Verdict:
    """The verdict on a program whose launches are run so, in order, on the emulator."""

    def run() -> verify.Verdict:
        sources = [launch.config.source(launch.problem) for launch in launches]
        emulator.compile_together(sources)
        runners = [Runner(emulator.compile(s), s, launch.symbols) for s, launch in zip(sources, launches)]
        return verify.verify(ProgramRunner(program, runners), program.problem)

    return _judged(run)


def judge_all(
    config: Schedule, problem: NormalProblem, target: Target, variants: Sequence[Variant]
) -> Iterator[tuple[NormalProblem | Far, verify.Verdict]]:
    """The verdicts on variants of a problem, and on the far problems of its config (far.py); kernels are compiled together.

    Scalars are where their range only begins on the smallest problem of the config alone.
    """
    fars = far_problems(config, problem, target)
    launched = [*((v.config, v.problem) for v in variants), *((config, normalised(far.problem)) for far in fars)]
    emulator.compile_together(filter(None, (_source(*pair) for pair in launched)))
    own = [variant for variant in variants if variant.config == config]
    least = min(own, key=lambda variant: variant.problem.work, default=None)
    yield from ((variant.problem, judge(variant, ends=variant is least)) for variant in variants)
    yield from judge_far(config, fars)


def judge_far(config: Schedule, fars: Sequence[Far]) -> Iterator[tuple[Far, verify.Verdict]]:
    """Far problems of a config, each with the verdict; none where this machine has no such addresses."""
    for far in fars:
        try:
            yield far, _judged(lambda far=far: check_far(config, far))  # type: ignore[misc]
        except OSError:  # of mmap, where the system sets a limit
            return


def _source(config: Schedule, problem: NormalProblem) -> Source | None:
    """The kernel; None where there is none, which its verdict says."""
    try:
        source: Source = config.source(problem)
    except ConfigError:
        return None
    return source


def _judged(run: Callable[[], verify.Verdict]) -> verify.Verdict:
    # A fault of the kernel, or of the problem: where a compiler took the kernel, it is this config that is wrong, not the run.
    try:
        return run()
    except (ArgumentError, CompileError, ConfigError) as error:
        return verify.Verdict(False, {"check": "emulator", "message": str(error)[:2000]})
