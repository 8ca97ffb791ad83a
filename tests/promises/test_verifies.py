"""`kgen verify OP --emulate`, with no further option, finds every operator's kernel right, on elements beyond 2^32 too."""

from __future__ import annotations

import pytest
from operators import OPERATORS

from kgen.cli.problems import select_one
from kgen.cli.verify import _verify
from kgen.gpu.target import resolve
from kgen.runtime import dispatch
from kgen.runtime.machine import Machine
from kgen.tuner.far import Far

H200 = Machine(resolve("H200"), None)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_kernel_of_the_default_problem_passes_the_gate(name: str) -> None:
    problem = select_one(OPERATORS[name], None, None, None, None)
    found = _verify(dispatch.default(problem, H200.target).config, problem, H200, emulated=True)
    assert any(isinstance(case, Far) for case, _ in found)
    assert any(not isinstance(case, Far) for case, _ in found)
    for case, verdict in found:
        assert verdict.ok, (case, verdict.evidence)
