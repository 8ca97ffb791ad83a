"""Calls of attention's variants on torch tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kgen.ops.attention.heads import Mask, variant
from kgen.ops.attention.sigmoid import sigmoid_variant
from kgen.runtime.attention_arguments import UNBOUNDED
from kgen.runtime.operator import KernelOperator
from kgen.runtime.registry import constant_to_dynamo

if TYPE_CHECKING:
    from torch import Tensor


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


def mask_of(left: int | None, right: int | None, shift: int) -> tuple[Mask, dict[str, float]]:
    """The kind of mask by which rows see so many columns on both sides of a diagonal, and its numbers."""
    if left is None and right is None:
        return "full", {}
    if left is None and right == 0:
        return "causal", {"shift": shift}
    numbers: dict[str, float] = {"shift": shift}
    for name, bound in (("left", left), ("right", right)):
        numbers[name] = UNBOUNDED if bound is None else bound
    return "window", numbers
