"""A config, compiled for the emulator and judged by the gate: on a variant of its problem, and beyond 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kgen import emulator
from kgen.dsl.errors import ArgumentError, CompileError, ConfigError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.program import Program
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner import verify
from kgen.tuner.execute import ProgramRunner, Runner
from kgen.tuner.far import Far, check_far, far_problems
from kgen.tuner.variants import Variant


def judge(variant: Variant) -> verify.Verdict:
    """The verdict on a variant run on the emulator; a kernel that it cannot compile or launch is wrong."""

    def run() -> verify.Verdict:
        source = variant.config.source(variant.problem)
        return verify.verify(Runner(emulator.compile(source), source, variant.symbols), variant.problem)

    return _judged(run)


def judge_program(program: Program, launches: Sequence[Variant]) -> verify.Verdict:
    """The verdict on a program whose launches are run so, in order, on the emulator."""

    def run() -> verify.Verdict:
        sources = [launch.config.source(launch.problem) for launch in launches]
        runners = [Runner(emulator.compile(s), s, launch.symbols) for s, launch in zip(sources, launches)]
        return verify.verify(ProgramRunner(program, runners), program.problem)

    return _judged(run)


def judge_far(config: Schedule, problem: NormalProblem, target: Target) -> Iterator[tuple[Far, verify.Verdict]]:
    """The far problems of a config (far.py), each with the verdict; none where this machine has no such addresses."""
    for far in far_problems(config, problem, target):
        try:
            yield far, _judged(lambda far=far: check_far(config, far))  # type: ignore[misc]
        except OSError:  # of mmap, where the system sets a limit
            return


def _judged(run: Callable[[], verify.Verdict]) -> verify.Verdict:
    # A fault of the kernel, or of the problem: where a compiler took the kernel, it is this config that is wrong, not the run.
    try:
        return run()
    except (ArgumentError, CompileError, ConfigError) as error:
        return verify.Verdict(False, {"check": "emulator", "message": str(error)[:2000]})
