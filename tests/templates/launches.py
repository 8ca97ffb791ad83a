"""One launch of a config on the emulator, for tests that bring tensors of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cases import TARGET

from kgen import emulator
from kgen.dsl.family import family_of
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, common_alignment
from kgen.dsl.schedule import Schedule
from kgen.emulator import Options
from kgen.tuner.execute import Runner


def problem_of(graph: Graph, tensors: Sequence[torch.Tensor]) -> Problem:
    """The (normalised) problem of calling a graph on tensors: inputs, then outputs."""
    operands = [
        Operand(spec.name, spec.dtype, tuple(t.shape), t.stride(), common_alignment(t.data_ptr()))
        for spec, t in zip((*graph.inputs, *graph.outputs), tensors)
    ]
    return family_of(graph).normalise(Problem.bind(graph, operands))


def dense(graph: Graph, sizes: Mapping[str, Any], layouts: Mapping[str, str] | None = None) -> Problem:
    """The (normalised) problem with dense operands."""
    return family_of(graph).normalise(Problem.dense(graph, sizes, layouts))


def runner(config: Schedule, problem: Problem, **options: Any) -> Runner:
    """A config on the emulator; `options` are the emulator's."""
    config.check(problem, TARGET)
    source = config.source(problem)
    symbols = {**config.symbols(problem), "SM_COUNT": TARGET.sm_count}
    return Runner(emulator.compile(source), source, symbols, Options(**{"threads": 1, **options}))


def launch(
    graph: Graph,
    tensors: Sequence[torch.Tensor],
    schedule: type[Schedule],
    fields: Mapping[str, Any] | None = None,
    scalars: Mapping[str, float] | None = None,
    **options: Any,
) -> None:
    """Runs a graph on dense or strided tensors (inputs, then outputs) with the schedule's default, some fields changed."""
    problem = problem_of(graph, tensors)
    config = schedule.default(problem, TARGET)
    if fields:
        config = config.replace(**fields)
    given = {spec.name: t for spec, t in zip((*graph.inputs, *graph.outputs), tensors)}
    runner(config, problem, **options).run(given, scalars or {})
