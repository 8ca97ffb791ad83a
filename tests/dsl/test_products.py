"""The factors of a product, with scales of their blocks; and what is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Location, Shape
from kgen.dsl.indexing import repeat
from kgen.dsl.product import Factor, Scale, blocked, factors, multiplied
from kgen.dsl.size import Size, ceil_div, dims
from kgen.dsl.types import DType, e4m3, e5m2, f16, f32

M, N, K = dims("M N K")


def given(name: str, dtype: DType, *shape: Size) -> Expr:
    return Expr("input", (), dtype, Shape(shape), name, Location("here.py", 1))


A, B = given("a", e4m3, M, K), given("b", e4m3, N, K)
S, T = given("s", f32, M, ceil_div(K, 128)), given("t", f32, ceil_div(N, 64), ceil_div(K, 128))


def test_scales_by_the_products_rows_and_columns() -> None:
    product = (A * repeat(S, 128, K)) @ (repeat(repeat(T, 64, N, axis=-2), 128, K) * B).T
    assert factors(product) == (
        Factor("a", e4m3, False, Scale("s", 1, 128)),
        Factor("b", e4m3, True, Scale("t", 128, 64)),
    )
    assert blocked(product) == 128
    assert multiplied(product) is e4m3


def test_plain_factors() -> None:
    product = A @ B.T
    assert factors(product) == (Factor("a", e4m3, False), Factor("b", e4m3, True))
    assert (blocked(product), multiplied(product)) == (0, e4m3)


@pytest.mark.parametrize(
    ("a", "s", "count"),
    [
        (given("a", f16, M, K), S, 128),  # no fp8
        (given("a", e5m2, M, K), S, 128),  # another fp8 than b
        (A, given("s", f32, M, ceil_div(K, 64)), 64),  # blocks less deep than those of b
    ],
)
def test_what_is_not_summed_block_by_block(a: Expr, s: Expr, count: int) -> None:
    product = (a * repeat(s, count, K)) @ (B * repeat(repeat(T, 128, K), 64, N, axis=-2)).T
    assert blocked(product) == 0


@pytest.mark.parametrize(
    "scaled",
    [
        lambda: A * 2,
        lambda: A * given("s", f32, M, 1),
        lambda: A * repeat(given("s", f16, M, ceil_div(K, 128)), 128, K),
        lambda: (A + 1) * repeat(S, 128, K),
        lambda: A * repeat(S + 1, 128, K),
    ],
)
def test_what_is_no_factor(scaled: Callable[[], Expr]) -> None:
    left = scaled()
    assert factors(Expr("matmul", (left, B.T), f32, Shape((M, N)), f32)) is None


@pytest.mark.parametrize(
    ("repeated", "told"),
    [
        (lambda: repeat(S, 64, K), "expected the axis to have the size ceil_div(K, 64)"),
        (lambda: repeat(S, 128, K, axis=-2), "expected the axis to have the size ceil_div(K, 128)"),
        (lambda: repeat(S, 0, K), "0 times; expected a positive int"),
        (lambda: repeat(S, 128, K, axis=2), "expected one of its 2 named dimensions"),
        (lambda: repeat(3, 128, K), "repeat expects a tensor, got 3"),
    ],
)
def test_what_repeat_must_not_be(repeated: Callable[[], Expr], told: str) -> None:
    with pytest.raises(DefinitionError) as error:
        repeated()
    assert told in str(error.value)
