"""Sizes and dtypes: arithmetic, its value, its text, and what they refuse."""

from __future__ import annotations

import itertools
import operator
import pickle

import pytest

from kgen.dsl.errors import DefinitionError
from kgen.dsl.size import Dim, Size, ceil_div, dims, evaluate, maximum, minimum, symbols_of, values_of
from kgen.dsl.types import (
    DTYPES,
    DType,
    bf16,
    bool_,
    compute_dtype,
    dtype,
    dtype_var,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    promote,
    tf32,
)

M, N, K = dims("M N K")


@pytest.mark.parametrize(
    ("size", "value", "text"),
    [
        (M + 3, 13, "(M + 3)"),
        (3 + M, 13, "(3 + M)"),
        (M - N, 7, "(M - N)"),
        (M * N, 30, "(M * N)"),
        (2 * M, 20, "(2 * M)"),
        (M // N, 3, "(M // N)"),
        (M % N, 1, "(M % N)"),
        (ceil_div(M, 4), 3, "ceil_div(M, 4)"),
        (minimum(M, N), 3, "(M min N)"),
        (maximum(M, 4), 10, "(M max 4)"),
        (M, 10, "M"),
        (7, 7, "7"),
    ],
)
def test_values_and_text(size: Size, value: int, text: str) -> None:
    symbols = {"M": 10, "N": 3}
    assert evaluate(size, symbols) == value
    assert values_of(size, symbols) == value
    assert repr(size) == text
    assert symbols_of(size) == {name for name in "MN" if name in text}


def test_arithmetic_of_integers_stays_an_integer() -> None:
    assert ceil_div(7, 2) == 4
    assert minimum(3, 5) == 3
    assert maximum(3, 5) == 5
    assert (M * 1, 1 * M, M // 1, M % 1) == (M, M, M, 0)


def test_ceil_div_is_the_least_count_that_covers() -> None:
    for n, d in itertools.product(range(40), range(1, 9)):
        assert evaluate(ceil_div(M, d), {"M": n}) * d >= n > (evaluate(ceil_div(M, d), {"M": n}) - 1) * d


def test_sizes_are_values() -> None:
    assert Dim("M") * 2 + 1 == M * 2 + 1
    assert hash(M * 2) == hash(Dim("M") * 2)
    assert M != N
    assert pickle.loads(pickle.dumps(M * N + 1)) == M * N + 1
    assert repr(M * 2) == "(M * 2)"
    assert dims("A, B C") == (Dim("A"), Dim("B"), Dim("C"))


def test_a_size_without_its_symbol() -> None:
    with pytest.raises(DefinitionError, match="no value for dimension N; known: M"):
        evaluate(M + N, {"M": 1})
    with pytest.raises(DefinitionError, match="known: none"):
        evaluate(M, {})


def test_nested_sizes() -> None:
    """Every operation within every other, on both sides, as `evaluate` has it."""
    ops = (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, ceil_div, minimum, maximum,
    )  # fmt: skip
    nested = [outer(inner(M + 5, N), K) for outer in ops for inner in ops]
    nested += [
        outer(M * 1000, inner(N, K)) for outer in ops for inner in ops if inner not in (operator.sub, operator.mod)
    ]
    sizes = (tuple(nested), (), (N, 7))
    for symbols in ({"M": 10, "N": 3, "K": 2}, {"M": 1, "N": 5, "K": 1}, {"M": 4096, "N": 129, "K": 64}):
        assert values_of(sizes, symbols) == (tuple(evaluate(size, symbols) for size in nested), (), (symbols["N"], 7))
    with pytest.raises(DefinitionError, match="no value for dimension K; known: M, N"):
        values_of(sizes, {"M": 1, "N": 1})


@pytest.mark.parametrize("name", ["", "2M", "M-N", "a b", "M.N"])
def test_names_of_dimensions_are_identifiers(name: str) -> None:
    with pytest.raises(DefinitionError, match="must be an identifier"):
        Dim(name)


WIDTHS = {f64: 8, f32: 4, tf32: 4, f16: 2, bf16: 2, e4m3: 1, e5m2: 1, i64: 8, i32: 4, i8: 1, bool_: 1}


def test_dtypes_by_name_and_width() -> None:
    assert set(WIDTHS) == set(DTYPES.values())
    for known, width in WIDTHS.items():
        assert known.bytes == width
        assert dtype(known.name) is known
        assert repr(known) == known.name
        assert pickle.loads(pickle.dumps(known)) is known
    with pytest.raises(DefinitionError, match=r"unknown dtype 'f8'; expected one of f64, f32"):
        dtype("f8")


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (f16, f16, f32),
        (f16, bf16, f32),
        (f32, f64, f64),
        (i8, i8, i32),
        (i8, i64, i64),
        (i64, f16, f32),
        (bool_, i8, i32),
        (bool_, bool_, bool_),
        (tf32, e4m3, f32),
    ],
)
def test_promotion(a: DType, b: DType, result: DType) -> None:
    assert promote(a, b) is result
    assert promote(b, a) is result


def test_dtypes_arithmetic_is_done_in() -> None:
    assert [compute_dtype(t).name for t in (f16, bf16, tf32, e4m3, f64, i8, i32, i64, bool_)] == (
        ["f32", "f32", "f32", "f32", "f64", "i32", "i32", "i64", "bool"]
    )


def test_a_dtype_variable_needs_choices() -> None:
    assert repr(dtype_var("T", f16)) == "T"
    with pytest.raises(DefinitionError, match="dtype variable T needs at least one dtype"):
        dtype_var("T")
