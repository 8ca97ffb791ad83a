"""Keys and values as attention takes them; in pages one matrix of rows each, and how the rows of a key are counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kgen.dsl.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

#: What page sizes are multiples of.
PAGE = 8


def check_pages(q: Tensor, k: Tensor, v: Tensor, pages: object, layout: str) -> None:
    """Raises ArgumentError where k, v and pages do not fit q, [B, H, M, D] or, where the layout is BNHD, [B, M, H, D]."""
    import torch

    if not isinstance(pages, torch.Tensor):
        raise ArgumentError(f"attention: pages is {type(pages).__name__}; expected a torch tensor")
    dtype = str(pages.dtype).removeprefix("torch.")
    shapes = f"attention: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}, pages {dtype} {list(pages.shape)}"
    if {q.ndim, k.ndim, v.ndim} != {4}:
        raise ArgumentError(f"{shapes}; expected four axes of q, k and v: k [pages, page size, K, D]")
    B, H, D = q.shape[0], q.shape[1 if layout == "BHND" else 2], q.shape[3]
    P, S, K, _ = k.shape
    if pages.dtype != torch.int32 or pages.ndim != 2 or pages.shape[0] != B:
        raise ArgumentError(f"{shapes}; expected pages int32 [{B}, pages of a batch]")
    if k.shape[3] != D or v.shape[:3] != k.shape[:3] or K == 0 or H % K:
        raise ArgumentError(f"{shapes}; expected k [{P}, {S}, K, {D}] and v [{P}, {S}, K, E], where K divides {H}")
    if S == 0 or S % PAGE:
        raise ArgumentError(f"{shapes}; expected pages of a multiple of {PAGE} keys, got {S}")


def keys_of(k: Tensor, v: Tensor, pages: Tensor | None) -> tuple[list[Tensor], dict[str, float]]:
    """The operands that a variant has of k [..., K, N, D] and v [..., K, N, E], and its numbers.

    With `pages` [..., L], k and v [pages, page size, K, D] are matrices [R, D] and [R, E] on the same memory, and the numbers
    are by how many rows pages, keys and heads lie apart. ArgumentError where rows are not contiguous, or lie apart otherwise in k
    than in v.
    """
    if pages is None:
        return [k.unsqueeze(-3), v.unsqueeze(-3)], {}
    (k_rows, *apart), (v_rows, *others) = (_rows(x) for x in (k, v))
    if apart != others:
        raise ArgumentError(
            f"attention: k has strides {k.stride()}, v {v.stride()}; expected pages, keys and heads at the same multiples of rows"
        )
    numbers: dict[str, float] = dict(zip(("page_rows", "key_rows", "head_rows"), apart))
    return [k_rows, v_rows, pages[..., None, None, :]], numbers


def _rows(x: Tensor) -> tuple[Tensor, int, int, int]:
    if x.stride(3) != 1 and x.shape[3] != 1:
        raise ArgumentError(f"attention: pages of strides {x.stride()}; expected rows with stride 1")
    if x.numel() == 0:
        return x.new_empty(0, x.shape[3]), 1, 1, 1
    strides = [s if n > 1 else 0 for n, s in zip(x.shape[:3], x.stride())]
    row = math.gcd(*strides) or max(1, x.shape[3])
    last = sum((n - 1) * s for n, s in zip(x.shape, strides)) // row
    page, key, head = (s // row for s in strides)
    return x.as_strided((last + 1, x.shape[3]), (row, 1)), page, key, head
