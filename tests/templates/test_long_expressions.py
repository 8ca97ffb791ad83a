"""Operators of thousands of operations, and over many tensors: every family writes their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kgen
from kgen import Tensor, dims, f16, f32, i64
from kgen.ops.elementwise.fused import weighted_sum_of

M, N, K = dims("M N K")
#: Far beyond what Python's stack holds.
LONG = 5000


def chain(x: Any) -> Any:
    for _ in range(LONG // 2):
        x = x * 1.5 + 1.0
    return x


def pointwise(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
    return chain(x)  # type: ignore[no-any-return]


def exchanged(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    for _ in range(LONG // 2):
        x = kgen.swap_halves(x) + 1.0
    return x


def transposed(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    for _ in range(LONG // 2):
        x = x.T.T
    return x


def taken(x: Tensor[f32, M, N], ids: Tensor[i64, ...]) -> Tensor[f32, ..., N]:
    return chain(kgen.take(x, ids))  # type: ignore[no-any-return]


def found(x: Tensor[f32, M, N], ids: Tensor[i64, ...]) -> Tensor[f32, ..., N]:
    for _ in range(LONG // 2):
        ids = ids + 1 - 1
    return kgen.take(x, ids)


def row(x: Tensor[f32, M, N]) -> Tensor[f32, M]:
    return kgen.sum(chain(x))


def column(x: Tensor[f32, M, N]) -> Tensor[f32, N]:
    return kgen.sum(chain(x), -2)


def total(x: Tensor[f32, M, N]) -> Tensor[f32]:
    return kgen.sum(chain(x), None)


def product(a: Tensor[f16, M, K], b: Tensor[f16, K, N]) -> Tensor[f16, M, N]:
    return chain(a @ b)  # type: ignore[no-any-return]


def added(ids: Tensor[i64, M], x: Tensor[f32, M, N]) -> Tensor[f32, K, N]:
    return kgen.scatter_add(K, ids, chain(x))


@pytest.mark.parametrize(
    "function",
    [pointwise, exchanged, transposed, taken, found, row, column, total, product, added],
    ids=lambda f: f.__name__,
)
def test_thousands_of_operations(function: Callable[..., Any]) -> None:
    operator = kgen.operator(function)
    names = operator.definition.graphs[0].dims
    text = operator.source(dict.fromkeys(names, 8), leading=(8,) if function in (pointwise, taken, found) else ())
    assert text.count("\n  const ") >= (0 if function is transposed else LONG // 2)


@pytest.mark.parametrize("count", [16, 40])
def test_many_tensors(count: int) -> None:
    operator = kgen.KernelOperator(weighted_sum_of(count))
    tensors = [torch.full((37,), float(k), dtype=torch.float16) for k in range(count)]
    assert torch.equal(operator(*tensors), sum(tensors))
