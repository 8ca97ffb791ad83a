"""Attention on torch tensors in the shapes that models have them, by the operators of kgen.ops.attention."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal

from kgen.dsl.errors import ArgumentError
from kgen.ops.attention.heads import Mask, variant
from kgen.runtime.operator import KernelOperator

if TYPE_CHECKING:
    from torch import Tensor

_UNBOUNDED = 2**30


@functools.cache
def _operator(mask: Mask, bias: bool, softcap: bool, lse: bool) -> KernelOperator:
    return KernelOperator(variant(mask, bias=bias, softcap=softcap, lse=lse))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool | Literal["upper_left", "lower_right"] = False,
    window: tuple[int | None, int | None] | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    layout: Literal["BHND", "BNHD"] = "BHND",
    lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q @ k.T + bias) @ v, as torch's scaled_dot_product_attention; f16 and bf16, sums in f32.

    q is [B, H, M, D], k [B, K, N, D] and v [B, K, N, E], where H is a multiple of K: each head of keys and values serves H / K
    of queries; with layout "BNHD" heads are the third axis. Tensors may have any strides: nothing is copied. The result has q's
    layout, [B, H, M, E]. `causal` leaves row i the columns j <= i, as torch does ("upper_left", or True), or j <= i + N - M
    ("lower_right": the last row sees all); `window` those from i - left to i + right, counted from the same diagonal, None for
    no bound. `bias` is added to the scores, and broadcasts to [B, H, M, N]. `softcap` bounds scores before both:
    softcap * tanh(score / softcap). `scale` is 1 / sqrt(D) unless given. With `lse` the second result is [B, H, M], f32: the
    logarithm of the sum of the scores' exponentials. A row that is left no column is 0, its lse -infinity.

    Raises ArgumentError where shapes do not fit.
    """
    if layout not in ("BHND", "BNHD"):
        raise ArgumentError(f"attention: layout {layout!r}; expected BHND or BNHD")
    if causal not in (False, True, "upper_left", "lower_right"):
        raise ArgumentError(f"attention: causal is {causal!r}; expected True, False, upper_left or lower_right")
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if {q.ndim, k.ndim, v.ndim} != {4}:
        raise ArgumentError(f"attention: {shapes}; expected four axes each: batch, heads, rows, columns")
    if layout == "BNHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    (B, H, M, D), (K, N) = q.shape, k.shape[1:3]
    if K == 0 or H % K:
        raise ArgumentError(f"attention: {shapes}; expected a multiple of {K} heads of q, as k has {K}")
    left, right = window if window is not None else (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    mask: Mask = "window" if left is not None else "full" if right is None else "causal" if right == 0 else "window"
    numbers: dict[str, float] = {"scale": scale if scale is not None else 1 / math.sqrt(max(D, 1))}
    if softcap is not None:
        numbers["softcap"] = softcap
    if mask != "full":
        numbers["shift"] = N - M if causal == "lower_right" else 0
    if mask == "window":
        numbers |= {"left": _UNBOUNDED if left is None else left, "right": _UNBOUNDED if right is None else right}
    operands = [q.unflatten(1, (K, H // K)), k.unsqueeze(2), v.unsqueeze(2)]
    if bias is not None:
        operands.append(bias.expand(B, H, M, N).unflatten(1, (K, H // K)))
    operator = _operator(mask, bias is not None, softcap is not None, lse)
    if layout == "BNHD":
        out = q.new_empty(B, M, H, v.shape[-1])
        given = out.transpose(1, 2).unflatten(1, (K, H // K))
        if not lse:
            operator(*operands, out=given, **numbers)
            return out
        from torch import float32

        sums = q.new_empty((B, K, H // K, M), dtype=float32)
        operator(*operands, out=(given, sums), **numbers)
        return out, sums.flatten(1, 2)
    found = operator(*operands, **numbers)
    return tuple(x.flatten(1, 2) for x in found) if lse else found.flatten(1, 2)
