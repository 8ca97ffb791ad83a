"""Sigmoid attention on torch tensors in the shapes that models have them, by the operators of kgen.ops.attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Union

from kgen.dsl.errors import ArgumentError, told_of
from kgen.ops.attention.problem import WIDEST, WIDEST_GRADIENT
from kgen.runtime.attention import of_no_keys
from kgen.runtime.attention_arguments import check_causal, check_operands, expanded, sides
from kgen.runtime.variants import call_by_layout, mask_of

if TYPE_CHECKING:
    from torch import Tensor


def sigmoid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool | Literal["upper_left", "lower_right"] = False,
    window: tuple[int | None, int | None] | None = None,
    bias: Union[float, Tensor] = 0.0,
    scale: float | None = None,
    layout: Literal["BHND", "BNHD"] = "BHND",
) -> Tensor:
    """sigmoid(scale * q @ k.T + bias) @ v: a row's weights are not divided by their sum. f16 and bf16, sums in f32.

    q is [B, H, M, D], k [B, K, N, D] and v [B, K, N, E], where H is a multiple of K, with layout "BNHD" heads are the third axis;
    they, `causal`, `window`, `scale` and the result are as in `kgen.attention`. `bias` is added to all scores: a number, mostly
    about -log(N), by which the weights of a row come to about 1; or a tensor of q's dtype or f32 that broadcasts to
    [B, H, M, N]. A weight that a mask hides is 0, and so is a row that is left no column. D and E are at most 1024, where a
    gradient is wanted 512. Gradients take no memory of scores, but for that of a tensor `bias`.

    Raises ArgumentError where shapes, dtypes or bounds do not fit.
    """
    import torch

    check_causal("sigmoid_attention", causal)
    check_operands("sigmoid_attention", q, k, v, layout, WIDEST)
    if layout == "BNHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    (B, H, M, D), (K, N), E = q.shape, k.shape[1:3], v.shape[-1]
    G = H // max(K, 1)
    left, right = sides("sigmoid_attention", causal, window)
    mask, numbers = mask_of(left, right, N - M if causal == "lower_right" else 0)
    numbers["scale"] = scale if scale is not None else 1 / math.sqrt(max(D, 1))
    operands = [q.unflatten(1, (K, G)), k.unsqueeze(2), v.unsqueeze(2)]
    of_bias: Any = False
    if isinstance(bias, torch.Tensor):
        whole = expanded("sigmoid_attention", bias, q, (B, H, M, N), "float32")
        operands.append(whole.unflatten(1, (K, G)))
        of_bias = "f32" if bias.dtype is torch.float32 else True
    elif isinstance(bias, (int, float)):
        numbers["bias"] = bias
    else:
        raise ArgumentError(f"sigmoid_attention: bias is {told_of(bias)}; expected a number or a torch tensor")
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    if differentiated and max(D, E) > WIDEST_GRADIENT:
        raise ArgumentError(
            f"sigmoid_attention: a gradient of heads of {max(D, E)} columns; expected at most {WIDEST_GRADIENT}, or a call "
            f"under torch.no_grad()"
        )
    shape = (B, H, M, E) if layout == "BHND" else (B, M, H, E)
    if N == 0:
        empty = of_no_keys(q.new_zeros(shape), None, q, (B, H, M), False, operands if differentiated else ())
        assert isinstance(empty, torch.Tensor)
        return empty
    made = None if layout == "BHND" or differentiated else q.new_empty(shape)
    return call_by_layout(mask, operands, numbers, layout, made, sigmoid=True, bias=of_bias)[0]
