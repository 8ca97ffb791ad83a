"""What is evaluated for some leading places at a time is what it is of all at once."""

from __future__ import annotations

import pytest
import torch

from kgen import ops
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.size import evaluate as size_of
from kgen.numerics import parts
from kgen.numerics.operands import make_operands, scalar_values
from kgen.numerics.reference import evaluate, evaluate_exactly, evaluate_ranged, native, regrouped
from kgen.numerics.values import Arithmetic

LED = [
    name
    for name, operator in ops.operators().items()
    if any(spec.shape.leading for spec in (*operator.graphs[0].inputs, *operator.graphs[0].outputs))
]


def problem_of(graph: Graph) -> Problem:
    """Leading sizes 1, 5 and 3; of several inputs each second one has them without the first, and broadcast along one of them."""
    sizes = {name: {"D": 6, "P": 3}.get(name, 4 + k % 3) for k, name in enumerate(graph.dims)}
    broadcast = [spec for spec in graph.inputs if spec.shape.leading][1::2]
    operands = []
    for spec in (*graph.inputs, *graph.outputs):
        leading = ((5, 1) if spec in broadcast else (1, 5, 3)) if spec.shape.leading else ()
        shape = (*leading, *(size_of(d, sizes) for d in spec.shape.dims))
        operands.append(Operand(spec.name, spec.dtype, shape, dense_strides(shape)))
    return Problem.bind(graph, operands)


def of(problem: Problem, kind: str) -> list[torch.Tensor]:
    graph, scalars = problem.graph, scalar_values(problem.graph)
    tensors = make_operands(problem, kind, 3)  # type: ignore[arg-type]
    values, doubts = evaluate_ranged(graph, tensors, scalars)
    found = [evaluate(graph, tensors, scalars), values, doubts, native(graph, tensors, scalars)]
    found += [evaluate_exactly(graph, tensors, scalars) or (), regrouped(graph, tensors, scalars) or ()]
    return [result for results in found for result in results]


@pytest.mark.parametrize("kind", ["integers", "special"])
@pytest.mark.parametrize("name", LED)
def test_parts_are_the_whole(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(ops.operators()[name].graphs[0])
    whole = of(problem, kind)
    for largest in (1, 40):  # single places, and some together
        monkeypatch.setattr(parts, "_LARGEST", largest)
        for got, expected in zip(of(problem, kind), whole, strict=True):
            torch.testing.assert_close(got.double(), expected.double(), rtol=1e-12, atol=0, equal_nan=True)


def test_what_several_places_have_a_part_in_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_LARGEST", 1)
    cut = []
    for name in LED:
        problem = problem_of(ops.operators()[name].graphs[0])
        how, tensors = Arithmetic(), make_operands(problem, "normal", 0)
        how.begin(problem.graph, tensors, scalar_values(problem.graph))
        if parts.by_parts(problem.graph, tensors, how, lambda part: []) is not None:
            cut.append(name)
    assert {"linear_attention_decay", "attention_full", "softmax", "add"} <= set(cut)
    assert not {"sum_all", "dropout"} & set(cut)
