"""What a training step runs, explained."""

from __future__ import annotations

import pytest
from cli_runs import Kgen

from kgen.dsl.problem import Problem
from kgen.dsl.training import training_problems
from kgen.ops import operators


def test_explain_tells_what_is_kept_and_of_what_gradients_are_made(kgen: Kgen) -> None:
    facts = kgen("explain", "layer_norm", "--shape", "4x8x64", "--gpu", "H200", "--backward", "--json").json
    assert facts["forward"]["key"].count("rsqrt:f32[4,8,1]") == 1
    (backward,) = facts["backward"]
    # Rows of rows are rows: 32 of them.
    assert [launch["family"] for launch in backward["launches"]] == ["rowwise", "column_stats"]
    assert "grad_weight:f16[64]" in backward["launches"][1]["key"]
    told = kgen("explain", "gelu", "--shape", "64", "--gpu", "H200", "--backward").out
    assert "grad_x:f16[64]" in told
    # What it names, the command takes.
    for arguments in (facts["forward"]["arguments"], *(launch["arguments"] for launch in backward["launches"])):
        assert kgen("explain", *arguments.split(), "--gpu", "H200").code == 0
    refused = kgen("explain", "gelu", "--shape", "64", "--set", "pack=8", "--backward")
    assert refused.code == 2


@pytest.mark.parametrize("name", ["linear_gelu", "softmax", "group_norm", "embedding", "dropout"])
def test_problems_of_a_training_step(name: str) -> None:
    graph = operators()[name].graphs[0]
    lead = {"...": (2, 3)} if any(s.shape.leading for s in (*graph.inputs, *graph.outputs)) else {}
    problem = Problem.dense(graph, {**dict.fromkeys(graph.dims, 4), **lead})
    forward, backward = training_problems(problem)
    assert forward.sizes == problem.sizes
    elements = {o.name: o.elements for o in forward.operands}
    for o in backward.operands:  # a gradient is as large as what it is of
        if o.name.startswith("grad_") and 1 not in o.shape:
            assert o.elements == elements[o.name.removeprefix("grad_")]


def test_sums_have_no_gradient_to_compute() -> None:
    (forward,) = training_problems(Problem.dense(operators()["row_sum"].graphs[0], {"N": 4, "...": (2,)}))
    assert forward.graph is operators()["row_sum"].graphs[0]
