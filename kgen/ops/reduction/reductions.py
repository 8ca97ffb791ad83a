"""The shipped reductions over all elements. The reduce family serves them.

Each is its mathematics alone. Sums are made in f32 (f64 for f64) and results are f32 unless `out` says otherwise; sums of
integers are exact, in i64.
"""

from __future__ import annotations

from kgen.dsl import functions as F
from kgen.dsl.expr import cast
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.types import bf16, dtype_var, e4m3, e5m2, f16, f32, f64, i8, i32, i64

#: Any numbers; floats; integers.
A = dtype_var("A", f32, f16, bf16, f64, e4m3, e5m2, i8, i32)
T = dtype_var("T", f32, f16, bf16, f64, e4m3, e5m2)
I = dtype_var("I", i8, i32)  # noqa: E741
#: What a result is rounded to.
R = dtype_var("R", f32, f16, bf16, f64)
J = dtype_var("J", i64, i32)


@Operator
def reduce_sum(x: Tensor[T, ...]) -> Tensor[R]:
    """The sum of all elements."""
    return F.sum(x, None)


@Operator
def reduce_isum(x: Tensor[I, ...]) -> Tensor[J]:
    """The sum of all elements of integers."""
    return F.sum(cast(x, i64), None)


@Operator
def reduce_mean(x: Tensor[A, ...]) -> Tensor[R]:
    """The mean of all elements."""
    return F.mean(x, None)


@Operator
def reduce_max(x: Tensor[A, ...]) -> Tensor[A]:
    """The largest element; NaN where there is one."""
    return F.amax(x, None)


@Operator
def reduce_min(x: Tensor[A, ...]) -> Tensor[A]:
    """The smallest element; NaN where there is one."""
    return F.amin(x, None)


@Operator
def reduce_argmax(x: Tensor[A, ...]) -> Tensor[i64]:
    """The row-major index of the first of the largest elements; NaN counts as the largest."""
    return F.argmax(x, None)


@Operator
def norm(x: Tensor[T, ...]) -> Tensor[R]:
    """The square root of the sum of the squares of all elements."""
    return F.sqrt(F.sum(x * x, None))


@Operator
def dot(a: Tensor[T, ...], b: Tensor[T, ...]) -> Tensor[R]:
    """The sum of the products of all elements."""
    return F.sum(a * b, None)


@Operator
def idot(a: Tensor[I, ...], b: Tensor[I, ...]) -> Tensor[J]:
    """The sum of the products of all elements of integers."""
    return F.sum(cast(a, i64) * b, None)


OPERATORS = (
    reduce_sum, reduce_isum, reduce_mean, reduce_max, reduce_min, reduce_argmax, norm, dot, idot,
)  # fmt: skip
