"""Graphs that no family serves are cut where values are needed whole, into as few launches as may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kgen import ops
from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import family_of, has_kernel
from kgen.dsl.indexing import arange, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.partition import partition
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.program import launches_of, program_of
from kgen.dsl.size import dims
from kgen.dsl.types import dtype_var, f16, f32, i64

A, B, C, S = dims("A B C S")
H = dtype_var("H", f16, f32)
assert ops.operators()  # the families are registered


def statistics(x: Tensor[f16, B, C, S], eps: float = 1e-5) -> tuple[Tensor[f16, B, C, S], Tensor[f32, C]]:
    mean = F.mean(x, (-3, -1))
    difference = x - mean
    return difference * F.rsqrt(F.mean(difference * difference, (-3, -1)) + eps), mean


def softmax_of_axes(x: Tensor[f16, B, C, S]) -> Tensor[f16, B, C, S]:
    e = F.exp(x - F.amax(x, (-2, -1)))
    return e / F.sum(e, (-2, -1))


def normalised_product(x: Tensor[f16, A, B], w: Tensor[f16, C, B]) -> Tensor[f16, A, C]:
    return cast(x * F.rsqrt(F.mean(x * x) + 1e-6), f16) @ w.T


def product_rounded_and_reduced(x: Tensor[f16, A, B], w: Tensor[f16, B, C]) -> Tensor[f32, A]:
    return F.amax(F.exp(cast(F.gelu(x @ w), f16)))


def leading(x: Tensor[f16, ..., A, B], w: Tensor[f16, B, C]) -> Tensor[f16, ..., A, C]:
    return F.exp(x @ w) / F.sum(F.exp(x @ w))


def two_products(x: Tensor[f16, A, A], y: Tensor[f16, A, A]) -> Tensor[f16, A, A]:
    return x @ y + y @ x


def two_results(x: Tensor[f32, A, B], ids: Tensor[i64, C]) -> tuple[Tensor[f32, C, B], Tensor[f32, A]]:
    return take(x, ids), F.sum(x)


def softmax_of_the_transposed(x: Tensor[f32, A, B]) -> Tensor[f32, B, A]:
    return F.exp(x.T) / F.sum(F.exp(x.T))


def largest_of_some_rows(x: Tensor[f32, A, B], ids: Tensor[i64, C]) -> Tensor[f32]:
    return F.amax(take(x * 2.0, ids), None)


def scan_of_what_stands_before(x: Tensor[f32, A, B]) -> Tensor[f32, A, B]:
    return F.cumsum(where(arange(B) < 3, x, 0.0))


#: Of each definition the launches: family, what is read, what is written.
CUTS: list[tuple[Callable[..., Any], list[tuple[str, str, str]]]] = [
    (statistics, [("column_stats", "x", "out1 mean"), ("elementwise", "x out1 mean", "out0")]),
    (
        softmax_of_axes,
        [("column_stats", "x", "amax"), ("column_stats", "x amax", "sum"), ("elementwise", "x amax sum", "out")],
    ),
    (normalised_product, [("rowwise", "x", "cast"), ("gemm", "w cast", "out")]),
    (product_rounded_and_reduced, [("gemm", "x w", "cast"), ("rowwise", "cast", "out")]),
    (leading, [("gemm", "x w", "matmul"), ("rowwise", "matmul", "out")]),
    (two_products, [("gemm", "x y", "matmul"), ("gemm", "x y matmul", "out")]),
    (softmax_of_the_transposed, [("elementwise", "x", "exp"), ("rowwise", "exp", "out")]),
    (largest_of_some_rows, [("gather", "x ids", "take"), ("reduce", "take", "out")]),
    (scan_of_what_stands_before, [("elementwise", "x", "where"), ("scan", "where", "out")]),
    (two_results, [("gather", "x ids", "out0"), ("rowwise", "x", "out1")]),
]


@pytest.mark.parametrize(("definition", "launches"), CUTS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_graph_is_cut_into_launches(definition: Callable[..., Any], launches: list[tuple[str, str, str]]) -> None:
    graph = Operator(definition).graphs[0]
    assert not has_kernel(graph)
    assert family_of(graph).name == "program"
    cut = partition(graph)
    assert cut is not None
    told = [
        (family_of(g).name, " ".join(s.name for s in g.inputs), " ".join(s.name for s in g.outputs)) for g in cut.graphs
    ]
    assert told == launches
    assert [g.name for g in cut.graphs] == [f"{graph.name}_{n + 1}" for n in range(len(launches))]


def sorted_by_sums(x: Tensor[f16, A, B]) -> Tensor[f16, A, B]:
    """Sums of rows, of columns, and of these again: each is a launch."""
    y = cast(x, f32)
    for axis in (-1, -2, -1, -2, -1, -2):
        y = y * F.rsqrt(F.mean(y * y, axis) + 1.0)
    return cast(y, f16)


def test_where_four_cuts_will_not_do_it_is_cut_at_all_that_is_needed() -> None:
    cut = partition(Operator(sorted_by_sums).graphs[0])
    assert cut is not None
    assert [c.spec.name for c in cut.cuts] == ["mean", "mean_1", "mean_2", "mean_3", "mean_4", "mean_5"]
    read = {spec.name for graph in cut.graphs for spec in graph.inputs}
    assert {c.spec.name for c in cut.cuts} <= read
    assert all(map(has_kernel, cut.graphs))


def test_what_one_launch_computes_is_not_cut() -> None:
    softmax = ops.operator("softmax").graphs[0]
    assert partition(softmax) is None
    assert program_of(Problem.dense(softmax, {"...": (4,), "N": 8})).single


def test_a_launch_has_the_numbers_that_it_uses() -> None:
    cut = partition(Operator(statistics).graphs[0])
    assert cut is not None
    assert [[s.name for s in g.scalars] for g in cut.graphs] == [[], ["eps"]]


def test_the_reasons_name_value_and_line() -> None:
    cut = partition(Operator(normalised_product).graphs[0])
    assert cut is not None
    (reason,) = [c.why for c in cut.cuts]
    assert reason.startswith("cast: f16[A, B], rounded by the definition")
    assert "test_partition.py:" in reason


def test_names_of_operands_are_not_taken() -> None:
    def product(matmul: Tensor[f16, A, B], amax: Tensor[f16, B, C]) -> Tensor[f32, A]:
        return F.amax(matmul @ amax) + F.sum(matmul @ amax)

    product.__annotations__ = {"matmul": Tensor[f16, A, B], "amax": Tensor[f16, B, C], "return": Tensor[f32, A]}
    cut = partition(Operator(product).graphs[0])
    assert cut is not None
    assert [c.spec.name for c in cut.cuts] == ["matmul_1"]


def test_a_result_between_launches_is_seen_with_the_axes_it_was_reduced_from() -> None:
    graph = Operator(statistics).graphs[0]
    problem = Problem.dense(graph, {"B": 2, "C": 1, "S": 5})
    gaps = Operand("out1", f32, (1,), (3,))
    problem = Problem.bind(graph, [*problem.inputs, problem.outputs[0], gaps])
    first, second = program_of(problem).launches
    assert first.operand("out1") == gaps
    assert second.operand("out1").shape == (1, 1, 1)
    assert [o.name for o in program_of(problem).workspaces] == ["mean"]
    wide = Problem.bind(
        graph,
        [
            Operand("x", f16, (2, 7, 5), (35, 5, 1)),
            Operand("out0", f16, (2, 7, 5), (35, 5, 1)),
            Operand("out1", f32, (7,), (3,)),
        ],
    )
    assert program_of(wide).launches[1].operand("out1").strides == (1, 3, 1)


def test_workspaces_have_the_leading_sizes_of_what_computes_them() -> None:
    problem = Problem.dense(Operator(leading).graphs[0], {"...": (2, 3), "A": 4, "B": 8, "C": 5})
    (workspace,) = program_of(problem).workspaces
    assert (workspace.shape, workspace.dtype) == ((2, 3, 4, 5), f32)


def test_launches_are_operators_of_every_dtype() -> None:
    def normalise(x: Tensor[H, B, C, S]) -> Tensor[H, B, C, S]:
        return x - F.mean(x, (-2, -1))

    normalise.__annotations__ = {"x": Tensor[H, B, C, S], "return": Tensor[H, B, C, S]}
    sizes = [{"B": 2, "C": 3, "S": 4}]
    operator = Operator(normalise, suites={"default": sizes})
    first, second = launches_of(operator)
    assert [g.inputs[0].dtype for g in first.graphs] == [f16, f32]
    assert second.suites["default"] == sizes
    assert launches_of(ops.operator("gelu")) == (ops.operator("gelu"),)
    x = Expr("input", (), f16, normalise.__annotations__["x"].shape, "x")
    with pytest.raises(Exception, match="normalise_1 is a launch of an operator"):
        first.function(x)
