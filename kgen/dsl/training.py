"""The problems of a training step: what a call runs whose gradients are wanted, and what computes them."""

from __future__ import annotations

import math

from kgen.dsl.gradient import backward, differentiable, training
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem


def training_problems(problem: Problem) -> tuple[Problem, ...]:
    """The forward problem with what is kept, and that of all gradients, of dense operands; the latter where there is one.

    Raises NoDerivative where an input has none.
    """
    graph = training(problem.graph)
    floats = tuple(k for k, spec in enumerate(problem.graph.outputs) if spec.dtype.is_float)
    made = backward(graph, floats, differentiable(graph))
    sizes: dict[str, int | tuple[int, ...]] = dict(problem.sizes)
    forward = _dense(graph, sizes, problem.leading)
    if made.graph is None:
        return (forward,)
    count = math.prod(problem.leading)
    if made.lead == "folded":
        row = next(str(s.shape.dims[0]) for s in (*graph.inputs, *graph.outputs) if s.shape.leading)
        sizes[row] = problem.sizes[row] * count
    elif made.lead == "named":
        sizes.update({name: count for name in made.graph.dims if name not in sizes})
    return forward, _dense(made.graph, sizes, problem.leading)


def _dense(graph: Graph, sizes: dict[str, int | tuple[int, ...]], leading: tuple[int, ...]) -> Problem:
    known: dict[str, int | tuple[int, ...]] = {name: sizes[name] for name in graph.dims}
    if any(spec.shape.leading for spec in (*graph.inputs, *graph.outputs)):
        known["..."] = leading
    return Problem.dense(graph, known)
