"""Gradients through kgen.attention on CPU tensors, against float64 autograd: options, lengths, widths, hard values, memory."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_reference import expected, operands, rounding
from torch import Tensor

import kgen
from kgen.dsl import functions as F
from kgen.dsl.any_order import unordered
from kgen.dsl.family import normalised
from kgen.dsl.gradient import backward, training
from kgen.dsl.problem import Problem
from kgen.dsl.program import program_of
from kgen.dsl.target import Target
from kgen.gpu.target import resolve
from kgen.ops.attention.heads import variant
from kgen.runtime import call, dispatch
from kgen.runtime.operator import KernelOperator

ROOT = Path(__file__).parents[2]
F16, BF16 = torch.float16, torch.bfloat16
M, N, D, E = kgen.dims("M N D E")


def check(q: Tensor, k: Tensor, v: Tensor, layout: Any = "BHND", of_lse: bool = False, **options: Any) -> list[Tensor]:
    """The gradients of q, k and v."""
    given = [x.transpose(1, 2) if layout == "BNHD" else x for x in (q, k, v)]
    given = [x.detach().requires_grad_() for x in given]
    twins = [x.detach().double().requires_grad_() for x in (q, k, v)]
    meant = {name: value for name, value in options.items() if name != "accumulate"}
    want, logarithms = expected(*twins, **meant)
    seed, weight = (
        torch.randn(x.shape, generator=torch.Generator().manual_seed(3)).to(q.dtype) for x in (want, logarithms)
    )
    results = kgen.attention(*given, layout=layout, lse=of_lse, **options)
    out = results[0] if of_lse else results
    total = (out * (seed.transpose(1, 2) if layout == "BNHD" else seed)).float().sum()
    wanted = (want * seed.double()).sum()
    if of_lse:
        total, wanted = total + (results[1] * weight).sum(), wanted + (logarithms * weight).sum()
    found = torch.autograd.grad(total, given)
    bounds = rounding(q, k, v, seed, **meant)
    for x, twin, error in zip(found, torch.autograd.grad(wanted, twins), bounds):
        x = x.transpose(1, 2) if layout == "BNHD" else x
        torch.testing.assert_close(x.double(), twin, rtol=0, atol=error)
    return list(found)


def test_gradients_of_sums_in_f16_are_summed_in_f32() -> None:
    check(*operands(1, 4, 2, 40, 60, 32, 32), causal="lower_right", of_lse=True, accumulate=F16)


@pytest.mark.parametrize(("dtype", "layout"), [(F16, "BHND"), (BF16, "BNHD")], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "of_lse": True},
        {"causal": "lower_right", "scale": 0.3},
        {"window": (9, 5), "softcap": 3.0},
        {"window": (None, -2)},
        {"dropout_p": 0.3, "seed": 7, "of_lse": True},
        {"dropout_p": 0.5, "seed": 2**33, "causal": True, "sinks": torch.linspace(-1, 1, 6)},
    ],
    ids=str,
)
def test_options(options: dict[str, Any], dtype: torch.dtype, layout: str) -> None:
    """Of heads that share keys, on odd lengths."""
    check(*operands(2, 6, 2, 70, 83, 32, 48, dtype), layout=layout, **options)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (64, 1), (64, 128), (113, 83), (239, 1), (108, 256)])
def test_lengths(rows: int, columns: int) -> None:
    q, k, v = operands(1, 2, 1, rows, columns, 32, 32)
    check(q, k, v)
    check(q, k, v, causal=True)
    check(q, k, v, dropout_p=0.5, seed=5)


@pytest.mark.parametrize(
    ("depth", "width"), [(16, 128), (40, 40), (59, 59), (111, 111), (160, 96), (224, 224), (256, 256)]
)
def test_widths(depth: int, width: int) -> None:
    check(*operands(1, 2, 2, 20, 37, depth, width), causal=True)


@pytest.mark.parametrize(
    ("depth", "width", "options"), [(288, 320, {}), (512, 512, {"causal": True}), (400, 512, {"window": (20, 3)})]
)
def test_heads_beyond_256_columns(depth: int, width: int, options: dict[str, Any]) -> None:
    """Blocks share the columns of results; no instruction has more than 256."""
    check(*operands(1, 4, 2, 70, 53, depth, width, F16), **options)


@pytest.mark.parametrize("arch", ["H200", "A100-SXM4-80GB", "RTX 4090"])
@pytest.mark.parametrize("width", [288, 320, 512])
def test_wide_heads_have_kernels_everywhere(width: int, arch: str) -> None:
    """On tensor cores of every kind, with what shared memory there is."""
    graph = variant("causal").graphs[0]
    made = backward(training(graph), (0,), (0, 1, 2)).graph
    assert made is not None
    problem = Problem.dense(made, {"...": (1, 2), "G": 1, "M": 512, "N": 512, "D": width, "E": width})
    target = resolve(arch)
    for launch in program_of(problem).launches:
        normal = normalised(launch)
        assert not dispatch.default(normal, target).config.broken(normal, target)


@pytest.mark.parametrize(("rows", "columns"), [(5, 0), (0, 5)])
def test_a_step_that_attends_to_nothing(rows: int, columns: int) -> None:
    """As torch's, and a batch of no tokens: gradients are 0, where an error would end the training."""
    given = [x.requires_grad_() for x in operands(1, 2, 1, rows, columns, 16, 16)]
    out, lse = kgen.attention(*given, lse=True)
    (out.sum() + lse[lse.isfinite()].sum()).backward()
    assert all(x.grad is not None and (x.grad == 0).all() for x in given)
    packed = [x.detach()[0].transpose(0, 1).requires_grad_() for x in given]
    ends = [torch.tensor([0, n], dtype=torch.int32) for n in (rows, columns)]
    kgen.attention_varlen(*packed, *ends).sum().backward()
    assert all(x.grad is not None and (x.grad == 0).all() for x in packed)


