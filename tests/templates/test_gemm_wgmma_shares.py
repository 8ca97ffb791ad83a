"""Tiles that the blocks of a cluster share in parts of any whole rows: 18 or 36 of 72, which begin inside a swizzle's pattern."""

from __future__ import annotations

import pytest
import torch
from cases import Case
from suite import run_case

import kgen
from kgen.dsl.family import normalised
from kgen.dsl.target import TARGETS

H200 = TARGETS["H200"]
CONFIG = kgen.WgmmaGemm(
    swap_ab=True, BM=128, BN=72, BK=64, consumers=1, pingpong=False, blocks_per_sm=1, cluster="4x2", work="tiles", splits=1,
    store="tma", epilogue_stages=2, stages=4, raster="m", group=8, pdl=True,
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("cluster", ["2x2", "4x2", "2x4"])
@pytest.mark.parametrize("swap_ab", [True, False])
def test_parts_may_begin_at_any_row(swap_ab: bool, cluster: str, dtype: str) -> None:
    torch.set_num_threads(1)
    problem = normalised(kgen.hgemm.problem(M=300, N=520, K=200, dtype=dtype, layouts={"b": "col"}))
    config = CONFIG.replace(cluster=cluster, swap_ab=swap_ab)
    assert not config.broken(problem, H200)
    run_case(f"WgmmaGemm-{dtype}-NT", Case(config, problem, 0, "random", {}, H200))


def test_a_search_takes_such_parts_where_rows_begin_inside_sectors() -> None:
    inside, whole = (normalised(kgen.hgemm.problem(M=n, N=n, K=n, layouts={"b": "col"})) for n in (1000, 1024))
    assert CONFIG.parts_of_shared_tiles(inside, H200)
    assert not CONFIG.parts_of_shared_tiles(whole, H200)
    assert CONFIG.replace(BN=64).parts_of_shared_tiles(whole, H200)


@pytest.mark.parametrize(("k", "taken"), [(1000, True), (4304, True), (4320, True), (4288, False), (4352, False)])
def test_a_search_takes_clusters_of_more_than_two_where_rows_begin_inside_lines(k: int, taken: bool) -> None:
    product = normalised(kgen.hgemm.problem(M=512, N=1152, K=k, layouts={"b": "col"}))
    assert CONFIG.large_clusters(product, H200) == taken
    assert CONFIG.replace(cluster="2x1").large_clusters(product, H200)
    narrow = CONFIG.replace(BM=64, BN=96, consumers=1, pingpong=False)
    assert narrow.large_clusters(product, H200)
    assert CONFIG.replace(BN=136).large_clusters(product, H200) == taken
    assert not narrow.replace(BN=136).large_clusters(product, H200)
    # Classes tell such rows apart: the configs of one are enumerated once.
    other = normalised(kgen.hgemm.problem(M=512, N=1152, K=4304, layouts={"b": "col"}))
    same = kgen.WgmmaGemm.class_of(product) == kgen.WgmmaGemm.class_of(other)
    assert same == (k in (4304, 4320))
