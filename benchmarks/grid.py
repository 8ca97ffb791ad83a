"""Times a grid of random products x configs on the GPU of this machine, for `kgen fit --grid FILE`.

    python benchmarks/grid.py SEED COUNT --seconds 270 --out benchmarks/results/h200/grid_1.json.gz

Of each product the model's best configs, and others drawn from all that a search considers, take turns with cuBLAS: each alone,
its operands cold, as the tuner times them (`kgen.tuner.timer`). A config that is certainly slower leaves its race early, and its
time says so roughly. Nothing is verified: the gate does that. Kernels are compiled for all products first, by threads; one source
serves many sizes. What is done when the time is up is written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_products import MOST_TOKENS, Product, products

from kgen.bench.environment import commit as commit_of_tree
from kgen.cli.trials import FORMAT, VERSION
from kgen.dsl.errors import KgenError
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.binary import Binary
from kgen.gpu.cache import CubinCache
from kgen.gpu.kernel import Kernel, load
from kgen.gpu.target import resolve
from kgen.numerics.operands import make_operands, scalar_values
from kgen.ops.gemm import Gemv, SimtGemm, WgmmaGemm
from kgen.tuner.best import best
from kgen.tuner.build import build
from kgen.tuner.columns import Table, scored
from kgen.tuner.execute import Runner
from kgen.tuner.race import Policy
from kgen.tuner.ragged import symbols
from kgen.tuner.timer import CudaClock, interleaved, is_warm, rotation
from kgen.tuner.worker import opponent

CUBLAS = "cublas"
SCHEDULES = (WgmmaGemm, SimtGemm, Gemv)
POLICY = Policy(relative=0.01, absolute=0.1e-6, least=6, most=40, seconds=0.1)


def configs_of(problem: NormalProblem, target: Target, source: random.Random, top: int, drawn: int) -> list[Schedule]:
    """The model's best of each schedule, its best of each kind, and others drawn evenly from those that a search considers."""
    found: dict[Schedule, None] = {}
    for schedule in SCHEDULES:
        if not schedule.applies(problem) or not schedule.worth_searching(problem, target):
            continue
        whole = list(scored(schedule, problem, target))
        tables = [table for table, _ in whole]
        found |= dict.fromkeys(best(schedule, problem, target, top)) if tables else {}
        found |= dict.fromkeys(config for table, seconds in whole for config in best_of_kinds(table, seconds))
        for _ in range(drawn if tables else 0):
            table = source.choices(tables, [t.count for t in tables])[0]
            found[table.config(source.randrange(table.count))] = None
    return list(found)


def best_of_kinds(table: Table, seconds: np.ndarray) -> list[Schedule]:
    """Of each kind, what is alike in all fields that are words or switches, the config of the least modelled time."""
    named = [n for n, f in table.schedule.fields.items() if isinstance(f.values[0], (str, bool))]
    columns = [getattr(table[n], "codes", table[n]) for n in named if n not in table.schedule.last]
    kinds = np.stack([np.broadcast_to(column, (table.count,)) for column in columns], axis=1)
    order = np.argsort(seconds, kind="stable")
    _, first = np.unique(kinds[order], axis=0, return_index=True)
    return [table.config(row) for row in order[first].tolist()]


class Kernels:
    """Binaries of sources, compiled once each, and loaded once."""

    def __init__(self, target: Target) -> None:
        self.target, self.cache = target, CubinCache()
        self.binaries: dict[str, Binary | None] = {}
        self.loaded: dict[str, Kernel] = {}

    def compile(self, wanted: list[tuple[Schedule, NormalProblem]]) -> None:
        """Compiles the sources of configs that are not there yet, by as many threads as there are cores."""
        new: dict[str, tuple[Schedule, NormalProblem]] = {}
        for config, problem in wanted:
            digest = config.source(problem).digest
            if digest not in self.binaries:
                new.setdefault(digest, (config, problem))

        def one(entry: tuple[str, tuple[Schedule, NormalProblem]]) -> None:
            with suppress(KgenError):
                self.binaries[entry[0]] = build(*entry[1], self.target, self.cache).binary

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, new.items()))

    def runner(self, config: Schedule, problem: NormalProblem, device: int) -> Runner | None:
        """A config's kernel for a problem; None where it could not be compiled."""
        source = config.source(problem)
        binary = self.binaries.get(source.digest)
        if binary is None or binary.fatal_warnings:
            return None
        if source.digest not in self.loaded:
            self.loaded[source.digest] = load(binary, source, device)
        return Runner(self.loaded[source.digest], source, symbols(config, problem, self.target.sm_count))


