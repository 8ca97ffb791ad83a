"""Linear attention on torch tensors in the shapes that models have them, by the operators of kgen.ops.linear_attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from kgen.dsl.errors import ArgumentError, told_of
from kgen.ops.attention.problem import NARROW
from kgen.runtime.attention_arguments import check_operands

if TYPE_CHECKING:
    from torch import Tensor


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    *,
    scale: float | None = None,
    normalise: bool = False,
    layout: Literal["BHND", "BNHD"] = "BHND",
    state: Tensor | None = None,
    return_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Row i of the result is the sum over j <= i of scale * (q[i] . k[j]) * exp(decay[j + 1] + ... + decay[i]) * v[j].

    q is [B, H, N, D], k [B, K, N, D] and v [B, K, N, E], f16 or bf16, where H is a multiple of K: each head of keys and values
    serves H / K of queries; with layout "BNHD" heads are the third axis. Tensors may have any strides: nothing is copied. The
    result has q's layout, [B, H, N, E]. `decay` are logarithms in f32 of what a row leaves of the rows before it, which count as
    at least -80 and at most 0: a number for each head, [H], or for each row of each head, [B, H, N] ([B, N, H] with "BNHD").
    `scale` is 1 / sqrt(D) unless given. With `normalise` each row is divided by the sum of its weights (what v of ones gives),
    and 0 where that is 0. States and sums are f32; within a chunk of rows weights are rounded to the dtype of v. D and E are at
    most 256. Gradients too take O(N) memory: each of those of q, k and v is linear attention.

    `state` is what rows before the first have left, f32 [B, H, D, E]: the sum of their multiples of k[j] and v[j], as the second
    result is with `return_state`, so that a sequence may come in parts. What it adds, and what becomes of it, are products by
    torch in f32, beside the kernel. With `normalise` there is none.

    Raises ArgumentError where shapes or dtypes do not fit.
    """
    check_operands("linear_attention", q, k, v, layout, NARROW)
    if layout == "BNHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    (B, H, N, D), (K, M), E = q.shape, k.shape[1:3], v.shape[-1]
    if N != M:
        raise ArgumentError(f"linear_attention: q has {N} rows and k {M}; expected as many")
    group = H // max(K, 1)
    k, v = (x.unsqueeze(2).expand(B, K, group, N, -1) for x in (k, v))
    falls = None if decay is None else _decay(decay, B, H, N, layout).unflatten(1, (K, group)).unsqueeze(-2)
    operands = (q.unflatten(1, (K, group)), k, v, falls)
    factor = scale if scale is not None else 1 / math.sqrt(max(D, 1))
    from kgen.runtime.linear_gradients import attend, carried

    if state is not None:
        _check_state(state, (B, H, D, E))
        state = state.unflatten(1, (K, group))
    if normalise and (state is not None or return_state):
        raise ArgumentError(
            "linear_attention: normalise with a state; expected either, as the weights' sum has no state"
        )
    result = attend(*operands, factor, normalise or state is not None)
    if normalise:
        ones = v.new_ones(1).expand(B, K, group, N, 1)
        sums = attend(*operands[:2], ones, operands[3], factor, normalise)
        result = (result / sums).masked_fill(sums == 0, 0).to(q.dtype)
    left = None
    if state is not None or return_state:
        added, left = carried(*operands, factor, state, return_state)
        result = result if added is None else (result + added).to(q.dtype)
    result = result.reshape(B, H, N, E)
    result = result.transpose(1, 2) if layout == "BNHD" else result
    return result if left is None else (result, left.reshape(B, H, D, E))


def _check_state(state: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ArgumentError where a state does not have the shape, in float32."""
    import torch

    if not isinstance(state, torch.Tensor) or state.dtype is not torch.float32 or state.shape != shape:
        is_one = isinstance(state, torch.Tensor)
        told = f"{state.dtype} {list(state.shape)}" if is_one else f"{type(state).__name__} {told_of(state)}"
        raise ArgumentError(f"linear_attention: state is {told}; expected torch.float32 {list(shape)}, [B, H, D, E]")


def _decay(decay: Tensor, B: int, H: int, N: int, layout: str) -> Tensor:
    """Decay as [B, H, N]. Raises ArgumentError where it is none."""
    import torch

    if not isinstance(decay, torch.Tensor) or decay.dtype is not torch.float32:
        told = f"{decay.dtype}" if isinstance(decay, torch.Tensor) else f"{type(decay).__name__} {told_of(decay)}"
        raise ArgumentError(f"linear_attention: decay is {told}; expected a tensor of float32")
    if decay.shape == (H,):
        return decay[:, None].expand(B, H, N)
    if layout == "BNHD" and decay.ndim == 3:
        decay = decay.transpose(1, 2)
    if decay.shape != (B, H, N):
        rows = "[B, N, H]" if layout == "BNHD" else "[B, H, N]"
        raise ArgumentError(
            f"linear_attention: decay {list(decay.shape)} as BHN; expected {[H]}, or {rows} with {[B, H, N]} as BHN"
        )
    return decay
