"""Epilogues of gemm_wgmma keep in registers what is to be there: tiles that leave a thread few beside its sums."""

from __future__ import annotations

from typing import Any

import pytest

import kgen
from kgen.dsl.family import normalised
from kgen.gpu.compile import compile as nvrtc
from kgen.gpu.target import resolve
from kgen.ops.gemm import WgmmaGemm

H200 = resolve("H200")


@pytest.mark.parametrize(
    ("operator", "sizes", "fields"),
    [
        # Each read of the bias at an address of its own, 800 bytes of which were kept for the next 64 rows.
        ("linear_gelu", {"M": 8128, "N": 768, "K": 3072}, {"swap_ab": False, "BM": 128, "BN": 192}),
        ("linear", {"M": 8128, "N": 768, "K": 3072}, {"swap_ab": False, "BM": 128, "BN": 192}),
        # The same, of a matrix that is read element by element.
        ("gemm", {"M": 388, "N": 4096, "K": 14336}, {"swap_ab": True, "BM": 128, "BN": 104}),
    ],
)
def test_ping_pong_spills_next_to_nothing(operator: str, sizes: dict[str, int], fields: dict[str, Any]) -> None:
    problem = normalised(getattr(kgen, operator).problem(sizes, dtype="f16"))
    whole = {
        "BK": 64,
        "consumers": 2,
        "pingpong": True,
        "blocks_per_sm": 1,
        "cluster": "1x1",
        "work": "tiles",
        "splits": 1,
    }
    whole |= {"store": "tma", "epilogue_stages": 2, "stages": 4, "raster": "m", "group": 1, "pdl": True}
    config = WgmmaGemm(**{**whole, **fields})
    assert config.broken(problem, H200) == []
    binary = nvrtc(config.source(problem), H200.arch)
    assert binary.fatal_warnings == ()
    assert binary.spill_stores <= 20
