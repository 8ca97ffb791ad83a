"""kgen.attention with a prefix that batches share, against float64 over the prefix and each batch's own keys in one piece."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_reference import expected, operands
from torch import Tensor

import kgen
from kgen.dsl.errors import ArgumentError
from kgen.runtime import prefix as of_prefix

F16, BF16 = torch.float16, torch.bfloat16


def drawn(
    B: int, H: int, K: int, M: int, N: int, P: int, D: int = 32, E: int = 48, dtype: torch.dtype = F16
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    q, k, v = operands(B, H, K, M, P + N, D, E, dtype)
    return q, k[:, :, P:], v[:, :, P:], (k[0, :, :P], v[0, :, :P])


def whole(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor], lengths: Any = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """The result and lse in float64. A window counts from the last key, causal or not."""
    results = []
    for b in range(q.shape[0]):
        there = k.shape[2] if lengths is None else min(max(lengths[b], 0), k.shape[2])
        keys, values = (torch.cat([p[None], x[b : b + 1, :, :there]], 2) for p, x in zip(prefix, (k, v)))
        left, right = options.get("window", (None, None))
        place = torch.arange(q.shape[2])[:, None] + keys.shape[2] - q.shape[2] - torch.arange(keys.shape[2])
        seen = torch.ones_like(place, dtype=torch.bool) if left is None else place <= left
        seen &= place >= 0 if options.get("causal") else seen
        seen &= place >= -right if right is not None else seen
        own = {name: x for name, x in options.items() if name not in ("causal", "window")}
        results.append(expected(q[b : b + 1], keys, values, bias=seen, **own))
    out, lse = (torch.cat(x) for x in zip(*results))
    return out, lse


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: tuple[Tensor, Tensor],
    layout: Any = "BHND",
    lengths: Any = None,
    **options: Any,
) -> None:
    want, logarithms = whole(q, k, v, prefix, lengths, **options)
    given, shared = (
        [x.transpose(-3, -2).contiguous() if layout == "BNHD" else x for x in of] for of in ((q, k, v), prefix)
    )
    if lengths is not None:
        options["lengths"] = torch.tensor(lengths, dtype=torch.int32)
    with kgen.emulate():
        out, lse = kgen.attention(*given, prefix=(shared[0], shared[1]), layout=layout, lse=True, **options)
        alone = kgen.attention(*given, prefix=(shared[0], shared[1]), layout=layout, **options)
    assert out.dtype == q.dtype
    assert lse.dtype == torch.float32
    assert torch.equal(out, alone)
    out = out.transpose(1, 2) if layout == "BNHD" else out
    # Weights and results are rounded once each: two roundings of the largest value.
    largest = max([x.nan_to_num().abs().max().item() for x in (v, prefix[1]) if x.numel()])
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2 * torch.finfo(q.dtype).eps * largest)
    torch.testing.assert_close(lse.double(), logarithms, rtol=1e-5, atol=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": "lower_right", "scale": 0.3},
    {"causal": True, "softcap": 3.0},
    {"window": (60, 5)},  # from within the prefix on
    {"window": (30, 2), "causal": True},  # nothing of the prefix
    {"window": (None, -45)},  # nothing of their own
    {"window": (70, -20), "sinks": (6,)},
    {"sinks": (6,), "causal": True},
]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("dtype", "layout"), [(F16, "BHND"), (BF16, "BNHD")], ids=str)
def test_options(dtype: torch.dtype, layout: str, rows: int) -> None:
    given = drawn(3, 6, 2, rows, 40, 70, dtype=dtype)
    for options in OPTIONS:
        sinks = {"sinks": torch.linspace(-2, 3, 6).to(dtype)} if "sinks" in options else {}
        check(*given, layout=layout, **(options | sinks))


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (1, {}),
        (1, {"causal": True}),
        (4, {"causal": True}),
        (3, {"window": (50, 0)}),
        (4, {"causal": True, "sinks": True}),
    ],
)
def test_lengths(rows: int, options: dict[str, Any]) -> None:
    """None of their own, fewer than there are rows, some, all; NaN behind them makes no difference."""
    lengths = [0, 2, 17, 40, -5]
    q, k, v, prefix = drawn(len(lengths), 8, 2, rows, 40, 33, dtype=BF16)
    for b, n in enumerate(lengths):
        k[b, :, max(n, 0) :] = v[b, :, max(n, 0) :] = math.nan
    sinks = {"sinks": torch.linspace(-2, 3, 8)} if "sinks" in options else {}
    check(q, k, v, prefix, lengths=lengths, **(options | sinks))
    check(q, k, v, prefix, "BNHD", lengths=lengths, **(options | sinks))


@pytest.mark.parametrize(("rows", "options"), [(1, {}), (3, {"causal": True}), (2, {"window": (20, 0), "sinks": True})])
@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_pages(rows: int, options: dict[str, Any], layout: Any) -> None:
    """A prefix in pages of the pool that has the batches' own: NaN in pages of nobody makes no difference."""
    size, lengths, K, D, E = 8, [0, 5, 16], 2, 32, 48
    q, k, v, prefix = drawn(len(lengths), 8, K, rows, 16, 3 * size, D, E)
    sinks = {"sinks": torch.linspace(-2, 3, 8)} if "sinks" in options else {}
    want, logarithms = whole(q, k, v, prefix, lengths, **(options | sinks))
    pool = torch.full((12, 2, size, K, E), math.nan, dtype=F16)
    order = torch.randperm(12).int()
    shared, pages = order[:3], order[3:9].reshape(3, 2)
    pool[shared.long(), 0, ..., :D], pool[shared.long(), 1] = (
        x.transpose(0, 1).unflatten(0, (3, size)) for x in prefix
    )
    for b, n in enumerate(lengths):
        for j in range(n):
            pool[pages[b, j // size], 0, j % size, :, :D], pool[pages[b, j // size], 1, j % size] = (
                k[b, :, j],
                v[b, :, j],
            )
    given = q.transpose(1, 2).contiguous() if layout == "BNHD" else q
    with kgen.emulate():
        out, lse = kgen.attention(
            given, pool[:, 0, ..., :D], pool[:, 1], pages=pages, prefix=shared, layout=layout, lse=True,
            lengths=torch.tensor(lengths, dtype=torch.int32), **(options | sinks),
        )  # fmt: skip
    out = out.transpose(1, 2) if layout == "BNHD" else out
    torch.testing.assert_close(out.double(), want, rtol=0, atol=8 * torch.finfo(F16).eps)
    torch.testing.assert_close(lse.double(), logarithms, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_that_see_no_key(rows: int) -> None:
    q, k, v, prefix = drawn(2, 4, 2, rows, 20, 30)
    with kgen.emulate():
        out, lse = kgen.attention(q, k, v, prefix=prefix, window=(None, -60), lse=True)
    assert (out == 0).all()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_empty_parts(layout: Any) -> None:
    """No prefix, no keys of their own, neither; with sinks, which count once."""
    sinks = torch.tensor([0.5, -math.inf, 9.0, -1.0])
    for own, shared in ((20, 0), (0, 30), (0, 0)):
        for options in ({}, {"sinks": sinks}, {"window": (9, 9)}):
            if own or shared:
                check(*drawn(2, 4, 2, 3, own, shared), layout=layout, **options)  # type: ignore[arg-type]
    q, k, v, prefix = drawn(2, 4, 2, 3, 0, 0)
    out, lse = kgen.attention(q, k, v, prefix=prefix, lse=True, sinks=sinks)
    assert (out == 0).all()
    assert torch.equal(lse, sinks[None, :, None].expand(2, 4, 3))


@pytest.mark.parametrize(("B", "H", "K", "rows"), [(0, 4, 2, 5), (2, 4, 2, 0), (2, 0, 2, 5), (2, 0, 0, 5)])
def test_empty_axes(B: int, H: int, K: int, rows: int) -> None:
    q, k, v = operands(B, H, K, rows, 7, 16, 32)
    out, lse = kgen.attention(
        q, k, v, prefix=(torch.zeros(K, 9, 16, dtype=F16), torch.zeros(K, 9, 32, dtype=F16)), lse=True
    )
    assert out.shape == (B, H, rows, 32)
    assert lse.shape == (B, H, rows)


def test_heads_beyond_256_columns() -> None:
    check(*drawn(2, 4, 1, 1, 20, 40, 320, 288), causal=True)


def test_it_is_as_accurate_as_one_pass() -> None:
    """Parts that were rounded to 16 bits before they are merged would have a quarter more of error."""
    q, k, v, prefix = drawn(4, 8, 2, 1, 96, 128, 64, 64, BF16)
    keys, values = (torch.cat([p.expand(4, -1, -1, -1), x], 2) for p, x in zip(prefix, (k, v)))
    want = whole(q, k, v, prefix)[0]
    with kgen.emulate():
        apart, once = kgen.attention(q, k, v, prefix=prefix), kgen.attention(q, keys, values)
    errors = [(x.double() - want).square().mean().sqrt() for x in (apart, once)]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize(("layout", "rows"), [("BHND", 1), ("BNHD", 1), ("BNHD", 4)])
def test_all_rows_are_one_sequence_s(layout: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a copy: the prefix's keys have no batch, and queries are where they were."""
    q, k, v, prefix = drawn(3, 6, 2, rows, 16, 24)
    given = [x.transpose(1, 2).contiguous() if layout == "BNHD" else x for x in (q, k, v)]
    shared = [x.transpose(0, 1).contiguous() if layout == "BNHD" else x for x in prefix]
    seen, call = [], of_prefix.call_variant
    monkeypatch.setattr(
        of_prefix, "call_variant", lambda *given, **named: seen.append(given[1]) or call(*given, **named)
    )
    kgen.attention(*given, prefix=(shared[0], shared[1]), layout=layout)
    ((queries, keys, values),) = seen
    assert queries.shape == (2, 3, 3 * rows, 32)
    assert (keys.shape, values.shape) == ((2, 1, 24, 32), (2, 1, 24, 48))
    assert [x.data_ptr() for x in (queries, keys, values)] == [x.data_ptr() for x in (given[0], *shared)]


def test_merging() -> None:
    """Rows that one part, or neither, has a key of; logarithms far apart and far from 0."""
    a, b = torch.randn(6, 40), torch.randn(6, 40)
    a_lse = torch.tensor([0.0, -math.inf, 5.0, -math.inf, 3e4, -200.0])
    b_lse = torch.tensor([1.0, 2.0, -math.inf, -math.inf, 3e4 + 1, 900.0])
    a[a_lse == -math.inf], b[b_lse == -math.inf] = 0, 0
    shares = torch.stack([a_lse, b_lse]).double().softmax(0).nan_to_num(0)
    want = shares[0, :, None] * a + shares[1, :, None] * b
    for merge, dtype in ((kgen.merge_attention_f16, F16), (kgen.merge_attention_bf16, BF16)):
        with kgen.emulate():
            out = merge(a, b, a_lse[:, None], b_lse[:, None])
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_one_graph_of_torch_compile(layout: Any) -> None:
    torch._dynamo.reset()
    lengths = torch.tensor([2, 9], dtype=torch.int32)
    pages, pool = torch.tensor([[3, 1], [0, 4]], dtype=torch.int32), torch.randn(6, 8, 2, 16).to(BF16)

    def function(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Any:
        one = kgen.attention(q, k, v, prefix=(keys, values), layout=layout, causal=True, lengths=lengths, lse=True)
        other = kgen.attention(q, k, v, prefix=(keys, values), layout=layout, window=(12, 3))
        paged = kgen.attention(q, pool, pool, pages=pages, prefix=pages[0], layout=layout, lengths=lengths, causal=True)
        return *one, other, paged

    q, k, v, prefix = drawn(2, 4, 2, 3, 12, 20, 16, 16, BF16)
    given = [x.transpose(-3, -2).contiguous() if layout == "BNHD" else x for x in (q, k, v, *prefix)]
    run = torch.compile(function, fullgraph=True, backend="aot_eager")
    for got, want in zip(run(*given), function(*given)):
        torch.testing.assert_close(got, want)


def test_what_does_not_fit() -> None:
    q, k, v, prefix = drawn(2, 4, 2, 3, 12, 20, 16, 16)
    keys, values = prefix
    pages = torch.zeros(2, 1, dtype=torch.int32)
    for message, given, options in (
        ("bias with prefix; expected no bias", prefix, {"bias": torch.zeros(3, 12, dtype=F16)}),
        ("dropout_p with prefix", prefix, {"dropout_p": 0.5, "seed": 1}),
        ("causal is upper_left with prefix; expected lower_right", prefix, {"causal": "upper_left"}),
        (r"prefix is Tensor; expected two tensors, \(k_prefix, v_prefix\)", keys, {}),
        ("v_prefix is int 3; expected a torch tensor", (keys, 3), {}),
        (r"k_prefix float16 \[1, 20, 16\], BHND; expected float16 \[2, 20, 16\]", (keys[:1], values), {}),
        (r"k_prefix float16 \[1, 2, 20, 16\], BHND; expected float16 \[2, 'P', 16\]", (keys[None], values), {}),
        (r"v_prefix float16 \[2, 19, 16\], BHND; expected float16 \[2, 20, 16\]", (keys, values[:, 1:]), {}),
        (r"k_prefix bfloat16 \[2, 20, 16\], BHND; expected float16", (keys.bfloat16(), values), {}),
    ):
        with pytest.raises(ArgumentError, match=message):
            kgen.attention(q, k, v, prefix=given, **options)  # type: ignore[arg-type]
    pool = torch.zeros(3, 8, 2, 16, dtype=F16)
    with pytest.raises(ArgumentError, match="attention: prefix with pages is tuple"):
        kgen.attention(q, pool, pool, pages=pages, prefix=prefix)
    with pytest.raises(ArgumentError, match=r"prefix int64 \[4\] with pages; expected int32 \[L\]"):
        kgen.attention(q, pool, pool, pages=pages, prefix=torch.arange(4))
    with pytest.raises(ArgumentError, match="a gradient with lengths, pages or a prefix; expected a call under"):
        kgen.attention(q, k, v, prefix=(keys.requires_grad_(), values))
    one, small = torch.ones(1), [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    with pytest.raises(ArgumentError, match="scales with prefix"):
        kgen.attention(*small, prefix=prefix, scales=(one, one, one), dtype=F16)
