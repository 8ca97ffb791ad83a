"""Attention's operands of 8 bits: what is asked of them, their scales, and values as wgmma takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.dsl.errors import ArgumentError, told_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

#: What the pitch of a column of values is a multiple of, in elements.
_PITCH = 16


def check_fp8(q: Tensor, k: Tensor, v: Tensor, dtype: object, others: Mapping[str, object]) -> None:
    """Raises ArgumentError where the result's dtype is none, or one of the others is given."""
    import torch

    if dtype not in (torch.float16, torch.bfloat16):
        raise ArgumentError(
            f"attention: dtype is {told_of(dtype)} with scales; expected torch.float16 or torch.bfloat16"
        )
    for name, value in others.items():
        if value is not None:
            raise ArgumentError(f"attention: {name} with scales; expected q, k and v of 16 bits with {name}")


def of_heads(scales: Sequence[Tensor], batch: int, heads: int, group: int) -> list[Tensor]:
    """The scales as [B, K, G, 1, 1] of q and [B, K, 1, 1, 1] of k and v."""
    import torch

    if not (isinstance(scales, (tuple, list)) and len(scales) == 3):
        raise ArgumentError(f"attention: scales is {told_of(scales)}; expected three tensors: of q, k and v")
    found = []
    for name, scale, shared in (("q", scales[0], group), ("k", scales[1], 1), ("v", scales[2], 1)):
        if not isinstance(scale, torch.Tensor) or scale.dtype != torch.float32:
            raise ArgumentError(f"attention: the scale of {name} is {told_of(scale)}; expected a float32 tensor")
        if scale.numel() != 1 and scale.shape != (heads * shared,):
            raise ArgumentError(
                f"attention: the scale of {name} {list(scale.shape)}; expected one element, or [{heads * shared}]"
            )
        whole = scale.reshape(1, 1, 1, 1, 1) if scale.numel() == 1 else scale.reshape(1, heads, shared, 1, 1)
        found.append(whole.expand(batch, heads, shared, 1, 1))
    return found


def columns_of_values(v: Tensor) -> Tensor:
    """[B, K, E, N] of v [B, K, N, E], with n contiguous: v itself, or a copy."""
    transposed = v.mT
    aligned = all(s % _PITCH == 0 for s in transposed.stride()[:-1]) and transposed.data_ptr() % _PITCH == 0
    if transposed.stride(-1) == 1 and aligned:
        return transposed
    columns = v.shape[2]
    held = v.new_empty((*transposed.shape[:-1], -(-columns // _PITCH) * _PITCH))
    return held[..., :columns].copy_(transposed)
