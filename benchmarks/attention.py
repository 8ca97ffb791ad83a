"""Configs of attention_wgmma and attention_wide beside each other, and beside torch's backends, on the GPU of this machine.

    python benchmarks/attention.py --out FILE.json --seconds 120 --random 12 [--only 512 1024] [--fp8]

For each problem: the configs that the model ranks first, some drawn from the space, and torch's scaled_dot_product_attention
by its backends (beyond 256 columns the efficient one), all in turns, medians of times by events. With --fp8 kgen's operands are
of e4m3, torch's still f16. A config whose result differs from torch's is told and left out. What the model is fitted to, and
what says which fields matter, before anything is tuned.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kgen.bench.environment import environment
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.gpu.cache import CubinCache
from kgen.gpu.target import detect
from kgen.ops.attention import AttentionWgmma, AttentionWide
from kgen.ops.attention.heads import variant
from kgen.ops.attention.problem import NARROW, describe
from kgen.runtime.fp8 import columns_of_values
from kgen.runtime.operator import KernelOperator
from kgen.tuner.build import build
from kgen.tuner.space import Space

#: Columns of a head, rows, batch, heads: what tables of attention have, about 16k tokens in all.
PROBLEMS = (
    (128, 4096, 4, 16), (128, 16384, 1, 16), (64, 4096, 4, 16), (64, 16384, 1, 16), (128, 1024, 16, 16), (256, 4096, 2, 16),
    (128, 2048, 8, 16), (64, 1024, 16, 16), (128, 8192, 2, 16), (96, 4096, 4, 16),
    (512, 8192, 1, 16), (512, 4096, 2, 16), (512, 16384, 1, 8), (1024, 8192, 1, 8),
)  # fmt: skip
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION
}  # fmt: skip
#: Turns, and what a turn takes at least.
TURNS, TURN_SECONDS = 7, 5e-3
#: The largest difference of an f16 result from torch's; with operands of 8 bits its root mean square, over torch's own: rounding
#: weights to e4m3 makes 0.027 to 0.029 of it on the emulator (100 rows).
DIFFERENCE, SHARE = 3e-3, 0.04
#: Fields whose other values are tried of the best three: the model does not know them, or hardly.
TWINS = ("rescale", "polynomial")
#: What makes no other tile of a config.
BESIDE = ("order", "group", "stages", "pdl", "persistent", *TWINS)


def timed(call: Callable[[], Any], count: int) -> float:
    """Seconds a call, of so many back to back."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / count


