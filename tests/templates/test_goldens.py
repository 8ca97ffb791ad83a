"""The text of three configs a template, or more, to the letter, so that a change of a template shows as CUDA in the review.

After a change that is meant: pytest tests/templates/test_goldens.py --accept-goldens
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cases import TARGET
from launches import dense

from kgen.dsl.family import schedules
from kgen.dsl.schedule import Schedule
from kgen.dsl.types import bf16, e4m3, f16, f32, f64, i8, tf32
from kgen.gpu.compile import compile as nvrtc
from kgen.ops import operator

#: By file name: operator, dtype of its first operand, sizes, columns, schedule and its fields.
GOLDENS: dict[str, tuple[str, Any, Mapping[str, Any], tuple[str, ...], str, Mapping[str, Any]]] = {
    "elementwise_dense": (
        "gelu",
        f16,
        {"...": (1 << 20,)},
        (),
        "Elementwise",
        {"pack": 8, "items": 2, "threads": 256, "waves": 0, "load": "default", "store": "default"},
    ),
    "elementwise_rows": (
        "bias_gelu",
        bf16,
        {"...": (3, 1000), "N": 96},
        (),
        "Elementwise",
        {"pack": 4, "items": 1, "threads": 128, "waves": 4, "load": "no_allocate", "store": "streaming"},
    ),
    "elementwise_strided": (
        "batch_norm",
        f32,
        {"...": (7,), "C": 33},
        ("x",),
        "Elementwise",
        {"pack": 1, "items": 4, "threads": 256, "waves": 0, "load": "default", "store": "default"},
    ),
    "gemm_simt_naive": (
        "sgemm",
        f32,
        {"M": 100, "N": 101, "K": 102},
        (),
        "SimtGemm",
        {
            "BM": 16,
            "BN": 16,
            "BK": 16,
            "TM": 1,
            "TN": 1,
            "copy": "register",
            "transpose": False,
            "stages": 0,
            "vector": 1,
            "padding": 0,
            "pack": 1,
            "raster": "m",
            "group": 1,
            "blocks": 1,
        },
    ),
    "gemm_simt_large": (
        "sgemm",
        f32,
        {"M": 4096, "N": 4096, "K": 4096},
        ("b",),
        "SimtGemm",
        {
            "BM": 128,
            "BN": 128,
            "BK": 16,
            "TM": 8,
            "TN": 8,
            "copy": "register",
            "transpose": True,
            "stages": 2,
            "vector": 4,
            "padding": 1,
            "pack": 4,
            "raster": "n",
            "group": 4,
            "blocks": 2,
        },
    ),
    "gemm_simt_batched": (
        "dgemm",
        f64,
        {"...": (3,), "M": 64, "N": 66, "K": 68},
        ("a", "b"),
        "SimtGemm",
        {
            "BM": 32,
            "BN": 32,
            "BK": 16,
            "TM": 4,
            "TN": 4,
            "copy": "cp_async",
            "transpose": False,
            "stages": 3,
            "vector": 2,
            "padding": 1,
            "pack": 2,
            "raster": "m",
            "group": 1,
            "blocks": 1,
        },
    ),
    "gemv_rows": (
        "hgemm",
        f16,
        {"M": 1, "N": 28672, "K": 4096},
        ("b",),
        "Gemv",
        {"rows": 2, "unroll": 4, "threads": 128, "lanes": 32},
    ),
    "gemv_columns": (
        "linear_gelu",
        bf16,
        {"M": 6144, "N": 8, "K": 4096},
        ("x",),
        "Gemv",
        {"vectors": 8, "threads": 256, "warps": 8, "lanes": 4, "splits": 4, "staged": True},
    ),
    "gemv_bytes": (
        "igemm",
        i8,
        {"...": (3,), "M": 2, "N": 1000, "K": 528},
        (),
        "Gemv",
        {"vectors": 2, "unroll": 8, "threads": 64, "lanes": 8},
    ),
    "gemm_wgmma_large": (
        "hgemm",
        f16,
        {"M": 4096, "N": 4096, "K": 4096},
        (),
        "WgmmaGemm",
        {"BN": 256, "pingpong": False, "cluster": "2x1", "stages": 4},
    ),
    "gemm_wgmma_ragged": (
        "linear_gelu",
        bf16,
        {"M": 131, "N": 1001, "K": 517},
        (),
        "WgmmaGemm",
        {"BM": 128, "BN": 128, "consumers": 2, "pingpong": True, "store": "shared", "slabs": 1, "stages": 4},
    ),
    "gemm_wgmma_split": (
        "tf32gemm",
        tf32,
        {"M": 64, "N": 64, "K": 8192},
        (),
        "WgmmaGemm",
        {
            "swap": True,
            "BM": 64,
            "BN": 64,
            "BK": 32,
            "consumers": 1,
            "work": "split",
            "splits": 2,
            "store": "direct",
            "slabs": 1,
            "stages": 8,
            "cluster": "1x1",
        },
    ),
    "gemm_wgmma_scaled": (
        "fp8gemm_blockwise",
        e4m3,
        {"M": 129, "N": 1000, "K": 1040},
        (),
        "WgmmaGemm",
        {"BM": 128, "BN": 96, "BK": 128, "consumers": 2, "store": "tma", "slabs": 1, "stages": 4},
    ),
    "gemm_mma_large": (
        "linear_gelu",
        f16,
        {"M": 4096, "N": 4096, "K": 4096},
        (),
        "MmaGemm",
        {
            "instruction": "mma",
            "BM": 128,
            "BN": 256,
            "BK": 64,
            "WM": 64,
            "WN": 64,
            "copy": "cp_async",
            "stages": 3,
            "swizzle": "xor",
            "pack": 8,
            "splits": 1,
            "store": "stmatrix",
            "fragments": 2,
            "raster": "m",
            "group": 8,
            "blocks": 1,
        },
    ),
    "gemm_mma_split": (
        "igemm",
        i8,
        {"M": 16, "N": 120, "K": 4096},
        ("b",),
        "MmaGemm",
        {
            "instruction": "mma",
            "BM": 16,
            "BN": 64,
            "BK": 64,
            "WM": 16,
            "WN": 32,
            "copy": "cp_async",
            "stages": 4,
            "swizzle": "xor",
            "pack": 16,
            "splits": 4,
            "store": "shuffle",
            "fragments": 1,
            "raster": "m",
            "group": 1,
            "blocks": 1,
        },
    ),
    "gemm_mma_wmma": (
        "tf32gemm",
        tf32,
        {"...": (2,), "M": 65, "N": 66, "K": 67},
        ("a",),
        "MmaGemm",
        {
            "instruction": "wmma",
            "BM": 32,
            "BN": 64,
            "BK": 16,
            "WM": 16,
            "WN": 32,
            "copy": "register",
            "stages": 1,
            "swizzle": "pad",
            "pack": 2,
            "splits": 1,
            "store": "shared",
            "fragments": 1,
            "raster": "n",
            "group": 1,
            "blocks": 1,
        },
    ),
}


def rendered(name: str) -> tuple[Schedule, Any]:
    """The config of a golden and its Source."""
    operator_name, dtype, sizes, columns, schedule_name, fields = GOLDENS[name]
    known = operator(operator_name)
    graph = known.graph({next(iter(known.tensors)): dtype})
    problem = dense(graph, sizes, dict.fromkeys(columns, "col"))
    schedule = schedules()[schedule_name]
    # A field that is not named has the first value of its domain, the plainest.
    config = schedule(**{**{n: field.values[0] for n, field in schedule.fields.items()}, **fields})
    config.check(problem, TARGET)
    return config, config.source(problem)


@pytest.mark.parametrize("name", GOLDENS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.cu", rendered(name)[1].text)


@pytest.mark.parametrize("name", GOLDENS)
def test_rendering_again_gives_the_same(name: str) -> None:
    first, second = rendered(name)[1], rendered(name)[1]
    assert first == second
    assert first.digest == second.digest


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens_compile_without_a_remark(name: str) -> None:
    source = rendered(name)[1]
    binary = nvrtc(source, TARGET.arch)
    assert binary.warnings == ()
    assert binary.spill_stores == 0
    assert 0 < binary.registers <= 255


def test_every_template_has_three_at_least() -> None:
    templates = [rendered(name)[0].template for name in GOLDENS]
    known = {schedule.template for schedule in schedules().values()}
    assert {t: min(templates.count(t), 3) for t in known} == dict.fromkeys(known, 3)
