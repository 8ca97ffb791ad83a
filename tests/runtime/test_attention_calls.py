"""kgen.attention on CPU tensors, against float64: its options, layouts, hard values, empty axes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from attention_reference import expected, operands, weights
from torch import Tensor

import kgen
from kgen import arange, bool_, cast, dims, f16, f32, i32, take, where
from kgen.dsl import functions as F
from kgen.dsl.errors import ArgumentError, ConfigError

F16, BF16 = torch.float16, torch.bfloat16
G, M, N, D, E = dims("G M N D E")


def check(q: Tensor, k: Tensor, v: Tensor, layout: Any = "BHND", **options: Any) -> None:
    want, logarithms = expected(q, k, v, **options)
    given = [x.transpose(1, 2).contiguous() for x in (q, k, v)] if layout == "BNHD" else [q, k, v]
    with kgen.emulate():
        out, lse = kgen.attention(*given, layout=layout, lse=True, **options)
    assert out.dtype == q.dtype and lse.dtype == torch.float32  # noqa: PT018
    out = out.transpose(1, 2) if layout == "BNHD" else out
    # Weights and results are rounded once each: two roundings of the largest value.
    error = (
        2 * torch.finfo(q.dtype).eps * v.double().nan_to_num().abs().max().item() / (1 - options.get("dropout_p", 0))
    )
    torch.testing.assert_close(out.double(), want, rtol=0, atol=error, equal_nan=True)
    torch.testing.assert_close(lse.double(), logarithms, rtol=1e-5, atol=1e-5, equal_nan=True)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": "lower_right", "scale": 0.3},
    {"window": (9, 5), "softcap": 3.0},
    {"window": (None, -2)},
    {"window": (-40, 50), "causal": "lower_right"},
    {"window": (2**40, 2**31 - 1)},
    {"bias": (2, 1, 70, 90)},
    {"bias": (90,), "causal": True, "softcap": 5.0},
    {"sinks": (6,)},
    {"sinks": (6,), "window": (-40, 50), "causal": "lower_right"},
    {"dropout_p": 0.3, "seed": 7},
    {"dropout_p": 0.9, "seed": 2**40 + 3, "causal": True, "sinks": (6,), "softcap": 5.0},
]


@pytest.mark.parametrize(("dtype", "layout"), [*itertools.product((F16, BF16), ("BHND", "BNHD"))], ids=str)
def test_options(dtype: torch.dtype, layout: str) -> None:
    q, k, v = operands(2, 6, 2, 70, 90, 32, 48, dtype)
    for options in OPTIONS[:: 1 if (dtype, layout) == (F16, "BHND") else 3]:
        given = {name: torch.randn(options[name]).to(dtype) for name in ("bias", "sinks") if name in options}
        check(q, k, v, layout, **(options | given))


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 5.0}, {"window": (9, 5), "sinks": (6,)}], ids=str)
def test_sums_in_f16(options: dict[str, Any]) -> None:
    """A score of some 32 products, and a result of 90, err by a few units in the last place of f16; lse is of such scores."""
    q, k, v = operands(2, 6, 2, 70, 90, 32, 48)
    given = options | {name: torch.randn(options[name]) for name in ("sinks",) if name in options}
    want, logarithms = expected(q, k, v, **given)
    with kgen.emulate():
        out, lse = kgen.attention(q, k, v, lse=True, accumulate=torch.float16, **given)
        same = kgen.attention(q, k, v, accumulate=torch.float32, **given)
        plain = kgen.attention(q, k, v, **given)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=8 * torch.finfo(F16).eps)
    torch.testing.assert_close(lse.double(), logarithms, rtol=0, atol=4 * torch.finfo(F16).eps)
    assert torch.equal(same, plain)
    assert not torch.equal(out, plain)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_a_bias_is_what_torch_takes(dtype: torch.dtype) -> None:
    """f32 beside 16 bits, of which all digits count; or bool, which may leave a row nothing."""
    q, k, v = operands(2, 4, 2, 70, 90, 32, 48, dtype)
    check(q, k, v, bias=torch.randn(2, 1, 70, 90))
    check(q, k, v, "BNHD", bias=1000 + torch.randn(70, 90), causal=True, sinks=torch.randn(4))
    seen = torch.rand(2, 4, 70, 90) < 0.5
    seen[:, 0, 3] = False
    check(q, k, v, bias=seen)
    check(q, k, v, "BNHD", bias=seen[0, 1], causal=True, softcap=3.0, sinks=torch.randn(4))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (64, 1), (64, 128), (113, 203), (203, 113), (255, 256)])
def test_causal_of_all_lengths(rows: int, columns: int) -> None:
    q, k, v = operands(1, 8, 1, rows, columns, 32, 32)
    check(q, k, v, causal=True)
    check(q, k, v, causal="lower_right")


@pytest.mark.parametrize(("depth", "width"), [(16, 128), (40, 40), (59, 59), (111, 111), (160, 96), (224, 224)])
def test_heads_of_all_widths(depth: int, width: int) -> None:
    check(*operands(1, 2, 2, 20, 37, depth, width, BF16))


def test_heads_beyond_256_columns() -> None:
    q, k, v = operands(1, 4, 2, 9, 37, 320, 296)
    check(q, k, v, "BNHD", causal="lower_right", window=(9, 0), softcap=5.0)
    check(*operands(1, 2, 1, 20, 37, 576, 512, BF16), bias=torch.randn(20, 37).to(BF16))
    q, k, v = operands(1, 2, 2, 9, 37, 520, 16)
    with kgen.emulate(), pytest.raises(ArgumentError, match="a gradient of heads of 520 columns; expected at most 512"):
        kgen.attention(q.requires_grad_(), k, v)


def test_views() -> None:
    """NaN in the storage beside them, rows that start at 6 bytes, strided columns, expanded axes."""
    q, k, v = operands(1, 2, 2, 20, 70, 32, 32)

    def beside(x: Tensor, columns: int) -> Tensor:
        held = torch.full((*x.shape[:2], x.shape[2] + 5, x.shape[3] + columns), math.nan, dtype=x.dtype)
        view = held[:, :, : x.shape[2], : x.shape[3]]
        return view.copy_(x)

    def shifted(x: Tensor) -> Tensor:
        return torch.cat([torch.full((3,), math.nan, dtype=x.dtype), x.flatten()])[3:].view(x.shape)

    check(beside(q, 8), beside(k, 0), beside(v, 1), causal=True)
    check(shifted(q), shifted(k), shifted(v))
    check(*(x.mT.contiguous().mT for x in (q, k, v)))
    check(q.expand(3, -1, -1, -1), k[:, :, :1].expand(3, -1, 70, -1), v.expand(3, -1, -1, -1))
    check(q, q, q)


@pytest.mark.parametrize("least", [torch.finfo(BF16).min, -(2.0**40)])
@pytest.mark.parametrize("rows", [1, 20])
def test_a_row_that_a_mask_of_numbers_hides_is_a_mean(rows: int, least: float) -> None:
    """As in torch: a low number added to all scores leaves them alike. f32 has none of the products' digits beside it."""
    q, k, v = (x.requires_grad_() for x in operands(1, 2, 2, rows, 150, 32, 32, BF16))
    bias = torch.zeros(rows, 150, dtype=BF16)
    bias[:, 70:] = least
    bias[0] = least
    with kgen.emulate():
        found = kgen.attention(q, k, v, bias=bias)
        assert isinstance(found, Tensor)
        seed = torch.randn_like(found)
        got = torch.autograd.grad(found, (q, k, v), seed)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    seen = (bias == 0) | (bias == least).all(-1, keepdim=True)
    products = exact[0] @ exact[1].mT / 32**0.5
    scores = torch.where(bias == 0, products, products - products.detach()).masked_fill(~seen, -math.inf)
    want = scores.softmax(-1) @ exact[2]
    torch.testing.assert_close(found.double(), want, rtol=0.02, atol=0.02)
    for a, b in zip(got, torch.autograd.grad(want, exact, seed.double())):
        torch.testing.assert_close(a.double(), b, rtol=0.02, atol=0.02)


