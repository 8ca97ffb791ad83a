"""`kgen verify OP --emulate`, with no further option, finds every operator's kernel right, on elements beyond 2^32 too."""

from __future__ import annotations

import pytest
from operators import LAUNCHES, OPERATORS

from kgen.cli.problems import select_one
from kgen.cli.verify import _verify, _verify_program
from kgen.dsl.program import program_of
from kgen.gpu.target import resolve
from kgen.runtime import dispatch
from kgen.runtime.machine import Machine
from kgen.tuner.far import Far

H200 = Machine(resolve("H200"), None)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_kernel_of_the_default_problem_passes_the_gate(name: str) -> None:
    problem = select_one(LAUNCHES[name], None, None, None, None)
    found = _verify(dispatch.default(problem, H200.target).config, problem, H200, emulated=True)
    assert any(isinstance(case, Far) for case, _ in found)
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
