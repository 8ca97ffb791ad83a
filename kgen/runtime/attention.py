"""Attention on torch tensors in the shapes that models have them, by the operators of kgen.ops.attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from kgen.dsl.errors import ArgumentError
from kgen.ops.attention.problem import NARROW, WIDEST, WIDEST_GRADIENT
from kgen.runtime.attention_arguments import (
    check_causal,
    check_lengths,
    check_operands,
    check_sinks,
    check_tensor,
    expanded,
    sides,
    sums_in_half,
)
from kgen.runtime.fp8 import check_fp8, columns_of_values, of_heads
from kgen.runtime.pages import keys_of
from kgen.runtime.prefix import attend_to_prefix, check_prefix, keys_of_prefix, merged, seen_of_prefix
from kgen.runtime.variants import call_by_layout, call_variant, mask_of

if TYPE_CHECKING:
    from torch import Tensor


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
    lengths: Tensor | None = None,
    pages: Tensor | None = None,
    prefix: tuple[Tensor, Tensor] | Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    scales: tuple[Tensor, Tensor, Tensor] | None = None,
    dtype: Any = None,
    accumulate: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q @ k.T + bias) @ v, as torch's scaled_dot_product_attention; f16 and bf16, sums in f32.

    q is [B, H, M, D], k [B, K, N, D] and v [B, K, N, E], where H is a multiple of K: each head of keys and values serves H / K
    of queries; with layout "BNHD" heads are the third axis. Tensors may have any strides: nothing is copied. The result has q's
    layout, [B, H, M, E]. `causal` leaves row i the columns j <= i, as torch does ("upper_left", or True), or j <= i + N - M
    ("lower_right": the last row sees all); `window` those from i - left to i + right, counted from the same diagonal, None for
    no bound. `bias`, of q's dtype or f32, is added to the scores, and broadcasts to [B, H, M, N]; one that is bool leaves a row
    the columns where it is True, as torch's attn_mask. `softcap` bounds scores before both: softcap * tanh(score / softcap).
    `scale`, 0 or more, is 1 / sqrt(D) unless given. With `lse` the second result is [B, H, M], f32: the logarithm of the sum of
    the scores' exponentials. A row that is left no column is 0, its lse -infinity; so is every row where N is 0. D and E are at
    most 1024, where a gradient is wanted 512.
    Gradients take memory of numbers of rows, that of `bias` of scores too.

    `lengths`, int32 [B] on the device, are how many keys there are of each batch, of the N that there is memory for: what lies
    behind them may be anything, NaN too, and is not read for the most part. `causal` (which is then "lower_right") and `window`
    count from them: the last row sees the last key. Without gradients.

    `pages`, int32 [B, L] on the device: k is [P, S, K, D] and v [P, S, K, E], P pages of S keys, S a multiple of 8, and key j of
    batch b is k[pages[b, j // S], j % S]; N is L * S. What no key is in may be anything; a page that is not there is 0.

    `prefix` are keys and values that all batches have before their own: k_prefix [K, P, D] and v_prefix [K, P, E], or
    [P, K, D] with "BNHD"; with `pages` int32 [L], the pages that they are in. The result is that of both in one piece, over
    which `causal` (which is then "lower_right") and `window` count: the last row sees the last key. The prefix is read once, not
    once a batch, by products with the rows of all batches; of layout "BHND" with M above 1 torch copies these. Without
    gradients, bias, dropout or `scales`.

    `sinks`, floats [H], are one more score of each row of a head, which has no value (as in gpt-oss): its exponential is one of
    the sum that weights are divided by, and of the sum that `lse` is the logarithm of. A row that is left no column is 0, its lse
    the sink; a sink of -infinity is none. They have a gradient.

    With `dropout_p` above 0 each weight is 0 with this probability, and else divided by 1 - dropout_p, as in torch; lse is of
    all. Which ones follows from `seed`, an int, and a weight's place in [B, H, M, N] alone, in the gradient too: `kgen.random` of
    that shape, under that seed with offset 0, is below dropout_p there.

    With `scales` q, k and v are float8_e4m3fn, multiples of one f32 each, three tensors on the device: of one element, or one for
    each head, [H], [K] and [K]. Weights are rounded to e4m3 too. The result is of `dtype`, float16 or bfloat16. It takes Hopper;
    a mask, softcap and sinks, but no bias, lengths, pages or dropout; there is no gradient. Values are wanted as v[b, k, e, n], n
    contiguous and a multiple of 16: others are copied so, by torch.

    With `accumulate` torch.float16, where q, k and v are float16, both products are summed in f16, which tensor cores of GeForce
    GPUs do at twice the rate; the softmax stays f32. A row of q times one of k may not be beyond 65504, and errors grow with D
    and N. Gradients are summed in f32.

    Raises ArgumentError where shapes, dtypes or bounds do not fit.
    """
    check_causal("attention", causal)
    fp8 = scales is not None
    if fp8:
        check_fp8(q, k, v, dtype, {"bias": bias, "lengths": lengths, "pages": pages, "dropout_p": dropout_p or None})
    check_operands("attention", q, k, v, layout, NARROW if fp8 else WIDEST, pages, fp8)
    half_sums = sums_in_half(accumulate, q)
    if prefix is not None:
        others = {"bias": bias, "dropout_p": dropout_p or None, "scales": scales}
        others["accumulate"] = accumulate if half_sums else None
        check_prefix(k, v, prefix, layout, pages is not None, causal, others)
    if layout == "BNHD":
        q = q.transpose(1, 2)
        k, v = (k, v) if pages is not None else (k.transpose(1, 2), v.transpose(1, 2))
    keys, apart = keys_of(k, v, pages)
    page, K = (k.shape[1], k.shape[2]) if pages is not None else (0, k.shape[1])
    N = pages.shape[1] * page if pages is not None else k.shape[2]
    (B, H, M, D), E = q.shape, v.shape[-1]
    G = H // max(K, 1)
    if lengths is not None:
        check_lengths(lengths, B, causal)
    counted = causal == "lower_right" or lengths is not None or prefix is not None
    last = -M if lengths is not None else N - M  # of where the last row stands, less M, beside the keys' number
    left, right = sides("attention", causal, window)
    mask, numbers = mask_of(left, right, last if counted else 0)
    common = {"scale": scale if scale is not None else 1 / math.sqrt(max(D, 1))}
    if softcap is not None:
        common["softcap"] = softcap
    numbers |= common | apart
    dropped = not (isinstance(dropout_p, (int, float)) and dropout_p == 0)
    if dropped:
        if seed is None:
            raise ArgumentError(
                "attention: dropout_p without a seed; expected seed=, an int, another one for each call"
            )
        numbers |= {"dropout_p": dropout_p, "seed": seed}
    operands = [q.unflatten(1, (K, G)), *keys]
    if scales is not None:
        operands[2:] = [columns_of_values(v).unsqueeze(2), *of_heads(scales, B, K, G)]
    if bias is not None:
        check_tensor("bias", bias)
        operands.append(expanded("attention", bias, q, (B, H, M, N), "float32 or bool").unflatten(1, (K, G)))
    if sinks is not None:
        check_sinks("attention", sinks, H)
        operands.append(sinks.float().reshape(K, G, 1, 1).expand(B, K, G, 1, 1))
    if lengths is not None:
        of_batch = lengths[:, None, None, None, None]
        operands.append(of_batch if page else of_batch.expand(B, K, 1, 1, 1))
    shared, P = keys_of_prefix(prefix, k, v, layout)
    import torch

    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (*operands, *shared))
    if differentiated and (lengths is not None or page or shared):
        raise ArgumentError(
            "attention: a gradient with lengths, pages or a prefix; expected a call under torch.no_grad()"
        )
    if differentiated and fp8:
        raise ArgumentError("attention: a gradient of float8_e4m3fn; expected a call under torch.no_grad()")
    if differentiated and max(D, E) > WIDEST_GRADIENT:
        raise ArgumentError(
            f"attention: a gradient of heads of {max(D, E)} columns; expected at most {WIDEST_GRADIENT}, or a call under "
            f"torch.no_grad()"
        )
    if N == 0 and P == 0:
        shape = (B, H, M, E) if layout == "BHND" else (B, M, H, E)
        empty = q.new_zeros(shape, dtype=dtype if fp8 else q.dtype)
        return of_no_keys(empty, sinks, q, (B, H, M), lse, operands if differentiated else ())
    of_bias = {torch.float32: "f32", torch.bool: "bool"}.get(bias.dtype, True) if bias is not None else False
    options: dict[str, Any] = {"bias": of_bias, "softcap": softcap is not None, "lse": lse}
    options |= {"sinks": sinks is not None, "dropout": dropped, "fp8": fp8, "f16acc": half_sums}
    options |= {"lengths": lengths is not None, "page": page}
    if P:
        options |= {"partial": True, "lse": True}
        own: Any
        if N:
            own = [x.flatten(1, 2) for x in call_variant(mask, operands, numbers, **options)]
        else:
            own = of_no_keys(q.new_zeros((B, H, M, E), dtype=torch.float32), sinks, q, (B, H, M), True, ())
        seen = seen_of_prefix(q, P, N, lengths, left, right)
        return merged((own, attend_to_prefix(q, shared, K, seen, common | apart, page)), q, layout, lse)
    made = None
    if fp8 or not (layout == "BHND" or differentiated):
        shape = (B, H, M, E) if layout == "BHND" else (B, M, H, E)
        made = q.new_empty(shape, dtype=dtype if fp8 else q.dtype)
    results = call_by_layout(mask, operands, numbers, layout, made, **options)
    return (results[0], results[1]) if lse else results[0]


def of_no_keys(
    empty: Tensor, sinks: Tensor | None, q: Tensor, rows: tuple[int, ...], lse: bool, operands: Sequence[Tensor]
) -> Tensor | tuple[Tensor, Tensor]:
    """What attention to no key gives, or of no row: `empty`, and with `lse` the logarithm of the rows' sums of exponentials.

    The gradients of `operands`, where there are some, are 0: a step that has nothing to attend to is a step all the same.
    """
    import torch

    results = [empty]
    if lse and sinks is None:
        results.append(q.new_full(rows, -math.inf, dtype=torch.float32))
    elif lse and sinks is not None:
        results.append(sinks.float().unsqueeze(-1).expand(rows).contiguous())
    if operands:
        nothing = torch.stack([x[..., :0].float().sum() for x in operands if x.is_floating_point()]).sum()
        results = [x + nothing.to(x.dtype) for x in results]
    return (results[0], results[1]) if lse else results[0]
