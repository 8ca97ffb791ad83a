"""Expressions as C++: the text of a few to the letter, literals that are exact, and every operation through NVRTC."""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable

import pytest

from kgen.codegen.expression import Argument, convert, literal, pointwise_function
from kgen.codegen.library import functions_used, namespace_ptx
from kgen.codegen.source import Launch, Source
from kgen.dsl import functions as F
from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Location, Shape, cast, where
from kgen.dsl.ops import FLOAT_FUNCTIONS
from kgen.dsl.target import sm
from kgen.dsl.types import DTYPES, DType, bf16, bool_, e4m3, f16, f32, f64, i8, i32, i64
from kgen.gpu.compile import compile as nvrtc

HERE = Location("user.py", 7)


def leaf(name: str, dtype: DType) -> Expr:
    return Expr("input", (), dtype, Shape(), name)


def function_of(leaves: list[Expr], results: list[Expr], outputs: list[DType], fast: bool = False) -> str:
    return pointwise_function("f", [Argument(x, x.attr, x.dtype) for x in leaves], results, outputs, fast)


def statements(text: str) -> list[str]:
    """The lines of a function's body without `#line`."""
    return [line.strip() for line in text.splitlines()[1:-1] if not line.startswith("#line")]


X, Y, D, N, B, H = leaf("x", f32), leaf("y", f16), leaf("d", f64), leaf("n", i32), leaf("b", bool_), leaf("h", bf16)


def test_a_function_to_the_letter() -> None:
    scaled = Expr("mul", (X, Y), f32, Shape(), where=HERE)
    result = Expr("sigmoid", (scaled,), f32, Shape(), where=Location("other.py", 9))
    assert function_of([X, Y], [result, scaled], [f16, f32]) == (
        "__device__ __forceinline__ void f(float x, __half y, __half& result0, float& result1) {\n"
        '#line 7 "user.py"\n'
        "  const float v0 = x * static_cast<float>(y);\n"
        '#line 9 "other.py"\n'
        "  const float v1 = 1.0f / (1.0f + expf(-v0));\n"
        "  result0 = static_cast<__half>(v1);\n"
        "  result1 = v0;\n"
        "}\n"
    )


def test_lines_lead_back_to_the_users_file() -> None:
    def expression() -> Expr:
        product = X * 2
        return product + 1

    line = inspect.getsourcelines(expression)[1]
    text = function_of([X], [expression()], [f32])
    assert f'#line {line + 1} "tests/codegen/test_expression.py"\n  const float v0 = x * 2.0f;' in text
    assert f'#line {line + 2} "tests/codegen/test_expression.py"\n  const float v1 = v0 + 1.0f;' in text


def test_statements_of_one_line_share_a_directive_and_a_shared_value_is_computed_once() -> None:
    shared = Expr("exp", (X,), f32, Shape(), where=HERE)
    twice = Expr("mul", (shared, shared), f32, Shape(), where=HERE)
    text = function_of([X], [twice], [f32])
    assert text.count("#line") == 1
    assert statements(text) == ["const float v0 = expf(x);", "const float v1 = v0 * v0;", "result0 = v1;"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: F.exp(X), "ptx::exp_approximate(x)"),
        (lambda: F.sigmoid(X), "ptx::sigmoid_approximate(x)"),
        (lambda: F.erfc(X), "erfc_short(x)"),
        (lambda: F.erfc(D), "erfc(d)"),
        (lambda: F.expm1(X), "expm1_short(x)"),
        (lambda: F.expm1(D), "expm1(d)"),
        (lambda: F.tanh(X), "tanh_short(x)"),
        (lambda: F.tanh(D), "tanh(d)"),
        (lambda: X / 4, "x * 0.25f"),
        (lambda: X / 30, "x * 0.03333333333333333f"),
        (lambda: X / 1e-39, "x / 1e-39f"),
        (lambda: X / X, "x / x"),
        (lambda: D / 30, "d / 30.0"),
        (lambda: F.exp(D), "exp(d)"),
        (lambda: F.sigmoid(D), "1.0 / (1.0 + exp(-d))"),
        (lambda: F.sin(X), "sinf(x)"),
        (lambda: F.exp2(X), "ptx::exp2_approximate(x)"),
        (lambda: F.reciprocal(X), "ptx::reciprocal_approximate(x)"),
        (lambda: F.reciprocal(D), "1.0 / d"),
    ],
)
def test_fast_functions_are_f32s_alone(make: Callable[[], Expr], told: str) -> None:
    result = make()
    fast = function_of([X, D], [result], [result.dtype], fast=True)
    assert statements(fast)[0] == f"const {result.dtype.ctype} v0 = {told};"
    precise = function_of([X, D], [result], [result.dtype], fast=False)
    assert "__" not in precise.partition("{")[2]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: X + N, "x + static_cast<float>(n)"),
        (lambda: N + 1, "n + 1"),
        (lambda: N / 2, "static_cast<float>(n) / 2.0f"),
        (lambda: D * Y, "d * static_cast<double>(static_cast<float>(y))"),
        (lambda: F.maximum(X, 0), "x > 0.0f || x != x ? x : 0.0f"),
        (lambda: F.minimum(N, 3), "n < 3 ? n : 3"),
        (lambda: abs(N), "n < 0 ? -n : n"),
        (lambda: abs(X), "fabsf(x)"),
        (lambda: -Y, "-static_cast<float>(y)"),
        (lambda: F.round(X), "rintf(x)"),
        (lambda: F.pow(X, 2), "powf(x, 2.0f)"),
        (lambda: where(B, X, 1), "b ? x : 1.0f"),
        (lambda: ~B, "!b"),
        (lambda: B & B, "b && b"),
        (lambda: N >= X, "static_cast<float>(n) >= x"),
        (lambda: N == 1, "n == 1"),
        (lambda: cast(X, f16), "static_cast<__half>(x)"),
        (lambda: cast(B, f32), "static_cast<float>(b)"),
        (lambda: cast(X, bool_), "x != 0"),
        (lambda: cast(Y, i32), "__float2int_rz(static_cast<float>(y))"),
        (lambda: cast(N, e4m3), "static_cast<__nv_fp8_e4m3>(static_cast<float>(n))"),
    ],
)
def test_operations(make: Callable[[], Expr], told: str) -> None:
    result = make()
    text = function_of([X, Y, D, N, B], [result], [result.dtype])
    assert statements(text)[0] == f"const {result.dtype.ctype} v0 = {told};"


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1, f32, "1.0f"),
        (0.1, f32, "0.1f"),
        (0.1, f64, "0.1"),
        (1e30, f32, "1e+30f"),
        (1e22, f64, "1e+22"),
        (-0.0, f32, "-0.0f"),
        (math.inf, f32, "__int_as_float(0x7f800000)"),
        (-math.inf, f64, "-__longlong_as_double(0x7ff0000000000000LL)"),
        (math.nan, f32, "__int_as_float(0x7fc00000)"),
        (math.nan, f64, "__longlong_as_double(0x7ff8000000000000LL)"),
        (7, i32, "7"),
        (-7, i64, "-7LL"),
        (True, bool_, "true"),
        (False, bool_, "false"),
    ],
)
def test_literals(value: float, dtype: DType, text: str) -> None:
    assert literal(value, dtype) == text


