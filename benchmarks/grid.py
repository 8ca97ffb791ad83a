"""Times a grid of random products x configs on the GPU of this machine, for `kgen fit --grid FILE`.

    python benchmarks/grid.py SEED COUNT --seconds 270 --out benchmarks/results/h200/grid_1.json.gz

Of each product the model's best configs, the best of each kind, and others drawn from what it has near them take turns with
cuBLAS: each alone, its operands cold, as the tuner times them (`kgen.tuner.timer`). A config that is certainly slower leaves its
race early, and its time says so roughly. Nothing is verified: the gate does that. Kernels are compiled for all products first, by
threads; one source serves many sizes. What is done when the time is up is written. Several GPUs take a `--part` each.
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
from kgen.tuner.build import build
from kgen.tuner.columns import Table, scored
from kgen.tuner.execute import Runner
from kgen.tuner.race import Policy, Timing
from kgen.tuner.ragged import symbols
from kgen.tuner.timer import CudaClock, interleaved, is_warm, rotation
from kgen.tuner.worker import opponent

CUBLAS = "cublas"
SCHEDULES = (WgmmaGemm, SimtGemm, Gemv)
#: Fields by which configs are no kinds of their own: each is another kernel to compile. What is drawn has all their values.
DETAILS = ("raster", "group", "pdl", "store", "epilogue_stages", "stages")
#: Configs that the model has so many times as slow as its best are left out.
REACH = 1.7
POLICY = Policy(relative=0.01, absolute=0.1e-6, least=6, most=40, seconds=0.1)


def configs_of(problem: NormalProblem, target: Target, source: random.Random, most: int) -> list[Schedule]:
    """Of what the model has within REACH of its best: a quarter are the best, an eighth is drawn evenly, and the others are
    the best of each kind, then the second of each, and so on."""
    found: list[tuple[float, int, Table, int]] = []
    for schedule in SCHEDULES:
        if schedule.applies(problem) and schedule.worth_searching(problem, target):
            for table, seconds in scored(schedule, problem, target):
                found += zip(seconds, places_in_kind(table, seconds), [table] * table.count, range(table.count))
    reach = REACH * min(seconds for seconds, *_ in found)
    ranked = sorted((row for row in found if row[0] < reach), key=lambda row: row[0])
    first = [row for row in ranked if row[1] >= 0]
    drawn = source.sample(ranked, min(len(ranked), most // 8))
    chosen: dict[Schedule, None] = {}
    for _, _, table, row in (*first[: most // 4], *drawn, *sorted(first, key=lambda row: row[1])):
        if len(chosen) < most:
            chosen[table.config(row)] = None
    return list(chosen)


def places_in_kind(table: Table, seconds: np.ndarray) -> np.ndarray:
    """Of each row, how many of its kind are faster by the model; -1 where that is its like with other DETAILS.

    Of a kind are those alike in all other fields that are words or switches.
    """
    fields = {name: field for name, field in table.schedule.fields.items() if name not in DETAILS}
    columns = {n: np.broadcast_to(getattr(table[n], "codes", table[n]), (table.count,)) for n in fields}
    named = [n for n, field in fields.items() if isinstance(field.values[0], (str, bool))]
    order = np.argsort(seconds, kind="stable")
    _, first = np.unique(np.stack([c[order] for c in columns.values()]), axis=1, return_index=True)
    rows = order[np.sort(first)]
    _, kinds = np.unique(np.stack([columns[n][rows] for n in named]), axis=1, return_inverse=True)
    by_kind = np.argsort(kinds.ravel(), kind="stable")
    begins = np.searchsorted(kinds.ravel()[by_kind], kinds.ravel())
    places = np.full(table.count, -1)
    places[rows[by_kind]] = np.arange(len(rows)) - begins[by_kind]
    return places


class Kernels:
    """Binaries of sources, compiled once each, and loaded once."""

    def __init__(self, target: Target) -> None:
        self.target, self.cache = target, CubinCache()
        self.binaries: dict[str, Binary | None] = {}
        self.loaded: dict[str, Kernel] = {}

    def compile(self, wanted: list[tuple[Schedule, NormalProblem]], seconds: float) -> None:
        """Compiles the sources of configs that are not there yet, by as many threads as there are cores, so many seconds long."""
        until = time.monotonic() + seconds
        new: dict[str, tuple[Schedule, NormalProblem]] = {}
        for config, problem in wanted:
            digest = config.source(problem).digest
            if digest not in self.binaries:
                new.setdefault(digest, (config, problem))

        def one(entry: tuple[str, tuple[Schedule, NormalProblem]]) -> None:
            if time.monotonic() > until:
                return
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
        if source.loaded_as not in self.loaded:
            self.loaded[source.loaded_as] = load(binary, source, device)
        return Runner(self.loaded[source.loaded_as], source, symbols(config, problem, self.target.sm_count))


def timed(product: Product, chosen: list[Schedule], kernels: Kernels, device: int) -> dict[str, Any]:
    """One product's entry in the file."""
    timings = times(normalised(product.problem), chosen, kernels, device, POLICY, beside_cublas=True)
    seconds = rounded(timings)
    return {
        "operator": product.operator,
        "dtype": product.dtype,
        "sizes": product.sizes,
        "layouts": product.layouts,
        "cublas": seconds.pop(CUBLAS, None),
        "configs": seconds,
        "out_of_race": [name for name, timing in timings.items() if "out_of_race" in timing.flags and name != CUBLAS],
    }


