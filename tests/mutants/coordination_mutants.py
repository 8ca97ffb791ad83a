"""Mutants of what threads, blocks and launches do together: barriers, fences, atomics, phases of rings, workspaces."""

from __future__ import annotations

from attention_mutants import _DECODE, _PAIRS, _WEIGHTS
from gemm_mutants import _ONE_STAGE, _REGISTERS, _STAGED
from gradient_mutants import _RANGES, _SHARED, _WIDE
from linear_attention_mutants import _AHEAD, _HOPPER
from mutant import Mutant, on
from row_mutants import _COLUMN_SUM, _LEAST, _LONG, _SUM, _TWO_PASS
from scatter_mutants import _BOXES, _EMBEDDING, _HISTOGRAM, _INDEX_ADD
from wgmma_mutants import _CLUSTER, _COPIED, _SPLIT, _STREAM, _TWO

_GEMM = "templates/macros/gemm.cuh.j2"
_GEMV = "templates/gemv.cu.j2"
_WGMMA = "templates/gemm_wgmma.cu.j2"
_LOOP = "templates/common/wgmma_mainloop.cuh"
_STORE = "templates/common/wgmma_epilogue.cuh"
_TILE = "templates/common/wgmma_tile.cuh"
_SPLIT_K = "templates/common/split_k.cuh"
_GRID = "templates/common/grid.cuh"
_TOTAL = "templates/common/total.cuh"
_STATE = "templates/common/row_state.cuh"
_COMMON = "templates/common/row.cuh"
_RING = "templates/rowwise_cluster.cu.j2"
_REDUCE = "templates/reduce.cu.j2"
_COLUMNS = "templates/column_stats.cu.j2"
_BINS = "templates/scatter_bins.cu.j2"
_ROWS = "templates/scatter_rows.cu.j2"
_NMS = "templates/nms.cu.j2"
_ATTENTION = "templates/attention_wgmma.cu.j2"
_PARTS = "templates/common/attention_splits.cuh"
_WIDE_PARTS = "templates/common/attention_wide.cuh"
_STEPS = "templates/common/attention_gradient.cuh"
_ONE_PASS = "templates/attention_gradient_one_pass.cu.j2"
_LINEAR = "templates/linear_attention_wgmma.cu.j2"

_SHARED_STORE = on("hgemm", "1000x1001x1024", "WgmmaGemm", store="shared")
_INTERLEAVED = on("reduce_sum", "16777216", "Reduce", within="interleaved")
_LATE_START = on("attention_full", "...=1x2,G=2,M=300,N=300,D=64,E=64", "AttentionWgmma", BR=128, BC=64, pdl=True)
_GROUPS_BY_TURNS = on("grouped_hgemm", "4096x1024x512x8", "WgmmaGemm", pingpong=True)
_COPIED_ACROSS = on("fp8gemm", "1024x1024x1024", "WgmmaGemm")
_LONG_LOSS = on("cross_entropy", "512x131072", "RowwiseCluster", cluster=4)

