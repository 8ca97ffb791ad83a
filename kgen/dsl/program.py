"""Program: the launches that compute a problem, in order, over its operands and workspaces. Mostly there is one.

A launch is a problem of its own: it has a family, a config, a Source, and a place in the database.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kgen.dsl.errors import ConfigError
from kgen.dsl.family import suites_of
from kgen.dsl.operator import Graph, Operator, TensorSpec
from kgen.dsl.partition import partition
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.size import evaluate


@dataclass(frozen=True)
class Program:
    """`launches` in order. An operand of one is the problem's operand of that name, or the workspace of that name.

    A launch may see an operand of the problem with other axes of size 1 than the problem does.
    """

    problem: Problem
    launches: tuple[Problem, ...]
    workspaces: tuple[Operand, ...] = ()

    @property
    def single(self) -> bool:
        """Whether one launch computes the problem as it is."""
        return len(self.launches) == 1


def program_of(problem: Problem) -> Program:
    """The launches of a problem as the caller put it: itself alone, unless its graph is cut."""
    cut = partition(problem.graph)
    if cut is None:
        return Program(problem, (problem,))
    known = {o.name: o for o in problem.operands}
    declared = {spec.name: spec for spec in (*problem.graph.inputs, *problem.graph.outputs)}
    workspaces: list[Operand] = []
    launches: list[Problem] = []
    for graph in cut.graphs:
        inputs = [_seen(known[spec.name], declared.setdefault(spec.name, spec), spec) for spec in graph.inputs]
        leading = Problem.bind(graph, inputs).leading
        for spec in graph.outputs:
            if spec.name not in known:
                known[spec.name] = _dense(spec, leading, problem.sizes)
                workspaces.append(known[spec.name])
        launches.append(Problem.bind(graph, [*inputs, *(known[spec.name] for spec in graph.outputs)]))
    return Program(problem, tuple(launches), tuple(workspaces))


def several_launches(graph: Graph) -> ConfigError:
    """What is wrong where one config is meant of a graph that takes several launches."""
    cut = partition(graph)
    assert cut is not None, "the graph takes one launch"
    names = ", ".join(part.name for part in cut.graphs)
    return ConfigError(
        f"{graph.name} takes {len(cut.graphs)} launches, each with a config of its own; name one of them: {names}; in Python "
        f"{graph.name}.launches[0] (kgen explain {graph.name} tells what each computes)"
    )


@functools.cache
def launches_of(operator: Operator) -> tuple[Operator, ...]:
    """The launches of an operator as operators of their own, `NAME_1` and so on; itself alone, unless it is cut.

    Their suites have the operator's sizes.
    """
    cuts = [cut for graph in operator.graphs if (cut := partition(graph)) is not None]
    if not cuts:
        return (operator,)
    suites = suites_of(operator)
    made = []
    for number in range(len(cuts[0].graphs)):
        graphs = {cut.graphs[number].digest: cut.graphs[number] for cut in cuts}
        first = cuts[0].graphs[number]
        own = {*first.dims, *(["..."] if any(s.shape.leading for s in (*first.inputs, *first.outputs)) else [])}
        sizes = {
            name: list({repr(kept): kept for s in suite if (kept := {d: n for d, n in s.items() if d in own})}.values())
            for name, suite in suites.items()
        }
        doc = f"Launch {number + 1} of {operator.name}: {', '.join(spec.name for spec in first.outputs)}."
        made.append(Operator.of_graphs(tuple(graphs.values()), doc, sizes))
    return tuple(made)


def _dense(spec: TensorSpec, leading: tuple[int, ...], sizes: Mapping[str, int]) -> Operand:
    """A workspace."""
    named = tuple(evaluate(d, sizes) for d in spec.shape.dims)
    shape = (*leading, *named) if spec.shape.leading else named
    return Operand(spec.name, spec.dtype, shape, dense_strides(shape))


def _seen(operand: Operand, own: TensorSpec, spec: TensorSpec) -> Operand:
    """An operand, declared as `own`, with the axes of size 1 that another signature of it has."""
    if own.shape == spec.shape:
        return operand
    head = len(operand.shape) - len(own.shape.dims)
    axes = [*zip(operand.shape, operand.strides)]
    kept = iter([axis for axis, d in zip(axes[head:], own.shape.dims) if d != 1])
    axes[head:] = [(1, 1) if d == 1 else next(kept) for d in spec.shape.dims]
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    dense = operand.strides == dense_strides(operand.shape)
    return replace(operand, shape=shape, strides=dense_strides(shape) if dense else strides)