def timed(product: Product, chosen: list[Schedule], kernels: Kernels, device: int) -> dict[str, Any]:
    """One product's entry in the file."""
    problem = normalised(product.problem)
    size = sum(o.elements * o.dtype.bytes for o in problem.operands)
    count = rotation(size, kernels.target.l2_bytes, torch.cuda.mem_get_info(device)[0])
    sets = [make_operands(problem, "normal", i, f"cuda:{device}", guard=0) for i in range(count)]
    scalars, launches, runners = scalar_values(problem.graph), {}, []
    for config in chosen:
        runner = kernels.runner(config, problem, device)
        if runner is not None:
            runners.append(runner)  # which has the workspaces
            prepared = [runner.prepare(tensors, scalars) for tensors in sets]
            launches[repr(config)] = lambda i, prepared=prepared: prepared[i](
                stream=torch.cuda.current_stream(device).cuda_stream
            )
    cublas = opponent(problem, sets)
    launches |= {CUBLAS: cublas} if cublas else {}
    timings = interleaved(
        launches,
        sets=count,
        device=device,
        policy=POLICY,
        keep=(CUBLAS,),
        warm_l2=is_warm(count, size, kernels.target.l2_bytes),
        clock=CudaClock(device, count),
    )
    seconds = {name: float(f"{timing.seconds:.5g}") for name, timing in timings.items()}
    return {
        "operator": product.operator,
        "dtype": product.dtype,
        "sizes": product.sizes,
        "layouts": product.layouts,
        "cublas": seconds.pop(CUBLAS, None),
        "configs": seconds,
        "out_of_race": [name for name, timing in timings.items() if "out_of_race" in timing.flags and name != CUBLAS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=270, help="until the last product is begun")
    parser.add_argument("--out", type=Path, required=True, help="a .json.gz")
    parser.add_argument("--commit", help="of the tree, where it is no git checkout")
    parser.add_argument("--f32", action="store_true", help="products in f32, without tensor cores")
    parser.add_argument("--tokens", type=int, default=MOST_TOKENS, help="rows of A at most")
    parser.add_argument("--top", type=int, default=24, help="of each schedule: the model's best")
    parser.add_argument("--drawn", type=int, default=12, help="and those drawn beside them")
    parser.add_argument("--list", action="store_true", help="only say what would be timed")
    arguments = parser.parse_args()
    begun, source = time.monotonic(), random.Random(arguments.seed)
    target = resolve("H200" if arguments.list else "auto")
    drawn = products(arguments.seed, arguments.count, arguments.f32, arguments.tokens)
    chosen = [
        (product, configs_of(normalised(product.problem), target, source, arguments.top, arguments.drawn))
        for product in drawn
    ]
    wanted = [(config, normalised(product.problem)) for product, configs in chosen for config in configs]
    print(f"{len(drawn)} products, {len(wanted)} configs on {target}, {time.monotonic() - begun:.0f} s", flush=True)
    if arguments.list:
        print("\n".join(f"{product}: {len(configs)} configs" for product, configs in chosen))
        return
    kernels, found = Kernels(target), []
    kernels.compile(wanted)
    print(f"{len(kernels.binaries)} kernels, {time.monotonic() - begun:.0f} s", flush=True)
    with torch.no_grad():
        for product, configs in chosen:
            if time.monotonic() - begun > arguments.seconds:
                break
            try:
                found.append(timed(product, configs, kernels, 0))
            except (KgenError, RuntimeError) as error:  # the context may be lost: what was measured is kept
                print(f"{product}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                break
            if len(found) % 10 == 0:
                print(f"{len(found)} products, {time.monotonic() - begun:.0f} s", flush=True)
                write(arguments.out, found, target, arguments.seed, arguments.commit)
    write(arguments.out, found, target, arguments.seed, arguments.commit)
    print(f"wrote {arguments.out}: {len(found)} products, {sum(len(entry['configs']) for entry in found)} times")


def write(out: Path, found: list[dict[str, Any]], target: Target, seed: int, commit: str | None) -> None:
    """The file, compressed."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "gpu": target.name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or commit_of_tree(),
        "seed": seed,
        "policy": str(POLICY),
        "problems": found,
    }
    out.write_bytes(gzip.compress((json.dumps(data) + "\n").encode(), mtime=0))


if __name__ == "__main__":
    main()
