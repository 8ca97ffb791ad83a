"""Mutants of linear attention: the state from chunk to chunk, decay, weights within a chunk, the ring of chunks."""

from __future__ import annotations

from mutant import Mutant, on

_TEMPLATE = "templates/linear_attention.cu.j2"
_STATE = "templates/common/linear_attention.cuh"

_SHAPE = "...=1x2,N=150,D=32,E=40"
_PLAIN = on("linear_attention_undecayed", _SHAPE, "LinearAttention", BC=32, WV=16, warps=2, stages=2, blocks_per_sm=1)
_DECAY = on("linear_attention_decay", _SHAPE, "LinearAttention", BC=32, WV=16, warps=2, stages=3, blocks_per_sm=1)
_BACK = on(
    "linear_attention_decay_backwards", _SHAPE, "LinearAttention", BC=64, WV=32, warps=1, stages=2, blocks_per_sm=1
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
]  # fmt: skip
