"""linear attention: every value of every field over both ways, decay, ragged lengths, layouts; which graphs it is found in."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from suite import names, run_and_compile

from kgen import emulator
from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, cast, where
from kgen.dsl.family import normalised
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule, default_of
from kgen.dsl.size import dims
from kgen.dsl.types import DType, bf16, f16, f32
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.numerics.dtypes import torch_dtype
from kgen.ops.linear_attention import LinearAttention, LinearAttentionWgmma
from kgen.ops.linear_attention.algebra import linear_attention
from kgen.ops.linear_attention.heads import variant
from kgen.runtime import dispatch
from kgen.tuner.execute import Runner

N, D, E = dims("N D E")
H200 = resolve("H200")


@pytest.mark.parametrize("name", [*names("LinearAttention"), *names("LinearAttentionWgmma")])
def test_cases(name: str) -> None:
    run_and_compile(name)


def defined(weights: Callable[[Expr, Expr], Expr], mask: Callable[[Expr, Expr], Expr] = lambda i, j: i >= j) -> Graph:
    """The graph of where(mask(i, j), weights(q @ k.T, decay), 0) @ v."""

    @Operator
    def attended(
        q: Tensor[f16, ..., N, D], k: Tensor[f16, ..., N, D], v: Tensor[f16, ..., N, E], decay: Tensor[f32, ..., 1, N]
    ) -> Tensor[f16, ..., N, E]:
        return cast(where(mask(arange(N, 1), arange(N)), weights(q @ k.T, decay), 0.0), f16) @ v

    return attended.graphs[0]


def falls(decay: Expr) -> Expr:
    total = F.cumsum(decay)
    return total.T - total


def test_forms_that_are_linear_attention() -> None:
    found = linear_attention(defined(lambda s, a: F.exp(falls(F.minimum(a, 0.0))) * (0.5 * s)))
    assert found is not None
    assert (found.q, found.k, found.v, found.decayed, found.backwards) == ("q", "k", "v", "decay", False)
    assert found.scale is not None
    for decay in (lambda a: -abs(a), lambda a: F.minimum(-0.1, a) + -1.0, lambda a: -F.sigmoid(a) * 1.0):
        expected = None if decay(_input()).op == "mul" else False
        found = linear_attention(defined(lambda s, a, decay=decay: s * F.exp(falls(decay(a)))))
        assert (found and found.backwards) is expected
    both = linear_attention(defined(lambda s, a: s * F.exp(-1.0 * falls(F.minimum(a, 0.0))), lambda i, j: i <= j))
    assert both is None  # the sign is not looked for in a factor
    turned = linear_attention(
        defined(lambda s, a: s * F.exp(F.cumsum(-abs(a)) - F.cumsum(-abs(a)).T), lambda i, j: j >= i)
    )
    assert turned is not None
    assert turned.backwards


def _input() -> Expr:
    return next(n for n in variant(decay=True).graphs[0].nodes if n.op == "input" and n.attr == "decay")


@pytest.mark.parametrize(
    ("weights", "mask"),
    [
        (lambda s, a: s * F.exp(falls(a)), None),  # decay that may grow
        (lambda s, a: s * F.exp(falls(F.maximum(a, 0.0))), None),
        (lambda s, a: s * F.exp(F.cumsum(-abs(a)) - F.cumsum(-abs(a)).T), None),  # from the later to the earlier
        (lambda s, a: s * F.exp(falls(-abs(a))) * F.exp(falls(-abs(a))), None),
        (lambda s, a: s * s * F.exp(falls(-abs(a))), None),
        (lambda s, a: s + F.exp(falls(-abs(a))), None),
        (lambda s, a: F.exp(falls(-abs(a))), None),
        (lambda s, a: s * F.exp(falls(-abs(a))), lambda i, j: i > j),
        (lambda s, a: s * F.exp(falls(-abs(a))), lambda i, j: i + 1 >= j),
        (lambda s, a: s * falls(-abs(a)), None),
    ],
)
def test_forms_that_are_not(weights: Callable[[Expr, Expr], Expr], mask: Callable[[Expr, Expr], Expr] | None) -> None:
    assert linear_attention(defined(weights, mask) if mask else defined(weights)) is None


def test_schedules_of_a_problem() -> None:
    """TMA and wgmma where rows are whole multiples of 16 bytes and results of the operands' dtype; else mma.sync."""
    sizes = {"...": (2,), "N": 300, "D": 64, "E": 64}
    problem = normalised(Problem.dense(variant(decay=False).graphs[0], sizes))
    config = dispatch.default(problem, H200).config
    assert isinstance(config, LinearAttentionWgmma)
    wide = normalised(Problem.dense(variant(decay=False, wide=True).graphs[0], sizes))
    assert [r.rule for r in config.broken(wide, H200)] == ["one_dtype"]
    assert isinstance(dispatch.default(wide, H200).config, LinearAttention)
    odd = normalised(Problem.dense(variant(decay=False).graphs[0], {**sizes, "D": 37}))
    assert [r.rule for r in config.broken(odd, H200)] == ["tensor_maps"]
    assert isinstance(dispatch.default(odd, H200).config, LinearAttention)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("backwards", [False, True])
