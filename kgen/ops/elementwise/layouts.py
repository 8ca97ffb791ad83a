"""Operators that move elements and compute nothing: transposes, and dense copies of any strided view."""

from __future__ import annotations

from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, bool_, dtype_var, e4m3, e5m2, f16, f32, f64, i8, i32, i64

M, N = dims("M N")
#: Everything that has a width: nothing is computed.
A = dtype_var("A", f16, bf16, f32, f64, i8, i32, i64, bool_, e4m3, e5m2)


@Operator
def transpose(x: Tensor[A, ..., M, N]) -> Tensor[A, ..., N, M]:
    """The last two axes exchanged, of a matrix or of each of a batch: x.mT.contiguous() in torch."""
    return x.T


@Operator
def contiguous(x: Tensor[A, ...]) -> Tensor[A, ...]:
    """A dense copy of a view with any strides, such as `x.permute(0, 2, 1, 3)`: x.contiguous() in torch."""
    return x


OPERATORS: tuple[Operator, ...] = (transpose, contiguous)
