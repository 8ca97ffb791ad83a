"""Rotary position embeddings: each head's elements in pairs, rotated by an angle that grows with the position.

`x` is [..., S, H, D]: positions, heads, the elements of a head. The pairs are (i, i + D/2), the halves of a head, or, where
`interleaved` is in the name, neighbours (2i, 2i + 1). Heads before positions, [..., H, S, D], are the same by strides:
`kgen.rope(x.transpose(-3, -2), cos, sin, out=out.transpose(-3, -2))`.

Angles that are computed here are position * frequency, in f64: f32 holds an angle of 10^6 to 0.03 only. What remains after
whole turns are taken off is rounded to f32, so that cosine and sine are right to about 2^-22 at any position below 2^31.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.indexing import arange, size, take
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Sizes
from kgen.dsl.size import dims
from kgen.dsl.types import bf16, dtype_var, f16, f32, f64

S, H, D, P = dims("S H D P")
T = dtype_var("T", f16, bf16, f32)
#: What tables of cosines and sines are stored in.
C = dtype_var("C", f32, f16, bf16)

#: A sequence, and a batch of them, of a language model with 32 heads of 128; with P, the pairs of a head.
_SIZES: Sequence[Sizes] = ({"...": (1,), "S": 4096, "H": 32, "D": 128}, {"...": (8,), "S": 2048, "H": 32, "D": 128})
_of_heads = functools.partial(Operator, suites={"default": _SIZES})
_of_pairs = functools.partial(Operator, suites={"default": [{**sizes, "P": 64} for sizes in _SIZES]})


def _rotated(x: Expr, cos: Expr, sin: Expr) -> Expr:
    """The halves of a head rotated: (x1, x2) to (x1 cos - x2 sin, x2 cos + x1 sin)."""
    other = F.swap_halves(x)
    return x * cos + where(arange(D) // (size(D) // 2) == 0, -other, other) * sin


def _rotated_pairs(x: Expr, cos: Expr, sin: Expr) -> Expr:
    """Neighbours rotated."""
    other = F.swap_pairs(x)
    return x * cos + where(arange(D) % 2 == 0, -other, other) * sin


def _rows(values: Expr) -> Expr:
    """[S, D] or [S, P] as [S, 1, ...]: one row for all heads of a position."""
    return take(values, arange(S, 1), axis=0)


def _angle(frequency: Expr, start: int) -> Expr:
    """The angle at each position less whole turns, in f32."""
    angle = cast(arange(S, 1, 1) + start, f64) * frequency
    return cast(angle - F.round(angle * (0.5 / math.pi)) * (2 * math.pi), f32)


def _frequency(pair: Expr, base: float) -> Expr:
    """base ** (-2 * pair / D)."""
    return F.exp2(cast(pair, f64) * (-2.0 / cast(size(D), f64)) * F.log2(cast(base, f64)))


@_of_heads
def rope(x: Tensor[T, ..., S, H, D], cos: Tensor[C, S, D], sin: Tensor[C, S, D]) -> Tensor[T, ..., S, H, D]:
    """The halves of each head rotated by angles whose cosines and sines are tables [S, D], the second half as the first."""
    return _rotated(x, _rows(cos), _rows(sin))


@_of_heads
def rope_interleaved(x: Tensor[T, ..., S, H, D], cos: Tensor[C, S, D], sin: Tensor[C, S, D]) -> Tensor[T, ..., S, H, D]:
    """Neighbours of each head rotated by angles whose cosines and sines are tables [S, D], every value twice."""
    return _rotated_pairs(x, _rows(cos), _rows(sin))


@_of_pairs
def rope_compact(x: Tensor[T, ..., S, H, D], cos: Tensor[C, S, P], sin: Tensor[C, S, P]) -> Tensor[T, ..., S, H, D]:
    """As rope, by tables [S, D / 2] with one value for each pair."""
    pair = arange(D) % (size(D) // 2)
    return _rotated(x, take(_rows(cos), pair, axis=-1), take(_rows(sin), pair, axis=-1))


@_of_pairs
def rope_interleaved_compact(
    x: Tensor[T, ..., S, H, D], cos: Tensor[C, S, P], sin: Tensor[C, S, P]
) -> Tensor[T, ..., S, H, D]:
    """As rope_interleaved, by tables [S, D / 2] with one value for each pair."""
    pair = arange(D) // 2
    return _rotated_pairs(x, take(_rows(cos), pair, axis=-1), take(_rows(sin), pair, axis=-1))


@_of_pairs
def rope_frequencies(
    x: Tensor[T, ..., S, H, D], frequencies: Tensor[f64, P], start: int = 0
) -> Tensor[T, ..., S, H, D]:
    """The halves of each head rotated by (start + position) * frequency, with D / 2 frequencies in radians (any scaling)."""
    angle = _angle(take(frequencies, arange(D) % (size(D) // 2), axis=-1), start)
    return _rotated(x, F.cos(angle), F.sin(angle))


@_of_pairs
def rope_interleaved_frequencies(
    x: Tensor[T, ..., S, H, D], frequencies: Tensor[f64, P], start: int = 0
) -> Tensor[T, ..., S, H, D]:
    """As rope_frequencies, with neighbours for pairs."""
    angle = _angle(take(frequencies, arange(D) // 2, axis=-1), start)
    return _rotated_pairs(x, F.cos(angle), F.sin(angle))


@_of_heads
def rope_computed(x: Tensor[T, ..., S, H, D], base: float = 10000.0, start: int = 0) -> Tensor[T, ..., S, H, D]:
    """The halves of each head rotated by (start + position) * base ** (-2 i / D)."""
    angle = _angle(_frequency(arange(D) % (size(D) // 2), base), start)
    return _rotated(x, F.cos(angle), F.sin(angle))


@_of_heads
def rope_interleaved_computed(
    x: Tensor[T, ..., S, H, D], base: float = 10000.0, start: int = 0
) -> Tensor[T, ..., S, H, D]:
    """As rope_computed, with neighbours for pairs."""
    angle = _angle(_frequency(arange(D) // 2, base), start)
    return _rotated_pairs(x, F.cos(angle), F.sin(angle))


OPERATORS: tuple[Operator, ...] = tuple(member for member in dict(globals()).values() if isinstance(member, Operator))
