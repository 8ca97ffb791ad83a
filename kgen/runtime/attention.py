"""Attention on torch tensors in the shapes that models have them, by the operators of kgen.ops.attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kgen.dsl.errors import ArgumentError, told_of
from kgen.ops.attention.heads import Mask, variant
from kgen.ops.attention.problem import NARROW, WIDEST, WIDEST_GRADIENT
from kgen.ops.attention.sigmoid import sigmoid_variant
from kgen.runtime.fp8 import check_fp8, columns_of_values, of_heads
from kgen.runtime.operator import KernelOperator
from kgen.runtime.pages import check_pages, rows_of_pages
from kgen.runtime.registry import constant_to_dynamo

if TYPE_CHECKING:
    from torch import Tensor

#: The furthest bound of a window: sums of it, a row and a shift are ints of 32 bits.
_UNBOUNDED = 2**30


@functools.cache
def operator_of(mask: Mask, sigmoid: bool = False, **options: Any) -> KernelOperator:
    """The operator of a variant."""
    return KernelOperator((sigmoid_variant if sigmoid else variant)(mask, **options))


@constant_to_dynamo
def _key_of(mask: Mask, **options: Any) -> str:
    return operator_of(mask, **options).key


def call_variant(
    mask: Mask, operands: Sequence[Tensor], numbers: Mapping[str, Any], out: Any = None, **options: Any
) -> Any:
    """A call of the operator of a variant, which Dynamo traces too."""
    import torch

    if not torch.compiler.is_dynamo_compiling():
        return operator_of(mask, **options)(*operands, out=out, **numbers)
    from kgen.runtime.autograd import traced

    return traced(_key_of(mask, **options), 2 if options.get("lse") else 1, tuple(operands), out, numbers)


def call_by_layout(
    mask: Mask,
    operands: Sequence[Tensor],
    numbers: Mapping[str, Any],
    layout: str,
    result: Tensor | None,
    **options: Any,
) -> list[Tensor]:
    """The results of a variant's call in the caller's layout: into the memory of `result`, unless it is None."""
    import torch

    heads = operands[0].shape[1:3]
    if result is None:
        found = call_variant(mask, operands, numbers, **options)
        result, *sums = (x.flatten(1, 2) for x in (found if options.get("lse") else (found,)))
        return [result.transpose(1, 2) if layout == "BNHD" else result, *sums]
    of_heads = result.transpose(1, 2) if layout == "BNHD" else result
    sums = [result.new_empty(of_heads.shape[:3], dtype=torch.float32)] if options.get("lse") else []
    call_variant(mask, operands, numbers, tuple(x.unflatten(1, heads) for x in (of_heads, *sums)), **options)
    return [result, *sums]


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
    if layout == "BNHD":
        q = q.transpose(1, 2)
    if pages is not None:  # [P, S, K, D], as pages have it
        N, K, page = pages.shape[1] * k.shape[1], k.shape[2], k.shape[1]
    else:
        k, v = (k.transpose(1, 2), v.transpose(1, 2)) if layout == "BNHD" else (k, v)
        N, K, page = k.shape[2], k.shape[1], 0
    (B, H, M, D), E = q.shape, v.shape[-1]
    G = H // max(K, 1)
    if lengths is not None:
        _check_lengths(lengths, B, causal)
        causal = causal and "lower_right"
    last = -M if lengths is not None else N - M  # of where the last row stands, less M, beside the keys' number
    counted = causal == "lower_right" or lengths is not None
    mask, numbers = mask_of("attention", causal, window, last if counted else 0)
    numbers["scale"] = scale if scale is not None else 1 / math.sqrt(max(D, 1))
    if softcap is not None:
        numbers["softcap"] = softcap
    dropped = not (isinstance(dropout_p, (int, float)) and dropout_p == 0)
    if dropped:
        if seed is None:
            raise ArgumentError(
                "attention: dropout_p without a seed; expected seed=, an int, another one for each call"
            )
        numbers |= {"dropout_p": dropout_p, "seed": seed}
    operands = [q.unflatten(1, (K, G)), k.unsqueeze(2), v.unsqueeze(2)]
    if scales is not None:
        operands[2:] = [columns_of_values(v).unsqueeze(2), *of_heads(scales, B, K, G)]
    if pages is not None:
        *rows, apart = rows_of_pages(k, v)
        operands[1:], numbers = [*rows, pages[:, None, None]], numbers | apart
    if bias is not None:
        check_tensor("bias", bias)
        operands.append(expanded("attention", bias, q, (B, H, M, N), "float32 or bool").unflatten(1, (K, G)))
    if sinks is not None:
        check_sinks("attention", sinks, H)
        operands.append(sinks.float().reshape(K, G, 1, 1).expand(B, K, G, 1, 1))
    if lengths is not None:
        of_batch = lengths[:, None, None, None, None]
        operands.append(of_batch if page else of_batch.expand(B, K, 1, 1, 1))
    import torch

    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    if differentiated and (lengths is not None or page):
        raise ArgumentError("attention: a gradient with lengths or pages; expected a call under torch.no_grad()")
    if differentiated and fp8:
        raise ArgumentError("attention: a gradient of float8_e4m3fn; expected a call under torch.no_grad()")
    if differentiated and max(D, E) > WIDEST_GRADIENT:
        raise ArgumentError(
            f"attention: a gradient of heads of {max(D, E)} columns; expected at most {WIDEST_GRADIENT}, or a call under "
            f"torch.no_grad()"
        )
    if N == 0:
        shape = (B, H, M, E) if layout == "BHND" else (B, M, H, E)
        empty = q.new_zeros(shape, dtype=dtype if fp8 else q.dtype)
        return of_no_keys(empty, sinks, q, (B, H, M), lse, operands if differentiated else ())
    of_bias = {torch.float32: "f32", torch.bool: "bool"}.get(bias.dtype, True) if bias is not None else False
    options: dict[str, Any] = {"bias": of_bias, "softcap": softcap is not None, "lse": lse}
    options |= {"sinks": sinks is not None, "dropout": dropped, "fp8": fp8, "f16acc": half_sums}
    options |= {"lengths": lengths is not None, "page": page}
    made = None
    if fp8 or not (layout == "BHND" or differentiated):
        shape = (B, H, M, E) if layout == "BHND" else (B, M, H, E)
        made = q.new_empty(shape, dtype=dtype if fp8 else q.dtype)
    results = call_by_layout(mask, operands, numbers, layout, made, **options)
    return (results[0], results[1]) if lse else results[0]


def mask_of(
    caller: str, causal: bool | str, window: tuple[int | None, int | None] | None, shift: int
) -> tuple[Mask, dict[str, float]]:
    """The kind of mask, and its numbers. Raises ArgumentError where `window` is none."""
    left, right = sides(caller, causal, window)
    if left is None and right is None:
        return "full", {}
    if left is None and right == 0:
        return "causal", {"shift": shift}
    numbers: dict[str, float] = {"shift": shift}
    for name, bound in (("left", left), ("right", right)):
        numbers[name] = _UNBOUNDED if bound is None else bound
    return "window", numbers


def sums_in_half(accumulate: object, q: Tensor) -> bool:
    """Whether products are summed in f16. Raises ArgumentError where they cannot be summed in `accumulate`."""
    import torch

    if accumulate is None or accumulate == torch.float32:
        return False
    if accumulate != torch.float16 or q.dtype != torch.float16:
        given = str(q.dtype).removeprefix("torch.")
        raise ArgumentError(
            f"attention: accumulate is {told_of(accumulate)} for q of {given}; expected torch.float32, or torch.float16 for q of "
            f"float16"
        )
    return True


def check_causal(caller: str, causal: object) -> None:
    """Raises ArgumentError where it is none of the ways to be causal, nor False."""
    if not (isinstance(causal, (bool, str)) and causal in (False, True, "upper_left", "lower_right")):
        raise ArgumentError(f"{caller}: causal is {told_of(causal)}; expected True, False, upper_left or lower_right")


def sides(
    caller: str, causal: bool | str, window: tuple[int | None, int | None] | None
) -> tuple[int | None, int | None]:
    """How many columns a row sees to the left and to the right of the diagonal; None for no bound."""
    if window is not None and not (
        isinstance(window, (tuple, list)) and len(window) == 2 and all(x is None or type(x) is int for x in window)
    ):
        raise ArgumentError(
            f"{caller}: window is {told_of(window)}; expected two ints (left, right), None for no bound"
        )
    left, right = window if window is not None else (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    return _limited(left), _limited(right)


def _limited(bound: int | None) -> int | None:
    return None if bound is None else max(-_UNBOUNDED, min(bound, _UNBOUNDED))


def expanded(caller: str, bias: Tensor, q: Tensor, shape: tuple[int, ...], others: str) -> Tensor:
    """A bias as [B, H, M, N]. Raises ArgumentError where it does not broadcast so, or is neither of q's dtype nor of `others`."""
    given, own = (str(x.dtype).removeprefix("torch.") for x in (bias, q))
    if given not in (own, *others.split(" or ")):
        raise ArgumentError(f"{caller}: bias {given}; expected {own}, as q, {others}")
    try:
        return bias.expand(shape)
    except RuntimeError:
        raise ArgumentError(
            f"{caller}: bias {list(bias.shape)}; expected what broadcasts to [B, H, M, N], {list(shape)}"
        ) from None


