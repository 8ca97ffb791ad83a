"""What runs a call on CPU tensors: kernels on the emulator. Calls on GPUs do not import it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.emulator import EmulatedKernel
from kgen.runtime.emulation import options
from kgen.runtime.plan import Plan
from kgen.tuner.execute import AnyRunner, ProgramRunner, Runner


class EmulatedPlan(Plan):
    """One kernel or several on the emulator, for tensors of the CPU."""

    def __init__(self, problem: Problem, device: torch.device, runner: AnyRunner) -> None:
        super().__init__(problem, device)
        self.names = [o.name for o in problem.operands]
        self.scalar_names = [s.name for s in problem.graph.scalars]
        self.runner = runner
        self._lock = threading.Lock()

    def run(
        self, operands: Sequence[Tensor], results: Sequence[Tensor], addresses: list[int], values: tuple[float, ...]
    ) -> None:
        tensors = dict(zip(self.names, (*operands[: self.inputs], *results)))
        with self._lock:
            self.runner.options = options()
            self.runner.run(tensors, dict(zip(self.scalar_names, values)))


def compile_ahead(source: Source) -> None:
    """Compiles a kernel into the cache."""
    emulator.compile(source, checks=options().checks)


def load_plan(
    problem: Problem, device: torch.device, launches: Sequence[tuple[Source, Mapping[str, int]]]
) -> EmulatedPlan:
    """The plan of a call on the CPU, of its launches' sources and symbols."""
    program = program_of(problem)
    emulator.compile_together((source for source, _ in launches), checks=options().checks)
    runners = [Runner(_loaded(source), source, symbols) for source, symbols in launches]
    return EmulatedPlan(problem, device, runners[0] if program.single else ProgramRunner(program, runners))


_kernels: dict[tuple[Any, ...], EmulatedKernel] = {}


def _loaded(source: Source) -> EmulatedKernel:
    key = (source.digest, source.params, source.launch)
    if key not in _kernels:
        _kernels[key] = emulator.compile(source, checks=options().checks)
    return _kernels[key]
