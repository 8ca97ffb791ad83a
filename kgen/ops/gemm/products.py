"""The GEMM family, and the operators it serves."""

from kgen.dsl.expr import grouped_matmul, matmul
from kgen.dsl.family import Family, register_family
from kgen.dsl.functions import gelu
from kgen.dsl.indexing import repeat
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import ceil_div, dims
from kgen.dsl.types import bf16, dtype_var, e4m3, e5m2, f16, f32, f64, i8, i32, tf32
from kgen.ops.gemm.gemv import Gemv
from kgen.ops.gemm.mma import MmaGemm
from kgen.ops.gemm.problem import matches, normalise, shape_dims, suites
from kgen.ops.gemm.simt import SimtGemm
from kgen.ops.gemm.wgmma import WgmmaGemm

family = register_family(Family("gemm", (WgmmaGemm, MmaGemm, SimtGemm, Gemv), matches, normalise, shape_dims, suites))

M, N, K, G = dims("M N K G")
F = dtype_var("F", f16, bf16)
E = dtype_var("E", e4m3, e5m2)
R = dtype_var("R", bf16, f16, f32)


def hgemm(a: Tensor[F, ..., M, K], b: Tensor[F, ..., K, N]) -> Tensor[F, ..., M, N]:
    """a @ b in f16 or bf16, summed in f32. a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return a @ b


def hgemm_f16acc(a: Tensor[f16, ..., M, K], b: Tensor[f16, ..., K, N]) -> Tensor[f16, ..., M, N]:
    """a @ b in f16, summed in f16: faster on some GPUs, and coarse. a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return matmul(a, b, accumulate=f16)


def sgemm(a: Tensor[f32, ..., M, K], b: Tensor[f32, ..., K, N]) -> Tensor[f32, ..., M, N]:
    """a @ b in f32 on CUDA cores. a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return a @ b


def hgemv(a: Tensor[F, ..., M, K], x: Tensor[F, ..., K, 1]) -> Tensor[F, ..., M, 1]:
    """a @ x in f16 or bf16, summed in f32. a [..., M, K], x [..., K, 1] -> [..., M, 1]; x [K] -> [..., M]."""
    return a @ x


def sgemv(a: Tensor[f32, ..., M, K], x: Tensor[f32, ..., K, 1]) -> Tensor[f32, ..., M, 1]:
    """a @ x in f32. a [..., M, K], x [..., K, 1] -> [..., M, 1]; x [K] -> [..., M]."""
    return a @ x


def dgemm(a: Tensor[f64, ..., M, K], b: Tensor[f64, ..., K, N]) -> Tensor[f64, ..., M, N]:
    """a @ b in f64 on CUDA cores. a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return a @ b


def tf32gemm(a: Tensor[tf32, ..., M, K], b: Tensor[tf32, ..., K, N]) -> Tensor[f32, ..., M, N]:
    """a @ b of f32 rounded to tf32, summed in f32. a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return a @ b


def igemm(a: Tensor[i8, ..., M, K], b: Tensor[i8, ..., K, N]) -> Tensor[i32, ..., M, N]:
    """a @ b of int8, summed in int32 (wraps). a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return a @ b


def fp8gemm(a: Tensor[E, ..., M, K], b: Tensor[E, ..., K, N], scale: float = 1.0) -> Tensor[bf16, ..., M, N]:
    """scale * (a @ b) of fp8, summed in f32, to bf16. a [..., M, K], b [..., K, N] -> [..., M, N]."""
    return scale * (a @ b)


def fp8gemm_blockwise(
    a: Tensor[e4m3, ..., M, K],
    b: Tensor[e4m3, ..., N, K],
    scale_a: Tensor[f32, ..., M, ceil_div(K, 128)],
    scale_b: Tensor[f32, ..., ceil_div(N, 128), ceil_div(K, 128)],
) -> Tensor[R, ..., M, N]:
    """a @ b.T of fp8 with a scale for 1 x 128 elements of a and for 128 x 128 of b, summed in f32.

    a [..., M, K], b [..., N, K], scale_a [..., M, K / 128], scale_b [..., N / 128, K / 128], rounded up -> [..., M, N].
    """
    return (a * repeat(scale_a, 128, K)) @ (b * repeat(repeat(scale_b, 128, K), 128, N, axis=-2)).T


def fp8gemm_vectorwise(
    a: Tensor[e4m3, ..., M, K],
    b: Tensor[e4m3, ..., N, K],
    scale_a: Tensor[f32, ..., M, ceil_div(K, 128)],
    scale_b: Tensor[f32, ..., N, ceil_div(K, 128)],
) -> Tensor[R, ..., M, N]:
    """a @ b.T of fp8 with a scale for each 1 x 128 elements of a and of b, summed in f32.

    a [..., M, K], b [..., N, K], scale_a [..., M, K / 128], scale_b [..., N, K / 128], rounded up -> [..., M, N].
    """
    return (a * repeat(scale_a, 128, K)) @ (b * repeat(scale_b, 128, K)).T


def linear(x: Tensor[F, ..., M, K], w: Tensor[F, N, K], bias: Tensor[F, N]) -> Tensor[F, ..., M, N]:
    """x @ w.T + bias. x [..., M, K], w [N, K], bias [N] -> [..., M, N]."""
    return x @ w.T + bias


def linear_gelu(x: Tensor[F, ..., M, K], w: Tensor[F, N, K], bias: Tensor[F, N]) -> Tensor[F, ..., M, N]:
    """gelu(x @ w.T + bias), tanh form. x [..., M, K], w [N, K], bias [N] -> [..., M, N]."""
    return gelu(x @ w.T + bias)


def gemm(
    a: Tensor[F, ..., M, K],
    b: Tensor[F, ..., K, N],
    c: Tensor[F, ..., M, N],
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor[F, ..., M, N]:
    """alpha * (a @ b) + beta * c, summed in f32. a [..., M, K], b [..., K, N], c [..., M, N] -> [..., M, N]."""
    return alpha * (a @ b) + beta * c


def grouped_hgemm(a: Tensor[F, M, K], b: Tensor[F, G, K, N], offsets: Tensor[i32, G + 1]) -> Tensor[F, M, N]:
    """Rows of a, sorted by group, each times its group's matrix, in f16 or bf16, summed in f32: a mixture of experts.

    a [M, K], b [G, K, N], offsets [G + 1] -> [M, N]. Group g has the rows from offsets[g] to offsets[g + 1]; offsets ascend
    from 0. Rows behind offsets[G] come out as 0.
    """
    return grouped_matmul(a, b, offsets)


OPERATORS = tuple(
    Operator(f)
    for f in (
        hgemm,
        hgemm_f16acc,
        hgemv,
        sgemm,
        sgemv,
        dgemm,
        tf32gemm,
        igemm,
        fp8gemm,
        fp8gemm_blockwise,
        fp8gemm_vectorwise,
        grouped_hgemm,
        linear,
        linear_gelu,
        gemm,
    )
)
