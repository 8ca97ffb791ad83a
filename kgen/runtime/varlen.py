"""Attention on sequences of several lengths that lie one after another in one tensor, by a range of keys for each row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from kgen.dsl.errors import ArgumentError
from kgen.ops.attention.problem import NARROW
from kgen.runtime.attention import of_no_keys
from kgen.runtime.attention_arguments import check_causal, check_kinds, check_sinks, check_tensor, sides
from kgen.runtime.variants import call_variant

if TYPE_CHECKING:
    from torch import Tensor


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    causal: bool | Literal["upper_left", "lower_right"] = False,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    lse: bool = False,
    sinks: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`kgen.attention` of sequences one after another: those of queries and of keys with the same number see each other.

    q is [T, H, D], k [S, K, D] and v [S, K, E], where H is a multiple of K. Sequence b has the rows of q from cu_seqlens_q[b] to
    before cu_seqlens_q[b + 1], and those of k and v by `cu_seqlens_k`, which is `cu_seqlens_q` unless given: int32 [B + 1] on the
    device, from 0, never falling. Nothing is copied, the host reads no length, and a captured graph is right for any lengths.
    The result is [T, H, E]; with `lse` the second one is [H, T]. `causal` and `window` count from the diagonal of each sequence;
    they, `softcap`, `scale` and `sinks` are as in `kgen.attention`, and so are gradients; D and E are at most 256. Rows that see
    no key, of which those behind the last sequence are some, are 0, their lse -infinity, or their head's sink.

    Blocks of keys that no row of a tile sees are not read. In those that it reads, as under any mask, a value that is not finite
    may make NaN of rows that do not see it.

    Raises ArgumentError where shapes, dtypes or bounds do not fit.
    """
    check_causal("attention_varlen", causal)
    check_kinds("attention_varlen", q, k, v, "rows, heads, columns", NARROW)
    (T, H, D), (S, K, depth), (rows, heads, E) = q.shape, k.shape, v.shape
    shapes = f"attention_varlen: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if H % max(K, 1) or (K == 0 and H):
        raise ArgumentError(f"{shapes}; expected a multiple of {K} heads of q, as k has {K}")
    if (depth, rows, heads) != (D, S, K):
        raise ArgumentError(f"{shapes}; expected k [{S}, {K}, {D}] and v [{S}, {K}, E]")
    if cu_seqlens_k is None and S != T:
        raise ArgumentError(f"{shapes}; expected as many rows of k as of q, or cu_seqlens_k")
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    _check_offsets(cu_seqlens_q, cu_seqlens_k)
    if sinks is not None:
        check_sinks("attention_varlen", sinks, H)
    import torch

    given = (q, k, v) if sinks is None else (q, k, v, sinks)
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    left, right = sides("attention_varlen", causal, window)
    if T == 0 or S == 0:
        empty = q.new_zeros(T, H, E)
        return of_no_keys(empty, sinks, q, (H, T), lse, given if differentiated else ())
    numbers = {"scale": scale if scale is not None else 1 / math.sqrt(max(D, 1))}
    if softcap is not None:
        numbers["softcap"] = softcap
    seen = ranges(cu_seqlens_q, cu_seqlens_k, T, causal == "lower_right", left, right)
    by_group = (K, H // max(K, 1))
    of_heads = () if sinks is None else (sinks.float().reshape(*by_group, 1, 1),)
    rows_of = q.transpose(0, 1).unflatten(0, by_group)
    operands = (rows_of, *(x.transpose(0, 1).unsqueeze(1) for x in (k, v)), *of_heads, *seen)
    options = {"softcap": softcap is not None, "sinks": sinks is not None, "lse": lse}
    if differentiated:
        found = call_variant("ranges", operands, numbers, **options)
        result, *sums = (x.flatten(0, 1) for x in (found if lse else (found,)))
        result = result.transpose(0, 1)
    else:
        result, sums = q.new_empty(T, H, E), [q.new_empty((H, T), dtype=torch.float32)] if lse else []
        outputs = (result.transpose(0, 1), *sums)
        call_variant("ranges", operands, numbers, tuple(x.unflatten(0, by_group) for x in outputs), **options)
    return (result, *sums) if lse else result


def ranges(
    cu_q: Tensor, cu_k: Tensor, rows: int, lower_right: bool, left: int | None, right: int | None
) -> tuple[Tensor, Tensor]:
    """From which to before which key each row sees, int32 [rows, 1] each; `lower_right` says where diagonals begin."""
    import torch

    row = torch.arange(rows, dtype=torch.int32, device=cu_q.device)
    # Rows behind the last sequence are of one more, which has no keys.
    sequence = torch.searchsorted(cu_q[1:].contiguous(), row, right=True)
    begin, end = cu_k, torch.cat([cu_k[1:], cu_k[-1:]])
    tables = [begin, end]
    if left is not None or right is not None:
        tables.append(torch.cat([cu_k[1:] - cu_q[1:], cu_k[-1:]]) if lower_right else cu_k - cu_q)
    begin, end, *shift = torch.stack(tables)[:, sequence]
    if shift:
        diagonal = row + shift[0]
        begin = begin if left is None else torch.maximum(begin, diagonal - left)
        end = end if right is None else torch.minimum(end, diagonal + (right + 1))
    return begin[:, None], end[:, None]


def _check_offsets(cu_q: object, cu_k: object) -> None:
    import torch

    for name, x in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        check_tensor(name, x, "attention_varlen")
        assert isinstance(x, torch.Tensor)
        if x.dtype != torch.int32 or x.ndim != 1 or not x.numel():
            dtype = str(x.dtype).removeprefix("torch.")
            raise ArgumentError(f"attention_varlen: {name} {dtype} {list(x.shape)}; expected int32 [B + 1]")
    assert isinstance(cu_q, torch.Tensor)
    assert isinstance(cu_k, torch.Tensor)
    if cu_q.shape != cu_k.shape:
        raise ArgumentError(
            f"attention_varlen: cu_seqlens_q {list(cu_q.shape)}, cu_seqlens_k {list(cu_k.shape)}; expected as many of both"
        )
