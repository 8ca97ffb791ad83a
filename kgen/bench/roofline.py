"""Roofline: the work of a problem and the least time a GPU can need for it. What beats it was not a measurement."""

from __future__ import annotations

import math

from kgen.dsl.expr import Expr
from kgen.dsl.problem import Problem
from kgen.dsl.size import evaluate
from kgen.dsl.types import bf16, e4m3, e5m2, f16, f32, f64, i8, tf32
from kgen.gpu.target import Target

#: Data sheets give rates at a boost clock that a cool GPU exceeds: on an H200, 1980 MHz against 1830.
HEADROOM = 1.1


def flops(problem: Problem) -> int:
    """Multiplications and additions of the problem's contractions; 0 for a problem without any."""
    return sum(_flops(problem, node) for node in problem.graph.nodes if node.op == "matmul")


def floor_seconds(problem: Problem, target: Target) -> float:
    """The time below which a result is impossible: the bytes at the full bandwidth, or the products at the full rate.

    Bytes move from device memory because operands rotate past the L2. Rates have HEADROOM.
    """
    products = (n for n in problem.graph.nodes if n.op == "matmul")
    arithmetic = sum(_flops(problem, node) / (HEADROOM * _rate(node, target)) for node in products)
    return max(arithmetic, problem.bytes / target.bandwidth)


def _flops(problem: Problem, node: Expr) -> int:
    problem = problem.origin or problem
    depth = node.args[0].shape.dims[-1]
    leading = problem.leading if node.shape.leading else ()
    return 2 * math.prod((*leading, *(evaluate(size, problem.sizes) for size in (*node.shape.dims, depth))))


def _rate(node: Expr, target: Target) -> float:
    """FLOP/s of the units that may serve a contraction; the fastest there are for a dtype the table does not tell."""
    kind, rates = node.args[0].dtype, target.tensor_flops
    if kind in (f32, f64):
        return target.f32_flops
    names = {f16: "f16_f16acc" if node.attr is f16 else "f16_f32acc", bf16: "f16_f32acc", tf32: "tf32", i8: "i8",
             e4m3: "fp8", e5m2: "fp8"}  # fmt: skip
    return rates.get(names.get(kind, ""), max((target.f32_flops, *rates.values())))
