"""Mutants of a third hand: ends of rows, special values, masks, roundings, widths of integers, strides and batches."""

from __future__ import annotations

from attention_mutants import _EIGHT, _LATE, _LENGTHS, _RANGES, _WEIGHTS
from gradient_mutants import _SHARED as _ONE_PASS
from linear_attention_mutants import _HOPPER, _PLAIN
from move_mutants import _HALO, _ROPE
from mutant import Mutant, on
from row_mutants import _LONG, _NORM, _SCANNED, _SHIFTED
from scatter_mutants import _BOXES, _EMBEDDING, _INDEX_ADD
from wgmma_mutants import _COPIED

_EXPRESSION = "kgen/codegen/expression.py"
_SPECIAL = "templates/common/special.cuh"
_PHILOX = "templates/common/philox.cuh"
_VECTOR = "templates/common/vector.cuh"
_ROW = "templates/common/row.cuh"
_AT = "templates/common/row_columns.cuh"
_STATE = "templates/common/row_state.cuh"
_BATCH = "templates/common/batch.cuh"
_TOTAL = "templates/common/total.cuh"
_INDEX = "templates/common/index.cuh"
_TILE = "templates/common/tile.cuh"
_EPILOGUE = "templates/macros/gemm_epilogue.cuh.j2"
_GEMM = "kgen/ops/gemm/schedule.py"
_GEMV = "templates/gemv.cu.j2"
_SOFTMAX = "templates/common/attention.cuh"
_TEXT = "kgen/ops/attention/text.py"
_PLACES = "kgen/ops/attention/evaluation.py"
_MASKS = "kgen/ops/attention/masks.py"
_SPLITS = "templates/common/attention_splits.cuh"
_LINEAR = "templates/linear_attention.cu.j2"
_LINEAR_WGMMA = "templates/linear_attention_wgmma.cu.j2"
_ROWS = "templates/macros/rowwise.cuh.j2"
_KERNEL = "kgen/ops/rowwise/kernel.py"
_SCATTER = "templates/macros/scatter.cuh.j2"

#: Before the line of which there are two.
_BY_FOUR = """#pragma unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const int column = tile + first + v * Step;
"""
_HEADS = "...=1x2,G=2,M=70,N=100,D=64,E=64"
_ODD = "1000x1001x1024"
_LOSS = on("cross_entropy", "4096x4096", "Rowwise", cluster=1, algorithm="online")
_COLUMN_MAJOR = on("softmax", "8x64x127", "Rowwise", "--transposed", "x", cluster=1)
_STRIDED = on("reduce_argmax", "8x64x130", "Reduce", "--transposed", "x", pack=4)
_ELU = on("elu", "16777216", "Elementwise")
_FULL = on("attention_full", _HEADS, "AttentionMma", BR=32, BC=32)

