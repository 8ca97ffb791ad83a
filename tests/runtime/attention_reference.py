"""Attention in float64 by torch, and operands of it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kgen.numerics.philox import uniform


def operands(
    B: int, H: int, K: int, M: int, N: int, D: int, E: int, dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(M * N + D)
    shapes = (B, H, M, D), (B, K, N, D), (B, K, N, E)
    q, k, v = (torch.randn(s, generator=source).to(dtype) for s in shapes)
    return q, k, v


def weights(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool | str = False,
    window: tuple[int | None, int | None] = (None, None),
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """The weights in float64, those of a row without columns 0, and the logarithm of the sum of each row's exponentials."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None and bias.dtype != torch.bool:
        scores = scores + bias.double()
    row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    row = row + (k.shape[2] - q.shape[2] if causal == "lower_right" else 0)
    seen = (row >= column) if causal else torch.ones(row.shape[0], column.shape[0], dtype=torch.bool)
    if bias is not None and bias.dtype == torch.bool:
        seen = seen & bias
    left, right = window
    seen = (
        seen
        & (column >= row - left if left is not None else True)
        & (column <= row + right if right is not None else True)
    )
    if sinks is not None:  # as one more column, which all rows see unless it is -infinity
        more = sinks.double()[:, None, None].expand(*scores.shape[:3], 1)
        scores, seen = torch.cat([scores, more], -1), torch.cat([seen.expand(scores.shape), more > -math.inf], -1)
    some = seen.any(-1, keepdim=True)
    scores = torch.where(some, scores.masked_fill(~seen, -math.inf), 0.0)  # of nothing but -infinity autograd has NaN
    logarithm = torch.logsumexp(scores, -1).masked_fill(~some[..., 0], -math.inf)
    shares = torch.softmax(scores, -1).masked_fill(~some, 0)[..., : k.shape[2]]
    if dropout_p:
        numbers = uniform(torch.arange(shares.numel()).view(shares.shape), seed, 0)
        p = torch.tensor(dropout_p).double()  # as the kernel has it, in f32
        shares = (shares / (1 - p)).masked_fill(numbers < p, 0)
    return shares, logarithm


def expected(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The definition in float64, and the logarithm."""
    shares, logarithm = weights(q, k, **options)
    return shares @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1), logarithm


def rounding(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, **options: Any) -> tuple[float, float, float]:
    """What rounding the result, each weight and each gradient once may leave of the gradients of q, k and v, at most."""
    group, eps = q.shape[1] // k.shape[1], torch.finfo(q.dtype).eps
    shares = weights(q, k, **{name: x for name, x in options.items() if name not in ("dropout_p", "seed")})[0]
    shares = shares / (1 - options.get("dropout_p", 0.0))
    q, k, v, grad = (x.double().abs() for x in (q, k, v, grad))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scale = options.get("scale") or 1 / math.sqrt(q.shape[-1])
    terms = scale * shares * (grad @ v.mT + (grad * (shares @ v)).sum(-1, keepdim=True) + 1)
    heads = [x.unflatten(1, (-1, group)).sum(2) for x in (terms.mT @ q, shares.mT @ grad)]
    bounds = [1.5 * eps * float(x.max()) for x in (terms @ k, *heads)]
    return bounds[0], bounds[1], bounds[2]
