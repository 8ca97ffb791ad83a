"""Decode: one query a head over a cache of keys. Configs of both schedules beside each other, and beside torch's backends.

    python benchmarks/decode.py --out FILE.json --seconds 240 --random 16

For each problem: the default, the configs of each schedule that the model ranks first, some drawn from its space, and torch's
scaled_dot_product_attention by its backends, all in turns; each as calls back to back and in a CUDA graph, over copies of the
operands that together are larger than the L2. Shown are the fastest, the best of each schedule, the default and the backends:
medians in microseconds, and the share of 4.3 TB/s (what an H200's memory gives) that reading keys and values once comes to. A
config whose result differs from FlashAttention's is told and left out.

With --prefix: sequences that share their first keys, by `kgen.attention` with these as a prefix, beside `kgen.attention` and
torch's backends over all keys of each, untuned. The share is of what each has to read: the prefix once, or once a sequence.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attention import built, timed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import kgen
from kgen.bench.environment import environment
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.types import bf16
from kgen.gpu.target import detect
from kgen.ops.attention import AttentionMma, AttentionWgmma
from kgen.ops.attention.heads import variant
from kgen.runtime import dispatch
from kgen.runtime.operator import KernelOperator
from kgen.tuner.space import Space

#: Batch, heads of queries, heads of keys, columns of a head, keys.
PROBLEMS = (
    (1, 32, 8, 128, 1024), (1, 32, 8, 128, 8192), (1, 32, 8, 128, 131072), (4, 32, 8, 128, 16384), (8, 32, 8, 128, 4096),
    (16, 32, 8, 128, 8192), (32, 32, 8, 128, 4096), (64, 32, 8, 128, 1024), (64, 32, 8, 128, 8192), (8, 32, 32, 128, 4096),
    (8, 32, 8, 64, 8192), (8, 64, 1, 128, 32768),
)  # fmt: skip
#: Batch, heads of queries, heads of keys, columns of a head, keys of the prefix, keys of each sequence's own.
PREFIXES = (
    (16, 32, 8, 128, 4096, 512), (64, 32, 8, 128, 4096, 512), (16, 32, 8, 128, 32768, 512), (64, 32, 8, 128, 32768, 512),
)  # fmt: skip
SCHEDULES = (AttentionWgmma, AttentionMma)
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
#: Turns, and what a turn takes at least.
TURNS, TURN_SECONDS = 7, 3e-3
#: Bytes that copies of the operands have together: beyond what the L2 holds.
ROTATED = 256e6
BANDWIDTH = 4.3e12
#: The largest difference of a bf16 result from FlashAttention's.
DIFFERENCE = 8e-3

Case = tuple[int, int, int, int, int]


def problem_of(case: Case) -> NormalProblem:
    B, H, K, D, N = case
    graph = variant("full").graph({"q": bf16})
    return normalised(Problem.dense(graph, {"...": (B, K), "G": H // K, "M": 1, "N": N, "D": D, "E": D}))


def configs_of(problem: NormalProblem, target: Any, top: int, drawn: int) -> list[Any]:
    """The default first; of each schedule the first of the model's ranking that differ in more than how they store, and some
    others."""
    chosen: list[Any] = [dispatch.default(problem, target).config]
    for schedule in SCHEDULES:
        if not schedule.target.runs_on(target.arch):
            continue
        space: list[Any] = [c for c in Space.searched(schedule, problem, target) if c.values.get("store") != "shuffle"]
        space.sort(key=lambda c: c.estimate(problem, target))
        rest = random.Random(0).sample(space[top:], min(drawn, len(space[top:])))
        chosen += [schedule.default(problem, target), *space[:top], *rest]
    return list(dict.fromkeys(chosen))


def graphed(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A CUDA graph of the calls."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def by_torch(backend: SDPBackend, copy: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(*copy, enable_gqa=copy[0].shape[1] != copy[1].shape[1])


def backends(
    operands: list[tuple[torch.Tensor, ...]], told: list[dict[str, Any]]
) -> dict[str, list[Callable[[], Any]]]:
    """A call of each of torch's backends for each copy of the operands, by name; what does not run is told."""
    found: dict[str, list[Callable[[], Any]]] = {}
    for name, backend in BACKENDS.items():
        try:
            by_torch(backend, operands[0])
            found[name] = [lambda backend=backend, copy=copy: by_torch(backend, copy) for copy in operands]  # type: ignore[misc]
        except RuntimeError as error:
            told.append({"name": name, "error": str(error)[:200]})
    return found


