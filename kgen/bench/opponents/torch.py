"""Eager torch: the graph op by op in the native dtypes, known activations as one call."""

from __future__ import annotations

from collections.abc import Mapping

from kgen.bench import eager
from kgen.bench.opponents import Launch, Operands
from kgen.dsl.problem import Problem


def why_not(problem: Problem) -> str | None:
    return eager.why_not(problem.graph)


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    function = eager.function(problem, scalars)
    inputs = [[operands[o.name] for o in problem.inputs] for operands in sets]
    names = [o.name for o in problem.outputs]

    def launch(i: int) -> None:
        sets[i].update(zip(names, function(*inputs[i])))

    return launch
