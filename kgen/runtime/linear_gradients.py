"""Linear attention's gradients, each of which is linear attention again: O(N) memory, where derived ones hold the weights.

With W[i, j] = exp(decay between them) * (grad[i] . v[j]) for j <= i: of q[i] it is the sum of W[i, j] * k[j], of k[j] that of
W[i, j] * q[i] over the rows behind; of v[j] that of grad[i] by the weights themselves. A row's decay scales all pairs of a row
before it with one from it on: what the running sum moves is the difference of what is a row's as i and as j, and decay's gradient
is the sum of that over the rows from it on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from kgen.ops.linear_attention.heads import LEAST, linear_attention_moved, variant
from kgen.runtime.autograd import traced
from kgen.runtime.operator import KernelOperator
from kgen.runtime.registry import constant_to_dynamo


@functools.cache
def _operator(decay: bool, backwards: bool, wide: bool) -> KernelOperator:
    return KernelOperator(variant(decay=decay, backwards=backwards, wide=wide))


@constant_to_dynamo
def _key_of(decay: bool, backwards: bool, wide: bool) -> str:
    return _operator(decay, backwards, wide).key


_moved = KernelOperator(linear_attention_moved)


def _run(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, scale: float, backwards: bool, wide: bool = False
) -> Tensor:
    given = (q, k, v) if decay is None else (q, k, v, decay)
    kind = decay is not None, backwards, wide
    result: Tensor
    if torch.compiler.is_dynamo_compiling():
        result = traced(_key_of(*kind), 1, given, None, {"scale": scale})
    else:
        result = _operator(*kind)(*given, scale=scale)
    return result


class _Attend(torch.autograd.Function):
    """`attend`, and its gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, scale: float, wide: bool) -> Tensor:
        out = _run(q, k, v, decay, scale, False, wide)
        moves = decay is not None and decay.requires_grad
        ctx.save_for_backward(q, k, v, decay, out if moves else None)
        ctx.scale = scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, decay, out = ctx.saved_tensors
        of_q, of_k, of_v, of_decay = ctx.needs_input_grad[:4]
        g, scale = grad.to(q.dtype), ctx.scale
        by_q = _run(g, v, k, decay, scale, False) if of_q else None
        by_k = _run(v, g, q, decay, scale, True) if of_k else None
        by_v = _run(k, q, g, decay, scale, True) if of_v or of_decay else None
        by_decay = None
        if of_decay:
            moved = _moved(grad, out, v, by_v)
            from_here = moved.flip(-1).cumsum(-1).flip(-1).unsqueeze(-2)
            by_decay = from_here.masked_fill((decay < LEAST) | (decay > 0), 0.0)
        return by_q, by_k, by_v if of_v else None, by_decay, None, None


def carried(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, scale: float, state: Tensor | None, wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    """What a state [..., D, E] from before the first row adds to all rows; and, where wanted, that behind the last row."""
    bounded = torch.zeros(1, 1, device=q.device) if decay is None else decay.clamp(LEAST, 0.0)
    falls, whole = bounded.cumsum(-1).mT, bounded.sum(-1, keepdim=True)
    added = None if state is None else (q.float() @ state) * (scale * falls.exp())
    if not wanted:
        return added, None
    left = (k.float() * (whole - falls).exp()).mT @ v.float()
    return added, left if state is None else left + state * whole.exp()


def attend(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, scale: float, wide: bool) -> Tensor:
    """Linear attention of q, k [..., N, D], v [..., N, E] and decay [..., 1, N]; `wide`: with results in f32."""
    result: Tensor = _Attend.apply(q, k, v, decay, scale, wide)  # type: ignore[no-untyped-call]
    return result
