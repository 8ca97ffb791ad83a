"""Mutants of gemm_wgmma: rings of TMA, barriers of warpgroups, parts of the work, stores."""

from __future__ import annotations

from mutant import Mutant, on

_WGMMA = "templates/gemm_wgmma.cu.j2"
_KERNEL = "kgen/ops/gemm/wgmma_kernel.py"
_PIPELINE = "templates/common/pipeline.cuh"
_ROLES = "templates/common/warp_specialized.cuh"
_SCHEDULER = "templates/common/tile_scheduler.cuh"
_LOOP = "templates/common/wgmma_mainloop.cuh"
_STORE = "templates/common/wgmma_epilogue.cuh"
_SPLIT_K = "templates/common/split_k.cuh"
_TILE = "templates/common/wgmma_tile.cuh"

_CUBE = "4096x4096x4096"
_PLAIN = {"cluster": "1x1", "work": "tiles", "splits": 1, "store": "tma"}
_TWO = on("hgemm", _CUBE, "WgmmaGemm", **_PLAIN, consumers=2, pingpong=False, stages=4)
_TURNS = on("hgemm", _CUBE, "WgmmaGemm", **_PLAIN, consumers=2, pingpong=True, stages=4)
_DEEP = on("hgemm", "512x512x512", "WgmmaGemm", **_PLAIN, consumers=2, pingpong=False, stages=8, BM=128, BN=32)
_STREAM = on("hgemm", "2048x2048x4096", "WgmmaGemm", work="stream_k", cluster="1x1", consumers=2, pingpong=False)
_SPLIT = on("hgemm", "128x256x16384", "WgmmaGemm", work="split_k", splits=4, cluster="1x1", consumers=2, BM=128, BN=128)
_CLUSTER = on("hgemm", _CUBE, "WgmmaGemm", cluster="2x1", work="tiles", consumers=2, pingpong=False)
_SQUARE = on("hgemm", "1000x1000x1000", "WgmmaGemm", cluster="2x2", work="tiles", swap_ab=False)
_GATHER = on("hgemm", "64x64x4096", "WgmmaGemm", work="cluster_k", splits=4, cluster="1x1", consumers=1, BM=64, BN=64)
_GATHER_TWO = on(
    "hgemm", "128x64x4096", "WgmmaGemm", work="cluster_k", splits=2, cluster="1x1", consumers=2, BM=128, BN=64
)
_SCALED = on("fp8gemm_blockwise", "1024x1024x1024", "WgmmaGemm", consumers=2)
_COPIED = on("hgemm", "1024x1024x1001", "WgmmaGemm", cluster="1x1")
_BIAS = on("linear", _CUBE, "WgmmaGemm", **_PLAIN, swap_ab=False)
_ROWS = on("hgemm", _CUBE, "WgmmaGemm", **_PLAIN, swap_ab=False, consumers=2, pingpong=False)
_READS = on("gemm", _CUBE, "WgmmaGemm", **_PLAIN, swap_ab=False, consumers=2, BM=128, BN=128)
_VECTORS = on("gemm", _CUBE, "WgmmaGemm", **{**_PLAIN, "store": "shared"}, swap_ab=False, consumers=2, BM=128, BN=128)

