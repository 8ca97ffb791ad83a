"""Products on Hopper whose epilogue reads or writes matrices: every way to store them and tiles of several widths, beside cuBLAS.

    python benchmarks/epilogues.py --out FILE.json

bf16, the second operand stored by columns. cuBLAS makes the product alone. All of a problem in turns, medians by events.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from attention import built, timed

import kgen
from kgen.bench.environment import environment
from kgen.dsl import functions as F
from kgen.dsl import operator as dsl
from kgen.dsl.expr import Expr
from kgen.dsl.family import normalised
from kgen.dsl.gradient import training
from kgen.dsl.operator import Graph, Operator
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.program import program_of
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.dsl.types import bf16
from kgen.gpu.target import detect
from kgen.integrations.transformers import gated
from kgen.runtime import dispatch
from kgen.runtime.operator import KernelOperator

M, N, K = kgen.dims("M N K")
X, W, Y = dsl.Tensor[bf16, M, K], dsl.Tensor[bf16, N, K], dsl.Tensor[bf16, M, N]


@kgen.operator
def residual(x: X, w: W, beside: Y) -> Y:  # type: ignore[valid-type]
    """A matrix is read."""
    return x @ w.T + beside  # type: ignore[attr-defined, no-any-return]


@kgen.operator
def silu_times(x: X, w: W, beside: Y) -> Y:  # type: ignore[valid-type]
    """A matrix is read, and an element takes some instructions."""
    product: Expr = x @ w.T  # type: ignore[attr-defined]
    return F.silu(product) * beside


#: `train`: the product is kept for the gradient.
GRAPHS: dict[str, Graph] = {
    "residual": residual.definition.graphs[0],
    "silu_times": silu_times.definition.graphs[0],
    "gated, train": training(gated.definition.graphs[-1]),
    "linear_gelu": kgen.linear_gelu.definition.graphs[-1],
    "linear_gelu, train": training(kgen.linear_gelu.definition.graphs[-1]),
}
SIZES = ((2048, 14336, 4096), (4096, 14336, 4096), (4096, 4096, 14336))
#: Rows and columns of a tile, and whether two warpgroups have one each.
TILES = (
    (128, 256, False), (256, 128, False), (256, 160, False), *((128, BN, True) for BN in (128, 144, 160, 176, 192)),
)  # fmt: skip
TURNS, CALLS = 5, 4


def configs(problem: NormalProblem, target: Target) -> dict[str, Schedule]:
    """The default, and of each store and tile the config with the most stages."""
    default = dispatch.default(problem, target).config
    found = {"default": default}
    for store, (BM, BN, pingpong) in itertools.product(("tma", "shared"), TILES):
        fixed = {
            "swap_ab": False,
            "BM": BM,
            "BN": BN,
            "pingpong": pingpong,
            "raster": "m",
            "group": 8,
            "cluster": "1x1",
        }
        fixed |= {"store": store, "epilogue_stages": 2 if store == "tma" and BN % 128 == 0 else 1}
        made = [default.replace(**fixed, stages=stages) for stages in (6, 5, 4, 3)]
        valid = [config for config in made if not config.broken(problem, target)]
        if valid:
            found[f"{store} {BM}x{BN}{' ping-pong' if pingpong else ''}"] = valid[0]
    return found


def measure(graph: Graph, sizes: tuple[int, int, int], tried: dict[str, Schedule]) -> dict[str, float]:
    """Microseconds by participant."""
    m, n, k = sizes
    shapes = {"M": m, "N": n, "K": k}
    given = [
        torch.randn([shapes[str(d)] for d in spec.shape.dims], device="cuda", dtype=torch.bfloat16) * 0.5
        for spec in graph.inputs
    ]
    operator = KernelOperator(Operator.of_graphs([graph], graph.name, {}))
    calls: dict[str, Any] = {"cublas": lambda: torch.matmul(given[0], given[1].T)}
    for name, config in tried.items():
        calls[name] = functools.partial(operator.using(config), *given)
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            times[name].append(timed(call, CALLS))
    return {name: sorted(taken)[TURNS // 2] * 1e6 for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given, target = parser.parse_args(), detect(0)
    assert target is not None, "no GPU"
    jobs = []
    for (name, graph), (m, n, k) in itertools.product(GRAPHS.items(), SIZES):
        whole = Problem.dense(graph, {"...": (), "M": m, "N": n, "K": k})
        problem = normalised(program_of(whole).launches[0])
        jobs.append((name, graph, (m, n, k), configs(problem, target), problem))
    built([(config, problem) for *_, tried, problem in jobs for config in tried.values()], target)
    rows = []
    for name, graph, sizes, tried, _ in jobs:
        times = measure(graph, sizes, tried)
        print(name, sizes, {who: round(t) for who, t in sorted(times.items(), key=lambda item: item[1])}, flush=True)
        rows.append({"case": name, "sizes": sizes, "us": times, "configs": {t: str(c) for t, c in tried.items()}})
    given.out.write_text(json.dumps({"environment": environment(0, target), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