def medians(calls: Mapping[str, Callable[[], Any]], turns: int, turn_seconds: float) -> dict[str, float]:
    """Seconds of each call, all in turns of so many seconds at least."""
    counts = {name: max(1, round(turn_seconds / max(timed(f, 3), timed(f, 3), 1e-6))) for name, f in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            seconds[name].append(timed(call, counts[name]))
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def problem_of(d: int, n: int, batch: int, heads: int, causal: bool, fp8: bool) -> NormalProblem:
    sizes = {"...": (batch, heads), "G": 1, "M": n, "N": n, "D": d, "E": d}
    return normalised(Problem.dense(variant("causal" if causal else "full", fp8=fp8).graphs[0], sizes))


def configs_of(problem: NormalProblem, target: Any, top: int, drawn: int) -> list[Schedule]:
    """The first of the model's ranking, its first three tiles also with other values of some fields, and some others."""
    schedule, fields = (AttentionWide, ("overlap",)) if wide(problem) else (AttentionWgmma, TWINS)
    space: list[Any] = sorted(Space.searched(schedule, problem, target), key=lambda c: c.estimate(problem, target))
    plain = [c for c in space if wide(problem) or all(getattr(c, f) == schedule.fields[f].values[0] for f in fields)]
    tiles: dict[Any, Any] = {}
    for c in plain:
        tiles.setdefault(tuple(value for name, value in c.values.items() if name not in BESIDE), c)
    values = list(itertools.product(*(schedule.fields[f].values for f in fields)))
    twins = [c.replace(**dict(zip(fields, chosen))) for c in list(tiles.values())[:3] for chosen in values]
    rest = plain[top:]
    chosen = [
        *plain[:top],
        *(c for c in twins if not c.broken(problem, target)),
        *random.Random(0).sample(rest, min(drawn, len(rest))),
    ]
    return list(dict.fromkeys(chosen))


def wide(problem: NormalProblem) -> bool:
    """Whether a warpgroup has no room for all columns of the values."""
    return describe(problem).E > NARROW


def sdpa(backend: SDPBackend, operands: list[torch.Tensor], causal: bool) -> torch.Tensor:
    shared = operands[0].shape[1] != operands[1].shape[1]
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(*operands, is_causal=causal, enable_gqa=shared)


def measure(case: tuple[int, int, int, int], causal: bool, fp8: bool, configs: list[Schedule]) -> dict[str, Any]:
    """TFLOP/s by participant, causal work counted as half."""
    d, n, batch, heads = case
    operands = [torch.randn(batch, heads, n, d, device="cuda", dtype=torch.float16) for _ in range(3)]
    grouped, shared = [x.unsqueeze(2) for x in operands], {}
    if fp8:
        narrow = [x.to(torch.float8_e4m3fn) for x in operands]
        operands = [x.half() for x in narrow]
        ones = torch.ones(3, batch, heads, 1, 1, 1, device="cuda")
        grouped = [*(x.unsqueeze(2) for x in narrow[:2]), columns_of_values(narrow[2]).unsqueeze(2), *ones]
        shared = {"out": torch.empty(batch, heads, 1, n, d, device="cuda", dtype=torch.float16)}
    calls: dict[str, Callable[[], Any]] = {}
    for name, backend in BACKENDS.items():
        try:
            sdpa(backend, operands, causal)
            calls[name] = lambda backend=backend: sdpa(backend, operands, causal)  # type: ignore[misc]
        except RuntimeError as error:
            print(f"{name}: {str(error)[:100]}")
    expected = sdpa(BACKENDS["flash" if d <= NARROW else "efficient"], operands, causal).float()
    operator, wrong = KernelOperator(variant("causal" if causal else "full", fp8=fp8)), []
    for config in configs:
        run = operator.using(config)
        call = lambda run=run: run(*grouped, scale=d**-0.5, **shared)  # type: ignore[misc] # noqa: E731
        difference = call().squeeze(2).float() - expected
        worst = difference.abs().max()
        if fp8:
            worst = difference.square().mean().sqrt() / expected.square().mean().sqrt()
        error = worst.item()
        if error < (SHARE if fp8 else DIFFERENCE):
            calls[repr(config)] = call
        else:
            wrong.append({"config": repr(config), "error": error})
            print(f"WRONG by {error}: {config}")
    work = 4 * batch * heads * n * n * d / (2 if causal else 1)
    count = max(2, int(TURN_SECONDS / (work / 5e14)))
    for call in calls.values():
        timed(call, 2)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            seconds[name].append(timed(call, count))
    rates = {name: work / statistics.median(s) / 1e12 for name, s in seconds.items()}
    best = sorted(rates.items(), key=lambda item: -item[1])
    print(
        f"{case} {'causal' if causal else 'full'}", *(f"\n  {rate:6.0f} {name}" for name, rate in best[:8]), flush=True
    )
    return {"case": case, "causal": causal, "fp8": fp8, "tflops": dict(best), "wrong": wrong}


def built(configs: Iterable[tuple[Schedule, NormalProblem]], target: Any) -> set[str]:
    """The digests of the kernels that could be built, in parallel; they lie in the cache."""
    kernels = {config.source(problem).digest: (config, problem) for config, problem in configs}
    begun, cache = time.monotonic(), CubinCache()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda kernel: build(*kernel, target, cache).binary, kernels.values())
        binaries = {digest: binary for digest, binary in zip(kernels, made) if binary and not binary.fatal_warnings}
    warned = {warning for binary in binaries.values() for warning in binary.warnings}
    print(
        f"{len(binaries)} of {len(kernels)} kernels built in {time.monotonic() - begun:.0f} s; warnings: {warned or 'none'}",
        flush=True,
    )
    return set(binaries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150.0, help="no problem is begun after so many")
    parser.add_argument("--top", type=int, default=12, help="configs of the model's ranking")
    parser.add_argument("--random", type=int, default=12, help="configs drawn from the rest")
    parser.add_argument("--only", type=int, nargs="+", help="heads of so many columns alone")
    parser.add_argument("--fp8", action="store_true", help="queries, keys and values of e4m3")
    given = parser.parse_args()
    end, target = time.monotonic() + given.seconds, detect(0)
    assert target is not None, "no GPU"
    cases = [(case, causal) for case in PROBLEMS for causal in (False, True) if not given.only or case[0] in given.only]
    problems = {key: problem_of(*key[0], key[1], given.fp8) for key in cases}
    chosen = {key: configs_of(problem, target, given.top, given.random) for key, problem in problems.items()}
    binaries = built([(c, problems[key]) for key, configs in chosen.items() for c in configs], target)
    rows = []
    for key in cases:
        if time.monotonic() < end:
            rows.append(
                measure(*key, given.fp8, [c for c in chosen[key] if c.source(problems[key]).digest in binaries])
            )
            found = {"environment": environment(0, target), "rows": rows}
            given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
