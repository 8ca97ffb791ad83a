"""torch.compile: the eager graph through Inductor, tuned as far as it goes without CUDA graphs of its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kgen.bench import eager
from kgen.bench.opponents import Launch, Operands
from kgen.dsl.problem import Problem


def why_not(problem: Problem) -> str | None:
    return eager.why_not(problem.graph)


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    function = torch.compile(
        eager.function(problem, scalars, compiled=True),
        fullgraph=True,
        dynamic=False,
        mode="max-autotune-no-cudagraphs",
    )
    inputs = [[operands[o.name] for o in problem.inputs] for operands in sets]
    names = [o.name for o in problem.outputs]

    def launch(i: int) -> None:
        sets[i].update(zip(names, function(*inputs[i])))

    launch(0)  # compiles and tunes
    return launch
