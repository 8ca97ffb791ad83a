"""Mutants of places and ends: of rows, columns, groups, parts of sums, scales."""

from __future__ import annotations

from gemm_mutants import _ACROSS, _HGEMV, _RING, _STAGED
from linear_attention_mutants import _DECAY
from move_mutants import _ADD as _WHOLE
from move_mutants import _BACK, _TURN
from mutant import Mutant, on
from row_mutants import _ARGMAX, _COLUMN_SUM, _FIRST, _LOG_SUMS, _MOMENTS, _MOMENTS_LAST
from scatter_mutants import _BOXES, _EMBEDDING, _INDEX_ADD
from wgmma_mutants import _COPIED, _READS, _SCALED, _SPLIT

_GEMV = "templates/gemv.cu.j2"
_TILE = "templates/common/tile.cuh"
_WGMMA = "templates/gemm_wgmma.cu.j2"
_SCHEDULER = "templates/common/tile_scheduler.cuh"
_STATE = "templates/common/row_state.cuh"
_AT = "templates/common/row_columns.cuh"
_RING_OF_ROWS = "templates/rowwise_cluster.cu.j2"
_REDUCE = "templates/reduce.cu.j2"
_COLUMNS = "templates/column_stats.cu.j2"
_SCAN = "templates/common/scan.cuh"
_GATHER = "templates/gather.cu.j2"
_SCATTER = "templates/macros/scatter.cuh.j2"
_ROWS = "templates/scatter_rows.cu.j2"
_NMS = "templates/nms.cu.j2"
_ONE_PASS = "templates/attention_gradient_one_pass.cu.j2"
_MASKS = "kgen/ops/attention/masks.py"
_SOFTMAX = "templates/common/attention.cuh"
_EPILOGUE = "templates/macros/gemm_epilogue.cuh.j2"
_WGMMA_TILE = "templates/common/wgmma_tile.cuh"
_SPLIT_K = "templates/common/split_k.cuh"
_BATCH = "templates/common/batch.cuh"
_SUM = "templates/gather_sum.cu.j2"
_ADD = "templates/scatter_add.cu.j2"
_EXPRESSION = "kgen/codegen/expression.py"
_LINEAR = "templates/common/linear_attention.cuh"

_GROUPED = on("grouped_hgemm", "4096x1024x512x8", "WgmmaGemm")
_BATCHES = on("hgemm", "3x256x256x256", "WgmmaGemm")
_NEAREST = on("upsample_nearest", "64x37x41x81x93", "Gather", items=4)
_FEW = on("hgemm", "4096x3x4096", "Gemv", vectors=2)
_LONG_GRADIENT = on("layer_norm_backward", "512x65536", "RowwiseCluster", cluster=4)
_NARROW = on(
    "attention_full_train_grad_unordered_2", "...=1x1,G=1,M=100,N=90,D=120,E=120", "AttentionGradientOnePass",
    BR=128, BC=64, stages=2, pingpong=False,
)  # fmt: skip

