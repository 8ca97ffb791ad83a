"""Host time of a shape's first call: with its kernel loaded, with it compiled before, and of a process's first call.

    python benchmarks/first_calls.py SEED COUNT --out FILE.json

COUNT products of random_products.py's kind, TN in bf16, of eight weights that are drawn too, each with a number of tokens that
did not occur before, are called by two processes one after the other, with an empty database and caches of their own: the first
one compiles what the second one loads, kernels and, as an installation does, Python's modules. A call's time ends when it
returns; nothing is under way when it begins, torch and its CUDA context are up. After a process's first call no garbage is
collected, as in `timeit`: with torch's objects a full collection takes 50 to 130 ms, in whatever call the interpreter has it.
Prints median and worst by what the call had to do.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

LOADED, COMPILED, NEW, PROCESS = (
    "kernel loaded",
    "compiled before, not loaded",
    "compiled by the call",
    "first of a process",
)


def shapes(seed: int, count: int) -> list[tuple[int, int, int]]:
    """(M, N, K), no two alike."""
    from random_products import MOST_TOKENS, WEIGHTS

    drawn = random.Random(f"first calls {seed}")
    weights = drawn.sample(WEIGHTS, 8)
    found: dict[tuple[int, int, int], None] = {}
    while len(found) < count:
        n, k = drawn.choice(weights)
        found[round(2 ** drawn.uniform(0, 13)) % MOST_TOKENS or 1, n, k] = None
    return list(found)


def calls(drawn: list[tuple[int, int, int]]) -> list[tuple[bool, float]]:
    """Whether each call loaded a kernel, and its seconds; of this process, of which the first call's has the import of kgen.

    So nothing else of this file's process may have imported it.
    """
    torch.zeros(1, device="cuda").sum().item()
    begun = time.perf_counter()
    import kgen
    from kgen.runtime import call

    imported = time.perf_counter() - begun
    warnings.simplefilter("ignore", kgen.KgenWarning)
    found: list[tuple[bool, float]] = []
    for m, n, k in drawn:
        a = torch.zeros(m, k, dtype=torch.bfloat16, device="cuda")
        b = torch.zeros(n, k, dtype=torch.bfloat16, device="cuda").T
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        loaded = len(call._kernels)
        begun = time.perf_counter()
        kgen.hgemm(a, b, out=out)
        seconds = time.perf_counter() - begun
        torch.cuda.synchronize()
        found.append((len(call._kernels) > loaded, seconds if found else imported + seconds))
        gc.disable()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        print(json.dumps(calls(json.load(sys.stdin))))
        return
    from drawn import tell

    given_shapes = json.dumps(shapes(given.seed, given.count))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        own = {"KGEN_DATABASE": str(Path(folder) / "empty.sqlite"), "KGEN_CACHE_DIR": folder}
        own |= {"PYTHONPYCACHEPREFIX": str(Path(folder) / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
        for process in ("first", "second"):
            command = [sys.executable, __file__, str(given.seed), str(given.count), "--process"]
            env = {**os.environ, **own}
            told = subprocess.run(command, input=given_shapes, env=env, stdout=subprocess.PIPE, text=True, check=True)
            first, *others = json.loads(told.stdout.splitlines()[-1])
            if process == "second":
                found[PROCESS] = [first[1]]
            for loads, seconds in others:
                kind = LOADED if not loads else NEW if process == "first" else COMPILED
                found.setdefault(kind, []).append(seconds)
    rows = {
        kind: {"median": statistics.median(times), "worst": max(times), "of": len(times)}
        for kind, times in found.items()
    }
    tell(rows, given.out, given.commit, seed=given.seed, seconds=found)


if __name__ == "__main__":
    main()