MUTANTS = [
    # Atomics.
    Mutant("rows-plain-rank", "atomic", _ROWS, "rank = atomicAdd(counts + id, __popc(alike));",
           "rank = counts[id], counts[id] += __popc(alike);", _EMBEDDING),
    Mutant("rows-plain-place-in-the-list", "atomic", _ROWS, "listed_first = atomicAdd(tallies, __popc(others));",
           "listed_first = tallies[0], tallies[0] += __popc(others);", _EMBEDDING),
    Mutant("rows-plain-number", "atomic", _ROWS, "const int number = atomicAdd(tallies + 1, 1);",
           "const int number = tallies[1]++;", _EMBEDDING),
    Mutant("gradient-ranges-plain-largest", "atomic", _STEPS, "atomicMax(scratch + 1, last);",
           "scratch[1] = max(scratch[1], last);", _RANGES),
    Mutant("one-pass-plain-arrival", "atomic", _STEPS, "there = ptx::atomic_add_release(arrivals, waits ? 1 + WAITER : 1);",
           "there = *arrivals, *arrivals += waits ? 1 + WAITER : 1;", _SHARED),
    Mutant("total-plain-least", "atomic", _TOTAL, "atomicMax(word_of(total), ordered_key(reverse_order(v)));",
           "*word_of(total) = max(*word_of(total), ordered_key(reverse_order(v)));", _LEAST),
    Mutant("attention-parts-plain-count", "atomic", _PARTS,
           "*last = ptx::atomic_add_release(counter, 1) == Splits - 1;",
           "*last = (*counter)++ == Splits - 1;", _DECODE),
    Mutant("bins-result-added-plainly", "atomic", _BINS,
           'if (sum != 0) {{ scatter.add(s, s.target ~ " + " ~ s.bin_offset, "sum") }};',
           "if (sum != 0) *({{ s.target }} + {{ s.bin_offset }}) += sum;", _HISTOGRAM),
    Mutant("grid-leaves-by-a-plain-count", "atomic", _GRID,
           "if (threadIdx.x == 0 && ptx::atomic_add_release(counter, 1) ==", "if (threadIdx.x == 0 && (*counter)++ ==",
           _INDEX_ADD),
    Mutant("total-plain-count", "atomic", _REDUCE, "if (atomicAdd(&counters[{{ counter }}], 1) < blocks - 1) return;",
           "if (counters[{{ counter }}]++ < blocks - 1) return;", _LEAST),
    Mutant("nms-plain-look", "atomic", _NMS, "ptx::load_relaxed(alive + w)", "alive[w]", _BOXES),
    # Fences.
    Mutant("workers-arrive-relaxed", "fence", _SPLIT_K,
           "if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);",
           "if (consumer == 0 && thread == 0) atomicAdd(arrived, 1);", _SPLIT),
    Mutant("stream-flag-by-a-plain-store", "fence", _SPLIT_K, "ptx::store_release(counters + place, 1);",
           "counters[place] = 1;", _STREAM),
    Mutant("stream-flag-by-a-plain-load", "fence", _SPLIT_K, "    ptx::wait_for(counters + place, 1);\n",
           "    while (*const_cast<volatile int*>(counters + place) != 1) __nanosleep(20);\n", _STREAM),
    Mutant("last-block-unfenced", "fence", _GRID,
           "  if (!__syncthreads_or(last)) return false;\n  if (threadIdx.x == 0) *counter = 0;\n  __threadfence();\n",
           "  if (!__syncthreads_or(last)) return false;\n  if (threadIdx.x == 0) *counter = 0;\n", _SUM),
    Mutant("one-pass-zeros-unfenced", "fence", _ONE_PASS,
           "      ptx::fence_proxy_async();\n      stage_written(pipeline_given, PipelineState<2>(), lane);\n",
           "      stage_written(pipeline_given, PipelineState<2>(), lane);\n", _WIDE),
    Mutant("one-pass-arrives-relaxed", "fence", _STEPS, "ptx::atomic_add_release(arrivals, waits",
           "atomicAdd(arrivals, waits", _SHARED),
    Mutant("one-pass-last-unfenced", "fence", _STEPS,
           "    if (how == LEAVES) return;\n    __threadfence();\n", "    if (how == LEAVES) return;\n", _SHARED),
    Mutant("wgmma-barriers-unfenced", "fence", _WGMMA, "    ptx::mbarrier_init_fence();\n", "", _CLUSTER),
    Mutant("linear-wgmma-first-state-unfenced", "fence", _LINEAR,
           "    store_state<{{ ctype }}, TileS>(rounded, rest, sum_of_all, warp, lane, round);\n    ptx::fence_proxy_async();\n",
           "    store_state<{{ ctype }}, TileS>(rounded, rest, sum_of_all, warp, lane, round);\n", _AHEAD),
    Mutant("first-block-by-a-plain-load", "fence", _GRID, "while (ptx::load_acquire(counter) < blocks)",
           "while (*const_cast<volatile int*>(counter) < blocks)", _TWO_PASS),
    # Barriers of a block, a warpgroup, a grid.
    Mutant("first-block-goes-ahead", "barrier", _GRID, "    *counter = 0;\n  }\n  __syncthreads();\n  return true;",
           "    *counter = 0;\n  }\n  return true;", _TWO_PASS),
    Mutant("grid-goes-ahead", "barrier", _GRID,
           "    while (ptx::load_acquire(counter) < phase * static_cast<int>(gridDim.x)) "
           "__nanosleep(20);\n  }\n  __syncthreads();\n",
           "    while (ptx::load_acquire(counter) < phase * static_cast<int>(gridDim.x)) __nanosleep(20);\n  }\n",
           _INDEX_ADD),
    Mutant("columns-taken-early", "barrier", _COLUMNS, "      __syncthreads();\n      if (group < half) {",
           "      if (group < half) {", _COLUMN_SUM),
    Mutant("reduce-neighbours-no-barrier", "barrier", _COMMON,
           "state.combine(states[threadIdx.x + step]);\n      states[threadIdx.x] = state;\n    }\n    __syncthreads();",
           "state.combine(states[threadIdx.x + step]);\n      states[threadIdx.x] = state;\n    }", _INTERLEAVED),
    Mutant("mma-one-stage-multiplies-early", "barrier", _GEMM,
           "      ptx::cp_async_wait<0>();\n      __syncthreads();\n      multiply(0);",
           "      ptx::cp_async_wait<0>();\n      multiply(0);", _ONE_STAGE),
    Mutant("mma-registers-multiply-early", "barrier", _GEMM, "      __syncthreads();\n      load(k_tile + 1);\n",
           "      load(k_tile + 1);\n", _REGISTERS),
    Mutant("mma-registers-last-early", "barrier", _GEMM, "    __syncthreads();\n    if (k_first < k_last) multiply(",
           "    if (k_first < k_last) multiply(", _REGISTERS),
    Mutant("gemv-stage-read-early", "barrier", _GEMV,
           "      fill(Bool<false>());\n    __syncthreads();\n", "      fill(Bool<false>());\n", _STAGED),
    Mutant("gemv-gathered-read-early", "barrier", _GEMV, "  __syncthreads();\n  constexpr int RESULTS",
           "  constexpr int RESULTS", on("hgemv", "4096x4096", "Gemv", warps=4)),
    Mutant("wgmma-shared-read-early", "barrier", _STORE,
           "        warpgroup_sync<Consumers>(consumer);\n#pragma unroll 4\n", "#pragma unroll 4\n", _SHARED_STORE),
    Mutant("packed-arrives-early", "barrier", _TILE,
           "  __syncthreads();\n  if (threadIdx.x == 0) {\n    ptx::atomic_add_release(counters, 1);",
           "  if (threadIdx.x == 0) {\n    ptx::atomic_add_release(counters, 1);", _COPIED),
    Mutant("gradient-ranges-read-early", "barrier", _STEPS, "  __syncthreads();\n  const int2 seeing",
           "  const int2 seeing", _RANGES),
    Mutant("one-pass-flag-read-early", "barrier", _STEPS,
           "*flag = ask();\n      ptx::named_barrier_sync<Barrier, THREADS>();\n", "*flag = ask();\n", _SHARED),
    Mutant("nms-kept-move-early", "barrier", _NMS,
           "    __syncthreads();\n#pragma unroll\n    for (int k = 0; k < OWN; ++k)\n      if (target[k] >= 0) {\n"
           "        box[target",
           "#pragma unroll\n    for (int k = 0; k < OWN; ++k)\n      if (target[k] >= 0) {\n        box[target",
           _BOXES),
    # Races with copies and products.
    Mutant("wgmma-last-stage-released-early", "race", _WGMMA,
           "      ptx::wgmma_wait<0>();\n      pipeline.release(last, thread);\n",
           "      pipeline.release(last, thread);\n      ptx::wgmma_wait<0>();\n", _TWO),
    Mutant("wgmma-ends-before-its-stores", "race", _STORE,
           "  __device__ __forceinline__ void drain() const {\n    if (thread == 0) ptx::tma_store_wait<0>();\n",
           "  __device__ __forceinline__ void drain() const {\n", _TWO),
    Mutant("attention-last-part-released-early", "race", _WIDE_PARTS,
           "  ptx::wgmma_wait<0>();\n  pipeline.release(reading, thread);\n",
           "  pipeline.release(reading, thread);\n  ptx::wgmma_wait<0>();\n", _WEIGHTS),
    Mutant("one-pass-stage-of-one-lane", "race", _STEPS,
           "  __syncwarp();\n  if (lane == 0) ptx::mbarrier_arrive(pipeline.full",
           "  if (lane == 0) ptx::mbarrier_arrive(pipeline.full", _WIDE),
    Mutant("packed-transposed-over", "race", _TILE, "transposed[lane * 33 + i];\n      __syncwarp();\n",
           "transposed[lane * 33 + i];\n", _COPIED_ACROSS),
    Mutant("linear-wgmma-values-scaled-early", "race", _LINEAR,
           "      if (thread == 0) ptx::tma_store_wait<0>();\n      warpgroup_sync<CONSUMERS>(consumer);\n",
           "      if (thread == 0) ptx::tma_store_wait<0>();\n", _HOPPER),
    Mutant("attention-does-not-wait-for-the-kernel-before", "overlap", _ATTENTION, "  Launch::wait();\n", "",
           _LATE_START),
    Mutant("one-pass-does-not-wait-for-the-kernel-before", "overlap", _ONE_PASS, "  Launch::wait();\n", "", _SHARED),
    Mutant("linear-does-not-wait-for-the-kernel-before", "overlap", _LINEAR, "  Launch::wait();\n", "", _AHEAD),
    # Phases.
    Mutant("row-ring-phase-of-the-row-ahead", "phase", _RING, "(i - AHEAD) / 2 % 2);", "i / 2 % 2);", _LONG),
    Mutant("wgmma-turns-skip-whole-tiles", "phase", _WGMMA, "return state.advance(tile.k_last - tile.k_first);",
           "return state.advance(scheduler.grid.k_tiles);", _GROUPS_BY_TURNS),
    Mutant("attention-queries-of-the-tile-before", "phase", _ATTENTION,
           "        state_q.advance();\n      }\n      softmax.finish();", "      }\n      softmax.finish();", _PAIRS),
    Mutant("one-pass-given-back-is-the-other", "phase", _ONE_PASS, '{{ "step % 2" if shared else "(step + 1) % 2" }}',
           "step % 2", _WIDE),
    # Workspaces.
    Mutant("workers-second-counter-stays", "workspace", _SPLIT_K, "      arrived[1] = 0;\n", "", _SPLIT),
    Mutant("packed-second-counter-stays", "workspace", _TILE, "      counters[1] = 0;\n", "", _COPIED),
    Mutant("nms-barrier-that-is-left", "workspace", _NMS,
           "- 1) {\n      grid_barriers[(phase + 2) % 3] = 0;", "- 1) {\n      grid_barriers[phase % 3] = 0;", _BOXES),
    Mutant("rows-tallies-stay", "workspace", _ROWS, "threadIdx.x < 2) tallies[threadIdx.x] = 0;",
           "threadIdx.x < 1) tallies[threadIdx.x] = 0;", _EMBEDDING),
    Mutant("total-counter-stays", "workspace", _REDUCE, "    counters[{{ counter }}] = 0;\n", "", _LEAST),
]  # fmt: skip
