"""Mutants of gemm_wgmma: rings of TMA, barriers of warpgroups, parts of the work, stores."""

from __future__ import annotations

from mutant import Mutant, on

_WGMMA = "templates/gemm_wgmma.cu.j2"
_PARTS = "templates/macros/gemm_wgmma.cuh.j2"
_TILE = "templates/common/wgmma_tile.cuh"

_CUBE = "4096x4096x4096"
_PLAIN = {"cluster": "1x1", "work": "tiles", "splits": 1, "store": "tma"}
_TWO = on("hgemm", _CUBE, "WgmmaGemm", **_PLAIN, consumers=2, pingpong=False, stages=4)
_TURNS = on("hgemm", _CUBE, "WgmmaGemm", **_PLAIN, consumers=2, pingpong=True, stages=4)
_DEEP = on("hgemm", "512x512x512", "WgmmaGemm", **_PLAIN, consumers=2, pingpong=False, stages=8, BM=128, BN=32)
_STREAM = on("hgemm", "2048x2048x4096", "WgmmaGemm", work="stream", cluster="1x1", consumers=2, pingpong=False)
_SPLIT = on("hgemm", "128x256x16384", "WgmmaGemm", work="split", splits=4, cluster="1x1", consumers=2, BM=128, BN=128)
_CLUSTER = on("hgemm", _CUBE, "WgmmaGemm", cluster="2x1", work="tiles", consumers=2, pingpong=False)
_SCALED = on("fp8gemm_blockwise", "1024x1024x1024", "WgmmaGemm", consumers=2)
_COPIED = on("hgemm", "1024x1024x1001", "WgmmaGemm", cluster="1x1")
_BIAS = on("linear", _CUBE, "WgmmaGemm", **_PLAIN)

