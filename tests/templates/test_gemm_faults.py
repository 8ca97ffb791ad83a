"""What hand-written GEMMs get wrong: accumulation, special values, odd pipelines, reused workspaces, aliases, wide offsets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import TARGET
from launches import dense, launch, problem_of, runner

from kgen.codegen.source import Integer, Pointer
from kgen.dsl.expr import matmul
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import f16, f32, i8, i32
from kgen.numerics.operands import make_operands, same_bits
from kgen.ops import operator
from kgen.ops.gemm import MmaGemm, SimtGemm

M, N, K = dims("M N K")
BOTH = pytest.mark.parametrize("schedule", [MmaGemm, SimtGemm])


def widened(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f32, M, N]:
    return a @ b


def in_half(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f32, M, N]:
    return matmul(a, b, accumulate=f16)


def eight_bits(a: Tensor[i8, M, K], b: Tensor[i8, K, N]) -> Tensor[i32, M, N]:
    return a @ b


def half(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


@BOTH
@pytest.mark.parametrize("k", [2049, 4096])
def test_sums_of_halves_are_kept_in_f32(schedule: type[Schedule], k: int) -> None:
    out = torch.empty(5, 9)
    launch(Operator(widened).graphs[0], [half(5, k), half(k, 9), out], schedule)
    assert (out == k).all()


def test_sums_in_half_saturate_where_half_was_asked_for() -> None:
    out = torch.empty(5, 9)
    launch(
        Operator(in_half).graphs[0], [half(5, 4096) * 32, half(4096, 9), out], MmaGemm, {"splits": 1}
    )  # shares are added in f32
    assert out.isinf().all()


@BOTH
def test_special_values_go_where_they_belong(schedule: type[Schedule]) -> None:
    a, b, out = half(19, 35), half(35, 21), torch.empty(19, 21, dtype=torch.float16)
    a[18, 34], a[3, 0], a[5, 1], b[2, 20] = math.nan, math.inf, -math.inf, 0.0
    a[7, 2] = math.inf  # meets the 0 of b's last column
    launch(operator("hgemm").graphs[0], [a, b, out], schedule)
    want = a.double() @ b.double()
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.isposinf(), want.isposinf())
    assert torch.equal(out.isneginf(), want.isneginf())
    assert out[7, 20].isnan()
    assert (out[0, :20] == 35).all()


@BOTH
def test_alpha_and_beta(schedule: type[Schedule]) -> None:
    graph = operator("gemm").graphs[0]
    a, b, c, out = half(17, 24), half(24, 33), half(17, 33) * 3, half(17, 33)
    for alpha, beta in ((1.0, 1.0), (2.0, 0.5), (0.0, 1.0), (-1.0, 0.0)):
        launch(graph, [a, b, c, out], schedule, scalars={"alpha": alpha, "beta": beta})
        assert (out == alpha * 24 + beta * 3).all(), (alpha, beta)


@BOTH
@pytest.mark.parametrize("store", ["direct", "shuffle", "shared", "stmatrix"])
def test_the_result_may_take_the_place_of_c(schedule: type[Schedule], store: str) -> None:
    graph = operator("gemm").graphs[0]
    a, b = half(37, 40), half(40, 72)
    c = (torch.arange(37 * 72).view(37, 72) % 64).half()
    want = 2 * 40 + 0.5 * c.clone()
    fields = {"store": store, "WN": 32, "BN": 64} if schedule is MmaGemm else {}
    launch(graph, [a, b, c, c], schedule, fields, {"alpha": 2.0, "beta": 0.5})
    assert torch.equal(c, want)


@BOTH
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_any_number_of_tiles_along_k_with_any_number_of_stages(schedule: type[Schedule], stages: int) -> None:
    if stages not in schedule.fields["stages"].values:
        pytest.skip("no such choice")
    graph = Operator(widened).graphs[0]
    for tiles in range(8):
        for extra in (0, 8):
            k = tiles * 32 + extra
            a = (torch.arange(16 * k).view(16, k) % 5 - 2).half()
            b = (torch.arange(k * 64).view(k, 64) % 7 - 3).half()
            out = torch.full((16, 64), math.nan)
            if schedule is MmaGemm:
                fields = _mma(stages=stages)
            else:
                fields = {"BM": 16, "BN": 64, "BK": 32, "TM": 4, "TN": 4, "stages": stages, "copy": "cp_async"}
                fields |= {"transpose": False, "vector": 1, "pack": 8, "padding": 1}
            for mode in ("eager", "late"):
                launch(graph, [a, b, out], schedule, fields, async_mode=mode)
                assert torch.equal(out, a.float() @ b.float()), (k, mode)


def _mma(**changed: Any) -> dict[str, Any]:
    """A small plain config: the first value of every field but a few."""
    plain = {name: field.values[0] for name, field in MmaGemm.fields.items()}
    small = {"BM": 16, "BN": 64, "BK": 32, "WM": 16, "WN": 32, "copy": "cp_async", "pack": 8}
    return {**plain, **small, **changed}


def _split_problem() -> tuple[Problem, MmaGemm]:
    problem = dense(operator("hgemm").graphs[0], {"M": 16, "N": 104, "K": 1000})
    return problem, MmaGemm(**_mma(splits=8))


def test_splits_leave_their_counters_at_zero_and_use_no_scratch_of_before() -> None:
    problem, config = _split_problem()
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


def test_results_do_not_depend_on_the_order_of_blocks() -> None:
    problem, config = _split_problem()
    tensors = make_operands(problem, "normal", 2)
    first = None
    for seed in range(4):
        runner(config, problem, seed=seed, threads=2).run(tensors, {})
        first = tensors["out"].clone() if first is None else first
        assert same_bits(tensors["out"], first)


@BOTH
def test_k_of_zero_leaves_the_epilogue(schedule: type[Schedule]) -> None:
    x, w, bias = torch.empty(5, 0).half(), torch.empty(9, 0).half(), torch.arange(9).half()
    out = torch.empty(5, 9, dtype=torch.float16)
    launch(operator("linear").graphs[0], [x, w, bias, out], schedule)
    assert torch.equal(out, bias.expand(5, 9))


@BOTH
@pytest.mark.parametrize("side", ["a", "b", "out"])
def test_rows_further_apart_than_32_bits_count(schedule: type[Schedule], side: str) -> None:
    graph = Operator(eight_bits).graphs[0]
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
    launch(graph, [a, b, out], schedule, checks=False)
    assert out.tolist() == [[16, 48], [32, 96]]


@BOTH
def test_strides_are_64_bits_wide(schedule: type[Schedule]) -> None:
    problem = dense(operator("gemm").graphs[0], {"...": (3, 2), "M": 64, "N": 64, "K": 64}, {"b": "col"})
    source = schedule.default(problem, TARGET).source(problem)
    strides = [p for p in source.params if isinstance(p, Integer) and "_s" in p.name]
    assert len(strides) >= 4
    for p in strides:
        assert p.bits == 64
        assert f"long long {p.name}" in source.text


def test_one_operand_on_both_sides() -> None:
    def gram(x: Tensor[f16, M, K]) -> Tensor[f32, M, M]:
        return x @ x.T

    x, out = (torch.arange(19 * 40).view(19, 40) % 5 - 2).half(), torch.empty(19, 19)
    for schedule in (MmaGemm, SimtGemm):
        launch(Operator(gram).graphs[0], [x, out], schedule)
        assert torch.equal(out, x.float() @ x.float().T)


@BOTH
def test_misaligned_slices(schedule: type[Schedule]) -> None:
    graph = operator("hgemm").graphs[0]
    for offset in (1, 2, 4):
        storage = (torch.arange(offset + 32 * 40) % 3).half()
        a = storage[offset : offset + 32 * 40].view(32, 40)
        b, out = half(40, 24), torch.empty(32, 24).half()
        assert problem_of(graph, [a, b, out]).operand("a").align == 2 * offset
        launch(graph, [a, b, out], schedule)
        assert torch.equal(out, (a.float() @ b.float()).half())
