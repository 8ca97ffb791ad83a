"""Mutants of the products by mma.sync, on CUDA cores, and by vectors: gemm_mma, gemm_simt, gemv and what they share."""

from __future__ import annotations

from mutant import Mutant, on

_GEMM = "templates/macros/gemm.cuh.j2"
_EPILOGUE = "templates/macros/gemm_epilogue.cuh.j2"
_MMA = "templates/gemm_mma.cu.j2"
_SIMT = "templates/gemm_simt.cu.j2"
_GEMV = "templates/gemv.cu.j2"
_TILE = "templates/common/tile.cuh"
_FRAGMENTS = "templates/common/mma_tile.cuh"
_SPLIT_K = "templates/common/split_k.cuh"

_CUBE = "2048x2048x2048"
_RING = on("hgemm", _CUBE, "MmaGemm", copy="cp_async", stages=4, fragments=1, splits=1)
_OVERLAPPED = on("hgemm", _CUBE, "MmaGemm", copy="cp_async", stages=4, fragments=2, splits=1)
_ONE_STAGE = on("hgemm", _CUBE, "MmaGemm", copy="cp_async", stages=1, splits=1)
_REGISTERS = on("hgemm", _CUBE, "MmaGemm", copy="register", stages=2)
_REGISTERS_ONE = on("hgemm", _CUBE, "MmaGemm", copy="register", stages=1)
_SPLIT = on("hgemm", "256x256x8192", "MmaGemm", splits=4)
_SHARED = on("hgemm", _CUBE, "MmaGemm", store="shared", instruction="mma")
_SGEMM = on("sgemm", "1024x1024x1024", "SimtGemm", copy="cp_async", stages=3)
_SIMT_SPLIT = on("sgemm", "256x256x8192", "SimtGemm", splits=4)
_DIRECT = on(
    "sgemm", "1024x1024x1024", "SimtGemm", stages=0, copy="register", transpose=False, vector=1, padding=0, pack=1
)
_GROUPED = on("grouped_hgemm", "4096x1024x512x8", "SimtGemm", stages=0)
_HGEMV = on("hgemv", "4096x4096", "Gemv")
_ACROSS = on("hgemv", "4096x4096", "Gemv", "--transposed", "a")
_STAGED = on("hgemv", "4096x4096", "Gemv", staged=True, threads=128, warps=1, lanes=32, rows=2, unroll=2)
_GEMV_SPLIT = on("hgemv", "512x65536", "Gemv", splits=4)
_BLOCKS = on("fp8gemm_blockwise", "256x256x1000", "SimtGemm", stages=0)

