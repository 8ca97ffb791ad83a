"""The least time a problem can take on a target. A measurement below it is a mistake, not a result."""

from __future__ import annotations

from kgen.dsl.expr import Expr
from kgen.dsl.ops import PRODUCTS
from kgen.dsl.problem import Problem
from kgen.dsl.product import multiplied
from kgen.dsl.ranges import begins, limits
from kgen.dsl.size import evaluate
from kgen.dsl.target import Target
from kgen.dsl.types import bf16, e4m3, e5m2, f16, f32, i8, tf32

#: Clocks may boost a little above the rate a data sheet is computed for, and memory moves a little more than it must say.
SLACK = 0.9


def floor_seconds(problem: Problem, target: Target) -> float:
    """Seconds below which no kernel can be: bytes at the memory's rate, beyond what the L2 holds, or products at the peak.

    What is taken by index does not count: equal ids find it in a cache. 0 where an input says what there is of an axis.
    """
    if limits(problem.graph.nodes) or begins(problem.graph.nodes):
        return 0.0
    memory = max(0, problem.bytes - problem.taken_bytes - target.l2_bytes) / target.bandwidth
    arithmetic = 0.0
    for node in problem.graph.nodes:
        rate = peak(node, target) if node.op in PRODUCTS else None
        if rate:
            arithmetic += product_flops(node, problem) / rate
    return SLACK * max(memory, arithmetic)


def product_flops(node: Expr, problem: Problem) -> float:
    """Multiplications and additions of a matrix product of the graph."""
    whole = problem.origin or problem
    k = evaluate(node.args[0].shape.dims[-1], whole.sizes)
    elements = 1
    for size in node.shape.dims:
        elements *= evaluate(size, whole.sizes)
    if node.shape.leading:
        for size in whole.leading:
            elements *= size
    return 2.0 * elements * k


def peak(node: Expr, target: Target) -> float | None:
    """The rate in FLOP/s at which the target can do a product; None where the table does not say."""
    dtype = multiplied(node)
    if dtype is f32:
        return target.f32_flops
    kinds = {f16: "f16_f32acc", bf16: "f16_f32acc", tf32: "tf32", i8: "i8", e4m3: "fp8", e5m2: "fp8"}
    kind = "f16_f16acc" if dtype is f16 and node.attr is f16 else kinds.get(dtype)
    return target.tensor_flops.get(kind) if kind else None
