"""The numbers of operators: as wide as what is computed with them, within their range, of any kind that Python calls a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kgen
from kgen import (
    ArgumentError,
    DefinitionError,
    EmulatorError,
    KgenError,
    Number,
    Tensor,
    cast,
    dims,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
)
from kgen.dsl.functions import dropout
from kgen.dsl.types import DType
from kgen.numerics.dtypes import torch_dtype
from kgen.numerics.reference import evaluate
from kgen.ops import operators

M, N, K = dims("M N K")
X = torch.linspace(-2, 2, 33, dtype=torch.float64)


@pytest.mark.parametrize("name", operators())
def test_numbers_are_as_wide_as_the_computation(name: str) -> None:
    for graph in operators()[name].graphs:
        floats = [s.dtype for s in graph.inputs if s.dtype.is_float]
        wide = bool(floats) and all(t is f64 for t in floats)
        for scalar in graph.scalars:
            assert not scalar.dtype.is_float or scalar.dtype is (f64 if wide else f32), graph.inputs


def test_numbers_beside_f64_are_exact_in_it() -> None:
    assert torch.equal(kgen.weighted_sum(X, X, 0.1, 0.2), 0.1 * X + 0.2 * X)
    rows, one = X.reshape(1, -1) * 1e-30, torch.ones(33, dtype=torch.float64)
    want = torch.nn.functional.layer_norm(rows, (33,), eps=1e-50)
    torch.testing.assert_close(kgen.layer_norm(rows, one, 0 * one, eps=1e-50), want)
    torch.testing.assert_close(kgen.elu(X, 1e300), torch.where(X > 0, X, 1e300 * torch.expm1(X)))


def test_a_number_has_the_range_that_is_stated() -> None:
    for p in (0, 0.0, 1, np.float32(0.5)):
        kgen.dropout(X, p)
    for p in (2, -0.1, math.nan, math.inf):
        with pytest.raises(ArgumentError, match=r"dropout: p is .*; expected a float from 0 to 1"):
            kgen.dropout(X, p)

    def inner(x: Tensor[f32, ...]) -> Tensor[f32, ...]:
        return kgen.dropout(x, 1.5, 0, 0)  # type: ignore[no-any-return]

    with pytest.raises(DefinitionError, match=r"probability 1.5; expected one from 0 to 1"):
        kgen.operator(inner)


def test_every_probability_has_its_range() -> None:
    found = [s for op in operators().values() for s in op.graphs[0].scalars if s.name == "p"]
    assert len(found) >= 5
    assert all((s.low, s.high) == (0, 1) for s in found)


def own(x: Tensor[f32, ...], factor: Number[float, -1, 4] = 0.5, times: Number[int, 1, 3] = 2) -> Tensor[f32, ...]:
    return x * factor * times


def test_ranges_of_ones_own() -> None:
    run, x = kgen.operator(own), X.float()
    assert torch.equal(run(x), x)
    assert torch.equal(run(x, 4, np.int64(3)), x * 12)
    for given, message in (
        ((4.5,), "factor is 4.5; expected a float from -1 to 4"),
        ((1, 4), "times is 4.*from 1 to 3"),
    ):
        with pytest.raises(ArgumentError, match=message):
            run(x, *given)


def keyword_only(x: Tensor[f32, ...], *, s: float) -> Tensor[f32, ...]:
    return x * s


def wrong_default(x: Tensor[f32, ...], s: float = "1") -> Tensor[f32, ...]:  # type: ignore[assignment]
    return x * s


def default_out_of_range(x: Tensor[f32, ...], s: Number[float, 0, 1] = 2) -> Tensor[f32, ...]:
    return x * s


def by_zero(x: Tensor[i32, ...]) -> Tensor[i32, ...]:
    return x // 0


def remainder_by_zero(x: Tensor[i32, ...]) -> Tensor[i32, ...]:
    return x % 0


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: kgen.elu(X, 10**400), "within f64's range"),
    (lambda: kgen.elu(X.float(), 10**5000), "within f32's range"),
    (lambda: kgen.gelu.source(target=90, leading=8), "name of a GPU"),
    (lambda: kgen.operator(3), "made of a typed function"),  # type: ignore[call-overload]
    (lambda: kgen.operator(keyword_only), "behind a \\*"),
    (lambda: kgen.operator(wrong_default), "default of s is str '1'; expected a float"),
    (lambda: kgen.operator(default_out_of_range), "from 0 to 1"),
    (lambda: kgen.operator(None), "made of a typed function, got None"),
    (lambda: kgen.operator(by_zero), "floordiv of x: .* by 0"),
    (lambda: kgen.operator(remainder_by_zero), "mod of x: .* by 0"),
    (lambda: kgen.gelu.problem(leading=2.5), "integers"),
    (lambda: kgen.gelu.problem(leading=10**5000), "integers"),
    (lambda: kgen.gelu.problem(leading=8, dtype=torch.complex64), "complex64"),
    (lambda: kgen.gelu.problem(leading=8, dtype=16), "unknown dtype 16"),
    (lambda: Number[float, 2, 1], "least and the largest"),
    (lambda: kgen.dtype_var("T", 16), "16 is no dtype"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_no_number_or_no_definition(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(KgenError, match=message):
        call()


def test_quotients_by_nothing_are_nothing() -> None:
    def quotient(x: Tensor[i32, ...], y: Tensor[i32, ...]) -> tuple[Tensor[i32, ...], Tensor[i32, ...]]:
        return x // y, x % y

    divided = kgen.operator(quotient)
    x, y = (torch.tensor(values, dtype=torch.int32) for values in ([7, 7, 0], [2, 0, 0]))
    assert [z.tolist() for z in divided(x, y)] == [[3, 0, 0], [1, 0, 0]]
    assert [z.tolist() for z in evaluate(divided.definition.graphs[0], {"x": x, "y": y}, {})] == [[3, 0, 0], [1, 0, 0]]
    with pytest.raises(EmulatorError, match="division by zero, or of the least integer by -1"):
        divided(torch.tensor([-(2**31)], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32))


def test_dtypes_of_torch_are_dtypes() -> None:
    def half(x: Tensor[torch.float16, ...]) -> Tensor[torch.float16, ...]:
        return kgen.cast(x * 2, torch.float16)

    assert kgen.operator(half).problem(leading=8).operands[0].dtype is f16
    assert kgen.gelu.problem(leading=8, dtype=torch.float16) == kgen.gelu.problem(leading=8, dtype="f16")
    assert kgen.hgemm.problem(M=1, N=1, K=1, dtype=[torch.bfloat16]).operands[0].dtype.torch == "bfloat16"
    assert kgen.dtype_var("T", torch.float32, f16).choices == (f32, f16)


def test_sizes_of_numpy_are_sizes() -> None:
    assert kgen.gelu.problem(leading=np.int64(2)) == kgen.gelu.problem(leading=2)
    assert kgen.gelu.problem(leading=np.array([2, 3])) == kgen.gelu.problem(leading=(2, 3))
    assert kgen.hgemm.problem(M=np.int32(4), N=2, K=3) == kgen.hgemm.problem(M=4, N=2, K=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_logsumexp_of_infinities(dtype: torch.dtype) -> None:
    x = torch.zeros(6, 300, dtype=dtype)
    x[0], x[1, 7], x[2, :290], x[3, ::2], x[4, 5] = -math.inf, math.inf, -math.inf, -math.inf, math.nan
    for columns in (300, 7):
        want = torch.logsumexp(x[:, :columns].double(), -1)
        torch.testing.assert_close(
            kgen.logsumexp(x[:, :columns]).double(), want.to(dtype).double(), equal_nan=True, rtol=2e-3, atol=0
        )


@pytest.mark.parametrize("to", [i8, i32, i64], ids=str)
@pytest.mark.parametrize("of", [f16, f32, f64], ids=str)
def test_floats_to_integers_saturate(of: DType, to: DType) -> None:
    def whole(x):
        return cast(x, to)

    def product(x, y):
        return cast(x @ y, to)

    whole.__annotations__ = {"x": Tensor[of, ...], "return": Tensor[to, ...]}
    product.__annotations__ = {"x": Tensor[of, M, K], "y": Tensor[of, K, N], "return": Tensor[to, M, N]}
    largest = 2.0**12 if of is f16 else 2.0**100
    x = torch.tensor([largest, -largest, 127.9, 128.5, -128.9, -130.0, 1.5, -0.5]).to(torch_dtype(of))
    limits = torch.iinfo(torch_dtype(to))
    bounds = float(limits.min), float(limits.max)
    want = [limits.max if v >= bounds[1] else limits.min if v <= bounds[0] else int(v) for v in x.tolist()]
    assert kgen.operator(whole)(x).tolist() == want
    assert kgen.operator(product)(x[:, None], torch.ones(1, 1, dtype=x.dtype))[:, 0].tolist() == want
    if to is not i64:
        assert kgen.operator(whole)(torch.full((3,), math.nan, dtype=x.dtype)).tolist() == [0] * 3


@pytest.mark.parametrize("dtype", [i32, i64], ids=str)
def test_integers_are_divided_as_pythons(dtype: DType) -> None:
    def quotient(a, b):
        return a // b

    def remainder(a, b):
        return a % b

    def by_numbers(a):
        return a // 3 * 100 + a % 7 - a % -5

    for function, names in ((quotient, "ab"), (remainder, "ab"), (by_numbers, "a")):
        function.__annotations__ = dict.fromkeys((*names, "return"), Tensor[dtype, ...])
    a, b = (
        x.reshape(-1).to(torch_dtype(dtype))
        for x in torch.meshgrid(torch.arange(-9, 9), torch.arange(-9, 9), indexing="ij")
    )
    divisors = [y or 1 for y in b.tolist()]
    pairs = [*zip(a.tolist(), b.tolist(), divisors)]
    assert kgen.operator(quotient)(a, b).tolist() == [x // d if y else 0 for x, y, d in pairs]
    assert kgen.operator(remainder)(a, b).tolist() == [x % d if y else 0 for x, y, d in pairs]
    assert kgen.operator(by_numbers)(a).tolist() == [x // 3 * 100 + x % 7 - x % -5 for x in a.tolist()]


def test_a_stream_of_divided_numbers_is_that_of_the_quotients() -> None:
    def divided(x, seed=-7, offset=5):
        return dropout(x, 0.5, seed // 2, offset % -3)

    def given(x, seed=-4, offset=-1):
        return dropout(x, 0.5, seed, offset)

    for function in (divided, given):
        function.__annotations__ = {"x": Tensor[f32, ...], "seed": int, "offset": int, "return": Tensor[f32, ...]}
    x = torch.ones(1000)
    assert torch.equal(kgen.operator(divided)(x), kgen.operator(given)(x))