MUTANTS = [
    # Products.
    Mutant("grouped-behind-the-last-nothing", "initial", _SCHEDULER,
           "group < groups ? grid.k_tiles : grid.k_tiles + 1;",
           "grid.k_tiles;", _GROUPED),
    Mutant("grouped-behind-the-last-unwritten", "tail", _SCHEDULER, "group = 0; group <= groups; ++group)",
           "group = 0; group < groups; ++group)", _GROUPED),
    Mutant("wgmma-batch-of-the-first-axis", "index", _SCHEDULER, "if (d) batch /= batches[d];",
           "if (d) batch /= batches[0];",
           _BATCHES),
    Mutant("workers-share-rounded-down", "sum", _SCHEDULER,
           "static_cast<int>(static_cast<long long>(grid.k_tiles) * (split() + 1) / Splits);",
           "part.k_first + grid.k_tiles / Splits;", _SPLIT),
    Mutant("tile-whole-last-vector", "tail", _TILE,
           "column_stride, Whole ? Pack : row < rows ? max(0, min(Pack, columns - column)) : 0);",
           "column_stride, Whole ? Pack : row < rows && column < columns ? Pack : 0);", _RING),
    Mutant("scale-of-the-row-beyond", "tail", _WGMMA, "{{ s.index }} < {{ s.side }} ? 4 : 0);",
           "{{ s.index }} <= {{ s.side }} ? 4 : 0);", _SCALED),
    Mutant("gemv-row-of-k-beyond", "tail", _GEMV, "k + u < K ? columns", "k + u <= K ? columns", _ACROSS),
    Mutant("gemv-vector-beyond", "tail", _GEMV, 'element("min(v0 + v, %s - 1)" % count, "k")',
           'element("min(v0 + v, %s)" % count, "k")', _FEW),
    # Rows.
    Mutant("row-shifted-one-vector-more", "tail", _AT, "      if (column < end) f(RowWidth<Pack>(), v, column);",
           "      if (column <= end) f(RowWidth<Pack>(), v, column);",
           on("softmax", "4096x4097", "Rowwise", shift=True, keep="registers", cluster=1, row_threads=128)),
    Mutant("row-ring-values-beyond", "tail", _RING_OF_ROWS, "if (i + 1 < count) read_values(",
           "if (i < count) read_values(",
           _LONG_GRADIENT),
    Mutant("row-ring-values-of-the-row-before", "index", _RING_OF_ROWS, "for (int r = 0; r <= AHEAD; ++r) {",
           "for (int r = 0; r < AHEAD; ++r) {", _LONG_GRADIENT),
    Mutant("scan-infinite-minus-infinite", "special", _STATE, "Exp::of(less == both ? T(0) : less - both)",
           "Exp::of(less - both)", _LOG_SUMS),
    Mutant("scan-last-warp-left-out", "sum", _SCAN, "tile = state_of_lane<32>(up_to, WARPS - 1);",
           "tile = state_of_lane<32>(up_to, WARPS - 2);",
           on("cumsum", "16x10000", "Scan", row_threads=128, threads=128, vectors=2)),
    # Reductions.
    Mutant("reduce-row-wraps-late", "tail", _REDUCE, "      if (place >= row_vectors) {",
           "      if (place > row_vectors) {",
           _MOMENTS),
    Mutant("reduce-rows-end-in-whole-vectors", "tail", _REDUCE,
           "const Index whole_vectors = n{{ inner }} % PACK == 0 ? vectors : 0;",
           "const Index whole_vectors = vectors;", _MOMENTS),
    Mutant("columns-blocks-again", "sum", _COLUMNS, "block < blocks; block += AT_ONCE * GROUPS) {",
           "block < blocks; block += GROUPS) {", _COLUMN_SUM),
    Mutant("columns-rows-of-one-block", "sum", _COLUMNS, "const Index step = gridDim.y * GROUPS;",
           "const Index step = GROUPS;",
           _COLUMN_SUM),
    # Gather and scatter.
    Mutant("gather-row-behind-the-last", "tail", _GATHER, "if (first + i + 1 < rows) advance(",
           "if (first + i < rows) advance(",
           _NEAREST),
    Mutant("gather-thread-behind-the-last", "tail", _GATHER, "|| first >= rows) return;", "|| first > rows) return;",
           _NEAREST),
    Mutant("scatter-index-behind-the-last", "tail", _SCATTER, 'at="min(first + i, count - 1)"',
           'at="min(first + i, count)"',
           _INDEX_ADD),
    Mutant("scatter-vector-behind-the-last", "tail", _SCATTER, "min(vector + batch * THREADS, vectors - 1);",
           "min(vector + batch * THREADS, vectors);", _INDEX_ADD),
    Mutant("rows-crowded-more-than-once", "index", _ROWS, "if (rank == SLOTS) {", "if (rank >= SLOTS) {", _EMBEDDING),
    Mutant("nms-overlaps-that-are-not-made", "index", _NMS, "i < members && g <= i / 32 ?", "i < members ?", _BOXES),
    # Attention.
    Mutant("one-pass-column-beyond", "tail", _ONE_PASS, "column >= across_depth) return;",
           "column > across_depth) return;",
           _NARROW),
    # Masks and bounds of attention.
    Mutant("attention-heads-behind-the-group", "index", _SOFTMAX, "block / (Group * tiles) * Group, beside",
           "block / (Group * tiles), beside",
           on("attention_causal_lse", "...=1x5,G=1,M=200,N=200,D=64,E=64", "AttentionWgmma", BR=128, BC=64, group=4)),
    # Products, again.
    Mutant("gemv-chunk-whole-by-its-first", "tail", _GEMV, "if ((k_tile + tiles) * BK <= K)",
           "if ((k_tile + 1) * BK <= K)", _STAGED),
    Mutant("gemv-vectors-of-k-beyond", "tail", _GEMV, "PACK : K - k - u * (K_LANES * STEP));", "PACK : K - k);",
           _HGEMV),
    Mutant("gemm-reads-the-row-beyond", "tail", _EPILOGUE, 'x.row and "m < "', 'x.row and "m <= "', _READS),
    Mutant("copied-without-the-last-vector", "tail", _WGMMA_TILE, "const int across = (columns + N - 1) / N;",
           "const int across = columns / N;", _COPIED),
    Mutant("copied-column-beyond", "tail", _WGMMA_TILE, "if (row + i < rows && column + lane < columns)",
           "if (row + i < rows && column + lane <= columns)", on("fp8gemm", "1024x1024x1024", "WgmmaGemm")),
    Mutant("split-reads-beyond-the-last", "tail", _SPLIT_K, "i * Threads : min(i * Threads, Elements - 1 - thread);",
           "i * Threads : i * Threads;",
           on("hgemv", "2048x8192", "Gemv", vectors=1, pack=1, rows=1, unroll=1, threads=128, warps=2, lanes=16,
           splits=16)),
    Mutant("stream-part-of-the-worker-before", "index", _SPLIT_K,
           "(w * scheduler.grid.CLUSTER_SIZE + scheduler.grid.rank)",
           "(w * scheduler.grid.CLUSTER_SIZE)", on("hgemm", "2048x2048x4096", "WgmmaGemm", work="stream_k",
           cluster="2x1", consumers=2)),
    # Rows and reductions, again.
    Mutant("norm-lanes-of-one-length", "tail", _STATE, "Even ? Lanes * count : sum_lanes<Lanes>(count);",
           "Lanes * count;",
           on("layer_norm", "1x4099", "Rowwise", cluster=1, pack=8, shift=False, algorithm="online")),
    Mutant("argmax-of-nothing-but-the-least", "special", _STATE, "return value == lowest<T>() ? Index(0) : at;",
           "return at;", _ARGMAX),
    Mutant("reduce-argmax-of-nothing-but-the-least", "special", _STATE,
           "return value == lowest<T>() ? Index(0) : at;", "return at;",
           _FIRST),
    Mutant("moments-share-of-a-full-batch", "tail", _BATCH, "for (int i = 0; i < Items; ++i) count += left[i];",
           "for (int i = 0; i < Items; ++i) count += left[i] > 0 ? Pack : 0;", _MOMENTS),
    Mutant("moments-rows-of-a-full-batch", "tail", _COLUMNS, "    seen.rows += count;", "    seen.rows += ITEMS;",
           _MOMENTS_LAST),
    # Gather and scatter, again.
    Mutant("rows-slot-behind-the-last", "tail", _ROWS, "+ min(k + i, {{ members }} - 1));",
           "+ min(k + i, {{ members }}));", _EMBEDDING),
    Mutant("gather-sum-window-of-the-longest", "index", _SUM, "high[part] = lane < 31 ? beside : next;",
           "high[part] = lane < 30 ? beside : next;",
           _BACK),
    Mutant("scatter-lane-behind-the-columns", "tail", _ADD, "    if (column >= columns) continue;",
           "    if (column > columns) continue;", _INDEX_ADD),
    # What is decided on the host.
    Mutant("linear-decay-of-whole-warps", "tail", _LINEAR, "first + row < end ? read(first + row)",
           "first + row <= end ? read(first + row)", _DECAY),
    # From how many elements on indices have 64 bits.
    Mutant("pointwise-limit-of-more-bits", "32-bit", "kgen/ops/elementwise/elementwise.py",
           "Limit(elements, self.pack * 2**31 - 1)",
           "Limit(elements, self.pack * 2**33 - 1)", _WHOLE),
    Mutant("transpose-limit-of-more-bits", "32-bit", "kgen/ops/elementwise/transpose.py", "_LARGEST = 2**31 - 2**16 - 1",
           "_LARGEST = 2**33 - 2**16 - 1", _TURN),
    Mutant("row-limit-of-more-bits", "32-bit", "kgen/ops/rowwise/kernel.py",
           'prod(Dim(f"n{d}") for d in range(self.rank - 1)), 2**31 - 1)',
           'prod(Dim(f"n{d}") for d in range(self.rank - 1)), 2**33 - 1)',
           on("softmax", "4096x256", "Rowwise", cluster=1, row_threads=32, threads=128)),
    Mutant("scan-limit-of-more-bits", "32-bit", "kgen/ops/scan/schedule.py", "(Limit(rows, 2**31 - 1),)",
           "(Limit(rows, 2**33 - 1),)",
           on("cumsum", "1001x100", "Scan", row_threads=8, threads=128)),
    Mutant("gather-limit-of-more-bits", "32-bit", "kgen/ops/gather/gather.py", "Limit(size, 2**31 - 2**16 - 1) for size",
           "Limit(size, 2**33 - 2**16 - 1) for size", on("embedding", "16384x50000x1024", "Gather")),
]  # fmt: skip
