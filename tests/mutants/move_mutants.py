"""Mutants of what moves elements or maps them one by one: elementwise, transpose, gather, gather_sum."""

from __future__ import annotations

from mutant import Mutant, on

_ELEMENTWISE = "templates/elementwise.cu.j2"
_POINTWISE = "templates/macros/pointwise.cuh.j2"
_EXPRESSION = "kgen/codegen/expression.py"
_VECTOR = "templates/common/vector.cuh"
_INDEX = "templates/common/index.cuh"
_ITEMS = "templates/common/items.cuh"
_TRANSPOSE = "templates/transpose.cu.j2"
_TRANSPOSED = "templates/common/transposed_tile.cuh"
_GATHER = "templates/gather.cu.j2"
_SUM = "templates/gather_sum.cu.j2"

_ADD = on("add", "16777219", "Elementwise", pack=8)
_WAVES = on("add", "16777216", "Elementwise", blocks_per_sm=2)
_BIAS = on("bias_gelu", "4096x4096", "Elementwise")
_ROPE = on("rope", "4x2048x32x128", "Elementwise")
_SIGMOID = on("sigmoid", "16777216", "Elementwise", "--dtype", "f32")
_NARROW = "templates/transpose_narrow.cu.j2"
_FEW_READ = on("transpose", "5001x6", "TransposeNarrow", span="input", threads=64, vectors=2)
_FEW_WRITTEN = on("transpose", "6x5001", "TransposeNarrow", span="output", threads=64, vectors=2)
_FEW_BATCH = on("transpose", "5x1001x6", "TransposeNarrow", span="input", threads=64, vectors=1)
_TURN = on("transpose", "4096x4096", "Transpose", blocks_per_sm=2)
_PERMUTED = on("transpose", "4096x4096", "Transpose", pad=0, blocks_per_sm=0)
_BOXES = on("transpose", "4096x4096", "Transpose", copy="tma", load="default", blocks_per_sm=2)
_HALO = on("transpose", "4095x4097", "Transpose")
_EMBEDDING = on("embedding", "16384x50000x1024", "Gather")
_NEAREST = on("upsample_nearest", "64x37x41x81x93", "Gather")
_BACK = on("upsample_nearest_backward", "16x81x93x37x41", "GatherSum", rows=4, taps=1)

