"""TemplateSchedule: a template of one's own as a schedule, by its fields and its launch alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Param, Pointer, Scalar, Source
from kgen.dsl.choice import Rule, Undecided, Value, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, evaluate
from kgen.dsl.target import Arch, Target, sm

#: The most blocks of a grid along x, y and z: CUDA C++ Programming Guide, technical specifications.
_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class _Nothing:
    """What the template sees beside the config."""


class TemplateSchedule(Schedule):
    """A schedule whose kernel has the parameters that follow from the problem: the base for a template of one's own.

    A subclass names its `template` (a path, from the file that the class is in), declares fields, and gives `launch`. Its
    kernel is `{{ entry }}({{ signature }})`; the parameters are a pointer for each operand, inputs then outputs, under the
    operand's name (a sole result is `out`); the operator's numbers; its dimensions as `long long`; and the strides of each
    operand in elements, `x_s0`, `x_s1`, ... Pointers are aligned to an element, strides may be any. The template reads fields as
    `{{ config.rows }}`. Operators with leading dimensions (`...`) are not served.
    """

    target: ClassVar[Arch] = sm(75)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        code = [member.__code__ for member in vars(cls).values() if isinstance(member, FunctionType)]
        if "template" in vars(cls) and code:
            cls.template = str(Path(code[0].co_filename).resolve().parent / cls.template)
        super().__init_subclass__(**kwargs)

    def launch(self, problem: Problem) -> Launch:
        """The grid, over the operator's dimensions as symbols, and the block of the kernel."""
        raise NotImplementedError

    @rule
    def grid_of_the_driver(self, problem: Problem, target: Target) -> bool:
        """a grid has at most 2^31 - 1, 65535 and 65535 blocks along x, y and z"""
        symbols = {**self.symbols(problem), "SM_COUNT": target.sm_count}
        return all(evaluate(size, symbols) <= most for size, most in zip(self.launch(problem).grid, _GRID))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return not problem.leading

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> Schedule:
        """The first valid config, in the order of fields and values."""
        found = next(enumerate_space(cls, problem, target), None)
        if found is None:
            raise ConfigError(f"no config of {cls.__name__} is valid for {problem} on {target}")
        return found

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """Sizes by dimension, and strides in elements by operand and axis: `x_s0`."""
        strides = {f"{o.name}_s{axis}": stride for o in problem.operands for axis, stride in enumerate(o.strides)}
        return {**problem.sizes, **strides}

    def source(self, problem: Problem) -> Source:
        """The kernel: the template with this config and the parameters named above."""
        graph = problem.graph
        params: list[Param] = [Pointer(o.name, o.dtype, o.name, "in") for o in problem.inputs]
        params += [Pointer(o.name, o.dtype, o.name, "out") for o in problem.outputs]
        params += [Scalar(s.name, s.dtype) for s in graph.scalars]
        params += [Integer(name, Dim(name), 64) for name in self.symbols(problem)]
        return render(
            self,
            problem,
            entry=graph.name,
            params=tuple(params),
            launch=self.launch(problem),
            arch=self.target,
            context=_Nothing(),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """A launch, and the bytes at the memory's rate, in seconds: the same for every config, so only measuring ranks them."""
        return 2e-6 + float(problem.bytes) / float(target.bandwidth)


def enumerate_space(schedule: type[Schedule], problem: NormalProblem, target: Target) -> Iterator[Schedule]:
    """Every valid config of a schedule for a problem on a target, in the fixed order of fields and domains.

    Backtracking over the fields: each rule is decided at the first depth where all it reads is fixed, so a broken rule
    cuts its whole subtree. A rule that meets an open field waits until that field is fixed.
    """
    if not schedule.target.runs_on(target.arch) or not schedule.applies(problem):
        return
    names = list(schedule.fields)
    depth_of = {name: depth for depth, name in enumerate(names)}
    values: dict[str, Value] = {}
    view = schedule.partial(values)

    def decide(rules: list[Rule]) -> list[tuple[Rule, int]] | None:
        """The rules still open, each with the depth that may decide it; None when one is broken."""
        waiting = []
        for test in rules:
            try:
                if not test(view, problem, target):
                    return None
            except Undecided as open_field:
                waiting.append((test, depth_of[open_field.field]))
        return waiting

    def descend(depth: int, waiting: list[tuple[Rule, int]]) -> Iterator[Schedule]:
        if depth == len(names):
            yield schedule(**values)
            return
        due = [test for test, at in waiting if at == depth]
        later = [(test, at) for test, at in waiting if at != depth]
        for value in schedule.fields[names[depth]].values:
            values[names[depth]] = value
            still = decide(due)
            if still is not None:
                yield from descend(depth + 1, later + still)
            del values[names[depth]]

    start = decide(list(schedule.rules.values()))
    if start is not None:
        yield from descend(0, start)