def _check_lengths(lengths: object, batch: int, causal: bool | str) -> None:
    import torch

    check_tensor("lengths", lengths)
    assert isinstance(lengths, torch.Tensor)
    if lengths.dtype != torch.int32 or lengths.shape != (batch,):
        dtype = str(lengths.dtype).removeprefix("torch.")
        raise ArgumentError(f"attention: lengths {dtype} {list(lengths.shape)}; expected int32 [{batch}]")
    if causal == "upper_left":
        raise ArgumentError(
            "attention: causal is upper_left with lengths; expected lower_right: the last row sees the last key"
        )


def check_sinks(caller: str, sinks: object, heads: int) -> None:
    """Raises ArgumentError where these are no sinks of so many heads."""
    import torch

    check_tensor("sinks", sinks, caller)
    assert isinstance(sinks, torch.Tensor)
    dtype = str(sinks.dtype).removeprefix("torch.")
    if dtype not in ("float32", "float16", "bfloat16") or sinks.shape != (heads,):
        raise ArgumentError(
            f"{caller}: sinks {dtype} {list(sinks.shape)}; expected float32, float16 or bfloat16 [{heads}]: one a head of q"
        )


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


def check_tensor(name: str, x: object, caller: str = "attention") -> None:
    """Raises ArgumentError where it is none."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"{caller}: {name} is {type(x).__name__} {told_of(x)}; expected a torch tensor")


def check_kinds(caller: str, q: Tensor, k: Tensor, v: Tensor, axes: str, widest: int, fp8: bool = False) -> None:
    """Raises ArgumentError where q, k and v are not tensors with these axes, of one dtype of 16 bits or, with scales, of e4m3,
    or heads are wider.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x, caller)
    shapes = f"{caller}: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    count = len(axes.split(", "))
    if axes and {q.ndim, k.ndim, v.ndim} != {count}:
        raise ArgumentError(f"{shapes}; expected {'four' if count == 4 else 'three'} axes each: {axes}")
    dtypes = [str(x.dtype).removeprefix("torch.") for x in (q, k, v)]
    if fp8 and set(dtypes) != {"float8_e4m3fn"}:
        raise ArgumentError(f"{caller}: q, k and v are {', '.join(dtypes)} with scales; expected float8_e4m3fn of all")
    if not fp8 and (len(set(dtypes)) > 1 or dtypes[0] not in ("float16", "bfloat16")):
        raise ArgumentError(
            f"{caller}: q, k and v are {', '.join(dtypes)}; expected float16 or bfloat16 of all: use half() or bfloat16()"
        )
    if max(q.shape[-1], v.shape[-1]) > widest:
        raise ArgumentError(f"{shapes}; expected heads of at most {widest} columns")


def check_operands(
    caller: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    widest: int,
    pages: Tensor | None = None,
    fp8: bool = False,
) -> None:
    """Raises ArgumentError where q, k and v do not fit each other, heads are wider, or the layout is none."""
    if not (isinstance(layout, str) and layout in ("BHND", "BNHD")):
        raise ArgumentError(f"{caller}: layout {told_of(layout)}; expected BHND or BNHD")
    check_kinds(caller, q, k, v, "batch, heads, rows, columns" if pages is None else "", widest, fp8)
    shapes = f"{caller}: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if pages is not None:
        check_pages(q, k, v, pages, layout)
        return
    (B, H, _, D), (C, K, N, depth), (F, L, P, _) = (
        x.shape if layout == "BHND" else (x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (q, k, v)
    )
    if H % max(K, 1) or (K == 0 and H):
        raise ArgumentError(f"{shapes}; expected a multiple of {K} heads of q, as k has {K}")
    if (C, depth) != (B, D) or (F, L, P) != (B, K, N):
        raise ArgumentError(f"{shapes}, {layout}; expected k [{B}, {K}, {N}, {D}] and v [{B}, {K}, {N}, E] as BHND")
