"""How operators run on CPU tensors: on the emulator, by default without its checks. Calls on GPUs do not import it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from kgen import emulator
from kgen.codegen.source import Source
from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.emulator import EmulatedKernel, Options
from kgen.runtime.plan import Plan
from kgen.tuner.execute import AnyRunner, ProgramRunner, Runner

_UNCHECKED = Options(checks=False)
_OPTIONS: ContextVar[Options | None] = ContextVar("kgen_emulation", default=None)
_MODES = ("eager", "late", "random")
#: By option: whether a value is one of it, and what to say where not.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "checks": (lambda x: isinstance(x, bool), "True or False"),
    "seed": (lambda x: isinstance(x, Integral) and not x < 0 and x < 2**64, "an int from 0 to 2^64 - 1"),
    "async_mode": (lambda x: isinstance(x, str) and x in _MODES, f"one of {', '.join(_MODES)}"),
    "threads": (
        lambda x: x is None or (isinstance(x, Integral) and not x <= 0 and x < 2**15),
        "a number of CPU threads, or None",
    ),
    "timeout": (lambda x: isinstance(x, Real) and not x <= 0 and x < 1e9, "a number of seconds above 0"),
}


def options() -> Options:
    """The emulator's options for calls made now."""
    return _OPTIONS.get() or _UNCHECKED


@contextmanager
def emulate(
    *,
    checks: bool = True,
    seed: int = 0,
    async_mode: Literal["eager", "late", "random"] = "late",
    threads: int | None = None,
    timeout: float = 120.0,
) -> Iterator[None]:
    """Within it, operators called on CPU tensors run with these options of the emulator.

    `checks` watches every access of a kernel: bounds, uninitialised reads, races, deadlocks; a fault raises EmulatorError.
    `seed` shuffles the order of warps and lanes. See `kgen.emulator.Options`. Raises ArgumentError where one is none of these.
    """
    given = {"checks": checks, "seed": seed, "async_mode": async_mode, "threads": threads, "timeout": timeout}
    for name, value in given.items():
        right, expected = _EXPECTED[name]
        if not right(value):
            raise ArgumentError(f"emulate: {name} is {type(value).__name__} {str(value)[:100]!r}; expected {expected}")
    token = _OPTIONS.set(Options(**given))  # type: ignore[arg-type]
    try:
        yield
    finally:
        _OPTIONS.reset(token)


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
