"""From the tensors of a first call to its plan: checked, dispatched, generated, compiled and loaded."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.errors import DeviceError
from kgen.dsl.family import normalised
from kgen.dsl.operator import Operator
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of, several_launches
from kgen.dsl.restriction import Restriction
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu import driver
from kgen.gpu.cache import CubinCache
from kgen.gpu.compile import compile
from kgen.gpu.kernel import Kernel, load
from kgen.gpu.target import detect
from kgen.runtime import dispatch, emulation
from kgen.runtime.operands import is_short, problem_of
from kgen.runtime.plan import EmulatedPlan, GpuPlan, Plan, ProgramPlan
from kgen.tuner.execute import ProgramRunner, Runner

_building = threading.Lock()


def make_plan(definition: Operator, config: Schedule | None, restriction: Restriction, operands: Sequence[Any]) -> Plan:
    """The plan for calls of the operator with operands such as these: inputs, and outputs where they are given.

    `config` pins what dispatch would choose, `restriction` what it chooses among. Raises ArgumentError where the operands do
    not fit the signature.
    """
    count = len(definition.tensors)
    problem = problem_of(definition, operands[:count], operands[count:])
    plan = _plan(config, restriction, problem, operands[0].device)
    if any(map(is_short, problem.graph.inputs, operands)):
        plan.shorten()
    return plan


def _plan(config: Schedule | None, restriction: Restriction, problem: Problem, device: torch.device) -> Plan:
    if problem.empty:
        return Plan(problem, device)
    emulated = device.type == "cpu"
    with _building, contextlib.nullcontext() if emulated else driver.relaxed():
        target = dispatch.EMULATED if emulated else _target(device.index)
        program = program_of(problem)
        if not program.single and (config is not None or restriction):
            raise several_launches(problem.graph)
        made = []
        for launch in (one for one in program.launches if not one.empty):
            chosen = config
            if chosen is None:
                if emulated:
                    found = dispatch.default(launch, target, restriction)
                else:
                    found = dispatch.serve(launch, target, restriction, of=problem)
                chosen = found.config
            normal = normalised(launch)
            dispatch.check(chosen, normal, target)
            made.append((launch, chosen.source(normal), {**chosen.symbols(normal), "SM_COUNT": target.sm_count}))
        if emulated:
            runners = [Runner(_emulated(source), source, symbols) for _, source, symbols in made]
            runner = runners[0] if program.single else ProgramRunner(program, runners)
            return EmulatedPlan(problem, device, runner)
        plans = [
            GpuPlan(launch, device, _loaded(source, target, device.index), source, symbols)
            for launch, source, symbols in made
        ]
        return plans[0] if program.single else ProgramPlan(program, device, plans)


@functools.cache
def _target(index: int) -> Target:
    target = detect(index)
    if target is None:
        raise DeviceError(f"no facts about cuda:{index}: its driver does not tell them; check nvidia-smi")
    return target


_kernels: dict[tuple[Any, ...], Kernel] = {}
_emulated_kernels: dict[tuple[Any, ...], emulator.EmulatedKernel] = {}


def _loaded(source: Source, target: Target, index: int) -> Kernel:
    """The kernel on its GPU; one serves all sizes and strides that have the same text. Loaded for good."""
    key = (index, source.digest, source.params, source.launch)
    if key not in _kernels:
        if torch.cuda.is_current_stream_capturing() and not driver.loads_in_captures():
            raise DeviceError(
                f"{source.entry}: the first call of its kind happens while a CUDA graph is captured, and this driver, of "
                f"{driver.version()}, loads no kernel then; expected one of CUDA 12.3 or newer, or a call before the capture "
                f"(kgen.warm)"
            )
        binary = compile(source, target.arch, cache=CubinCache())
        _kernels[key] = load(binary, source, index)
    return _kernels[key]


def _emulated(source: Source) -> emulator.EmulatedKernel:
    key = (source.digest, source.params, source.launch)
    if key not in _emulated_kernels:
        _emulated_kernels[key] = emulator.compile(source, checks=emulation.options().checks)
    return _emulated_kernels[key]
