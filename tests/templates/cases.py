"""Template cases: a problem and a config, to be rendered, compiled and run, on the emulator or on a GPU.

A group holds the cases of one schedule for one dtype and layout. Its cases cover every value of every field of the schedule
that this dtype and layout allow, every shape relative to the tile, every kind of operand, batch and expression, each value
in several combinations. They are drawn with a fixed seed, so that every run has the same.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from kgen.dsl.choice import Rule, Undecided, Value
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.emulator import Options
from kgen.gpu.target import resolve
from kgen.numerics.dtypes import round_to
from kgen.numerics.operands import guards_intact, make_operands, poison, same_bits, scalar_values
from kgen.numerics.reference import evaluate_exactly
from kgen.ops.gemm import WgmmaGemm
from kgen.tuner.execute import AnyKernel, Runner

#: A GPU of two multiprocessors: small problems take several waves there, so that the order of tiles and the waves matter.
TARGET: Target = replace(resolve("H200"), sm_count=2)

_ATTEMPTS = 60  # at a case for one value, which may not be possible at all
_CANDIDATES = 8  # of which the one is taken that shows the most that no other case has shown
_STEPS = 600  # of the search for one config


@dataclass(frozen=True)
class Case:
    """A config, the (normalised) problem it is run on, and what it is there for."""

    config: Schedule
    problem: Problem
    seed: int
    async_mode: Literal["eager", "late", "random"]
    traits: Mapping[str, str]
    target: Target = TARGET

    @property
    def shows(self) -> set[tuple[str, Value]]:
        """What it covers: values of the schedule's fields, and traits."""
        return {*self.config.values.items(), *self.traits.items()}

    def __str__(self) -> str:
        return f"{self.problem} [{self.problem.key}] {self.config!r} {dict(self.traits)}"


def known_values(schedule: type[Schedule]) -> Iterator[tuple[str, Value]]:
    """Every field with every value that its template knows by name, whether a search considers it or not.

    Of very many numbers, as the widths of wgmma, some after the first dozen stand for the others.
    """
    for name, known in schedule.fields.items():
        more = () if isinstance(known.allows, range) else known.allows
        some = known.values if len(known.values) <= 16 else (*known.values[:12], *known.values[12::5])
        yield from ((name, value) for value in (*some, *more))


def draw(
    schedule: type[Schedule], problem: Problem, target: Target, source: random.Random, fixed: Mapping[str, Value]
) -> Schedule | None:
    """A config that is right with the fixed values: the first of a search through shuffled domains; None if it finds none.

    Rules that only prune the search hold too, but for those of WgmmaGemm, which leave next to nothing on a small GPU.
    """
    values: dict[str, Value] = dict(fixed)
    view = schedule.partial(values)
    steps = _STEPS

    def decide(rules: list[Rule]) -> list[tuple[Rule, str]] | None:
        waiting = []
        for test in rules:
            try:
                if not test(view, problem, target):
                    return None
            except Undecided as missing:
                waiting.append((test, missing.field))
        return waiting

    def descend(names: list[str], waiting: list[tuple[Rule, str]]) -> bool:
        nonlocal steps
        if not names:
            return True
        name, *rest = names
        domain = list(schedule.fields[name].values)
        for value in source.sample(domain, len(domain)):
            steps -= 1
            if steps < 0:
                return False
            values[name] = value
            still = decide([test for test, field in waiting if field == name])
            others = [(test, field) for test, field in waiting if field != name]
            if still is not None and descend(rest, others + still):
                return True
            del values[name]
        return False

    kept = [r for r in schedule.rules.values() if schedule is not WgmmaGemm or not getattr(r, "__pruning__", False)]
    start = decide(kept) if schedule.applies(problem) else None
    found = start is not None and descend([n for n in schedule.fields if n not in values], start)
    return schedule(**{name: values[name] for name in schedule.fields}) if found else None


#: Makes a problem, given what is to be covered ("" and "" for nothing in particular): the values to fix, and its traits.
Maker = Callable[[random.Random, str, Any], "tuple[Problem, dict[str, Value], dict[str, str]] | None"]


#: Runs a case by a kernel on a device and raises what is wrong with it.
Check = Callable[[Case, AnyKernel, str], None]


