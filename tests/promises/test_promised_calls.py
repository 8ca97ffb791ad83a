"""Every operator, in every dtype, is called on CPU tensors and computes what it means, with the emulator's checks on."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
import torch
from compiled import compile_calls
from operators import IN_EVERY_DTYPE, OPERATORS, small
from torch import Tensor

import kgen
from kgen.dsl.operator import Graph
from kgen.runtime.operator import KernelOperator
from kgen.tuner.verify import Gate


class Called:
    """Calls of an operator, in the place of a kernel's runner: the gate judges what a user gets."""

    emulated = True

    def __init__(self, operator: KernelOperator, graph: Graph) -> None:
        self.operator, self.graph = operator, graph

    def run(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
        given, out = ([tensors[spec.name] for spec in specs] for specs in (self.graph.inputs, self.graph.outputs))
        with kgen.emulate():
            found = self.operator(*given, out=tuple(out), **scalars)
        assert all(a is b for a, b in zip(found if isinstance(found, tuple) else (found,), out))

    def vary(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


#: So many calls are compiled together.
_TOGETHER = 16
_GRAPHS: list[Graph] = [parameters.values[1] for parameters in IN_EVERY_DTYPE]  # type: ignore[misc]


@functools.cache
def compile_group(number: int) -> None:
    compile_calls(map(small, _GRAPHS[number * _TOGETHER : (number + 1) * _TOGETHER]))


@pytest.mark.parametrize(("name", "graph"), IN_EVERY_DTYPE)
def test_a_call_computes_what_the_operator_means(name: str, graph: Graph) -> None:
    compile_group(_GRAPHS.index(graph) // _TOGETHER)
    verdict = Gate(small(graph)).check(Called(OPERATORS[name], graph))
    assert verdict.ok, verdict.evidence


def test_a_wrong_result_is_seen() -> None:
    class Wrong(Called):
        def run(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
            super().run(tensors, scalars)
            tensors["out"].view(torch.int16).view(-1)[3] += 1  # a unit in the last place of one element

    graph = OPERATORS["add"].definition.graphs[0]
    assert not Gate(small(graph)).check(Wrong(OPERATORS["add"], graph)).ok
