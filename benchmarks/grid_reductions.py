"""Times a grid of random reductions and scans x configs on the GPU of this machine, for `kgen fit --grid FILE`.

    python benchmarks/grid_reductions.py SEED COUNT --seconds 270 --out benchmarks/results/h200/grid_reductions.json.gz

Of each operator and dtype COUNT shapes are drawn, evenly in their logarithm: 2^10 to 2^26 elements, in rows or columns of any
length. A third of the configs of each are the best by the model, the others are drawn from all that a search considers. They
take turns as in benchmarks/grid.py, whose format the file has.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path
from typing import Any

from grid import Kernels, rounded, times, write

from kgen.dsl.family import family_of, normalised
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.target import resolve
from kgen.runtime.shipped import shipped
from kgen.tuner.columns import scored
from kgen.tuner.race import Policy

POLICY = Policy(relative=0.01, absolute=0.05e-6, least=6, most=40, seconds=0.08)
Shape = dict[str, Any]


def whole(source: random.Random) -> Shape:
    """A vector."""
    return {"...": (round(2 ** source.uniform(10, 26)),)}


def matrix(source: random.Random) -> Shape:
    """M x N, of which N is up to 2^18."""
    elements, n = 2 ** source.uniform(12, 26), round(2 ** source.uniform(0, 18))
    return {"M": max(1, round(elements / n)), "N": n}


def rows(source: random.Random) -> Shape:
    """Rows, up to 2^18 long."""
    drawn = matrix(source)
    return {"...": (drawn["M"],), "N": max(2, drawn["N"])}


def channels(source: random.Random) -> Shape:
    """A batch of channels with their positions."""
    b, c, s = (round(2 ** source.uniform(low, high)) for low, high in ((0, 7), (2, 11), (0, 13)))
    return {"B": b, "C": c, "S": max(1, min(s, 2**26 // (b * c)))}


CASES = (
    ("reduce_sum", "f16", whole), ("norm", "f32", whole), ("reduce_max", "f32", whole), ("reduce_argmax", "f16", whole),
    ("dot", "f16", whole), ("column_sum", "f16", matrix), ("column_sum", "f32", matrix), ("column_max", "f16", matrix),
    ("layer_norm_backward_weight", "f16", matrix), ("batch_norm_stats", "f16", channels), ("batch_norm_stats", "f32", channels),
    ("cumsum", "f16", rows), ("cumsum", "f32", rows), ("logcumsumexp", "f16", rows),
)  # fmt: skip


def configs_of(problem: NormalProblem, target: Target, source: random.Random, most: int) -> list[Schedule]:
    """A third are the model's best; the others are drawn from all that a search considers, of every schedule alike."""
    schedules = [
        s for s in family_of(problem.graph).schedules if s.applies(problem) and s.worth_searching(problem, target)
    ]
    chosen: dict[Schedule, None] = {}
    for schedule in schedules:
        found = [
            (table, row, x) for table, seconds in scored(schedule, problem, target) for row, x in enumerate(seconds)
        ]
        found.sort(key=lambda entry: entry[2])
        share = most // len(schedules)
        rest = source.sample(found[share // 3 :], min(len(found[share // 3 :]), share - share // 3))
        chosen |= dict.fromkeys(table.config(row) for table, row, _ in (*found[: share // 3], *rest))
    return list(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--most", type=int, default=24, help="configs of a shape")
    parser.add_argument("--seconds", type=float, default=270)
    parser.add_argument("--out", type=Path, required=True, help="a .json.gz")
    parser.add_argument("--commit", help="of the tree, where it is no git checkout")
    given = parser.parse_args()
    begun, target, source = time.monotonic(), resolve("auto"), random.Random(given.seed)
    entries = []
    for _ in range(given.count):
        for name, dtype, draw in CASES:
            sizes = draw(source)
            problem = normalised(shipped(name).problem(sizes, dtype=dtype))
            chosen = configs_of(problem, target, source, given.most) if problem.work else []
            if len(chosen) > 1:
                entries.append((name, dtype, sizes, problem, chosen))
    kernels = Kernels(target)
    kernels.compile([(c, p) for *_, p, chosen in entries for c in chosen], given.seconds * 0.7)
    print(f"compiled {len(kernels.binaries)} by {time.monotonic() - begun:.0f} s", flush=True)
    found: list[dict[str, Any]] = []
    source.shuffle(entries)
    for name, dtype, sizes, problem, chosen in entries:
        if time.monotonic() - begun > given.seconds:
            break
        seconds = rounded(times(problem, chosen, kernels, 0, POLICY))
        found.append({"operator": name, "dtype": dtype, "sizes": sizes, "layouts": {}, "configs": seconds})
        first, best = seconds.get(repr(chosen[0]), math.nan), min(seconds, key=seconds.__getitem__)
        print(f"{problem}: {first * 1e6:.2f}, best {seconds[best] * 1e6:.2f} us by {best}", flush=True)
    write(given.out, found, target, POLICY, given.seed, given.commit)
    print(f"{len(found)} problems, {sum(len(e['configs']) for e in found)} times in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