MUTANTS = [
    # The ring.
    Mutant("wgmma-producer-phase", "phase", _WGMMA, "          phase ^= stage == 0;\n        }\n      });",
           "        }\n      });", _TWO),
    Mutant("wgmma-consumer-phase", "phase", _WGMMA, "        phase ^= stage == 0;\n      }\n//% if config.pingpong",
           "      }\n//% if config.pingpong", _TWO),
    Mutant("wgmma-deep-consumer-phase", "phase", _WGMMA,
           "        phase ^= stage == 0;\n      }\n//% if config.pingpong", "      }\n//% if config.pingpong", _DEEP),
    Mutant("wgmma-empty-of-one", "barrier", _WGMMA, '"1" if config.pingpong else "CONSUMERS"',
           '"1" if True else "CONSUMERS"', _TWO),
    Mutant("wgmma-releases-what-it-reads", "race", _WGMMA, "if (k > p.k_first) release(reading);",
           "if (k > p.k_first) release(stage);", _TWO),
    Mutant("wgmma-releases-unwaited", "race", _WGMMA, "        ptx::wgmma_wait<1>();\n", "", _TWO),
    Mutant("wgmma-reads-sums-early", "race", _WGMMA, "      ptx::wgmma_wait<0>();\n      release(reading);",
           "      ptx::wgmma_wait<1>();\n      release(reading);", _TWO),
    Mutant("wgmma-no-fence", "fence", _WGMMA, "        ptx::wgmma_fence();\n", "", _TWO),
    Mutant("wgmma-expects-a-alone", "barrier", _WGMMA, "TileA::BYTES + TileB::BYTES);", "TileA::BYTES);", _TWO),
    Mutant("wgmma-forgets-tiles-before", "sum", _WGMMA, "k > p.k_first || ", "", _TWO),
    # Two warpgroups by turns.
    Mutant("wgmma-turns-phase-of-long-parts", "phase", _WGMMA, "phase ^= stage / STAGES % 2;",
           "phase ^= stage >= STAGES;", _TURNS),
    Mutant("wgmma-turns-parity-stays", "phase", _WGMMA, "      other_done ^= 1;\n", "", _TURNS),
    Mutant("wgmma-turns-unwaited", "race", _WGMMA, "      ptx::mbarrier_wait(turns + consumer * 8, other_done);\n",
           "", _TURNS),
    # Stores.
    Mutant("wgmma-slab-overwritten", "race", _PARTS, "ptx::tma_store_wait<SLABS - 1>();",
           "ptx::tma_store_wait<SLABS>();", _TWO),
    Mutant("wgmma-store-no-proxy-fence", "fence", _PARTS, "          ptx::fence_proxy_async();\n", "", _TWO),
    Mutant("wgmma-store-no-meeting", "barrier", _PARTS, "          ptx::fence_proxy_async();\n          meet();\n",
           "          ptx::fence_proxy_async();\n", _TWO),
    Mutant("wgmma-slab-filled-early", "barrier", _PARTS, "ptx::tma_store_wait<SLABS - 1>();\n          meet();",
           "ptx::tma_store_wait<SLABS - 1>();", _TWO),
    Mutant("wgmma-meetings-clash", "barrier", _WGMMA, "ptx::named_barrier_sync<{{ c + 1 }}, 128>();",
           "ptx::named_barrier_sync<1, 128>();", _TWO),
    Mutant("wgmma-store-swizzle", "index", "kgen/ops/gemm/wgmma_kernel.py", '64: "row % 8"', '64: "row % 4"', _TWO),
    Mutant("wgmma-turned-swizzle", "index", _PARTS, "(unit ^ row % 8) * 16, packed);",
           "(unit ^ row / 2 % 8) * 16, packed);",
           on("hgemm", _CUBE, "WgmmaGemm", swap=True, store="tma", cluster="1x1", work="tiles")),
    Mutant("wgmma-shared-no-meeting", "barrier", _PARTS,
           "        for (int s = 0; s < BN / SLAB; ++s) {\n          meet();\n",
           "        for (int s = 0; s < BN / SLAB; ++s) {\n",
           on("hgemm", "1000x1001x1024", "WgmmaGemm", store="shared")),
    Mutant("wgmma-bias-beyond", "tail", "templates/macros/gemm.cuh.j2", "    n = min(n, {{ g.end_n }} - COUNT);",
           "    n = min(n, {{ g.end_n }} - 1);", _BIAS),
    # Parts of the work.
    Mutant("stream-adds-nothing", "sum", _PARTS, "sums[i][j] += __ldcg(other", "sums[i][j] += 0 * __ldcg(other",
           _STREAM),
    Mutant("stream-one-part-too-few", "sum", _WGMMA, "p.end = (tile + 1) * k_tiles;",
           "p.end = tile * k_tiles + p.k_last;", _STREAM),
    Mutant("stream-flag-before-sums", "workspace", _PARTS,
           "        meet();\n        if (thread == 0) ptx::store_release",
           "        if (thread == 0) ptx::store_release", _STREAM),
    Mutant("stream-flag-stays", "workspace", _PARTS, "        meet();\n        if (thread == 0) *flag = 0;\n", "",
           _STREAM),
    Mutant("stream-flag-of-one-consumer", "index", _PARTS, "counters + blockIdx.x * CONSUMERS + consumer, 1);",
           "counters + blockIdx.x * CONSUMERS, 1);", _STREAM),
    Mutant("workers-do-not-wait", "workspace", _PARTS, "      ptx::wait_for(arrived, SPLITS);\n", "", _SPLIT),
    Mutant("workers-arrives-early", "workspace", _PARTS,
           "      meet_all();\n      if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);",
           "      if (consumer == 0 && thread == 0) ptx::atomic_add_release(arrived, 1);", _SPLIT),
    Mutant("workers-adds-one-less", "sum", _PARTS, "s < SPLITS; s += LANES)", "s < SPLITS - 1; s += LANES)", _SPLIT),
    Mutant("workers-counter-stays", "workspace", _PARTS, "        arrived[0] = 0;\n", "", _SPLIT),
    Mutant("wgmma-steps-in-int", "32-bit", _WGMMA,
           "static_cast<int>(static_cast<long long>(tiles) * k_tiles * w / workers)", "tiles * k_tiles * w / workers",
           _STREAM, unseen="it takes 2^31 / 132 steps of a tile along K: 2^45 products, hours of the emulator"),
    # Clusters.
    Mutant("cluster-leaves-early", "barrier", _WGMMA,
           "  // No block may leave while another still sends tiles or arrivals to it.\n  ptx::cluster_sync();\n", "",
           _CLUSTER),
    Mutant("cluster-starts-early", "barrier", _WGMMA,
           "//% if cluster > 1\n  ptx::cluster_sync();\n//% else\n  __syncthreads();",
           "//% if cluster > 1\n  __syncthreads();\n//% else\n  __syncthreads();", _CLUSTER),
    Mutant("cluster-empty-of-own", "barrier", _WGMMA, '{{ " * CLUSTER_M * CLUSTER_N" if cluster > 1 }});\n    }',
           ");\n    }", _CLUSTER),
    # Scales, copies, the kernel before.
    Mutant("scale-of-the-first-row", "scale", _TILE, "{rows[first / ShareM], rows[second / ShareM]}",
           "{rows[first / ShareM], rows[first / ShareM]}", _SCALED),
    Mutant("scale-of-the-even-column", "scale", _TILE, "(j / 4 * 8 + pair + j % 2) / ShareN;",
           "(j / 4 * 8 + pair) / ShareN;", on("fp8gemm_vectorwise", "1024x1024x1024", "WgmmaGemm")),
    Mutant("scales-unwaited", "race", _WGMMA, "          ptx::mbarrier_arrive_copies(full + stage * 8);",
           "          ptx::mbarrier_arrive(full + stage * 8);", _SCALED),
    Mutant("copied-gate-open", "workspace", _WGMMA, "    ptx::wait_for(gate, gridDim.x);\n", "", _COPIED),
    Mutant("copied-no-proxy-fence", "overlap", _WGMMA, "    ptx::fence_proxy_async_global();\n", "", _COPIED,
           unseen="right by the PTX model: the writers' proxy fence before their release is on the way to every reader"),
    Mutant("wgmma-does-not-wait-for-the-kernel-before", "overlap", _WGMMA, "  ptx::griddepcontrol_wait();", "  ",
           on("hgemm", _CUBE, "WgmmaGemm", overlap=True, cluster="1x1")),
    Mutant("wgmma-leading-of-slabs", "stride", _TILE, "LEADING = KMajor ? 1 : SLAB / 16;", "LEADING = 1;", _TWO),
    Mutant("grouped-begins-at-the-tile", "index", _PARTS, '{{ "begin + " if grouped == "m" }}',
           '{{ "begin / BM * BM + " if grouped == "m" }}', on("grouped_hgemm", "4096x1024x512x8", "WgmmaGemm")),
    Mutant("grouped-counts-from-its-own", "index", _PARTS, "tile - first_tile, tiles_m, tiles_n);",
           "tile, tiles_m, tiles_n);", on("grouped_hgemm", "4096x1024x512x8", "WgmmaGemm")),
]  # fmt: skip
