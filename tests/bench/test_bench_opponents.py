"""Opponents: who is there, what each declines, and that those that run here compute the right thing."""

from __future__ import annotations

import importlib
from typing import Any

import bench_operators as ops
import pytest
import torch

from kgen.bench import eager, opponents
from kgen.bench.check import Expectation, check
from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import Operator
from kgen.dsl.problem import Problem
from kgen.dsl.types import DType, bf16, f16
from kgen.numerics.operands import make_operands, scalar_values
from kgen.ops import operator as operator_named

PRODUCTS = [ops.product, ops.product_f32, ops.product_tf32, ops.linear, ops.general]
POINTWISE = [ops.add, ops.gelu, ops.bias_gelu]
COLUMN_B = {"b": "col"}


def opponent(name: str) -> opponents.Opponent:
    found = opponents.load(name)
    assert isinstance(found, opponents.Opponent)
    return found


def test_the_opponents_there_are() -> None:
    assert set(opponents.names()) >= {"cublas", "torch", "compile", "triton", "copy"}
    with pytest.raises(ArgumentError, match=r"unknown opponent 'cubals'; expected one of .*cublas"):
        opponents.load("cubals")


def test_what_cannot_be_imported_is_absent_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert opponents.load("triton") == opponents.Absent("triton", "No module named 'triton'")


