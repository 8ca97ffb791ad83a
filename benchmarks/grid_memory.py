"""Times a grid of random operators that memory limits x configs on the GPU of this machine, for `kgen fit --grid FILE`.

    python benchmarks/grid_memory.py SEED COUNT --seconds 270 --out benchmarks/results/h200/grid_reductions.json.gz [OPERATOR ...]

Of each operator and dtype COUNT shapes are drawn, evenly in their logarithm: 2^10 to 2^26 elements (`--elements`), in rows or
columns of any length. A third of the configs of each are the best by the model, the others are drawn from all that a search
considers. They take turns as in benchmarks/grid.py, whose format the file has.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path
from typing import Any

from grid import Kernels, rounded, times, write

from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.gpu.target import resolve
from kgen.runtime.shipped import shipped
from kgen.tuner.candidates import Candidates
from kgen.tuner.race import Policy

POLICY = Policy(relative=0.01, absolute=0.05e-6, least=6, most=40, seconds=0.08)
Shape = dict[str, Any]


def between(source: random.Random, low: float, high: float) -> int:
    """A number between two powers of two."""
    return round(2 ** source.uniform(low, high))


def whole(source: random.Random, elements: int) -> Shape:
    """A vector."""
    return {"...": (elements,)}


def matrix(source: random.Random, elements: int) -> Shape:
    """M x N, of which N is up to 2^18."""
    n = between(source, 0, 18)
    return {"M": max(1, elements // n), "N": n}


def rows(source: random.Random, elements: int) -> Shape:
    """Rows, up to 2^18 long."""
    drawn = matrix(source, elements)
    return {"...": (drawn["M"],), "N": max(2, drawn["N"])}


def short_rows(source: random.Random, elements: int) -> Shape:
    """Rows of up to 2^10."""
    n = max(1, between(source, 0, 10))
    return {"...": (max(1, elements // n),), "N": n}


def few_columns(source: random.Random, elements: int) -> Shape:
    """Rows of up to 2^4."""
    n = max(1, between(source, 0, 4))
    return {"...": (max(1, elements // n),), "N": n}


def long_rows(source: random.Random, elements: int) -> Shape:
    """Up to 2^8 rows, whatever their length."""
    count = between(source, 0, 8)
    return {"...": (count,), "N": max(2, elements // count)}


def channels(source: random.Random, elements: int) -> Shape:
    """A batch of channels with their positions."""
    b, c = between(source, 0, 7), between(source, 2, 11)
    return {"B": b, "C": c, "S": max(1, min(2**18, elements // (b * c)))}


def table(source: random.Random, elements: int) -> Shape:
    """Rows of up to 2^13 that are looked up, in a table of as many, or sixteen times fewer or more."""
    c = between(source, 0, 13)
    count = max(1, elements // c)
    return {"...": (count,), "V": max(1, min(round(count * 2 ** source.uniform(-4, 4)), 2**28 // c)), "C": c}


def heads(source: random.Random, elements: int) -> Shape:
    """Heads of 16 to 256."""
    h, d = between(source, 0, 6), source.choice((16, 40, 64, 80, 128, 256))
    s = max(1, min(between(source, 0, 13), elements // (h * d)))
    return {"B": max(1, elements // (s * h * d)), "S": s, "P": 3, "H": h, "D": d}


def images(source: random.Random, elements: int) -> Shape:
    """Images that are enlarged to up to four times each side."""
    oh, ow = between(source, 2, 10), between(source, 2, 10)
    h, w = (max(1, round(n / 2 ** source.uniform(0, 2))) for n in (oh, ow))
    return {"...": (max(1, elements // (oh * ow)),), "H": h, "W": w, "OH": oh, "OW": ow}


def batch(source: random.Random, elements: int) -> Shape:
    """Matrices, few or one."""
    n, count = between(source, 0, 14), max(1, between(source, -4, 4))
    return {"...": (count,), "M": max(1, elements // (n * count)), "N": n}


def narrow(source: random.Random, elements: int) -> Shape:
    """Matrices of up to 64 rows, or of as many columns: one, or a batch."""
    few, count = between(source, 0, 6), source.choice((1, 1, 8, 64))
    many = max(1, elements // (few * count))
    m, n = source.sample((few, many), 2)
    return {"...": (count,), "M": m, "N": n}


CASES = (
    ("reduce_sum", "f16", whole), ("norm", "f32", whole), ("reduce_max", "f32", whole), ("reduce_argmax", "f16", whole),
    ("dot", "f16", whole), ("column_sum", "f16", matrix), ("column_sum", "f32", matrix), ("column_max", "f16", matrix),
    ("layer_norm_backward_weight", "f16", matrix), ("batch_norm_stats", "f16", channels), ("batch_norm_stats", "f32", channels),
    ("cumsum", "f16", rows), ("cumsum", "f32", rows), ("logcumsumexp", "f16", rows),
    ("cumsum", "f16", long_rows), ("cumsum", "f32", long_rows), ("logcumsumexp", "f32", long_rows), ("cumprod", "f64", long_rows),
    ("cumsum", "f16", short_rows), ("cumsum", "f32", short_rows), ("logcumsumexp", "f16", short_rows),
    ("logcumsumexp", "f32", short_rows), ("cumprod", "f64", short_rows),
    ("cumsum", "f16", few_columns), ("cumsum", "f32", few_columns), ("logcumsumexp", "f16", few_columns),
    ("logcumsumexp", "f32", few_columns), ("cumprod", "f64", few_columns),
    ("embedding", "f16", table), ("embedding", "f32", table), ("merge_heads", "f16", heads),
    ("upsample_nearest", "f16", images), ("upsample_nearest", "f32", images),
    ("transpose", "f16", batch), ("transpose", "f32", batch),
    ("transpose", "f16", narrow), ("transpose", "f32", narrow), ("gelu", "f16", whole), ("add", "f32", whole),
)  # fmt: skip


def configs_of(problem: NormalProblem, target: Target, source: random.Random, most: int) -> list[Schedule]:
    """The default first; of every schedule alike a third are the model's best, the others are drawn from all that a search
    considers."""
    candidates = Candidates(problem, target)
    share, chosen = most // len(candidates.spaces), {candidates.default: None}
    for space in candidates.spaces:
        own: dict[Schedule, None] = dict.fromkeys([c for c in candidates.ranking if c in space][: share // 3])
        for _ in range(4 * share):
            if len(own) < min(share, space.count):
                own[space.draw(source)] = None
        chosen |= own
    return list(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="all where none is named")
    parser.add_argument(
        "--elements", type=int, nargs=2, default=(10, 26), metavar=("LOW", "HIGH"), help="powers of two"
    )
    parser.add_argument("--most", type=int, default=24, help="configs of a shape")
    parser.add_argument("--seconds", type=float, default=270)
    parser.add_argument("--out", type=Path, required=True, help="a .json.gz")
    parser.add_argument("--commit", help="of the tree, where it is no git checkout")
    given = parser.parse_args()
    begun, target, source = time.monotonic(), resolve("auto"), random.Random(given.seed)
    entries = []
    for _ in range(given.count):
        for name, dtype, draw in CASES:
            if name not in (given.operators or [name]):
                continue
            sizes = draw(source, between(source, *given.elements))
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
