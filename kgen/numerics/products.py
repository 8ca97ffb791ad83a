"""Products of matrices by torch: exact ones of integers, and with the sums that tensor cores make."""

from __future__ import annotations

import torch
from torch import Tensor

from kgen.numerics.operands import FP8_SUM_DIGITS


def integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The exact product of integer matrices as int64: by float64 while that is exact, else on the CPU."""
    a, b = a.to(torch.int64), b.to(torch.int64)
    if not a.numel() or not b.numel():
        return torch.matmul(a.double(), b.double()).to(torch.int64)
    if a.shape[-1] * int(a.abs().max()) * int(b.abs().max()) < 2**53:
        return torch.matmul(a.double(), b.double()).to(torch.int64)
    return torch.matmul(a.cpu(), b.cpu()).to(a.device)


def half_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with the sum rounded to f16 after every 16 of K, as an instruction of that depth does."""
    a, b = a.float(), b.float()
    with plain_matmul():
        total = torch.matmul(a[..., :0], b[..., :0, :])
        for k in range(0, a.shape[-1], 16):
            total = (total + torch.matmul(a[..., k : k + 16], b[..., k : k + 16, :])).half().float()
    return total


def fp8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as tensor cores add fp8 products, 32 at a time and the sum so far, each cut to FP8_SUM_DIGITS digits of the largest.

    These cuts come to about one cut of the step's sum a digit higher. The largest product is taken as the fourth root of the
    sum of fourth powers, at most 2.4 times too much.
    """
    a, b = a.float(), b.float()
    with plain_matmul():
        total = torch.matmul(a[..., :0], b[..., :0, :])
        for k in range(0, a.shape[-1], 32):
            left, right = a[..., k : k + 32], b[..., k : k + 32, :]
            largest = torch.maximum(torch.matmul(left**4, right**4) ** 0.25, total.abs())
            grid = torch.exp2(torch.frexp(largest).exponent - (FP8_SUM_DIGITS - 1.0)).clamp_min(2.0**-126)
            total = torch.trunc((total + torch.matmul(left, right)) / grid) * grid
    return total


def blocked_matmul(a: Tensor, b: Tensor, depth: int) -> Tensor:
    """a @ b of scaled fp8 values: tensor cores sum blocks of K, each of one scale; f32 takes the sums of blocks."""
    total = fp8_matmul(a[..., :0], b[..., :0, :])
    for k in range(0, a.shape[-1], depth):
        total += fp8_matmul(a[..., k : k + depth], b[..., k : k + depth, :])
    return total


def widened_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of narrow matrices kept in f32: by tensor cores where torch offers that, else from f32 copies."""
    if a.is_cuda and a.dim() == b.dim() == 2:
        try:
            return torch.mm(a, b, out_dtype=torch.float32)
        except (TypeError, RuntimeError):
            pass  # this torch, or this GPU, has no such kernel
    return torch.matmul(a.float(), b.float())


def rounded(x: Tensor, digits: int) -> Tensor:
    """f32 to the nearest value of so many digits, ties to even."""
    cut = 24 - digits
    bits = x.contiguous().view(torch.int32)
    nearest = (bits + (1 << cut - 1) - 1 + (bits >> cut & 1)) >> cut << cut
    return torch.where(x.isfinite(), nearest.view(torch.float32), x)


class plain_matmul:
    """Has torch multiply f32 matrices in f32 on a GPU, and sum f16 ones in f32; puts the settings back."""

    def __enter__(self) -> None:
        matmul = torch.backends.cuda.matmul
        self.before = (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction)
        matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction = False, False

    def __exit__(self, *exception: object) -> None:
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction = self.before
