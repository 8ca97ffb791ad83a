"""Operators that memory limits, beside those of anyrows.py, at shapes that nobody tuned, beside torch, torch.compile and a copy.

    python benchmarks/anymemory.py SEED --out FILE.json [--seconds 300] [OPERATOR ...]

Reductions, sums of columns and rows, scans, transposes and look-ups in f16 and f32. Shapes are drawn evenly in their
logarithm: vectors of 4 KB to 128 MB, and 1 to 96 MB in rows of 1 to 262144. Each is called as a user would call it, with an
empty database, in turns with torch's operator, that operator compiled for the shape (max-autotune-no-cudagraphs) and a copy of
as many bytes, on cold operands. Prints the faster of torch's two times over kgen's: geometric mean and worst of each operator
and of all.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from beside_torch import of_torch, sets_of, summary, times, told
from drawn import tell
from torch import Tensor
from torch.nn import functional as F

import kgen
from kgen.tuner.race import Policy

POLICY = Policy(relative=0.007, absolute=0.05e-6, least=12, most=80, seconds=0.12)
Shape = tuple[int, ...]


def vector(source: random.Random, size: int) -> Shape:
    """Elements of `size` bytes."""
    return (round(math.exp(source.uniform(math.log(1 << 12), math.log(128 << 20))) / size),)


def matrix(source: random.Random, size: int) -> Shape:
    """Rows, and their length."""
    length = round(math.exp(source.uniform(0, math.log(262144))))
    return max(1, round(math.exp(source.uniform(math.log(1 << 20), math.log(96 << 20))) / size / length)), length


def columns(source: random.Random, size: int) -> Shape:
    """The same, of two rows and columns at least: of one, torch returns its transposed as it is."""
    count, length = matrix(source, size)
    return max(2, count), max(2, length)


def one(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.randn(shape, device="cuda").to(dtype),)


def two(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return one(shape, dtype) + one(shape, dtype)


def table_and_ids(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return *one(shape, dtype), torch.randint(0, shape[0], shape[:1], device="cuda")


#: By name: kgen's operator and torch's, what draws a shape, and the operands.
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Shape], Callable[..., Any]]] = {
    "reduce_sum": (kgen.reduce_sum, lambda x: x.sum(), vector, one),
    "reduce_max": (kgen.reduce_max, lambda x: x.max(), vector, one),
    "reduce_argmax": (kgen.reduce_argmax, lambda x: x.argmax(), vector, one),
    "norm": (kgen.norm, lambda x: x.norm(), vector, one),
    "dot": (kgen.dot, lambda a, b: torch.dot(a, b), vector, two),
    "column_sum": (kgen.column_sum, lambda x: x.sum(0), matrix, one),
    "column_max": (kgen.column_max, lambda x: x.amax(0), matrix, one),
    "row_sum": (kgen.row_sum, lambda x: x.sum(-1), matrix, one),
    "row_argmax": (kgen.row_argmax, lambda x: x.argmax(-1), matrix, one),
    "logsumexp": (kgen.logsumexp, lambda x: torch.logsumexp(x, -1), matrix, one),
    "cumsum": (kgen.cumsum, lambda x: x.cumsum(-1), matrix, one),
    "cumsum_vector": (kgen.cumsum, lambda x: x.cumsum(-1), vector, one),
    "logcumsumexp": (kgen.logcumsumexp, lambda x: x.logcumsumexp(-1), matrix, one),
    "transpose": (kgen.transpose, lambda x: x.t().contiguous(), columns, one),
    "embedding": (kgen.embedding, lambda table, ids: F.embedding(ids, table), matrix, table_and_ids),
}


def measured(name: str, dtype: torch.dtype, shape: Shape) -> dict[str, Any]:
    """Times in seconds of kgen, torch, torch compiled and a copy."""
    ours, theirs, _, operands = OPERATORS[name]
    first = operands(shape, dtype)
    result = theirs(*first)
    moved = sum(x.numel() * x.element_size() for x in (*first, result))
    count = sets_of(moved)
    sets = [first, *(operands(shape, dtype) for _ in range(count - 1))]
    half = -(-moved // 32) * 16  # bytes, aligned to vectors
    halves = [torch.empty(2, half, dtype=torch.uint8, device="cuda") for _ in range(min(count, 8))]
    exact = theirs(*(x.double() if x.dtype == dtype else x for x in first)).double()
    close = torch.allclose(ours(*first).double(), exact, rtol=1e-2, atol=1e-2 * float(exact.abs().max()))

    def copy(i: int) -> None:
        to, of = halves[i % len(halves)]
        to.copy_(of)

    seconds = times(ours, theirs, sets, copy, moved, POLICY)
    return {
        "operator": name,
        "dtype": str(dtype).split(".")[1],
        "shape": shape,
        "bytes": moved,
        "close": close,
        "seconds": seconds,
    }


def table(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of torch's time over kgen's, of each operator and of all."""
    kinds = {name: [of_torch(e["seconds"]) for e in found if e["operator"] == name] for name in OPERATORS}
    return summary({**kinds, "all": [of_torch(e["seconds"]) for e in found]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "operators", nargs="*", metavar="OPERATOR", choices=[[], *OPERATORS], help="all where none is named"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="until the last shape is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    given = parser.parse_args()
    begun, source, found = time.monotonic(), random.Random(f"memory {given.seed}"), []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["KGEN_DATABASE"] = str(Path(folder) / "empty.sqlite")
        warnings.filterwarnings("ignore", category=kgen.KgenWarning)
        while time.monotonic() - begun < given.seconds:
            for name in given.operators or OPERATORS:
                for dtype in (torch.float16, torch.float32):
                    shape = OPERATORS[name][2](source, torch.empty((), dtype=dtype).element_size())
                    if time.monotonic() - begun > given.seconds:
                        continue
                    entry = measured(name, dtype, shape)
                    found.append(entry)
                    where = f"{name} {entry['dtype']} {'x'.join(map(str, shape))}"
                    print(told(where, entry), flush=True)
    tell(table(found), given.out, given.commit, seed=given.seed, rows=found)


if __name__ == "__main__":
    main()
