"""Every operator with each of its sizes beyond 2^31, in rows that lie apart: its parameters hold them, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgen.codegen.source import Integer, Source
from kgen.dsl.errors import ArgumentError, ConfigError
from kgen.dsl.family import family_of
from kgen.dsl.problem import Problem, dense_strides
from kgen.gpu.kernel import encode
from kgen.gpu.target import resolve
from kgen.ops import operators
from kgen.tuner.ragged import resized, symbols

TARGET = resolve("H200")
FAR = 2**31 + 8


def _apart(name: str, axis: str) -> Problem:
    """A problem with that size, and small ones but for it; its rows are padded, so that no axes collapse into one."""
    graph = operators()[name].graphs[0]
    known = family_of(graph).suites(graph)["default"][-1]
    near = Problem.dense(graph, {**known, "...": (2, 3)} if "..." in known else known)
    small = {size: n if n <= 8 else 8 for size, n in _sizes(near).items()}
    far = resized(near, {**small, axis: FAR})
    far = far.origin or far
    operands = [
        replace(o, strides=dense_strides((*o.shape[:-1], o.shape[-1] + 8))) if o.shape else o for o in far.operands
    ]
    return Problem.bind(graph, operands)


def _sizes(problem: Problem) -> dict[str, int]:
    return {**problem.sizes, **{f"...{i}": n for i, n in enumerate(problem.leading)}}


def _overflowing(source: Source, integers: dict[int, int]) -> list[str]:
    wrong = []
    for index, value in integers.items():
        param = source.params[index]
        assert isinstance(param, Integer)
        try:
            encode(param, value)
        except ArgumentError as error:
            wrong.append(str(error))
        if param.most is not None and value > param.most:
            wrong.append(f"{param.name} is {value}, the kernel is right up to {param.most}")
    return wrong


@pytest.mark.parametrize("name", operators())
def test_parameters_hold_every_size_that_is_served(name: str) -> None:
    wrong = []
    graph = operators()[name].graphs[0]
    family = family_of(graph)
    for axis in (*graph.dims, *(["...0", "...1"] if "..." in family.suites(graph)["default"][-1] else [])):
        try:
            problem = family.normalise(_apart(name, axis))
        except ArgumentError:
            continue  # sizes that others follow from
        for schedule in (s for s in family.schedules if s.applies(problem)):
            try:
                config = schedule.default(problem, TARGET)
            except ConfigError:
                continue
            source = config.source(problem)
            bound = source.bind(symbols(config, problem, TARGET.sm_count))
            wrong += [f"{axis}, {schedule.__name__}: {told}" for told in _overflowing(source, bound.integers)]
            wrong += [
                f"{axis}, {schedule.__name__}: {x}" for x in source.limits if not x.holds(symbols(config, problem, 1))
            ]
    assert not wrong, "\n".join(wrong)
