"""The claims of speed of kgen, measured on the GPU of this machine: tunes, compares, writes JSON.

    python benchmarks/h200.py --out benchmarks/results/h200

Every part is tuned with `--budget` for each problem, compared with its opponents (see docs/benchmarking.md), and saved as
soon as it is done. A part that no longer fits in `--limit` seconds is left out, and the table at the end says so.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

from kgen.bench import Overhead, Result, overhead, run
from kgen.bench.table import Table, format_time
from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem
from kgen.ops import operators
from kgen.ops.gemm import suites
from kgen.runtime.operator import KernelOperator
from kgen.tuner.supervisor import kept

ELEMENTS = 2**27
Sizes = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """An operator on some problems against opponents; kgen must come to `bar` of the speed of `against`."""

    name: str
    operator: str
    shapes: tuple[Sizes, ...]
    opponents: tuple[str, ...]
    against: str
    bar: float
    dtype: str | None = None
    layouts: tuple[dict[str, str], ...] = ({},)

    def problems(self, operator: KernelOperator) -> list[Problem]:
        return [
            operator.problem(shape, dtype=self.dtype, layouts=layouts)
            for layouts in self.layouts
            for shape in self.shapes
        ]


def _products(
    name: str, operator: str, shapes: Iterable[Sizes], bar: float, against: str = "cublas", layouts: str = "nt"
) -> Part:
    """Products of the layouts named: n for B as it is (NN), t for B transposed in memory (TN to a column-major library)."""
    found: dict[str, dict[str, str]] = {"n": {}, "t": {"b": "col"}}
    return Part(name, operator, tuple(shapes), (against,), against, bar, layouts=tuple(found[x] for x in layouts))


def _suite(name: str) -> tuple[Sizes, ...]:
    return tuple(suites(operators()["hgemm"].graphs[0])[name])


def _squares(*sizes: int) -> list[Sizes]:
    return [{"M": n, "N": n, "K": n} for n in sizes]


_RAGGED = _suite("ragged")
#: The small ones first: a GPU that large products have heated runs them at a lower clock.
_ALIGNED = sorted((s for s in _suite("gemm") if s not in _RAGGED), key=lambda s: math.prod(map(int, s.values())))
_LINEAR = [{"M": m, "N": n, "K": k} for m, n, k in ((4096, 4096, 4096), (4096, 14336, 4096), (4096, 4096, 14336))]
#: One row against a matrix of at least 100 MB.
_GEMV = [{"M": 1, "N": n, "K": k} for n, k in ((28672, 4096), (4096, 14336), (8192, 28672), (128256, 4096))]


def _pointwise(operator: str, dtype: str) -> Part:
    shape: Sizes = {"...": (ELEMENTS // 4096,), "N": 4096} if operator == "bias_gelu" else {"...": (ELEMENTS,)}
    opponents = ("copy", "torch", "compile")
    return Part(f"{operator}_{dtype}", operator, (shape,), opponents, "copy", 0.95, dtype)


PARTS = (
    *(_pointwise(operator, dtype) for operator in ("add", "gelu", "bias_gelu") for dtype in ("f16", "f32")),
    _products("gemm_nn", "hgemm", _ALIGNED, 1.00, layouts="n"),
    _products("gemm_tn", "hgemm", _ALIGNED, 1.00, layouts="t"),
    _products("ragged", "hgemm", _RAGGED, 2.00),
    _products("fp8", "fp8gemm", _squares(4096, 8192), 0.97, layouts="t"),
    _products("tf32", "tf32gemm", _squares(4096, 8192), 1.00),
    _products("linear_gelu", "linear_gelu", _LINEAR, 1.05, against="compile", layouts="n"),
    Part("gemv", "hgemm", tuple(_GEMV), ("cublas", "copy"), "cublas", 1.00, layouts=({}, {"b": "col"})),
    _products("sgemm", "sgemm", _squares(1024, 2048, 4096, 8192), 0.90),
)

#: What host overhead is measured on: small, so that the GPU keeps up.
OVERHEAD: dict[str, Sizes] = {"hgemm": {"M": 256, "N": 256, "K": 256}, "add": {"...": (4096,)}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["overhead", *(part.name for part in PARTS)]
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON files")
    parser.add_argument("--budget", default="6s", help="of each problem's tuning, such as 6s or 40 (trials)")
    parser.add_argument("--only", default=",".join(names), help=f"parts to run, of {','.join(names)}")
    parser.add_argument("--limit", type=float, default=510.0, help="seconds after which no problem is begun")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--commit", help="the commit of this tree, where it stands without its repository")
    given = parser.parse_args()
    only = given.only.split(",")
    unknown = sorted(set(only) - set(names))
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; expected some of {', '.join(names)}")
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + given.limit
    overheads, results = [], {}
    for part in (part for part in PARTS if part.name in only):
        with kept():
            result = measure(part, given.budget, given.device, deadline)
        results[part.name] = result
        if isinstance(result, Result):
            result = at_commit(result, given.commit)
            (given.out / f"{part.name}.json").write_text(result.to_json())
            print(result.table(), flush=True)
    if "overhead" in only:
        for name, sizes in OVERHEAD.items():
            operator = KernelOperator(operators()[name])
            overheads.append(at_commit(overhead(operator, operator.problem(sizes), given.device), given.commit))
            (given.out / f"overhead_{name}.json").write_text(overheads[-1].to_json())
    print(f"\n{summary(results, overheads)}")
    return 0


def at_commit(result: Any, commit: str | None) -> Any:
    """The result with the commit filled in where it is given."""
    return replace(result, environment={**result.environment, "commit": commit}) if commit else result


def measure(part: Part, budget: str, device: int, deadline: float) -> Union[Result, str]:
    """Tunes and compares one part; the reason where nothing of it could be measured."""
    operator = KernelOperator(operators()[part.operator])
    problems = []
    for problem in part.problems(operator):
        if time.monotonic() > deadline:
            print(f"{problem}: left out, the time is up", file=sys.stderr)
            continue
        layouts = {o.name: o.layout for o in problem.inputs if o.layout == "col"}
        sizes = {**problem.sizes, **({"...": problem.leading} if problem.leading else {})}
        print(f"tuning {problem} for {budget}", file=sys.stderr, flush=True)
        try:
            operator.tune(sizes, budget=budget, gpu=device, dtype=part.dtype, layouts=layouts)
        except KgenError as error:
            print(f"{problem}: {error}", file=sys.stderr)
        problems.append(problem)
    if not problems:
        return "left out, the time was up"
    try:
        return run(operator, problems, part.opponents, device=device, progress=_tell)
    except KgenError as error:
        return str(error)


def _tell(problem: str, step: str, done: int) -> None:
    print(f"{problem}: {step}", file=sys.stderr, flush=True)


def summary(results: dict[str, Union[Result, str]], overheads: list[Overhead]) -> Table:
    """All claims in one table: what was measured, against what, and whether it comes to the bar.

    Pointwise problems are held to the largest copy bandwidth of the whole run.
    """
    bandwidths = [r.copy_bandwidth for r in results.values() if isinstance(r, Result) and r.copy_bandwidth]
    rows, notes = [], []
    for part in (part for part in PARTS if part.name in results):
        result = results[part.name]
        if isinstance(result, str):
            notes.append(f"{part.name}: {result}")
            continue
        rows += _rows(part, result, max(bandwidths, default=None))
    for taken in overheads:
        told = (
            f"{taken.kgen.seconds * 1e6:.2f} us",
            "host time",
            f"{taken.opponent} {taken.torch.seconds * 1e6:.2f} us",
        )
        rows.append((taken.problem, *told, *_verdict(taken.ratio.value, 1.0)))
    return Table(("problem", "kgen", "rate", "against", "speed of it", "bar", ""), tuple(rows), tuple(notes))


def _rows(part: Part, result: Result, bandwidth: float | None) -> Iterator[tuple[str, ...]]:
    for c in result.comparisons:
        time, rate = c.time("kgen"), c.rate("kgen")
        if time is None or rate is None:
            found = c.participant("kgen")
            yield c.problem, found.status if found else "-", "", part.against, "", f"{part.bar:.2f}", "missed"
            continue
        ratio = c.ratio(part.against)
        reached = rate / bandwidth if part.against == "copy" and bandwidth else ratio.value if ratio else None
        told = f"{rate / 1e12:.1f} TFLOP/s" if c.flops else f"{rate / 1e9:.0f} GB/s"
        yield c.problem, format_time(time), told, part.against, *_verdict(reached, part.bar)


def _verdict(reached: float | None, bar: float) -> tuple[str, str, str]:
    if reached is None:
        return "-", f"{bar:.2f}", "not measured"
    return f"{reached:.3f}", f"{bar:.2f}", "reached" if reached >= bar else "missed"


if __name__ == "__main__":
    sys.exit(main())