def rounded(timings: dict[str, Timing]) -> dict[str, float]:
    """Seconds, as the file has them."""
    return {name: float(f"{timing.seconds:.5g}") for name, timing in timings.items()}


def times(
    problem: NormalProblem,
    chosen: list[Schedule],
    kernels: Kernels,
    device: int,
    policy: Policy,
    beside_cublas: bool = False,
) -> dict[str, Timing]:
    """What each config takes that was compiled, by its text; and cuBLAS, where it is to take turns with them."""
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
    cublas = opponent(problem, sets) if beside_cublas else None
    launches |= {CUBLAS: cublas} if cublas else {}
    return interleaved(
        launches,
        sets=count,
        device=device,
        policy=policy,
        keep=(CUBLAS,),
        warm_l2=is_warm(count, size, kernels.target.l2_bytes),
        clock=CudaClock(device, count),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=270, help="until the last product is begun")
    parser.add_argument("--out", type=Path, required=True, help="a .json.gz")
    parser.add_argument("--commit", help="of the tree, where it is no git checkout")
    parser.add_argument("--f32", action="store_true", help="products in f32, without tensor cores")
    parser.add_argument("--tokens", type=int, default=MOST_TOKENS, help="rows of A at most")
    parser.add_argument("--configs", type=int, default=140, help="of each product")
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"), help="every OF-th product, from I"
    )
    parser.add_argument("--list", action="store_true", help="only say what would be timed")
    arguments = parser.parse_args()
    begun, source = time.monotonic(), random.Random(arguments.seed)
    target = resolve("H200" if arguments.list else "auto")
    part, of = arguments.part
    drawn = products(arguments.seed, arguments.count, arguments.f32, arguments.tokens)[part::of]
    chosen = [
        (product, configs_of(normalised(product.problem), target, source, arguments.configs)) for product in drawn
    ]
    wanted = [(config, normalised(product.problem)) for product, configs in chosen for config in configs]
    print(f"{len(drawn)} products, {len(wanted)} configs on {target}, {time.monotonic() - begun:.0f} s", flush=True)
    if arguments.list:
        print("\n".join(f"{product}: {len(configs)} configs" for product, configs in chosen))
        return
    kernels, found = Kernels(target), []
    kernels.compile(wanted, arguments.seconds * 2 / 3)
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
                write(arguments.out, found, target, POLICY, arguments.seed, arguments.commit)
    write(arguments.out, found, target, POLICY, arguments.seed, arguments.commit)
    print(f"wrote {arguments.out}: {len(found)} products, {sum(len(entry['configs']) for entry in found)} times")


def write(
    out: Path, found: list[dict[str, Any]], target: Target, policy: Policy, seed: int, commit: str | None
) -> None:
    """The file, compressed."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "gpu": target.name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or commit_of_tree(),
        "seed": seed,
        "policy": str(policy),
        "problems": found,
    }
    out.write_bytes(gzip.compress((json.dumps(data) + "\n").encode(), mtime=0))


if __name__ == "__main__":
    main()
