"""Mutants of attention: the online softmax, blocks of columns, rings of keys and values, the rows' results."""

from __future__ import annotations

from mutant import Mutant, on

_WGMMA = "templates/attention_wgmma.cu.j2"
_MMA = "templates/attention_mma.cu.j2"
_MACROS = "templates/macros/attention.cuh.j2"
_SOFTMAX = "templates/common/attention.cuh"
_WIDE_HEADS = "templates/attention_wide.cu.j2"
_WIDE_PARTS = "templates/common/attention_wide.cuh"
_PRODUCTS = "templates/common/attention_products.cuh"
_SPLITS_CUH = "templates/common/attention_splits.cuh"
_SPLIT_K = "templates/common/split_k.cuh"
_ROWS = "kgen/ops/attention/rows.py"
_MASKS = "kgen/ops/attention/masks.py"
_TEXT = "kgen/ops/attention/text.py"
_EVALUATION = "kgen/ops/attention/evaluation.py"
_KEYS = "kgen/ops/attention/keys.py"
_ALGEBRA = "kgen/ops/attention/algebra.py"

_SHAPE = "...=1x2,G=2,M=300,N=300,D=64,E=64"
_FULL = on("attention_full", _SHAPE, "AttentionWgmma", BR=128, BC=64, pingpong=False)
_PINGPONG = on("attention_full", _SHAPE, "AttentionWgmma", BR=128, BC=64, pingpong=True)
_CAUSAL = on("attention_causal_lse", _SHAPE, "AttentionWgmma", BR=128, BC=64)
_WIDE = on(
    "attention_full",
    "...=1x1,G=1,M=200,N=600,D=64,E=64",
    "AttentionWgmma",
    BR=128,
    BC=64,
    pingpong=False,
    stages=4,
    persistent=False,
)
_PAIRS = on(
    "attention_causal_lse", _SHAPE, "AttentionWgmma", BR=64, BC=64, pingpong=False, persistent=True, order="paired"
)
_RINGS = on("attention_full", _SHAPE, "AttentionMma", BR=64, BC=32, stages=2)
_SHARED = on("attention_causal_lse", _SHAPE, "AttentionMma", BR=32, BC=32, queries="shared", stages=1)
_SPLITS = on(
    "attention_causal_lse", "...=1x2,G=2,M=30,N=300,D=64,E=64", "AttentionMma", BR=16, BC=32, stages=3, splits=3
)
_FULL_SPLITS = on(
    "attention_full", "...=1x2,G=2,M=30,N=300,D=64,E=64", "AttentionMma", BR=16, BC=32, stages=3, splits=3
)
_LENGTHS = on("attention_causal_lengths", "...=3x2,G=2,M=5,N=100,D=64,E=64", "AttentionMma", BR=16, BC=16, splits=2)
_PAGES = on(
    "attention_causal_pages_of_16_lengths",
    "...=3,K=2,G=2,M=5,L=6,R=200,D=64,E=64",
    "AttentionMma",
    BR=16,
    BC=16,
    splits=2,
)
_PACKED = on(
    "attention_causal_lse", "...=1x2,G=3,M=30,N=50,D=64,E=64", "AttentionMma", BR=16, BC=16, pack_gqa=True, splits=1
)
_WEIGHTS = on(
    "attention_causal_lse",
    "...=1x1,G=2,M=150,N=100,D=128,E=384",
    "AttentionWide",
    BC=16,
    BK=64,
    stages=2,
    cluster=1,
    overlap=True,
)
_MULTICAST = on(
    "attention_causal_lse",
    "...=1x1,G=2,M=150,N=100,D=64,E=384",
    "AttentionWide",
    BC=16,
    BK=64,
    stages=2,
    cluster=2,
    overlap=False,
)
_SLICES = on(
    "attention_causal_lse",
    "...=1x1,G=1,M=70,N=50,D=16,E=1024",
    "AttentionWide",
    BC=16,
    BK=64,
    stages=2,
    cluster=1,
    slices=2,
)
_WIDE_PARTIAL = on(
    "attention_full_partial_lse", "...=1x1,G=2,M=70,N=50,D=16,E=328", "AttentionWide", BC=16, BK=64, stages=2, cluster=1
)
_PARTIAL = on(
    "attention_full_partial_lse", "...=1x2,G=2,M=150,N=100,D=64,E=40", "AttentionWgmma", BR=128, BC=64, pingpong=False,
    pack_gqa=False, splits=1,
)  # fmt: skip
_MMA_SLICES = on(
    "attention_causal_lse", "...=1x1,G=1,M=30,N=70,D=16,E=300", "AttentionMma", BR=16, BC=16, splits=2, slices=2
)
_PACKED_WINDOW = on(
    "attention_window_softcap", "...=1x2,G=3,M=60,N=60,D=64,E=64", "AttentionMma", BR=16, BC=16, pack_gqa=True, splits=1
)
_DECODE = on(
    "attention_causal_lse", "...=1x2,G=3,M=10,N=500,D=64,E=64", "AttentionWgmma", BR=64, BC=64, pingpong=False, stages=2,
    persistent=False, pack_gqa=True, splits=3, cluster=False,
)  # fmt: skip
_CLUSTER = on(
    "attention_causal_lse", "...=1x2,G=3,M=10,N=500,D=64,E=64", "AttentionWgmma", BR=64, BC=64, pingpong=False, stages=2,
    persistent=False, pack_gqa=True, splits=3, cluster=True,
)  # fmt: skip
_DECODE_FULL = on(
    "attention_full", "...=1x2,G=3,M=10,N=500,D=64,E=64", "AttentionWgmma", BR=64, BC=64, pingpong=False, stages=2,
    persistent=False, pack_gqa=True, splits=3,
)  # fmt: skip
_DECODE_LENGTHS = on(
    "attention_causal_lengths", "...=3x2,G=2,M=5,N=100,D=64,E=64", "AttentionWgmma", BR=64, BC=64, pingpong=False,
    persistent=False, pack_gqa=True, splits=2,
)  # fmt: skip
_RANGES = on(
    "attention_ranges_lse", "...=2,G=2,M=150,N=200,D=64,E=64", "AttentionMma", BR=64, BC=16, pack_gqa=False, splits=2
)
_RANGES_BY_TMA = on(
    "attention_ranges_lse", "...=2,G=2,M=150,N=300,D=64,E=64", "AttentionWgmma", BR=64, BC=64, pingpong=False
)
_REGISTERS = on("attention_full", _SHAPE, "AttentionMma", BR=64, BC=32, copy="register", stages=1, splits=1)
_REGISTERS_LENGTHS = on(
    "attention_causal_lengths",
    "...=3x2,G=2,M=5,N=100,D=64,E=64",
    "AttentionMma",
    BR=16,
    BC=16,
    copy="register",
    stages=1,
)
_HALF = on("attention_causal_f16acc", _SHAPE, "AttentionMma", BR=32, BC=32, splits=1)
_WINDOW = on("attention_window_softcap", _SHAPE, "AttentionMma", BR=32, BC=32)

