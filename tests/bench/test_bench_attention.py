"""Attention's opponents compute what the graph says: on the CPU, by torch's own kernels there."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend

from kgen.bench.attention import flex, flex_why_not, sdpa, sdpa_why_not
from kgen.dsl.problem import Problem
from kgen.numerics.operands import make_operands
from kgen.numerics.reference import evaluate
from kgen.ops import operators
from kgen.ops.attention.heads import variant

SIZES = {"...": (2, 3), "G": 2, "M": 40, "N": 40, "D": 16, "E": 16}
NUMBERS = {"scale": 0.25, "shift": 0, "left": 7, "right": 0, "softcap": 3.0}


@pytest.mark.parametrize("mask", ["full", "causal", "window", "softcap"])
@pytest.mark.parametrize("shared", [True, False])
def test_they_compute_the_problem(mask: str, shared: bool) -> None:
    operator = variant("window", softcap=True) if mask == "softcap" else variant(mask)  # type: ignore[arg-type]
    problem = Problem.dense(operator.graphs[0], {**SIZES, "G": 2 if shared else 1})
    operands = make_operands(problem, guard=0)
    expected = evaluate(problem.graph, operands, NUMBERS)[0]
    assert flex_why_not(problem) is None
    assert (sdpa_why_not(problem) is None) == (mask in ("full", "causal"))
    sets = [[dict(operands)], [dict(operands)]]
    launches = [flex(problem, sets[0], NUMBERS, compiled=False)]
    if sdpa_why_not(problem) is None:
        launches.append(sdpa(SDPBackend.MATH, problem, sets[1], NUMBERS))
    for launch, (made,) in zip(launches, sets):
        launch(0)
        torch.testing.assert_close(made["out"].double(), expected.double(), rtol=2e-2, atol=2e-3)


def test_what_they_lack_is_told() -> None:
    problem = Problem.dense(operators()["hgemm"].graphs[0], {"M": 8, "N": 8, "K": 8})
    assert sdpa_why_not(problem) == flex_why_not(problem) == "it computes attention alone"
    two = Problem.dense(variant("causal", lse=True).graphs[0], SIZES)
    assert "one result" in str(sdpa_why_not(two))
    assert "one result" in str(flex_why_not(two))
    biased = Problem.dense(variant("full", bias=True).graphs[0], SIZES)
    assert flex_why_not(biased) == "bias is captured: left out"
