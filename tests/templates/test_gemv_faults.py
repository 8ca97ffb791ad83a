"""What hand-written GEMVs get wrong: the order of sums, reused workspaces, special values beyond the edges, wide offsets."""

from __future__ import annotations

import math

import pytest
import torch
from cases import TARGET
from launches import dense, launch, problem_of, runner

from kgen.codegen.source import Pointer
from kgen.dsl.expr import matmul
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import f16, f32, i8, i32
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands, same_bits
from kgen.ops import operator
from kgen.ops.gemm import MmaGemm
from kgen.ops.gemm.gemv import Gemv, view

M, N, K = dims("M N K")
H200 = resolve("H200")
LAYOUTS = pytest.mark.parametrize("column", [(), ("b",)])


def widened(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f32, M, N]:
    return a @ b


def in_half(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f32, M, N]:
    return matmul(a, b, accumulate=f16)


def eight_bits(a: Tensor[i8, M, K], b: Tensor[i8, K, N]) -> Tensor[i32, M, N]:
    return a @ b


def split(columns: tuple[str, ...]) -> tuple[Problem, Gemv]:
    problem = dense(operator("hgemm").graphs[0], {"M": 3, "N": 200, "K": 1000}, dict.fromkeys(columns, "col"))
    lanes = 32 if columns else 4
    config = Gemv(vectors=4, pack=8, rows=1, unroll=1, threads=128, warps=2, lanes=lanes, splits=8, staged=not columns,
                  blocks_per_sm=1)  # fmt: skip
    config.check(problem, TARGET)
    return problem, config


@LAYOUTS
def test_results_do_not_depend_on_the_order_of_blocks(column: tuple[str, ...]) -> None:
    problem, config = split(column)
    tensors = make_operands(problem, "normal", 2)
    first = None
    for seed in range(4):
        runner(config, problem, seed=seed, threads=2).run(tensors, {})
        first = tensors["out"].clone() if first is None else first
        assert same_bits(tensors["out"], first)


@LAYOUTS
def test_splits_leave_their_counters_at_zero_and_use_no_scratch_of_before(column: tuple[str, ...]) -> None:
    problem, config = split(column)
    tensors = make_operands(problem, "integers", 1)
    want = (tensors["a"].double() @ tensors["b"].double()).half()
    launcher = runner(config, problem)
    access = {i: p.access for i, p in enumerate(launcher.source.params) if isinstance(p, Pointer)}
    for _ in range(3):
        tensors["out"].fill_(math.nan)
        launcher.run(tensors, {})
        assert torch.equal(tensors["out"], want)
        for index, memory in launcher._workspaces.items():
            if access[index] == "counters":
                assert (memory == 0).all()
            else:
                memory.fill_(0xFF)  # NaN


@LAYOUTS
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("k", [1304, 2600, 3096])
def test_vectors_longer_than_their_place_in_shared_memory(column: tuple[str, ...], splits: int, k: int) -> None:
    problem = dense(operator("hgemm").graphs[0], {"M": 7, "N": 72, "K": k}, dict.fromkeys(column, "col"))
    config = Gemv(vectors=8, pack=8, rows=1, unroll=1, threads=64, warps=1, lanes=32 if column else 4, splits=splits,
                  staged=True, blocks_per_sm=1)  # fmt: skip
    v = view(problem)
    assert config.chunk(v) * config.k_tile(v) * splits < k
    tensors = make_operands(problem, "integers", 3)
    runner(config, problem).run(tensors, {})
    assert torch.equal(tensors["out"], (tensors["a"].double() @ tensors["b"].double()).half())


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("few", ["rows", "columns"])
def test_special_values_go_where_they_belong(staged: bool, transposed: bool, few: str) -> None:
    m, n = (3, 41) if few == "rows" else (41, 3)
    a, b, out = torch.ones(m, 35).half(), torch.ones(35, n).half(), torch.empty(m, n).half()
    a[2, 34], a[0, 1], b[3, n - 1], b[34, 0] = math.nan, math.inf, -math.inf, math.inf
    a[1, 34] = 0.0  # meets the infinity of b's first column
    if transposed:
        a, b = a.T.contiguous().T, b.T.contiguous().T
    launch(operator("hgemm").graphs[0], [a, b, out], Gemv, {"staged": staged})
    want = a.double() @ b.double()
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.isposinf(), want.isposinf())
    assert torch.equal(out.isneginf(), want.isneginf())
    finite = want.isfinite()
    assert finite.any()
    assert torch.equal(out[finite].double(), want[finite])


