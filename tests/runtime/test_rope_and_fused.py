"""rope, dropout, weighted sums and copies on the emulator, against their meaning in float64 by torch."""

import math

import pytest
import torch

import kgen
from kgen.dsl.errors import ArgumentError
from kgen.numerics.dtypes import torch_dtype
from kgen.ops.elementwise import fused, layouts, rope

S, H, D = 5, 2, 12


def rotated(x, angles, pairs):
    """x [..., S, H, D] rotated by angles [S, D / 2], in float64."""
    x, cos, sin = x.double(), angles.cos()[:, None], angles.sin()[:, None]
    if pairs:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def frequencies(base=10000.0):
    return base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)


def angles(start=0, base=10000.0):
    return torch.arange(start, start + S, dtype=torch.float64)[:, None] * frequencies(base)


def tables(name, dtype=torch.float64, **of):
    """cos and sin as the operator takes them."""
    a = angles(**of)
    if "compact" not in name:
        a = a.repeat_interleave(2, -1) if "interleaved" in name else torch.cat([a, a], -1)
    return a.cos().to(dtype), a.sin().to(dtype)


def test_all_are_listed():
    assert {op.name for op in rope.OPERATORS} == {
        f"rope{order}{how}" for order in ("", "_interleaved") for how in ("", "_compact", "_frequencies", "_computed")
    }
    names = {"dropout", "dropout_backward", "bias_dropout_residual", *(f"weighted_sum{n}" for n in range(2, 9))}
    assert {op.name for op in fused.OPERATORS} == names


