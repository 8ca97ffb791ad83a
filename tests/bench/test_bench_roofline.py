"""Roofline: the work of a problem and the least time for it."""

from __future__ import annotations

import bench_operators as ops
import pytest

from kgen.bench.roofline import HEADROOM, floor_seconds, flops
from kgen.dsl.problem import Problem
from kgen.gpu.target import TARGETS

H200 = TARGETS["H200"]


def test_flops_count_every_batch() -> None:
    graph = ops.product.graphs[0]
    assert flops(Problem.dense(graph, {"M": 3, "N": 5, "K": 7})) == 2 * 3 * 5 * 7
    assert flops(Problem.dense(graph, {"...": (2, 4), "M": 3, "N": 5, "K": 7})) == 8 * 2 * 3 * 5 * 7
    assert flops(ops.square(ops.add)) == 0


def test_a_large_product_is_bound_by_arithmetic() -> None:
    n = 8192
    expected = {ops.product: 989e12, ops.product_tf32: 495e12, ops.product_f32: 66.9e12, ops.product_i8: 1979e12}
    for operator, rate in expected.items():
        floor = floor_seconds(ops.square(operator, n), H200)
        assert floor == pytest.approx(2 * n**3 / (HEADROOM * rate))


def test_a_pointwise_problem_is_bound_by_bandwidth() -> None:
    problem = ops.square(ops.add, 4096)
    assert floor_seconds(problem, H200) == pytest.approx(3 * (3 * 4096) * 2 / 4800e9)


def test_the_anchors_are_possible() -> None:
    """Times measured on an H200 lie above the floor, and not far."""
    assert floor_seconds(ops.square(ops.product, 4096), H200) < 2 * 4096**3 / 752e12
    add = Problem.dense(ops.add.graphs[0], {"...": (2**27,)})
    assert 0.85 < floor_seconds(add, H200) / (add.bytes / 4366e9) < 1
