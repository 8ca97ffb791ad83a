"""Mutants of what adds at ids, and of nms: scatter_add, scatter_bins, scatter_rows, nms, grid barriers."""

from __future__ import annotations

from mutant import Mutant, on

_SHARED = "templates/macros/scatter.cuh.j2"
_ADD = "templates/scatter_add.cu.j2"
_BINS = "templates/scatter_bins.cu.j2"
_ROWS = "templates/scatter_rows.cu.j2"
_GRID = "templates/common/grid.cuh"
_NMS = "templates/nms.cu.j2"

_INDEX_ADD = on("index_add", "8192x256x65536", "ScatterAdd", atomic="scalar", items=4)
_F32 = on("index_add", "8192x256x65536", "ScatterAdd", "--dtype", "f32,i64", atomic="scalar")
_HISTOGRAM = on("histogram", "16777216x256", "ScatterBins")
_EMBEDDING = on("embedding_backward", "16384x1024x50000", "ScatterRows", slots=8, items=4)
_BOXES = on("nms_padded", "4000", "Nms", threads=256, chunk=256)

MUTANTS = [
    Mutant("scatter-plain-add", "atomic", _SHARED,
           "{% else %}atomicAdd({{ pointer }}, static_cast<Total>({{ value }})){% endif %}",
           "{% else %}*({{ pointer }}) += static_cast<Total>({{ value }}){% endif %}", _F32),
    Mutant("scatter-last-again", "tail", _ADD, "        if (first + i < count) {",
           "        if (first + i <= count) {", _INDEX_ADD),
    Mutant("scatter-id-of-the-limit", "tail", _ADD, "found >= 0 && found < {{ s.limit }} ?",
           "found >= 0 && found <= {{ s.limit }} ?", _INDEX_ADD),
    Mutant("scatter-negative-id", "special", _ADD, "found >= 0 && found < {{ s.limit }} ?", "found < {{ s.limit }} ?",
           _INDEX_ADD),
    Mutant("scatter-sums-stay", "sum", _ADD, "            for (int e = 0; e < PACK; ++e) sums[e] = 0;",
           "            for (int e = 1; e < PACK; ++e) sums[e] = 0;", _INDEX_ADD),
    Mutant("scatter-adds-before-copies", "workspace", _SHARED,
           "//%     if not s.late\n    grid_wait(grid_barrier, 1);\n//%     endif", "", _INDEX_ADD),
    Mutant("scatter-run-one-more", "index", _ADD, "first < run + RUN && first < count; first += ITEMS) {",
           "first <= run + RUN && first < count; first += ITEMS) {", _INDEX_ADD),
    Mutant("grid-arrives-early", "workspace", _GRID,
           "  __threadfence();\n  __syncthreads();\n  if (threadIdx.x == 0) ptx::atomic_add_release(counter, 1);",
           "  __threadfence();\n  if (threadIdx.x == 0) ptx::atomic_add_release(counter, 1);", _INDEX_ADD),
    Mutant("grid-waits-for-one-less", "workspace", _GRID, "< phase * static_cast<int>(gridDim.x))",
           "< phase * static_cast<int>(gridDim.x) - 1)", _INDEX_ADD),
    Mutant("grid-counter-stays", "workspace", _GRID, "== (phases + 1) * static_cast<int>(gridDim.x) - 1)",
           "== (phases + 1) * static_cast<int>(gridDim.x))", _INDEX_ADD),
    Mutant("scatter-run-that-ends-at-the-first", "sum", _ADD,
           "    if (current >= 0) add_vector(target + {{ s.id_offset }}, sums{{ \", \" ~ s.column_stride if s.strided }});\n  }",
           "    if (current > 0) add_vector(target + {{ s.id_offset }}, sums{{ \", \" ~ s.column_stride if s.strided }});\n  }",
           _INDEX_ADD),
    # Bins.
    Mutant("bins-of-one-replica-zeroed", "initial", _BINS, "i < n0 * REPLICAS; i += THREADS) bins[i] = 0;",
           "i < n0; i += THREADS) bins[i] = 0;", _HISTOGRAM),
    Mutant("bins-plain-add", "atomic", _BINS,
           '{{ scatter.add(s, "mine + static_cast<int>(found) * REPLICAS", "one", "Sum") | trim }};',
           "mine[static_cast<int>(found) * REPLICAS] += one;",
           on("histogram", "16777216x256", "ScatterBins", replicas=8)),
    Mutant("bins-id-of-the-limit", "tail", _BINS, "found >= 0 && found < n0 &&", "found >= 0 && found <= n0 &&",
           _HISTOGRAM),
    Mutant("bins-negative-id", "special", _BINS, "found >= 0 && found < n0 &&", "found < n0 &&", _HISTOGRAM),
    # Rows.
    Mutant("rows-one-slot-more", "index", _ROWS, "id >= 0 && rank >= SLOTS;", "id >= 0 && rank > SLOTS;", _EMBEDDING),
    Mutant("rows-rank-of-one-lane", "index", _ROWS, "(1u << threadIdx.x % 32) - 1;", "(2u << threadIdx.x % 32) - 1;",
           _EMBEDDING),
    Mutant("rows-counts-stay", "workspace", _ROWS, "i0 += static_cast<Index>(gridDim.x) * THREADS) counts[i0] = 0;",
           "i0 += static_cast<Index>(gridDim.x) * THREADS) {}", _EMBEDDING),
    Mutant("rows-list-beyond", "tail", _ROWS, "const int last = min(run + RUN, static_cast<Index>(listed));",
           "const int last = run + RUN;", _EMBEDDING),
    Mutant("rows-slot-again", "tail", _ROWS, "            if (k + i < {{ members }}) total[e] += one;",
           "            if (k + i <= {{ members }}) total[e] += one;", _EMBEDDING),
    Mutant("rows-crowded-unwaited", "workspace", _ROWS, "  grid_wait(grid_barrier, 2);\n", "", _EMBEDDING),
    Mutant("rows-crowded-sums-stay", "workspace", _ROWS, "      store_vector<PACK>(from, Vector<Total, PACK>());\n",
           "", _EMBEDDING),
    Mutant("rows-slots-in-int", "32-bit", _ROWS, "slots[static_cast<long long>(id) * SLOTS + rank]",
           "slots[id * SLOTS + rank]", on("embedding_backward", "16384x8x134217728", "ScatterRows", slots=32)),
    Mutant("rows-of-all-slots-forgotten", "tail", _ROWS, "    if (members > SLOTS{{", "    if (members >= SLOTS{{", _EMBEDDING),
    # Boxes.
    Mutant("nms-alive-beyond", "tail", _NMS, "alive[w] = N - w * 32 < 32 ? ALL >> (32 - (N - w * 32)) : ALL;",
           "alive[w] = ALL;", _BOXES),
    Mutant("nms-plain-and", "atomic", _NMS, "atomicAnd(alive + w, ~gone);", "alive[w] &= ~gone;", _BOXES),
    Mutant("nms-barrier-of-the-next", "workspace", _NMS, "if (blockIdx.x == 0) grid_barriers[(phase + 2) % 3] = 0;",
           "if (blockIdx.x == 0) grid_barriers[(phase + 1) % 3] = 0;", _BOXES),
    Mutant("nms-minus-zero", "special", _NMS, "__float_as_uint(score + 0.0f);", "__float_as_uint(score);", _BOXES),
    Mutant("nms-nan-last", "special", _NMS, "score != score ? ALL : bits", "score != score ? 0 : bits", _BOXES),
    Mutant("nms-at-the-threshold", "index", _NMS, "return __fdiv_rn(shared, either) > allowed;",
           "return __fdiv_rn(shared, either) >= allowed;", _BOXES),
    Mutant("nms-sums-no-barrier", "barrier", _NMS, "      if (lane == 31) sums[warp] = here;\n      __syncthreads();",
           "      if (lane == 31) sums[warp] = here;", _BOXES),
    Mutant("nms-run-no-barrier", "barrier", _NMS,
           "        __syncthreads();\n        const int i = threadIdx.x / step",
           "        const int i = threadIdx.x / step", _BOXES),
    Mutant("nms-blocks-sync-early", "workspace", _NMS, "  const auto grid_sync = [&] {\n    __syncthreads();\n",
           "  const auto grid_sync = [&] {\n", _BOXES),
    Mutant("nms-suppresses-from-the-start", "index", _NMS, "held[h] = box[min(i, staying - 1)];", "held[h] = box[i];",
           _BOXES),
    Mutant("nms-one-round", "sum", _NMS, "changed = __syncthreads_or(differs);",
           "changed = __syncthreads_or(differs) && false;", _BOXES),
    Mutant("nms-members-of-the-first-warp", "index", _NMS, "__shfl_sync(ALL, total, warp) - sums[warp];",
           "__shfl_sync(ALL, total, 31) - sums[warp];", _BOXES),
    Mutant("nms-below-zero", "special", _NMS, "none = t >= 0 ? 0.0f : __int_as_float(0x7fc00000);", "none = 0.0f;", _BOXES),
]  # fmt: skip