def participants(
    case: Case, configs: list[Any], operands: list[tuple[torch.Tensor, ...]], told: list[dict[str, Any]]
) -> dict[str, list[Callable[[], Any]]]:
    """A call for each copy of the operands, by name; what does not run or is wrong is told."""
    B, H, K, D, _ = case
    found = backends(operands, told)
    expected = by_torch(SDPBackend.FLASH_ATTENTION, operands[0]).float()
    out, operator = (
        torch.empty(B, K, H // K, 1, D, device="cuda", dtype=torch.bfloat16),
        KernelOperator(variant("full")),
    )
    grouped = [(q.unflatten(1, (K, H // K)), k.unsqueeze(2), v.unsqueeze(2)) for q, k, v in operands]
    for config in configs:
        run = operator.using(config)
        calls = [lambda run=run, copy=copy: run(*copy, out=out, scale=D**-0.5) for copy in grouped]  # type: ignore[misc]
        error = (calls[0]().flatten(1, 2).float() - expected).abs().max().item()
        if error < DIFFERENCE:
            found[repr(config)] = calls
        else:
            told.append({"name": repr(config), "error": error})
            print(f"WRONG by {error}: {config}")
    return found


def measure(case: Case, configs: list[Any]) -> dict[str, Any]:
    """Microseconds of each participant, alone and in a graph, the fastest in a graph first."""
    B, H, K, D, N = case
    size = 4 * B * K * N * D
    copies = max(2, min(64, round(ROTATED / size)))
    operands = [
        tuple(torch.randn(B, h, n, D, device="cuda", dtype=torch.bfloat16) for h, n in ((H, 1), (K, N), (K, N)))
        for _ in range(copies)
    ]
    told: list[dict[str, Any]] = []
    calls = participants(case, configs, operands, told)
    rows = timed_in_turns(calls, dict.fromkeys(calls, size), told)
    default = next((row for row in rows if configs and row["name"] == repr(configs[0])), None)
    first = [next((row for row in rows if row["name"].startswith(s.__name__)), None) for s in SCHEDULES]
    shown = [*rows[:6], *(row for row in rows[6:] if row["name"] in BACKENDS or row is default or row in first)]
    print(case, f"{size / 1e6:.0f} MB", *(
        f"\n  {row['graph_us']:8.1f} us in a graph {row['alone_us']:8.1f} alone {row['share']:5.2f}"
        f" {'DEFAULT ' if row is default else ''}{row['name']}" for row in shown
    ), flush=True)  # fmt: skip
    return {"case": case, "rows": rows, "default": repr(configs[0]) if configs else None, "told": told}


def measure_prefix(case: tuple[int, ...]) -> dict[str, Any]:
    """Microseconds of attention over a shared prefix and keys of each sequence's own, by kgen in two ways and by torch."""
    B, H, K, D, P, N = case
    whole, once = 4 * B * K * (P + N) * D, 4 * K * (P + B * N) * D
    told: list[dict[str, Any]] = []
    copies = max(2, min(16, round(ROTATED / once), int(40e9 / whole)))

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    apart = [
        (drawn(B, H, 1, D), *(drawn(B, K, N, D) for _ in "kv"), *(drawn(K, P, D) for _ in "kv")) for _ in range(copies)
    ]
    joined = [
        (q, *(torch.cat([p.expand(B, -1, -1, -1), own], 2) for p, own in ((pk, k), (pv, v))))
        for q, k, v, pk, pv in apart
    ]
    calls = backends(joined, told)
    calls["kgen"] = [lambda copy=copy: kgen.attention(*copy) for copy in joined]  # type: ignore[misc]
    calls["kgen, prefix"] = [lambda copy=copy: kgen.attention(*copy[:3], prefix=copy[3:]) for copy in apart]  # type: ignore[misc]
    expected = calls["flash"][0]().float()
    for name, of_copies in calls.items():
        error = (of_copies[0]().float() - expected).abs().max().item()
        if error >= DIFFERENCE:
            told.append({"name": name, "error": error})
            print(f"WRONG by {error}: {name}")
    rows = timed_in_turns(calls, dict.fromkeys(calls, whole) | {"kgen, prefix": once}, told)
    print(case, f"{once / 1e6:.0f} of {whole / 1e6:.0f} MB", *(
        f"\n  {row['graph_us']:8.1f} us in a graph {row['alone_us']:8.1f} alone {row['share']:5.2f} {row['name']}" for row in rows
    ), flush=True)  # fmt: skip
    return {"case": case, "rows": rows, "told": told}


def timed_in_turns(
    calls: dict[str, list[Callable[[], Any]]], sizes: dict[str, int], told: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Microseconds of each participant's calls, one a copy, alone and in a graph; the share of the bandwidth that its bytes come
    to. The fastest in a graph first; what no graph takes is told.
    """
    ways: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, of_copies in calls.items():
        try:
            replay = graphed(of_copies)
        except RuntimeError as error:
            told.append({"name": name, "graph": str(error)[:200]})
            continue
        ways[name] = {"graph": replay, "alone": lambda of_copies=of_copies: [call() for call in of_copies]}  # type: ignore[misc]
    seconds: dict[str, dict[str, list[float]]] = {name: {"graph": [], "alone": []} for name in ways}
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            copies = len(calls[name])
            count = max(1, int(TURN_SECONDS / (copies * max(sizes[name] / BANDWIDTH, 4e-6))))
            for kind, call in way.items():
                taken = timed(call, count) / copies
                if turn:  # the first one warms up
                    seconds[name][kind].append(taken)
    rows = [
        {"name": name, **{f"{kind}_us": statistics.median(s) * 1e6 for kind, s in kinds.items()},
         "share": sizes[name] / BANDWIDTH / statistics.median(kinds["graph"])}
        for name, kinds in seconds.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: float(row["graph_us"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0, help="no problem is begun after so many")
    parser.add_argument("--top", type=int, default=8, help="configs of the model's ranking, of each schedule")
    parser.add_argument("--random", type=int, default=16, help="configs drawn from the rest, of each schedule")
    parser.add_argument("--prefix", action="store_true", help="sequences that share a prefix of their keys")
    given = parser.parse_args()
    end, target = time.monotonic() + given.seconds, detect(0)
    assert target is not None, "no GPU"
    rows: list[dict[str, Any]] = []

    def kept(row: dict[str, Any]) -> None:
        rows.append(row)
        given.out.write_text(json.dumps({"environment": environment(0, target), "rows": rows}, indent=1) + "\n")

    if given.prefix:
        for prefixed in PREFIXES:
            if time.monotonic() < end:
                kept(measure_prefix(prefixed))
        return
    problems = {case: problem_of(case) for case in PROBLEMS}
    chosen = {case: configs_of(problem, target, given.top, given.random) for case, problem in problems.items()}
    binaries = built([(c, problems[case]) for case, configs in chosen.items() for c in configs], target)
    for case in PROBLEMS:
        if time.monotonic() < end:
            kept(measure(case, [c for c in chosen[case] if c.source(problems[case]).digest in binaries]))


if __name__ == "__main__":
    with torch.no_grad():
        main()