@pytest.mark.parametrize("order", ["", "_interleaved"])
@pytest.mark.parametrize("how", ["", "_compact"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rope_by_tables(dtype, how, order):
    name = f"rope{order}{how}"
    x = torch.randn(2, S, H, D, dtype=torch.float64).to(dtype)
    for kind in (torch.float32, dtype):
        cos, sin = tables(name, kind)
        got = getattr(kgen, name)(x, cos, sin)
        want = rotated(x, angles(), "interleaved" in name)
        error = torch.finfo(dtype).eps + torch.finfo(kind).eps
        assert (got.double() - want).abs().max() <= 4 * error + 1e-6


@pytest.mark.parametrize("order", ["", "_interleaved"])
def test_heads_before_positions_are_a_matter_of_strides(order):
    name = f"rope{order}"
    x = torch.randn(2, H, S, D).half()
    cos, sin = tables(name, torch.float32)
    out = torch.empty_like(x)
    getattr(kgen, name)(x.transpose(1, 2), cos, sin, out=out.transpose(1, 2))
    want = rotated(x.transpose(1, 2), angles(), bool(order)).transpose(1, 2)
    assert (out.double() - want).abs().max() < 4e-3


@pytest.mark.parametrize("start", [0, 1_000_000, 2**31 - S - 1])
@pytest.mark.parametrize("order", ["", "_interleaved"])
def test_computed_angles_are_right_at_any_position(order, start):
    x = torch.randn(S, H, D)
    want = rotated(x, angles(start), bool(order))
    by_formula = getattr(kgen, f"rope{order}_computed")(x, start=start)
    by_table = getattr(kgen, f"rope{order}_frequencies")(x, frequencies(), start=start)
    # Cosine and sine of an f32 angle within pi: 2^-23 each, for the angle's rounding; f64 products hold 2^31 * 2^-53 besides.
    assert (by_formula.double() - want).abs().max() < 3e-6
    assert (by_table.double() - want).abs().max() < 3e-6


@pytest.mark.parametrize("order", ["", "_interleaved"])
def test_gradients_of_frequencies_and_of_tables(order):
    x, grad = torch.randn(2, S, H, D).half(), torch.randn(2, S, H, D).half()
    given = frequencies().requires_grad_()
    (found,) = torch.autograd.grad(getattr(kgen, f"rope{order}_frequencies")(x, given, start=3), [given], grad)
    twin = frequencies().requires_grad_()
    position = torch.arange(3, 3 + S, dtype=torch.float64)[:, None]
    (want,) = torch.autograd.grad(rotated(x, position * twin, bool(order)), [twin], grad.double())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-4)  # of sums in f32 of some 2 * H * S * 8
    cos, sin = (t.requires_grad_() for t in tables(f"rope{order}_compact", torch.float32))
    found = torch.autograd.grad(getattr(kgen, f"rope{order}_compact")(x, cos, sin), [cos, sin], grad)
    (a, b), (c, d) = ((t[..., ::2], t[..., 1::2]) if order else t.chunk(2, -1) for t in (x.double(), grad.double()))
    torch.testing.assert_close(found[0].double(), (a * c + b * d).sum((0, 2)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].double(), (a * d - b * c).sum((0, 2)), rtol=1e-5, atol=1e-5)


def test_another_base():
    x = torch.randn(S, H, D)
    got = kgen.rope_computed(x, base=500000.0, start=131072)
    assert (got.double() - rotated(x, angles(131072, 500000.0), False)).abs().max() < 2e-6


def test_rope_of_any_strides_and_alignment():
    x = torch.randn(1 + 2 * S * H * (D + 3)).half()[1:].view(2, S, H, D + 3)[..., :D]
    for name in ("rope", "rope_interleaved", "rope_interleaved_compact"):
        cos, sin = tables(name, torch.float32)
        got = getattr(kgen, name)(x, cos, sin)
        assert (got.double() - rotated(x, angles(), "interleaved" in name)).abs().max() < 4e-3


def test_an_odd_head_or_a_short_table_is_refused():
    with pytest.raises(ArgumentError, match="the last axis has 7 elements; expected an even number, as halves of it"):
        kgen.rope_computed(torch.randn(3, 2, 7))
    with pytest.raises(ArgumentError, match="cos has 5 elements a row; expected 6, half of 12"):
        kgen.rope_compact(torch.randn(S, H, D), torch.ones(S, 5), torch.ones(S, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dropout_keeps_its_share_and_its_scale(dtype):
    x = torch.ones(100, 101, dtype=dtype)
    y = kgen.dropout(x, 0.25, seed=5, offset=2)
    assert set(y.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.75, dtype=dtype))}
    assert abs(float((y == 0).double().mean()) - 0.25) < 0.015
    assert torch.equal(kgen.dropout_backward(x, 0.25, seed=5, offset=2), y)


def test_dropout_is_the_same_for_every_layout_and_other_for_another_seed():
    x = torch.ones(38, 45)
    y = kgen.dropout(x, 0.5, seed=1)
    assert torch.equal(kgen.dropout(torch.ones(45, 38).T, 0.5, seed=1), y)
    assert torch.equal(kgen.dropout(torch.ones(38, 47)[:, 1:46], 0.5, seed=1), y)
    assert torch.equal(kgen.dropout(x.half(), 0.5, seed=1).float(), y)
    assert not torch.equal(kgen.dropout(x, 0.5, seed=2), y)
    # An offset of one is four numbers further.
    assert torch.equal(kgen.dropout(x, 0.5, seed=1, offset=1).flatten()[:-4], y.flatten()[4:])


def test_dropout_of_all_and_of_nothing():
    x = torch.randn(1000)
    assert torch.equal(kgen.dropout(x, 0.0, seed=3), x)
    assert kgen.dropout(torch.tensor([math.nan, math.inf, 1.0]), 1.0, seed=3).tolist() == [0.0, 0.0, 0.0]


def test_bias_dropout_residual():
    x, b, residual = torch.randn(6, 40), torch.randn(40), torch.randn(6, 40)
    kept = kgen.dropout(torch.ones(6, 40), 0.5, seed=9) / 2
    got = kgen.bias_dropout_residual(x, b, residual, 0.5, seed=9)
    torch.testing.assert_close(got, (x + b) * kept * 2 + residual)


@pytest.mark.parametrize("count", range(2, 9))
def test_weighted_sums(count):
    xs = [torch.randn(7, 33) for _ in range(count)]
    weights = {f"a{k}": 0.5 * k - 1 for k in range(count)}
    run = getattr(kgen, f"weighted_sum{count}")
    torch.testing.assert_close(run(*xs, **weights), sum(w * x for w, x in zip(weights.values(), xs)))
    torch.testing.assert_close(run(*xs), sum(xs))
    torch.testing.assert_close(run(xs[0], *(x[:1] for x in xs[1:])), xs[0] + sum(x[:1] for x in xs[1:]))


@pytest.mark.parametrize("dtype", [g.inputs[0].dtype for g in layouts.transpose.graphs], ids=str)
def test_transposes_and_copies_of_every_dtype(dtype):
    x = (torch.arange(2 * 9 * 17).reshape(2, 9, 17) % 16).to(torch_dtype(dtype))
    for got, want in ((kgen.transpose(x), x.mT), (kgen.contiguous(x.permute(2, 0, 1)), x.permute(2, 0, 1))):
        assert got.is_contiguous()
        assert torch.equal(got.view(torch.uint8), want.contiguous().view(torch.uint8))