MUTANTS = [
    Mutant("pointwise-tail-forgotten", "tail", _ELEMENTWISE, '"(n0 + PACK - 1) / PACK" if rank == 1',
           '"n0 / PACK" if rank == 1', _ADD),
    Mutant("pointwise-tail-one-more", "tail", _ELEMENTWISE,
           'n0 - at.column" if rank == 1 else "int remaining = PACK" }};\n{{ numbers(',
           'n0 - at.column + 1" if rank == 1 else "int remaining = PACK" }};\n{{ numbers(', _ADD),
    Mutant("pointwise-waves-skip", "index", _ITEMS,
           "const Index stride = static_cast<Index>(gridDim.x) * Span;",
           "const Index stride = static_cast<Index>(gridDim.x) * Span + 32;", _WAVES),
    Mutant("pointwise-items-beside-each-other", "index", _ITEMS, "first + i / Shared * Threads;", "first + i / Shared;",
           on("add", "16777219", "Elementwise", pack=8, items=2)),
    Mutant("pointwise-column-in-int", "32-bit", _ELEMENTWISE,
           '"long long" if wide or rank == 1 else "int"', '"long long" if wide else "int"',
           on("add", "4294967296", "Elementwise", pack=8)),
    Mutant("pointwise-step-in-int", "32-bit", _INDEX, "{ return ptx::multiply_wide(index, stride); }",
           "{ return index * stride; }", on("bias_gelu", "1048576x4096", "Elementwise")),
    Mutant("pointwise-row-of-the-vector", "index", _ELEMENTWISE,
           "    at.column *= PACK;\n", "    at.column = at.column * PACK % row_vectors;\n", _BIAS),
    Mutant("index-of-the-outer-axis", "index", _INDEX, "  unravel(rest, outer...);", "  unravel(number, outer...);", _BIAS),
    Mutant("quotient-of-multiples", "index", _INDEX, "next = n + 1;", "next = n;", _BIAS),
    Mutant("pointwise-halves-not-turned", "index", _POINTWISE,
           '("(1 - " ~ at ~ "i" ~ term.dimension ~ ")") if term.flipped',
           '(at ~ "i" ~ term.dimension) if term.flipped', _ROPE),
    Mutant("sigmoid-overflows", "special", _EXPRESSION, '{one} / ({one} + exp{c.f}(-{x}))"',
           'exp{c.f}({x}) / ({one} + exp{c.f}({x}))"', _SIGMOID),
    Mutant("maximum-drops-nan", "special", _EXPRESSION,
           'return f"{a} {sign} {b} || {a} != {a} ? {a} : {b}" if c.dtype.is_float else',
           'return f"{a} {sign} {b} ? {a} : {b}" if c.dtype.is_float else', on("maximum", "16777216", "Elementwise")),
    Mutant("compares-not-less", "special", _EXPRESSION, '"floordiv": _divided(',
           '"le": "!({0} > {1})", "floordiv": _divided(', on("hardshrink", "16777216", "Elementwise")),
    Mutant("erfc-other-side", "precision", "templates/common/special.cuh",
           "  const float tail = ptx::exp_approximate(power * u);\n  return x < 0 ? 2.0f - tail : tail;",
           "  const float tail = ptx::exp_approximate(power * u);\n  return x < 0 ? 1.0f - tail : tail;",
           on("gelu_erf", "16777216", "Elementwise")),
    Mutant("load-one-more", "tail", _VECTOR, "    for (int i = 0; i < N; ++i)\n      if (i < remaining) v[i] = p[i];",
           "    for (int i = 0; i < N; ++i)\n      if (i <= remaining) v[i] = p[i];", _ADD),
    Mutant("store-one-less", "tail", _VECTOR, "      if (i < remaining) p[i] = v[i];",
           "      if (i < remaining - 1) p[i] = v[i];", _ADD),
    # Transposition.
    Mutant("transpose-reads-early", "barrier", _TRANSPOSE,
           "    {{ x.name }}_tile.store({{ x.name }}_shared);\n//% endfor\n    __syncthreads();",
           "    {{ x.name }}_tile.store({{ x.name }}_shared);\n//% endfor", _TURN),
    Mutant("transpose-stores-over", "barrier", _TRANSPOSE, "    if (PERSISTENT) __syncthreads();\n", "", _TURN),
    Mutant("transpose-loads-beyond", "tail", _TRANSPOSE, "tile + gridDim.x < tiles)", "tile + gridDim.x <= tiles)",
           on("transpose", "8x512x512", "Transpose", blocks_per_sm=1)),
    Mutant("transpose-box-phase", "phase", _TRANSPOSE, "    phase ^= 1;\n", "", _BOXES),
    Mutant("transpose-box-early", "race", _TRANSPOSE, "    ptx::mbarrier_wait(arrived, ", "    (void)(", _BOXES),
    Mutant("transpose-diagonal-beyond", "index", _TRANSPOSE, '"diagonal": ("along", "around")',
           '"diagonal": ("along", "across + along")',
           on("transpose", "4096x4096", "Transpose", order="diagonal")),
    Mutant("transpose-permutes-each-row", "index", _TRANSPOSED, "((at / 16) ^ (r / In % PHASES)) * 16",
           "((at / 16) ^ (r % PHASES)) * 16", _PERMUTED),
    Mutant("transpose-stores-one-more", "tail", _TRANSPOSED, "    if (i >= low && i < high) p[i * stride] = v[i];",
           "    if (i >= low && i <= high) p[i * stride] = v[i];", _HALO),
    Mutant("transpose-loads-one-more", "tail", _TRANSPOSED, "    if (i >= low && i < high) v[i] = p[i * stride];",
           "    if (i >= low && i <= high) v[i] = p[i * stride];", _HALO),
    Mutant("transpose-whole-of-few-rows", "tail", _TRANSPOSE, "if (rows == ROWS && columns == COLUMNS",
           "if (columns == COLUMNS", _TURN),
    Mutant("transpose-words-swapped", "index", _TRANSPOSED, "<< (8 * SIZE * g);", "<< (8 * SIZE * (GROUP - 1 - g));",
           _TURN),
    Mutant("transpose-lines-before-the-first", "tail", _TRANSPOSE, "columns == COLUMNS + HALO && first == 0) {",
           "columns == COLUMNS + HALO) {", _HALO),
    Mutant("transpose-stores-before-the-first", "tail", _TRANSPOSE,
           'columns == COLUMNS{{ " && at.column > 0" if halo }}) {', "columns == COLUMNS) {", _HALO),
    # Reads by index.
    Mutant("gather-id-of-the-size", "tail", _GATHER, "return id >= 0 && id < size ?",
           "return id >= 0 && id <= size ?", _EMBEDDING),
    Mutant("gather-negative-id", "special", _GATHER, "return id >= 0 && id < size ?", "return id < size ?",
           _EMBEDDING),
    Mutant("gather-id-cut", "32-bit", _GATHER, "return id >= 0 && id < size ? static_cast<Index>(id) : -1;",
           "return static_cast<int>(id) >= 0 && static_cast<int>(id) < size ? static_cast<Index>(id) : -1;",
           _EMBEDDING),
    Mutant("gather-rows-do-not-wrap", "index", _INDEX, "    index = 0;\n", "",
           on("upsample_nearest", "64x37x41x81x93", "Gather", items=4)),
    Mutant("gather-sum-first-of-the-next", "index", _SUM, "    if (found < wanted) {", "    if (found <= wanted) {",
           _BACK),
    Mutant("gather-sum-lane-31", "index", _SUM, "high[part] = lane < 31 ? beside : next;", "high[part] = beside;",
           _BACK),
    Mutant("gather-sum-most-of-the-last", "sum", _SUM,
           "most{{ w.axis }} = max(most{{ w.axis }}, high{{ w.axis }}[i] - low{{ w.axis }}[i]);",
           "most{{ w.axis }} = high{{ w.axis }}[i] - low{{ w.axis }}[i];", _BACK),
    Mutant("gather-sum-stage-no-syncwarp", "barrier", _SUM,
           "        store_vector<PACK>(staged + i * CHUNK + lane * PACK, kept);\n      }\n      __syncwarp();",
           "        store_vector<PACK>(staged + i * CHUNK + lane * PACK, kept);\n      }", _BACK),
    Mutant("gather-sum-chunk-overwritten", "barrier", _SUM,
           "          }\n        }\n      }\n      __syncwarp();\n    }", "          }\n        }\n      }\n    }",
           _BACK),
    Mutant("gather-sum-chunk-end", "tail", _SUM, "const int to = min(high[part], start + CHUNK);",
           "const int to = min(high[part], start + CHUNK - 1);", _BACK),
    Mutant("gather-sum-begin-unaligned", "index", _SUM, "__shfl_sync(0xffffffff, low[0], 0) / PACK * PACK;",
           "__shfl_sync(0xffffffff, low[0], 0);",
           on("upsample_nearest_backward", "16x80x896x37x441", "GatherSum", rows=4)),
    # Matrices of a few rows or columns.
    Mutant("narrow-not-waited-for", "wait", _NARROW, "  ptx::cp_async_wait<0>();\n", "", _FEW_READ),
    Mutant("narrow-no-barrier-before", "barrier", _NARROW, "  ptx::cp_async_wait<0>();\n  __syncthreads();\n",
           "  ptx::cp_async_wait<0>();\n", _FEW_READ),
    Mutant("narrow-no-barrier-after", "barrier", _NARROW, "  __syncthreads();\n  store_span", "  store_span", _FEW_WRITTEN),
    Mutant("narrow-beyond-the-last-row", "tail", _NARROW, " * PACK < count) f(v", " * PACK <= count) f(v", _FEW_READ),
    Mutant("narrow-beyond-the-last-column", "index", _NARROW, "if (first + i < few &&", "if (first + i <= few &&",
           _FEW_READ),
    Mutant("narrow-next-matrix-not-seen", "index", _NARROW, "static_cast<long long>(matrix) * few",
           "start / {{ many }} * few", _FEW_BATCH),
    Mutant("narrow-no-room-for-rows", "index", "kgen/ops/elementwise/narrow.py", "(elements - 1).bit_length()",
           "(elements - 1).bit_length() - 1", on("transpose", "5001x7", "TransposeNarrow", span="input")),
    Mutant("narrow-counts-in-32-bits", "32-bit", _NARROW, "static_cast<long long>(blockIdx.x) * ROWS",
           "static_cast<int>(blockIdx.x * ROWS)", _FEW_BATCH),
    Mutant("narrow-block-beyond-the-last", "tail", _NARROW, "min(rows - start, static_cast<long long>(ROWS))",
           "static_cast<long long>(ROWS)", _FEW_WRITTEN),
]  # fmt: skip
