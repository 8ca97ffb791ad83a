"""Mutants of attention: the online softmax, blocks of columns, rings of keys and values, the rows' results."""

from __future__ import annotations

from mutant import Mutant, on

_WGMMA = "templates/attention_wgmma.cu.j2"
_MMA = "templates/attention_mma.cu.j2"
_SOFTMAX = "templates/common/attention.cuh"
_PRODUCTS = "templates/common/attention_products.cuh"
_MASKS = "kgen/ops/attention/masks.py"
_TEXT = "kgen/ops/attention/text.py"
_EVALUATION = "kgen/ops/attention/evaluation.py"
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
_WINDOW = on("attention_window_softcap", _SHAPE, "AttentionMma", BR=32, BC=32)

MUTANTS = [
    # The online softmax.
    Mutant("attention-sums-not-shrunk", "sum", _SOFTMAX,
           "sum[r] = sum[r] * shrink[r] + added;", "sum[r] = sum[r] + added;", _FULL),
    Mutant("attention-values-not-shrunk", "sum", _PRODUCTS,
           "      products.wait_for_values();\n      scale_rows(products.sums[0], products.shrink);\n",
           "      products.wait_for_values();\n", _FULL),
    Mutant("attention-maximum-of-a-lane", "sum", _SOFTMAX,
           "      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));\n", "", _FULL),
    Mutant("attention-sum-of-a-lane", "sum", _SOFTMAX, "      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);\n", "", _FULL),
    Mutant("attention-maximum-begins-at-zero", "initial", _SOFTMAX, "      maximum[r] = __int_as_float(0xff800000);\n",
           "      maximum[r] = 0.0f;\n", _CAUSAL),
    Mutant("attention-nothing-minus-nothing", "special", _SOFTMAX,
           "largest == __int_as_float(0xff800000) ? 0.0f : largest * scale", "largest * scale", _CAUSAL),
    Mutant("attention-rows-changed-over", "index", _SOFTMAX,
           "sums[j] *= factors[j / 2 % 2];", "sums[j] *= factors[j % 2];", _FULL),
    # Blocks of columns.
    Mutant("attention-columns-beyond-the-end", "tail", _TEXT, "if (column >= N)", "if (column > N)", _FULL),
    Mutant("attention-last-block-unmasked", "tail", _SOFTMAX, "block < first_full || block >= last_full",
           "block < first_full || block > last_full", _CAUSAL),
    Mutant("attention-bound-of-the-wrong-row", "index", _MASKS,
           '("row_first", "row_last") if rises else ("row_last", "row_first")',
           '("row_last", "row_first") if rises else ("row_first", "row_last")', _WINDOW),
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
    Mutant("attention-tile-no-barrier", "barrier", _MMA, "    __syncthreads();\n", "", _SHARED),
    Mutant("attention-queries-beyond-the-end", "tail", _MMA, "if (row >= M) return;", "if (row > M) return;", _SHARED),
    Mutant("attention-queries-unacquired", "race", _WGMMA, "        pipeline_q.acquire(state_q);\n", "", _PAIRS),
    Mutant("attention-queries-released-at-once", "race", _PRODUCTS,
           "    products.multiply_keys();\n    products.template wait_for_scores<0>();\n",
           "    products.release_queries();\n    products.multiply_keys();\n    products.template wait_for_scores<0>();\n",
           _PAIRS),
    Mutant("attention-middle-tile-left-out", "tail", _SOFTMAX,
           "const int pairs = (tiles + 1) / 2;", "const int pairs = max(tiles / 2, 1);", _PAIRS),
    # Rows and heads.
    Mutant("attention-lse-in-base-2", "scale", _TEXT, "(softmax.scale * {literal(math.log(2), f32)})", "softmax.scale", _CAUSAL),
    Mutant("attention-heads-changed-over", "index", _EVALUATION,
           "tile.batch[{axis}] = at.y % batches{axis};", "tile.batch[{axis}] = at.y / batches{axis};", _CAUSAL),
    Mutant("attention-factor-forgotten", "scale", _ALGEBRA,
           "                return a, b\n", "                return a, None\n", _FULL),
]  # fmt: skip
