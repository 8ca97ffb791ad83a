"""Calls of attention's variants on torch tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kgen.ops.attention.heads import Mask, variant
from kgen.runtime.operator import KernelOperator
from kgen.runtime.registry import constant_to_dynamo

if TYPE_CHECKING:
    from torch import Tensor


@functools.cache
def operator_of(mask: Mask, **options: Any) -> KernelOperator:
    """The operator of a variant."""
    return KernelOperator(variant(mask, **options))


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

    return traced(_key_of(mask, **options), 2 if options["lse"] else 1, tuple(operands), out, numbers)
