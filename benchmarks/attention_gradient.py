"""Gradients of kgen.attention beside those of cuDNN's and FlashAttention-2's attention, on the GPU of this machine.

    python benchmarks/attention_gradient.py --out FILE.json

Of each problem the time of torch.autograd.grad alone, in turns, medians by events; nothing is tuned. `kgen` has gradients that
repeat in every bit, three launches; `one pass` those whose sums are made in any order. Prints TFLOP/s, five products counted and
causal work as half, and the largest differences of gradients from FlashAttention-2's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention import BACKENDS, sdpa, timed

import kgen
from kgen.bench.environment import environment
from kgen.gpu.target import detect
from kgen.runtime import autograd

#: Columns of a head, rows, batch, heads.
PROBLEMS = (
    (128, 1024, 16, 16), (128, 4096, 4, 16), (128, 16384, 1, 16), (64, 1024, 16, 16), (64, 4096, 4, 16), (64, 16384, 1, 16),
)  # fmt: skip
TURNS = 5


def measure(case: tuple[int, int, int, int], causal: bool) -> dict[str, Any]:
    """TFLOP/s by participant, and how far kgen's gradients of q, k and v are from FlashAttention's, both ways."""
    d, n, batch, heads = case
    inputs = [torch.randn(batch, heads, n, d, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    seed = torch.randn_like(inputs[0])
    results = {name: kgen.attention(*inputs, causal=causal) for name in ("kgen", "one pass")}
    results |= {name: sdpa(backend, inputs, causal) for name, backend in BACKENDS.items()}

    def gradient(name: str) -> Callable[[], Any]:
        def run() -> Any:
            autograd.ANY_ORDER = name == "one pass"
            return torch.autograd.grad(results[name], inputs, seed, retain_graph=True)

        return run

    calls = {name: gradient(name) for name in results}
    flash = calls["flash"]()
    differences = {
        name: [(a.float() - b.float()).abs().max().item() for a, b in zip(calls[name](), flash)]
        for name in ("kgen", "one pass")
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            seconds[name].append(timed(call, 3))
    work = 10 * batch * heads * n * n * d / (2 if causal else 1)
    rates = {name: work / statistics.median(taken) / 1e12 for name, taken in seconds.items()}
    print(
        case,
        "causal" if causal else "full",
        {name: round(rate) for name, rate in rates.items()},
        differences,
        flush=True,
    )
    return {"case": case, "causal": causal, "tflops": rates, "differences": differences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given, target = parser.parse_args(), detect(0)
    assert target is not None, "no GPU"
    rows = [measure(case, causal) for case in PROBLEMS for causal in (False, True)]
    given.out.write_text(json.dumps({"environment": environment(0, target), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
