"""What transposes get wrong: permutations, one operand on both sides, and when a tile does not pay."""

from __future__ import annotations

import itertools

import pytest
import torch
from launches import dense, launch, problem_of

from kgen.dsl import functions as F
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f16, f32, i8, i64
from kgen.gpu.target import resolve
from kgen.ops import operator
from kgen.ops.elementwise import Transpose
from kgen.runtime import dispatch

M, N = dims("M N")
H200 = resolve("H200")


def chosen(problem: Problem) -> str:
    return type(dispatch.default(problem, H200).config).__name__


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1:], ids=str)
def test_every_permutation_of_four_axes(order: tuple[int, ...]) -> None:
    x = torch.arange(3 * 4 * 18 * 20, dtype=torch.float32).reshape(3, 4, 18, 20).half().permute(order)
    graph, out = operator("contiguous").graph({"x": f16}), torch.empty(x.shape, dtype=torch.float16)
    problem = problem_of(graph, [x, out])
    assert Transpose.applies(problem) == (order[-1] != 3)
    if Transpose.applies(problem):
        launch(graph, [x, out], Transpose)
        assert torch.equal(out, x.contiguous())


def symmetric(x: Tensor[f32, M, M]) -> Tensor[f32, M, M]:
    return (x + x.T) * 0.5


def test_one_operand_on_both_sides() -> None:
    x, out = torch.randn(70, 70), torch.empty(70, 70)
    launch(Operator(symmetric).graphs[0], [x, out], Transpose)
    torch.testing.assert_close(out, (x + x.T) * 0.5)


def dropped(x: Tensor[f32, M, N], seed: i64, offset: i64) -> Tensor[f32, N, M]:
    return F.dropout(x.T, 0.25, seed, offset)


def test_random_numbers_do_not_depend_on_the_config() -> None:
    graph, scalars = Operator(dropped).graphs[0], {"seed": 17, "offset": 3}
    x = torch.ones(45, 38)
    found = []
    for rows, columns, stored, out in ((64, 64, 4, torch.empty(38, 45)), (32, 64, 16, torch.empty(38, 48)[:, :45])):
        launch(
            graph,
            [x, out],
            Transpose,
            {
                "tile_rows": rows,
                "tile_columns": columns,
                "store_bytes": stored,
                "shift": "none",
                "pad": 1,
                "load_bytes": 8,
            },
            scalars,
        )
        found.append(out.clone())
    odd = torch.empty(38 * 45 + 1)[1:].view(38, 45)  # rows that no vector is aligned to
    launch(graph, [x, odd], Transpose, {"store_bytes": 16, "shift": "store", "pad": 1}, scalars)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], odd)
    assert 0.15 < (odd == 0).float().mean() < 0.35


def transposed(name: str, m: int, n: int, leading: tuple[int, ...] = ()) -> Problem:
    graphs: dict[str, Graph] = {g.inputs[0].dtype.name: g for g in operator("transpose").graphs}
    return dense(graphs[name], {"...": leading, "M": m, "N": n})


@pytest.mark.parametrize("dtype", ["f16", "f32", "i8", "f64"])
@pytest.mark.parametrize("shape", [(16384, 16384), (8191, 8193), (196, 768)])
def test_large_matrices_go_by_tiles(dtype: str, shape: tuple[int, int]) -> None:
    assert chosen(transposed(dtype, *shape, leading=(64,) if shape[0] < 1000 else ())) == "Transpose"


def test_lines_that_a_tile_has_whole_are_not_shifted() -> None:
    for problem in (transposed("f16", 100, 10**6), transposed("f16", 100, 300, leading=(4096,))):
        assert Transpose.default(problem, H200).shift == "none"
    assert Transpose.default(transposed("f16", 8191, 8193), H200).shift == "both"


def test_rows_that_move_as_they_are_need_no_tile() -> None:
    x = torch.empty(8, 2048, 32, 128, dtype=torch.float16, device="meta").permute(0, 2, 1, 3)
    out = torch.empty(x.shape, dtype=torch.float16, device="meta")
    assert chosen(problem_of(operator("contiguous").graph({"x": f16}), [x, out])) == "Elementwise"


def test_places_are_64_bits_wide() -> None:
    problem = transposed("i8", 2**20, 2**14)
    text = Transpose.default(problem, H200).source(problem).text
    assert "using Index = int;" in text
    assert "long long x_transposed_s1" in text
    assert "steps(at.i0, out_s0)" in text
    problem = transposed("i8", 2**32, 64)
    text = Transpose.default(problem, H200).source(problem).text
    assert "using Index = long long;" in text
    assert "long long n1" in text
    assert "divided(" not in text


def test_a_tensor_beyond_two_to_the_31_elements() -> None:
    graph = operator("transpose").graph({"x": i8})
    storage = torch.empty(2**31 + 2**16, dtype=torch.int8)  # memory that is never touched costs nothing
    x = storage.as_strided((33, 40), (2**26, 1))
    x.copy_(torch.arange(33 * 40).reshape(33, 40) % 100)
    out = torch.empty(40, 33, dtype=torch.int8)
    launch(graph, [x, out], Transpose, checks=False)
    assert torch.equal(out, x.T)
