"""An exported dispatcher beside kgen itself: right for every shape, and as fast.

    python benchmarks/exported.py shapes > shapes.txt
    kgen export hgemm --gpu H200 --shapes shapes.txt --form torch -o out/
    cmake -S out -B out/build -G Ninja && cmake --build out/build
    python benchmarks/exported.py measure out/ --out benchmarks/results/h200

Products in both layouts, sizes drawn by a seed: half of them whole vectors along every axis, half odd. On a GPU, in turns.
"called" is kgen.hgemm(a, b), which makes its result as the export does; "kgen" writes where it is told.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from h200 import at_commit

import kgen
from kgen.bench import comparison_table, run
from kgen.bench.opponents import Launch, Operands, Opponent
from kgen.dsl.problem import Problem

#: Shapes a layout.
COUNT = 32


def shapes(seed: int = 0) -> list[tuple[str, dict[str, int]]]:
    """Layout (TN: b stored by columns) and sizes: from 64 to 8192 by their logarithms, at most 2^38 multiplications."""
    source, found = random.Random(seed), list[tuple[str, dict[str, int]]]()
    for layout in ("NN", "TN"):
        while sum(1 for at, _ in found if at == layout) < COUNT:
            unit = 8 if len(found) % 2 else 1
            sizes = {name: max(1, round(2 ** source.uniform(6, 13) / unit)) * unit for name in "MNK"}
            if sizes["M"] * sizes["N"] * sizes["K"] <= 2**38:
                found.append((layout, sizes))
    return found


def measure(folder: Path, device: int) -> kgen.bench.Result:
    """kgen and the export on every shape, checked and timed in turns."""
    spec = importlib.util.spec_from_file_location("exported", folder / "__init__.py")
    assert spec is not None, folder
    assert spec.loader is not None, folder
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def calling(name: str, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Opponent:
        def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
            def launch(i: int) -> None:
                sets[i]["out"] = function(sets[i]["a"], sets[i]["b"])

            return launch

        return Opponent(name, lambda problem: None, prepare)

    opponents = [calling("called", kgen.hgemm), calling("exported", module.hgemm), "cublas"]
    layouts = {"NN": {}, "TN": {"b": "col"}}
    problems = [kgen.hgemm.problem(sizes, layouts=layouts[layout]) for layout, sizes in shapes()]
    return run(kgen.hgemm, problems, opponents, device=device)


def ratios(result: kgen.bench.Result) -> dict[str, float]:
    """The time of the export over that of calling kgen, by problem."""
    found = {}
    for comparison in result.comparisons:
        taken = {p.name: p.time.seconds for p in comparison.participants if p.time is not None}
        found[comparison.problem] = taken["exported"] / taken["called"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("shapes", help="print the shapes, for kgen export --shapes")
    measured = verbs.add_parser("measure", help="measure an export that was built")
    measured.add_argument("folder", type=Path)
    measured.add_argument("--out", type=Path, required=True, help="folder for exported_hgemm.json")
    measured.add_argument("--device", type=int, default=0)
    measured.add_argument("--commit", help="the commit of this tree, where it stands without its repository")
    given = parser.parse_args()
    if given.verb == "shapes":
        for layout, sizes in shapes():
            words = " transposed=b" if layout == "TN" else ""
            print(",".join(f"{name}={size}" for name, size in sizes.items()) + words)
        return 0
    torch.cuda.set_device(given.device)
    result = at_commit(measure(given.folder, given.device), given.commit)
    (given.out / "exported_hgemm.json").write_text(result.to_json())
    print(comparison_table(result))
    found = ratios(result)
    mean = math.exp(statistics.mean(map(math.log, found.values())))
    print(f"exported over called: {mean:.3f} in the geometric mean of {len(found)}")
    for problem, ratio in sorted(found.items(), key=lambda item: -item[1]):
        if ratio > 1.01:
            print(f"  {ratio:.3f} {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
