"""Operators for the tests of the benchmark."""

from __future__ import annotations

from kgen.dsl import functions as F
from kgen.dsl.expr import matmul
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, e4m3, f16, f32, i8, i32, tf32

M, N, K = dims("M N K")
H = dtype_var("H", f16, bf16)
T = dtype_var("T", f16, f32)


@Operator
def product(a: Tensor[H, ..., M, K], b: Tensor[H, ..., K, N]) -> Tensor[H, ..., M, N]:
    return a @ b


@Operator
def product_f16acc(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f16, M, N]:
    return matmul(a, b, accumulate=f16)


@Operator
def product_f32(a: Tensor[f32, M, K], b: Tensor[f32, K, N]) -> Tensor[f32, M, N]:
    return a @ b


@Operator
def product_tf32(a: Tensor[tf32, M, K], b: Tensor[tf32, K, N]) -> Tensor[f32, M, N]:
    return a @ b


@Operator
def product_i8(a: Tensor[i8, M, K], b: Tensor[i8, K, N]) -> Tensor[i32, M, N]:
    return a @ b


@Operator
def product_fp8(a: Tensor[e4m3, M, K], b: Tensor[e4m3, K, N], scale: float = 0.5) -> Tensor[bf16, M, N]:
    return scale * (a @ b)


@Operator
def product_wide(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f32, M, N]:
    return a @ b


@Operator
def linear(x: Tensor[H, M, K], w: Tensor[H, N, K], bias: Tensor[H, N]) -> Tensor[H, M, N]:
    return x @ w.T + bias


@Operator
def linear_gelu(x: Tensor[H, M, K], w: Tensor[H, N, K], bias: Tensor[H, N]) -> Tensor[H, M, N]:
    return F.gelu(x @ w.T + bias)


@Operator
def general(
    a: Tensor[H, M, K], b: Tensor[H, K, N], c: Tensor[H, M, N], alpha: float = 0.5, beta: float = 2.0
) -> Tensor[H, M, N]:
    return (a @ b) * alpha + c * beta


@Operator
def add(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[T, ...]:
    return a + b


@Operator
def gelu(x: Tensor[T, ...]) -> Tensor[T, ...]:
    return F.gelu(x)


@Operator
def bias_gelu(x: Tensor[T, ..., N], b: Tensor[T, N]) -> Tensor[T, ..., N]:
    return F.gelu(x + b)


@Operator
def row_sum(x: Tensor[T, M, N]) -> Tensor[T, M]:
    return F.sum(x)


def square(operator: Operator, size: int = 32, layouts: dict[str, str] | None = None, choice: int = 0) -> Problem:
    """The problem with every named size `size`, and two leading sizes where the operator names none."""
    graph = operator.graphs[choice]
    sizes: dict = dict.fromkeys(graph.dims, size)
    if graph.outputs[0].shape.leading and "K" not in sizes:
        sizes["..."] = (3, size)
    return Problem.dense(graph, sizes, layouts)
