"""The bytes a problem must move: all of every operand, but of what is found by index only what is found."""

from __future__ import annotations

import pytest

from kgen.dsl.family import family_of
from kgen.dsl.indexing import take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import dims
from kgen.dsl.target import TARGETS
from kgen.dsl.types import f16, f32, i64
from kgen.ops import operator
from kgen.tuner.roofline import SLACK, floor_seconds

V, C, K, W = dims("V C K W")


def rows(table: Tensor[f32, V, C], ids: Tensor[i64, K]) -> Tensor[f32, K, C]:
    return take(table, ids)


def corners(table: Tensor[f32, V, C], ids: Tensor[i64, K], columns: Tensor[i64, W]) -> Tensor[f32, K, W]:
    return take(take(table, ids, 0), columns, 1)


def twice(table: Tensor[f32, V, C], ids: Tensor[i64, K]) -> Tensor[f32, K, C]:
    return take(table, ids) + take(table, ids * 2 % 3)


def also_whole(table: Tensor[f32, V, C], ids: Tensor[i64, V]) -> Tensor[f32, V, C]:
    return take(table, ids) + table


def by_table(table: Tensor[f32, V, C], ids: Tensor[i64, K]) -> Tensor[i64, K]:
    return take(ids, ids)


def problem(function: object, **sizes: int) -> Problem:
    return Problem.dense(Operator(function).graphs[0], sizes)  # type: ignore[arg-type]


def test_an_embedding_moves_ids_rows_and_results() -> None:
    graph = operator("embedding").graph({"table": f16})
    few = Problem.dense(graph, {"...": (3, 5), "V": 1000, "C": 64})
    assert few.taken_bytes == 15 * 64 * 2
    assert few.bytes == 15 * 8 + 2 * (15 * 64 * 2)
    assert family_of(graph).normalise(few).bytes == few.bytes
    many = Problem.dense(graph, {"...": (5000,), "V": 1000, "C": 64})
    assert many.bytes == 5000 * 8 + 1000 * 64 * 2 + 5000 * 64 * 2


def test_a_larger_image_reads_the_smaller_one_once_and_a_smaller_one_what_it_takes() -> None:
    graph = operator("upsample_nearest").graph({"x": f32})
    larger = Problem.dense(graph, {"...": (2,), "H": 3, "W": 4, "OH": 6, "OW": 8})
    assert larger.bytes == 4 * (2 * 3 * 4 + 2 * 6 * 8)
    smaller = Problem.dense(graph, {"...": (2,), "H": 8, "W": 9, "OH": 3, "OW": 2})
    assert smaller.bytes == 4 * (2 * 3 * 2 + 2 * 3 * 2)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (problem(rows, V=100, C=8, K=5), 5 * 8 + 4 * (5 * 8 + 5 * 8)),
        (problem(corners, V=100, C=8, K=5, W=2), 8 * 7 + 4 * (10 + 10)),
        (problem(twice, V=100, C=8, K=5), 5 * 8 + 4 * (2 * 5 * 8 + 5 * 8)),
        (problem(also_whole, V=10, C=8), 10 * 8 + 4 * (80 + 80)),
        (problem(by_table, V=10, C=8, K=5), 4 * 80 + 8 * (5 + 5)),
    ],
    ids=["rows", "take of a take", "twice", "also whole", "its own ids"],
)
def test_the_rule(made: Problem, expected: int) -> None:
    assert made.bytes == expected


def test_strides_of_zero_are_stored_once() -> None:
    assert Operand("x", f32, (5, 6), (0, 1)).stored_bytes == 24
    graph = Operator(rows).graphs[0]
    table = Operand("table", f32, (100, 8), (0, 1))
    operands = [table, Operand("ids", i64, (5,), (1,)), Operand("out", f32, (5, 8), (8, 1))]
    assert Problem.bind(graph, operands).bytes == 8 * 4 + 5 * 8 + 5 * 8 * 4


def test_the_roofline_counts_nothing_that_equal_ids_find_in_a_cache() -> None:
    target = TARGETS["H200"]
    made = Problem.dense(operator("embedding").graph({"table": f16}), {"...": (65536,), "V": 128256, "C": 4096})
    written = 65536 * 4096 * 2
    assert made.bytes == 2 * written + 65536 * 8
    assert floor_seconds(made, target) == pytest.approx(
        SLACK * (written + 65536 * 8 - target.l2_bytes) / target.bandwidth
    )


def test_the_roofline_counts_no_matrix_of_a_group_that_may_have_no_row() -> None:
    target = TARGETS["H200"]
    sizes = {"M": 256, "N": 1536, "K": 2048, "G": 128}
    made = Problem.dense(operator("grouped_hgemm").graphs[0], sizes)
    assert made.taken_bytes == 128 * 1536 * 2048 * 2
    assert made.bytes == made.taken_bytes + 256 * (1536 + 2048) * 2 + 129 * 4
    assert floor_seconds(made, target) == pytest.approx(
        SLACK * 2 * 256 * 1536 * 2048 / target.tensor_flops["f16_f32acc"]
    )
