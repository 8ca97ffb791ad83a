"""Ragged variants cut the tiles, keep layouts and alignment, and run on the emulator; the roofline is where it should be."""

from __future__ import annotations

import math

import pytest
from tuner_samples import problem_of

from kgen.dsl.family import family_of
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.target import Target
from kgen.dsl.types import bf16, e4m3, f16, f32, i8
from kgen.ops import operators
from kgen.ops.elementwise import Elementwise
from kgen.ops.gemm import MmaGemm, SimtGemm, WgmmaGemm
from kgen.ops.reduction import ChannelStats
from kgen.tuner.ragged import ragged, resized, symbols
from kgen.tuner.roofline import floor_seconds
from kgen.tuner.variants import variants


def blocks(config: object, problem: Problem) -> int:
    x, y, z = config.source(problem).bind(symbols(config, problem, 132)).grid  # type: ignore[attr-defined]
    return x * y * z


@pytest.mark.parametrize("size", [4096, 1000, 4095])
@pytest.mark.parametrize("layouts", [{}, {"a": "col"}, {"b": "col"}])
@pytest.mark.parametrize("schedule", [MmaGemm, SimtGemm])
def test_gemm_variants_are_small_cut_and_valid(
    schedule: type, layouts: dict[str, str], size: int, target: Target
) -> None:
    problem = problem_of("hgemm", {"M": size, "N": size, "K": size}, layouts)
    config = schedule.default(problem, target)
    for same in (True, False):
        variant = ragged(config, problem, target, same_source=same)
        assert variant is not None
        assert not config.broken(variant, target)
        sizes = variant.sizes
        assert sizes["M"] % config.BM
        assert sizes["N"] % config.BN
        assert sizes["M"] > config.BM
        assert sizes["N"] > config.BN
        assert sizes["K"] > config.BK
        assert sizes["K"] % config.BK
        assert all(n <= 3 * 256 for n in sizes.values())
        assert blocks(config, variant) >= 4
        if same:
            assert config.source(variant).digest == config.source(problem).digest


@pytest.mark.parametrize("changes", [{"raster": "n"}, {"group": 4}, {"group": 16}, {"splits": 2}, {"splits": 16}])
def test_configs_that_want_a_full_gpu_have_variants_too(changes: dict[str, object], target: Target) -> None:
    sizes = {"M": 128, "N": 128, "K": 32768} if "splits" in changes else {"M": 8192, "N": 8192, "K": 8192}
    problem = problem_of("hgemm", sizes)
    config = MmaGemm.default(problem, target).replace(splits=1).replace(**changes)
    config.check(problem, target)
    variant = ragged(config, problem, target, same_source=True)
    assert variant is not None
    assert config.source(variant).digest == config.source(problem).digest
    M, N, K = variant.sizes.values()
    assert K % config.BK
    assert M % config.BM
    assert M * N * K <= 2**28 * 1.1


def test_elementwise_variants(target: Target) -> None:
    for name, sizes in [
        ("gelu", {"...": (2**24,)}),
        ("bias_gelu", {"...": (4096,), "N": 4096}),
        ("add", {"...": (33, 4096, 17)}),
    ]:
        problem = problem_of(name, sizes)
        config = Elementwise.default(problem, target)
        variant = ragged(config, problem, target, same_source=True)
        assert variant is not None
        assert blocks(config, variant) >= 2
        assert variant.outputs[0].elements < 2**20
        assert variant.outputs[0].elements % (config.threads * config.items * config.pack)
        assert config.source(variant).digest == config.source(problem).digest


def test_large_tiles_stay_small_enough_for_the_emulator(target: Target) -> None:
    problem = problem_of("gelu", {"...": (2**27,)})
    config = Elementwise(
        pack=8, items=8, along="vectors", threads=512, blocks_per_sm=0, load="default", store="default"
    )
    variant = ragged(config, problem, target)
    assert variant is not None
    assert blocks(config, variant) == 2
    assert variant.outputs[0].elements < 2**17


def test_strides_and_alignment_are_kept(target: Target) -> None:
    graph = operators()["add"].graphs[0]
    shape = (1024, 1024)
    operands = [
        Operand("a", f16, shape, (1032, 1)),
        Operand("b", f16, shape, (0, 1)),
        Operand("out", f16, shape, (1026, 1), 4),
    ]
    problem = family_of(graph).normalise(Problem.bind(graph, operands))
    variant = resized(problem, {"...0": 33, "...1": 48})
    a, b, out = variant.operands
    assert a.shape == b.shape == out.shape == (33, 48)
    assert a.strides[0] > 48
    assert a.row_align == problem.operand("a").row_align == 16
    assert b.strides == (0, 1)
    assert out.row_align == problem.operand("out").row_align == 4
    assert out.align == 4


def test_tiny_problems_have_no_variant(target: Target) -> None:
    problem = problem_of("gelu", {"...": (7,)})
    assert ragged(Elementwise.default(problem, target), problem, target) is None


