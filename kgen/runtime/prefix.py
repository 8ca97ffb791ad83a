"""A prefix of keys that the sequences of a batch share: read once, by one product with all their queries (cascade attention).

The prefix is attended to as by one sequence that has the rows of all; its own keys each batch attends to as it does without.
Both results are f32, and are merged by the logarithms of the rows' sums. With 16 bits between, errors were a quarter larger in
the mean and up to twice as large at worst; with f32 they are those of one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kgen.dsl.errors import ArgumentError
from kgen.ops.attention.heads import Mask
from kgen.runtime.attention_arguments import check_tensor
from kgen.runtime.pages import keys_of
from kgen.runtime.shipped import shipped
from kgen.runtime.variants import call_variant

if TYPE_CHECKING:
    from torch import Tensor

_INTO_F16, _INTO_BF16 = shipped("merge_attention_f16"), shipped("merge_attention_bf16")


def check_prefix(
    k: Tensor, v: Tensor, prefix: object, layout: str, paged: bool, causal: bool | str, others: Mapping[str, object]
) -> None:
    """Raises ArgumentError where a prefix does not fit k and v, one of the others is given, or causal is upper_left."""
    import torch

    for name, value in others.items():
        if value is not None:
            raise ArgumentError(f"attention: {name} with prefix; expected no {name}, or the prefix's keys in k and v")
    if causal == "upper_left":
        raise ArgumentError(
            "attention: causal is upper_left with prefix; expected lower_right: the last row sees the last key"
        )
    if paged:
        check_tensor("prefix with pages", prefix)
        assert isinstance(prefix, torch.Tensor)
        if prefix.dtype != torch.int32 or prefix.ndim != 1:
            dtype = str(prefix.dtype).removeprefix("torch.")
            raise ArgumentError(
                f"attention: prefix {dtype} {list(prefix.shape)} with pages; expected int32 [L], pages of k"
            )
        return
    if not (isinstance(prefix, (tuple, list)) and len(prefix) == 2):
        raise ArgumentError(f"attention: prefix is {type(prefix).__name__}; expected two tensors, (k_prefix, v_prefix)")
    axis = 1 if layout == "BHND" else 0  # of keys
    for name, x, like in zip(("k_prefix", "v_prefix"), prefix, (k, v)):
        check_tensor(name, x)
        expected: list[Any] = list(like.shape[1:])
        expected[axis] = prefix[0].shape[axis] if prefix[0].ndim == 3 else "P"
        if x.dtype != like.dtype or list(x.shape) != expected:
            given, own = (str(t.dtype).removeprefix("torch.") for t in (x, like))
            raise ArgumentError(f"attention: {name} {given} {list(x.shape)}, {layout}; expected {own} {expected}")


def keys_of_prefix(
    prefix: tuple[Tensor, Tensor] | Tensor | None, k: Tensor, v: Tensor, layout: str
) -> tuple[list[Tensor], int]:
    """A prefix's operands of a variant, and how many keys it has: none without one. Its pages are of k and v."""
    if prefix is None:
        return [], 0
    if isinstance(prefix, (tuple, list)):
        keys, values = prefix if layout == "BHND" else (x.transpose(0, 1) for x in prefix)
        return keys_of(keys, values, None)[0], keys.shape[-2]
    return keys_of(k, v, prefix)[0], prefix.shape[0] * k.shape[1]


def seen_of_prefix(
    q: Tensor, columns: int, own: int, lengths: Tensor | None, left: int | None, right: int | None
) -> tuple[Tensor, ...]:
    """From which to before which of a prefix's `columns` each row of q [B, H, M, D] sees, int32 [B * M, 1] each; nothing where
    all rows see all. Behind them a batch has `own` columns, or `lengths`, and its last row stands at the last one.
    """
    import torch

    B, M = q.shape[0], q.shape[2]
    least = own if lengths is None else 0
    if (right is None or least - M + right >= -1) and (left is None or columns + own - 1 <= left):
        return ()
    first = columns - M + (own if lengths is None else 0)
    row = torch.arange(first, first + M, dtype=torch.int32, device=q.device)
    row = row.expand(B, M) if lengths is None else row + lengths.clamp(min=0)[:, None]
    begin = torch.zeros_like(row) if left is None else row - left
    end = torch.full_like(row, columns) if right is None else row + (right + 1)
    return begin.reshape(-1, 1), end.reshape(-1, 1)


def attend_to_prefix(
    q: Tensor, keys: Sequence[Tensor], heads: int, seen: Sequence[Tensor], numbers: Mapping[str, float], page: int
) -> tuple[Tensor, Tensor]:
    """Attention of q [B, H, M, D] to the keys and values of a prefix, of so many heads: [B, H, M, E] and [B, H, M] in f32."""
    rows = q.transpose(0, 1).flatten(1, 2).unflatten(0, (heads, q.shape[1] // max(heads, 1)))
    mask: Mask = "ranges" if seen else "full"
    options = {"softcap": "softcap" in numbers, "page": page, "partial": True, "lse": True}
    result, lse = call_variant(mask, [rows, *keys, *seen], numbers, **options)
    result, lse = (x.flatten(0, 1).unflatten(1, (q.shape[0], q.shape[2])).transpose(0, 1) for x in (result, lse))
    return result, lse


def merged(parts: Sequence[tuple[Tensor, Tensor]], q: Tensor, layout: str, lse: bool) -> Tensor | tuple[Tensor, Tensor]:
    """Attention to the keys of both parts, each [B, H, M, E] and [B, H, M] in f32, in q's dtype and layout; with `lse` as in
    `kgen.attention`.
    """
    import torch

    (a, a_lse), (b, b_lse) = parts
    given = [a, b, a_lse.unsqueeze(-1), b_lse.unsqueeze(-1)]
    merge = _INTO_F16 if q.dtype is torch.float16 else _INTO_BF16
    result = merge(*(x.transpose(1, 2) for x in given)) if layout == "BNHD" else merge(*given)
    return (result, torch.logaddexp(a_lse, b_lse)) if lse else result
