"""kgen.linear_attention on CPU tensors, against the recurrence in float64: options, layouts, hard values, gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import kgen
from kgen.dsl.errors import ArgumentError

F16, BF16 = torch.float16, torch.bfloat16


def operands(
    B: int, H: int, K: int, N: int, D: int, E: int, dtype: torch.dtype = F16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and decay of which some tokens of each head are left after a hundred."""
    source = torch.Generator().manual_seed(N + D)
    q, k, v = (torch.randn(s, generator=source).to(dtype) for s in ((B, H, N, D), (B, K, N, D), (B, K, N, E)))
    return q, k, v, -0.03 * torch.rand(B, H, N, generator=source)


def recurrence(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, scale: float | None, normalise: bool) -> Tensor:
    """S = exp(decay) S + k v^T, o = q S, a row after another; differentiable."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    left = torch.ones(q.shape[:3], dtype=torch.float64)
    if decay is not None:
        rows = decay[:, None].expand(q.shape[0], -1, q.shape[2]) if decay.ndim == 1 else decay
        left = rows.double().clamp(-80, 0).exp()
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    state, found = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float64), []
    for i in range(q.shape[2]):
        state = left[:, :, i, None, None] * state + k[:, :, i, :, None] * v[:, :, i, None, :]
        found.append((q[:, :, i, None] @ state)[:, :, 0] * (1 / math.sqrt(q.shape[3]) if scale is None else scale))
    result = torch.stack(found, 2)
    return result[..., :-1] / result[..., -1:] if normalise else result[..., :-1]


def check(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None = None, layout: Any = "BHND", **options: Any) -> None:
    want = recurrence(q, k, v, decay, options.get("scale"), options.get("normalise", False))
    given = [x.transpose(1, 2).contiguous() for x in (q, k, v)] if layout == "BNHD" else [q, k, v]
    if decay is not None:
        given.append(decay.transpose(1, 2).contiguous() if layout == "BNHD" and decay.ndim == 3 else decay)
    with kgen.emulate():
        out = kgen.linear_attention(*given, layout=layout, **options)
    assert out.dtype == q.dtype
    out = out.transpose(1, 2) if layout == "BNHD" else out
    # The result is rounded, and before that weights or values, each to within half of eps of itself.
    error = 1.5 * torch.finfo(q.dtype).eps * want.nan_to_num().abs().max().item()
    torch.testing.assert_close(out.double(), want, rtol=0, atol=error, equal_nan=True)


@pytest.mark.parametrize(("dtype", "layout"), [*itertools.product((F16, BF16), ("BHND", "BNHD"))], ids=str)
def test_options(dtype: torch.dtype, layout: str) -> None:
    q, k, v, decay = operands(2, 4, 2, 150, 32, 48, dtype)
    check(q, k, v, None, layout)
    check(q, k, v, decay, layout, scale=0.3)
    check(q, k, v, torch.tensor([-0.01, -0.3, 0.0, -2.0]), layout)
    check(q.abs(), k.abs(), v, decay, layout, normalise=True)


@pytest.mark.parametrize("rows", [1, 3, 16, 63, 64, 65, 129, 200])
def test_all_lengths(rows: int) -> None:
    q, k, v, decay = operands(1, 2, 2, rows, 16, 16)
    check(q, k, v)
    check(q, k, v, decay)


@pytest.mark.parametrize(("depth", "width"), [(8, 128), (40, 40), (128, 136), (200, 8), (256, 256)])
def test_heads_of_all_widths(depth: int, width: int) -> None:
    check(*operands(1, 1, 1, 37, depth, width, BF16))


def test_decay_that_is_hard() -> None:
    """So strong that exp of the sum that is left over overflows; of all strengths; beyond its ends; what begins anew."""
    q, k, v, decay = operands(1, 2, 2, 200, 32, 32)
    check(q, k, v, decay - 4.0)
    check(q, k, v, torch.full_like(decay, -79.0))
    check(q, k, v, -torch.logspace(-6, 2, 200).expand_as(decay))
    some = decay.clone()
    some[:, :, 70], some[:, :, 100], some[:, :, 130] = -math.inf, 3.0, -1e30
    check(q, k, v, some)


def test_values_that_are_hard() -> None:
    q, k, v, decay = operands(1, 2, 2, 150, 16, 16)
    nan = decay.clone()
    nan[0, 0, 90] = math.nan
    check(q, k, v, nan)
    with kgen.emulate():
        first, large = q.clone(), torch.full_like(q, 60.0)
        first[0, 0, 5, 3] = math.inf
        rows = kgen.linear_attention(first, k, v)
        assert not rows[0, 0, [0, 4, 6, 149]].isnan().any()
        assert not rows[0, 0, 5].isfinite().any()
        # A state beyond the largest f16 is infinite, with its sign.
        beyond = kgen.linear_attention(1e-5 * large, large, -large)
        assert (beyond[0, 0, :10].isfinite()).all()
        assert (beyond[0, 0, -1] == -math.inf).all()


def test_views() -> None:
    """NaN in the storage beside them and beyond the end, rows that start at 6 bytes, strided columns, expanded axes."""
    q, k, v, decay = operands(1, 2, 2, 70, 32, 32)

    def beside(x: Tensor, columns: int) -> Tensor:
        held = torch.full((*x.shape[:2], x.shape[2] + 5, x.shape[3] + columns), math.nan, dtype=x.dtype)
        return held[:, :, : x.shape[2], : x.shape[3]].copy_(x)

    def shifted(x: Tensor) -> Tensor:
        return torch.cat([torch.full((3,), math.nan, dtype=x.dtype), x.flatten()])[3:].view(x.shape)

    check(beside(q, 8), beside(k, 0), beside(v, 1), torch.cat([decay, decay * math.nan], -1)[..., :70])
    check(shifted(q), shifted(k), shifted(v))
    check(*(x.mT.contiguous().mT for x in (q, k, v)), decay.mT.contiguous().mT)
    check(q.expand(3, -1, -1, -1), k[:, :, :1].expand(3, -1, 70, -1), v.expand(3, -1, -1, -1))


@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_empty_axes(layout: Any) -> None:
    for B, H, K, N in ((0, 4, 2, 5), (2, 4, 2, 0), (2, 0, 2, 5), (2, 0, 0, 5)):
        q, k, v, decay = (x.transpose(1, 2) if layout == "BNHD" else x for x in operands(B, H, K, N, 16, 32))
        state = torch.ones(B, H, 16, 32)
        out, left = kgen.linear_attention(q, k, v, decay, layout=layout, state=state, return_state=True)
        assert torch.equal(left, state) if N == 0 else left.shape == state.shape
        assert (out.transpose(1, 2) if layout == "BNHD" else out).shape == (B, H, N, 32)


@pytest.mark.parametrize(
    ("decayed", "normalise", "layout"), [(0, False, "BHND"), (1, False, "BNHD"), (3, False, "BHND"), (3, True, "BNHD")]
)
def test_gradients(decayed: int, normalise: bool, layout: Any) -> None:
    """Of all inputs, over more than a chunk; heads of keys that several heads of queries share get the sum."""
    q, k, v, decay = operands(1, 4, 2, 100, 16, 24)
    if normalise:
        q, k = q.abs(), k.abs()
    given = [q, k, v, *([decay] if decayed == 3 else [torch.tensor([-0.1, 0.0, -0.02, -90.0])] if decayed else [])]
    twins = [x.clone().double().requires_grad_() for x in given]
    turned = [x.transpose(1, 2).contiguous() if layout == "BNHD" and x.ndim > 1 else x for x in given]
    given = [x.detach().requires_grad_() for x in turned]
    with kgen.emulate():
        out = kgen.linear_attention(*given, normalise=normalise, layout=layout)
        seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(F16)
        out.backward(seed)
    want = recurrence(*twins, *([None] if not decayed else []), None, normalise)
    (want.transpose(1, 2) if layout == "BNHD" else want).backward(seed.double())
    for x, twin in zip(given, twins):
        assert x.grad is not None
        assert twin.grad is not None
        grad = x.grad.transpose(1, 2) if layout == "BNHD" and x.ndim > 1 else x.grad
        # Of decay: sums over rows of differences of what was rounded.
        share = 0.01 if x.dtype is torch.float32 else 0.002
        torch.testing.assert_close(grad.double(), twin.grad, rtol=0, atol=share * twin.grad.abs().max().item())


@pytest.mark.parametrize("backwards", [False, True])
def test_the_operators_own_gradient_of_decay(backwards: bool) -> None:
    """Derived, over all weights; `kgen.linear_attention` has one that holds none."""
    q, k, v, decay = operands(1, 2, 2, 37, 16, 24)
    decay[0, 0, 5], decay[0, 1, 7] = 0.5, -90.0  # beyond its bounds
    given, twin = (x.unsqueeze(-2).requires_grad_() for x in (decay, decay.double()))
    seed = torch.randn(1, 2, 37, 24).to(F16)
    run = kgen.linear_attention_decay_backwards if backwards else kgen.linear_attention_decay
    with kgen.emulate():
        (found,) = torch.autograd.grad(run(q, k, v, given, scale=0.25), [given], seed)
    total = twin.clamp(-80, 0).cumsum(-1)
    between, seen = total.mT - total, torch.ones(37, 37, dtype=torch.bool).tril()
    between, seen = (-between, seen.T) if backwards else (between, seen)
    weights = 0.25 * q.double() @ k.double().mT * between.masked_fill(~seen, -math.inf).exp()
    (want,) = torch.autograd.grad(weights @ v.double(), [twin], seed.double())
    torch.testing.assert_close(found.double(), want, rtol=0, atol=0.01 * want.abs().max().item())


@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_a_sequence_in_parts(layout: Any) -> None:
    """As the whole, with the state handed on; the last part is a row, as in decoding. Gradients go through the states."""
    q, k, v, decay = operands(1, 4, 2, 100, 16, 24)
    given = [x.clone().requires_grad_() for x in (q, k, v, decay)]
    twins = [x.clone().double().requires_grad_() for x in (q, k, v, decay)]
    parts, state = [], None
    with kgen.emulate():
        for rows in (slice(0, 30), slice(30, 99), slice(99, 100)):
            part = [x[:, :, rows].transpose(1, 2) if layout == "BNHD" else x[:, :, rows] for x in given]
            out, state = kgen.linear_attention(*part, layout=layout, state=state, return_state=True)
            assert state.dtype is torch.float32
            parts.append(out.transpose(1, 2) if layout == "BNHD" else out)
        whole = torch.cat(parts, 2)
        want = recurrence(*twins, None, False)
        torch.testing.assert_close(whole.double(), want, rtol=0, atol=1.5 * 2**-10 * want.abs().max().item())
        seed = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(F16)
        whole.backward(seed)
        undecayed, left = kgen.linear_attention(q, k, v, return_state=True)
    want.backward(seed.double())
    for x, twin in zip(given, twins):
        assert x.grad is not None
        assert twin.grad is not None
        share = 0.01 if x.dtype is torch.float32 else 0.002
        torch.testing.assert_close(x.grad.double(), twin.grad, rtol=0, atol=share * twin.grad.abs().max().item())
    sums = k.double().repeat_interleave(2, 1).mT @ v.double().repeat_interleave(2, 1)
    torch.testing.assert_close(left.double(), sums, rtol=1e-5, atol=1e-4)
    assert undecayed.shape == q.shape[:3] + v.shape[3:]


def test_what_does_not_fit() -> None:
    q, k, v, decay = operands(1, 4, 2, 5, 16, 16)
    for message, given, options in (
        ("linear_attention: q, k and v are float32", (q.float(), k.float(), v.float()), {}),
        ("a multiple of 2 heads", (q[:, :3], k, v), {}),
        ("q has 4 rows and k 5; expected as many", (q[:, :, :4], k, v), {}),
        ("heads of at most 256 columns", (q, k, torch.zeros(1, 2, 5, 300, dtype=F16)), {}),
        ("decay is torch.float16; expected a tensor of float32", (q, k, v, decay.half()), {}),
        ("decay is float 0.5", (q, k, v, 0.5), {}),
        (r"decay \[1, 4, 4\]", (q, k, v, decay[:, :, 1:]), {}),
        (r"state is torch.float32 \[1, 4, 16, 8\]", (q, k, v), {"state": torch.zeros(1, 4, 16, 8)}),
        ("normalise with a state", (q, k, v), {"normalise": True, "return_state": True}),
        ("linear_attention: layout 'BND'", (q, k, v), {"layout": "BND"}),
        ("linear_attention: k is list", (q, [1], v), {}),
    ):
        with pytest.raises(ArgumentError, match=message):
            kgen.linear_attention(*given, **options)