def test_rows_that_are_left_nothing() -> None:
    """Their gradients are 0, and they add nothing to those of keys and values."""
    q, k, v = operands(1, 2, 2, 90, 40, 32, 32)
    found, *_ = check(q, k, v, causal="lower_right")
    assert (found[:, :, :50] == 0).all()
    bias = torch.zeros(90, 40, dtype=F16)
    bias[3] = -math.inf
    x, y, z = (t.clone().requires_grad_() for t in (q, k, v))
    kgen.attention(x, y, z, bias=bias).float().sum().backward()
    assert x.grad is not None and (x.grad[:, :, 3] == 0).all()  # noqa: PT018
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (y, z))


def test_what_lies_beside_the_operands() -> None:
    """NaN behind their rows and columns, and weights of what is read beyond the end that would be infinite."""

    def beside(x: Tensor) -> Tensor:
        held = torch.full((*x.shape[:2], x.shape[2] + 5, x.shape[3] + 8), math.nan, dtype=x.dtype)
        return held[:, :, : x.shape[2], : x.shape[3]].copy_(x)

    q, k, v = operands(1, 2, 2, 20, 70, 32, 32)
    check(beside(q), beside(k), beside(v), causal=True)
    check(torch.full_like(q, 4), torch.full_like(k, -60) + k, v, scale=1 / 64)  # scores near -120
    huge = k.clone()
    huge[:, :, 33] *= 300
    check(q, huge, v)