MUTANTS = [
    # The ring.
    Mutant("wgmma-phase-stays", "phase", _PIPELINE, "    phase ^= stage == 0;\n", "", _TWO),
    Mutant("wgmma-phase-stays-in-a-deep-ring", "phase", _PIPELINE, "    phase ^= stage == 0;\n", "", _DEEP),
    Mutant("wgmma-producer-phase", "phase", _PIPELINE, "state.phase ^ 1);", "state.phase);", _TWO),
    Mutant("wgmma-empty-of-one", "barrier", _KERNEL, '("1" if pingpong else "CONSUMERS")', '"1"', _TWO),
    Mutant("wgmma-releases-what-it-reads", "race", _LOOP, "if (k > k_first) pipeline.release(reading, thread);",
           "if (k > k_first) pipeline.release(state.stage, thread);", _TWO),
    Mutant("wgmma-releases-unwaited", "race", _LOOP, "    ptx::wgmma_wait<1>();\n", "", _TWO),
    Mutant("wgmma-reads-sums-early", "race", _WGMMA, "      ptx::wgmma_wait<0>();\n", "      ptx::wgmma_wait<1>();\n", _TWO),
    Mutant("wgmma-no-fence", "fence", _LOOP, "  ptx::wgmma_fence();\n", "", _TWO),
    Mutant("wgmma-expects-a-alone", "barrier", _WGMMA, "TileA::BYTES + TileB::BYTES);", "TileA::BYTES);", _TWO),
    Mutant("wgmma-forgets-tiles-before", "sum", _LOOP, "state.stage * TileB::BYTES, k > k_first, mma);",
           "state.stage * TileB::BYTES, false, mma);", _TWO),
    # Two warpgroups by turns.
    Mutant("wgmma-turns-phase-of-long-parts", "phase", _PIPELINE, "phase ^= stage / Stages % 2;",
           "phase ^= stage >= Stages;", _TURNS),
    Mutant("wgmma-turns-parity-stays", "phase", _ROLES, "    phase ^= 1;\n", "", _TURNS),
    Mutant("wgmma-turns-unwaited", "race", _ROLES, "    ptx::mbarrier_wait(barriers + consumer * 8, phase);\n", "",
           _TURNS),
    # Stores.
    Mutant("wgmma-stage-overwritten", "race", _STORE, "ptx::tma_store_wait<Stages - 1>();",
           "ptx::tma_store_wait<Stages>();", _TWO),
    Mutant("wgmma-store-no-proxy-fence", "fence", _STORE, "      ptx::fence_proxy_async();\n", "", _TWO),
    Mutant("wgmma-store-no-sync", "barrier", _STORE,
           "      ptx::fence_proxy_async();\n      warpgroup_sync<Consumers>(consumer);\n",
           "      ptx::fence_proxy_async();\n", _TWO),
    Mutant("wgmma-stage-filled-early", "barrier", _STORE,
           "ptx::tma_store_wait<Stages - 1>();\n      warpgroup_sync<Consumers>(consumer);",
           "ptx::tma_store_wait<Stages - 1>();", _TWO),
    Mutant("wgmma-reads-the-chunk-before", "index", _STORE, "operands[chunk % AHEAD][r] = read(Int<2>(), row(chunk, r)",
           "operands[chunk % AHEAD][r] = read(Int<2>(), row(chunk - 1, r)", _READS),
    Mutant("wgmma-reads-too-far-ahead", "phase", _STORE, "read_chunk(chunk + AHEAD);", "read_chunk(chunk + AHEAD + 1);", _READS),
    Mutant("wgmma-vectors-of-the-stage-before", "phase", _STORE, "finish(values, operands[step % 2][i]",
           "finish(values, operands[(step + 1) % 2][i]", _VECTORS),
    Mutant("wgmma-vectors-swapped", "index", _STORE, "values[t + 1] = four.y;", "values[t + 1] = four.z;", _VECTORS),
    Mutant("wgmma-vector-rows", "index", _STORE, "return (i * 128 + thread) * Together / Width;",
           "return thread * Together / Width;", _VECTORS),
    Mutant("wgmma-vectors-read-early", "race", _STORE,
           "      warpgroup_sync<Consumers>(consumer);\n#pragma unroll\n      for (int i = 0; i < EACH; ++i) {",
           "#pragma unroll\n      for (int i = 0; i < EACH; ++i) {", _VECTORS),
    Mutant("wgmma-vectors-written-early", "race", _STORE,
           "read_stage(step + 1);\n      warpgroup_sync<Consumers>(consumer);\n", "read_stage(step + 1);\n", _VECTORS),
    Mutant("wgmma-named-barriers-clash", "barrier", _ROLES,
           "  } else if (consumer == First - 1) {\n    ptx::named_barrier_sync<First, 128>();",
           "  } else if (consumer == First - 1) {\n    ptx::named_barrier_sync<Consumers, 128>();", _TWO),
    Mutant("wgmma-store-swizzle", "index", _STORE, "(unit ^ row / (8 / UNITS) % UNITS)", "(unit ^ row / (8 / UNITS) % 4)", _ROWS),
    Mutant("wgmma-transposed-swizzle", "index", _STORE, "(unit ^ row % 8) * 16, packed);",
           "(unit ^ row / 2 % 8) * 16, packed);",
           on("hgemm", _CUBE, "WgmmaGemm", swap_ab=True, store="tma", cluster="1x1", work="tiles")),
    Mutant("wgmma-shared-no-sync", "barrier", _STORE,
           "      for (int s = 0; s < Columns / Width; ++s) {\n        warpgroup_sync<Consumers>(consumer);\n",
           "      for (int s = 0; s < Columns / Width; ++s) {\n",
           on("hgemm", "1000x1001x1024", "WgmmaGemm", store="shared")),
    Mutant("wgmma-bias-beyond", "tail", "templates/macros/gemm_epilogue.cuh.j2",
           'x.kind != "value" and "n < "', 'x.kind != "value" and "n <= "', _BIAS),
    # Parts of the work.
    Mutant("stream-adds-nothing", "sum", _SPLIT_K, "sums[i] += __ldcg(mine", "sums[i] += 0 * __ldcg(mine",
           _STREAM),
    Mutant("stream-one-part-too-few", "sum", _SCHEDULER, "tile.end = (index + 1) * grid.k_tiles;",
           "tile.end = index * grid.k_tiles + tile.k_last;", _STREAM),
    Mutant("stream-flag-before-sums", "workspace", _SPLIT_K,
           "    warpgroup_sync<Consumers>(consumer);\n    if (thread == 0) ptx::store_release",
           "    if (thread == 0) ptx::store_release", _STREAM),
    Mutant("stream-flag-stays", "workspace", _SPLIT_K,
           "    warpgroup_sync<Consumers>(consumer);\n    if (thread == 0) counters[place] = 0;\n", "", _STREAM),
    Mutant("stream-flag-of-one-consumer", "index", _SPLIT_K, "ptx::store_release(counters + place, 1);",
           "ptx::store_release(counters + place - consumer, 1);", _STREAM),
    Mutant("workers-do-not-wait", "workspace", _SPLIT_K, "    ptx::wait_for(arrived, Splits);\n", "", _SPLIT),
    Mutant("workers-arrive-early", "workspace", _SPLIT_K,
           "    sync();\n    if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);",
           "    if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);", _SPLIT),
    Mutant("workers-add-one-less", "sum", _SPLIT_K, "s < Splits; s += LANES)", "s < Splits - 1; s += LANES)", _SPLIT),
    Mutant("workers-counter-stays", "workspace", _SPLIT_K, "      arrived[0] = 0;\n", "", _SPLIT),
    Mutant("wgmma-steps-in-int", "32-bit", _SCHEDULER,
           "static_cast<int>(static_cast<long long>(grid.tiles()) * grid.k_tiles * worker / grid.workers)",
           "grid.tiles() * grid.k_tiles * worker / grid.workers",
           _STREAM, unseen="it takes 2^31 / 132 steps of a tile along K: 2^45 products, hours of the emulator"),
    Mutant("gathered-unwaited", "barrier", _SPLIT_K, "    Cluster::sync();\n", "", _GATHER),
    Mutant("gathered-by-some", "barrier", _WGMMA, '{{ "Cluster::sync();  // the consumers\' sums are there"', '{{ ""', _GATHER,
           unseen="right by the PTX model: the producer then comes when it leaves, and who has left is not waited for"),
    Mutant("gathered-over-stages", "race", _SPLIT_K, "    ptx::named_barrier_sync<Consumers + 1, THREADS>();  // nobody",
           "    // nobody", _GATHER_TWO),
    Mutant("gathered-of-itself", "sum", _SPLIT_K, "(ptx::cluster_map(own + chunk * (128 * 16), s));",
           "(ptx::cluster_map(own + chunk * (128 * 16), Cluster::rank()));", _GATHER),
    Mutant("gathered-by-the-first", "sum", _SPLIT_K, "chunk < CHUNKS; chunk += Cluster::SIZE", "chunk < CHUNKS; chunk += CHUNKS",
           _GATHER),
    Mutant("gathered-and-left", "barrier", _ROLES, "void leave() {\n    arrive();\n    wait();\n  }", "void leave() {}", _GATHER),
    # Clusters.
    Mutant("cluster-leaves-early", "barrier", _PIPELINE, "      this->acquire(state);\n      state.advance();\n",
           "      state.advance();\n", _CLUSTER),
    Mutant("cluster-starts-early", "barrier", _ROLES, "void wait() { ptx::cluster_wait(); }", "void wait() { __syncthreads(); }",
           _CLUSTER),
    Mutant("cluster-shares-a-with-its-column", "barrier", _ROLES, "(EVERY << rank % Rows)", "(EVERY << rank / Rows)", _SQUARE),
    Mutant("cluster-shares-b-with-its-row", "barrier", _ROLES, "((1 << Rows) - 1) << rank / Rows * Rows",
           "((1 << Rows) - 1) << rank % Rows * Rows", _SQUARE),
    Mutant("cluster-share-of-another", "index", _ROLES, "return {rank / Rows, static_cast", "return {rank % Rows, static_cast",
           _SQUARE),
    Mutant("cluster-empty-of-own", "barrier", _WGMMA, "{{ policies.releases }} * Cluster::M * Cluster::N);",
           "{{ policies.releases }});", _CLUSTER),
    # Scales, copies, the kernel before.
    Mutant("scale-of-the-first-row", "scale", _TILE, "rows[(first + Rows::row(warp, lane, 1)) / ShareM]",
           "rows[(first + Rows::row(warp, lane, 0)) / ShareM]", _SCALED),
    Mutant("scale-of-the-even-column", "scale", _TILE, "(j / 4 * 8 + pair + j % 2) / ShareN;",
           "(j / 4 * 8 + pair) / ShareN;", on("fp8gemm_vectorwise", "1024x1024x1024", "WgmmaGemm")),
    Mutant("scales-unwaited", "race", _WGMMA, "ptx::mbarrier_arrive_copies(pipeline.full",
           "ptx::mbarrier_arrive(pipeline.full", _SCALED),
    Mutant("packed-grid-barrier-open", "workspace", _TILE, "    ptx::wait_for(counters, gridDim.x);\n", "", _COPIED),
    Mutant("copied-no-proxy-fence", "overlap", _TILE, "    ptx::fence_proxy_async_global();\n", "", _COPIED,
           unseen="right by the PTX model: the writers' proxy fence before their release is on the way to every reader"),
    Mutant("wgmma-does-not-wait-for-the-kernel-before", "overlap", _ROLES, "ptx::griddepcontrol_wait();", "",
           on("hgemm", _CUBE, "WgmmaGemm", pdl=True, cluster="1x1")),
    Mutant("wgmma-leading-of-atoms", "stride", _TILE, "LEADING = KMajor ? 1 : ATOM_BYTES / 16;", "LEADING = 1;",
           on("hgemm", _CUBE, "WgmmaGemm", **_PLAIN, swap_ab=False, BN=128)),
    Mutant("grouped-begins-at-the-tile", "index", _SCHEDULER, "(GroupsAlongM ? tile.m0 : tile.n0) += begin;",
           "(GroupsAlongM ? tile.m0 : tile.n0) += begin / CUT * CUT;",
           on("grouped_hgemm", "4096x1024x512x8", "WgmmaGemm")),
    Mutant("grouped-counts-from-its-own", "index", _SCHEDULER, "grid.place(index - first, tiles_m, tiles_n);",
           "grid.place(index, tiles_m, tiles_n);", on("grouped_hgemm", "4096x1024x512x8", "WgmmaGemm")),
    Mutant("wgmma-copied-rows-wrap-late", "stride", _TILE,
           "row += down + (vector >= across ? 1 : 0);\n        vector -= vector >= across ? across : 0;",
           "row += down + (vector > across ? 1 : 0);\n        vector -= vector > across ? across : 0;", _COPIED),
    Mutant("wgmma-copied-before-the-row", "tail", "templates/common/vector.cuh", "return start >= 0 && start + ALL",
           "return start + ALL", _COPIED),
    Mutant("wgmma-copied-one-beyond", "tail", "templates/common/vector.cuh",
           "static_cast<int>(sizeof(T)) <= length;", "static_cast<int>(sizeof(T)) <= length + 1;", _COPIED),
    Mutant("scaled-stage-released-by-one-lane", "barrier", _LOOP, "    finish(state.stage, sums);\n    __syncwarp();\n",
           "    finish(state.stage, sums);\n", _SCALED),
    Mutant("wgmma-turns-both-begin", "phase", _ROLES, "phase(consumer ^ 1) {}", "phase(1) {}", _TURNS),
    Mutant("stream-waits-for-the-next-tile", "phase", _SPLIT_K, "first_step(w) < tile.end; ++w)",
           "first_step(w) <= tile.end; ++w)", _STREAM),
    Mutant("workers-leave-early", "workspace", _SPLIT_K,
           "    sync();\n    if (consumer == 0 && thread == 0 && ptx::atomic_add_release(arrived + 1, 1)",
           "    if (consumer == 0 && thread == 0 && ptx::atomic_add_release(arrived + 1, 1)", _SPLIT),
]  # fmt: skip
