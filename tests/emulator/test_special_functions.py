"""The shorter functions of templates/common/special.cuh keep to the relative errors that they state, tails included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from emulated_kernels import aligned, make, read, write

from kgen import emulator
from kgen.codegen.library import functions_used

BODY = """
{functions}
extern "C" __global__ void __launch_bounds__(128) kernel(const float* x, float* y, int n) {{
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = {value};
}}
"""


def evaluated(name: str, x: np.ndarray, value: str = "") -> np.ndarray:
    x, y = aligned(x.astype(np.float32)), aligned(np.zeros(len(x), np.float32))
    body = BODY.format(functions=functions_used("common", f"{name}("), value=value or f"{name}(x[i])")
    emulator.compile(make(body)).launch([read(x), write(y), len(x)], ((len(x) + 127) // 128, 1, 1))
    return y.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "function", "low", "high", "power"),
    [
        ("erfc_approximate", math.erfc, -8, 1, -21),
        ("erfc_approximate", math.erfc, 1, 4, -19),
        ("erfc_approximate", math.erfc, 4, 9, -17),
        ("erfc_short", math.erfc, -8, 4.3, -16),
        ("erfc_short", math.erfc, 4.3, 9, -12),
        ("expm1_short", math.expm1, -30, 30, -18),
        ("expm1_short", math.expm1, -0.13, 0.13, -18),
        ("expm1_short", math.expm1, -1e-6, 1e-6, -22),
        ("tanh_short", math.tanh, -100, 100, -20),
        ("tanh_short", math.tanh, -0.3, 0.3, -20),
        ("tanh_short", math.tanh, -1e-6, 1e-6, -22),
    ],
)
def test_relative_errors(name: str, function, low: float, high: float, power: int) -> None:
    x = np.linspace(low, high, 20001).astype(np.float32)
    expected = np.array([function(float(v)) for v in x])
    here = expected != 0
    error = np.abs(evaluated(name, x) - expected)[here] / np.abs(expected)[here]
    assert error.max() <= 2.0**power


@pytest.mark.parametrize(
    ("name", "ends"),
    [("erfc_approximate", (2, 0)), ("erfc_short", (2, 0)), ("expm1_short", (-1, math.inf)), ("tanh_short", (-1, 1))],
)
def test_ends(name: str, ends: tuple[float, float]) -> None:
    low, high, nan, zero = evaluated(name, np.array([-math.inf, math.inf, math.nan, -0.0]))
    assert (low, high) == ends
    assert math.isnan(nan)
    assert zero == pytest.approx(0 if name in ("expm1_short", "tanh_short") else 1, abs=0, rel=2**-16)


def test_a_short_reciprocal_has_the_digits_of_a_division() -> None:
    x = np.exp2(np.linspace(-125.5, 125.5, 20001)).astype(np.float32)
    assert np.array_equal(evaluated("reciprocal_short", x), np.float32(1) / x)
    assert math.isnan(evaluated("reciprocal_short", np.array([math.nan]))[0])


@pytest.mark.parametrize("divisor", [1, 3, 7, 12, 49, 175, 511, 1000, 262143])
def test_a_short_division_has_a_divisions_digits(divisor: int) -> None:
    x = np.concatenate([np.exp2(np.linspace(-100, 127.9, 20001)), [0, math.inf, -math.inf]]).astype(np.float32)
    x[::2] *= -1
    assert np.array_equal(evaluated("divide_short", x, f"divide_short(x[i], {divisor}.0f)"), x / np.float32(divisor))
    assert math.isnan(evaluated("divide_short", np.array([math.nan]), f"divide_short(x[i], {divisor}.0f)")[0])
