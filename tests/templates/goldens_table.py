"""The goldens: problems and configs, three a template or more, whose generated text tests/templates/goldens holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kgen.dsl.types import DType, bf16, e4m3, f16, f32, f64, i8, i32, i64, tf32


class Golden(NamedTuple):
    """A config for a problem.

    `dtype` is that of the first operand, `columns` the operands in column order. A field that is not named has the first
    value of its domain, the plainest.
    """

    operator: str
    dtype: DType
    sizes: Mapping[str, Any]
    columns: tuple[str, ...]
    schedule: str
    fields: Mapping[str, Any]


# fmt: off
#: By the golden's file name.
GOLDENS: dict[str, Golden] = {
    "elementwise_dense": Golden(
        "gelu", f16, {"...": (1 << 20,)}, (), "Elementwise",
        {"pack": 8, "items": 2, "along": "vectors", "threads": 256, "blocks_per_sm": 0, "load": "default", "store": "default"}),
    "elementwise_rows": Golden(
        "bias_gelu", bf16, {"...": (3, 1000), "N": 96}, (), "Elementwise",
        {"pack": 4, "items": 1, "along": "vectors", "threads": 128, "blocks_per_sm": 4, "load": "no_allocate",
         "store": "streaming"}),
    "elementwise_strided": Golden(
        "batch_norm", f32, {"...": (7,), "C": 33}, ("x",), "Elementwise",
        {"pack": 1, "items": 4, "along": "vectors", "threads": 256, "blocks_per_sm": 0, "load": "default", "store": "default"}),
    "elementwise_repeats": Golden(
        "rope_computed", bf16, {"...": (2,), "S": 4096, "H": 64, "D": 64}, (), "Elementwise",
        {"pack": 8, "items": 8, "along": "both", "threads": 128, "blocks_per_sm": 0, "load": "default", "store": "default"}),
    "transpose_tiles": Golden(
        "transpose", f16, {"...": (), "M": 16384, "N": 16384}, (), "Transpose",
        {"tile_rows": 64, "tile_columns": 64, "pad": 0, "order": "rows"}),
    "transpose_shifted": Golden(
        "transpose", bf16, {"...": (), "M": 8191, "N": 8193}, (), "Transpose",
        {"tile_rows": 128, "tile_columns": 64, "load_bytes": 8, "store_bytes": 16, "shift": "both", "blocks_per_sm": 4}),
    "transpose_bytes": Golden(
        "transpose", i8, {"...": (3, 5), "M": 100, "N": 256}, (), "Transpose",
        {"tile_rows": 128, "load_bytes": 16, "store_bytes": 4, "threads": 128, "order": "rows", "store": "streaming"}),
    "transpose_diagonal": Golden(
        "transpose", f32, {"...": (3,), "M": 1000, "N": 777}, (), "Transpose",
        {"tile_rows": 32, "tile_columns": 64, "load_bytes": 4, "store_bytes": 8, "order": "diagonal"}),
    "transpose_tma": Golden(
        "transpose", f16, {"...": (3,), "M": 4096, "N": 1000}, (), "Transpose",
        {"tile_rows": 64, "tile_columns": 128, "pad": 0, "blocks_per_sm": 2, "copy": "tma"}),
    "reduce_sum": Golden(
        "reduce_sum", f16, {"...": (1 << 20,)}, (), "Reduce",
        {"pack": 8, "items": 4, "threads": 256, "blocks_per_sm": 4, "load": "no_allocate"}),
    "reduce_bytes": Golden(
        "idot", i8, {"...": (1001, 1000)}, ("a", "b"), "Reduce",
        {"pack": 16, "items": 2}),
    "reduce_atomic": Golden(
        "reduce_min", f16, {"...": (1 << 20,)}, (), "Reduce",
        {"pack": 8, "items": 4, "within": "sequential", "finish": "atomic"}),
    "reduce_two_pass": Golden(
        "reduce_argmax", f32, {"...": (1 << 20,)}, (), "Reduce",
        {"pack": 4, "items": 2, "within": "interleaved", "finish": "two_pass"}),
    "reduce_channels": Golden(
        "batch_norm_stats", f16, {"B": 64, "C": 256, "S": 3136}, (), "ChannelStats",
        {"pack": 8, "items": 4, "threads": 128, "blocks_per_sm": 8}),
    "column_stats_sum": Golden(
        "column_sum", f32, {"...": (3,), "M": 1000, "N": 100}, (), "ColumnStats",
        {"pack": 4, "lanes": 8}),
    "column_stats_gradients": Golden(
        "layer_norm_backward_weight", f16, {"M": 32768, "N": 4096}, (), "ColumnStats",
        {"pack": 8, "items": 4, "lanes": 32, "blocks_per_sm": 4, "load": "no_allocate"}),
    "column_stats_channels_last": Golden(
        "batch_norm_stats", bf16, {"B": 64, "C": 256, "S": 3136}, ("x",), "ColumnStats",
        {"pack": 8, "items": 2, "threads": 128, "lanes": 32}),
    "gather_rows": Golden(
        "embedding", f16, {"...": (64, 1024), "V": 128256, "C": 4096}, (), "Gather",
        {"pack": 8, "lanes": 128, "items": 4, "load": "no_allocate", "store": "streaming"}),
    "gather_elements": Golden(
        "upsample_nearest", bf16, {"...": (64, 64), "H": 256, "W": 256, "OH": 512, "OW": 512}, (), "Gather",
        {"pack": 8, "lanes": 64, "items": 4}),
    "gather_ragged": Golden(
        "concat_sequence", f32, {"B": 2, "H": 3, "S1": 100, "S2": 1, "S": 101, "D": 65}, (), "Gather",
        {"pack": 1, "lanes": 64, "items": 2, "threads": 128}),
    "gather_sum_half": Golden(
        "upsample_nearest_backward", f16, {"...": (64, 64), "H": 256, "W": 256, "OH": 512, "OW": 512}, (), "GatherSum",
        {"pack": 8, "columns": 4, "rows": 2, "rounds": 8}),
    "gather_sum_float": Golden(
        "upsample_nearest_backward", f32, {"...": (3,), "H": 33, "W": 47, "OH": 100, "OW": 77}, (), "GatherSum",
        {"pack": 1, "columns": 1, "rows": 1, "taps": 4, "threads": 128}),
    "gather_sum_down": Golden(
        "upsample_nearest_backward", f64, {"...": (1,), "H": 64, "W": 64, "OH": 32, "OW": 32}, ("dy",), "GatherSum",
        {"pack": 1, "columns": 8, "rows": 4, "taps": 1}),
    "scatter_add_output": Golden(
        "index_add", f16, {"V": 65536, "N": 65536, "C": 1024}, (), "ScatterAdd",
        {"pack": 8, "atomic": "vector", "items": 4, "rounds": 4}),
    "scatter_add_workspace": Golden(
        "embedding_backward", bf16, {"V": 32000, "N": 8192, "C": 1024}, (), "ScatterAdd",
        {"pack": 4, "atomic": "vector", "lanes": 128, "items": 2, "rounds": 8, "blocks_per_sm": 2}),
    "scatter_add_last": Golden(
        "index_add_last", f32, {"M": 33, "V": 1001, "N": 517}, (), "ScatterAdd",
        {"lanes": 1, "items": 4, "rounds": 2}),
    "scatter_rows_finished": Golden(
        "embedding_backward", bf16, {"V": 128256, "N": 65536, "C": 4096}, (), "ScatterRows",
        {"pack": 8, "lanes": 32, "slots": 32, "items": 4, "atomic": "vector", "threads": 256, "blocks_per_sm": 4}),
    "scatter_rows_added": Golden(
        "index_add", f16, {"V": 65536, "N": 262144, "C": 256}, (), "ScatterRows",
        {"pack": 8, "lanes": 32, "slots": 16, "items": 2, "atomic": "vector", "load": "streaming"}),
    "scatter_rows_narrow": Golden(
        "index_add", f64, {"V": 33, "N": 517, "C": 5}, (), "ScatterRows",
        {"pack": 1, "lanes": 8, "slots": 4, "items": 1, "atomic": "scalar"}),
    "scatter_bins_words": Golden(
        "histogram", i32, {"...": (1 << 27,), "BINS": 256}, (), "ScatterBins",
        {"pack": 4, "items": 4}),
    "scatter_bins_bytes": Golden(
        "histogram_bytes", i8, {"...": (1 << 27,), "BINS": 256}, (), "ScatterBins",
        {"replicas": 16, "pack": 16, "items": 2, "threads": 512, "blocks_per_sm": 2}),
    "scatter_bins_many": Golden(
        "histogram", i64, {"...": (1000, 1001), "BINS": 20000}, (), "ScatterBins",
        {"replicas": 1, "threads": 1024, "blocks_per_sm": 1}),
    "gemm_simt_naive": Golden(
        "sgemm", f32, {"M": 100, "N": 101, "K": 102}, (), "SimtGemm",
        {"BM": 16, "BN": 16, "BK": 16, "TM": 1, "TN": 1, "copy": "register", "transpose": False, "stages": 0,
         "vector": 1, "padding": 0, "pack": 1, "raster": "m", "group": 1, "blocks_per_sm": 1}),
    "gemm_simt_large": Golden(
        "sgemm", f32, {"M": 4096, "N": 4096, "K": 4096}, ("b",), "SimtGemm",
        {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "copy": "register", "transpose": True, "stages": 2,
         "vector": 4, "padding": 1, "pack": 4, "raster": "n", "group": 4, "blocks_per_sm": 2}),
    "gemm_simt_batched": Golden(
        "dgemm", f64, {"...": (3,), "M": 64, "N": 66, "K": 68}, ("a", "b"), "SimtGemm",
        {"BM": 32, "BN": 32, "BK": 16, "TM": 4, "TN": 4, "copy": "cp_async", "transpose": False, "stages": 3,
         "vector": 2, "padding": 1, "pack": 2, "raster": "m", "group": 1, "blocks_per_sm": 1}),
    "gemm_simt_split": Golden(
        "sgemm", f32, {"M": 32, "N": 5120, "K": 13824}, (), "SimtGemm",
        {"BM": 32, "BN": 128, "BK": 16, "TM": 4, "TN": 8, "copy": "register", "transpose": True, "stages": 2,
         "vector": 4, "padding": 1, "pack": 4, "splits": 8, "raster": "m", "group": 1, "blocks_per_sm": 1}),
    "gemv_rows": Golden(
        "hgemm", f16, {"M": 1, "N": 28672, "K": 4096}, ("b",), "Gemv",
        {"rows": 2, "unroll": 4, "threads": 128, "lanes": 32}),
    "gemv_columns": Golden(
        "linear_gelu", bf16, {"M": 6144, "N": 8, "K": 4096}, ("x",), "Gemv",
        {"vectors": 8, "threads": 256, "warps": 8, "lanes": 4, "splits": 4, "staged": True}),
    "gemv_bytes": Golden(
        "igemm", i8, {"...": (3,), "M": 2, "N": 1000, "K": 528}, (), "Gemv",
        {"vectors": 2, "unroll": 8, "threads": 64, "lanes": 8}),
    "nms_default": Golden(
        "nms_padded", f32, {"N": 20000}, (), "Nms",
        {"chunk": 1024, "threads": 512}),
    "nms_small": Golden(
        "nms_padded", f32, {"N": 100}, ("boxes",), "Nms",
        {"chunk": 128, "threads": 256, "held": 1, "blocks_per_sm": 4}),
    "nms_wide": Golden(
        "nms_padded", f32, {"N": 5000}, (), "Nms",
        {"chunk": 512, "threads": 1024, "held": 2}),
    "gemm_wgmma_large": Golden(
        "hgemm", f16, {"M": 4096, "N": 4096, "K": 4096}, (), "WgmmaGemm",
        {"BN": 256, "pingpong": False, "cluster": "2x1", "stages": 4}),
    "gemm_wgmma_ragged": Golden(
        "linear_gelu", bf16, {"M": 131, "N": 1001, "K": 517}, (), "WgmmaGemm",
        {"BM": 128, "BN": 128, "consumers": 2, "pingpong": True, "store": "shared", "epilogue_stages": 1, "stages": 4,
         "pdl": False}),
    "gemm_wgmma_split": Golden(
        "tf32gemm", tf32, {"M": 64, "N": 64, "K": 8192}, (), "WgmmaGemm",
        {"swap_ab": True, "BM": 64, "BN": 64, "BK": 32, "consumers": 1, "work": "split_k", "splits": 2,
         "store": "direct", "epilogue_stages": 1, "stages": 8, "cluster": "1x1"}),
    "gemm_wgmma_scaled": Golden(
        "fp8gemm_blockwise", e4m3, {"M": 129, "N": 1000, "K": 1040}, (), "WgmmaGemm",
        {"BM": 128, "BN": 96, "BK": 128, "consumers": 2, "store": "tma", "epilogue_stages": 1, "stages": 4}),
    "gemm_wgmma_grouped": Golden(
        "grouped_hgemm", bf16, {"M": 4096, "N": 1536, "K": 2048, "G": 16}, (), "WgmmaGemm",
        {"BM": 128, "BN": 128, "BK": 64, "consumers": 2, "swap_ab": False, "store": "shared", "epilogue_stages": 1, "stages": 5}),
    "gemm_mma_large": Golden(
        "linear_gelu", f16, {"M": 4096, "N": 4096, "K": 4096}, (), "MmaGemm",
        {"instruction": "mma", "BM": 128, "BN": 256, "BK": 64, "WM": 64, "WN": 64, "copy": "cp_async", "stages": 3,
         "swizzle": "xor", "pack": 8, "splits": 1, "store": "stmatrix", "fragments": 2, "raster": "m", "group": 8,
         "blocks_per_sm": 1}),
    "gemm_mma_split": Golden(
        "igemm", i8, {"M": 16, "N": 120, "K": 4096}, ("b",), "MmaGemm",
        {"instruction": "mma", "BM": 16, "BN": 64, "BK": 64, "WM": 16, "WN": 32, "copy": "cp_async", "stages": 4,
         "swizzle": "xor", "pack": 16, "splits": 4, "store": "shuffle", "fragments": 1, "raster": "m", "group": 1,
         "blocks_per_sm": 1}),
    "gemm_mma_wmma": Golden(
        "tf32gemm", tf32, {"...": (2,), "M": 65, "N": 66, "K": 67}, ("a",), "MmaGemm",
        {"instruction": "wmma", "BM": 32, "BN": 64, "BK": 16, "WM": 16, "WN": 32, "copy": "register", "stages": 1,
         "swizzle": "pad", "pack": 2, "splits": 1, "store": "shared", "fragments": 1, "raster": "n", "group": 1,
         "blocks_per_sm": 1}),
    "gemm_mma_wmma_wide": Golden(
        "hgemm_f16acc", f16, {"M": 512, "N": 512, "K": 512}, (), "MmaGemm",
        {"instruction": "wmma_m8n32k16", "WM": 32, "WN": 32, "swizzle": "pad", "pack": 8, "store": "shared"}),
    "transpose_narrow": Golden(
        "transpose", f16, {"...": (), "M": 780075, "N": 6}, (), "TransposeNarrow",
        {"span": "input", "pack": 1, "vectors": 2, "threads": 128}),
    "transpose_narrow_written": Golden(
        "transpose", f32, {"...": (), "M": 21, "N": 40000}, (), "TransposeNarrow",
        {"span": "output", "pack": 4, "vectors": 1, "threads": 64}),
    "transpose_narrow_batch": Golden(
        "transpose", i8, {"...": (8,), "M": 50176, "N": 3}, (), "TransposeNarrow",
        {"span": "input", "pack": 4, "vectors": 4, "threads": 256}),
    "scan_warps": Golden(
        "cumsum", f16, {"...": (4096,), "N": 4096}, (), "Scan", {"pack": 8, "vectors": 2, "row_threads": 32, "threads": 128}),
    "scan_block": Golden(
        "logcumsumexp", f32, {"...": (64,), "N": 100003}, (), "Scan",
        {"pack": 1, "vectors": 4, "row_threads": 256, "threads": 256}),
    "scan_lanes": Golden(
        "cumprod", bf16, {"...": (3, 1000), "N": 100}, (), "Scan",
        {"pack": 4, "vectors": 1, "row_threads": 8, "threads": 128, "load": "no_allocate", "store": "streaming"}),
    "scan_span": Golden(
        "cumsum", f16, {"...": (5000,), "N": 31}, (), "ScanSpan",
        {"span_bytes": 8192, "row_threads": 1, "threads": 128, "vectors": 8}),
    "scan_span_shared_rows": Golden(
        "logcumsumexp", f32, {"...": (3, 1000), "N": 333}, (), "ScanSpan",
        {"span_bytes": 16384, "row_threads": 8, "threads": 64, "vectors": 4}),
    "scan_span_wide": Golden(
        "cumprod", f64, {"...": (3, 70), "N": 11}, (), "ScanSpan",
        {"span_bytes": 32768, "row_threads": 4, "threads": 256, "vectors": 8}),
    "scan_thread": Golden(
        "cumsum", f16, {"...": (100000,), "N": 2}, (), "ScanThread", {"threads": 128, "stage": False}),
    "scan_thread_staged": Golden(
        "logcumsumexp", f32, {"...": (100000,), "N": 7}, (), "ScanThread", {"threads": 64, "stage": True}),
    "scan_thread_wide": Golden(
        "cumsum", i64, {"...": (1000, 3), "N": 1}, (), "ScanThread", {"threads": 256, "stage": True}),
    "scan_split": Golden(
        "cumsum", f32, {"...": (2,), "N": 1 << 20}, (), "ScanSplit",
        {"stages": 2, "pack": 4, "vectors": 2, "threads": 512, "blocks_per_sm": 2}),
    "scan_split_alone": Golden(
        "logcumsumexp", f16, {"...": (), "N": 1000003}, (), "ScanSplit",
        {"stages": 1, "pack": 1, "vectors": 4, "threads": 256, "blocks_per_sm": 4}),
    "scan_split_wide": Golden(
        "cumprod", f64, {"...": (3, 7), "N": 100000}, (), "ScanSplit",
        {"stages": 2, "pack": 2, "vectors": 4, "threads": 512, "blocks_per_sm": 1, "load": "no_allocate", "store": "streaming"}),
    "rowwise_lanes": Golden(
        "softmax", f16, {"...": (4096,), "N": 1000}, (), "Rowwise",
        {"row_threads": 32, "threads": 128, "pack": 8, "algorithm": "two_pass"}),
    "rowwise_cluster": Golden(
        "layer_norm", bf16, {"...": (512,), "N": 131072}, (), "Rowwise",
        {"keep": "shared", "row_threads": 512, "threads": 512, "cluster": 8, "pack": 8, "algorithm": "online",
         "columns": "early"}),
    "rowwise_cluster_softmax": Golden(
        "softmax", f16, {"...": (512,), "N": 262144}, (), "RowwiseCluster",
        {"cluster": 16, "threads": 512, "pack": 8, "unroll": 4, "slots": 7, "columns": "late", "load": "evict_last"}),
    "rowwise_cluster_early": Golden(
        "layer_norm_backward", f32, {"...": (512,), "N": 262144}, (), "RowwiseCluster",
        {"cluster": 16, "threads": 512, "pack": 4, "unroll": 2, "slots": 7, "load": "evict_last"}),
    "rowwise_cluster_shared": Golden(
        "layer_norm", f16, {"...": (512,), "N": 262144}, (), "RowwiseCluster",
        {"cluster": 16, "threads": 512, "pack": 8, "unroll": 2, "slots": 6, "columns": "shared", "load": "evict_last"}),
    "rowwise_cluster_ragged": Golden(
        "scale_mask_softmax", bf16, {"...": (2, 8, 64), "N": 50256}, (), "RowwiseCluster",
        {"cluster": 4, "threads": 256, "pack": 8, "unroll": 2, "slots": 8, "blocks_per_sm": 2, "columns": "late",
         "load": "evict_last"}),
    "rowwise_span": Golden(
        "layer_norm", f16, {"...": (100000,), "N": 59}, (), "RowwiseSpan",
        {"row_threads": 4, "threads": 128, "turns": 4, "columns": "early"}),
    "rowwise_span_loss": Golden(
        "cross_entropy", f32, {"M": 4096, "N": 96}, (), "RowwiseSpan",
        {"row_threads": 32, "threads": 128, "turns": 2, "columns": "late"}),
    "rowwise_span_lone": Golden(
        "softmax", bf16, {"...": (65537,), "N": 5}, (), "RowwiseSpan",
        {"row_threads": 1, "threads": 64, "turns": 4, "columns": "late"}),
    "rowwise_span_own": Golden(
        "layer_norm", f16, {"...": (100000,), "N": 2}, (), "RowwiseSpan",
        {"span": "thread", "row_threads": 1, "threads": 128, "turns": 4, "columns": "early"}),
    "rowwise_span_packed": Golden(
        "layer_norm", f16, {"...": (65536,), "N": 40}, (), "RowwiseSpan",
        {"row_threads": 2, "threads": 128, "turns": 2, "pack": 4, "columns": "late"}),
    "rowwise_shifted": Golden(
        "layer_norm", f16, {"...": (32768,), "N": 4095}, (), "Rowwise",
        {"row_threads": 256, "threads": 256, "pack": 8, "shift": True, "load": "evict_last"}),
    "rowwise_picked": Golden(
        "cross_entropy", f16, {"M": 4096, "N": 50257}, (), "Rowwise",
        {"keep": "none", "row_threads": 512, "threads": 512, "pack": 8, "shift": True, "unroll": 4, "algorithm": "online"}),
    "rowwise_argmax": Golden(
        "row_argmax", f16, {"...": (32768,), "N": 4096}, (), "Rowwise",
        {"row_threads": 64, "threads": 128, "pack": 8}),
    "rowwise_streaming": Golden(
        "scale_mask_softmax", f32, {"...": (2, 8, 64), "N": 50257}, (), "Rowwise",
        {"keep": "none", "row_threads": 256, "threads": 256, "pack": 1, "unroll": 4, "algorithm": "online"}),
    "attention_wgmma_causal": Golden(
        "attention_causal_lse", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BC": 176, "order": "longest_first", "group": 16, "persistent": False}),
    "attention_wgmma_three": Golden(
        "attention_full", bf16, {"...": (1, 16), "G": 1, "M": 4096, "N": 4096, "D": 64, "E": 64}, (), "AttentionWgmma",
        {"BR": 192, "BC": 96, "pingpong": False, "stages": 3}),
    "attention_wgmma_bias": Golden(
        "attention_full_bias", f16, {"...": (2, 4), "G": 2, "M": 777, "N": 1000, "D": 96, "E": 256}, (), "AttentionWgmma",
        {"BR": 64, "BC": 64, "pingpong": False, "overlap": False, "stages": 1, "pdl": False}),
    "attention_wgmma_decode": Golden(
        "attention_causal_lengths", bf16, {"...": (8, 8), "G": 4, "M": 1, "N": 8192, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BR": 64, "BC": 64, "stages": 3, "pingpong": False, "persistent": False, "blocks_per_sm": 2, "pack_gqa": True,
         "splits": 8}),
    "attention_wgmma_sinks": Golden(
        "attention_causal_sinks_lse", bf16, {"...": (4, 8), "G": 8, "M": 1, "N": 8192, "D": 64, "E": 64}, (), "AttentionWgmma",
        {"BR": 64, "BC": 64, "stages": 3, "pingpong": False, "persistent": False, "order": "longest_first", "group": 1,
         "pack_gqa": True, "splits": 4}),
    "attention_wgmma_dropout": Golden(
        "attention_causal_dropout", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BC": 128, "order": "longest_first", "group": 16, "persistent": False}),
    "attention_wgmma_ranges": Golden(
        "attention_ranges_lse", bf16, {"...": (8,), "G": 4, "M": 8192, "N": 8192, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BC": 144, "order": "paired", "group": 1, "persistent": True}),
    "attention_wgmma_partial": Golden(
        "attention_full_partial_lse", bf16, {"...": (8,), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BC": 128, "persistent": False, "pingpong": False}),
    "attention_wgmma_fp8": Golden(
        "attention_causal_fp8_lse", e4m3, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BC": 128, "order": "longest_first", "group": 16, "persistent": False}),
    "attention_wgmma_sigmoid": Golden(
        "sigmoid_attention_causal", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionWgmma",
        {"BC": 128, "order": "paired", "group": 1, "pingpong": False}),
    "attention_wide_causal": Golden(
        "attention_causal_lse", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 512, "E": 512}, (), "AttentionWide",
        {"BC": 128, "BK": 64, "stages": 4, "cluster": 2, "order": "longest_first", "group": 4}),
    "attention_wide_latent": Golden(
        "attention_full", bf16, {"...": (1, 16), "G": 8, "M": 1000, "N": 4096, "D": 576, "E": 512}, (), "AttentionWide",
        {"BC": 64, "BK": 192, "stages": 2, "overlap": False}),
    "attention_wide_partial": Golden(
        "attention_full_partial_lse", bf16, {"...": (1,), "G": 128, "M": 64, "N": 4096, "D": 576, "E": 512}, (), "AttentionWide",
        {"BC": 128, "BK": 64, "stages": 3, "cluster": 1}),
    "attention_wide_slices": Golden(
        "attention_window_softcap", f16, {"...": (1, 16), "G": 1, "M": 1000, "N": 777, "D": 1024, "E": 1024}, (), "AttentionWide",
        {"BC": 64, "BK": 64, "stages": 5, "slices": 2, "pdl": False}),
    "linear_attention_plain": Golden(
        "linear_attention_undecayed", f16, {"...": (2, 8), "N": 8192, "D": 128, "E": 128}, (), "LinearAttention",
        {"warps": 8, "stages": 3}),
    "linear_attention_decay": Golden(
        "linear_attention_decay", bf16, {"...": (3, 5), "N": 777, "D": 96, "E": 40}, (), "LinearAttention",
        {"BC": 32, "WV": 32, "warps": 2, "blocks_per_sm": 2}),
    "linear_attention_backwards": Golden(
        "linear_attention_decay_backwards", bf16, {"...": (1, 16), "N": 1000, "D": 64, "E": 256}, ("k", "v"), "LinearAttention",
        {"warps": 4}),
    "linear_attention_wgmma_plain": Golden(
        "linear_attention_undecayed", bf16, {"...": (1, 96), "N": 8192, "D": 128, "E": 128}, (), "LinearAttentionWgmma",
        {"consumers": 2, "registers": False, "segments": 1}),
    "linear_attention_wgmma_decay": Golden(
        "linear_attention_decay", f16, {"...": (3, 5), "N": 777, "D": 96, "E": 40}, (), "LinearAttentionWgmma",
        {"consumers": 1, "stages": 2, "registers": True, "overlap": False, "segments": 1, "pdl": False}),
    "linear_attention_wgmma_backwards": Golden(
        "linear_attention_decay_backwards", bf16, {"...": (1, 16), "N": 1000, "D": 64, "E": 256}, (), "LinearAttentionWgmma",
        {"WV": 128, "consumers": 2, "stages": 2, "registers": False, "segments": 4, "blocks_per_sm": 1}),
    "attention_mma_sigmoid": Golden(
        "sigmoid_attention_full_bias", bf16, {"...": (2, 8), "G": 1, "M": 777, "N": 1000, "D": 64, "E": 64}, (), "AttentionMma",
        {}),
    "attention_mma_registers": Golden(
        "attention_causal_lse", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionMma",
        {"order": "longest_first", "group": 8}),
    "attention_mma_splits": Golden(
        "attention_full", bf16, {"...": (1, 8), "G": 4, "M": 1, "N": 8192, "D": 128, "E": 128}, (), "AttentionMma",
        {"BR": 16, "BC": 64, "stages": 3, "pack_gqa": True, "splits": 16}),
    "attention_mma_pages": Golden(
        "attention_causal_pages_of_16_lengths", bf16,
        {"...": (8,), "K": 8, "G": 4, "M": 1, "L": 512, "R": 2**20, "D": 128, "E": 128}, (), "AttentionMma",
        {"BR": 16, "BC": 64, "stages": 2, "pack_gqa": True, "splits": 4}),
    "attention_mma_bias": Golden(
        "attention_full_bias", bf16, {"...": (3, 5), "G": 1, "M": 77, "N": 99, "D": 48, "E": 40}, (), "AttentionMma",
        {"BR": 32, "swizzle": "pad", "blocks_per_sm": 2}),
    "attention_mma_ranges": Golden(
        "attention_ranges_lse", bf16, {"...": (8,), "G": 4, "M": 8192, "N": 8192, "D": 128, "E": 128}, (), "AttentionMma",
        {"BR": 64, "BC": 32, "pack_gqa": True, "order": "longest_first", "group": 8}),
    "attention_mma_window": Golden(
        "attention_window_softcap", bf16, {"...": (1, 16), "G": 1, "M": 1000, "N": 1000, "D": 80, "E": 80}, (), "AttentionMma",
        {"queries": "shared", "swizzle": "pad", "stages": 2, "order": "longest_first", "store": "direct", "BC": 32}),
    "attention_mma_slices": Golden(
        "attention_causal_lse", bf16, {"...": (2, 8), "G": 1, "M": 1000, "N": 1000, "D": 576, "E": 512}, (), "AttentionMma",
        {"queries": "shared", "BC": 32, "slices": 2, "splits": 2}),
    "attention_mma_f16acc": Golden(
        "attention_causal_f16acc", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (), "AttentionMma",
        {"stages": 2, "order": "longest_first", "group": 8}),
    "attention_mma_turing": Golden(
        "attention_full", f16, {"...": (1, 8), "G": 4, "M": 1, "N": 8192, "D": 128, "E": 128}, (), "AttentionMma",
        {"BC": 32, "copy": "register", "pack_gqa": True, "splits": 16}),
    "attention_gradient_wgmma_queries": Golden(
        "attention_causal_lse_train_grad_2", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (),
        "AttentionGradientWgmma", {"order": "last_first", "group": 16, "stages": 3}),
    "attention_gradient_wgmma_keys": Golden(
        "attention_causal_lse_train_grad_3", bf16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (),
        "AttentionGradientWgmma", {"BC": 32, "overlap": False, "stages": 4}),
    "attention_gradient_wgmma_slices": Golden(
        "attention_window_softcap_train_grad_3", f16, {"...": (1, 16), "G": 1, "M": 1000, "N": 777, "D": 256, "E": 256}, (),
        "AttentionGradientWgmma", {"BR": 64, "BC": 48, "slices": 2, "overlap": False, "stages": 2, "pdl": False}),
    "attention_gradient_wgmma_sigmoid": Golden(
        "sigmoid_attention_causal_grad_2", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (),
        "AttentionGradientWgmma", {"BC": 64, "overlap": False}),
    "attention_gradient_one_pass_sigmoid": Golden(
        "sigmoid_attention_causal_grad_unordered", bf16, {"...": (2, 8), "G": 1, "M": 777, "N": 1000, "D": 64, "E": 64}, (),
        "AttentionGradientOnePass", {"BC": 128}),
    "attention_gradient_one_pass_shared_rows": Golden(
        "attention_full_train_grad_unordered_2", f16, {"...": (2, 8), "G": 1, "M": 4096, "N": 4096, "D": 256, "E": 256}, (),
        "AttentionGradientOnePass", {"BR": 64, "BC": 64, "stages": 2, "pingpong": False}),
    "attention_gradient_one_pass_shared": Golden(
        "attention_full_train_grad_unordered_2", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128},
        (), "AttentionGradientOnePass", {"stages": 3, "pingpong": True}),
    "attention_gradient_one_pass_narrow": Golden(
        "attention_full_train_grad_unordered_2", bf16, {"...": (1, 16), "G": 1, "M": 1000, "N": 777, "D": 64, "E": 64}, (),
        "AttentionGradientOnePass", {"BC": 128, "stages": 2, "pingpong": True, "pdl": False}),
    "attention_gradient_one_pass_full": Golden(
        "attention_full_train_grad_unordered_2", f16, {"...": (3,), "G": 1, "M": 500, "N": 300, "D": 96, "E": 80}, (),
        "AttentionGradientOnePass", {"stages": 2, "pingpong": False}),
    "attention_gradient_mma_sigmoid": Golden(
        "sigmoid_attention_causal_grad_1", f16, {"...": (2, 8), "G": 1, "M": 777, "N": 1000, "D": 64, "E": 64}, (),
        "AttentionGradientMma", {}),
    "attention_gradient_mma_queries": Golden(
        "attention_causal_lse_train_grad_2", f16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 128, "E": 128}, (),
        "AttentionGradientMma", {"order": "last_first", "group": 8}),
    "attention_gradient_mma_keys": Golden(
        "attention_full_train_grad_3", bf16, {"...": (3, 5), "G": 1, "M": 77, "N": 99, "D": 48, "E": 40}, (),
        "AttentionGradientMma", {"BR": 32, "BC": 16}),
    "attention_gradient_mma_dropout": Golden(
        "attention_causal_dropout_train_grad_3", bf16, {"...": (2, 8), "G": 4, "M": 2048, "N": 2048, "D": 64, "E": 64}, (),
        "AttentionGradientMma", {"stages": 2}),
    "attention_gradient_mma_swizzled": Golden(
        "attention_window_softcap_train_grad_3", bf16, {"...": (1, 16), "G": 2, "M": 1000, "N": 1000, "D": 128, "E": 64}, (),
        "AttentionGradientMma", {"swizzle": "xor", "stages": 3, "slices": 2}),
}
# fmt: on
