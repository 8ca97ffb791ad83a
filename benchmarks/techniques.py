"""Every technique of a schedule beside the others, beside kgen's best and beside an opponent, on the GPU of this machine.

    python benchmarks/techniques.py --out benchmarks/results/h200

What the hand-written collections have as a kernel each is a technique here (`Schedule.techniques`, docs/tiling.md). Each is
tuned with `--budget` for each problem within its own configs, and last the operator; then all are timed in turns. Written as
techniques_NAME.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h200 import at_commit

import kgen
from kgen.bench import Result, run
from kgen.bench.table import participants_table
from kgen.bench.techniques import techniques, tune_each
from kgen.gpu.target import detect
from kgen.runtime.operator import KernelOperator
from kgen.tuner.budget import Budget

CUBES = tuple({"M": n, "N": n, "K": n} for n in (1024, 2048, 4096, 8192))
#: The second operand stored by columns.
TN = (("b", "col"),)


@dataclass(frozen=True)
class Part:
    """An operator, of which schedules the techniques are compared, and on what; `layouts` of its operands by name.

    `fields`: values by name of a config's fields; only configs with these are compared.
    """

    operator: str
    schedules: tuple[str, ...]
    sizes: tuple[dict[str, Any], ...]
    opponent: str
    dtype: str = "f16"
    layouts: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, tuple[int, ...]], ...] = ()


#: Leaves out kernels of one result a thread (`naive`, `sliced K`): 43 and 20 ms at 4096 cubed, eight times as long at 8192.
TILED = (("TM", (4, 8, 16)),)
PARTS = {
    "hgemm_mma": Part("hgemm", ("MmaGemm",), CUBES, "cublas"),
    "hgemm_mma_tn": Part("hgemm", ("MmaGemm",), CUBES, "cublas", layouts=TN),
    "hgemm_f16acc_mma": Part("hgemm_f16acc", ("MmaGemm",), CUBES, "cublas"),
    "hgemm_f16acc_mma_tn": Part("hgemm_f16acc", ("MmaGemm",), CUBES, "cublas", layouts=TN),
    "hgemm_wgmma": Part("hgemm", ("WgmmaGemm",), CUBES, "cublas"),
    "hgemm_simt": Part("hgemm", ("SimtGemm",), CUBES[:3], "cublas"),
    "sgemm_simt": Part("sgemm", ("SimtGemm",), CUBES[:3], "cublas", "f32"),
    "hgemm_simt_8192": Part("hgemm", ("SimtGemm",), CUBES[3:], "cublas", fields=TILED),
    "sgemm_simt_8192": Part("sgemm", ("SimtGemm",), CUBES[3:], "cublas", "f32", fields=TILED),
    "reduce_sum": Part("reduce_sum", ("Reduce",), ({"...": (2**20,)}, {"...": (2**27,)}), "read"),
    "reduce_max": Part("reduce_max", ("Reduce",), ({"...": (2**27,)},), "read"),
    "transpose": Part("transpose", ("Transpose",), ({"M": 4096, "N": 4096}, {"M": 16384, "N": 16384}), "copy"),
    "softmax": Part("softmax", ("Rowwise", "RowwiseCluster"),
                    ({"...": (32768,), "N": 1024}, {"...": (4096,), "N": 32768}), "copy"),
    "gelu": Part("gelu", ("Elementwise",), ({"...": (2**27,)},), "copy"),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON files")
    parser.add_argument("--budget", default="5s", help="of each technique's tuning for each problem")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument(
        "--sizes", help="only problems whose M is one of these, separated by commas; named in the file's name"
    )
    parser.add_argument("--limit", type=float, default=510.0, help="seconds after which no problem is begun")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--commit", help="the commit of this tree, where it stands without its repository")
    given = parser.parse_args()
    deadline = time.monotonic() + given.limit
    only = given.sizes.split(",") if given.sizes else []
    for name in given.only.split(","):
        part = PARTS[name]
        if only:
            part = replace(part, sizes=tuple(s for s in part.sizes if str(s.get("M")) in only))
        result = measure(part, Budget.parse(given.budget), given.device, deadline)
        if result is None:
            print(f"{name}: left out, the time was up", flush=True)
            continue
        (given.out / f"techniques_{'_'.join((name, *only))}.json").write_text(at_commit(result, given.commit).to_json())
        print(participants_table(result), flush=True)
    return 0


def measure(part: Part, budget: Budget, device: int, deadline: float) -> Result | None:
    """The part's problems for which there is time, each technique tuned; None where there is none for any."""
    whole: KernelOperator = getattr(kgen, part.operator)
    operator = whole.using([getattr(kgen, schedule).where(**dict(part.fields)) for schedule in part.schedules])
    target = detect(device)
    assert target is not None, f"no GPU {device}"

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = []
    for sizes in part.sizes:
        if time.monotonic() > deadline:
            continue
        problem = operator.problem(sizes, dtype=part.dtype, layouts=dict(part.layouts))
        tune_each(operator, [problem], budget, device, tell)
        found.append(run(operator, [problem], [part.opponent, *techniques(operator, device, target)], device=device))
    if not found:
        return None
    first = found[0]
    comparisons = tuple(c for result in found for c in result.comparisons)
    return Result(first.operator, first.digest, first.environment, first.settings, comparisons)


if __name__ == "__main__":
    sys.exit(main())
