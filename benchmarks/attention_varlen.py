"""kgen.attention_varlen beside torch's varlen_attn (FlashAttention-2), on the GPU of this machine; forward and gradients.

    python benchmarks/attention_varlen.py --out FILE.json

Sequences of several lengths lie one after another, 16k tokens in all, 16 heads, bf16. Nothing is tuned; medians of times by
events, in turns. Prints TFLOP/s of the scores that the mask shows, the largest difference from torch's results, and what the
same call costs as kgen.attention where all lengths are the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention import timed
from torch.nn.attention.varlen import varlen_attn

import kgen
from kgen.bench.environment import environment
from kgen.gpu.target import detect

TOKENS, HEADS, TURNS = 16384, 16, 7


def drawn(seed: int) -> tuple[int, ...]:
    """Lengths from 1 to 4096 that are TOKENS in all."""
    source, lengths = random.Random(seed), []
    while (left := TOKENS - sum(lengths)) > 0:
        lengths.append(min(left, round(2 ** source.uniform(0, 12))))
    return tuple(lengths)


CASES = {"16 x 1024": (1024,) * 16, "4 x 4096": (4096,) * 4, "drawn 0": drawn(0), "drawn 1": drawn(1)}


def measure(name: str, lengths: tuple[int, ...], d: int, causal: bool) -> dict[str, Any]:
    """TFLOP/s by participant, forward and backward, two products a score forward and five backward."""
    q, k, v = (torch.randn(TOKENS, HEADS, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    longest, seed = max(lengths), torch.randn_like(q)
    window = (-1, 0) if causal else (-1, -1)
    calls: dict[str, Callable[[], Any]] = {
        "kgen": lambda: kgen.attention_varlen(q, k, v, offsets, causal=causal),
        "torch": lambda: varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=window),
    }
    if len(set(lengths)) == 1:
        split = [x.unflatten(0, (-1, longest)) for x in (q, k, v)]
        calls["kgen.attention"] = lambda: kgen.attention(*split, causal=causal, layout="BNHD").flatten(0, 1)
    results = {who: call() for who, call in calls.items()}
    difference = max((x.float() - results["torch"].float()).abs().max().item() for x in results.values())

    def gradient(who: str) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(results[who], (q, k, v), seed, retain_graph=True)

    backward = {who: gradient(who) for who in calls}
    pairs = zip(backward["kgen"](), backward["torch"]())
    differences = [(a.float() - b.float()).abs().max().item() for a, b in pairs]
    seen = sum(n * (n + 1) / 2 if causal else n * n for n in lengths)
    rates: dict[str, dict[str, float]] = {}
    for way, products, of in (("forward", 2, calls), ("backward", 5, backward)):
        seconds: dict[str, list[float]] = {who: [] for who in of}
        with torch.set_grad_enabled(way == "backward"):
            for _ in range(TURNS):
                for who, call in of.items():
                    seconds[who].append(timed(call, 10))
        rates[way] = {who: 2 * products * HEADS * d * seen / statistics.median(s) / 1e12 for who, s in seconds.items()}
    print(name, d, "causal" if causal else "full", rates, difference, differences, flush=True)
    return {
        "case": name, "lengths": lengths, "d": d, "causal": causal, "tflops": rates, "difference": difference,
        "of_gradients": differences,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given, target = parser.parse_args(), detect(0)
    assert target is not None, "no GPU"
    rows = [measure(*case, d, causal) for case in CASES.items() for d in (128, 64) for causal in (False, True)]
    given.out.write_text(json.dumps({"environment": environment(0, target), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
