"""kgen's dtypes as torch's, and rounding to them."""

from __future__ import annotations

import torch
from torch import Tensor

from kgen.dsl import types
from kgen.dsl.errors import ArgumentError
from kgen.dsl.types import DTYPES, DType, e4m3, e5m2


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype with the same values in memory; tf32 is float32 there."""
    found: torch.dtype = getattr(torch, dtype.torch)
    return found


def from_torch(dtype: torch.dtype) -> DType:
    """The dtype of tensors with this torch dtype; float32 is f32. Raises ArgumentError for one kgen does not have."""
    found = types.from_torch(dtype)
    if isinstance(found, DType):
        return found
    known = ", ".join(dict.fromkeys(f"torch.{own.torch}" for own in DTYPES.values()))
    raise ArgumentError(f"tensors of {dtype} are not supported; expected one of {known}")


def round_to(x: Tensor, dtype: DType) -> Tensor:
    """`x` in `dtype`: floats to nearest even, fp8 saturating, floats to integers towards zero and saturating."""
    target = torch_dtype(dtype)
    if dtype.kind == "bool":
        return x != 0
    if dtype.kind == "int" and x.is_floating_point():
        limits = torch.iinfo(target)
        # The largest float64 below 2^63 stands for it: 2^63 itself does not fit.
        high = float(limits.max) if limits.bits < 64 else 2.0**63 - 1024
        return x.to(torch.float64).nan_to_num(0.0).trunc().clamp(float(limits.min), high).to(target)
    if dtype in (e4m3, e5m2) and x.dtype is not target:
        limit = torch.finfo(target).max
        return x.to(torch.float64).clamp(-limit, limit).to(target)
    return x.to(target)


def ulp(reference: Tensor, dtype: DType) -> Tensor:
    """The spacing of a float dtype's values in memory at each element of a float64 tensor."""
    limits = torch.finfo(torch_dtype(dtype))
    exponent = torch.frexp(reference).exponent.double()
    spacing = torch.where(reference == 0, 0.0, torch.exp2(exponent - 1) * limits.eps)
    return spacing.clamp_min(limits.tiny * limits.eps)
