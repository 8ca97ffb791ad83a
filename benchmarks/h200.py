"""The claims of speed of kgen, measured on the GPU of this machine: tunes, compares, writes JSON.

    python benchmarks/h200.py --out benchmarks/results/h200

Every part (see h200_parts.py) is tuned with `--budget` for each problem, compared with its opponents (see
docs/benchmarking.md), and saved as soon as it is done. A part that no longer fits in `--limit` seconds is left out, and the
table at the end says so. `python benchmarks/report.py FOLDER` then writes the tables of the folder's README.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Union

from h200_parts import PARTS, YARDSTICKS, Part, Sizes

from kgen.bench import Overhead, Result, comparison_table, overhead, run
from kgen.bench.table import Table, format_time
from kgen.dsl.errors import KgenError
from kgen.ops import operators
from kgen.runtime.operator import KernelOperator
from kgen.runtime.tuning import tune_problem
from kgen.tuner.supervisor import WorkerProcess, idle_workers

#: What host overhead is measured on: small, so that the GPU keeps up.
OVERHEAD: dict[str, Sizes] = {
    "hgemm": {"M": 256, "N": 256, "K": 256}, "add": {"...": (4096,)}, "gelu": {"...": (4096,)},
    "rms_norm": {"...": (256,), "N": 1024}, "softmax": {"...": (256,), "N": 1024},
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["overhead", *(part.name for part in PARTS)]
    found = ", ".join(dict.fromkeys(name.split("_")[0] for name in names))
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON files")
    parser.add_argument(
        "--budget", default="6s", help="of each problem's tuning, such as 6s or 40 (trials); none: untuned"
    )
    parser.add_argument(
        "--only", default=",".join(names), help=f"parts to run, or what their names begin with: {found}"
    )
    parser.add_argument("--limit", type=float, default=510.0, help="seconds after which no problem is begun")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--commit", help="the commit of this tree, where it stands without its repository")
    given = parser.parse_args()
    asked = {word: [n for n in names if n == word or n.startswith(f"{word}_")] for word in given.only.split(",")}
    unknown = sorted(word for word, matching in asked.items() if not matching)
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; expected some of {', '.join(names)}")
    only = {name for matching in asked.values() for name in matching}
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + given.limit
    overheads, results = [], {}
    for part in (part for part in PARTS if part.name in only):
        with idle_workers() as idle:
            result = measure(part, given.budget, given.device, deadline, idle)
        results[part.name] = result
        if isinstance(result, Result):
            result = at_commit(result, given.commit)
            (given.out / f"{part.name}.json").write_text(result.to_json())
            print(comparison_table(result), flush=True)
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


def measure(part: Part, budget: str, device: int, deadline: float, idle: list[WorkerProcess]) -> Union[Result, str]:
    """Tunes and compares one part; the reason where nothing of it could be measured."""
    operator = KernelOperator(operators()[part.operator])
    problems = []
    for problem in part.problems(operator):
        if time.monotonic() > deadline:
            print(f"{problem}: left out, the time is up", file=sys.stderr)
            continue
        problems.append(problem)
        if budget == "none":
            continue
        print(f"tuning {problem} for {budget}", file=sys.stderr, flush=True)
        try:
            tune_problem(problem, budget=budget, gpu=device, idle=idle)
        except KgenError as error:
            print(f"{problem}: {error}", file=sys.stderr)
    if not problems:
        return "left out, the time was up"
    try:
        return run(operator, problems, part.opponents, device=device, progress=_tell, adjust=part.adjust)
    except KgenError as error:
        return str(error)


def _tell(problem: str, step: str, done: int) -> None:
    print(f"{problem}: {step}", file=sys.stderr, flush=True)


def summary(results: dict[str, Union[Result, str]], overheads: list[Overhead]) -> Table:
    """All claims in one table: what was measured, against what, and whether it comes to the bar.

    What memory limits is held to the largest bandwidth of the whole run.
    """
    measured = [r for r in results.values() if isinstance(r, Result)]
    largest = {name: max((b for r in measured if (b := r.bandwidth(name))), default=None) for name in YARDSTICKS}
    rows, notes = [], []
    for part in (part for part in PARTS if part.name in results):
        result = results[part.name]
        if isinstance(result, str):
            notes.append(f"{part.name}: {result}")
            continue
        rows += _rows(part, result, largest)
    for taken in overheads:
        for out, times in ((False, taken.returning), (True, taken.writing)):
            ratio, theirs = taken.ratio(out=out), times.get("torch")
            against = f"torch {theirs.seconds * 1e6:.2f} us" if theirs else "torch"
            told = (f"{times['kgen'].seconds * 1e6:.2f} us", f"host time{', out=' if out else ''}", against)
            rows.append((taken.problem, *told, *_verdict(ratio.value if ratio else None, 1 / 1.1)))
    return Table(("problem", "kgen", "rate", "against", "speed of it", "bar", ""), tuple(rows), tuple(notes))


def _rows(part: Part, result: Result, largest: Mapping[str, float | None]) -> Iterator[tuple[str, ...]]:
    for c in result.comparisons:
        time, rate = c.time("kgen"), c.rate("kgen")
        if time is None or rate is None:
            found = c.participant("kgen")
            yield c.problem, found.status if found else "-", "", part.against, "", f"{part.bar:.2f}", "missed"
            continue
        told = f"{rate / 1e12:.1f} TFLOP/s" if c.flops else f"{rate / 1e9:.0f} GB/s"
        for against, bar in part.bars.items():
            ratio, bandwidth = c.ratio(against), largest.get(against)
            reached = rate / bandwidth if bandwidth else ratio.value if ratio else None
            yield c.problem, format_time(time), told, against, *_verdict(reached, bar)


def _verdict(reached: float | None, bar: float) -> tuple[str, str, str]:
    if reached is None:
        return "-", f"{bar:.2f}", "not measured"
    return f"{reached:.3f}", f"{bar:.2f}", "reached" if reached >= bar else "missed"


if __name__ == "__main__":
    sys.exit(main())