@LAYOUTS
@pytest.mark.parametrize(("function", "total"), [(widened, 4097), (in_half, 4096)], ids=["widened", "in_half"])
def test_sums_of_halves_are_kept_in_f32_unless_asked_for_in_f16(
    column: tuple[str, ...], function: object, total: int
) -> None:
    out = torch.empty(2, 40)
    b = torch.ones(4097, 40).half()
    b = b.T.contiguous().T if column else b
    launch(Operator(function).graphs[0], [torch.ones(2, 4097).half(), b, out], Gemv)
    assert (out == total).all()  # f16 has no 4097


@pytest.mark.parametrize("side", ["a", "b", "out"])
def test_rows_further_apart_than_32_bits_count(side: str) -> None:
    far = 2**31 + 4096
    storage = torch.empty(
        far + 4096, dtype=torch.int8 if side != "out" else torch.int32
    )  # never touched, costs nothing
    a, b, out = torch.ones(2, 16).char(), torch.ones(2, 16).char().T, torch.empty(2, 2).int()
    a[1], b[:, 1] = 2, 3
    if side == "a":
        a = storage.as_strided((2, 16), (far, 1)).copy_(a)
    elif side == "b":
        b = storage.as_strided((16, 2), (1, far)).copy_(b)
    else:
        out = storage.as_strided((2, 2), (far, 1))
    launch(Operator(eight_bits).graphs[0], [a, b, out], Gemv, checks=False)
    assert out.tolist() == [[16, 48], [32, 96]]


def test_the_result_may_take_the_place_of_c() -> None:
    a, b = torch.ones(3, 40).half(), torch.ones(40, 72).half()
    c = (torch.arange(3 * 72).view(3, 72) % 64).half()
    want = 2 * 40 + 0.5 * c.clone()
    launch(operator("gemm").graphs[0], [a, b, c, c], Gemv, {}, {"alpha": 2.0, "beta": 0.5})
    assert torch.equal(c, want)


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_misaligned_slices(offset: int) -> None:
    graph = operator("hgemm").graphs[0]
    storage = (torch.arange(offset + 32 * 40) % 3).half()
    b, a, out = storage[offset : offset + 32 * 40].view(40, 32), torch.ones(1, 40).half(), torch.empty(1, 32).half()
    assert Gemv.default(problem_of(graph, [a, b, out]), TARGET).pack == offset
    launch(graph, [a, b, out], Gemv)
    assert torch.equal(out, (a.float() @ b.float()).half())


@pytest.mark.parametrize(
    "sizes", [{"M": m, "N": 6144, "K": 4096} for m in (1, 2, 4)] + [{"M": 6144, "N": 1, "K": 4096}]
)
@LAYOUTS
def test_the_model_takes_it_for_few_rows(sizes: dict[str, int], column: tuple[str, ...]) -> None:
    problem = dense(operator("hgemm").graphs[0], sizes, dict.fromkeys(column, "col"))
    mine, other = Gemv.default(problem, H200), MmaGemm.default(problem, H200)
    assert mine.estimate(problem, H200) < other.estimate(problem, H200)
    assert problem.bytes / mine.estimate(problem, H200) < H200.bandwidth


def test_nine_rows_and_columns_are_not_its_business() -> None:
    graph = operator("hgemm").graphs[0]
    assert Gemv.applies(dense(graph, {"M": 8, "N": 64, "K": 64}))
    assert not Gemv.applies(dense(graph, {"M": 9, "N": 64, "K": 64}))
    assert not Gemv.applies(dense(operator("tf32gemm").graphs[0], {"M": 1, "N": 64, "K": 64}))


def test_the_operators_for_vectors() -> None:
    a, x = torch.arange(15 * 33).view(15, 33).remainder(5).float(), torch.arange(33).view(33, 1).remainder(3).float()
    out = torch.empty(15, 1)
    launch(operator("sgemv").graphs[0], [a, x, out], Gemv)
    assert torch.equal(out, a @ x)
