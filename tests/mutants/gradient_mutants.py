"""Mutants of attention's gradients: their algebra, weights, rings of columns, sums over heads, stores."""

from __future__ import annotations

from mutant import Mutant, on

_WGMMA = "templates/attention_gradient_wgmma.cu.j2"
_MMA = "templates/attention_gradient_mma.cu.j2"
_ONE_PASS = "templates/attention_gradient_one_pass.cu.j2"
_STEPS = "templates/common/attention_gradient.cuh"
_TEXT = "kgen/ops/attention_gradient/text.py"
_WEIGHTS = "kgen/ops/attention_gradient/weights.py"
_MACROS = "templates/macros/attention_gradient.cuh.j2"

_SHAPE = "...=1x2,G=2,M=150,N=140,D=64,E=64"
_QUERIES = on(
    "attention_causal_lse_train_grad_2", _SHAPE, "AttentionGradientWgmma", BR=64, BC=48, overlap=True, stages=2
)
_LONG = on(
    "attention_full_train_grad_2", "...=1x1,G=1,M=200,N=600,D=64,E=64", "AttentionGradientWgmma",
    BR=128, BC=32, overlap=True, stages=2,
)  # fmt: skip
_KEYS = on(
    "attention_causal_lse_train_grad_3", _SHAPE, "AttentionGradientWgmma", BR=128, BC=32, overlap=False, stages=2
)
_SLICES = on(
    "attention_full_train_grad_3", "...=1x1,G=1,M=70,N=90,D=128,E=128", "AttentionGradientWgmma",
    BR=64, BC=32, overlap=False, stages=2, slices=2,
)  # fmt: skip
_RINGS = on("attention_full_train_grad_3", _SHAPE, "AttentionGradientMma", BR=32, BC=32, stages=3)
_MMA_QUERIES = on("attention_causal_lse_train_grad_2", _SHAPE, "AttentionGradientMma", BR=32, BC=16, stages=2)
_RANGES = on(
    "attention_ranges_lse_train_grad_3", "...=1x1,G=1,M=200,N=200,D=64,E=64", "AttentionGradientMma", BR=32, BC=32
)
_SHARED = on(
    "attention_full_train_grad_unordered_2", "...=1x2,G=2,M=150,N=140,D=128,E=128", "AttentionGradientOnePass",
    BR=128, BC=64, stages=2, pingpong=False,
)  # fmt: skip
_OF_256 = on(
    "attention_full_train_grad_unordered_2", "...=1x1,G=1,M=300,N=150,D=256,E=256", "AttentionGradientOnePass", BR=64
)
_WIDE = on(
    "attention_full_train_grad_unordered_2", "...=1x1,G=1,M=400,N=300,D=128,E=128", "AttentionGradientOnePass",
    BR=128, BC=64, stages=2, pingpong=True,
)  # fmt: skip