MUTANTS = [
    # The ring of stages of cp.async.
    Mutant("mma-wait-one-less", "race", _GEMM,
           "      ptx::cp_async_wait<STAGES - 2>();\n      __syncthreads();\n      if (k_tile + STAGES - 1",
           "      ptx::cp_async_wait<STAGES - 1>();\n      __syncthreads();\n      if (k_tile + STAGES - 1", _RING),
    Mutant("mma-ring-no-barrier", "barrier", _GEMM,
           "      ptx::cp_async_wait<STAGES - 2>();\n      __syncthreads();\n      if (k_tile + STAGES - 1",
           "      ptx::cp_async_wait<STAGES - 2>();\n      if (k_tile + STAGES - 1", _RING),
    Mutant("mma-ring-writes-late", "phase", _GEMM,
           "      multiply(reading);\n      reading = reading + 1 == STAGES ? 0 : reading + 1;\n      writing = "
           "writing + 1 == STAGES",
           "      multiply(reading);\n      reading = reading + 1 == STAGES ? 0 : reading + 1;\n      writing = "
           "writing == STAGES", _RING),
    Mutant("mma-ring-copies-past-k", "tail", _GEMM, "      if (k_tile + STAGES - 1 < k_last) copy(writing,",
           "      if (k_tile + STAGES - 1 <= k_last) copy(writing,", _RING),
    Mutant("mma-overlapped-wraps-early", "phase", _GEMM,
           "          reading = reading + 1 == STAGES ? 0 : reading + 1;\n          if (k_tile + 1",
           "          reading = reading + 2 == STAGES ? 0 : reading + 1;\n          if (k_tile + 1", _OVERLAPPED),
    Mutant("mma-overlapped-no-barrier", "barrier", _GEMM,
           "          ptx::cp_async_wait<STAGES - 2>();\n          __syncthreads();\n",
           "          ptx::cp_async_wait<STAGES - 2>();\n", _OVERLAPPED),
    Mutant("mma-overlapped-commits-twice", "race", _GEMM, "          ptx::cp_async_commit();\n          writing",
           "          writing", _OVERLAPPED),
    Mutant("mma-one-stage-no-barrier", "barrier", _GEMM, "      multiply(0);\n      __syncthreads();\n    }",
           "      multiply(0);\n    }", _ONE_STAGE),
    # The way through registers.
    Mutant("mma-registers-same-stage", "phase", _GEMM, "store((k_tile - k_first + 1) % 2);",
           "store((k_tile - k_first) % 2);", _REGISTERS),
    Mutant("mma-registers-last-stage", "phase", _GEMM, '"(k_last - 1 - k_first) % 2"', '"(k_last - 1) % 2"',
           on("hgemm", "256x256x8192", "MmaGemm", copy="register", stages=2, splits=8)),
    Mutant("mma-registers-no-barrier", "barrier", _GEMM,
           "      multiply(0);\n      __syncthreads();\n      store(0);", "      multiply(0);\n      store(0);",
           _REGISTERS_ONE),
    # Edges.
    Mutant("gemm-whole-forgets-k", "tail", _GEMM, "n0 + BN <= N && K % BK == 0)", "n0 + BN <= N)", _RING),
    Mutant("gemm-whole-forgets-n", "tail", _GEMM, "if (m0 + BM <= M && n0 + BN <= N &&", "if (m0 + BM <= M &&",
           _RING),
    Mutant("gemm-k-tiles-round-down", "tail", _GEMM, "const int k_tiles = (K + BK - 1) / BK;",
           "const int k_tiles = K / BK;", _RING),
    Mutant("tile-one-row-more", "tail", _TILE, "Whole ? Pack : row < rows ?", "Whole ? Pack : row <= rows ?", _RING),
    Mutant("tile-fills-no-zeros", "tail", _TILE, "from, valid * static_cast<int>(sizeof(T)));", "from);", _RING),
    Mutant("tile-registers-one-row-more", "tail", _TILE, "Share::row(i) < rows ?", "Share::row(i) <= rows ?",
           _REGISTERS),
    Mutant("gemm-stores-whole-vectors", "tail", _EPILOGUE, "? min(COUNT, {{ g.end_n }} - n) : 0;", "? COUNT : 0;",
           _SHARED),
    Mutant("mma-stmatrix-rows-unchecked", "tail", _MMA, "      if (m < M) store_columns", "      store_columns",
           on("hgemm", _CUBE, "MmaGemm", store="stmatrix")),
    # Places.
    Mutant("gemm-raster-last-group", "index", _TILE, "const int width = min(across - first, Group);",
           "const int width = Group;", on("hgemm", _CUBE, "MmaGemm", group=4)),
    Mutant("gemm-batch-of-b", "stride", _GEMM, "  {{ g.b.name }} += {{ g.b.batch_offset }};\n", "",
           on("hgemm", "3x256x256x256", "MmaGemm")),
    Mutant("gemm-folds-any-batch", "stride", "kgen/ops/gemm/problem.py",
           " or o.strides[-3] != o.strides[-2] * o.shape[-2]:", ":",
           on("linear", "4x512x512x512", "MmaGemm", "--transposed", "x")),
    Mutant("mma-lane-of-a", "index", _FRAGMENTS, "IsA ? l / 16 % Units", "IsA ? l / 8 % Units", _RING),
    Mutant("mma-exchange-keeps", "index", _FRAGMENTS, "const A given = upper ? v[tile][e] : v[tile + step][e];",
           "const A given = upper ? v[tile + step][e] : v[tile][e];", on("hgemm", _CUBE, "MmaGemm", store="shuffle")),
    # The end.
    Mutant("mma-strips-over-tiles", "barrier", _MMA,
           "  const int lane = threadIdx.x % 32;\n  __syncthreads();\n", "  const int lane = threadIdx.x % 32;\n", _SHARED),
    Mutant("mma-strip-no-syncwarp", "barrier", _MMA, "    __syncwarp();\n#pragma unroll\n    for (int vector",
           "#pragma unroll\n    for (int vector", _SHARED),
    Mutant("mma-strip-next-no-syncwarp", "barrier", _MMA, "    }\n    __syncwarp();\n  }\n", "    }\n  }\n", _SHARED),
    Mutant("mma-no-zero", "initial", _MMA, "[{{ sum_registers }}] = {};", "[{{ sum_registers }}];", _RING),
    Mutant("wmma-no-fill", "initial", _MMA,
           "    for (int j = 0; j < MMA_N; ++j) wmma::fill_fragment(sums[i][j], {{ sum_type }}(0));",
           "    for (int j = 1; j < MMA_N; ++j) wmma::fill_fragment(sums[i][j], {{ sum_type }}(0));",
           on("hgemm", _CUBE, "MmaGemm", instruction="wmma")),
    Mutant("wmma-strips-of-sixteen", "index", _MMA, "warp * ({{ fragment_m }} * STRIP);", "warp * (16 * STRIP);",
           on("linear_gelu", _CUBE, "MmaGemm", instruction="wmma_m32n8k16")),
    Mutant("tf32-not-rounded", "precision", _MMA,
           "    round_to_tf32(fragments_a[buffer]);\n", "",
           on("tf32gemm", _CUBE, "MmaGemm", instruction="mma")),
    Mutant("mma-sums-in-half", "precision", "kgen/ops/gemm/mma.py", "half_sums = g.accumulate is f16",
           "half_sums = dtype is f16", on("hgemm", _CUBE, "MmaGemm", instruction="mma")),
    # Scales of blocks, and operands of batches.
    Mutant("simt-scale-of-the-block-before", "scale", "kgen/ops/gemm/schedule.py", "f'k / {s.depth}', outer)",
           "f'(k - 1) / {s.depth}', outer)", _BLOCKS),
    Mutant("gemm-batch-in-int", "32-bit", "kgen/ops/gemm/schedule.py",
           'batch_offset=" + ".join(f"{long}(batch{d}) * {name}_sb{d}"',
           'batch_offset=" + ".join(f"batch{d} * static_cast<int>({name}_sb{d})"', on("hgemm", "3x256x256x256", "MmaGemm")),
    Mutant("gemm-extras-of-the-first-batch", "stride", "kgen/ops/gemm/schedule.py",
           'for d, s in enumerate(x.batch) if s]\n    terms += [f"{long}(m)',
           'for d, s in enumerate(x.batch) if s and is_output]\n    terms += [f"{long}(m)',
           on("gemm", "3x256x256x256", "MmaGemm")),
    # Splits of K.
    Mutant("split-one-too-few", "sum", _SPLIT_K, "s < Splits; ++s) add_partial", "s < Splits - 1; ++s) add_partial", _SPLIT),
    Mutant("split-fetches-of-no-tile", "tail", _GEMM, "    if (k_first < k_last) fetch(0, 0, 0);", "    fetch(0, 0, 0);",
           on("hgemm", "256x256x8192", "MmaGemm", copy="cp_async", stages=4, fragments=2, splits=8)),
    Mutant("split-share-beyond-k", "sum", _GEMM, "const int k_last = min(k_first + share, k_tiles);",
           "const int k_last = k_first + share;", on("hgemm", "256x256x4352", "MmaGemm", splits=8, BK=64)),
    Mutant("split-counts-early", "workspace", _SPLIT_K, "  __threadfence();\n  __syncthreads();\n  bool last",
           "  __threadfence();\n  bool last", _SPLIT),
    Mutant("split-no-fence", "fence", _SPLIT_K, "  __threadfence();\n  __syncthreads();\n  bool last",
           "  __syncthreads();\n  bool last", _SPLIT),
    Mutant("split-plain-count", "atomic", _SPLIT_K, "last = atomicAdd(counter, 1) == Blocks - 1;",
           "last = (*counter)++ == Blocks - 1;", _SPLIT),
    Mutant("split-counter-stays", "workspace", _SPLIT_K, "  if (threadIdx.x == 0) *counter = 0;\n", "", _SPLIT),
    # CUDA cores.
    Mutant("simt-column-of-lane", "index", _SIMT, "j / VECTOR_N * (8 * VECTOR_N) + lane",
           "j / VECTOR_N * (4 * VECTOR_N) + lane", on("sgemm", "1024x1024x1024", "SimtGemm", TN=8, vector=4)),
    Mutant("simt-one-column-more", "tail", _SIMT, "values_b[j] = n0 + column(j) < N ?",
           "values_b[j] = n0 + column(j) <= N ?", _DIRECT),
    Mutant("simt-sums-in-half", "precision", _SIMT, "using Sum = {{ g.result_type }};",
           "using Sum = {{ g.a.ctype }};", on("hgemm", "512x512x512", "SimtGemm")),
    Mutant("simt-split-partials-of-the-next", "index", _SIMT, "static_cast<long long>(block) * (SPLITS * BM * BN)",
           "static_cast<long long>(block) * (SPLITS * BM)", _SIMT_SPLIT),
    Mutant("simt-split-never-added", "sum", _SIMT, "  if (!split_k_fixup<SPLITS, BM * BN, THREADS>(flat, partials",
           "  if (split == 0 && !split_k_fixup<SPLITS, BM * BN, THREADS>(flat, partials", _SIMT_SPLIT),
    Mutant("grouped-row-of-the-next", "index", _SIMT, "m0 + row(i) >= {{ g.offsets }}[groups[i] + 1]))",
           "m0 + row(i) > {{ g.offsets }}[groups[i] + 1]))", _GROUPED),
    # Vectors.
    Mutant("gemv-k-unchecked", "tail", _GEMV, "const int checked = max(k_first, min(k_last, K / BK));  // iterations",
           "const int checked = max(k_first, min(k_last, (K + BK - 1) / BK));  // iterations", _HGEMV),
    Mutant("gemv-columns-unchecked", "tail", _GEMV, "const int checked = o0 + BO <= {{ outer }} ?",
           "const int checked = o0 < {{ outer }} ?", _ACROSS),
    Mutant("gemv-row-beyond", "tail", _GEMV, "r * O_LANES + o_lane, {{ outer }} - 1))",
           "r * O_LANES + o_lane, {{ outer }}))", _HGEMV),
    Mutant("gemv-one-warp-less", "sum", _GEMV, "      for (int k = 0; k < K_WARPS; ++k) results[i]",
           "      for (int k = 0; k < K_WARPS - (K_WARPS > 1); ++k) results[i]",
           on("hgemv", "4096x4096", "Gemv", warps=4)),
    Mutant("gemv-stage-no-barrier", "barrier", _GEMV, "    __syncthreads();\n    if ((k_tile + tiles)",
           "    if ((k_tile + tiles)", _STAGED),
    Mutant("gemv-gathers-over-vectors", "barrier", _GEMV, "//% if config.staged\n  __syncthreads();\n//% endif\n", "",
           _STAGED),
    Mutant("gemv-chunk-restarts-late", "phase", _GEMV, "if (tile == 0) stage(k_tile);",
           "if (k_tile == k_first) stage(k_tile);", on("hgemv", "64x262144", "Gemv", staged=True)),
    Mutant("gemv-split-one-too-few", "sum", _SPLIT_K, "s < Splits; ++s) add_partial", "s < Splits - 1; ++s) add_partial",
           _GEMV_SPLIT),
    Mutant("gemv-split-no-fence", "fence", _SPLIT_K, "  __threadfence();\n  __syncthreads();\n  bool last",
           "  __syncthreads();\n  bool last", _GEMV_SPLIT),
    Mutant("gemv-split-counts-early", "workspace", _SPLIT_K, "  __threadfence();\n  __syncthreads();\n  bool last",
           "  __threadfence();\n  bool last", _GEMV_SPLIT),
    Mutant("gemv-split-stores-beyond", "tail", _SPLIT_K,
           "    if (Elements % Threads == 0 || i * Threads + thread < Elements) __stcg", "    __stcg",
           on("hgemv", "2048x8192", "Gemv", vectors=1, pack=1, rows=1, unroll=1, threads=128, warps=2, lanes=16, splits=16)),
    Mutant("gemv-bytes-transposed", "index", "templates/common/vector.cuh", "__byte_perm(high01, high23, 0x7632)",
           "__byte_perm(high01, high23, 0x7326)", on("igemm", "4096x1x4096", "Gemv", "--transposed", "a")),
]  # fmt: skip