@dataclass(frozen=True)
class Group:
    """The cases of one schedule for one dtype and layout. `traits`: what a problem may be like, besides; `judge`: see Check;
    `searched`: only values that a search considers, where another group of the dtype has the others; `turn`: of so many groups
    that share the fields' values out, which one it is."""

    name: str
    schedule: type[Schedule]
    make: Maker
    traits: Mapping[str, tuple[str, ...]]
    cost: Callable[[Schedule, Problem], float]
    target_of: Callable[[Mapping[str, Value]], Target] = lambda fixed: TARGET
    judge: Check = field(default_factory=lambda: check)
    searched: bool = False
    turn: tuple[int, int] = (0, 1)

    def cases(self) -> list[Case]:
        """The cases, the same in every process."""
        source = random.Random(self.name)
        wanted = [
            x for x in known_values(self.schedule) if not self.searched or x[1] in self.schedule.fields[x[0]].values
        ]
        wanted = wanted[self.turn[0] :: self.turn[1]]
        wanted += [(name, value) for name, values in self.traits.items() for value in values]
        covered: set[tuple[str, Value]] = set()
        found: list[Case] = []
        for name, value in wanted:
            if (name, value) not in covered:
                drawn = (self._case(source, name, value, len(found)) for _ in range(_ATTEMPTS))
                able = itertools.islice((case for case in drawn if case is not None), _CANDIDATES)
                best = max(able, key=lambda case: len(case.shows - covered), default=None)
                if best is not None:
                    found.append(best)
                    covered |= best.shows
        return found

    def _case(self, source: random.Random, name: str, value: Value, number: int) -> Case | None:
        made = self.make(source, name, value)
        if made is None:
            return None
        problem, fixed, traits = made
        if name in self.schedule.fields:
            fixed = {**fixed, name: value}
        target = self.target_of(fixed)
        config = draw(self.schedule, problem, target, source, fixed)
        if config is None or self.cost(config, problem) > 1:
            return None
        modes: tuple[Literal["eager", "late", "random"], ...] = ("late", "random", "eager")
        return Case(config, problem, number, modes[number % 3], traits, target)


def check(case: Case, kernel: AnyKernel, device: str = "cpu") -> None:
    """Runs a case twice, on the same workspace, and compares bit for bit with the exact result.

    Inputs are whole numbers with which every sum is exact. Nothing but the outputs may change. AssertionError,
    EmulatorError or DeviceError says what is wrong.
    """
    problem, graph = case.problem, case.problem.graph
    source = kernel.source
    tensors = make_operands(problem, "integers", case.seed, device)
    scalars = scalar_values(graph, "integers")
    before = {o.name: tensors[o.name].clone() for o in problem.inputs}
    exact = evaluate_exactly(graph, tensors, scalars)
    assert exact is not None, "the inputs leave rounding to the order of sums"
    expected = [round_to(value, o.dtype) for value, o in zip(exact, problem.outputs)]
    symbols = {**case.config.symbols(problem), "SM_COUNT": case.target.sm_count}
    runner = Runner(kernel, source, symbols, Options(seed=case.seed, async_mode=case.async_mode, threads=1))
    try:
        for run in ("first", "second"):
            for o in problem.outputs:
                poison(tensors[o.name])
            runner.run(tensors, scalars)
            runner.synchronize()
            for o, want in zip(problem.outputs, expected):
                got = tensors[o.name]
                assert _equal(got, want), f"{run} run: {o.name} {_differences(got, want)}"
            for o in problem.operands:
                assert guards_intact(tensors[o.name]), f"{run} run: memory beside {o.name} was written"
            for name, was in before.items():
                assert same_bits(tensors[name].contiguous(), was.contiguous()), f"{run} run: input {name} was written"
    finally:
        runner.close()


def _equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether all bits are the same, but for the sign of zero, which the order of a sum decides."""
    if want.dtype.is_floating_point:
        got, want = got.double() + 0.0, want.double() + 0.0
    return same_bits(got.contiguous(), want.contiguous())


def _differences(got: torch.Tensor, want: torch.Tensor) -> str:
    wrong = (got.double() != want.double()).nonzero()
    first = tuple(wrong[0].tolist()) if len(wrong) else ()
    told = f", first at {first}: got {got[first].item()}, expected {want[first].item()}" if len(wrong) else " in bits"
    return f"differs in {len(wrong)} of {got.numel()} elements{told}"


def failures(cases: list[Case], run: Callable[[Case], None]) -> Iterator[str]:
    """What went wrong, one text a case; the other cases run all the same."""
    for case in cases:
        try:
            run(case)
        except Exception as error:
            log = getattr(error, "log", "")
            yield f"{type(error).__name__}: {error}\n{log[:1500]}\n  {case}"
