"""What a step's rounding comes to: torch's own arithmetic keeps to it, and the gate takes it where large values cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

import kgen
import kgen.dsl.functions as F
from kgen import Tensor, dims, f32, i64, ops
from kgen.bench.check import Expectation, check
from kgen.dsl.family import normalised
from kgen.dsl.functions import where
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem
from kgen.numerics.dtypes import torch_dtype, ulp
from kgen.numerics.operands import make_operands, scalar_values
from kgen.numerics.reference import evaluate, native
from kgen.numerics.rounding import is_pointwise, rounding
from kgen.ops.common.sizes import fill
from kgen.runtime.operator import KernelOperator
from kgen.tuner.verify import Gate

COUNT = 1 << 16
M, N, K = dims("M N K")


@kgen.operator
def apart(x: Tensor[f32, ...], y: Tensor[f32, ...]) -> Tensor[f32, ...]:
    """Large products that nearly cancel."""
    return x * 1000.0 - y * 1000.0


@kgen.operator
def wave(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    """A function of an angle of several turns."""
    return F.sin(x * 300.0)


@kgen.operator
def sign_of_difference(x: Tensor[f32, ...], y: Tensor[f32, ...]) -> Tensor[f32, ...]:
    """A condition that rounding may turn."""
    return where(x + 1e4 > y + 1e4, x, -x)


@kgen.operator
def fraction(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    """What is left of a large number: near whole numbers 0 or nearly 1."""
    y = x * 12345.6
    return y - F.floor(y)


@kgen.operator
def masked(x: Tensor[f32, M, K], w: Tensor[f32, K, N], g: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    """A gradient of relu, of a product that is made again."""
    return where(x @ w + 1e5 > 1e5, g, 0.0)


@kgen.operator
def quantized(x: Tensor[f32, M, K], w: Tensor[f32, K, N]) -> Tensor[f32, M, N]:
    """A product in steps of 8, of which each is a quarter of its size."""
    return F.round((x @ w + 1e5) / 8.0) * 8.0 - 1e5


@kgen.operator
def place_of_largest(x: Tensor[f32, M, N]) -> Tensor[i64, M]:
    """An index that rounding decides."""
    return F.argmax(x + 1e5)


OPERATORS = (apart, wave, sign_of_difference, fraction, masked, quantized, place_of_largest)


class Kernel:
    """A function of torch's in place of a kernel."""

    emulated = False

    def __init__(self, graph: Graph, changed: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        self.graph, self.changed = graph, changed

    def vary(self) -> None:
        """It is the same each time."""

    def synchronize(self) -> None:
        """It has ended."""

    def run(self, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float], stream: int = 0) -> None:
        for spec, value in zip(self.graph.outputs, native(self.graph, tensors, scalars)):
            tensors[spec.name].copy_(self.changed(value))


def gate_of(operator: KernelOperator) -> tuple[Problem, Gate]:
    sizes = dict.fromkeys(operator.definition.graphs[0].dims, 256)
    problem = normalised(operator.problem(leading=() if sizes else (COUNT,), **sizes))
    gate = Gate(problem, special=False)
    gate.cases = [case for case in gate.cases if not case.exact]
    return problem, gate


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_the_gate_takes_what_rounding_decides(operator: KernelOperator) -> None:
    problem, gate = gate_of(operator)
    verdict = gate.check(Kernel(problem.graph), repeats=1)
    assert verdict.ok, verdict.evidence
    if operator is not place_of_largest:  # where torch's own place is another, others may be
        assert gate.cases[0].beside, "the plain cap held: nothing was shown"


@pytest.mark.parametrize(
    ("operator", "changed"),
    [
        (apart, lambda value: value + 3e-4 * value.sign()),  # some units in the last place of what cancels
        (wave, lambda value: value + 3e-4 * value.sign()),
        (fraction, lambda value: value + 0.01),
        (masked, lambda value: torch.where(value.abs() < 0.1, 0.1, value)),
        (quantized, lambda value: value + 8.0 * (value == 0.0)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_it_takes_no_more_than_that(operator: KernelOperator, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    problem, gate = gate_of(operator)
    verdict = gate.check(Kernel(problem.graph, changed), repeats=1)
    assert not verdict.ok
    assert verdict.evidence["check"] == "tolerance"


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_a_benchmark_judges_alike(operator: KernelOperator) -> None:
    problem, gate = gate_of(operator)
    tensors, scalars = gate.cases[0].tensors, gate.cases[0].scalars
    expected = Expectation.of(problem, tensors, scalars)

    def fault(kernel: Kernel) -> str:
        return check(problem, lambda i: kernel.run(tensors, scalars), [tensors], [expected]).fault

    assert fault(Kernel(problem.graph)) == ""
    assert "elements are wrong" in fault(Kernel(problem.graph, lambda value: value + 1000))


@pytest.mark.parametrize("name", ops.operators())
def test_torchs_own_arithmetic_keeps_to_it(name: str) -> None:
    """In f32: of narrower dtypes torch rounds each step to them, a kernel does not."""
    graphs = [g for g in ops.operator(name).graphs if is_pointwise(g)]
    graphs = [
        g for g in graphs if {spec.dtype.name for spec in (*g.inputs, *g.outputs) if spec.dtype.is_float} == {"f32"}
    ]
    if not graphs:
        pytest.skip("it is not a pointwise operator of f32")
    problem = Problem.dense(graphs[0], fill(graphs[0], 4096, 16))
    tensors, scalars = make_operands(problem, "normal", 1, "cpu"), scalar_values(graphs[0])
    results = evaluate(graphs[0], tensors, scalars), native(graphs[0], tensors, scalars)
    for spec, exact, own, off in zip(graphs[0].outputs, *results, rounding(graphs[0], tensors, scalars)):
        assert off.shape == exact.shape
        if spec.dtype.is_float:
            assert own.dtype is torch_dtype(spec.dtype)
            assert bool(((own.double() - exact).abs() <= off + ulp(exact, spec.dtype)).all())
        else:
            assert bool(((own != exact) <= (off > 0)).all())
