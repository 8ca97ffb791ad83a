"""From the tensors of a first call to its plan: checked, dispatched, generated, compiled and loaded."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kgen.codegen.source import Source
from kgen.dsl.any_order import ordered
from kgen.dsl.errors import ConfigError, DeviceError
from kgen.dsl.family import normalised
from kgen.dsl.operator import Operator
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of, several_launches
from kgen.dsl.restriction import Restriction
from kgen.dsl.schedule import Schedule, source_of
from kgen.dsl.target import Target
from kgen.gpu import driver
from kgen.gpu.cache import CubinCache
from kgen.gpu.compile import compile
from kgen.gpu.kernel import Kernel, load
from kgen.gpu.target import detect
from kgen.runtime import dispatch, native
from kgen.runtime.dispatch import Choice
from kgen.runtime.operands import is_short, problem_of
from kgen.runtime.plan import GpuPlan, Plan, ProgramPlan

_building = threading.Lock()


@dataclass(frozen=True)
class Launch:
    """A launch of a call before it is compiled: its config and how that was found, and the kernel's text."""

    problem: Problem
    choice: Choice
    source: Source
    symbols: Mapping[str, int]


@dataclass(frozen=True)
class Chosen:
    """A call whose launches are chosen and not yet compiled; without launches where there is nothing to compute.

    `short`: results that are declared with a last axis of 1 are made without it.
    """

    problem: Problem
    device: torch.device
    launches: tuple[Launch, ...]
    short: bool


def choose(definition: Operator, config: Schedule | None, restriction: Restriction, operands: Sequence[Any]) -> Chosen:
    """The launches of calls of the operator with operands such as these, inputs and outputs where they are given; nothing is
    compiled.

    `config` pins what dispatch would choose, `restriction` what it chooses among. Sums that may be made in any order
    are, where neither is given, if that is faster by the model. Raises ArgumentError where the operands do not fit the signature.
    """
    count = len(definition.tensors)
    problem = problem_of(definition, operands[:count], operands[count:])
    free = problem.graph.unordered and config is None and not restriction
    if free and not any_order_pays(problem, target_of(operands[0].device)):
        problem = replace(problem, graph=ordered(problem.graph))
    chosen = Chosen(problem, operands[0].device, (), any(map(is_short, problem.graph.inputs, operands)))
    return choose_again(chosen, config, restriction)


def any_order_pays(problem: Problem, target: Target) -> bool:
    """Whether a problem whose sums may be made in any order is faster so than with its sums in one order, by the model."""
    return _modelled(problem, target) < _modelled(replace(problem, graph=ordered(problem.graph)), target)


def _modelled(problem: Problem, target: Target) -> float:
    """Seconds of a problem's launches by their defaults; infinity where one has none."""
    launches = [normalised(launch) for launch in program_of(problem).launches if not launch.empty]
    try:
        return sum(dispatch.default(launch, target).config.estimate(launch, target) for launch in launches)
    except ConfigError:
        return math.inf


def choose_again(chosen: Chosen, config: Schedule | None, restriction: Restriction) -> Chosen:
    """The same call by what is known now."""
    if chosen.problem.empty:
        return chosen
    with _building:
        return replace(chosen, launches=tuple(_launches(config, restriction, chosen.problem, chosen.device)))


def compile_ahead(chosen: Chosen) -> None:
    """Compiles a call's kernels into the cache, for `load_plan`. Threads may do so side by side."""
    for launch in chosen.launches:
        if chosen.device.type == "cpu":
            from kgen.runtime import emulated_plan  # here: it imports the emulator

            emulated_plan.compile_ahead(launch.source)
        else:
            compile(launch.source, target_of(chosen.device).arch, cache=CubinCache())


def load_plan(chosen: Chosen) -> Plan:
    """The plan of a call whose launches are chosen. What is loaded while a CUDA graph is captured is no part of the graph."""
    device = chosen.device
    with _building, contextlib.nullcontext() if device.type == "cpu" else driver.relaxed():
        plan = _loaded_plan(chosen.problem, device, chosen.launches)
    if device.type == "cuda":
        native.begin()
    plan.choices = [launch.choice for launch in chosen.launches]
    if chosen.short:
        plan.shorten()
    return plan


def _launches(
    config: Schedule | None, restriction: Restriction, problem: Problem, device: torch.device
) -> Iterator[Launch]:
    target, program = target_of(device), program_of(problem)
    if not program.single and (config is not None or restriction):
        raise several_launches(problem.graph)
    for launch in (one for one in program.launches if not one.empty):
        normal = normalised(launch)
        if config is not None:
            dispatch.check(config, normal, target)
            choice = Choice(config, "given")
        elif device.type == "cpu":
            choice = dispatch.default(normal, target, restriction)
        else:
            choice = dispatch.serve(normal, target, restriction, of=problem)
        symbols = {**choice.config.symbols(normal), "SM_COUNT": target.sm_count}
        yield Launch(launch, choice, source_of(choice.config, normal), symbols)


def _loaded_plan(problem: Problem, device: torch.device, launches: Sequence[Launch]) -> Plan:
    if not launches:
        return Plan(problem, device)
    program = program_of(problem)
    if device.type == "cpu":
        from kgen.runtime import emulated_plan  # here: it imports the emulator

        return emulated_plan.load_plan(problem, device, [(one.source, one.symbols) for one in launches])
    plans = [
        GpuPlan(one.problem, device, _loaded(one.source, device.index), one.source, one.symbols) for one in launches
    ]
    return plans[0] if program.single else ProgramPlan(program, device, plans)


def target_of(device: torch.device) -> Target:
    """The GPU that a call on a device's tensors is for; on the CPU the one whose limits the emulator keeps to."""
    return dispatch.EMULATED if device.type == "cpu" else _target(device.index)


@functools.cache
def _target(index: int) -> Target:
    target = detect(index)
    if target is None:
        raise DeviceError(f"no facts about cuda:{index}: its driver does not tell them; check nvidia-smi")
    return target


_kernels: dict[tuple[Any, ...], Kernel] = {}


def _loaded(source: Source, index: int) -> Kernel:
    """The kernel on its GPU; one serves all sizes and strides that have the same text. Loaded for good."""
    key = index, source.loaded_as
    kernel = _kernels.get(key)
    if kernel is None:
        if torch.cuda.is_current_stream_capturing() and not driver.loads_in_captures():
            raise DeviceError(
                f"{source.entry}: the first call of its kind happens while a CUDA graph is captured, and this driver, of "
                f"{driver.version()}, loads no kernel then; expected one of CUDA 12.3 or newer, or a call before the capture "
                f"(kgen.warm)"
            )
        binary = compile(source, _target(index).arch, cache=CubinCache())
        kernel = _kernels[key] = load(binary, source, index)
    return kernel
