"""Rows of lengths that nobody tuned, beside torch, torch.compile and a copy of as many bytes.

    python benchmarks/anyrows.py SEED COUNT --out FILE.json [--seconds 300]

Softmax, layer_norm and rms_norm in f16 and f32, of COUNT lengths drawn evenly in their logarithm from 1 to 65536, with as many
rows as come to some 64 MB. Each is called as a user would call it, with an empty database, in turns with torch's operator,
that operator compiled for that length (max-autotune-no-cudagraphs) and a copy, on cold operands. Prints the faster of
torch's two times over kgen's, and of the copy's over kgen's for lengths from 64 on: geometric mean and worst.
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
from beside_torch import of_copy, of_torch, sets_of, summary, times, told
from drawn import tell
from torch.nn import functional as F

import kgen
from kgen.tuner.race import Policy

POLICY = Policy(relative=0.005, absolute=0.05e-6, least=12, most=100, seconds=0.2)
BYTES, LONGEST = 64 << 20, 65536

#: By operator: kgen's and torch's, of rows and the vectors of their length that they take beside.
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], int]] = {
    "softmax": (kgen.softmax, lambda x: torch.softmax(x, -1), 0),
    "layer_norm": (kgen.layer_norm, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), 2),
    "rms_norm": (kgen.rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), 1),
}


def lengths(seed: int, count: int) -> list[int]:
    """The same for a seed on every machine."""
    drawn = random.Random(f"rows {seed}")
    return [round(math.exp(drawn.uniform(0, math.log(LONGEST)))) for _ in range(count)]


def measured(name: str, dtype: torch.dtype, length: int) -> dict[str, Any]:
    """Times in seconds of kgen, torch, torch compiled and a copy."""
    ours, theirs, vectors = OPERATORS[name]
    size = torch.empty((), dtype=dtype).element_size()
    rows = max(1, BYTES // (size * length))
    moved = 2 * rows * length * size
    count = sets_of(moved)
    beside = [torch.randn(length, dtype=dtype, device="cuda") for _ in range(vectors)]
    sets = [(torch.randn(rows, length, dtype=dtype, device="cuda"), *beside) for _ in range(count)]
    out = [torch.empty_like(x) for x, *_ in sets]
    close = torch.allclose(ours(*sets[0]).float(), theirs(*sets[0]).float(), rtol=1e-2, atol=1e-2)
    seconds = times(ours, theirs, sets, lambda i: out[i].copy_(sets[i][0]), moved, POLICY)
    return {
        "operator": name,
        "dtype": str(dtype).split(".")[1],
        "length": length,
        "rows": rows,
        "close": close,
        "seconds": seconds,
    }


def table(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of the opponent's time over kgen's."""
    return summary(
        {
            "of the faster of torch's": [of_torch(entry["seconds"]) for entry in found],
            "of a copy, from 64 on": [of_copy(entry["seconds"]) for entry in found if entry["length"] >= 64],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=300.0, help="until the last length is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    given = parser.parse_args()
    begun, found = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["KGEN_DATABASE"] = str(Path(folder) / "empty.sqlite")
        warnings.filterwarnings("ignore", category=kgen.KgenWarning)
        for length in lengths(given.seed, given.count):
            for name in OPERATORS:
                for dtype in (torch.float16, torch.float32):
                    if time.monotonic() - begun > given.seconds:
                        continue
                    entry = measured(name, dtype, length)
                    found.append(entry)
                    print(told(f"{name} {entry['dtype']} {length}", entry), flush=True)
    tell(table(found), given.out, given.commit, seed=given.seed, rows=found)


if __name__ == "__main__":
    main()
