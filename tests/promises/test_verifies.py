"""`kgen verify OP --emulate`, with no further option, finds every operator's kernel right, on elements beyond 2^32 too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from operators import LAUNCHES, OPERATORS, small

from kgen.cli.problems import select_one
from kgen.cli.verify import _verify, _verify_program
from kgen.dsl.operator import Graph
from kgen.dsl.program import program_of
from kgen.gpu.target import resolve
from kgen.numerics.reference import native
from kgen.runtime import dispatch
from kgen.runtime.machine import Machine
from kgen.tuner.far import Far
from kgen.tuner.verify import Gate

H200 = Machine(resolve("H200"), None)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_kernel_of_the_default_problem_passes_the_gate(name: str) -> None:
    problem = select_one(LAUNCHES[name], None, None, None, None)
    found = _verify(dispatch.default(problem, H200.target).config, problem, H200, emulated=True)
    assert any(isinstance(case, Far) and not case.rows for case, _ in found), "nothing of it can be spread out"
    assert any(not isinstance(case, Far) for case, _ in found)
    for case, verdict in found:
        assert verdict.ok, (case, verdict.evidence)


@pytest.mark.parametrize("name", [name for name, operator in OPERATORS.items() if operator.launches != (operator,)])
def test_all_launches_of_the_default_problem_pass_the_gate(name: str) -> None:
    program = program_of(select_one(OPERATORS[name], None, None, None, None))
    configs = [dispatch.default(launch, H200.target).config for launch in program.launches]
    case, verdict = _verify_program(program, configs, H200, emulated=True)
    assert case.graph == program.problem.graph
    assert verdict.ok, (case, verdict.evidence)


class Torchs:
    """torch's own arithmetic, as a runner."""

    emulated = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def vary(self) -> None:
        """It is the same each time."""

    def run(self, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float], stream: int = 0) -> None:
        for spec, value in zip(self.graph.outputs, native(self.graph, tensors, scalars)):
            tensors[spec.name].copy_(value)

    def synchronize(self) -> None:
        """It has ended."""


@pytest.mark.parametrize("name", OPERATORS)
def test_torchs_own_arithmetic_passes_the_gate(name: str) -> None:
    """Where rounding goes another way than in the reference, it may be that of any kernel."""
    for graph in OPERATORS[name].definition.graphs:
        if any(node.op == "external" for node in graph.nodes):
            pytest.skip("it is compared with a function of its own")
        gate = Gate(small(graph, 128), special=False)
        gate.cases = [
            case for case in gate.cases if not case.exact
        ]  # torch rounds after each step, a kernel at the end
        verdict = gate.check(Torchs(graph), repeats=1)
        assert verdict.ok, (graph.name, verdict.evidence)