MUTANTS = [
    # What is computed.
    Mutant("gradient-columns-beyond-the-end", "tail", _TEXT, 'end = "column >= N" if', 'end = "column > N" if', _KEYS),
    Mutant("gradient-sides-not-changed-over", "index", _TEXT,
           '("column", "row") if made.transposed else ("row", "column")', '("row", "column")', _KEYS),
    Mutant("gradient-mask-of-the-other-side", "index", _TEXT,
           "((column, row) if made.transposed else (row, column))", "(row, column)", _KEYS),
    Mutant("gradient-factor-forgotten", "scale", _MMA, "(found[i] * factor)", "(found[i])", _RINGS),
    Mutant("gradient-divisor-forgotten", "scale", _WEIGHTS,
           '_Product(inverse=apply("reciprocal", node.args[1])).times(', "_Product().times(", _KEYS),
    Mutant("gradient-reciprocal-of-a-denormal", "special", _WEIGHTS,
           "scaled = _finite(scaled)", "pass", _RANGES),
    Mutant("gradient-shift-without-coefficient", "scale", _WEIGHTS, "coefficient * _sum(rows)", "_sum(rows)", _QUERIES),
    Mutant("gradient-mask-forgotten", "index", _MACROS, "          {{ t.masked }}\n", "          {{ t.bare }}\n", _KEYS),
    Mutant("gradient-numbers-of-the-first-step", "index", _MACROS, "numbers + step % STAGES * BC", "numbers", _KEYS),
    Mutant("gradient-numbers-unwaited", "barrier", _WGMMA, "pipeline.init(PRODUCERS,", "pipeline.init(1,", _KEYS),
    Mutant("gradient-numbers-still-read", "race", _WGMMA, "      __syncwarp();  // all lanes have read the stage\n", "", _KEYS),
    # Sums over heads.
    Mutant("gradient-of-one-head", "sum", _TEXT, 'f"each * batches{rank - 1}" if sides.summed', 'f"each" if sides.summed', _KEYS),
    Mutant("gradient-heads-of-a-step", "index", _TEXT, "= step / each;", "= step % each;", _KEYS),
    Mutant("gradient-columns-of-the-first-head", "index", _MMA, "{{ members[loop.index0] }}", "", _RINGS),
    # Rings of columns.
    Mutant("gradient-outer-of-the-next-columns", "index", _WGMMA,
           "columns{{ place }} + behind.stage", "columns{{ place }} + state.stage", _QUERIES),
    Mutant("gradient-columns-released-early", "race", _STEPS,
           "      weigh(step);\n      ptx::wgmma_wait<0>();\n      release();\n",
           "      weigh(step);\n      release();\n      ptx::wgmma_wait<0>();\n", _LONG),
    Mutant("gradient-inner-unwaited", "race", _STEPS,
           "      outer();\n      ptx::wgmma_wait<Outers>();\n", "      outer();\n", _QUERIES),
    Mutant("gradient-one-consumer-releases", "barrier", _WGMMA, "CONSUMERS * 4);", "4);", _KEYS),
    Mutant("gradient-rows-unwaited", "race", _WGMMA, "      pipeline_rows.wait({});\n", "", _KEYS),
    Mutant("gradient-first-slice-twice", "index", _WGMMA,
           " + blockIdx.y * Slice{{ loop.index0 }}::BYTES", "", _SLICES),
    Mutant("gradient-copies-unwaited", "race", _MMA,
           "ptx::cp_async_wait<STAGES - 2>();", "ptx::cp_async_wait<STAGES - 1>();", _RINGS),
    Mutant("gradient-copies-too-far-ahead", "race", _MMA, "copy(step + STAGES - 1);", "copy(step + STAGES);", _MMA_QUERIES),
    Mutant("gradient-tile-no-barrier", "barrier", _MMA, "    __syncthreads();\n", "", _MMA_QUERIES),
    Mutant("gradient-rows-beyond-the-end", "tail", _MMA, "if (row >= M) return;", "if (row > M) return;", _MMA_QUERIES),
    # In one pass.
    Mutant("one-pass-sums-of-the-first-head", "index", _ONE_PASS,
           "return {{ t.head }} * column_blocks + block", "return block", _SHARED),
    Mutant("one-pass-weights-without-proxy-fence", "fence", _ONE_PASS,
           "      ptx::fence_proxy_async();\n      stage_written(pipeline_given, giving, lane);\n",
           "      stage_written(pipeline_given, giving, lane);\n", _WIDE),
    Mutant("one-pass-weights-unwaited", "race", _ONE_PASS,
           "      pipeline_given.wait(taking);\n      multiply_stage<Across>", "      multiply_stage<Across>", _WIDE),
    Mutant("one-pass-weights-overwritten", "race", _ONE_PASS, "      pipeline_given.acquire(giving);\n", "", _WIDE),
    Mutant("one-pass-weights-of-the-next-block", "index", _ONE_PASS,
           "taking = after_steps<2>({{ given_step }})", "taking = after_steps<2>(step + 2)", _WIDE),
    Mutant("one-pass-numbers-unwaited", "race", _ONE_PASS,
           "      pipeline_numbers.wait(after_steps<STAGES>(step));\n", "", _WIDE),
    Mutant("one-pass-numbers-overwritten", "race", _ONE_PASS, "        pipeline_numbers.acquire(state);\n", "", _WIDE),
    Mutant("one-pass-arrivals-of-the-first-head", "index", _STEPS,
           ": arrivals(counters + head),", ": arrivals(counters),", _SHARED),
    Mutant("one-pass-last-before-the-others", "race", _STEPS,
           "      ptx::named_barrier_sync<Barrier, THREADS>();\n      if (thread == 0) *flag",
           "      if (thread == 0) *flag", _SHARED),
    Mutant("one-pass-columns-released-early", "race", _STEPS,
           "      ptx::wgmma_wait<1>();\n      release(step);\n", "      release(step);\n      ptx::wgmma_wait<1>();\n", _WIDE),
    Mutant("one-pass-columns-beyond-the-end", "tail", _ONE_PASS, "if (row >= N ||", "if (row > N ||", _SHARED),
    Mutant("one-pass-added-unwaited", "race", _STEPS,
           "      ptx::wgmma_wait<1>();\n      take_back(", "      take_back(", _WIDE),
    Mutant("one-pass-first-zeros-added", "index", _STEPS, "if (step > 0) add(", "add(", _WIDE),
    Mutant("one-pass-sums-kept", "workspace", _STEPS, "make_float4(0.0f, 0.0f,", "make_float4(1e6f, 0.0f,", _WIDE),
    Mutant("one-pass-arrivals-kept", "workspace", _STEPS, "    *arrivals = *claims = 0;\n", "    *claims = 0;\n", _WIDE),
    Mutant("one-pass-row-of-the-other-half", "index", _STEPS, "above + 8, column", "above, column", _WIDE),
    # Bounds that are data.
    Mutant("gradient-ranges-from-the-last", "tail", _STEPS, "      first = min(first, c);\n", "      first = c;\n", _RANGES),
    Mutant("gradient-ranges-of-the-first-warp", "index", _STEPS,
           "  if (threadIdx.x % 32 == 0) {\n    atomicMin", "  if (threadIdx.x == 0) {\n    atomicMin", _RANGES),
    Mutant("gradient-ranges-before-all-have-read", "race", _STEPS,
           "scratch[1]);\n  __syncthreads();\n", "scratch[1]);\n", _RANGES),
    Mutant("gradient-ranges-without-the-last", "tail", _STEPS, "      last = c + 1;\n", "      last = c;\n", _RANGES),
    Mutant("one-pass-zeros-of-one-half", "initial", _ONE_PASS, "i < BC / 16; ++i) to[i * 128 + thread]",
           "i < BC / 32; ++i) to[i * 128 + thread]", _WIDE),
    Mutant("one-pass-keys-beyond-the-end", "tail", _ONE_PASS, 'masked="tile.m0 + BR > M",', 'masked="",', _SHARED),
    Mutant("shared-rows-weights-of-one-warpgroup", "index", _ONE_PASS, "consumer * (PART / 16) + i, warp", "i, warp", _OF_256),
    Mutant("shared-rows-columns-of-one-warpgroup", "index", _ONE_PASS, 'consumer * Slice%d::BYTES" % loop.index0',
           '0 * Slice%d::BYTES" % loop.index0', _OF_256),
    Mutant("shared-rows-given-back-early", "race", "templates/common/attention_gradient.cuh",
           "      ptx::wgmma_wait<Outers>();\n      take_back", "      take_back", _OF_256),
]  # fmt: skip
