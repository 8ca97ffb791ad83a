"""Operators with more operands or with random numbers: dropout, what models fuse with it, and weighted sums of tensors.

Dropout's random numbers follow from `seed`, `offset` and an element's row-major index alone (kgen.random), so that the backward
pass draws the same ones again. A call on n elements uses up ceil(n / 4) offsets: add as many for the next one.
"""

from __future__ import annotations

import inspect
from typing import Any

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr
from kgen.dsl.operator import Number, Operator, Tensor
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, f64, i64

(N,) = dims("N")
T = dtype_var("T", f16, bf16, f32, f64)


@Operator
def dropout(x: Tensor[T, ...], p: Number[float, 0, 1] = 0.5, seed: i64 = 0, offset: i64 = 0) -> Tensor[T, ...]:
    """x / (1 - p) with probability 1 - p, else 0."""
    return F.dropout(x, p, seed, offset)


@Operator
def dropout_backward(
    dy: Tensor[T, ...], p: Number[float, 0, 1] = 0.5, seed: i64 = 0, offset: i64 = 0
) -> Tensor[T, ...]:
    """The gradient of dropout: dy where x was kept, by the same numbers."""
    return F.dropout(dy, p, seed, offset)


@Operator
def bias_dropout_residual(
    x: Tensor[T, ..., N],
    b: Tensor[T, N],
    residual: Tensor[T, ..., N],
    p: Number[float, 0, 1] = 0.5,
    seed: i64 = 0,
    offset: i64 = 0,
) -> Tensor[T, ..., N]:
    """dropout(x + b) + residual, with one bias for each column."""
    return F.dropout(x + b, p, seed, offset) + residual


def weighted_sum_of(count: int) -> Operator:
    """The operator a0 * x0 + a1 * x1 + ... of so many tensors, which broadcast to each other; weights are 1 if not given."""

    def function(*operands: Expr) -> Expr:
        total = operands[count] * operands[0]
        for x, weight in zip(operands[1:count], operands[count + 1 :]):
            total = total + weight * x
        return total

    tensor: Any = Tensor[T, ...]  # type: ignore[misc]  # a type to mypy, which has no arguments
    positional: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    tensors = [inspect.Parameter(f"x{k}", positional, annotation=tensor) for k in range(count)]
    weights = [inspect.Parameter(f"a{k}", positional, annotation=float, default=1.0) for k in range(count)]
    function.__signature__ = inspect.Signature([*tensors, *weights], return_annotation=tensor)  # type: ignore[attr-defined]
    function.__doc__ = f"a0 * x0 + ... + a{count - 1} * x{count - 1}."
    return Operator(function, f"weighted_sum{count}")


OPERATORS: tuple[Operator, ...] = (
    dropout,
    dropout_backward,
    bias_dropout_residual,
    *(weighted_sum_of(count) for count in range(2, 9)),
)
