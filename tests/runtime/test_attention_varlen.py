"""kgen.attention_varlen on CPU tensors, sequence by sequence against float64: masks, empty sequences, gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from attention_reference import expected, rounding
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import kgen
from kgen.dsl.errors import ArgumentError
from kgen.runtime.varlen import ranges

F16, BF16 = torch.float16, torch.bfloat16
#: Several short sequences of one tile, one without queries, one without keys, one of many tiles; rows behind the last.
QUERIES, KEYS = (3, 0, 9, 1, 70, 20, 2), (5, 4, 9, 0, 83, 7, 1)


def offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def packed(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    H: int,
    K: int,
    D: int,
    E: int,
    dtype: torch.dtype = F16,
    behind: int = 0,
) -> list[Tensor]:
    source = torch.Generator().manual_seed(sum(queries) + D)
    shapes = (sum(queries) + behind, H, D), (sum(keys) + behind, K, D), (sum(keys) + behind, K, E)
    return [torch.randn(shape, generator=source).to(dtype) for shape in shapes]


def alone(x: Tensor, cu: Tensor, b: int) -> Tensor:
    """One sequence, [1, heads, rows, columns]."""
    return x[cu[b] : cu[b + 1]].transpose(0, 1)[None]


def check(queries: tuple[int, ...], keys: tuple[int, ...] | None, given: list[Tensor], **options: Any) -> None:
    """The results, and where the operands require gradients these too."""
    cu_q, cu_k = offsets(queries), offsets(queries if keys is None else keys)
    twins = [x.detach().double().requires_grad_() for x in given]
    differentiated = given[0].requires_grad
    seed = torch.randn(*given[0].shape[:2], given[2].shape[2], generator=torch.Generator().manual_seed(3)).to(
        given[0].dtype
    )
    with kgen.emulate(checks=not differentiated):
        out, lse = kgen.attention_varlen(*given, cu_q, None if keys is None else cu_k, lse=True, **options)
        found = torch.autograd.grad((out * seed).float().sum(), given) if differentiated else ()
    assert out.shape == seed.shape
    assert lse.shape == out.shape[1::-1]
    assert (out[cu_q[-1] :] == 0).all()
    nothing = options["sinks"][:, None] if "sinks" in options else torch.tensor(-math.inf)
    assert (lse[:, cu_q[-1] :] == nothing).all()
    own = {name: (None, None) if name == "window" and x is None else x for name, x in options.items()}
    total, bounds = torch.zeros((), dtype=torch.float64), [0.0] * 3
    for b in range(len(queries)):
        sequence = [alone(x, cu, b) for x, cu in zip(twins, (cu_q, cu_k, cu_k))]
        want, logarithms = expected(*sequence, **own)
        error = 2 * torch.finfo(out.dtype).eps * given[2].double().abs().max().item()
        torch.testing.assert_close(alone(out, cu_q, b).double(), want, rtol=0, atol=error)
        torch.testing.assert_close(lse[:, cu_q[b] : cu_q[b + 1]][None].double(), logarithms, rtol=1e-5, atol=1e-5)
        total = total + (want * alone(seed, cu_q, b).double()).sum()
        if differentiated and queries[b] and sequence[1].shape[2]:
            halves = [alone(x, cu, b).detach() for x, cu in zip(given, (cu_q, cu_k, cu_k))]
            bounds = list(map(max, bounds, rounding(*halves, alone(seed, cu_q, b), **own)))
    for x, twin, error in zip(found, torch.autograd.grad(total, twins) if found else (), bounds):
        torch.testing.assert_close(x.double(), twin, rtol=0, atol=error)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (F16, {}),
        (BF16, {"causal": True}),
        (F16, {"causal": "lower_right", "scale": 0.3}),
        (BF16, {"window": (9, 5), "softcap": 3.0}),
        (F16, {"causal": "lower_right", "window": (4, None)}),
        (F16, {"window": (None, -2)}),
        (BF16, {"causal": True, "sinks": torch.linspace(-2, 3, 6)}),
    ],
    ids=str,
)
def test_options(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Of heads that share keys, with rows behind the last sequence."""
    check(QUERIES, KEYS, packed(QUERIES, KEYS, 6, 2, 32, 48, dtype, behind=5), **options)


@pytest.mark.parametrize("lengths", [(40,), (1,) * 20, (0, 0, 33, 0), (64, 64)], ids=str)
def test_of_themselves(lengths: tuple[int, ...]) -> None:
    """Queries and keys of the same lengths: one sequence, many of one row, empty ones at both ends, whole tiles."""
    check(lengths, None, packed(lengths, lengths, 2, 2, 32, 32), causal=True)


