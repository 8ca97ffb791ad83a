"""Products of shapes that nobody tuned, beside cuBLAS: untuned, and after a few seconds of tuning each.

    python benchmarks/anyshape.py SEED COUNT --out FILE.json [--tune 3] [--seconds 540]

Shapes are those of random_products.py. Each is called as a user would call it, with an empty database, in turns with torch.matmul
on cold operands (`kgen.tuner.timer`): as it runs untuned, and as it runs tuned, all three in one race. The first call's time on
the host is told too: run it twice for that of compiled kernels. Prints cuBLAS's time over kgen's: geometric mean, tenth
percentile, worst.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from drawn import tell
from random_products import Product, products

import kgen
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands
from kgen.runtime import dispatch
from kgen.tuner.race import Policy
from kgen.tuner.timer import CudaClock, interleaved, is_warm, rotation

POLICY = Policy(relative=0.005, absolute=0.05e-6, least=12, most=200, seconds=0.5)


def measured(product: Product, tune: float) -> dict[str, Any]:
    """One product: times in seconds of cuBLAS and of kgen, untuned and tuned; and of the first call on the host."""
    problem, target = product.problem, resolve("auto")
    size = sum(o.elements * o.dtype.bytes for o in problem.operands)
    count = rotation(size, target.l2_bytes, torch.cuda.mem_get_info()[0])
    sets = [make_operands(problem, "normal", i, "cuda:0", guard=0) for i in range(count)]

    def calls(operator: Callable[..., Any]) -> Callable[[int], object]:
        return lambda i: operator(sets[i]["a"], sets[i]["b"], out=sets[i]["out"])

    torch.cuda.synchronize()
    begun = time.perf_counter()
    calls(kgen.hgemm)(0)
    first = time.perf_counter() - begun
    torch.cuda.synchronize()
    right = sets[0]["out"].clone()
    torch.matmul(sets[0]["a"], sets[0]["b"], out=sets[0]["out"])
    close = torch.allclose(right.float(), sets[0]["out"].float(), rtol=2e-2, atol=2e-2 * problem.sizes["K"] ** 0.5)
    choice = dispatch.serve(problem, target)
    ways = {"untuned": choice.config}
    trials = 0
    if tune:
        budget = f"{tune:g}s"
        trials = kgen.hgemm.tune(product.sizes, budget=budget, dtype=product.dtype, layouts=product.layouts).trials
        ways["tuned"] = dispatch.serve(problem, target).config
    candidates = {name: calls(kgen.hgemm.using(config)) for name, config in ways.items()}
    candidates["cublas"] = calls(torch.matmul)

    def timed() -> dict[str, float]:
        found = interleaved(
            candidates,
            sets=count,
            policy=POLICY,
            race=False,
            warm_l2=is_warm(count, size, target.l2_bytes),
            clock=CudaClock(0, count),
        )
        return {name: timing.seconds for name, timing in found.items()}

    timed()  # for half a second after another process ran on the GPU, cuBLAS's launches take 0.35 us less (gemm_wgmma.md)
    return {
        "product": str(product),
        "first_call": first,
        "close": close,
        "seconds": timed(),
        "configs": {name: repr(config) for name, config in ways.items()},
        "how": choice.how,
        "trials": trials,
    }


def table(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of both ways, cuBLAS's time over kgen's: geometric mean, tenth percentile, worst; and the first call's time."""
    rows: dict[str, Any] = {}
    for way in ("untuned", "tuned"):
        times = [entry["seconds"] for entry in found]
        ratios = sorted(seconds["cublas"] / seconds[way] for seconds in times if way in seconds)
        if ratios:
            tenth = ratios[int(0.1 * len(ratios))]
            rows[way] = {
                "mean": statistics.geometric_mean(ratios),
                "tenth": tenth,
                "worst": ratios[0],
                "of": len(ratios),
            }
    first = [entry["first_call"] for entry in found]
    rows["first call, s"] = {"median": statistics.median(first), "worst": max(first), "of": len(first)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--tune", type=float, default=3.0, help="seconds for each product; 0: untuned alone")
    parser.add_argument("--seconds", type=float, default=540.0, help="until the last product is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    arguments = parser.parse_args()
    begun, found = time.monotonic(), []
    warnings.simplefilter("ignore", dispatch.KgenWarning)
    drawn = products(arguments.seed, arguments.count)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["KGEN_DATABASE"] = str(Path(folder) / "empty.sqlite")
        for product in drawn:
            if time.monotonic() - begun > arguments.seconds:
                break
            found.append(measured(product, arguments.tune))
            entry, seconds = found[-1], found[-1]["seconds"]
            ratios = ", ".join(f"{way} {seconds['cublas'] / t:.3f}" for way, t in seconds.items() if way != "cublas")
            print(f"{entry['product']}: {ratios}{'' if entry['close'] else ' WRONG'}", flush=True)
    tell(
        table(found), arguments.out, arguments.commit, seed=arguments.seed, tuned_seconds=arguments.tune, products=found
    )


if __name__ == "__main__":
    main()