@pytest.mark.parametrize("operator", [*PRODUCTS, ops.product_i8, ops.product_f16acc], ids=lambda o: o.name)
def test_cublas_takes_products(operator: Operator) -> None:
    assert opponent("cublas").why_not(ops.square(operator)) is None


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (ops.linear_gelu, "nothing around it"),
        (ops.add, "nothing around it"),
        (ops.product_wide, "gives no f32"),
        (ops.product_fp8, "column-major"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_cublas_declines_the_rest(operator: Operator, reason: str) -> None:
    assert reason in (opponent("cublas").why_not(ops.square(operator)) or "")


def test_cublas_takes_fp8_with_b_by_columns() -> None:
    assert opponent("cublas").why_not(ops.square(ops.product_fp8, layouts=COLUMN_B)) is None


@pytest.mark.parametrize("name", ["fp8gemm_blockwise", "fp8gemm_vectorwise"])
def test_cublas_takes_scales_of_blocks(name: str) -> None:
    graph = operator_named(name).graphs[0]

    def reason(sizes: Any, layouts: Any = None) -> str | None:
        return opponent("cublas").why_not(Problem.dense(graph, sizes, layouts))

    assert reason({"M": 100, "N": 208, "K": 400}) is None
    assert "along K" in (reason({"M": 100, "N": 208, "K": 400}, {"b": "col"}) or "")
    assert "multiples of 16" in (reason({"M": 100, "N": 200, "K": 400}) or "")
    assert "two e4m3 matrices" in (reason({"...": (2,), "M": 100, "N": 208, "K": 400}) or "")


@pytest.mark.parametrize(("name", "blocks"), [("fp8gemm_blockwise", 2), ("fp8gemm_vectorwise", 208)])
def test_scales_reach_torch_as_it_lays_them_out(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.dense(operator_named(name).graphs[0], {"M": 100, "N": 208, "K": 400})
    operands = make_operands(problem, "normal", 0, "cpu")
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda *given, **named: seen.extend(given))
    opponent("cublas").prepare(problem, [operands], {})(0)
    a, b, rows, columns = seen
    assert (a.shape, a.stride(), b.shape, b.stride()) == ((100, 400), (400, 1), (400, 208), (1, 400))
    assert (rows.shape, rows.stride()) == ((100, 4), (1, 100))
    assert (columns.shape, columns.stride()) == ((4, blocks), (1, 4) if blocks == 2 else (208, 1))
    assert torch.equal(rows, operands["scale_a"])
    assert torch.equal(columns, operands["scale_b"].t())


def test_cublas_takes_batches_of_plain_products_alone() -> None:
    batched = Problem.dense(ops.product.graphs[0], {"...": (3,), "M": 8, "N": 8, "K": 8})
    assert opponent("cublas").why_not(batched) is None
    assert runs(batched, "cublas") == ""


@pytest.mark.parametrize("name", ["torch", "compile"])
def test_torch_takes_what_it_has_calls_for(name: str) -> None:
    for operator in (*PRODUCTS, *POINTWISE, ops.linear_gelu, ops.row_sum):
        assert opponent(name).why_not(ops.square(operator)) is None
    for operator in (ops.product_i8, ops.product_fp8):
        assert "torch.matmul takes no" in (opponent(name).why_not(ops.square(operator)) or "")


def runs(problem: Problem, name: str) -> str:
    """What is wrong with an opponent's results on the CPU."""
    scalars = scalar_values(problem.graph)
    sets = [make_operands(problem, "normal", seed, "cpu", guard=0) for seed in range(2)]
    launch = opponent(name).prepare(problem, sets, scalars)
    return check(problem, launch, sets, [Expectation.of(problem, s, scalars) for s in sets]).fault


@pytest.mark.parametrize("layouts", [{}, COLUMN_B], ids=["nn", "tn"])
@pytest.mark.parametrize("operator", [*PRODUCTS, ops.product_i8], ids=lambda o: o.name)
def test_cublas_computes(operator: Operator, layouts: dict[str, str]) -> None:
    assert runs(ops.square(operator, layouts=layouts), "cublas") == ""


@pytest.mark.parametrize("operator", [*PRODUCTS, *POINTWISE, ops.linear_gelu, ops.row_sum], ids=lambda o: o.name)
def test_eager_torch_computes(operator: Operator) -> None:
    for choice in range(len(operator.graphs)):
        assert runs(ops.square(operator, choice=choice), "torch") == ""


@pytest.mark.parametrize(("name", "dtype"), [("torch", bf16), ("cublas", f16), ("cublas", bf16)])
@pytest.mark.parametrize("layouts", [{}, COLUMN_B], ids=["nn", "tn"])
def test_groups(name: str, dtype: DType, layouts: dict[str, str]) -> None:
    graph = operator_named("grouped_hgemm").graph({"a": dtype})
    problem = Problem.dense(graph, {"M": 100, "N": 48, "K": 64, "G": 7}, layouts)
    assert opponent(name).why_not(problem) is None
    assert runs(problem, name) == ""


def test_groups_that_torch_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    half, brain = (Problem.dense(g, {"M": 8, "N": 8, "K": 8, "G": 2}) for g in operator_named("grouped_hgemm").graphs)
    assert "bf16 alone" in (opponent("torch").why_not(half) or "")
    assert opponent("torch").why_not(brain) is None
    monkeypatch.delattr(torch, "_grouped_mm")
    assert "this torch has no" in (opponent("torch").why_not(brain) or "")


def test_one_mm_a_group_leaves_zeros_behind_the_last() -> None:
    problem = Problem.dense(operator_named("grouped_hgemm").graphs[0], {"M": 9, "N": 8, "K": 8, "G": 2})
    operands = make_operands(problem, "normal", 0, "cpu", guard=0)
    operands["offsets"].copy_(torch.tensor([0, 0, 5]))
    opponent("cublas").prepare(problem, [operands], {})(0)
    assert torch.equal(operands["out"][:5], operands["a"][:5] @ operands["b"][1])
    assert (operands["out"][5:] == 0).all()


def test_every_shipped_pointwise_operator_runs_by_eager_torch() -> None:
    from kgen.ops.elementwise.pointwise import OPERATORS

    for operator in OPERATORS:
        for graph in operator.graphs:
            problem = Problem.dense(graph, {"...": (5,), **dict.fromkeys(graph.dims, 16)})
            operands = make_operands(problem, "normal", 0, "cpu", guard=0)
            (got,) = eager.function(problem, scalar_values(graph))(*(operands[o.name] for o in problem.inputs))
            assert (got.shape, got.dtype) == (operands["out"].shape, operands["out"].dtype)


def test_eager_torch_uses_the_fused_activation() -> None:
    calls = eager.function(ops.square(ops.gelu), {}).__self__.graph.nodes  # type: ignore[attr-defined]
    assert [n.target for n in calls if n.op == "call_function"] == [torch.nn.functional.gelu]


def test_copy_moves_the_bytes_of_the_problem() -> None:
    problem = ops.square(ops.add)
    moved: list[int] = []
    copied = torch.Tensor.copy_

    def spy(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        moved.append(2 * source.nbytes)
        return copied(self, source)

    launch = opponent("copy").prepare(problem, [make_operands(problem)], {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", spy)
        launch(0)
    assert moved == [problem.bytes]
    assert not opponent("copy").computes


def test_precision_is_set_and_restored() -> None:
    settings = torch.backends.cuda.matmul
    before = (settings.allow_tf32, settings.allow_fp16_reduced_precision_reduction)
    for operator, allowed in ((ops.product_f32, False), (ops.product_tf32, True)):
        with eager.matmul_precision(operator.graphs[0]):
            assert settings.allow_tf32 is allowed
    with eager.matmul_precision(ops.product.graphs[0]):
        assert settings.allow_fp16_reduced_precision_reduction is False
    with pytest.raises(ZeroDivisionError), eager.matmul_precision(ops.product_tf32.graphs[0]):
        raise ZeroDivisionError
    assert (settings.allow_tf32, settings.allow_fp16_reduced_precision_reduction) == before


def test_triton_takes_simple_products_and_pointwise_expressions() -> None:
    pytest.importorskip("triton")
    triton = opponent("triton")
    for operator in (ops.product, ops.product_f32, ops.product_tf32, ops.linear, ops.linear_gelu, *POINTWISE):
        assert triton.why_not(ops.square(operator)) is None
        assert triton.why_not(ops.square(operator, size=33)) is None
    assert "these kernels take f16" in (triton.why_not(ops.square(ops.product_i8)) or "")
    assert "simple activation" in (triton.why_not(ops.square(ops.general)) or "")
    assert "activation(x op y)" in (triton.why_not(ops.square(ops.row_sum)) or "")
    batched = Problem.dense(ops.product.graphs[0], {"...": (3,), "M": 8, "N": 8, "K": 8})
    assert "two matrices" in (triton.why_not(batched) or "")
