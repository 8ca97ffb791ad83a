"""Mutants of linear attention: the state from chunk to chunk, decay, weights within a chunk, the ring of chunks."""

from __future__ import annotations

from mutant import Mutant, on

_TEMPLATE = "templates/linear_attention.cu.j2"
_WGMMA = "templates/linear_attention_wgmma.cu.j2"
_STATE = "templates/common/linear_attention.cuh"

_SHAPE = "...=1x2,N=150,D=32,E=40"
_PLAIN = on("linear_attention_undecayed", _SHAPE, "LinearAttention", BC=32, WV=16, warps=2, stages=2, blocks_per_sm=1)
_DECAY = on("linear_attention_decay", _SHAPE, "LinearAttention", BC=32, WV=16, warps=2, stages=3, blocks_per_sm=1)
_BACK = on(
    "linear_attention_decay_backwards", _SHAPE, "LinearAttention", BC=64, WV=32, warps=1, stages=2, blocks_per_sm=1
)

_HOPPER = on(
    "linear_attention_decay",
    "...=1x1,N=300,D=64,E=72",
    "LinearAttentionWgmma",
    WV=64,
    consumers=2,
    stages=2,
    overlap=False,
    segments=1,
    blocks_per_sm=1,
)
_AHEAD = on(
    "linear_attention_undecayed",
    "...=1x2,N=300,D=128,E=64",
    "LinearAttentionWgmma",
    WV=64,
    consumers=1,
    stages=2,
    overlap=True,
    segments=1,
    blocks_per_sm=1,
)
_SHARED = on(
    "linear_attention_decay_backwards",
    "...=1x1,N=300,D=64,E=64",
    "LinearAttentionWgmma",
    WV=64,
    consumers=1,
    stages=2,
    segments=2,
    blocks_per_sm=1,
)
_SEGMENTS = on(
    "linear_attention_decay_backwards",
    "...=1x1,N=600,D=64,E=64",
    "LinearAttentionWgmma",
    WV=64,
    consumers=1,
    stages=2,
    segments=4,
    blocks_per_sm=1,
)