def test_values_that_are_hard() -> None:
    q, k, v = operands(1, 2, 2, 20, 70, 32, 32)
    huge, nan, infinite = k.clone(), q.clone(), k.clone()
    huge[:, :, 33] *= 300
    nan[0, 0, 3] = math.nan
    infinite[0, 0, 3] = -math.inf
    check(q, huge, v)
    check(torch.full_like(q, 4), torch.full_like(k, -60) + k, v, scale=1 / 64)  # scores near -120
    check(nan, k, v)
    check(q.abs(), infinite, v)
    check(q, k, v, scale=0.0)


def eight_bits(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(axes).float() / 448
    return (x / scale.view(-1, 1, 1)).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize(
    ("heads", "rows", "columns", "width", "options"),
    [
        ((4, 2), 70, 83, 64, {}),
        ((2, 2), 33, 130, 128, {"causal": "lower_right", "dtype": BF16}),
        ((6, 1), 1, 300, 64, {"sinks": torch.linspace(-1, 2, 6), "softcap": 5.0}),
        ((2, 1), 90, 40, 128, {"window": (9, 5), "layout": "BNHD"}),
    ],
)
def test_fp8(heads: tuple[int, int], rows: int, columns: int, width: int, options: dict[str, Any]) -> None:
    """By a scale of each tensor and of each head; lse is of unrounded weights, which are rounded to four digits."""
    H, K = heads
    q, k, v = (torch.randn(2, h, n, width) * 3 for h, n in ((H, rows), (K, columns), (K, columns)))
    for axes in ((0, 2, 3), (0, 1, 2, 3)):
        made = [eight_bits(x, axes) for x in (q, k, v)]
        exact = [x.double() * scale.double().view(-1, 1, 1) for x, scale in made]
        named = {"dtype": F16} | options
        transposed = named.get("layout") == "BNHD"
        given = [x.transpose(1, 2).contiguous() if transposed else x for x, _ in made]
        with kgen.emulate():
            out, lse = kgen.attention(*given, scales=[scale for _, scale in made], lse=True, **named)
        assert out.dtype == named["dtype"]
        own = {name: x for name, x in options.items() if name not in ("dtype", "layout")}
        shares, logarithms = weights(*exact[:2], **own)
        values = exact[2].repeat_interleave(H // K, 1)
        error = 2.0**-4 * shares @ values.abs() + torch.finfo(out.dtype).eps * values.abs().max()
        assert (((out.transpose(1, 2) if transposed else out).double() - shares @ values).abs() <= error).all()
        torch.testing.assert_close(lse.double(), logarithms, rtol=1e-5, atol=1e-5)


def test_fp8_that_does_not_fit() -> None:
    q, k, v = (x.to(torch.float8_e4m3fn) for x in operands(1, 4, 2, 5, 16, 64, 64))
    one = torch.ones(1)
    for message, scales, options in (
        ("dtype is None with scales; expected torch.float16", (one, one, one), {}),
        ("bias with scales", (one, one, one), {"dtype": F16, "bias": torch.zeros(5, 16)}),
        ("dropout_p with scales", (one, one, one), {"dtype": F16, "dropout_p": 0.5, "seed": 0}),
        (r"the scale of k \[4\]; expected one element, or \[2\]", (one, torch.ones(4), one), {"dtype": F16}),
        ("the scale of v is .*; expected a float32 tensor", (one, one, 1.0), {"dtype": F16}),
    ):
        with pytest.raises(ArgumentError, match=message):
            kgen.attention(q, k, v, scales=scales, **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="float16, float16, float16 with scales; expected float8_e4m3fn"):
        kgen.attention(q.half(), k.half(), v.half(), scales=(one, one, one), dtype=F16)


@pytest.mark.parametrize(("rows", "columns"), [(1, 90), (2, 64), (70, 83), (66, 130), (3, 2), (5, 1)])
def test_dropout(rows: int, columns: int) -> None:
    """By a weight's place alone: of lines of whole blocks of numbers and of others; all at once for heads that share keys."""
    q, k, v = operands(2, 6, 2, rows, columns, 32, 48, BF16)
    check(q, k, v, dropout_p=0.5, seed=11)
    check(q, k, v, dropout_p=0.25, seed=-5, causal="lower_right")
    check(*(x.contiguous(memory_format=torch.channels_last) for x in (q, k, v)), dropout_p=0.5, seed=11)


def test_dropout_of_all_and_of_nothing() -> None:
    q, k, v = operands(1, 2, 2, 20, 40, 32, 32)
    with kgen.emulate():
        everything, lse = kgen.attention(q, k, v, dropout_p=1.0, seed=3, lse=True)
        assert (everything == 0).all()
        torch.testing.assert_close(lse.double(), expected(q, k, v)[1], rtol=1e-5, atol=1e-5)
        assert torch.equal(kgen.attention(q, k, v, dropout_p=0.0), kgen.attention(q, k, v))
        one, other = (kgen.attention(q, k, v, dropout_p=0.5, seed=seed) for seed in (3, 4))
        assert torch.equal(one, kgen.attention(q, k, v, dropout_p=0.5, seed=3))
        assert not torch.equal(one, other)


@pytest.mark.parametrize("rows", [1, 20, 90])
def test_sinks(rows: int) -> None:
    """Far from all scores on either side, none at all, in f32; a row that sees no key has its sink alone."""
    q, k, v = operands(1, 8, 2, rows, 70, 32, 48, BF16)
    sinks = torch.tensor([0.5, -math.inf, 100.0, 3.0e38, -100.0, -3.0e38, 2.0, -1.0])
    check(q, k, v, sinks=sinks)
    check(q, k, v, sinks=sinks, causal="lower_right")
    with kgen.emulate():
        out, lse = kgen.attention(q, k[:, :, :0], v[:, :, :0], sinks=sinks, lse=True)
    assert (out == 0).all() and torch.equal(lse, sinks[None, :, None].expand(1, 8, rows))  # noqa: PT018


@pytest.mark.parametrize(
    ("heads", "rows", "options"),
    [
        ((8, 2), 1, {}),
        ((6, 2), 3, {"causal": True}),
        ((4, 4), 20, {"window": (30, 0), "softcap": 3.0}),
        ((4, 1), 2, {"bias": True}),
        ((4, 2), 3, {"causal": True, "sinks": torch.randn(4)}),
    ],
)
def test_lengths(heads: tuple[int, int], rows: int, options: dict[str, Any]) -> None:
    """A cache of 90 keys of which some are there: NaN behind them makes no difference."""
    lengths = [0, 1, 33, 90, -5] + ([] if options.keys() & {"causal", "window"} else [200])
    q, k, v = operands(len(lengths), *heads, rows, 90, 32, 48, BF16)
    if "bias" in options:
        options = {"bias": torch.randn(len(lengths), heads[0], rows, 90).to(BF16)}
    for b, n in enumerate(lengths):
        k[b, :, max(n, 0) :] = v[b, :, max(n, 0) :] = math.nan
    with kgen.emulate():
        out, lse = kgen.attention(q, k, v, lengths=torch.tensor(lengths, dtype=torch.int32), lse=True, **options)
    for b, n in enumerate(lengths):
        there = max(0, min(n, 90))
        own = {name: x[b : b + 1, ..., :there] if name == "bias" else x for name, x in options.items()}
        own |= {"causal": "lower_right"} if "causal" in own or "window" in own else {}
        want, logarithms = expected(q[b : b + 1], k[b : b + 1, :, :there], v[b : b + 1, :, :there], **own)
        error = 2 * torch.finfo(BF16).eps * 4
        torch.testing.assert_close(out[b : b + 1].double(), want, rtol=0, atol=error)
        torch.testing.assert_close(lse[b : b + 1].double(), logarithms, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "rows", "size", "layout", "options"),
    [
        ((8, 2), 1, 16, "BHND", {}),
        ((6, 2), 3, 8, "BNHD", {"causal": True}),
        ((4, 4), 20, 24, "BHND", {"bias": True, "softcap": 3.0}),
        ((8, 2), 1, 16, "BHND", {"sinks": torch.randn(8)}),
    ],
)
def test_pages(heads: tuple[int, int], rows: int, size: int, layout: Any, options: dict[str, Any]) -> None:
    """A pool of keys and values in pages: NaN in pages of nobody, and behind the lengths, makes no difference."""
    H, K = heads
    lengths, longest, D, E = [0, 5, 3 * size, 4 * size - 1], 4, 32, 48
    q = operands(len(lengths), H, K, rows, 1, D, E, BF16)[0]
    pool = torch.full((40, 2, size, K, E), math.nan, dtype=BF16)  # keys and values side by side, rows of keys shorter
    pages = torch.randperm(40)[: len(lengths) * longest].reshape(len(lengths), longest).int()
    source = torch.Generator().manual_seed(3)
    if "bias" in options:
        options = {**options, "bias": torch.randn(len(lengths), H, rows, longest * size).to(BF16)}
    dense = []
    for b, n in enumerate(lengths):
        k, v = (torch.randn(n, K, d, generator=source).to(BF16) for d in (D, E))
        for j in range(n):
            pool[pages[b, j // size], 0, j % size, :, :D] = k[j]
            pool[pages[b, j // size], 1, j % size] = v[j]
        pages[b, -(-n // size) :] = -7 if b % 2 else 39  # not there, or anybody's
        dense.append((k.transpose(0, 1)[None], v.transpose(0, 1)[None]))
    given = q.transpose(1, 2).contiguous() if layout == "BNHD" else q
    with kgen.emulate():
        out, lse = kgen.attention(
            given, pool[:, 0, ..., :D], pool[:, 1], pages=pages, layout=layout, lse=True,
            lengths=torch.tensor(lengths, dtype=torch.int32), **options,
        )  # fmt: skip
    out = out.transpose(1, 2) if layout == "BNHD" else out
    for b, (n, (k, v)) in enumerate(zip(lengths, dense)):
        own = {name: x[b : b + 1, ..., :n] if name == "bias" else x for name, x in options.items()}
        own |= {"causal": "lower_right"} if "causal" in own else {}
        want, logarithms = expected(q[b : b + 1], k, v, **own)
        torch.testing.assert_close(out[b : b + 1].double(), want, rtol=0, atol=8 * torch.finfo(BF16).eps)
        torch.testing.assert_close(lse[b : b + 1].double(), logarithms, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_empty_axes(layout: Any) -> None:
    for B, H, K, rows, columns in ((0, 4, 2, 5, 7), (2, 4, 2, 0, 7), (2, 0, 2, 5, 7), (2, 0, 0, 5, 7), (2, 4, 2, 5, 0)):
        given = [x.transpose(1, 2) if layout == "BNHD" else x for x in operands(B, H, K, rows, columns, 16, 32)]
        out, lse = kgen.attention(*given, layout=layout, causal=True, lse=True)
        assert (out.transpose(1, 2) if layout == "BNHD" else out).shape == (B, H, rows, 32)
        assert lse.shape == (B, H, rows)
        assert (out == 0).all() and (lse == -math.inf).all()  # noqa: PT018


def test_what_does_not_fit() -> None:
    q, k, v = operands(1, 4, 2, 5, 7, 16, 16)
    wide = torch.zeros(1, 2, 7, 1032, dtype=F16)
    for message, given, options in (
        (
            "float32, float32, float32; expected float16 or bfloat16 of all: use half",
            (q.float(), k.float(), v.float()),
            {},
        ),
        ("bfloat16, float16, float16", (q.bfloat16(), k, v), {}),
        ("a multiple of 2 heads", (q[:, :3], k, v), {}),
        (r"and v \[1, 2, 7, E\]", (q, k, v[:, :1]), {}),
        (r"and v \[1, 1, 7, E\]", (q, k[:, :1], v), {}),
        (r"expected k \[1, 2, 7, 16\]", (q, k[..., :8], v), {}),
        ("four axes", (q[0], k[0], v[0]), {}),
        ("heads of at most 1024 columns", (q, k, wide), {}),
        ("k is list", (q, [1], v), {}),
        ("window is 3; expected two ints", (q, k, v), {"window": 3}),
        (r"window is \(1.5, 0\)", (q, k, v), {"window": (1.5, 0)}),
        (r"bias \[3, 7\]; expected what broadcasts", (q, k, v), {"bias": q.new_zeros(3, 7)}),
        (
            "bias int32; expected float16, as q, float32 or bool",
            (q, k, v),
            {"bias": torch.ones(5, 7, dtype=torch.int32)},
        ),
        ("bias bfloat16; expected float16", (q, k, v), {"bias": torch.ones(5, 7, dtype=BF16)}),
        (r"sinks float32 \[2\]; expected float32, float16 or bfloat16 \[4\]", (q, k, v), {"sinks": torch.zeros(2)}),
        (r"sinks int64 \[4\]", (q, k, v), {"sinks": torch.zeros(4, dtype=torch.int64)}),
        ("sinks is list", (q, k, v), {"sinks": [0.0] * 4}),
        ("dropout_p without a seed", (q, k, v), {"dropout_p": 0.1}),
        ("dropout_p is 1.5; expected a float from 0 to 1", (q, k, v), {"dropout_p": 1.5, "seed": 0}),
        ("dropout_p is str 'half'; expected a float", (q, k, v), {"dropout_p": "half", "seed": 0}),
        ("seed is .*0.5", (q, k, v), {"dropout_p": 0.5, "seed": 0.5}),
        ("scale is -1", (q, k, v), {"scale": -1.0}),
        ("causal is 'lower'", (q, k, v), {"causal": "lower"}),
        (r"lengths int64 \[1\]; expected int32 \[1\]", (q, k, v), {"lengths": torch.tensor([3])}),
        (r"lengths int32 \[2\]; expected int32 \[1\]", (q, k, v), {"lengths": torch.zeros(2, dtype=torch.int32)}),
        (r"expected pages int32 \[1, pages", (q, k, v), {"pages": torch.zeros(1, 3)}),
        ("a multiple of 8 keys, got 2", (q, k[:, :, :4], v[:, :, :4]), {"pages": torch.zeros(1, 3, dtype=torch.int32)}),
        (
            "accumulate is torch.float16 for q of bfloat16; expected torch.float32, or torch.float16 for q of float16",
            (q.bfloat16(), k.bfloat16(), v.bfloat16()),
            {"accumulate": F16},
        ),
        ("accumulate is torch.bfloat16 for q of float16", (q, k, v), {"accumulate": BF16}),
        ("upper_left with lengths", (q, k, v), {"lengths": torch.zeros(1, dtype=torch.int32), "causal": "upper_left"}),
    ):
        with pytest.raises(ArgumentError, match=message):
            kgen.attention(*given, **options)


@kgen.operator
def masked(
    q: kgen.Tensor[f16, ..., M, D], k: kgen.Tensor[f16, ..., N, D], v: kgen.Tensor[f16, ..., N, E],
    mask: kgen.Tensor[bool_, ..., M, N],
) -> kgen.Tensor[f32, ..., M, E]:  # fmt: skip
    return cast(kgen.softmax(where(mask, q @ k.T * 0.25, -math.inf)), f16) @ v


@kgen.operator
def sinks(
    q: kgen.Tensor[f16, ..., G, M, D], k: kgen.Tensor[f16, ..., G, N, D], v: kgen.Tensor[f16, ..., G, N, E],
    sink: kgen.Tensor[f32, G, 1, 1],
) -> kgen.Tensor[f16, ..., G, M, E]:  # fmt: skip
    scores = where(arange(M, 1) >= arange(N), q @ k.T * 0.25, -math.inf)
    maximum = F.amax(scores)
    exponentials = F.exp(scores - maximum)
    return cast(exponentials / (F.sum(exponentials) + F.exp(sink - maximum)), f16) @ v


@kgen.operator
def gated(
    q: kgen.Tensor[f16, ..., M, D], k: kgen.Tensor[f16, ..., N, D], v: kgen.Tensor[f16, ..., N, E],
    gate: kgen.Tensor[f16, ..., M, E],
) -> kgen.Tensor[f16, ..., M, E]:  # fmt: skip
    return cast(kgen.softmax(q @ k.T * 0.25), f16) @ v * gate


@kgen.operator
def mixed(
    q: kgen.Tensor[f16, ..., M, D], k: kgen.Tensor[f16, ..., N, D], v: kgen.Tensor[kgen.bf16, ..., N, E]
) -> kgen.Tensor[kgen.bf16, ..., M, E]:
    return cast(kgen.softmax(q @ k.T * 0.25), kgen.bf16) @ v


P = dims("P")[0]


@kgen.operator
def taken(
    q: kgen.Tensor[f16, ..., M, D], k: kgen.Tensor[f16, P, D], v: kgen.Tensor[f16, P, E], rows: kgen.Tensor[i32, ..., N]
) -> kgen.Tensor[f16, ..., M, E]:
    return cast(kgen.softmax(q @ take(k, rows).T * 0.25), f16) @ take(v, rows)


def test_each_head_has_rows_of_its_own() -> None:
    """Keys that are named by rows of one matrix are not shared for that."""
    q, k, v = operands(2, 3, 3, 1, 70, 16, 32)
    rows = torch.randint(0, 70, (2, 3, 40), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    with kgen.emulate():
        out = taken(q, k[0, 0], v[0, 0], rows)
    own_k, own_v = k[0, 0][rows.long()].double(), v[0, 0][rows.long()].double()
    want = torch.softmax(q.double() @ own_k.mT / 4, -1) @ own_v
    torch.testing.assert_close(out.double(), want, rtol=0, atol=8 * torch.finfo(F16).eps)


def test_definitions_of_the_users() -> None:
    """A mask as data with results in f32; what is no number of a row alone; what follows the products; two dtypes."""
    q, k, v = operands(2, 3, 3, 40, 70, 16, 32)
    scores, causal = q.double() @ k.double().mT / 4, torch.arange(40)[:, None] >= torch.arange(70)
    mask, sink, gate = torch.rand(2, 3, 40, 70) < 0.6, torch.randn(3, 1, 1), torch.randn(2, 3, 40, 32).to(F16)
    with_sink = torch.cat([scores.masked_fill(~causal, -math.inf), sink.double().expand(2, 3, 40, 1)], -1)
    plain = torch.softmax(scores, -1) @ v.double()
    with kgen.emulate():
        for out, want in (
            (masked(q, k, v, mask), torch.softmax(scores.masked_fill(~mask, -math.inf), -1) @ v.double()),
            (sinks(q, k, v, sink), torch.softmax(with_sink, -1)[..., :-1] @ v.double()),
            (gated(q, k, v, gate), plain * gate.double()),
            (mixed(q, k, v.bfloat16()), torch.softmax(scores, -1) @ v.bfloat16().double()),
        ):
            error = 8 * torch.finfo(BF16 if out.dtype == BF16 else F16).eps
            torch.testing.assert_close(out.double(), want, rtol=0, atol=error)


def test_wide_heads_of_a_definition_are_refused_by_name() -> None:
    q, k, v = operands(1, 1, 1, 4, 4, 16, 1032)
    with kgen.emulate(), pytest.raises(ConfigError, match="expected: heads have at most 1024 columns"):
        masked(q, k, v, torch.ones(1, 1, 4, 4, dtype=torch.bool))
