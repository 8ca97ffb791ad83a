"""The functions an operator's definition may use on traced tensors, under their usual names."""

from __future__ import annotations

import math
from collections.abc import Callable

from kgen.dsl.expr import Axes, Expr, Operand, apply, fault, reduction, scan, where
from kgen.dsl.indexing import exchange, random


def _unary(op: str, doc: str) -> Callable[[Operand], Expr]:
    def function(x: Operand) -> Expr:
        return apply(op, x)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = doc
    return function


exp = _unary("exp", "e to the x, element by element.")
exp2 = _unary("exp2", "2 to the x, element by element.")
expm1 = _unary("expm1", "exp(x) - 1, accurate near 0.")
log = _unary("log", "Natural logarithm.")
log2 = _unary("log2", "Logarithm to base 2.")
log1p = _unary("log1p", "log(1 + x), accurate near 0.")
sqrt = _unary("sqrt", "Square root.")
rsqrt = _unary("rsqrt", "1 / sqrt(x).")
tanh = _unary("tanh", "Hyperbolic tangent.")
erf = _unary("erf", "Error function.")
erfc = _unary(
    "erfc", "1 - erf(x), in f32 to a relative error of 2^-19 for x below 4 and 2^-17 beyond, where that is small."
)
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
sin = _unary("sin", "Sine of x in radians; exact range reduction at any size of x.")
cos = _unary("cos", "Cosine of x in radians; exact range reduction at any size of x.")
floor = _unary("floor", "The largest integer not above x, as a float.")
ceil = _unary("ceil", "The smallest integer not below x, as a float.")
round = _unary("round", "x rounded to the nearest integer, halves to even, as a float.")
reciprocal = _unary("reciprocal", "1 / x.")


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger of two, element by element; NaN where either is NaN."""
    return apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller of two, element by element; NaN where either is NaN."""
    return apply("minimum", a, b)


def pow(a: Operand, b: Operand) -> Expr:
    """a to the b, element by element; a float."""
    return apply("pow", a, b)


def atan2(y: Operand, x: Operand) -> Expr:
    """The angle of the point (x, y), from -pi to pi, element by element; the signs of zeros count, as in IEEE 754."""
    return apply("atan2", y, x)


def clamp(x: Expr, low: Operand, high: Operand) -> Expr:
    """x limited to [low, high]; NaN stays NaN."""
    return minimum(maximum(x, low), high)


# Reductions: over the last axis (-1), several such as (-3, -1), or all elements (None); reduced axes stay with size 1.


def sum(x: Expr, axis: Axes = -1) -> Expr:
    """The sum over an axis, several or all."""
    return reduction("sum", x, axis)


def mean(x: Expr, axis: Axes = -1) -> Expr:
    """The mean over an axis, several or all."""
    return reduction("mean", x, axis)


def amax(x: Expr, axis: Axes = -1) -> Expr:
    """The maximum over an axis, several or all; NaN where there is one."""
    return reduction("amax", x, axis)


def amin(x: Expr, axis: Axes = -1) -> Expr:
    """The minimum over an axis, several or all; NaN where there is one."""
    return reduction("amin", x, axis)


def argmax(x: Expr, axis: Axes = -1) -> Expr:
    """The index, as i64, of the first of the largest along the last axis, or in row-major order; NaN counts as the largest."""
    return reduction("argmax", x, axis)


# Scans: of each element and all before it along the last axis.


def cumsum(x: Expr) -> Expr:
    """The sum of the elements up to each one."""
    return scan("cumsum", x)


def cumprod(x: Expr) -> Expr:
    """The product of the elements up to each one, in any order: neighbours' product may overflow where one by one does not."""
    return scan("cumprod", x)


def logcumsumexp(x: Expr) -> Expr:
    """log(sum(exp(x))) of the elements up to each one, of any range."""
    return scan("logcumsumexp", x)


# Positions.


def swap_halves(x: Expr) -> Expr:
    """x with the first and the second half of its last axis exchanged; the axis has an even size."""
    return exchange(x, "halves")


def swap_pairs(x: Expr) -> Expr:
    """x with elements 2i and 2i + 1 of its last axis exchanged; the axis has an even size."""
    return exchange(x, "pairs")


def dropout(x: Expr, p: Operand, seed: Operand, offset: Operand) -> Expr:
    """0 with probability p, else x / (1 - p); see `random` for seed and offset."""
    if not isinstance(p, Expr) and not 0 <= p <= 1:
        raise fault(f"dropout with probability {p!r}; expected one from 0 to 1")
    # Finite where nothing is left, so that it may be multiplied with once for many elements.
    scale = where(p == 1.0, 0.0, 1.0 / (1.0 - p)) if isinstance(p, Expr) else 1.0 / (1.0 - p) if p < 1 else 0.0
    return where(random(x, seed, offset) < p, 0.0, x * scale)


# Activations. Each keeps NaN and has exact tails: no intermediate overflows where the result is finite.


def relu(x: Expr) -> Expr:
    """max(x, 0); NaN stays NaN."""
    return where(x < 0, 0.0, x)


def silu(x: Expr) -> Expr:
    """x * sigmoid(x), also called swish."""
    return x * sigmoid(x)


def gelu(x: Expr) -> Expr:
    """GELU by its tanh form (Hendrycks and Gimpel, 2016), written as x * sigmoid(2u): exact in both tails."""
    scale = 2 * math.sqrt(2 / math.pi)
    return x * sigmoid(x * (scale + scale * 0.044715 * (x * x)))


def gelu_erf(x: Expr) -> Expr:
    """GELU by the error function: x * Phi(x), with Phi(x) = erfc(-x / sqrt(2)) / 2: exact in both tails."""
    return 0.5 * x * erfc(x * -math.sqrt(0.5))


def quick_gelu(x: Expr) -> Expr:
    """x * sigmoid(1.702 x)."""
    return x * sigmoid(1.702 * x)


def elu(x: Expr, alpha: Operand = 1.0) -> Expr:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return where(x > 0, x, alpha * expm1(x))


def hardswish(x: Expr) -> Expr:
    """x * clamp(x + 3, 0, 6) / 6 (Howard et al., 2019)."""
    return x * clamp(x + 3, 0.0, 6.0) * (1 / 6)


def hardshrink(x: Expr, threshold: float = 0.5) -> Expr:
    """0 where |x| <= threshold, else x; NaN stays NaN."""
    return where(abs(x) <= threshold, 0.0, x)
