"""kgen.sigmoid_attention on CPU tensors, against float64: its options, layouts, empty axes, gradients, what it refuses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from attention_reference import operands
from torch import Tensor

import kgen
from kgen.dsl.errors import ArgumentError

F16, BF16 = torch.float16, torch.bfloat16


def weights(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool | str = False,
    window: tuple[int | None, int | None] = (None, None),
    bias: float | Tensor = 0.0,
    scale: float | None = None,
) -> Tensor:
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores + (bias.double() if isinstance(bias, Tensor) else bias)
    row, column, (left, right) = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2]), window
    row = row + (k.shape[2] - q.shape[2] if causal == "lower_right" else 0)
    seen = (row >= column) if causal else (row >= 0)
    seen = seen & (column >= row - left if left is not None else True)
    seen = seen & (column <= row + right if right is not None else True)
    return torch.where(seen, torch.sigmoid(scores), 0.0)


def expected(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return weights(q, k, **options) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def check(q: Tensor, k: Tensor, v: Tensor, layout: Any = "BHND", **options: Any) -> None:
    given = [x.transpose(1, 2).contiguous() for x in (q, k, v)] if layout == "BNHD" else [q, k, v]
    with kgen.emulate():
        out = kgen.sigmoid_attention(*given, layout=layout, **options)
    assert out.dtype == q.dtype
    out = out.transpose(1, 2) if layout == "BNHD" else out
    want = expected(*(x.double() for x in (q, k, v)), **options)
    # Each weight is rounded once, and the result.
    error = torch.finfo(q.dtype).eps * expected(*(x.double() for x in (q, k)), v.double().abs(), **options)
    assert ((out.double() - want).abs() <= error + 1e-6).all()


OPTIONS: list[dict[str, Any]] = [
    {"bias": -math.log(90)},
    {"causal": True, "bias": 1},
    {"causal": "lower_right", "scale": 0.3},
    {"window": (9, 5)},
    {"window": (None, -2), "bias": -2.5},
    {"window": (-40, 50), "causal": "lower_right"},
    {"bias": (2, 1, 70, 90)},
    {"bias": (90,), "causal": True},
    {"bias": (6, 1, 1), "window": (9, 5)},
]


@pytest.mark.parametrize(("dtype", "layout"), [*itertools.product((F16, BF16), ("BHND", "BNHD"))], ids=str)
def test_options(dtype: torch.dtype, layout: str) -> None:
    q, k, v = operands(2, 6, 2, 70, 90, 32, 48, dtype)
    for options in OPTIONS[:: 1 if (dtype, layout) == (F16, "BHND") else 3]:
        shape, given = options.get("bias"), {}
        if isinstance(shape, tuple):
            given["bias"] = torch.randn(shape).to(dtype if len(shape) > 1 else torch.float32)
        check(q, k, v, layout, **(options | given))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (64, 1), (64, 128), (113, 203), (255, 256)])
def test_causal_of_all_lengths(rows: int, columns: int) -> None:
    q, k, v = operands(1, 8, 1, rows, columns, 32, 32)
    check(q, k, v, causal=True)
    check(q, k, v, causal="lower_right", bias=-3.0)


@pytest.mark.parametrize(("depth", "width"), [(16, 128), (59, 59), (111, 40), (224, 224), (320, 296)])
def test_heads_of_all_widths(depth: int, width: int) -> None:
    check(*operands(1, 2, 2, 20, 37, depth, width, BF16), causal=True)


def test_values_that_are_hard() -> None:
    """Scores far beyond what an exponential has, and NaN in one row and in one column."""
    q, k, v = operands(1, 2, 2, 20, 70, 32, 32)
    check(100 * q, k, v, bias=20.0)
    check(100 * q, k, v, bias=-300.0)
    nan = q.clone()
    nan[0, 0, 3] = math.nan
    with kgen.emulate():
        out = kgen.sigmoid_attention(nan, k, v)
        assert out[0, 0, 3].isnan().all()
        assert out.isnan().sum() == 32
        hidden = k.clone()
        hidden[0, 0, 40] = math.nan  # a weight that is hidden is 0, whatever its score
        assert torch.equal(
            kgen.sigmoid_attention(q, hidden, v, causal=True), kgen.sigmoid_attention(q, k, v, causal=True)
        )


@pytest.mark.parametrize(("rows", "columns"), [(5, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_empty_axes(rows: int, columns: int, layout: str) -> None:
    q, k, v = (x.transpose(1, 2) if layout == "BNHD" else x for x in operands(2, 4, 2, rows, columns, 16, 24))
    given = [x.contiguous().requires_grad_() for x in (q, k, v)]
    with kgen.emulate():
        out = kgen.sigmoid_attention(*given, layout=layout)  # type: ignore[arg-type]
        gradients = torch.autograd.grad(out, given, torch.ones_like(out))
    assert out.shape == (*q.shape[:3], 24)
    assert not out.any()
    assert [x.shape for x in gradients] == [x.shape for x in given]
    assert not any(x.any() for x in gradients)


GRADIENTS: list[dict[str, Any]] = [
    {"bias": -2.0},
    {"causal": "lower_right", "layout": "BNHD"},
    {"window": (9, 5), "scale": 0.3},
]


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_gradients(options: dict[str, Any], dtype: torch.dtype) -> None:
    own = {name: x for name, x in options.items() if name != "layout"}
    given = [x.requires_grad_() for x in operands(2, 6, 2, 70, 90, 32, 48, dtype)]
    placed = [x.transpose(1, 2) if "layout" in options else x for x in given]
    with kgen.emulate():
        out = kgen.sigmoid_attention(*placed, **options)
        out = out.transpose(1, 2) if "layout" in options else out
        seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found = torch.autograd.grad(out, given, seed)
    exact = [x.detach().double().requires_grad_() for x in given]
    want = torch.autograd.grad(expected(*exact, **own), exact, seed.double())
    q, k, v = (x.detach() for x in exact)
    # Of each of a sum's terms the weight is rounded once, and the sum.
    of_weights = weights(q, k, **own)
    k_heads, v_heads = (x.repeat_interleave(3, 1).abs() for x in (k, v))
    across = (options.get("scale") or 32**-0.5) * of_weights * (1 - of_weights) * (seed.double().abs() @ v_heads.mT)
    terms = [across @ k_heads, across.mT @ q.abs(), of_weights.mT @ seed.double().abs()]
    eps = torch.finfo(dtype).eps
    for a, b, error in zip(found, want, [terms[0], *(x.unflatten(1, (2, 3)).sum(2) for x in terms[1:])]):
        assert ((a.double() - b).abs() <= eps * error + 1e-5).all()


def test_the_gradient_of_a_bias() -> None:
    q, k, v = operands(1, 2, 1, 20, 30, 16, 16)
    bias = torch.randn(2, 1, 1, dtype=torch.float32, requires_grad=True)
    with kgen.emulate():
        kgen.sigmoid_attention(q, k, v, bias=bias).float().sum().backward()
    exact = bias.detach().double().requires_grad_()
    expected(q.double(), k.double(), v.double(), bias=exact).sum().backward()
    assert bias.grad is not None and exact.grad is not None  # noqa: PT018
    torch.testing.assert_close(bias.grad.double(), exact.grad, rtol=2e-3, atol=2e-2)


def test_what_does_not_fit() -> None:
    q, k, v = operands(1, 4, 2, 5, 7, 16, 16)
    for message, given, options in (
        ("sigmoid_attention: q, k and v are float32", (q.float(), k.float(), v.float()), {}),
        ("sigmoid_attention: causal is 'left'; expected True", (q, k, v), {"causal": "left"}),
        ("sigmoid_attention: layout 'BND'", (q, k, v), {"layout": "BND"}),
        ("sigmoid_attention: k is list", (q, [1], v), {}),
        (r"sigmoid_attention: window is \(1, 2, 3\)", (q, k, v), {"window": (1, 2, 3)}),
        ("sigmoid_attention: bias is 'low'; expected a number", (q, k, v), {"bias": "low"}),
        ("sigmoid_attention: bias bool; expected float16, as q, float32$", (q, k, v), {"bias": torch.ones(5, 7) > 0}),
        (r"sigmoid_attention: bias \[6\]; expected what broadcasts", (q, k, v), {"bias": torch.ones(6)}),
        ("expected a multiple of 2 heads of q", (q[:, :3], k, v), {}),
    ):
        with pytest.raises(ArgumentError, match=message):
            kgen.sigmoid_attention(*given, **options)  # type: ignore[arg-type]
    q, k, v = operands(1, 2, 2, 5, 7, 520, 16)
    with pytest.raises(ArgumentError, match="a gradient of heads of 520 columns; expected at most 512"):
        kgen.sigmoid_attention(q.requires_grad_(), k, v)
