"""Requirements: what the rules say of a launch, and that nothing beyond it is promised."""

from __future__ import annotations

import itertools
import random

import pytest
from export_samples import (
    EXPORTED,
    H200,
    TARGET,
    Exported,
    bias_gelu,
    default,
    elementwise,
    problem,
    scaled_product,
    shifted,
    tma_shift,
)

from kgen.dsl.problem import Problem
from kgen.dsl.types import f16, f32
from kgen.export.cases import cases
from kgen.export.collection import Collection
from kgen.export.interface import Interface
from kgen.export.requirements import requirements
from kgen.export.variants import Served, axes, realigned, resized


def told(served: Served) -> dict[str, str]:
    """The requirements of each symbol other than the range of a 32-bit integer, as text."""
    found = [r for r in requirements(served).sizes if not r.is_bound]
    return {str(r.value): f"{r.relation} {r.bound}" for r in found}


def test_rows_are_whole_vectors() -> None:
    of = problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 4096})
    served = Served(elementwise(of, pack=8), of, TARGET)
    eight = "a multiple of 8"
    assert told(served) == {"n1": eight, "x_s0": eight, "out_s0": eight}
    assert requirements(served).alignment == {"x": 16, "b": 16, "out": 16}


def test_single_elements_need_nothing() -> None:
    of = problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 4096})
    served = Served(elementwise(of, pack=1), of, TARGET)
    assert told(served) == {}
    assert requirements(served).alignment == {"x": 2, "b": 2, "out": 2}


def test_narrow_vectors_need_their_own_alignment() -> None:
    of = problem(bias_gelu, {"x": f32}, {"N": 4096})
    served = Served(elementwise(of, pack=2), of, TARGET)
    assert told(served) == {}  # one dimension: the tail is predicated
    assert requirements(served).alignment == {"x": 8, "b": 8, "out": 8}


def test_32_bit_counts_have_a_limit() -> None:
    of = problem(bias_gelu, {"x": f32}, {"N": 4096})
    (limit,) = [r for r in requirements(Served(elementwise(of, pack=4), of, TARGET)).sizes if str(r.value) == "n0"]
    assert limit.relation == "at most"
    assert 2**33 - 2**15 <= limit.bound <= 2**33
    wide = problem(bias_gelu, {"x": f32}, {"N": 2**34})
    assert requirements(Served(elementwise(wide, pack=4), wide, TARGET)).sizes == ()


def test_gemm_needs_aligned_rows_and_no_more() -> None:
    of = problem("hgemm", {"a": f16}, {"M": 1024, "N": 1024, "K": 1024})
    served = Served(default(of, "MmaGemm"), of, TARGET)
    found = told(served)
    assert found["a_sm"] == found["b_sk"] == "a multiple of 8"
    assert {"M", "N", "K"}.isdisjoint(found)


def test_blocks_that_wait_for_each_other_are_there_at_once() -> None:
    of = problem("hgemm", {"a": f16}, {"M": 128, "N": 128, "K": 16384})
    config = default(of, "WgmmaGemm", target=H200, work="split_k")
    served = Served(config, of, H200)
    found = requirements(served).sizes
    taken = []
    for m, n in itertools.product((8, 128, 1000), (8, 128, 1024, 4096)):
        variant = problem("hgemm", {"a": f16}, {"M": m, "N": n, "K": 16384})
        waiting = -(-m // config.values["BM"]) * -(-n // config.values["BN"]) * config.values["splits"]
        taken.append(all(r.holds(config.symbols(normal(served, variant))) for r in found))
        assert taken[-1] == (waiting <= H200.sm_count * config.values["blocks_per_sm"]), (m, n)
    assert set(taken) == {True, False}


@pytest.mark.parametrize("pack", [1, 2, 8])
@pytest.mark.parametrize("which", ["pointwise", "contraction"])
def test_problems_that_meet_the_requirements_are_served(which: str, pack: int) -> None:
    if which == "pointwise":
        of = problem(bias_gelu, {"x": f16}, {"...": (33,), "N": 512})
        config = elementwise(of, pack=pack)
    else:
        of = problem(scaled_product, {}, {"...": (), "M": 256, "N": 512, "K": 256})
        of = of if pack == 8 else narrowed(of, 2 * pack)
        config = default(of, "SimtGemm", group=1, raster="m")
    served = Served(config, of, TARGET)
    found = requirements(served)
    rng = random.Random(pack)
    met = 0
    for _ in range(150):
        step = rng.choice([1, 2, 8])
        sizes = {name: rng.randint(1, 2 * n // step + 1) * step for name, n in axes(of).items()}
        gaps = {o.name: rng.randint(0, 3) * step for o in of.operands}
        variant = resized(of, sizes, pitch=rng.choice([1, 8]), gaps=gaps)
        for name, align in found.alignment.items():
            variant = realigned(variant, name, align)
        symbols = served.config.symbols(normal(served, variant))
        if set(symbols) == set(served.config.symbols(served.problem)) and all(r.holds(symbols) for r in found.sizes):
            met += 1
            # The contraction's rules also spare the search points that are slow, and of no concern to a launch.
            assert served.symbols(variant) or (which == "contraction" and served.renders_alike(variant)), variant.key
    assert met >= 20


@pytest.mark.parametrize("exported", EXPORTED, ids=str)
def test_the_cases_of_an_export_meet_its_requirements(exported: Exported) -> None:
    of, config = exported.made(TARGET)
    served = Served(config, of, TARGET)
    sizes = requirements(served).sizes
    for case in cases(Interface(Collection.single(served))):
        assert [r for r in sizes if not r.holds(case.symbols)] == [], case.problem.key


def test_the_factors_of_a_fused_size_are_not_required() -> None:
    of = problem("add", {"a": f16}, {"...": (1000, 1000)})
    assert told(Served(elementwise(of, pack=8), of, TARGET)) == {}
    of = problem(scaled_product, {}, {"...": (4,), "M": 256, "N": 512, "K": 1024})
    assert "M" not in told(Served(default(of, "MmaGemm"), of, TARGET))


def test_tensor_maps_need_whole_units() -> None:
    of = problem(shifted, {}, {"M": 64, "N": 128})
    served = Served(tma_shift(), of, TARGET)
    assert told(served) == dict.fromkeys(("n1", "x_s0", "out_s0"), "a multiple of 4")  # stores write whole units
    assert requirements(served).alignment == {"x": 16, "b": 4, "out": 16}
    ragged = [case.problem.operand("x") for case in cases(Interface(Collection.single(served)))]
    assert all(o.strides[0] % 4 == 0 for o in ragged)
    assert any(o.shape[1] % 32 for o in ragged)


def narrowed(of: Problem, align: int) -> Problem:
    """The problem with every address a multiple of `align` bytes only."""
    for operand in of.operands:
        of = realigned(of, operand.name, align)
    return of


def normal(served: Served, variant: Problem) -> Problem:
    return Served(served.config, variant, served.target).problem


def test_resized_keeps_layouts() -> None:
    of = problem(scaled_product, {}, {"...": (3,), "M": 64, "N": 32, "K": 16}, {"a": "col"})
    bigger = resized(of, {"K": 24}, pitch=16, gaps={"b": 1})
    assert bigger.operand("a").shape == (3, 64, 24)
    assert bigger.operand("a").strides == (64 * 24, 1, 64)
    assert bigger.operand("b").strides == (32, 1)
    assert bigger.operand("out").strides == of.operand("out").strides
    assert resized(of, {}) == of
