"""The shipped operators that scan rows, by the scan family."""

from __future__ import annotations

from kgen.dsl import functions as F
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, f64, i64

(N,) = dims("N")
T = dtype_var("T", f16, bf16, f32, f64)
#: Sums of integers too: torch sums those of any width in i64.
S = dtype_var("S", f16, bf16, f32, f64, i64)


@Operator
def cumsum(x: Tensor[S, ..., N]) -> Tensor[S, ..., N]:
    """The sum of the elements up to each one, along the last axis."""
    return F.cumsum(x)


@Operator
def cumprod(x: Tensor[S, ..., N]) -> Tensor[S, ..., N]:
    """The product of the elements up to each one, along the last axis."""
    return F.cumprod(x)


@Operator
def logcumsumexp(x: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """log(sum(exp(x))) of the elements up to each one, along the last axis, of any range."""
    return F.logcumsumexp(x)


OPERATORS = (cumsum, cumprod, logcumsumexp)
