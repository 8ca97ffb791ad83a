"""What kgen makes its promises of: every shipped operator, from the registry, and those of the examples."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from kgen import ops
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import Problem
from kgen.dsl.types import DType
from kgen.ops.common.sizes import fill
from kgen.runtime.operator import KernelOperator
from kgen.runtime.shipped import shipped

EXAMPLES = Path(__file__).parents[2] / "examples"


@functools.cache
def example(name: str) -> ModuleType:
    """The module of an example; once a process, since a family is registered once."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _of_examples() -> dict[str, KernelOperator]:
    modules = (example(file.stem) for file in sorted(EXAMPLES.glob("*.py")))
    found = (pair for module in modules for pair in vars(module).items())
    # An operator pinned to some of its configs (`fast = ffn.using(...)`) is none of its own.
    return {k: v for k, v in found if isinstance(v, KernelOperator) and k == v.__name__}


#: By name: a new operator, shipped or of an example, is in every test of this folder.
OPERATORS: dict[str, KernelOperator] = {**{name: shipped(name) for name in ops.operators()}, **_of_examples()}

#: And their launches, which is where they have kernels: most operators are one themselves.
LAUNCHES: dict[str, KernelOperator] = {
    launch.__name__: launch for operator in OPERATORS.values() for launch in operator.launches
}


#: Launches of gradients, of families that serve nothing else, with these families' own suites.
GRADIENTS = [
    Operator.of_graphs(
        ops.operator(f"attention_{name}_train_grad_{launch}").graphs, "A launch of attention's gradient.", {}
    )
    for name in ("full", "causal_lse")
    for launch in ("2", "3", "unordered_2")
]


def small(graph: Graph, side: int = 16) -> Problem:
    """A problem of some thousand elements at most, dense."""
    return Problem.dense(graph, fill(graph, 4 * side**2, side))


def every_dtype(graphs: Sequence[Graph]) -> list[Graph]:
    """The first graph, and as few more as it takes for every operand to have each of its dtypes."""
    found, seen = list[Graph](), set[tuple[str, DType]]()
    for graph in graphs:
        dtypes = {(spec.name, spec.dtype) for spec in (*graph.inputs, *graph.outputs)}
        if not dtypes <= seen:
            found.append(graph)
            seen |= dtypes
    return found


#: Every operator in every dtype that it is made for: (name, graph) as a test's parameters.
IN_EVERY_DTYPE = [
    pytest.param(
        name, graph, id="-".join([name, *dict.fromkeys(s.dtype.name for s in (*graph.inputs, *graph.outputs))])
    )
    for name, operator in OPERATORS.items()
    for graph in every_dtype(operator.definition.graphs)
]