def test_repeats_have_the_same_bits() -> None:
    given = operands(1, 4, 2, 70, 83, 64, 64)
    first = check(*given, causal=True)
    for again in (check(*given, causal=True) for _ in range(3)):
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.parametrize(("dtype", "causal"), [(F16, False), (torch.float32, "lower_right")], ids=str)
def test_of_sinks(dtype: torch.dtype, causal: Any) -> None:
    """Beside those of q, k and v; near the scores and far from them, none at all, and of rows that see no key."""
    q, k, v = operands(2, 6, 2, 70, 37, 32, 48)
    sinks = torch.tensor([0.5, -math.inf, 80.0, -80.0, 2.0, -1.0]).to(dtype)
    check(q, k, v, causal=causal, sinks=sinks)
    found, twin = sinks.clone().requires_grad_(), sinks.double().requires_grad_()
    out, lse = kgen.attention(q, k, v, causal=causal, sinks=found, lse=True)
    want, logarithms = expected(q, k, v, causal=causal, sinks=twin)
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).half()
    # Of a row of nothing at all the logarithm has no derivative.
    some = logarithms > -math.inf
    (of_sinks,) = torch.autograd.grad((out * seed).float().sum() + lse.masked_fill(~some, 0).sum(), [found])
    (exact,) = torch.autograd.grad((want * seed).sum() + logarithms.masked_fill(~some, 0).sum(), [twin])
    # A result is rounded, and so is each gradient; a sink's has the share that it takes of every row.
    shares = torch.exp(sinks.double()[:, None] - logarithms).nan_to_num(0)
    terms = shares * ((seed.double() * want).abs().sum(-1) + 1)
    error = torch.finfo(F16).eps * terms.sum((0, 2)) + torch.finfo(dtype).eps * exact.abs() + 1e-6
    assert of_sinks.dtype == dtype
    assert ((of_sinks.double() - exact).nan_to_num(0).abs() <= error).all()
    assert of_sinks[[0, 2, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize(("dtype", "shape"), [(F16, (1, 4, 20, 37)), (torch.float32, (1, 4, 20, 37)),
                                              (torch.float32, (20, 37))], ids=str)  # fmt: skip
def test_of_a_bias(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    q, k, v = operands(1, 4, 2, 20, 37, 32, 32)
    bias = torch.randn(shape).to(dtype).requires_grad_()
    twin = bias.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(kgen.attention(q, k, v, bias=bias).float().sum(), [bias])
    (want,) = torch.autograd.grad(expected(q, k, v, bias=twin)[0].sum(), [twin])
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), want, rtol=0, atol=4 * torch.finfo(F16).eps * float(want.abs().max()))


def test_beside_a_bias_of_f32_or_bool() -> None:
    q, k, v = operands(2, 4, 2, 20, 37, 32, 48, BF16)
    check(q, k, v, bias=torch.randn(2, 1, 20, 37), causal="lower_right")
    seen = torch.rand(2, 4, 20, 37) < 0.5
    seen[..., 0] = True  # of a row of nothing autograd in float64 has NaN
    check(q, k, v, bias=seen, softcap=3.0)


@kgen.operator
def slopes(
    q: kgen.Tensor[kgen.f16, ..., M, D], k: kgen.Tensor[kgen.f16, ..., N, D], v: kgen.Tensor[kgen.f16, ..., N, E]
) -> kgen.Tensor[kgen.f16, ..., M, E]:
    """A score of a user's own: softcap, a distance's slope, and a window."""
    i, j = kgen.arange(M, 1), kgen.arange(N)
    scores = 5.0 * F.tanh((q @ k.T) * 0.05) - 0.25 * kgen.cast(abs(i - j), kgen.f32)
    return kgen.cast(kgen.softmax(kgen.where(j <= i, scores, -math.inf)), kgen.f16) @ v


def test_of_a_score_of_the_users() -> None:
    q, k, v = (x[0] for x in operands(1, 2, 2, 70, 70, 32, 32))
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    twins = [x.double().requires_grad_() for x in (q, k, v)]
    slopes(*given).float().sum().backward()
    distance = (torch.arange(70)[:, None] - torch.arange(70)).abs()
    scores = 5 * torch.tanh(twins[0] @ twins[1].mT * 0.05) - 0.25 * distance
    scores = scores.masked_fill(torch.ones(70, 70).triu(1).bool(), -math.inf)
    (torch.softmax(scores, -1) @ twins[2]).sum().backward()
    for x, twin in zip(given, twins):
        assert x.grad is not None
        error = 4 * torch.finfo(F16).eps * float(twin.grad.abs().max())  # type: ignore[union-attr]
        torch.testing.assert_close(x.grad.double(), twin.grad, rtol=0, atol=error)


def is_served_in_any_order(problem: Problem, target: Target) -> bool:
    """Whether there is a config, however slow by the model."""
    return math.isfinite(call._modelled(problem, target))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("shape", [(2, 6, 2, 150, 83, 64, 64), (1, 2, 2, 140, 300, 128, 96), (1, 2, 1, 1, 1, 32, 32)])
def test_sums_in_any_order(
    shape: tuple[int, int, int, int, int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass where a kernel has it; where none does (a bias), what repeats in every bit."""
    monkeypatch.setattr(call, "any_order_pays", is_served_in_any_order)
    q, k, v = operands(*shape, dtype)
    check(q, k, v)
    check(q, k, v, causal=True, layout="BNHD")
    check(q, k, v, window=(9, 5))
    check(q, k, v, bias=torch.randn(shape[3], shape[4]).to(dtype))


def test_keys_beyond_the_end_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of what is read beyond the end, which would be infinite, add nothing to the queries' gradient."""
    monkeypatch.setattr(call, "any_order_pays", is_served_in_any_order)
    q, k, v = operands(1, 2, 2, 70, 70, 64, 64)
    check(torch.full_like(q, 4), torch.full_like(k, -60) + k, v, scale=1 / 64)  # scores near -240


def test_determinism_is_torchs_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    derived = KernelOperator.derived

    def seen(self: KernelOperator, graphs: Any, summary: str) -> KernelOperator:
        names.append(graphs[0].name)
        return derived(self, graphs, summary)

    monkeypatch.setattr(KernelOperator, "derived", seen)
    monkeypatch.setattr(call, "any_order_pays", is_served_in_any_order)
    given = operands(1, 2, 2, 20, 37, 64, 64)
    check(*given)
    torch.use_deterministic_algorithms(True)
    try:
        check(*given)
    finally:
        torch.use_deterministic_algorithms(False)
    found = [name for name in names if "_grad" in name]
    assert [name.endswith("_unordered") for name in found] == [True, False]


def gradients_in_any_order(causal: bool, case: Sequence[int]) -> Problem:
    d, rows, batch, heads = case
    made = backward(training(variant("causal" if causal else "full").graphs[0]), (0,), (0, 1, 2)).graph
    assert made is not None
    return Problem.dense(unordered(made), {"...": (batch, heads), "G": 1, "M": rows, "N": rows, "D": d, "E": d})


def test_any_order_is_taken_where_it_was_faster() -> None:
    """The model's choice costs little of what was measured."""
    rows = json.loads((ROOT / "benchmarks/results/h100/attention_gradient_one_pass.json").read_text())["rows"]
    lost = []
    for row in rows:
        rates = {name: rate for name, rate in row["tflops"].items() if name == "ordered" or "ping-pong" in name}
        pays = call.any_order_pays(gradients_in_any_order(row["causal"], row["case"]), resolve("H100 SXM"))
        chosen = max(rate for name, rate in rates.items() if (name != "ordered") == pays)
        lost.append(1 - chosen / max(rates.values()))
    assert statistics.mean(lost) < 0.01
    assert max(lost) < 0.1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [64, 128])
def test_few_rows_are_left_to_three_launches(width: int, causal: bool) -> None:
    """By the model: one pass has as many tiles as the other two, and sums to finish besides."""
    assert not call.any_order_pays(gradients_in_any_order(causal, (width, 200, 1, 16)), resolve("H200"))