def test_small_integers_are_exact(dtype: DType, backwards: bool) -> None:
    """The state has 16 digits where a bf16 has 8: sums of integers up to 2^15 are exact, as weights are up to 2^8."""
    source = torch.Generator().manual_seed(3)
    q, k, v = (torch.randint(-1, 2, (2, 300, 16), generator=source).to(torch_dtype(dtype)) for _ in range(3))
    v += 1  # so that the state grows beyond 2^8
    k = k.abs()
    graph = variant(decay=False, backwards=backwards, wide=True).graph({"q": dtype})
    problem = normalised(Problem.dense(graph, {"...": (2,), "N": 300, "D": 16, "E": 16}))
    mask = torch.ones(300, 300, dtype=torch.float64).tril()
    want = ((q.double() @ k.double().mT) * (mask.mT if backwards else mask)) @ v.double()
    assert (k.double().mT @ v.double()).max() > 2**7
    for config in (
        LinearAttention.default(problem, H200),
        LinearAttention(BC=16, WV=16, warps=1, stages=2, blocks_per_sm=1),
    ):
        source_code = config.source(problem)
        runner = Runner(emulator.compile(source_code), source_code, config.symbols(problem))
        out = torch.full((2, 300, 16), math.nan)
        runner.run({"q": q, "k": k, "v": v, "out": out}, {"scale": 1.0})
        assert torch.equal(out.double(), want)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_weak_decay_goes_through_all_segments(backwards: bool, overlap: bool) -> None:
    """Rows some hundred before count still, and states of 64 such rows; a last block has no whole chunk."""
    source = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 300, 64, generator=source).to(torch.bfloat16) for _ in range(3))
    decay = -0.02 * torch.rand(1, 1, 300, generator=source)
    problem = normalised(
        Problem.dense(
            variant(decay=True, backwards=backwards).graph({"q": bf16}), {"...": (1,), "N": 300, "D": 64, "E": 64}
        )
    )
    total = decay.double().cumsum(-1)
    fall = total - total.mT if backwards else total.mT - total
    mask = torch.ones(300, 300, dtype=torch.bool).tril()
    mask = mask.mT if backwards else mask
    want = ((q.double() @ k.double().mT) * fall.masked_fill(~mask, -math.inf).exp()) @ v.double()
    for segments in (1, 2, 3, 8):
        config = LinearAttentionWgmma(
            WV=64,
            consumers=1,
            stages=2,
            registers=segments == 3,
            overlap=overlap,
            segments=segments,
            blocks_per_sm=1,
            pdl=False,
        )
        source_code = config.source(problem)
        runner = Runner(emulator.compile(source_code), source_code, config.symbols(problem))
        out = torch.full((1, 300, 64), math.nan, dtype=torch.bfloat16)
        runner.run({"q": q, "k": k, "v": v, "decay": decay, "out": out}, {"scale": 1.0})
        assert (out.double() - want).abs().max() < 2**-7 * want.abs().max()


@pytest.mark.parametrize("schedule", [LinearAttention, LinearAttentionWgmma])
def test_few_registers_spill_nothing(schedule: type[Schedule]) -> None:
    """The defaults of heads of 64 and 128 columns, as a GPU would run them; those of 256 spill a few words."""
    for decay, (width, most) in itertools.product((False, True), ((64, 0), (128, 0), (256, 32))):
        graph = variant(decay=decay).graphs[0]
        problem = normalised(Problem.dense(graph, {"...": (2, 8), "N": 4096, "D": width, "E": width}))
        binary = nvrtc(default_of(schedule, problem, H200).source(problem), H200.arch)
        assert binary.spill_stores <= most
        assert binary.fatal_warnings == ()