MUTANTS = [
    # What functions are made of.
    Mutant("erfc-always-short", "precision", _EXPRESSION, "erfc_{'short' if c.fast else 'approximate'}({x})",
           "erfc_short({x})", on("gelu_erf", "16777216", "Elementwise", "--dtype", "f32")),
    Mutant("expm1-series-too-far", "precision", _SPECIAL, "fabsf(x) < 0.125f ?", "fabsf(x) < 1.0f ?", _ELU),
    Mutant("doubles-exp-in-f32", "precision", _STATE, "double of(double x) { return exp(x); }",
           "double of(double x) { return expf(static_cast<float>(x)); }",
           on("softmax", "4096x4096", "Rowwise", "--dtype", "f64", cluster=1, algorithm="online")),
    Mutant("polynomial-drops-nan", "special", _SPECIAL, "x = ptx::max_nan(x, -127.0f);", "x = fmaxf(x, -127.0f);",
           _LATE),
    Mutant("divided-without-the-low-word", "32-bit", _INDEX, "(next) * high + __umulhi(next, low)) >> 32);",
           "(next) * high) >> 32);", _ROPE),
    Mutant("doubles-constants-as-floats", "precision", _EXPRESSION, 'suffix = "" if dtype is f64 else "f"',
           'suffix = "f"', on("gelu", "16777216", "Elementwise", "--dtype", "f64")),
    Mutant("pairs-of-the-other-eight-bits", "precision", "kgen/ops/reduction/kernel.py", 'e5m2: "__nv_fp8x2_e5m2"',
           'e5m2: "__nv_fp8x2_e4m3"', on("reduce_sum", "16777216", "Reduce", "--dtype", "e5m2,f32")),
    # Random numbers.
    Mutant("random-blocks-whatever-the-first", "random", _PHILOX, "Align % 4 == 0 && N % 4 == 0 ? e % 4",
           "N % 4 == 0 ? e % 4",
           on("scale_mask_softmax_dropout", "512x4097", "Rowwise", cluster=1, shift=True, pack=8)),
    Mutant("random-rows-of-any-length", "random", _KERNEL, "math.gcd(4, self.config.pack, self.problem.leading[-1])",
           "math.gcd(4, self.config.pack)",
           on("scale_mask_softmax_dropout", "1x4099", "Rowwise", cluster=1, shift=False, pack=8)),
    Mutant("attention-dropout-of-whole-lines", "random", _SOFTMAX, "const bool whole = line % 4 == 0;",
           "const bool whole = line >= 4;",
           on("attention_causal_dropout", "...=1x2,G=2,M=70,N=101,D=64,E=64", "AttentionMma", BR=32, BC=32)),
    # Accesses at the ends of rows.
    Mutant("strided-loads-one-more", "tail", _VECTOR, "if (i < remaining) v[i] = p[i * stride];",
           "if (i <= remaining) v[i] = p[i * stride];", _STRIDED),
    Mutant("strided-stores-one-more", "tail", _VECTOR, "if (i < remaining) p[i * stride] = v[i];",
           "if (i <= remaining) p[i * stride] = v[i];",
           on("hgemm", "512x513x512", "MmaGemm", "--transposed", "out")),
    Mutant("astride-one-access-more", "tail", _VECTOR,
           "start + ALL * 4 / static_cast<int>(sizeof(T)) <= length", "column + N <= length",
           on("layer_norm", "4096x4097", "Rowwise", shift=True, keep="registers", cluster=1, row_threads=128)),
    Mutant("row-edges-one-thread-late", "tail", _AT, "(first / Pack < head ? 0 : end - head)",
           "(first / Pack <= head ? 0 : end - head)", _SHIFTED),
    Mutant("row-by-four-beyond", "tail", _AT,
           _BY_FOUR + "      if (Whole || column < length)",
           _BY_FOUR + "      if (Whole || column <= length)",
           on("softmax", "4096x4104", "Rowwise", keep="shared", cluster=1, columns="late", row_threads=128)),
    Mutant("row-stages-more-than-a-vector", "tail", _AT, "p, min(remaining, N) * static_cast<int>(sizeof(T)));",
           "p, remaining * static_cast<int>(sizeof(T)));",
           on("softmax", "1x4099", "Rowwise", keep="shared", cluster=1, pack=8, shift=False)),
    Mutant("tile-in-turn-negative", "tail", _TILE,
           "const int valid = row < rows ? max(0, min(Pack, columns - column)) : 0;",
           "const int valid = row < rows ? min(Pack, columns - column) : 0;",
           on("attention_full", "...=1x1,G=1,M=70,N=50,D=260,E=260", "AttentionMma")),
    Mutant("scan-tile-nearly-whole", "tail", "templates/scan.cu.j2", "for (; {{ length }} - tile >= TILE;",
           "for (; {{ length }} - tile > TILE - PACK;",
           on("cumsum", "1x10001", "Scan", pack=8, row_threads=128, threads=128)),
    Mutant("columns-broadcast-beyond", "tail", "templates/column_stats.cu.j2",
           'if (WHOLE || left[i] > 0) {{ x.name }}_items[i] = {{ loaded(x, address(x) | trim, "") | trim }};',
           '{{ x.name }}_items[i] = {{ loaded(x, address(x) | trim, "") | trim }};',
           on("layer_norm_backward_weight", "8192x1024", "ColumnStats")),
    Mutant("scatter-result-beyond", "tail", _SCATTER, "const Index mine = min(vector + batch * THREADS, vectors - 1);",
           "const Index mine = vector + batch * THREADS;", _INDEX_ADD),
    Mutant("bins-columns-beyond", "tail", "templates/scatter_bins.cu.j2",
           "found >= 0 && found < n0 && column[i] + e < columns", "found >= 0 && found < n0",
           on("histogram", "16777219x256", "ScatterBins", pack=4)),
    Mutant("linear-values-beyond", "tail", _LINEAR, "N - row, E - first_column);", "N - row, E);", _PLAIN),
    Mutant("gemv-columns-of-the-first-vector", "tail", _GEMV, "k + u < K ? columns - r * (O_LANES * PACK) : 0",
           "k + u < K ? columns : 0", on("hgemv", "4096x4096", "Gemv", "--transposed", "a", rows=2)),
    Mutant("gemv-k-of-the-first-load", "tail", _GEMV, "PACK : K - k - u * (K_LANES * STEP)", "PACK : K - k",
           on("hgemv", "4096x4096", "Gemv", unroll=2)),
    Mutant("gemv-strided-vector-beyond", "tail", _GEMV, "load_strided<PART>(from, {{ x_stride_k }}, left)",
           "load_strided<PART>(from, {{ x_stride_k }})", on("hgemm", "4096x3x4096", "Gemv", vectors=2)),
    # Special values of rows.
    Mutant("softmax-of-nothing-is-a-number", "special", _STATE,
           "if (max == lowest<T>()) sum = __int_as_float(0x7fc00000);",
           "if (max != max) sum = __int_as_float(0x7fc00000);", _LOSS),
    Mutant("reduce-min-begins-at-highest-finite", "special", _STATE, "T value = highest<T>();",
           "T value = static_cast<T>(3.402823466e+38);", on("reduce_min", "16777216", "Reduce")),
    Mutant("row-double-nan", "special", _ROW, "double largest(double a, double b) { return a > b || a != a ? a : b; }",
           "double largest(double a, double b) { return a > b ? a : b; }",
           on("row_max", "4096x4096", "Rowwise", "--dtype", "f64", cluster=1)),
    Mutant("least-double-nan", "special", _ROW,
           "double smallest(double a, double b) { return a < b || a != a ? a : b; }",
           "double smallest(double a, double b) { return a < b ? a : b; }",
           on("reduce_min", "16777216", "Reduce", "--dtype", "f64")),
    Mutant("total-least-integer-negated", "special", _TOTAL, "int reverse_order(int v) { return ~v; }",
           "int reverse_order(int v) { return -v; }",
           on("reduce_min", "16777216", "Reduce", "--dtype", "i32", finish="atomic")),
    Mutant("total-double-nan-by-its-bits", "special", _TOTAL,
           "return v != v ? ~0ull : bits ^ (bits >> 63 ? ~0ull : 0x8000000000000000ull);",
           "return bits ^ (bits >> 63 ? ~0ull : 0x8000000000000000ull);",
           on("reduce_max", "16777216", "Reduce", "--dtype", "f64", finish="atomic")),
    Mutant("welford-unbiased", "sum", _STATE, "complete(int length) { variance /= static_cast<T>(length); }",
           "complete(int length) { variance /= static_cast<T>(length - 1); }", _NORM),
    Mutant("welford-mean-of-nothing", "special", _BATCH, "if (count > 0) mean /= count;", "mean /= count;",
           on("layer_norm", "4096x1000", "Rowwise", keep="registers", cluster=1, row_threads=256, algorithm="online")),
    Mutant("row-pick-before-the-first", "index", _ROWS, "if ({{ k.place }} >= 0 && {{ k.place }} < {{ length }}) {",
           "if ({{ k.place }} < {{ length }}) {", _LOSS),
    Mutant("row-pick-cut-to-an-int", "32-bit", _ROWS, "if ({{ k.place }} >= 0 && {{ k.place }} < {{ length }}) {",
           "if (static_cast<int>({{ k.place }}) >= 0 && static_cast<int>({{ k.place }}) < {{ length }}) {", _LOSS),
    Mutant("row-of-two-axes", "stride", "kgen/ops/rowwise/access.py", "    if d > 0:\n        found += ",
           "    if d > 1:\n        found += ", _COLUMN_MAJOR),
    Mutant("axes-merged-by-one-operand", "stride", "kgen/ops/common/axes.py", "if found and all(", "if found and any(",
           _COLUMN_MAJOR),
    Mutant("reduce-argmax-of-padded-rows", "index", "templates/reduce.cu.j2",
           "row_at[i] = row * n{{ inner }} + column;", "row_at[i] = row * (row_vectors * PACK) + column;",
           _STRIDED),
    # Widths of integers.
    Mutant("scatter-without-room", "32-bit", "kgen/ops/scatter/plan.py", "NARROW = 2**31 - 2**26 - 1",
           "NARROW = 2**31 - 1", on("histogram", "16777216x256", "ScatterBins", pack=1)),
    # Products.
    Mutant("epilogue-value-beyond", "tail", _EPILOGUE,
           'if inside else "%s[%s]" % (x.name, x.offset)', 'if false else "%s[%s]" % (x.name, x.offset)',
           on("linear", "512x512x512", "WgmmaGemm", swap_ab=True)),
    Mutant("epilogue-strided-beyond", "tail", _EPILOGUE,
           '{{ x.name }}_sn, {{ inside ~ " ? COUNT : 0" if g.whole_vectors else "columns" }});',
           "{{ x.name }}_sn);",
           on("gemm", "512x512x512", "MmaGemm", "--transposed", "c")),
    Mutant("epilogue-strided-store-beyond", "tail", _EPILOGUE, "{{ y.name }}_values, {{ y.name }}_sn, columns);",
           "{{ y.name }}_values, {{ y.name }}_sn);", on("hgemm", "512x512x512", "MmaGemm", "--transposed", "out")),
    Mutant("epilogue-row-beyond", "tail", _EPILOGUE, '[x.row and "m < " ~ g.end_m, ',
           "[", on("gemm", "512x512x512", "WgmmaGemm", store="tma", swap_ab=False)),
    Mutant("epilogue-aligned-as-its-first", "stride", _GEMM,
           '" + ".join(terms) or "0", x.operand.row_align, ', '" + ".join(terms) or "0", x.operand.align, ',
           on("gemm", _ODD, "MmaGemm")),
    Mutant("products-packed-as-their-first", "stride", _GEMM, "max(1, min(16, x.operand.row_align)",
           "max(1, min(16, x.operand.align)", on("hgemm", _ODD, "SimtGemm")),
    Mutant("gemv-batch-of-outer-tiles", "index", _GEMV, "block / (vector_tiles * outer_tiles){% for",
           "block / outer_tiles{% for", on("hgemm", "3x256x3x256", "Gemv", vectors=2)),
    Mutant("widened-pairs-changed-over", "index", _VECTOR, "to[e] = two.x;\n      to[e + 1] = two.y;",
           "to[e] = two.y;\n      to[e + 1] = two.x;", on("fp8gemm", "4096x1x4096", "Gemv")),
    Mutant("wgmma-swizzle-of-narrow-rows", "index", "templates/common/wgmma_epilogue.cuh",
           "(unit ^ row / (8 / UNITS) % UNITS)", "(unit ^ row % UNITS)",
           on("hgemm", "512x512x512", "WgmmaGemm", store="tma", BN=32)),
    # Attention.
    Mutant("attention-late-grows-too-far", "special", _SOFTMAX, "GROWTH = 8;", "GROWTH = 17;", _LATE),
    Mutant("attention-scale-of-zero", "special", _TEXT,
           "f\"fmaxf({' * '.join(factors)}, 1.0e-30f) * {_LOG2E}\"", "f\"({' * '.join(factors)}) * {_LOG2E}\"", _FULL),
    Mutant("attention-folds-any-large-factor", "special", "templates/macros/attention.cuh.j2",
           "of_head > 0x1p-64f && of_head < 0x1p64f", "of_head > 0x1p-64f", _EIGHT),
    Mutant("attention-bias-beyond", "tail", _PLACES, "place(c.number, True)", "place(c.number)",
           on("attention_full_bias", _HEADS, "AttentionMma", BR=32, BC=32)),
    Mutant("attention-lengths-unlimited", "32-bit", _PLACES,
           "= max(-{_FAR}, min({name}[{' + '.join(terms) or '0'}], {_FAR}));", "= {name}[{' + '.join(terms) or '0'}];",
           _LENGTHS),
    Mutant("mask-end-one-less", "tail", _MASKS, 'at_least.plus(Affine(0, 0, ((1, ""),))), upper, full_upper',
           "at_least, upper, full_upper", on("attention_causal_lse", _HEADS, "AttentionMma", BR=32, BC=32)),
    Mutant("ranges-begin-behind-their-first", "tail", _MASKS, '"le": "ge"', '"le": "gt"', _RANGES),
    Mutant("attention-parts-from-the-first-block", "index", _SPLITS, "first = blocks.first + split * count;",
           "first = split * count;",
           on("attention_window_softcap", "...=1x2,G=2,M=30,N=300,D=64,E=64", "AttentionMma", BR=16, BC=32, splits=3)),
    Mutant("wide-second-row-not-scaled", "sum", "templates/common/attention_wide.cuh",
           "scale[0] != 1.0f || scale[1] != 1.0f", "scale[0] != 1.0f", _WEIGHTS),
    Mutant("linear-hidden-infinity", "special", _LINEAR, "static_cast<{{ ctype }}>(seen ? product : 0.0f);",
           "static_cast<{{ ctype }}>(product * (seen ? 1.0f : 0.0f));", _PLAIN),
    Mutant("one-pass-block-behind-the-last", "workspace", "templates/common/attention_gradient.cuh",
           "min(first + i / LOADS, blocks - 1);", "first + i / LOADS;", _ONE_PASS),
    # Moves.
    Mutant("transpose-words-of-any-line", "index", "templates/common/transposed_tile.cuh",
           "offset(row, line - past / SIZE + i * (4 / SIZE))", "offset(row, line + i * (4 / SIZE))", _HALO),
    Mutant("scatter-aligned-as-its-first", "stride", "kgen/ops/scatter/text.py",
           "any(width * o.dtype.bytes > o.row_align for o in vectors)",
           "any(width * o.dtype.bytes > o.align for o in vectors)", on("index_add", "8192x255x65536", "ScatterAdd")),
    Mutant("transpose-ends-past-as-lines", "index", "templates/common/transposed_tile.cuh",
           "past_end = elements_past<In>(p + line(MAIN) * stride);", "past_end = past;", _HALO),
    Mutant("copied-rows-in-int", "32-bit", "templates/common/wgmma_tile.cuh",
           "static_cast<long long>(rows_of[i]) * pitch", "rows_of[i] * pitch", _COPIED),
    Mutant("rows-id-cut-to-an-int", "32-bit", "templates/scatter_rows.cu.j2",
           "const int id = first < count && found >= 0 && found < {{ s.limit }} ? static_cast<int>(found) : -1;",
           "const int cut = static_cast<int>(found), id = first < count && cut >= 0 && cut < {{ s.limit }} ? cut : -1;",
           _EMBEDDING),
    Mutant("bins-id-cut-to-an-int", "32-bit", "templates/scatter_bins.cu.j2",
           "if (found >= 0 && found < n0 &&", "if (static_cast<int>(found) >= 0 && static_cast<int>(found) < n0 &&",
           on("histogram", "16777216x256", "ScatterBins")),
    Mutant("linear-wgmma-hidden-fall", "special", _LINEAR_WGMMA, "ptx::exp2_approximate(seen ? fall : 0.0f);",
           "ptx::exp2_approximate(fall);", _HOPPER),
    Mutant("linear-wgmma-hidden-infinity", "special", _LINEAR_WGMMA,
           "scores[0][c] = seen ? scores[0][c] * scale : 0.0f;", "scores[0][c] *= seen ? scale : 0.0f;", _HOPPER),
    # What launches get.
    Mutant("scan-blocks-rounded-down", "index", "kgen/ops/scan/scan.py",
           "(ceil_div_size(rows, self.threads // self.row_threads), 1, 1)",
           "(ceil_div_size(rows - 15, 16), 1, 1)",
           on("cumsum", "1001x100", "Scan", row_threads=8, threads=128)),
    Mutant("scan-room-of-one-tile", "workspace", "kgen/ops/scan/scan.py",
           "            2 * warps * state_bytes(problem.graph),",
           "            warps * state_bytes(problem.graph),",
           _SCANNED),
    Mutant("ring-totals-without-room", "workspace", "kgen/ops/rowwise/cluster.py",
           "states = 2 * (warps + self.cluster + 1) *", "states = 2 * (warps + self.cluster) *", _LONG),
    Mutant("nms-union-rounded-twice", "precision", "templates/nms.cu.j2",
           "__fmaf_rn(other.z - other.x, other.w - other.y, area)", "__fadd_rn(area_of(other), area)", _BOXES),
]  # fmt: skip
