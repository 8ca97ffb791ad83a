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
from kgen.dsl.types import bf16, e4m3, f16, f32, f64, i8, i32, i64, tf32
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
    "transpose_tiles": (
        "transpose",
        f16,
        {"...": (), "M": 16384, "N": 16384},
        (),
        "Transpose",
        {"tile_rows": 64, "tile_columns": 64, "swizzle": "xor", "group": 4},
    ),
    "transpose_shifted": (
        "transpose",
        bf16,
        {"...": (), "M": 8191, "N": 8193},
        (),
        "Transpose",
        {"tile_rows": 128, "tile_columns": 64, "load_bytes": 8, "store_bytes": 16, "shift": "both", "waves": 4},
    ),
    "transpose_bytes": (
        "transpose",
        i8,
        {"...": (3, 5), "M": 100, "N": 256},
        (),
        "Transpose",
        {"tile_rows": 128, "load_bytes": 16, "store_bytes": 4, "threads": 128, "order": "rows", "store": "streaming"},
    ),
    "reduce_sum": (
        "reduce_sum",
        f16,
        {"...": (1 << 20,)},
        (),
        "Reduce",
        {"pack": 8, "items": 4, "threads": 256, "waves": 4, "load": "no_allocate"},
    ),
    "reduce_bytes": ("idot", i8, {"...": (1001, 1000)}, ("a", "b"), "Reduce", {"pack": 16, "items": 2}),
    "reduce_channels": (
        "batch_norm_stats",
        f16,
        {"B": 64, "C": 256, "S": 3136},
        (),
        "ChannelStats",
        {"pack": 8, "items": 4, "threads": 128, "waves": 8},
    ),
    "column_stats_sum": (
        "column_sum",
        f32,
        {"...": (3,), "M": 1000, "N": 100},
        (),
        "ColumnStats",
        {"pack": 4, "lanes": 8},
    ),
    "column_stats_gradients": (
        "layer_norm_backward_weight",
        f16,
        {"M": 32768, "N": 4096},
        (),
        "ColumnStats",
        {"pack": 8, "items": 4, "lanes": 32, "waves": 4, "load": "no_allocate"},
    ),
    "column_stats_channels_last": (
        "batch_norm_stats",
        bf16,
        {"B": 64, "C": 256, "S": 3136},
        ("x",),
        "ColumnStats",
        {"pack": 8, "items": 2, "threads": 128, "lanes": 32},
    ),
    "gather_rows": (
        "embedding",
        f16,
        {"...": (64, 1024), "V": 128256, "C": 4096},
        (),
        "Gather",
        {"pack": 8, "lanes": 128, "items": 4, "load": "no_allocate", "store": "streaming"},
    ),
    "gather_elements": (
        "upsample_nearest",
        bf16,
        {"...": (64, 64), "H": 256, "W": 256, "OH": 512, "OW": 512},
        (),
        "Gather",
        {"pack": 8, "lanes": 64, "items": 4},
    ),
    "gather_ragged": (
        "concat_sequence",
        f32,
        {"B": 2, "H": 3, "S1": 100, "S2": 1, "S": 101, "D": 65},
        (),
        "Gather",
        {"pack": 1, "lanes": 64, "items": 2, "threads": 128},
    ),
    "gather_sum_half": (
        "upsample_nearest_backward",
        f16,
        {"...": (64, 64), "H": 256, "W": 256, "OH": 512, "OW": 512},
        (),
        "GatherSum",
        {"pack": 8, "columns": 4, "rows": 2, "rounds": 8},
    ),
    "gather_sum_float": (
        "upsample_nearest_backward",
        f32,
        {"...": (3,), "H": 33, "W": 47, "OH": 100, "OW": 77},
        (),
        "GatherSum",
        {"pack": 1, "columns": 1, "rows": 1, "taps": 4, "threads": 128},
    ),
    "gather_sum_down": (
        "upsample_nearest_backward",
        f64,
        {"...": (1,), "H": 64, "W": 64, "OH": 32, "OW": 32},
        ("dy",),
        "GatherSum",
        {"pack": 1, "columns": 8, "rows": 4, "taps": 1},
    ),
    "scatter_add_output": (
        "index_add",
        f16,
        {"V": 65536, "N": 65536, "C": 1024},
        (),
        "ScatterAdd",
        {"pack": 8, "atomic": "vector", "items": 4, "rounds": 4},
    ),
    "scatter_add_workspace": (
        "embedding_backward",
        bf16,
        {"V": 32000, "N": 8192, "C": 1024},
        (),
        "ScatterAdd",
        {"pack": 4, "atomic": "vector", "lanes": 128, "items": 2, "rounds": 8, "waves": 2},
    ),
    "scatter_add_last": (
        "index_add_last",
        f32,
        {"M": 33, "V": 1001, "N": 517},
        (),
        "ScatterAdd",
        {"lanes": 1, "items": 4, "rounds": 2},
    ),
    "scatter_bins_words": (
        "histogram",
        i32,
        {"...": (1 << 27,), "BINS": 256},
        (),
        "ScatterBins",
        {"pack": 4, "items": 4},
    ),
    "scatter_bins_bytes": (
        "histogram_bytes",
        i8,
        {"...": (1 << 27,), "BINS": 256},
        (),
        "ScatterBins",
        {"replicas": 16, "pack": 16, "items": 2, "threads": 512, "waves": 2},
    ),
    "scatter_bins_many": (
        "histogram",
        i64,
        {"...": (1000, 1001), "BINS": 20000},
        (),
        "ScatterBins",
        {"replicas": 1, "threads": 1024, "waves": 1},
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
    "nms_default": (
        "nms_padded",
        f32,
        {"N": 20000},
        (),
        "Nms",
        {"chunk": 1024, "threads": 512},
    ),
    "nms_small": (
        "nms_padded",
        f32,
        {"N": 100},
        ("boxes",),
        "Nms",
        {"chunk": 128, "threads": 256, "held": 1, "blocks": 4},
    ),
    "nms_wide": (
        "nms_padded",
        f32,
        {"N": 5000},
        (),
        "Nms",
        {"chunk": 512, "threads": 1024, "held": 2},
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
    "gemm_wgmma_grouped": (
        "grouped_hgemm",
        bf16,
        {"M": 4096, "N": 1536, "K": 2048, "G": 16},
        (),
        "WgmmaGemm",
        {"BM": 128, "BN": 128, "BK": 64, "consumers": 2, "swap": False, "store": "shared", "slabs": 1, "stages": 5},
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
    "rowwise_lanes": (
        "softmax",
        f16,
        {"...": (4096,), "N": 1000},
        (),
        "Rowwise",
        {"row_threads": 32, "threads": 128, "pack": 8, "algorithm": "two_pass"},
    ),
    "rowwise_cluster": (
        "layer_norm",
        bf16,
        {"...": (512,), "N": 131072},
        (),
        "Rowwise",
        {
            "keep": "shared",
            "row_threads": 512,
            "threads": 512,
            "cluster": 8,
            "pack": 8,
            "algorithm": "online",
            "columns": "early",
        },
    ),
    "rowwise_cluster_softmax": (
        "softmax",
        f16,
        {"...": (512,), "N": 262144},
        (),
        "RowwiseCluster",
        {"cluster": 16, "threads": 512, "pack": 8, "unroll": 4, "slots": 7, "columns": "late"},
    ),
    "rowwise_cluster_early": (
        "layer_norm_backward",
        f32,
        {"...": (512,), "N": 262144},
        (),
        "RowwiseCluster",
        {"cluster": 16, "threads": 512, "pack": 4, "unroll": 2, "slots": 7},
    ),
    "rowwise_cluster_ragged": (
        "scale_mask_softmax",
        bf16,
        {"...": (2, 8, 64), "N": 50256},
        (),
        "RowwiseCluster",
        {"cluster": 4, "threads": 256, "pack": 8, "unroll": 2, "slots": 8, "waves": 2, "columns": "late"},
    ),
    "rowwise_streaming": (
        "scale_mask_softmax",
        f32,
        {"...": (2, 8, 64), "N": 50257},
        (),
        "Rowwise",
        {"keep": "none", "row_threads": 256, "threads": 256, "pack": 1, "unroll": 4, "algorithm": "online"},
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
