"""Attention of other forms than tables have: odd sizes, shared heads, a score function of the user's own, and errors.

    python benchmarks/attention_forms.py --out FILE.json [--seconds 200]

Nothing is tuned: each problem is called as a user calls it, in turns with torch's backends (medians of times by events; causal
work counted as half). The user's own scores, with a softcap, a window and ALiBi, are an operator of this file; beside it runs
torch's flex_attention, compiled. Errors are those of f16 and bf16 results against float64, of random inputs, of scores that
are large, and of values with a large mean: the largest, and the root of the mean square, over that of the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention import BACKENDS, medians, sdpa
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import kgen
from kgen import Tensor, bf16, dims, dtype_var, f16, f32
from kgen.bench.environment import environment
from kgen.dsl import functions as F
from kgen.dsl.expr import cast, where
from kgen.dsl.indexing import arange
from kgen.gpu.target import detect
from kgen.ops.attention.heads import attend

#: Batch, heads of queries and of keys, rows, keys, columns of a head and of its values.
SHAPES = (
    (4, 16, 16, 4096, 4096, 96, 96), (1, 16, 16, 16384, 16384, 96, 96), (4, 16, 16, 4096, 4096, 192, 192),
    (4, 16, 16, 4096, 4096, 192, 128), (1, 16, 16, 16384, 16384, 192, 128), (16, 16, 16, 1000, 1000, 128, 128),
    (16, 16, 16, 1000, 1000, 64, 64), (4, 16, 16, 4099, 4099, 128, 128), (5, 16, 16, 3001, 3001, 64, 64),
    (27, 16, 16, 577, 577, 64, 64), (4, 16, 16, 4096, 4096, 72, 72), (4, 16, 16, 4096, 4096, 80, 80),
    (4, 32, 8, 4096, 4096, 128, 128), (8, 32, 4, 2048, 2048, 64, 64), (1, 32, 8, 2000, 2000, 128, 128),
    (1, 4, 4, 8192, 8192, 128, 128), (1, 2, 2, 16384, 16384, 64, 64), (2, 8, 1, 777, 4001, 128, 128),
)  # fmt: skip
#: Rows and window of the user's own scores, 8 heads, 128 columns.
OWN = ((4096, 1024), (16384, 1024), (4096, 4096), (16384, 4096))
SOFTCAP = 30.0
TURNS, TURN_SECONDS = 7, 5e-3

G, M, N, D = dims("G M N D")
T = dtype_var("T", f16, bf16)


@kgen.operator
def scored(
    q: Tensor[T, ..., G, M, D],
    k: Tensor[T, ..., 1, N, D],
    v: Tensor[T, ..., 1, N, D],
    slope: Tensor[f32, ..., G, 1, 1],
    left: int = 1024,
    scale: float = 0.125,
) -> Tensor[T, ..., G, M, D]:
    """Attention with bounded scores, a window and ALiBi."""
    row, column = arange(M, 1), arange(N)
    scores = SOFTCAP * F.tanh(scale * (q @ k.T) / SOFTCAP) + slope * cast(column - row, f32)
    seen = (row >= column) & (row - left <= column)
    return attend(where(seen, scores, -float("inf")), v)[0]


def form(shape: tuple[int, ...], causal: bool, dtype: torch.dtype) -> dict[str, Any]:
    """TFLOP/s by participant."""
    b, h, shared, m, n, d, e = shape
    sizes = ((h, m, d), (shared, n, d), (shared, n, e))
    operands = [torch.randn(b, *size, device="cuda", dtype=dtype) for size in sizes]
    calls: dict[str, Callable[[], Any]] = {"kgen": lambda: kgen.attention(*operands, causal=causal)}
    ours = calls["kgen"]()
    far = {}
    for name, backend in BACKENDS.items():
        call = lambda backend=backend: sdpa(backend, operands, causal)  # type: ignore[misc] # noqa: E731
        try:
            far[name] = (call() - ours).abs().max().item()
            calls[name] = call
        except RuntimeError as error:
            print(f"{name} {shape}: {str(error).splitlines()[0][:80]}")
    seconds = medians(calls, TURNS, TURN_SECONDS)
    pairs = sum(min(i + 1, n) for i in range(m)) if causal else m * n
    work = 2 * b * h * pairs * (d + e)
    rates = {name: work / taken / 1e12 for name, taken in seconds.items()}
    best = max((rate for name, rate in rates.items() if name != "kgen"), default=float("nan"))
    told = {name: round(rate) for name, rate in rates.items()}
    print(f"{shape} {'causal' if causal else 'full'} {rates['kgen'] / best:.3f} {told} {far}", flush=True)
    return {
        "shape": shape,
        "causal": causal,
        "dtype": str(dtype),
        "tflops": rates,
        "over": rates["kgen"] / best,
        "far": far,
    }


def own(rows: int, left: int) -> dict[str, Any]:
    """Seconds of the user's own scores by kgen and by flex_attention."""
    batch, heads, d = 16384 // rows, 8, 128
    q, k, v = (torch.randn(batch, heads, rows, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    slope = torch.pow(2.0, -torch.arange(1, heads + 1, device="cuda", dtype=torch.float32))

    def score(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return SOFTCAP * torch.tanh(score / SOFTCAP) + slope[h] * (j - i)

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (i - left <= j)

    mask = create_block_mask(seen, None, None, rows, rows, device="cuda")
    torch._dynamo.reset()
    flex = torch.compile(flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs")
    grouped, slopes = [x.unsqueeze(2) for x in (q, k, v)], slope.expand(batch, heads)[:, :, None, None, None]
    calls: dict[str, Callable[[], Any]] = {
        "kgen": lambda: scored(*grouped, slopes, left=left, scale=d**-0.5),
        "flex": lambda: flex(q, k, v, score_mod=score, block_mask=mask, scale=d**-0.5),
    }
    far = (calls["kgen"]().squeeze(2) - calls["flex"]()).abs().max().item()
    seconds = medians(calls, TURNS, TURN_SECONDS)
    print(
        f"own scores, {rows} rows, window {left}: {seconds['flex'] / seconds['kgen']:.3f} of flex {seconds} {far}",
        flush=True,
    )
    return {"rows": rows, "window": left, "seconds": seconds, "over": seconds["flex"] / seconds["kgen"], "far": far}


def errors(kind: str, dtype: torch.dtype, d: int) -> dict[str, Any]:
    """Of each participant the largest error and the root of the mean square, over the root of the result's mean square."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 2048, d, device="cuda", dtype=torch.float64) for _ in range(3))
    if kind == "large scores":
        q = q * 8
    elif kind == "large mean":
        v = v + 16
    elif kind == "outliers":
        k[:, :, ::97] *= 6
        v[:, :, ::97] *= 6
    operands = [x.to(dtype) for x in (q, k, v)]
    found = {}
    for causal in (False, True):
        expected = scaled_dot_product_attention(*(x.double() for x in operands), is_causal=causal)
        size = expected.square().mean().sqrt()
        results = {"kgen": kgen.attention(*operands, causal=causal)}
        results |= {name: sdpa(backend, operands, causal) for name, backend in BACKENDS.items()}
        for name, result in results.items():
            off = result.double() - expected
            told = (off.abs().max() / size).item(), (off.square().mean().sqrt() / size).item()
            found[name] = [max(pair) for pair in zip(found.get(name, (0.0, 0.0)), told)]
    over = [found["kgen"][i] / min(x[i] for name, x in found.items() if name != "kgen") for i in (0, 1)]
    print(f"errors {kind} {dtype} d {d}: {over[0]:.2f}, {over[1]:.2f} of the least {found}", flush=True)
    return {"inputs": kind, "dtype": str(dtype), "d": d, "errors": found, "over": over}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0, help="until the last shape is begun")
    given, target = parser.parse_args(), detect(0)
    assert target is not None, "no GPU"
    warnings.filterwarnings("ignore", category=kgen.KgenWarning)
    found: dict[str, Any] = {"environment": environment(0, target), "errors": [], "own": [], "forms": []}
    end = time.monotonic() + given.seconds

    def keep(kind: str, row: dict[str, Any]) -> None:
        found[kind].append(row)
        given.out.write_text(json.dumps(found, indent=1) + "\n")

    for kind in ("random", "large scores", "large mean", "outliers"):
        for dtype in (torch.float16, torch.bfloat16):
            keep("errors", errors(kind, dtype, 128 if dtype is torch.float16 else 64))
    for place, shape in enumerate(SHAPES):
        for causal in (False, True):
            if time.monotonic() < end:
                keep("forms", form(shape, causal, (torch.float16, torch.bfloat16)[place % 2]))
    for rows, left in OWN:
        keep("own", own(rows, left))
    over = [row["over"] for row in found["forms"]]
    print(f"forms: {statistics.geometric_mean(over):.3f} in the mean, {min(over):.3f} at worst, of {len(over)}")
    over = [row["over"] for row in found["own"]]
    print(f"own scores: {statistics.geometric_mean(over):.3f} of flex_attention, {min(over):.3f} at worst")


if __name__ == "__main__":
    with torch.no_grad():
        main()
