"""An op that kgen does not have, added by its row and its texts alone, through all that an operator goes through."""
# ruff: noqa: E402, what reads the row is imported after it

from __future__ import annotations

import torch

from kgen.dsl import ops

# Before all else is imported, as if the row stood in its file: sets are made of the rows there.
ops.OPS["hypot"] = ops.Op("hypot", "pointwise", ("element", "element"), "rounded", "numbers", "float", commutes=True)
ops.POINTWISE |= {"hypot"}

from kgen.bench import eager
from kgen.cli.verify import _verify
from kgen.codegen.expression import CUDA
from kgen.dsl.expr import Expr, apply
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.types import f16
from kgen.export import reference
from kgen.export.project import files
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.numerics import values
from kgen.runtime import dispatch
from kgen.runtime.machine import Machine

CUDA["hypot"] = "hypot{f}({0}, {1})"
values.VALUES["hypot"] = values.each(torch.hypot)
eager.FUNCTIONS["hypot"] = torch.hypot
eager.CALLS["hypot"] = eager.CALLS["add"]
reference.PLAIN["hypot"] = "std::hypot({0}, {1})"


def distance(x: Tensor[f16, ...], y: Tensor[f16, ...]) -> Tensor[f16, ...]:
    """The length of (x, y)."""
    return apply("hypot", x, y)


def main() -> None:
    """Traces, generates, compiles, verifies on the emulator, exports and compares with torch."""
    target = resolve("H200")
    (graph,) = Operator(distance).graphs
    assert isinstance(graph.results[0], Expr)
    problem = Problem.dense(graph, {"...": (999,)})
    config = dispatch.default(problem, target).config
    for case, verdict in _verify(config, problem, Machine(target, None), emulated=True):
        assert verdict.ok, (case, verdict.evidence)
    exported = files(problem, config, target, (target.arch,))
    assert "= hypotf(" in exported["distance.cu"]
    assert "= std::hypot(" in exported["test_distance.cu"]
    x, y = torch.randn(2, 999).half()
    assert eager.why_not(graph) is None
    torch.testing.assert_close(eager.function(problem, {})(x, y)[0], torch.hypot(x, y))
    assert nvrtc(config.source(problem), target.arch).warnings == ()
    print("added")


if __name__ == "__main__":
    main()
