"""What the gate runs of each schedule's kernel: every line that can run, on the variants that share the tuned one's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from tuner_samples import problem_of

from kgen.dsl.family import schedules
from kgen.dsl.target import Target
from kgen.emulator import Coverage, EmulatedKernel, Options
from kgen.emulator.build import Cache
from kgen.tuner.execute import Runner
from kgen.tuner.variants import variants
from kgen.tuner.verify import Gate

SQUARE = {"M": 1024, "N": 1024, "K": 1024}
SMALL = {"BM": 32, "BN": 64, "TM": 4, "TN": 8}  # tiles, which are as many whatever the size
DEEP = {"M": 128, "N": 128, "K": 8192}
LINE, ROWS = {"...": (1 << 20,)}, {"...": (4096,), "N": 1024}
PAGES = {"...": (2,), "K": 2, "G": 3, "M": 40, "L": 6, "R": 300, "D": 64, "E": 64}
HEADS = {"...": (1, 2), "G": 2, "M": 512, "N": 512, "D": 64, "E": 40}
INDEXED = {"V": 1024, "C": 1024, "N": 4096}

#: An operator of each schedule with its problem, and the fields in which its configs differ from the default: one kernel each.
KERNELS: dict[str, tuple[str, Mapping[str, Any], list[Mapping[str, Any]]]] = {
    "Elementwise": ("gelu", LINE, [{}, {"blocks_per_sm": 2}]),
    "Transpose": ("transpose", {"...": (2,), "M": 1024, "N": 1024}, [
        {}, {"blocks_per_sm": 2}, {"order": "diagonal", "copy": "tma", "blocks_per_sm": 2, "load": "default"}
    ]),
    "Rowwise": ("softmax", ROWS, [{}, {"keep": "none"}, {"keep": "shared"}]),
    "RowwiseSpan": ("layer_norm", {"...": (4096,), "N": 59}, [{}, {"turns": 4, "threads": 64}]),
    "RowwiseSpan of threads": ("layer_norm", {"...": (4098,), "N": 2}, [
        {"span": "thread", "row_threads": 1, "threads": 128, "turns": 4, "pack": 1}
    ]),
    "RowwiseCluster": ("layer_norm", {"...": (64,), "N": 65536}, [{}]),
    "TransposeNarrow": ("transpose", {"...": (3,), "M": 5001, "N": 6}, [{"span": "input", "threads": 64, "vectors": 1}]),
    "TransposeNarrow written": ("transpose", {"...": (3,), "M": 6, "N": 5001}, [
        {"span": "output", "threads": 64, "vectors": 1}
    ]),
    "Scan": ("logcumsumexp", ROWS, [{}, {"row_threads": 256, "threads": 256}]),
    "ScanSpan": ("cumsum", {"...": (5000,), "N": 31}, [{"row_threads": n, "threads": 64, "vectors": 4} for n in (1, 4)]),
    "ScanThread": ("cumsum", {"...": (5000,), "N": 3}, [{"stage": False}, {"stage": True}]),
    "ScanSplit": ("cumsum", {"...": (2,), "N": 1 << 18}, [
        {"stages": stages, "pack": 1, "vectors": 1, "threads": 128, "blocks_per_sm": 1} for stages in (1, 2)
    ]),
    "Reduce": ("reduce_sum", LINE, [
        {}, {"within": "sequential", "finish": "two_pass", "blocks_per_sm": 2}, {"within": "interleaved"}
    ]),
    "Reduce by atomics": ("reduce_min", LINE, [{"finish": "atomic"}]),
    "ColumnStats": ("column_sum", {"...": (1,), "M": 4096, "N": 256}, [{}]),
    "ChannelStats": ("batch_norm_stats", {"B": 64, "C": 64, "S": 256}, [{}]),
    "Gather": ("embedding", {"...": (4096,), "V": 256, "C": 256}, [{}]),
    "GatherSum": ("upsample_nearest_backward", {"...": (64,), "H": 64, "W": 64, "OH": 128, "OW": 128}, [{}]),
    "ScatterAdd": ("index_add", INDEXED, [{}]),
    "ScatterRows": ("index_add", INDEXED, [{}]),
    "ScatterBins": ("histogram", {"...": (1 << 20,), "BINS": 256}, [{}]),
    "SimtGemm": ("sgemm", SQUARE, [
        {"splits": 1, **SMALL}, {"splits": 4, **SMALL}, {"copy": "cp_async", "transpose": False, "stages": 3, **SMALL}
    ]),
    "MmaGemm": ("hgemm", SQUARE, [{}]),
    "MmaGemm by WMMA": ("linear_gelu", SQUARE, [
        {"instruction": f"wmma{shape}", "WN": 32, "swizzle": "pad", "store": "shared", "fragments": 1}
        for shape in ("_m32n8k16", "_m8n32k16")
    ]),
    "Gemv": ("hgemv", {"M": 4096, "K": 4096}, [{}, {"splits": 4, "staged": True}]),
    "WgmmaGemm reading": ("gemm", SQUARE, [
        {"swap_ab": False, "store": store, "epilogue_stages": 1, "BM": 128, "BN": 128, "stages": 4} for store in ("shared", "tma")
    ]),
    "WgmmaGemm": ("hgemm", {**SQUARE, "K": 4096}, [
        {},
        {"pingpong": True, "consumers": 2, "BM": 64, "BN": 128},
        {"work": "stream_k", "splits": 4, "pingpong": False, "cluster": "1x1", "consumers": 1},
        {"cluster": "2x1", "consumers": 2, "BM": 128, "BN": 128, "stages": 4, "pingpong": False},
    ]),
    "AttentionMma": ("attention_window_softcap", HEADS, [{}, {"splits": 3}]),
    "AttentionMma sigmoid": ("sigmoid_attention_causal", HEADS, [{"splits": 3}]),
    "AttentionMma packed": ("attention_causal_lse", {**HEADS, "G": 3}, [{"BR": 16, "pack_gqa": True}]),
    "AttentionMma pages": (
        "attention_causal_pages_of_16_lengths", PAGES, [{"BR": 16, "BC": 16, "pack_gqa": True, "splits": 2}]
    ),
    "AttentionMma sinks": ("attention_causal_sinks_lse", {**HEADS, "G": 3}, [{"BR": 16, "pack_gqa": True, "splits": 2}]),
    "AttentionMma dropout": ("attention_causal_dropout", HEADS, [{}]),
    "AttentionMma lengths": ("attention_causal_lengths", {**HEADS, "G": 3}, [{"BR": 16, "pack_gqa": True, "splits": 2}]),
    "AttentionMma ranges": ("attention_ranges_lse", {**HEADS, "...": (1,), "M": 130, "N": 130}, [{"BC": 32, "splits": 2}]),
    "AttentionMma by registers": ("attention_window_softcap", HEADS, [{"copy": "register", "stages": 1}]),
    "AttentionMma pages by registers": ("attention_causal_pages_of_16_lengths", PAGES, [
        {"BR": 16, "BC": 16, "pack_gqa": True, "splits": 2, "copy": "register", "stages": 1}
    ]),
    "AttentionMma f16acc": ("attention_causal_f16acc", HEADS, [{}]),
    "LinearAttention": ("linear_attention_decay", {"...": (1, 2), "N": 512, "D": 64, "E": 40}, [{"BC": 32}]),
    "LinearAttention backwards": (
        "linear_attention_decay_backwards", {"...": (1, 2), "N": 512, "D": 64, "E": 40}, [{"BC": 64, "WV": 32, "warps": 2}]
    ),
    "LinearAttentionWgmma": ("linear_attention_decay", {"...": (1, 2), "N": 512, "D": 64, "E": 72}, [
        {"segments": 1, "registers": overlap, "overlap": overlap} for overlap in (True, False)
    ]),
    "LinearAttentionWgmma backwards": (
        "linear_attention_decay_backwards", {"...": (1, 2), "N": 512, "D": 128, "E": 128}, [
            {"consumers": 2, "registers": False, "segments": 2}
        ]
    ),
    "AttentionWgmma": ("attention_causal_lse", HEADS, [{"BC": 64}, {"BC": 64, "overlap": False}]),
    "AttentionWgmma late": ("attention_full", HEADS, [{"BC": 64, "rescale": "late", "polynomial": 4}]),
    "AttentionWgmma packed": ("attention_causal_lengths", {**HEADS, "G": 3}, [
        {"BR": 64, "BC": 64, "pingpong": False, "persistent": False, "order": "longest_first", "pack_gqa": True, "splits": 2}
    ]),
    "AttentionWgmma sinks": ("attention_causal_sinks_lse", {**HEADS, "G": 3}, [{"BC": 64}]),
    "AttentionWgmma dropout": ("attention_causal_dropout", HEADS, [{"BC": 64}]),
    "AttentionWgmma sigmoid": ("sigmoid_attention_causal", HEADS, [{"BC": 64}]),
    "AttentionWgmma fp8": ("attention_causal_fp8_lse", {**HEADS, "E": 48}, [{"BC": 64}]),
    "AttentionWgmma partial": ("attention_full_partial_lse", HEADS, [{"BC": 64}]),
    "AttentionWgmma ranges": ("attention_ranges_lse", {**HEADS, "...": (2,)}, [{"BC": 64}]),
    "AttentionWide": ("attention_causal_lse", {**HEADS, "...": (1, 1), "D": 16, "E": 384}, [
        {"BC": 16, "BK": 64, "stages": 2, "cluster": cluster, "overlap": cluster == 1} for cluster in (1, 2)
    ]),
    "AttentionWide partial": ("attention_full_partial_lse", {**HEADS, "...": (1, 1), "D": 16, "E": 328}, [
        {"BC": 16, "BK": 64, "stages": 2, "cluster": 2}
    ]),
    "AttentionMma slices": ("attention_causal_lse", {**HEADS, "...": (1, 1), "G": 1, "D": 264, "E": 300}, [
        {"BR": 16, "BC": 16}, {"BR": 16, "BC": 16, "splits": 2}
    ]),
    "AttentionGradientMma": ("attention_causal_lse_train_grad_3", HEADS, [{}]),
    "AttentionGradientMma sigmoid": ("sigmoid_attention_causal_grad_2", HEADS, [{}]),
    "AttentionGradientMma dropout": ("attention_causal_dropout_train_grad_3", HEADS, [{}]),
    "AttentionGradientWgmma": ("attention_causal_lse_train_grad_3", HEADS, [{"BC": 48}, {"BC": 48, "overlap": False}]),
    "AttentionGradientOnePass": ("attention_full_train_grad_unordered_2", HEADS, [{"BC": 128}]),
    "AttentionGradientWgmma sigmoid": ("sigmoid_attention_causal_grad_2", HEADS, [{"BC": 48}]),
    "Nms": ("nms_padded", {"N": 4000}, [{}]),
}  # fmt: skip

#: Special values are drawn: what runs for one of them alone, where few numbers are, may take another draw.
SEEDS = range(0, 800, 100)

#: Lines that may stay without: where the compiler makes blocks that nothing leads to.
UNREACHED = (
    r"const float v\d+ = static_cast<float>\(size_\w+\);",  # the halves of an unsigned conversion; sizes are positive
    r"const float v\d+ = grad_out1_at0 \* v\d+;",  # once more for a row's total that is a denormal
    r"copy_tile<TileA, .*, slot\);",  # between the shares of A and B; the copies themselves are lines of copy_tile
    r"__device__ __forceinline__ const T& operator\[\]\(int i\) const",  # of pairs that are whole, where TMA has the same columns
    r"const int before = __shfl_sync\(ALL, up_to, i / 32 % 32\)",  # the same line's loop, entered with nothing to do
    # Of a vector that a gemv's K ends in: of rows that are padded alone (tests/templates/gemv_cases.py has them), since dense
    # ones that are aligned end with a vector.
    r"for \(int i = 0; i < N; \+\+i\)$",
    r"if \(i < remaining\) words\[i \* sizeof\(T\) / 4\] \|= .*;",
    r"for .* reinterpret_cast<unsigned\*>\(v\.access\)\[i\] = words\[i\];",
)


def test_every_schedule_is_here() -> None:
    assert {name.split()[0] for name in KERNELS} == {
        name for name, schedule in schedules().items() if schedule.__module__.startswith("kgen.ops.")
    }


@pytest.mark.parametrize("name", KERNELS)
def test_every_line_runs(name: str, target: Target) -> None:
    operator, sizes, changes = KERNELS[name]
    problem = problem_of(operator, sizes)
    for fields in changes:
        config = schedules()[name.split()[0]].default(problem, target).replace(**fields)
        config.check(problem, target)
        source, coverage = config.source(problem), Coverage()
        kernel = EmulatedKernel(source, Cache())  # compiled at its launch alone, as one that notes what runs
        for seed in SEEDS:
            for variant in variants(config, problem, target, same_source=True):
                runner = Runner(kernel, source, variant.symbols, Options(coverage=coverage))
                verdict = Gate(variant.problem, seed=seed).check(runner)
                assert verdict.ok, verdict.evidence
            text = source.body.splitlines()
            missed = [text[line - 1].strip() for line in coverage.unreached()]
            missed = [line for line in missed if not any(re.match(known, line) for known in UNREACHED)]
            if not missed:
                break
        assert missed == [], config