def test_the_floor_is_the_roofline(target: Target) -> None:
    n = 8192
    flops = 2 * n**3
    assert floor_seconds(problem_of("hgemm", {"M": n, "N": n, "K": n}, a=f16), target) == pytest.approx(
        0.9 * flops / 989e12
    )
    assert floor_seconds(problem_of("hgemm", {"M": n, "N": n, "K": n}, a=bf16), target) == pytest.approx(
        0.9 * flops / 989e12
    )
    assert floor_seconds(problem_of("igemm", {"M": n, "N": n, "K": n}, a=i8), target) == pytest.approx(
        0.9 * flops / 1979e12
    )
    assert floor_seconds(problem_of("fp8gemm", {"M": n, "N": n, "K": n}, a=e4m3), target) == pytest.approx(
        0.9 * flops / 1979e12
    )
    assert floor_seconds(problem_of("sgemm", {"M": n, "N": n, "K": n}, a=f32), target) == pytest.approx(
        0.9 * flops / 66.9e12
    )
    batched = problem_of("hgemm", {"...": (3, 2), "M": n, "N": n, "K": n}, a=f16)
    assert floor_seconds(batched, target) == pytest.approx(6 * 0.9 * flops / 989e12)
    moved = 2 * 2 * 2**27 - target.l2_bytes
    assert floor_seconds(problem_of("gelu", {"...": (2**27,)}, x=f16), target) == pytest.approx(0.9 * moved / 4800e9)
    assert floor_seconds(problem_of("gelu", {"...": (2**10,)}, x=f16), target) == 0


def test_variants_go_round_every_loop_and_keep_the_kernel(target: Target) -> None:
    """More than twice around the ring of stages, in each share of a sum; and more tiles than blocks that stay."""
    problem = problem_of("hgemm", {"M": 2048, "N": 2048, "K": 8192}, a=f16)
    config = WgmmaGemm.default(problem, target).replace(work="stream_k", splits=2, pingpong=False, cluster="1x1")
    config.check(problem, target)
    cut, deep, whole, padded = variants(config, problem, target, same_source=True)
    assert {config.source(v.problem).digest for v in (cut, deep, whole, padded)} == {config.source(problem).digest}
    assert deep.problem.sizes["K"] > 2 * config.stages * config.BK * config.splits
    for variant in (cut, deep):
        [workers] = {n for n in config.source(variant.problem).bind(variant.symbols).grid if n > 1}
        tiles = math.ceil(variant.problem.sizes["M"] / config.BM) * math.ceil(variant.problem.sizes["N"] / config.BN)
        steps = tiles * math.ceil(variant.problem.sizes["K"] / config.BK)
        assert tiles * config.splits % workers  # a tile is cut
        assert steps > workers
    assert whole.problem.sizes == {**cut.problem.sizes, "K": config.stages * config.BK * config.splits}
    assert [n for n in config.source(whole.problem).bind(whole.symbols).grid if n > 1] == []  # one block has all tiles
    assert padded.problem.operands[0].strides[0] > padded.problem.sizes["K"]
    assert padded.problem.sizes["K"] % 2


def test_reductions_of_rows_with_gaps_go_round_too(target: Target) -> None:
    problem = problem_of("batch_norm_stats", {"B": 64, "C": 256, "S": 1024}, x=f16)
    config = ChannelStats.default(problem, target)
    padded = variants(config, problem, target, same_source=True)[-1]
    sizes = padded.problem.sizes
    assert padded.problem.operands[0].strides[1] > sizes["S"]
    assert sizes["S"] % config.pack
    vectors = math.ceil(sizes["S"] / config.pack) * sizes["B"]
    assert vectors > (config.items - 1) * config.threads * config.source(padded.problem).bind(padded.symbols).grid[1]


def test_variants_have_several_blocks_of_scales(target: Target) -> None:
    """Where no loop of the kernel says so, too."""
    problem = problem_of("fp8gemm_blockwise", {"M": 256, "N": 256, "K": 1000})
    found = variants(SimtGemm.default(problem, target), problem, target, same_source=True)
    assert max(v.problem.sizes["K"] for v in found) > 2 * 128


def test_variants_end_one_element_past_a_tile(target: Target) -> None:
    problem = problem_of("hgemm", {"M": 1024, "N": 1024, "K": 1024}, a=f16)
    config = MmaGemm.default(problem, target)
    padded = variants(config, problem, target, same_source=True)[-1].problem.sizes
    assert (padded["M"] % config.BM, padded["N"] % config.BN) == (1, 1)


@pytest.mark.parametrize("name", ["gelu", "softmax", "reduce_sum", "hgemm", "embedding", "transpose"])
def test_layouts_of_which_no_two_axes_are_one(name: str, target: Target) -> None:
    sizes = {"gelu": {"...": (2**20,)}, "softmax": {"...": (4096,), "N": 1024}, "reduce_sum": {"...": (2**20,)}}
    sizes |= {"hgemm": {"M": 512, "N": 512, "K": 512}, "embedding": {"...": (4096,), "V": 256, "C": 64}}
    problem = problem_of(name, sizes.get(name, {"...": (4,), "M": 256, "N": 256}))
    schedule = next(s for s in family_of(problem.graph).schedules if s.applies(problem))
    found = variants(schedule.default(problem, target), problem, target)
    origins = [v.problem.origin for v in found if v.problem.origin is not None]
    assert any(
        o.strides[0] > o.strides[-1] * math.prod(o.shape[1:]) for p in origins for o in p.operands if len(o.shape) > 1
    )
    assert any(0 in o.strides or 1 in o.shape for p in origins for o in p.inputs if len(o.shape) > 1)
    assert len({v.config.source(v.problem).digest for v in found}) > 1
    for variant in found:
        assert not variant.config.broken(variant.problem, target)