_LATE = on("attention_full", _SHAPE, "AttentionWgmma", BR=128, BC=64, pingpong=False, rescale="late", polynomial=4)
_EIGHT = on(
    "attention_causal_fp8_lse", "...=1x2,G=2,M=70,N=112,D=64,E=64", "AttentionWgmma", BR=64, BC=64, pingpong=False
)
_SINKS = on(
    "attention_causal_sinks_lse",
    "...=1x2,G=3,M=30,N=50,D=64,E=64",
    "AttentionMma",
    BR=16,
    BC=16,
    pack_gqa=True,
    splits=2,
)

_DROPOUT = on("attention_causal_dropout", "...=1x2,G=2,M=70,N=100,D=64,E=64", "AttentionMma", BR=32, BC=32)
_DROPOUT_OF_KEYS = on(
    "attention_causal_dropout_train_grad_3", "...=1x2,G=2,M=100,N=68,D=64,E=64", "AttentionGradientMma"
)

MUTANTS = [
    # The online softmax.
    Mutant("attention-sums-not-shrunk", "sum", _SOFTMAX,
           "sum[r] = sum[r] * shrink + added;", "sum[r] = sum[r] + added;", _FULL),
    Mutant("attention-values-not-shrunk", "sum", _PRODUCTS,
           "      products.wait_for_values();\n      products.scale_sums();\n",
           "      products.wait_for_values();\n", _FULL),
    Mutant("attention-maximum-of-a-lane", "sum", _SOFTMAX,
           "return fmaxf(found, __shfl_xor_sync(0xffffffff, found, 2));", "return found;", _FULL),
    Mutant("attention-sum-of-a-lane", "sum", _SOFTMAX, "      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);\n", "", _FULL),
    Mutant("attention-maximum-begins-at-zero", "initial", _SOFTMAX, "      maximum[r] = __int_as_float(0xff800000);\n",
           "      maximum[r] = 0.0f;\n", _CAUSAL),
    Mutant("attention-nothing-minus-nothing", "special", _SOFTMAX,
           "largest == __int_as_float(0xff800000) ? 0.0f : largest;", "largest;", _CAUSAL),
    Mutant("attention-rows-changed-over", "index", _SOFTMAX,
           "sums[j] *= factors[j / 2 % 2];", "sums[j] *= factors[j % 2];", _FULL),
    Mutant("attention-late-sums-of-another-maximum", "sum", _SOFTMAX,
           "        if (shrinks) {\n          shrink[r] = shrink_of(maximum[r], now[r]);",
           "        {\n          shrink[r] = shrink_of(maximum[r], now[r]);", _LATE),
    Mutant("attention-late-never", "special", _SOFTMAX,
           "__any_sync(0xffffffff, grown)", "false && grown", _LATE),
    Mutant("attention-polynomial-without-an-end", "special", "templates/common/special.cuh",
           "  x = ptx::max_nan(x, -127.0f);\n", "", _LATE),
    Mutant("attention-head-without-its-factor", "scale", _MACROS,
           "scores[c] *= of_head;", "scores[c] *= 1.0f;", _EIGHT),
    Mutant("attention-factor-folded-whatever-its-sign", "scale", _MACROS,
           "const bool folded = of_head > 0x1p-64f && ", "const bool folded = ", _EIGHT),
    Mutant("attention-weights-of-other-lanes", "index", _SOFTMAX,
           "lane % 4 < 2 ? 0x5410 : 0x7632", "lane % 4 < 2 ? 0x7632 : 0x5410", _EIGHT),
    # Blocks of columns.
    Mutant("attention-columns-beyond-the-end", "tail", _TEXT, "if (column >= N)", "if (column > N)", _FULL),
    Mutant("attention-last-block-unmasked", "tail", _SOFTMAX, "block < first_full || block >= last_full",
           "block < first_full || block > last_full", _CAUSAL),
    Mutant("attention-bound-of-the-wrong-row", "index", _MASKS,
           '("row_first", "row_last") if rises else ("row_last", "row_first")',
           '("row_last", "row_first") if rises else ("row_first", "row_last")', _WINDOW),
    Mutant("attention-first-whole-block-too-early", "tail", _EVALUATION,
           "f\"({folded('max', '0', b.full_lower)} + BC - 1) / BC\"", "f\"({folded('max', '0', b.full_lower)}) / BC\"", _WINDOW),
    Mutant("attention-without-the-last-column-of-a-row", "tail", _MASKS,
           'at_least.plus(Affine(0, 0, ((1, ""),))), upper, full_upper', "at_least, upper, full_upper",
           on("attention_causal_lse", _SHAPE, "AttentionMma", BR=64, BC=32)),
    Mutant("attention-tiles-of-too-many-heads", "index", _SOFTMAX, "beside = min(Group, heads - first),", "beside = Group,",
           on("attention_causal_lse", "...=1x5,G=1,M=200,N=200,D=64,E=64", "AttentionWgmma", BR=128, BC=64)),
    # Bounds that are data.
    Mutant("attention-ranges-begin-at-the-last", "tail", _SOFTMAX,
           "ptx::reduce_min(seen.first)", "ptx::reduce_max(seen.first)", _RANGES),
    Mutant("attention-ranges-all-see-what-some-do", "tail", _SOFTMAX,
           "seen.first_by_all = max(", "seen.first_by_all = min(", _RANGES),
    Mutant("attention-ranges-of-the-first-warps-rows", "tail", _EVALUATION,
           'min({rows.count}, tile.m0 + BR)"\n', 'min({rows.count}, tile.m0 + 16)"\n', _RANGES),
    Mutant("attention-ranges-all-lanes-copy", "race", _WGMMA, " || threadIdx.x > 0", "", _RANGES_BY_TMA),
    # Rings.
    Mutant("attention-values-of-one-block-back", "index", _WGMMA,
           "map_v, full, 0, block * BC", "map_v, full, 0, (block - 1) * BC", _FULL),
    Mutant("attention-values-released-early", "race", _PRODUCTS,
           "    ptx::wgmma_wait<0>();\n    pipeline_v.release", "    pipeline_v.release", _FULL),
    Mutant("attention-keys-released-unwaited", "race", _PRODUCTS,
           "    ptx::wgmma_wait<Pending>();\n", "", _FULL),
    Mutant("attention-one-consumer-releases", "barrier", _WGMMA,
           "pipeline_k.init(1, CONSUMERS);", "pipeline_k.init(1, 1);", _PINGPONG),
    Mutant("attention-store-over-queries", "race", _WGMMA,
           "      ptx::named_barrier_sync<CONSUMERS + 1, CONSUMERS * 128>();\n", "", _WIDE),
    Mutant("attention-order-not-initialised", "barrier", _WGMMA, "    Order::init(order);\n", "", _PINGPONG),
    Mutant("attention-copies-too-far-ahead", "race", _MMA,
           "constexpr int AHEAD = 2 * STAGES - 1;", "constexpr int AHEAD = 2 * STAGES;", _RINGS),
    Mutant("attention-copies-unwaited", "race", _MMA, "ptx::cp_async_wait<AHEAD - 1>();", "ptx::cp_async_wait<AHEAD>();", _RINGS),
    Mutant("attention-tile-no-barrier", "barrier", _MMA,
           "    ptx::cp_async_wait<AHEAD - 1>();\n    __syncthreads();\n", "    ptx::cp_async_wait<AHEAD - 1>();\n", _SHARED),
    Mutant("attention-queries-beyond-the-end", "tail", _MACROS,
           "if (row >= {{ t.rows.count }}) return;", "if (row > {{ t.rows.count }}) return;", _SHARED),
    Mutant("attention-queries-unacquired", "race", _WGMMA, "        pipeline_q.acquire(state_q);\n", "", _PAIRS),
    Mutant("attention-queries-released-at-once", "race", _PRODUCTS,
           "    products.multiply_keys();\n    products.template wait_for_scores<0>();\n",
           "    products.release_queries();\n    products.multiply_keys();\n    products.template wait_for_scores<0>();\n",
           _PAIRS),
    Mutant("attention-middle-tile-left-out", "tail", _SOFTMAX,
           "const int pairs = (tiles + 1) / 2;", "const int pairs = max(tiles / 2, 1);", _PAIRS),
    # Weights that pass through shared memory, and keys and values in parts.
    Mutant("attention-weights-unfenced", "fence", _WIDE_PARTS, "    ptx::fence_proxy_async();\n", "", _WEIGHTS),
    Mutant("attention-weights-over-others", "race", _WIDE_PARTS, "    pipeline.acquire(state);\n", "", _WEIGHTS),
    Mutant("attention-weights-unwaited", "race", _WIDE_PARTS,
           "    pipeline.wait(state);\n    const float scale", "    const float scale", _WEIGHTS),
    Mutant("attention-weights-of-one-warp", "barrier", _WIDE_PARTS,
           "pipeline.init(128, Readers * 128);", "pipeline.init(32, Readers * 128);", _WEIGHTS),
    Mutant("attention-weights-of-one-reader", "barrier", _WIDE_PARTS,
           "pipeline.init(128, Readers * 128);", "pipeline.init(128, 128);", _WEIGHTS),
    Mutant("attention-weights-not-waited-for", "race", _WIDE_PARTS,
           "    pipeline.wait(state);\n    const float scale[2]", "    const float scale[2]", _WEIGHTS),
    Mutant("attention-weights-of-the-wrong-column", "index", _WIDE_PARTS, "step % 4, warp, lane,\n", "0, warp, lane,\n",
           on("attention_full", "...=1x1,G=1,M=70,N=70,D=64,E=384", "AttentionWide", BC=32, BK=64, stages=2)),
    Mutant("attention-first-row-alone-shrinks", "sum", _WIDE_PARTS,
           "scale[0] != 1.0f || scale[1] != 1.0f", "scale[0] != 1.0f && scale[1] != 1.0f", _WEIGHTS),
    Mutant("attention-part-released-early", "race", _WIDE_PARTS, "    ptx::wgmma_wait<1>();\n", "", _WEIGHTS),
    Mutant("attention-first-part-of-queries", "index", _WIDE_PARTS, "part * TileB::STEPS + step", "step", _WEIGHTS),
    Mutant("attention-part-replaces-the-others", "sum", _WIDE_PARTS, "add || part > 0", "add", _WEIGHTS),
    Mutant("attention-handed-over-before-the-scores", "barrier", _WIDE_HEADS,
           "      if (block < blocks.last - 1) weights.hand_over", "      weights.hand_over", _WEIGHTS),
    Mutant("attention-columns-of-one-consumer", "index", _WIDE_HEADS,
           "tile.n0 = first_column + consumer * WV;", "tile.n0 = first_column;", _WEIGHTS),
    Mutant("attention-columns-of-one-consumer-in-f32", "index", _WIDE_HEADS,
           "RowTile{tile.m0, first_column + consumer * WV}", "RowTile{tile.m0, first_column}", _WIDE_PARTIAL),
    Mutant("attention-rows-of-one-consumer-in-f32", "index", "templates/attention_wgmma.cu.j2",
           "Store{thread}(sums, finish, tile, consumer * 64);", "Store{thread}(sums, finish, tile, 0);", _PARTIAL),
    Mutant("attention-releases-of-one-block", "barrier", _WIDE_HEADS,
           "pipeline_v.init(1, CONSUMERS * Cluster::SIZE);", "pipeline_v.init(1, CONSUMERS);", _MULTICAST),
    Mutant("attention-rows-of-the-first-block", "index", _WIDE_HEADS, "  tile.m0 += Cluster::rank() * 64;\n", "", _MULTICAST),
    Mutant("attention-block-leaves", "barrier", _WIDE_HEADS, "      pipeline_v.drain(state_v);\n", "", _MULTICAST),
    Mutant("attention-atoms-beside-each-other", "index", _WIDE_PARTS, "const int atom = i * Blocks + sharers.place;",
           "const int atom = i + sharers.place;", _MULTICAST),
    Mutant("attention-columns-of-the-first-slice", "index", _WIDE_HEADS,
           "const int first_column = blockIdx.y * DV;", "const int first_column = 0;", _SLICES),
    Mutant("attention-rows-of-every-slice", "race", _TEXT, '"blockIdx.y == 0 && " if sliced', '"" if sliced', _SLICES),
    Mutant("attention-values-of-the-first-slice", "index", _MMA, "  v += steps(first_column", "  v += steps(0", _MMA_SLICES),
    Mutant("attention-parts-of-all-slices", "race", "kgen/ops/attention/mma.py",
           '"(tile_number * gridDim.y + blockIdx.y)"', '"tile_number"', _MMA_SLICES),
    # Parts of the columns.
    Mutant("attention-part-of-one-block-more", "index", _SPLITS_CUH,
           "min(blocks.last, first + count)", "min(blocks.last, first + count + 1)", _FULL_SPLITS),
    Mutant("attention-parts-not-shrunk", "sum", _SPLITS_CUH,
           "softmax.sum[r] += factor * row.y;", "softmax.sum[r] += row.y;", _FULL_SPLITS),
    Mutant("attention-parts-without-the-first", "sum", _SPLITS_CUH,
           "for (int s = 0; s < Splits; ++s) {", "for (int s = 1; s < Splits; ++s) {", _SPLITS),
    Mutant("attention-parts-of-nothing-minus-nothing", "special", _SOFTMAX,
           "largest == __int_as_float(0xff800000) ? 0.0f : largest;", "largest;", _SPLITS),
    Mutant("attention-parts-unfenced", "race", _SPLIT_K,
           "  if (!__syncthreads_or(last)) return false;\n  if (threadIdx.x == 0) *counter = 0;\n  __threadfence();\n",
           "  if (!__syncthreads_or(last)) return false;\n  if (threadIdx.x == 0) *counter = 0;\n", _SPLITS),
    Mutant("attention-counter-left", "initial", _SPLIT_K, "  if (threadIdx.x == 0) *counter = 0;\n", "", _SPLITS),
    Mutant("attention-parts-beside-each-other", "race", _SPLITS_CUH,
           "partials + s * split_kv_partial<Threads, Count>;", "partials + s * (split_kv_partial<Threads, Count> / 2);", _SPLITS),
    # Lengths.
    Mutant("attention-values-behind-the-length", "special", _MMA,
           "BYTES / 2), v_first + steps(block * BC, v_row), v_row, {{ columns[2] }}, {{ t.values }} - block * BC",
           "BYTES / 2), v_first + steps(block * BC, v_row), v_row, {{ columns[2] }}, N - block * BC", _LENGTHS),
    Mutant("attention-length-of-another-head", "index", _EVALUATION,
           '{name}_s{d - before})" for d, s', '{name}_s{d - before}) + 1" for d, s', _LENGTHS),
    Mutant("attention-blocks-behind-the-length", "tail", _EVALUATION,
           "({folded('min', 'N', b.upper)}, 0) + BC - 1)", "({folded('min', 'N', b.upper)}, 0))", _LENGTHS),
    # Pages.
    Mutant("attention-page-that-is-not-there", "special", _KEYS,
           "found >= 0 && found < {size_name(key_rows(attended))} ? found : -1", "found", _PAGES),
    Mutant("attention-page-one-row-more", "tail", _KEYS, "found < {size", "found <= {size", _PAGES),
    Mutant("attention-values-of-the-next-page", "index", _MMA,
           "BYTES / 2), [&](int row) { return row_of(v, v_row, block * BC + row)",
           "BYTES / 2), [&](int row) { return row_of(v, v_row, block * BC + row + 1)", _PAGES),
    # Tiles through registers, and sums in f16.
    Mutant("attention-registers-no-barrier", "barrier", _MMA,
           "    __syncthreads();\n    load(number + 1);\n", "    load(number + 1);\n", _REGISTERS),
    Mutant("attention-registers-of-the-tile-after", "index", _MMA,
           "    load(number + 1);\n", "    load(number + 2);\n", _REGISTERS),
    Mutant("attention-registers-values-behind-the-length", "special", _MMA,
           "next_values.load<false>(v_first + steps(block * BC, v_row), v_row, {{ columns[2] }}, {{ t.values }} - block * BC",
           "next_values.load<false>(v_first + steps(block * BC, v_row), v_row, {{ columns[2] }}, N - block * BC",
           _REGISTERS_LENGTHS),
    Mutant("attention-registers-row-that-is-not-there", "tail", "templates/common/tile.cuh",
           "Share::mine(i) && row < rows ? row_at(row) : nullptr", "Share::mine(i) ? row_at(row) : nullptr", _REGISTERS),
    Mutant("attention-halves-of-one-b", "index", "templates/common/mma_tile.cuh", "[1]>(b[1]));\n", "[1]>(b[0]));\n", _REGISTERS),
    Mutant("attention-half-means-not-shrunk", "sum", _SOFTMAX,
           "const float before = norm[r] * shrink[r];", "const float before = norm[r];", _HALF),
    Mutant("attention-half-means-of-a-lane", "sum", _SOFTMAX,
           "      now += __shfl_xor_sync(0xffffffff, now, 2);\n", "", _HALF),
    Mutant("attention-half-means-of-no-norm", "special", _SOFTMAX,
           "norm[r] = factor < 0x1p-24f ? now : before * ptx::reciprocal_approximate(factor);", "norm[r] = 1.0f;", _HALF),
    Mutant("attention-half-sums-changed-over", "index", _SOFTMAX,
           "      sums[i * 2] = pair.x;\n", "      sums[i * 2] = pair.y;\n", _HALF),
    # Packed heads.
    Mutant("attention-packed-rows-changed-over", "index", _ROWS, 'f"({r}) / {self.heads}" if', 'f"({r}) % M" if', _PACKED),
    Mutant("attention-packed-heads-of-the-row", "index", _ROWS, 'f"({r}) % {self.heads}"', 'f"({r}) / {self.heads}"', _PACKED),
    Mutant("attention-packed-without-the-last", "tail", _ROWS, 'f"M * {self.heads}" if', 'f"M * {self.heads} - 1" if', _PACKED),
    Mutant("attention-packed-bounds-of-the-tile", "index", _MACROS,
           '{{ t.rows.row("tile.m0") }}, row_last', "tile.m0, row_last", _PACKED_WINDOW),
    # Decode by wgmma.
    Mutant("attention-packed-queries-unswizzled", "index", _PRODUCTS,
           "column % WIDTH / 8 ^ row % 8", "column % WIDTH / 8", _DECODE),
    Mutant("attention-packed-queries-beyond-their-columns", "tail", _PRODUCTS,
           "row < rows ? columns - column : 0", "row < rows ? Pack : 0", _DECODE),
    Mutant("attention-packed-queries-unfenced", "fence", _WGMMA,
           "        ptx::fence_proxy_async();\n        warpgroup_sync<CONSUMERS>(consumer);\n",
           "        warpgroup_sync<CONSUMERS>(consumer);\n", _DECODE),
    Mutant("attention-packed-queries-unwaited", "barrier", _WGMMA,
           "        warpgroup_sync<CONSUMERS>(consumer);\n", "", _DECODE),
    Mutant("attention-wgmma-values-behind-the-length", "special", _PRODUCTS,
           "if (left < TileV::DEPTH) {", "if (left < 0) {", _DECODE_LENGTHS),
    Mutant("attention-cleared-one-row-late", "special", _PRODUCTS,
           "left * 128 + place * 16", "(left + 1) * 128 + place * 16", _DECODE_LENGTHS),
    Mutant("attention-cleared-values-unfenced", "fence", _PRODUCTS,
           "      ptx::fence_proxy_async();\n      ptx::named_barrier_sync<Barrier", "      ptx::named_barrier_sync<Barrier",
           _DECODE_LENGTHS),
    Mutant("attention-cleared-values-unwaited", "race", _PRODUCTS,
           "      ptx::named_barrier_sync<Barrier, Threads>();\n", "", _DECODE_LENGTHS),
    Mutant("attention-cleared-before-they-are-there", "race", _PRODUCTS,
           "      this->pipeline_v.wait(this->state_v);\n", "", _DECODE_LENGTHS),
    Mutant("attention-cleared-block-of-before", "index", _PRODUCTS, "    --block;\n", "", _DECODE_LENGTHS),
    Mutant("attention-shared-columns-not-shrunk", "sum", _SPLITS_CUH,
           "softmax.sum[r] += factor * row[s].y;", "softmax.sum[r] += row[s].y;", _DECODE_FULL),
    Mutant("attention-shared-columns-of-one-warp", "index", _SPLITS_CUH,
           "(memory.rank() * Warps + thread / 32) * SHARE", "memory.rank() * Warps * SHARE", _DECODE),
    Mutant("attention-shared-columns-of-nothing", "special", _SOFTMAX,
           "largest == __int_as_float(0xff800000) ? 0.0f : largest;", "largest;", _DECODE),
    Mutant("attention-shared-counter-unfenced", "race", _SPLITS_CUH, "      __threadfence();\n", "", _DECODE),
    Mutant("attention-shared-parts-unreleased", "race", _SPLITS_CUH,
           "    ptx::named_barrier_sync<Barrier, Threads>();\n    if (thread == 0) {\n", "    if (thread == 0) {\n",
           _DECODE),
    Mutant("attention-shared-rows-without-the-last", "tail", _WGMMA,
           "tile.m0 + sixteen * 16 < {{ t.rows.count }}; ++sixteen",
           "tile.m0 + sixteen * 16 + 16 < {{ t.rows.count }}; ++sixteen", _DECODE),
    Mutant("attention-cluster-columns-of-one-block", "index", _SPLITS_CUH,
           "(memory.rank() * Warps + thread / 32) * SHARE", "thread / 32 * SHARE", _CLUSTER),
    Mutant("attention-cluster-part-over-products", "race", _SPLITS_CUH,
           "void open() const { ptx::named_barrier_sync<Barrier, Threads>(); }", "void open() const {}", _CLUSTER,
           unseen="the emulator multiplies for the four warps of a warpgroup at once"),
    Mutant("attention-cluster-unmet", "race", _SPLITS_CUH,
           "    ptx::cluster_sync();\n    return true;\n", "    return true;\n", _CLUSTER),
    Mutant("attention-cluster-left-early", "race", _SPLITS_CUH,
           "    ptx::cluster_arrive_relaxed();\n    ptx::cluster_wait();\n", "", _CLUSTER),
    # Rows and heads.
    Mutant("attention-lse-in-base-2", "scale", _TEXT, "(softmax.scale * {literal(math.log(2), f32)})", "softmax.scale", _CAUSAL),
    Mutant("attention-heads-changed-over", "index", _EVALUATION,
           "tile.batch[{axis}] = at.y % batches{axis};", "tile.batch[{axis}] = at.y / batches{axis};", _CAUSAL),
    Mutant("attention-origin-of-the-sums-alone", "scale", _ALGEBRA,
           "return factor * first, *others", "return tuple([first, *others])", _SINKS),
    Mutant("attention-origin-of-the-factor-alone", "scale", _ALGEBRA,
           "return total * factor if node is total else", "return total if node is total else", _SINKS),
    Mutant("attention-parts-without-a-normaliser-shrink", "sum", _SOFTMAX,
           "float shrink_of(float, float) { return 1.0f; }", "float shrink_of(float, float) { return 0.5f; }",
           on("sigmoid_attention_causal", "...=1x2,G=2,M=30,N=300,D=64,E=64", "AttentionMma", BR=16, BC=32, splits=3)),
    Mutant("attention-sums-without-a-normaliser-shrink", "sum", _SOFTMAX,
           "shrink[0] = shrink[1] = 1.0f;", "shrink[0] = 1.0f, shrink[1] = 0.5f;",
           on("sigmoid_attention_causal", "...=1x1,G=2,M=150,N=100,D=64,E=384", "AttentionWide", BC=16, cluster=1)),
    Mutant("attention-sink-of-the-first-head", "index", _EVALUATION,
           'return "head" if axis == rows.axis else', 'return "0" if axis == rows.axis else', _SINKS),
    Mutant("attention-dropout-of-the-first-block", "index", _MACROS,
           "block * BC, lane, {{ d.p }}", "0, lane, {{ d.p }}", _DROPOUT),
    Mutant("attention-dropout-rows-changed-over", "index", _SOFTMAX,
           "lane % 2 ? other : made, of_second", "lane % 2 ? made : other, of_second", _DROPOUT),
    Mutant("attention-dropout-beside-a-line", "tail", _SOFTMAX, "line % 4 == 0", "line % 2 == 0",
           on("attention_causal_dropout", "...=1x2,G=2,M=70,N=102,D=64,E=64", "AttentionMma", BR=32, BC=32)),
    Mutant("attention-dropout-of-the-same-key", "index", _SOFTMAX, "c << 2) >> own & 1", "c << 2) >> c & 1", _DROPOUT_OF_KEYS),
    Mutant("attention-dropout-of-the-first-64", "index", _SOFTMAX, "const int at = column + (word * 8 + group) * 8;",
           "const int at = column + group * 8;",
           on("attention_causal_dropout", "...=1x2,G=2,M=70,N=140,D=64,E=64", "AttentionMma", BR=64, BC=128)),
    Mutant("attention-dropout-of-one-query", "index", _SOFTMAX, "own % 2) * step", "0) * step", _DROPOUT_OF_KEYS),
    Mutant("attention-factor-forgotten", "scale", _ALGEBRA,
           "                return a, b\n", "                return a, None\n", _FULL),
]  # fmt: skip
