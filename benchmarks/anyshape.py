"""Products of shapes that nobody tuned, beside cuBLAS: untuned, and after a few seconds of tuning each.

    python benchmarks/anyshape.py SEED COUNT --out FILE.json [--tune 3] [--seconds 540]

Shapes are those of random_products.py. Each is called as a user would call it, with an empty database, in turns with torch.matmul
on cold operands (`kgen.tuner.timer`); the first call's time on the host is told too: run it twice for that of compiled
kernels. Prints cuBLAS's time over kgen's: geometric mean, tenth percentile, worst.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from random_products import Product, products

import kgen
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands
from kgen.runtime import dispatch
from kgen.tuner.race import Policy
from kgen.tuner.timer import CudaClock, interleaved, is_warm, rotation

POLICY = Policy(relative=0.005, absolute=0.05e-6, least=12, most=200, seconds=0.5)
ROOT = Path(__file__).resolve().parent.parent


def measured(product: Product, tune: float) -> dict[str, Any]:
    """One product: times in seconds of cuBLAS and of kgen, untuned and tuned; and of the first call on the host."""
    problem, target = product.problem, resolve("auto")
    size = sum(o.elements * o.dtype.bytes for o in problem.operands)
    count = rotation(size, target.l2_bytes, torch.cuda.mem_get_info()[0])
    sets = [make_operands(problem, "normal", i, "cuda:0", guard=0) for i in range(count)]

    def ours(i: int) -> object:
        return kgen.hgemm(sets[i]["a"], sets[i]["b"], out=sets[i]["out"])

    def cublas(i: int) -> object:
        return torch.matmul(sets[i]["a"], sets[i]["b"], out=sets[i]["out"])

    torch.cuda.synchronize()
    begun = time.perf_counter()
    ours(0)
    first = time.perf_counter() - begun
    torch.cuda.synchronize()
    right = sets[0]["out"].clone()
    cublas(0)
    close = torch.allclose(right.float(), sets[0]["out"].float(), rtol=2e-2, atol=2e-2 * problem.sizes["K"] ** 0.5)

    def timed() -> dict[str, float]:
        found = interleaved(
            {"kgen": ours, "cublas": cublas},
            sets=count,
            policy=POLICY,
            race=False,
            warm_l2=is_warm(count, size, target.l2_bytes),
            clock=CudaClock(0, count),
        )
        return {name: timing.seconds for name, timing in found.items()}

    choice = dispatch.serve(problem, target)
    told: dict[str, Any] = {
        "product": str(product),
        "first_call": first,
        "close": close,
        "untuned": timed(),
        "config": repr(choice.config),
        "how": choice.how,
    }
    if tune:
        kgen.hgemm.tune(product.sizes, budget=f"{tune:g}s", dtype=product.dtype, layouts=product.layouts)
        ours(0)
        told |= {"tuned": timed(), "tuned_config": repr(dispatch.serve(problem, target).config)}
    return told


def table(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of both ways, cuBLAS's time over kgen's: geometric mean, tenth percentile, worst; and the first call's time."""
    rows: dict[str, Any] = {}
    for way in ("untuned", "tuned"):
        ratios = sorted(entry[way]["cublas"] / entry[way]["kgen"] for entry in found if way in entry)
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
            entry = found[-1]
            ratios = ", ".join(
                f"{way} {entry[way]['cublas'] / entry[way]['kgen']:.3f}" for way in ("untuned", "tuned") if way in entry
            )
            print(f"{entry['product']}: {ratios}{'' if entry['close'] else ' WRONG'}", flush=True)
    rows = table(found)
    for name, row in rows.items():
        print(f"{name:>14}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    if arguments.out:
        told = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        data = {
            "gpu": resolve("auto").name,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": arguments.commit or told.stdout.strip(),
            "seed": arguments.seed,
            "tuned_seconds": arguments.tune,
            "table": rows,
            "products": found,
        }
        arguments.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