@pytest.mark.parametrize(
    "options", [{}, {"causal": "lower_right", "sinks": torch.ones(4)}, {"window": (9, 5), "softcap": 3.0}], ids=str
)
def test_gradients(options: dict[str, Any]) -> None:
    given = [x.requires_grad_() for x in packed(QUERIES, KEYS, 4, 2, 32, 48, F16, behind=3)]
    check(QUERIES, KEYS, given, **options)


def test_one_sequence_is_attention() -> None:
    given = packed((70,), (70,), 4, 2, 64, 64)
    out = kgen.attention_varlen(*given, offsets((70,)))
    dense = kgen.attention(*(x[None] for x in given), layout="BNHD")
    torch.testing.assert_close(out, dense[0], rtol=0, atol=2 * torch.finfo(F16).eps)


def test_what_no_row_of_a_tile_sees_is_not_read() -> None:
    """NaN in sequences of other tiles: of 128 rows, a tile has whole sequences of 256."""
    lengths = (256, 256, 256)
    given = packed(lengths, lengths, 1, 1, 32, 32)
    for x in given:
        x[256:512] = math.nan
        x.requires_grad_()
    out = kgen.attention_varlen(*given, offsets(lengths), causal=True)
    for x in (out.detach(), *torch.autograd.grad(out.float().sum(), given)):
        assert x[:256].isfinite().all()
        assert x[256:512].isnan().all()
        assert x[512:].isfinite().all()


@pytest.mark.parametrize("lower_right", [False, True])
def test_the_host_reads_no_length(lower_right: bool) -> None:
    """Tensors without numbers are enough to make the ranges, so that a call can be captured."""
    with FakeTensorMode():
        cu_q, cu_k = (torch.empty(5, dtype=torch.int32) for _ in range(2))
        for x in ranges(cu_q, cu_k, 70, lower_right, 3, 0):
            assert (x.shape, x.dtype) == ((70, 1), torch.int32)


def test_empty_axes() -> None:
    for queries, keys, H, K in (((), (), 4, 2), ((0, 0), (0, 3), 4, 2), ((3, 2), (0, 0), 4, 2), ((3,), (2,), 0, 0)):
        q, k, v = packed(queries, keys, H, K, 16, 32)
        out, lse = kgen.attention_varlen(q, k, v, offsets(queries), offsets(keys), causal=True, lse=True)
        assert out.shape == (sum(queries), H, 32)
        assert lse.shape == (H, sum(queries))
        assert (out == 0).all()
        assert (lse == -math.inf).all()
    sinks = torch.arange(4.0)
    _, lse = kgen.attention_varlen(
        *packed((3,), (0,), 4, 2, 16, 32), offsets((3,)), offsets((0,)), lse=True, sinks=sinks
    )
    assert torch.equal(lse, sinks[:, None].expand(4, 3))


def test_what_does_not_fit() -> None:
    q, k, v = packed((5,), (7,), 4, 2, 16, 16)
    cu_q, cu_k = offsets((5,)), offsets((7,))
    for message, given in (
        ("float32, float32, float32; expected float16", (q.float(), k.float(), v.float(), cu_q, cu_k)),
        ("expected three axes each: rows, heads, columns", (q[None], k[None], v[None], cu_q, cu_k)),
        ("a multiple of 2 heads", (q[:, :3], k, v, cu_q, cu_k)),
        (r"expected k \[7, 2, 16\] and v \[7, 2, E\]", (q, k, v[:5], cu_q, cu_k)),
        ("as many rows of k as of q, or cu_seqlens_k", (q, k, v, cu_q)),
        (r"cu_seqlens_q int64 \[2\]; expected int32", (q, k, v, cu_q.long(), cu_k)),
        (r"cu_seqlens_k int32 \[1, 2\]; expected int32 \[B", (q, k, v, cu_q, cu_k[None])),
        ("expected as many of both", (q, k, v, cu_q, offsets((3, 4)))),
        ("cu_seqlens_q is list", (q, k, v, [0, 5], cu_k)),
    ):
        with pytest.raises(ArgumentError, match=message):
            kgen.attention_varlen(*given)
    for message, options in (
        ("window is 3; expected two ints", {"window": 3}),
        (r"sinks float32 \[2\]; expected float32, float16 or bfloat16 \[4\]", {"sinks": torch.zeros(2)}),
        ("causal is 'lower'", {"causal": "lower"}),
    ):
        with pytest.raises(ArgumentError, match=f"attention_varlen: {message}"):
            kgen.attention_varlen(q, k, v, cu_q, cu_k, **options)