MUTANTS = [
    # The state.
    Mutant("linear-state-does-not-fall", "scale", _TEMPLATE, "state[m][n][c] *= decay.whole;", "state[m][n][c] *= 1.0f;", _DECAY),
    Mutant("linear-state-unscaled", "scale", _TEMPLATE, "const float factors[2] = {scale, scale};",
           "const float factors[2] = {1.0f, 1.0f};", _PLAIN),
    Mutant("linear-rows-changed-over", "index", _STATE, "factors[r / 2 * 8 + first + e]",
           "factors[r % 2 * 8 + first + e]", _DECAY),
    # Decay.
    Mutant("linear-decay-of-32-rows", "sum", _STATE, "sums[i] = total + sum;", "sums[i] = sum;", _BACK),
    Mutant("linear-decay-to-base-e", "scale", _STATE, "read(first + row) * 1.44269504f", "read(first + row)", _DECAY),
    Mutant("linear-decay-beyond-the-end", "tail", _STATE, "row < Rows && first + row < end", "row < Rows", _BACK),
    Mutant("linear-factors-changed-over", "index", _STATE, "decay.in[row] = Backwards ? after : up_to;",
           "decay.in[row] = Backwards ? up_to : after;", _BACK),
    Mutant("linear-decay-of-one-buffer", "race", _TEMPLATE, "scan.store(decays[(chunk + 1) % 2]);",
           "scan.store(decays[chunk % 2]);", _DECAY),
    # Weights.
    Mutant("linear-row-sees-not-itself", "index", _TEMPLATE, "row <= column + e : row >= column + e",
           "row < column + e : row > column + e", _PLAIN),
    Mutant("linear-last-weights-left-out", "tail", _TEMPLATE, "number < STEPS * (STEPS + 1) / 2;",
           "number < STEPS * (STEPS + 1) / 2 - 1;", _PLAIN),
    Mutant("linear-weights-unwaited", "barrier", _TEMPLATE,
           "    __syncthreads();\n#pragma unroll\n    for (int j = 0; j < STEPS; ++j) {\n      unsigned b[WV",
           "#pragma unroll\n    for (int j = 0; j < STEPS; ++j) {\n      unsigned b[WV", _PLAIN),
    # The ring, and places.
    Mutant("linear-copies-unwaited", "race", _TEMPLATE, "ptx::cp_async_wait<STAGES - 2>();",
           "ptx::cp_async_wait<STAGES - 1>();", _DECAY),
    Mutant("linear-copies-too-far-ahead", "race", _TEMPLATE, "    __syncthreads();\n    copy(chunk + STAGES - 1);",
           "    copy(chunk + STAGES - 1);\n    __syncthreads();", _PLAIN),
    Mutant("linear-rows-beyond-the-end", "tail", _TEMPLATE, "if (row >= N) return;", "if (row > N) return;", _PLAIN),
    Mutant("linear-columns-of-the-first-block", "index", _TEMPLATE, "v + steps(first_column, {{ columns[2] }})", "v", _PLAIN),
    # wgmma: the state through shared memory.
    Mutant("linear-wgmma-state-unfenced", "fence", _WGMMA, "warp, lane, round);\n    ptx::fence_proxy_async();",
           "warp, lane, round);", _AHEAD),
    Mutant("linear-wgmma-state-written-early", "barrier", _WGMMA,
           "      warpgroup_sync<CONSUMERS>(consumer);  // all warps have multiplied the state before\n", "", _AHEAD,
           unseen="the emulator carries out a product once, for all warps"),
    Mutant("linear-wgmma-without-the-rest", "precision", _WGMMA,
           "multiply_stage<TileS>(sums, queries, rest, true, mma_state);",
           "multiply_stage<TileS>(sums, queries, rest, false, mma_state);", _AHEAD),
    Mutant("linear-wgmma-state-of-one-warpgroup", "index", _WGMMA, "states + consumer * (2 * TileS::BYTES)", "states", _HOPPER),
    Mutant("linear-wgmma-blocks-of-the-state", "index", _STATE, "Tile::offset(j / 4 * 64, i * 4)", "Tile::offset(j / 4 * 64, 0)",
           _AHEAD),
    # Its products, decay and weights.
    Mutant("linear-wgmma-scores-unwaited", "race", _WGMMA, "ptx::wgmma_wait<3>();", "ptx::wgmma_wait<4>();", _HOPPER),
    Mutant("linear-wgmma-sums-unwaited", "race", _WGMMA, "ptx::wgmma_wait<{{ 1 if config.overlap else 0 }}>();",
           "ptx::wgmma_wait<{{ 2 if config.overlap else 1 }}>();", _AHEAD),
    Mutant("linear-wgmma-values-over-results", "race", _WGMMA, "if (thread == 0) ptx::tma_store_wait<0>();", "", _HOPPER),
    Mutant("linear-wgmma-values-unfenced", "fence", _WGMMA, "thread);\n      ptx::fence_proxy_async();", "thread);", _HOPPER),
    Mutant("linear-wgmma-factors-of-columns", "index", _STATE, "factors[byte / 128 % Tile::DEPTH]",
           "factors[byte / 16 % Tile::DEPTH]", _HOPPER),
    Mutant("linear-wgmma-row-sees-not-itself", "index", _WGMMA, "row <= column : row >= column",
           "row < column : row > column", _AHEAD),
    Mutant("linear-wgmma-next-of-the-last", "phase", _WGMMA, "next.advance(static_cast<int>(chunk + 1 < last_chunk));",
           "next.advance(1);", _AHEAD),
    Mutant("linear-wgmma-released-early", "race", _WGMMA, "pipeline.init({{ 2 if decay else 1 }}, CONSUMERS);",
           "pipeline.init({{ 2 if decay else 1 }}, 1);", _HOPPER),
    # Segments.
    Mutant("linear-segments-of-one-length", "index", _WGMMA, "last_chunk = chunks * (rank + 1) / SEGMENTS;",
           "last_chunk = first_chunk + chunks / SEGMENTS;", _SHARED),
    Mutant("linear-segments-without-fall", "scale", _STATE, "state[i][j + 2] * remains + four.z",
           "state[i][j + 2] + four.z", _SEGMENTS),
    Mutant("linear-segments-fall-by-one-chunk", "scale", _WGMMA, "remains *= decays", "remains = decays", _SEGMENTS),
    Mutant("linear-rest-of-infinity", "special", _STATE,
           "cut[i] = fabsf(cut[i]) < __int_as_float(0x7f800000) ? cut[i] : 0.0f;", "cut[i] = cut[i];", _PLAIN),
    Mutant("linear-segments-do-not-meet", "barrier", _WGMMA, "sum_of_all, rank, thread);\n    Cluster::sync();",
           "sum_of_all, rank, thread);\n    __syncwarp();", _SHARED),
]  # fmt: skip
