"""What kernels that read by index get wrong: scales that are no whole number, the last id, ids outside, wide addresses, order."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from cases import TARGET
from launches import dense, launch, problem_of

from kgen.dsl.expr import Expr
from kgen.dsl.family import family_of, has_kernel
from kgen.dsl.indexing import arange, scatter_add, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.ranges import monotone, never_negative, within
from kgen.dsl.size import dims
from kgen.dsl.types import dtype_var, f16, f32, i8, i32, i64
from kgen.gpu.compile import compile as nvrtc
from kgen.ops import operator
from kgen.ops.gather import Gather, GatherSum
from kgen.runtime.operands import graph_of

M, N, V = dims("M N V")

SIZES = [
    (7, 9, 14, 18),
    (7, 9, 20, 13),
    (9, 16, 4, 5),
    (1, 1, 5, 3),
    (5, 8, 5, 8),
    (6, 3, 1, 1),
    (3, 5, 48, 80),
    (49, 64, 50, 65),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_upsampling_is_torchs_at_any_scale(sizes: tuple[int, int, int, int]) -> None:
    h, w, oh, ow = sizes
    x = torch.randn(2, 3, h, w, requires_grad=True)
    want = F.interpolate(x, (oh, ow), mode="nearest")
    out = torch.empty(2, 3, oh, ow)
    launch(operator("upsample_nearest").graph({"x": f32}), [x.detach(), out], Gather)
    assert torch.equal(out, want)
    dy = torch.randint(-9, 10, (2, 3, oh, ow)).float()
    want.backward(dy)
    dx = torch.empty(2, 3, h, w)
    launch(operator("upsample_nearest_backward").graph({"dy": f32}), [dy, dx], GatherSum)
    assert torch.equal(dx, x.grad)


def test_a_sum_of_many_halves_does_not_saturate() -> None:
    dy, dx = torch.ones(1, 100, 100).half(), torch.empty(1, 1, 1).half()
    launch(operator("upsample_nearest_backward").graph({"dy": f16}), [dy, dx], GatherSum)
    assert dx.item() == 10000


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ids_outside_the_table_read_nothing_and_give_zero(dtype: torch.dtype) -> None:
    table = torch.randn(10, 8)
    limits = torch.iinfo(dtype)
    ids = torch.tensor([0, 9, -1, 10, limits.max, limits.min, 5], dtype=dtype)
    out = torch.empty(7, 8)
    launch(
        operator("embedding").graph({"table": f32, "ids": {4: i32, 8: i64}[dtype.itemsize]}), [table, ids, out], Gather
    )
    inside = (ids >= 0) & (ids < 10)
    assert torch.equal(out[inside], table[ids[inside].long()])
    assert not out[~inside].any()


def test_infinity_nan_and_negative_zero_are_copied() -> None:
    table = torch.tensor([[math.inf, -math.inf], [math.nan, -0.0], [5e-324, 6e-8]]).half()
    ids, out = torch.tensor([2, 1, 0, 1]), torch.empty(4, 2).half()
    launch(operator("embedding").graph({"table": f16}), [table, ids, out], Gather)
    assert torch.equal(out.view(torch.int16), table[ids].view(torch.int16))


def test_misaligned_rows_are_read_in_narrower_vectors() -> None:
    base = torch.randn(20, 24).half()
    ids = torch.tensor([3, 3, 19, 0])
    for offset, pack in ((0, 8), (1, 1), (2, 2), (4, 4)):
        table, out = base[:, offset : offset + 16], torch.empty(4, 16).half()
        graph = operator("embedding").graph({"table": f16})
        problem = problem_of(graph, [table, ids, out])
        widest = Gather.default(problem, TARGET).replace(pack=pack)
        if pack < 8:
            assert [r.rule for r in widest.replace(pack=2 * pack).broken(problem, TARGET)] == ["aligned"]
        launch(graph, [table, ids, out], widest)
        assert torch.equal(out, table[ids])


def shifted(x: Tensor[i8, V, N], ids: Tensor[i64, M]) -> Tensor[i8, M, N]:
    return take(x, ids)


def test_rows_further_apart_than_32_bits_count() -> None:
    # Memory that is never touched costs nothing.
    storage = torch.empty(3 * 2**31 + 4096, dtype=torch.int8)
    x = storage.as_strided((3, 64), (3 * 2**30, 1))
    x[0], x[1], x[2] = 3, 4, torch.arange(64, dtype=torch.int8)
    ids, out = torch.tensor([2, 0, 1]), torch.empty(3, 64, dtype=torch.int8)
    launch(Operator(shifted).graphs[0], [x, ids, out], Gather, checks=False)
    assert torch.equal(out, x[ids])


def picked(x: Tensor[i8, M, V], ids: Tensor[i64, N]) -> Tensor[i8, M, N]:
    return take(x, ids, axis=-1)


def test_columns_further_apart_than_32_bits_count() -> None:
    storage = torch.empty(2**32 + 2**31 + 4096, dtype=torch.int8)
    x = storage.as_strided((2, 4), (1, 3 * 2**29))
    x[:] = torch.arange(8, dtype=torch.int8).reshape(2, 4)
    ids, out = torch.tensor([3, 0, 2, 1]), torch.empty(2, 4, dtype=torch.int8)
    launch(Operator(picked).graphs[0], [x, ids, out], Gather, checks=False)
    assert torch.equal(out, x[:, ids])


def test_positions_are_as_wide_as_the_result() -> None:
    graph = operator("embedding").graph({"table": f16, "ids": i64})
    for ids, index in ((2**24, "int"), (2**32, "long long")):
        problem = dense(graph, {"...": (ids,), "V": 1000, "C": 64})
        source = Gather.default(problem, TARGET).source(problem)
        assert f"using Index = {index};" in source.text
        assert nvrtc(source, TARGET.arch).warnings == ()


def reversed_sum(x: Tensor[f32, N]) -> Tensor[f32, N]:
    return scatter_add(N, size(N) - 1 - arange(N), x)


T = dtype_var("T", f32, f16)


def halved_sum(x: Tensor[T, N]) -> Tensor[f32, M]:
    return scatter_add(M, arange(N) // 2, x)


def test_what_is_summed_may_lie_further_apart_than_32_bits_count() -> None:
    storage = torch.empty(5 * 2**29 + 1, dtype=torch.float16)
    x = storage.as_strided((6,), (2**29,))  # the last two behind 2^31 elements
    x[:] = torch.arange(6)
    out = torch.empty(3)
    launch(Operator(halved_sum).graph({"x": f16}), [x, out], GatherSum, {"pack": 1}, checks=False)
    assert torch.equal(out, x.reshape(3, 2).sum(-1).float())


def test_only_ids_that_never_fall_are_gathered() -> None:
    assert family_of(Operator(halved_sum).graphs[0]).name == "gather"
    assert family_of(Operator(reversed_sum).graphs[0]).name == "scatter_add"


def test_what_is_known_of_ids() -> None:
    last = size(N) - 1
    assert monotone(arange(N) * 3 + 1)
    assert not monotone(arange(N) * -1)
    assert not monotone(arange(N) % 2)
    assert not never_negative(last)
    assert within(arange(N), N)
    assert not within(arange(M), N)
    x = Expr("input", (), i32, arange(N).shape, "x")
    assert within(arange(M).__class__("minimum", (arange(M), last), i32, arange(M).shape), N)
    assert not within(Expr("minimum", (x, last), i32, x.shape), N)


def test_results_of_several_shapes_take_a_launch_each() -> None:
    def two(x: Tensor[f32, V, N], ids: Tensor[i64, M]) -> tuple[Tensor[f32, M, N], Tensor[f32, V, N]]:
        return take(x, ids), x

    assert not has_kernel(Operator(two).graphs[0])
    assert family_of(Operator(two).graphs[0]).name == "program"


def test_graph_of_a_call_takes_both_kinds_of_ids() -> None:
    table = torch.zeros(4, 8)
    for ids in (torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)):
        graph = graph_of(operator("embedding"), [table, ids], [])
        assert graph.inputs[1].dtype is {torch.int32: i32, torch.int64: i64}[ids.dtype]