def test_literals_are_exact() -> None:
    for value in (math.pi, 2 / 3, 2.0**-149, 3.4028234663852886e38, 0.044715, 1.5957691216057308, 5e-324, 1e16):
        assert float(literal(value, f64)) == value
        rounded = struct.unpack("f", struct.pack("f", value))[0]
        assert struct.unpack("f", struct.pack("f", float(literal(value, f32).rstrip("f"))))[0] == rounded


def test_conversions_go_through_f32_where_cuda_has_no_other_way() -> None:
    assert convert("v", f32, f32) == "v"
    assert convert("v", DTYPES["tf32"], f32) == "v"
    assert convert("v", f64, f16) == "static_cast<__half>(static_cast<float>(v))"
    assert convert("v", bf16, i32) == "__float2int_rz(static_cast<float>(v))"
    assert convert("v", e4m3, f64) == "static_cast<double>(static_cast<float>(v))"
    assert convert("v", i32, bool_) == "v != 0"
    assert convert("v", f16, bool_) == "static_cast<float>(v) != 0"


def test_floats_to_integers_saturate() -> None:
    assert convert("v", f32, i8) == "static_cast<signed char>(max(-128, min(127, __float2int_rz(v))))"
    assert convert("v", f64, i64) == "__double2ll_rz(v)"
    assert convert("v", i32, i8) == "static_cast<signed char>(v)"


def test_what_is_not_pointwise_is_refused() -> None:
    total = Expr("sum", (X,), f32, Shape(), -1, HERE)
    with pytest.raises(DefinitionError, match=r"user\.py:7: sum is not a pointwise operation"):
        function_of([X], [total], [f32])


def test_what_lies_behind_a_leaf_is_left_out() -> None:
    inner = F.exp(X)
    text = pointwise_function("f", [Argument(inner, "sum", f32)], [inner + 1], [f32], False)
    assert statements(text) == ["const float v0 = sum + 1.0f;", "result0 = v0;"]


@pytest.mark.parametrize("fast", [False, True])
def test_every_operation_of_every_dtype_compiles_without_a_remark(fast: bool) -> None:
    parts = []
    for i, t in enumerate(t for t in DTYPES.values() if t is not bool_):
        x, y, m = leaf("x", t), leaf("y", t), leaf("m", bool_)
        results = [
            x + y,
            x - y,
            x * y,
            x / y,
            -x,
            abs(x),
            F.maximum(x, y),
            F.minimum(x, 2),
            F.pow(x, 0.5),
            F.atan2(x, y),
        ]
        results += [
            where(m | ~(x < y), x, 3) == 1,
            cast(m, t),
            where(m & (x != 0), x, math.inf),
            cast(math.nan, f32) * x,
        ]
        results += [getattr(F, name)(x) for name in FLOAT_FUNCTIONS]
        results += [cast(x, other) for other in DTYPES.values()]
        arguments = [Argument(leaf, leaf.attr, leaf.dtype) for leaf in (x, y, m)]
        parts.append(pointwise_function(f"f{i}", arguments, results, [r.dtype for r in results], fast))
        outputs = ", ".join(f"o.v{k}" for k in range(len(results)))
        members = " ".join(f"{r.dtype.ctype} v{k};" for k, r in enumerate(results))
        parts.append(f"struct O{i} {{ {members} }};\n")
        kernel = f"k{i}(O{i}* p, {t.ctype} x, {t.ctype} y, bool m)"
        parts.append(f'extern "C" __global__ void {kernel} {{ O{i} o; f{i}(x, y, m, {outputs}); *p = o; }}\n')
    body = "".join(parts)
    body = functions_used("common", body) + body
    source = Source(
        "",
        ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"),
        namespace_ptx(body),
        body,
        "k0",
        (),
        Launch((1, 1, 1), (1, 1, 1)),
        sm(89),
    )
    assert nvrtc(source, sm(89)).warnings == ()
