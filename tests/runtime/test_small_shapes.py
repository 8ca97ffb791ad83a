"""Every shipped operator, called on CPU tensors, where an axis has one element or none, or is expanded (stride 0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

import kgen
from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, dense_strides
from kgen.dsl.size import evaluate
from kgen.ops import operators
from kgen.tuner.verify import Gate

#: Sizes that operators ask for; else they are 4, 5 and 6 in turn.
SIZES = {"D": 6, "P": 3}
LEADING = (2, 3)


class Call:
    """An operator called on tensors, as the gate runs a kernel."""

    emulated = True

    def __init__(self, name: str) -> None:
        self.operator = getattr(kgen, name)

    def run(self, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float]) -> None:
        definition = self.operator.definition
        inputs = [tensors[name] for name in definition.tensors]
        outputs = tuple(tensors[spec.name] for spec in definition.graphs[0].outputs)
        self.operator(*inputs, out=outputs, **scalars)

    def synchronize(self) -> None:
        pass


def problem_of(
    graph: Graph, sizes: Mapping[str, int], leading: tuple[int, ...], expanded: tuple[int, int] = (-1, 0)
) -> Problem:
    """Dense operands of these sizes; that with the number expanded[0] has stride 0 along its axis expanded[1]."""
    made = []
    for number, spec in enumerate((*graph.inputs, *graph.outputs)):
        shape = (*(leading if spec.shape.leading else ()), *(evaluate(d, sizes) for d in spec.shape.dims))
        held = list(shape)
        if number == expanded[0]:
            held[expanded[1]] = 1
        strides = [0 if n != h else s for n, h, s in zip(shape, held, dense_strides(held))]
        made.append(Operand(spec.name, spec.dtype, shape, tuple(strides)))
    return Problem.bind(graph, made)


def sizes_of(graph: Graph) -> tuple[dict[str, int], tuple[int, ...]]:
    """Small sizes of the named dimensions, and of leading ones."""
    leading = LEADING if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else ()
    return {name: SIZES.get(name, 4 + i % 3) for i, name in enumerate(graph.dims)}, leading


def with_size(graph: Graph, n: int) -> Iterator[tuple[str, Problem]]:
    """The problems with each dimension in turn of size n, and with all of them."""
    sizes, leading = sizes_of(graph)
    for name in graph.dims:
        yield f"{name}={n}", problem_of(graph, {**sizes, name: n}, leading)
    if leading:
        yield f"...={n}", problem_of(graph, sizes, (n,))
    yield f"all={n}", problem_of(graph, dict.fromkeys(graph.dims, n), leading and (n,))


def with_expanded(graph: Graph) -> Iterator[tuple[str, Problem]]:
    """The problems with each input in turn expanded along each of its axes."""
    sizes, leading = sizes_of(graph)
    for number, operand in enumerate(problem_of(graph, sizes, leading).inputs):
        for axis in range(len(operand.shape)):
            label = f"{operand.name} expanded along {axis}"
            yield label, problem_of(graph, sizes, leading, (number, axis))


@pytest.mark.parametrize("name", operators())
def test_axes_of_one_element_and_expanded_ones(name: str) -> None:
    graph, wrong = operators()[name].graphs[0], []
    for label, problem in (*with_size(graph, 1), *with_expanded(graph)):
        try:
            with kgen.emulate():
                verdict = Gate(problem).check(Call(name), repeats=1)  # type: ignore[arg-type]
            if not verdict.ok:
                wrong.append(f"{label}: {verdict.evidence}")
        except ArgumentError as error:
            print(label, error)
        except Exception as error:
            wrong.append(f"{label}: {type(error).__name__} {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
