"""Products that run for long by themselves, as a model's do, beside the same products in turns: what the power limit does.

    python benchmarks/sustained.py --out FILE.json [--seconds 60]

Large products are limited by power. In turns with others a config has their mean clocks, by itself those that its own power
leaves: the two orders differ. Of four products of a training step in bf16 some 13 configs, the best by the model of each tile
and cluster, and cuBLAS: the median of three runs of 0.15 s each, after a third of that, and medians in turns.
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
from attention import built, medians, timed

import kgen
from kgen.bench.environment import environment
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem
from kgen.dsl.target import Target
from kgen.gpu.target import detect
from kgen.ops.gemm import WgmmaGemm
from kgen.tuner.best import best

#: M, N, K, and the matrices whose columns are contiguous: the gradient of a weight, a layer forwards, the gradient of its input.
PRODUCTS = ((14336, 4096, 4096, "a"), (4096, 14336, 4096, "b"), (4096, 4096, 14336, ""), (4096, 4096, 4096, "b"))
RUNS, RUN_SECONDS = 3, 0.15
TURNS, TURN_SECONDS = 9, 10e-3
#: Configs of the model's ranking that are looked at, and taken of each shape of cluster and of tiles of 256 x 128 in clusters.
RANKED, OF_A_KIND = 400, 4


def problem_of(m: int, n: int, k: int, columns: str) -> NormalProblem:
    layouts = dict.fromkeys(columns, "col")
    return normalised(kgen.hgemm.problem({"M": m, "N": n, "K": k}, dtype="bf16", layouts=layouts))


def configs_of(problem: NormalProblem, target: Target) -> list[WgmmaGemm]:
    """The model's best; then the best of each tile, some of each cluster."""
    tiles: dict[Any, WgmmaGemm] = {}
    for config in best(WgmmaGemm, problem, target, RANKED):
        tiles.setdefault((config.swap_ab, config.BM, config.BN, config.cluster, config.pingpong), config)
    found = list(tiles.values())
    chosen = found[:1]
    for cluster in ("1x1", "2x1", "1x2"):
        chosen += [c for c in found if c.cluster == cluster][:OF_A_KIND]
    chosen += [c for c in found if c.BM * c.BN >= 256 * 128 and c.cluster != "1x1"][:OF_A_KIND]
    return list(dict.fromkeys(chosen))


def sustained(call: Callable[[], Any]) -> float:
    """Seconds of a call that nothing else runs beside."""
    count = max(4, round(RUN_SECONDS / timed(call, 2)))
    timed(call, count // 3)
    return timed(call, count)


def matrix(rows: int, columns: int, by_column: bool) -> torch.Tensor:
    shape = (columns, rows) if by_column else (rows, columns)
    made = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return made.T if by_column else made


def measure(product: tuple[int, int, int, str], configs: list[WgmmaGemm]) -> dict[str, Any]:
    """TFLOP/s of each participant, sustained and in turns."""
    m, n, k, columns = product
    a, b, out = matrix(m, k, "a" in columns), matrix(k, n, "b" in columns), matrix(m, n, False)
    calls: dict[str, Callable[[], Any]] = {"cublas": lambda: torch.mm(a, b, out=out)}
    for config in configs:
        run = kgen.hgemm.using(config)
        calls[repr(config)] = lambda run=run: run(a, b, out=out)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(RUNS):
        for name, call in calls.items():
            seconds[name].append(sustained(call))
    work = 2 * m * n * k / 1e12
    alone = {name: work / statistics.median(taken) for name, taken in seconds.items()}
    turns = {name: work / taken for name, taken in medians(calls, TURNS, TURN_SECONDS).items()}
    print(product)
    for name in sorted(calls, key=lambda name: -alone[name]):
        print(f"  {alone[name]:4.0f} sustained, {turns[name]:4.0f} in turns {name}", flush=True)
    return {"product": product, "sustained": alone, "in_turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="until the last product is begun")
    given, target = parser.parse_args(), detect(0)
    assert target is not None, "no GPU"
    warnings.filterwarnings("ignore", category=kgen.KgenWarning)
    end, problems = time.monotonic() + given.seconds, {product: problem_of(*product) for product in PRODUCTS}
    chosen = {product: configs_of(problem, target) for product, problem in problems.items()}
    binaries = built([(c, problems[product]) for product, configs in chosen.items() for c in configs], target)
    rows = []
    for product, configs in chosen.items():
        if time.monotonic() < end:
            rows.append(measure(product, [c for c in configs if c.source(problems[product]).digest in binaries]))
            given.out.write_text(json.dumps({"environment": environment(0, target), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
