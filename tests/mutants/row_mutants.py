"""Mutants of reductions: rowwise, rowwise_cluster, reduce, column_stats and what they share."""

from __future__ import annotations

from mutant import Mutant, on

_ROW = "templates/rowwise.cu.j2"
_PARTS = "templates/macros/rowwise.cuh.j2"
_SCAN = "templates/common/scan.cuh"
_SCANS = "templates/scan.cu.j2"
_SCAN_SPAN = "templates/scan_span.cu.j2"
_SCAN_THREAD = "templates/scan_thread.cu.j2"
_SPLIT = "templates/scan_split.cu.j2"
_STATE = "templates/common/row_state.cuh"
_BATCH = "templates/common/batch.cuh"
_AT = "templates/common/row_columns.cuh"
_ACCESS = "kgen/ops/rowwise/access.py"
_KERNEL = "kgen/ops/rowwise/kernel.py"
_RING = "templates/rowwise_cluster.cu.j2"
_COMMON = "templates/common/row.cuh"
_GRID = "templates/common/grid.cuh"
_REDUCE = "templates/reduce.cu.j2"
_TOTAL = "templates/common/total.cuh"
_COLUMNS = "templates/column_stats.cu.j2"
_PHILOX = "templates/common/philox.cuh"

_SOFTMAX = on("softmax", "4096x4096", "Rowwise", keep="registers", cluster=1, row_threads=128, threads=256)
_AGAIN = on("softmax", "4096x4099", "Rowwise", keep="none", cluster=1, row_threads=128, pack=1, algorithm="online")
_STAGED = on("softmax", "4096x4096", "Rowwise", keep="shared", cluster=1, row_threads=128, threads=128)
_NORM = on(
    "layer_norm", "4096x4096", "Rowwise", keep="registers", cluster=1, row_threads=128, threads=128, algorithm="online"
)
_RAGGED = on("softmax", "1x4099", "Rowwise", cluster=1, pack=8, shift=False)
_SHIFTED = on("softmax", "4096x4097", "Rowwise", shift=True, keep="registers", cluster=1, row_threads=128)
_CLUSTER = on("softmax", "1024x32768", "Rowwise", cluster=4, keep="registers")
_LONG = on("softmax", "512x131072", "RowwiseCluster", cluster=4, slots=4)
_LONG_NORM = on("layer_norm", "1024x65536", "RowwiseCluster", cluster=4)
_SPAN_TEXT, _SPANS = "templates/rowwise_span.cu.j2", "templates/common/row_span.cuh"
_SPAN = on("layer_norm", "4096x59", "RowwiseSpan", threads=64, turns=4)
_OWN_SPAN = on("layer_norm", "4099x2", "RowwiseSpan", span="thread", row_threads=1, turns=4)
_ARGMAX = on("row_argmax", "4096x4096", "Rowwise", cluster=1, keep="none")
_DROPOUT = on("scale_mask_softmax_dropout", "512x4096", "Rowwise", cluster=1)
_SUM = on("reduce_sum", "16777216", "Reduce")
_LEAST = on("reduce_min", "16777216", "Reduce", finish="atomic")
_TWO_PASS = on("reduce_sum", "16777216", "Reduce", finish="two_pass", blocks_per_sm=2)
_MAX = on("reduce_max", "16777216", "Reduce")
_FIRST = on("reduce_argmax", "16777216", "Reduce")
_COLUMN_SUM = on("column_sum", "8192x4096", "ColumnStats")
_MOMENTS = on("batch_norm_stats", "64x256x1024", "ChannelStats")
_MOMENTS_LAST = on("batch_norm_stats", "64x256x1024", "ColumnStats", "--transposed", "x")
_SCANNED = on("cumsum", "16x10000", "Scan", row_threads=128, threads=128, vectors=2)
_SHORT = on("cumsum", "5000x31", "ScanSpan", row_threads=4, threads=64, vectors=4)
_FEW = on("cumsum", "5001x3", "ScanThread", stage=False)
_FEW_STAGED = on("cumsum", "5001x3", "ScanThread", stage=True)
_SHARED = on("cumsum", "2x100000", "ScanSplit", pack=1, vectors=1, threads=128, stages=2)
_SHARED_LATER = on("cumsum", "2x100000", "ScanSplit", pack=1, vectors=1, threads=128, stages=1)
_LOG_SUMS = on("logcumsumexp", "1000x100", "Scan", row_threads=8, threads=128)

MUTANTS = [
    # Rows.
    Mutant("softmax-total-not-rescaled", "sum", _STATE,
           "    if (max != value) sum *= Exp::of(max - value);\n", "", _AGAIN),
    Mutant("softmax-chunk-of-infinities", "special", _BATCH,
           "    if (max == lowest<T>()) max = 0;\n", "",
           on("scale_mask_softmax", "512x4096", "Rowwise", cluster=1, algorithm="online")),
    Mutant("softmax-begins-at-zero", "initial", _STATE,
           "struct SoftmaxState {\n  T max = lowest<T>();", "struct SoftmaxState {\n  T max = 0;",
           on("softmax", "4096x4096", "Rowwise", keep="registers", cluster=1, algorithm="online")),
    Mutant("row-max-begins-at-lowest-finite", "special", _STATE,
           "struct MaxState {\n  T value = lowest<T>();", "struct MaxState {\n  T value = -65504.0f;",
           on("row_max", "4096x4096", "Rowwise", cluster=1)),
    Mutant("row-tail-counted", "tail", _PARTS, "    if (column + e >= {{ length }}) continue;",
           "    if (column + e > {{ length }}) continue;", _RAGGED),
    Mutant("row-tail-unmasked", "tail", _PARTS, "    if (column + e >= {{ length }}) continue;\n", "    ;\n", _RAGGED),
    Mutant("row-vector-beyond", "tail", _AT,
           "#pragma unroll\n    for (int v = 0; v < Vectors; ++v) {\n      const int column = tile + first + v * Step;\n"
           "      if (Whole || column < length) f(v, column);",
           "#pragma unroll\n    for (int v = 0; v < Vectors; ++v) {\n      const int column = tile + first + v * Step;\n"
           "      if (Whole || column <= length) f(v, column);",
           on("softmax", "4096x4000", "Rowwise", cluster=1, keep="registers", row_threads=128)),
    Mutant("row-limit-of-stores", "tail", _ACCESS, "({at}, {a.name}_vector{limit})", "({at}, {a.name}_vector)", _RAGGED),
    Mutant("row-beyond-the-last", "tail", _ROW, '"min(own, rows - 1)" if rows_of_block', '"own" if rows_of_block',
           on("softmax", "4097x256", "Rowwise", cluster=1, row_threads=32, threads=128)),
    Mutant("row-block-no-barrier", "barrier", _COMMON, "  if (lane == 0) partial[warp] = state;\n  __syncthreads();",
           "  if (lane == 0) partial[warp] = state;", _SOFTMAX),
    Mutant("row-block-of-the-first", "index", _COMMON, "partial[warp / Warps * Warps + lane % Warps];",
           "partial[lane % Warps];", _SOFTMAX),
    Mutant("row-phases-share-a-place", "race", _KERNEL, '" + REDUCE_BYTES / 2" if number % 2', '"" if number % 2',
           on("softmax", "4096x4096", "Rowwise", cluster=1, row_threads=128, algorithm="two_pass")),
    Mutant("row-copies-unwaited", "race", _ROW, "  ptx::cp_async_wait<0>();\n", "", _STAGED),
    Mutant("row-variance-apart", "sum", _STATE, "+ squares + difference * difference * (count * other_count * inverse);",
           "+ squares;",
           on("layer_norm", "4096x4096", "Rowwise", keep="none", cluster=1, row_threads=128, unroll=1, algorithm="online")),
    Mutant("row-lanes-apart", "sum", _STATE, "(variance + difference * difference * count);", "(variance);", _NORM),
    Mutant("row-mean-of-a-block", "sum", _STATE, "variance /= static_cast<T>(length);",
           "variance /= static_cast<T>(length - 1);", _NORM),
    Mutant("row-edge-before", "tail", _AT, "(first / Pack < head ? 0 : end - head);",
           "(first / Pack <= head ? 0 : end - head);", _SHIFTED),
    Mutant("row-head-of-the-first-row", "stride", _KERNEL, "({' + '.join(full[0].offsets())}) % PACK", "{length} % PACK",
           _SHIFTED),
    Mutant("row-largest-drops-nan", "special", _COMMON, "{ return ptx::max_nan(a, b); }", "{ return a > b ? a : b; }",
           on("row_max", "4096x4096", "Rowwise", cluster=1)),
    Mutant("row-argmax-keeps-the-last", "index", _COMMON, "(equal & (other_at < at))", "(equal & (other_at > at))",
           _ARGMAX),
    Mutant("row-argmax-next-of-equals", "index", _COMMON, "if (!(other <= value) && value == value) {",
           "if (!(other < value) && value == value) {", _ARGMAX),
    Mutant("row-argmax-nan-replaced", "special", _COMMON, "if (!(other <= value) && value == value) {",
           "if (!(other <= value)) {", _ARGMAX),
    Mutant("row-argmax-any-nan", "special", _COMMON, "const bool equal = other_nan ? nan : other == value;",
           "const bool equal = other == value;", on("row_argmax", "4096x4096", "Rowwise", cluster=1)),
    Mutant("row-pick-beyond", "tail", _PARTS, "{{ k.place }} < {{ length }}) {", "{{ k.place }} <= {{ length }}) {",
           on("cross_entropy", "4096x4096", "Rowwise", cluster=1)),
    Mutant("row-last-edge-of-a-whole-tile", "tail", _AT, "(!Tiled || tile + Vectors * Step >= length)",
           "(!Tiled || tile + Vectors * Step > length)",
           on("softmax", "4096x4097", "Rowwise", shift=True, keep="none", cluster=1, row_threads=128)),
    Mutant("philox-block-of-each", "random", _PHILOX, "if (e == 0 || at == 0) words", "if (e == 0) words",
           on("dropout", "1048576", "Elementwise", pack=8)),
    Mutant("philox-offset", "random", _PHILOX, "static_cast<unsigned long long>(offset) + i / 4, seed);",
           "static_cast<unsigned long long>(offset + 1) + i / 4, seed);", _DROPOUT),
    Mutant("philox-counter-of-32-bits", "random", _PHILOX, "static_cast<unsigned>(counter >> 32), 0, 0);", "0u, 0, 0);",
           on("dropout", "1048576", "Elementwise")),
    Mutant("philox-key-of-32-bits", "random", _PHILOX, "high_key = static_cast<unsigned>(key >> 32);", "high_key = 0;",
           on("dropout", "1048576", "Elementwise")),
    Mutant("philox-word", "random", _PHILOX, "static_cast<int>(i % 4);", "e % 4;",
           on("scale_mask_softmax_dropout", "512x4097", "Rowwise", cluster=1)),
    Mutant("row-random-in-int", "32-bit", _PARTS,
           "(static_cast<long long>(row) * {{ length }} + column,", "(static_cast<int>(row) * {{ length }} + column,",
           _DROPOUT),
    Mutant("row-offset-in-int", "32-bit", _ACCESS, 'return [f"{_index(row, d, self.rank)} * {self.name}_s{d}"',
           'return [f"static_cast<int>({_index(row, d, self.rank)} * {self.name}_s{d})"', _SOFTMAX),
    # Rows shared by a cluster.
    Mutant("row-cluster-not-started", "barrier", _ROW, "  ptx::cluster_wait();  // all blocks have started\n", "",
           _CLUSTER),
    Mutant("row-cluster-meets-alone", "barrier", _COMMON, "  ptx::cluster_sync();\n  constexpr int COUNT",
           "  __syncthreads();\n  constexpr int COUNT", _CLUSTER),
    Mutant("row-cluster-32-states", "sum", _COMMON,
           "  for (int i = 32; i < COUNT; i += 32) state.combine(partial[i + lane]);", "  ;",
           on("softmax", "1024x65536", "Rowwise", cluster=8, keep="registers", threads=512, row_threads=512)),
    Mutant("ring-parity-stays", "phase", _RING, "      parity ^= 1;\n", "", _LONG),
    Mutant("ring-slot-refilled-early", "barrier", _RING,
           "    __syncwarp();  // all lanes have used what they read in the slot\n", "", _LONG),
    Mutant("ring-spent-one-off", "index", _RING, "spent = spent == SLOTS - 1 ? 0 : spent + 1;",
           "spent = spent == SLOTS - 2 ? 0 : spent + 1;", _LONG),
    Mutant("ring-not-started", "barrier", _RING, "    ptx::cluster_wait();  // all barriers are there\n", "", _LONG),
    Mutant("ring-totals-of-one-half", "race", _RING, "put_state(totals + half, state0);",
           "put_state(totals, state0);", _LONG),
    Mutant("ring-readers-of-warps", "barrier", _RING, "READERS = WARPS > CLUSTER ? WARPS : CLUSTER;",
           "READERS = WARPS;", on("softmax", "512x131072", "RowwiseCluster", cluster=8, threads=128)),
    Mutant("ring-sends-before-read", "barrier", _RING,
           "__syncwarp();  // all lanes have read what the other blocks send next to the same place", ";", _LONG),
    Mutant("ring-columns-negative", "tail", _RING, '"max(0, min(%s - column, VECTORS * STEP))" % length',
           '"min(%s - column, VECTORS * STEP)" % length', on("softmax", "512x150000", "RowwiseCluster")),
    Mutant("ring-warps-unsynchronised", "race", _RING, "state0 = of_warps[half * WARPS + lane % WARPS];",
           "state0 = of_warps[lane % WARPS];", _LONG_NORM),
    # Rows as one span.
    Mutant("span-not-waited-for", "barrier", _SPAN_TEXT, "  ptx::cp_async_wait<0>();\n", "", _SPAN),
    Mutant("span-not-met-before-it-leaves", "barrier", _SPAN_TEXT, "//% if outputs and not own_span\n  __syncthreads();\n",
           "//% if outputs and not own_span\n", _SPAN),
    Mutant("span-rows-beyond-the-last", "tail", _SPAN_TEXT, '    {{ "if (own < count) " if not own_span }}{', "    {",
           on("layer_norm_forward", "4096x59", "RowwiseSpan", threads=64, turns=4)),
    Mutant("span-ends-at-whole-vectors", "tail", _SPANS, "load_vector<PACK>(from + at, elements - at), elements - at);",
           "load_vector<PACK>(from + at, elements - at));", _SPAN),
    Mutant("span-last-vector-missing", "tail", _SPANS, "at < elements; at += Threads * PACK)",
           "at + PACK <= elements; at += Threads * PACK)", _SPAN),
    Mutant("span-last-column-of-all", "tail", _AT, "if (v < Vectors - 1 || column < length) f(v, column);",
           "f(v, column);", _SPAN),
    Mutant("own-span-ends-at-whole-vectors", "tail", _SPAN_TEXT, "{{ y.name }}_span, count * {{ length }});\n//%   else",
           "{{ y.name }}_span);\n//%   else", _OWN_SPAN),
    Mutant("own-span-begins-at-the-last-rows", "tail", _SPAN_TEXT, "  if (start >= rows) return;\n", "", _OWN_SPAN),
    # All elements.
    Mutant("reduce-steps-by-one", "sum", _REDUCE, "(ITEMS - 1) * step; vector += ITEMS * step) {",
           "(ITEMS - 1) * step; vector += step) {", on("reduce_sum", "16777216", "Reduce", items=4)),
    Mutant("reduce-whole-beyond", "tail", _REDUCE, "whole_vectors - vector > (ITEMS - 1) * step;",
           "whole_vectors - vector > 0;", on("reduce_sum", "16777216", "Reduce", items=4)),
    Mutant("reduce-tail-forgotten", "tail", _REDUCE,
           "const Index vectors = (n{{ inner }} + PACK - 1) / PACK;\n  const Index whole",
           "const Index vectors = n{{ inner }} / PACK;\n  const Index whole",
           on("reduce_sum", "16777219", "Reduce", pack=8)),
    Mutant("reduce-max-begins-at-lowest-finite", "special", _STATE, "struct MaxState {\n  T value = lowest<T>();",
           "struct MaxState {\n  T value = -3.0e38f;", _MAX),
    Mutant("reduce-max-begins-at-zero", "initial", _STATE, "struct MaxState {\n  T value = lowest<T>();",
           "struct MaxState {\n  T value = 0;", _MAX),
    Mutant("reduce-argmax-nan", "special", _COMMON, "if (!(other <= value) && value == value) {",
           "if (other > value && value == value) {", _FIRST),
    Mutant("reduce-argmax-any-nan", "special", _COMMON, "const bool equal = other_nan ? nan : other == value;",
           "const bool equal = other == value;", _FIRST),
    Mutant("reduce-column-in-int", "32-bit", _REDUCE,
           "const long long column = static_cast<long long>(vector + i * step) * PACK;",
           "const int column = static_cast<int>(vector + i * step) * PACK;", _SUM),
    Mutant("reduce-counts-early", "workspace", _GRID, "  __threadfence();\n  __syncthreads();\n  bool last",
           "  __threadfence();\n  bool last", _COLUMN_SUM),
    Mutant("reduce-no-fence", "fence", _GRID, "  __threadfence();\n  __syncthreads();\n  bool last",
           "  __syncthreads();\n  bool last", _SUM),
    Mutant("reduce-plain-count", "atomic", _GRID, "last = atomicAdd(counter, 1) ==", "last = (*counter)++ ==", _SUM),
    Mutant("reduce-counter-stays", "workspace", _GRID, "  if (threadIdx.x == 0) *counter = 0;\n  __threadfence();",
           "  __threadfence();", _SUM),
    Mutant("reduce-own-state-twice", "sum", _REDUCE, "    state = State();\n", "", _SUM),
    Mutant("reduce-halves-no-barrier", "barrier", _COMMON,
           "state.combine(states[threadIdx.x + half]);\n      states[threadIdx.x] = state;\n    }\n    __syncthreads();",
           "state.combine(states[threadIdx.x + half]);\n      states[threadIdx.x] = state;\n    }",
           on("reduce_sum", "16777216", "Reduce", within="sequential")),
    Mutant("reduce-neighbours-of-all", "sum", _COMMON, "if (threadIdx.x % (2 * step) == 0) {",
           "if (threadIdx.x % step == 0) {", on("reduce_sum", "16777216", "Reduce", within="interleaved")),
    Mutant("reduce-first-does-not-wait", "race", _GRID, "while (ptx::load_acquire(counter) < blocks)",
           "while (ptx::load_acquire(counter) < blocks - 1)", _TWO_PASS),
    Mutant("reduce-total-unfenced", "fence", _REDUCE, "    counters[{{ counter }}] = 0;\n    __threadfence();\n",
           "    counters[{{ counter }}] = 0;\n", _LEAST,
           "the values that weak accesses return are not modelled: atomics find what came before them in time"),
    Mutant("reduce-total-stays", "workspace", _TOTAL, "from_ordered_key(atomicExch(word_of(total), 0), v);\n  v = reverse_order",
           "from_ordered_key(*word_of(total), v);\n  v = reverse_order", _LEAST),
    Mutant("reduce-total-nan-least", "special", _TOTAL, "return v != v ? ~0u : bits", "return bits", _LEAST),
    Mutant("reduce-total-of-the-largest", "index", _TOTAL, "ordered_key(reverse_order(v))", "ordered_key(v)", _LEAST),
    # Columns.
    Mutant("columns-whole-rows-beyond", "tail", _COLUMNS, "whole_rows - row > (ITEMS - 1) * step) {",
           "whole_rows - row > (ITEMS - 2) * step) {", on("column_sum", "8192x4096", "ColumnStats", items=4)),
    Mutant("columns-meet-no-barrier", "barrier", _COLUMNS,
           "total[e].combine(states.load(e * (THREADS / 2) + threadIdx.x));\n      }\n      __syncthreads();",
           "total[e].combine(states.load(e * (THREADS / 2) + threadIdx.x));\n      }", _COLUMN_SUM),
    Mutant("columns-states-overlap", "index", "templates/common/state_memory.cuh",
           "member = array(before, member)[at];\n      before += sizeof(member);",
           "member = array(before, member)[at];", _MOMENTS_LAST),
    Mutant("columns-own-twice", "sum", _COLUMNS, "    for (int e = 0; e < PACK; ++e) total[e] = State();",
           "    for (int e = 0; e < PACK; ++e) (void)e;", _COLUMN_SUM),
    Mutant("columns-moments-of-nothing", "special", _STATE, "    if (count > 0 && other.count > 0) {", "    {", _MOMENTS),
    Mutant("columns-moments-weight", "sum", _STATE, "(count * other.count / (count + other.count));",
           "(count * other.count / count);", _MOMENTS),
    Mutant("columns-moments-not-moved", "sum", _BATCH, "pairwise<Pack>(squares, Add()) + moved * moved * both;",
           "pairwise<Pack>(squares, Add());", _MOMENTS),
    Mutant("columns-places-overlap", "index", _COLUMNS, "((first + block) * PACK + e) * LANES + lane; };",
           "(first + block) * PACK * LANES + e + lane; };", _COLUMN_SUM),
    Mutant("columns-one-block-more", "tail", _COLUMNS, "        if (block + i * GROUPS < blocks) {",
           "        if (block + i * GROUPS <= blocks) {", _COLUMN_SUM),
    Mutant("columns-cut-read-whole", "tail", _COLUMNS, "const Index whole_rows = columns == PACK ? rows : 0;",
           "const Index whole_rows = columns > 0 ? rows : 0;", on("column_sum", "8192x4096", "ColumnStats", pack=4)),
    # Scans.
    Mutant("scan-tile-before-left-out", "sum", _SCAN, "State start = before, warps_before, tile;",
           "State start, warps_before, tile;", _SCANNED),
    Mutant("scan-one-place-for-two-tiles", "race", _SCAN, "    turn ^= 1;\n", "", _SCANNED),
    Mutant("scan-block-no-barrier", "barrier", _SCAN, "    __syncthreads();\n", "", _SCANNED),
    Mutant("scan-lane-before-counts-itself", "sum", _SCAN, "const State others = state_before<LANES>(up_to, 1);",
           "const State others = up_to;", _LOG_SUMS),
    Mutant("scan-row-beyond-the-last", "tail", _SCANS, 'results("states[v]", "own >= rows")',
           'results("states[v]", "own > rows")',
           on("cumsum", "1001x100", "Scan", row_threads=8, threads=128)),
    Mutant("scan-limit-of-stores", "tail", "templates/macros/scan.cuh.j2", "{{ y.step }}, WHOLE ? PACK : {{ end }} - column);",
           "{{ y.step }}, PACK);", on("cumsum", "16x1001", "Scan", pack=1)),
    Mutant("scan-exponentials-not-rescaled", "sum", _STATE, "sum * scale + other.sum", "sum + other.sum", _LOG_SUMS),
    Mutant("scan-exponentials-from-the-less", "sum", _STATE, "sum + other.sum * scale;", "sum + other.sum;", _LOG_SUMS),
    # Scans of short rows, as a span of memory.
    Mutant("scan-span-not-waited-for", "wait", _SCAN_SPAN, "  ptx::cp_async_wait<0>();\n", "", _SHORT),
    Mutant("scan-span-no-barrier-before", "barrier", _SCAN_SPAN, "  ptx::cp_async_wait<0>();\n  __syncthreads();\n",
           "  ptx::cp_async_wait<0>();\n", _SHORT),
    Mutant("scan-span-no-barrier-after", "barrier", _SCAN_SPAN, "  __syncthreads();\n//% for y", "//% for y", _SHORT),
    Mutant("scan-span-share-beyond-the-row", "index", _SCAN_SPAN, "min(begin + share, {{ length }}) : begin",
           "begin + share : begin", _SHORT),
    Mutant("scan-span-lane-counts-itself", "sum", _SCAN_SPAN, "state_before<ROW_THREADS>(running, 1)", "running", _SHORT),
    Mutant("scan-span-first-lane-counts-itself", "sum", _SCAN_SPAN, "? others : State();", "? others : others;", _SHORT),
    Mutant("scan-span-tail-counted", "tail", _SCAN_SPAN, "if (WHOLE || first + v < end) update", "update",
           on("logcumsumexp", "5000x31", "ScanSpan", row_threads=8, vectors=4)),
    Mutant("scan-span-tail-stored", "tail", _SCAN_SPAN, 'results("running", end="end")',
           'results("running", end="PACK + column")', _SHORT),
    Mutant("scan-span-rows-of-a-block-cut", "index", _SCAN_SPAN, "* WHOLE_ROWS;  // rows", "* WHOLE_ROWS - WHOLE_ROWS;  // rows",
           _SHORT),
    Mutant("scan-span-block-beyond-the-last", "tail", _SCAN_SPAN, "min(rows - start, static_cast<Index>(most))", "most", _SHORT),
    # Scans of rows of a few elements, by a thread.
    Mutant("scan-thread-rows-run-on", "sum", _SCAN_THREAD, "    State state;\n#pragma", "    static State state;\n#pragma", _FEW),
    Mutant("scan-thread-tail-stored", "tail", _SCAN_THREAD, "{{ y.name }}_vector, 1, elements)", "{{ y.name }}_vector, 1, PACK)",
           _FEW),
    Mutant("scan-thread-tail-loaded", "tail", _SCAN_THREAD, 'load("elements")', 'load("PACK")', _FEW),
    Mutant("scan-thread-block-beyond-the-last", "tail", _SCAN_THREAD, "min(rows - block, static_cast<Index>(THREADS * ROWS))",
           "(THREADS * ROWS)", _FEW_STAGED),
    Mutant("scan-thread-not-waited-for", "wait", _SCAN_THREAD, "  ptx::cp_async_wait<0>();\n", "", _FEW_STAGED),
    Mutant("scan-thread-no-barrier-before", "barrier", _SCAN_THREAD, "  ptx::cp_async_wait<0>();\n  __syncthreads();\n",
           "  ptx::cp_async_wait<0>();\n", _FEW_STAGED),
    Mutant("scan-thread-no-barrier-after", "barrier", _SCAN_THREAD, "  __syncthreads();\n//%   for y", "//%   for y",
           _FEW_STAGED),
    Mutant("scan-thread-half-a-vector", "index", "kgen/ops/scan/thread.py", "return WIDEST_ACCESS // math.gcd",
           "return 8 // math.gcd", _FEW),
    # Scans of rows that blocks share.
    Mutant("shared-row-not-waited-for", "sum", _SCAN, "      while (!is_there()) look();\n", "", _SHARED),
    Mutant("shared-row-half-a-state", "sum", _SCAN, "flags &= words[i];", "flags = words[i] & 1;",
           on("cumprod", "2x50000", "ScanSplit", "--dtype", "f64", pack=1, vectors=1, threads=128, stages=2)),
    Mutant("shared-row-group-without-its-last", "sum", _SCAN, "    up_to.combine(own);\n", "", _SHARED),
    Mutant("shared-row-group-early", "index", _SCAN, "if (tile % GROUP == GROUP - 1)", "if (tile % GROUP == GROUP - 2)",
           _SHARED),
    Mutant("shared-row-counts-itself", "index", _SCAN, "near(tiles, group * GROUP, tile % GROUP)",
           "near(tiles, group * GROUP, tile % GROUP + 1)", _SHARED),
    Mutant("shared-row-groups-from-the-first", "index", _SCAN, "middle(groups, section * GROUP, group % GROUP)",
           "middle(groups, section * GROUP, section + group % GROUP)",
           on("cumsum", "1x200000", "ScanSplit", pack=1, vectors=1, threads=128, stages=1)),
    Mutant("shared-row-warps-before-left-out", "sum", _SPLIT, "    start.combine(tile.warps_before);\n", "", _SHARED),
    Mutant("shared-row-one-place-for-two-tiles", "race", _SPLIT, "    turn ^= 1;\n", "", _SHARED),
    Mutant("shared-row-no-barrier", "barrier", _SPLIT, "    __syncthreads();\n    // Whoever", "    // Whoever", _SHARED_LATER),
    Mutant("shared-row-begun-twice-without-barrier", "barrier", _SPLIT, "begin(blockIdx.x, tile);\n  __syncthreads();\n",
           "begin(blockIdx.x, tile);\n", _SHARED),
    Mutant("shared-row-words-left", "workspace", _SPLIT, "i < rows * row_words;", "i < row_words;", _SHARED),
    Mutant("shared-row-count-left", "workspace", _SPLIT, "  if (threadIdx.x == 0) *finished = 0;\n", "", _SHARED),
    Mutant("shared-row-cleared-early", "race", _SPLIT, "if (number + gridDim.x >= count && threadIdx.x", "if (threadIdx.x",
           _SHARED),
    Mutant("shared-row-no-room-for-groups", "workspace", "kgen/ops/scan/split.py",
           "rows * (tiles + groups + ceil_div_size(groups, GROUP))", "rows * tiles", _SHARED),
]  # fmt: skip
