"""Two versions of kgen on the GPU of this machine, in turns: what became slower, what faster.

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before --out FILE.json --commits COMMIT,HEAD

Every problem of h200_parts.py runs in both versions as a call of the operator would (the config is what dispatch of each
chooses), each version in a process of its own on the same GPU, a few milliseconds at a time, in the order A B B A. Nothing is
tuned. Kernels are compiled beforehand by several processes (`--compile`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Turns of each version, and what a turn takes at least.
TURNS, TURN_SECONDS = 9, 4e-3


class Version:
    """A process that runs problems in one version of kgen, told one line of JSON at a time."""

    def __init__(self, tree: Path, device: int) -> None:
        command = [sys.executable, __file__, "serve", "--device", str(device)]
        self.process = subprocess.Popen(
            command, env=of(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}


def of(tree: Path) -> dict[str, str]:
    """The environment of a process in which `import kgen` is that of the tree."""
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in found if path and Path(path).resolve() != ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree.resolve()), *others])}


def all_problems(only: str) -> list[tuple[str, int]]:
    """Parts by name and the numbers of their problems, what is dear and what is cheap mixed."""
    from h200_parts import PARTS

    from kgen.ops import operators
    from kgen.runtime.operator import KernelOperator

    return [
        (part.name, number)
        for part in PARTS
        if any(part.name.startswith(word) for word in only.split(","))
        for number in range(len(part.problems(KernelOperator(operators()[part.operator]))))
    ]


def prepared(name: str, number: int, device: int) -> tuple[Any, Any, Any, int]:
    """The operator, its problem, a launch by number of operand set and how many sets there are."""
    import torch
    from h200_parts import PARTS

    from kgen.bench.subject import subject
    from kgen.gpu.target import detect
    from kgen.ops import operators
    from kgen.runtime.operator import KernelOperator
    from kgen.tuner.race import rotation

    try:
        from kgen.numerics.operands import make_operands, scalar_values
    except ImportError:  # before kgen.numerics
        from kgen.tuner.operands import make_operands, scalar_values  # type: ignore[no-redef]
    part = next(part for part in PARTS if part.name == name)
    operator = KernelOperator(operators()[part.operator])
    problem, target = part.problems(operator)[number], detect(device)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0] // 16
    sets = [
        make_operands(problem, "normal", i, f"cuda:{device}", guard=0)
        for i in range(rotation(problem.bytes, target.l2_bytes, free))
    ]
    for operands in sets if part.adjust else ():
        part.adjust(operands)
    side = subject(operator, device, target)
    return side, problem, side.prepare(problem, sets, scalar_values(problem.graph)), len(sets)


def serve(device: int) -> None:
    """Runs what it is told until its input ends."""
    import torch

    from kgen.tuner.timer import CudaClock

    torch.cuda.set_device(device)
    out, sys.stdout = sys.stdout, sys.stderr
    clock: Any = None
    count = 0

    def run(order: dict[str, Any]) -> dict[str, Any]:
        nonlocal clock, count
        if order["do"] == "prepare":
            clock = None
            side, problem, launch, sets = prepared(order["part"], order["number"], device)
            launch(0)
            torch.cuda.synchronize()
            clock = (CudaClock(device, sets), launch)
            return {"problem": str(problem), "config": side.describe(problem)}
        if order["do"] == "warm":
            seconds = clock[0].prepare({"it": clock[1]})["it"]
            clock[0].batch([["it"]])
            count = max(2, min(50, math.ceil(TURN_SECONDS / seconds)))
            return {"seconds": seconds}
        # The first of a turn is left out: the GPU comes from another process.
        return {"seconds": [sample["it"] for sample in clock[0].batch([["it"]] * (count + 1))][1:]}

    with torch.no_grad():
        for line in sys.stdin:
            try:
                told = run(json.loads(line))
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(told), file=out, flush=True)


def compile_all(problems: list[tuple[str, int]], trees: list[Path], device: int, jobs: int) -> None:
    """Runs every problem once in each version, in several processes: what is compiled is found in the cache later."""
    running = []
    for tree in trees:
        for part in range(jobs):
            versions = Version(tree, device)
            orders = problems[part::jobs]
            assert versions.process.stdin is not None
            versions.process.stdin.writelines(
                json.dumps({"do": "prepare", "part": name, "number": number}) + "\n" for name, number in orders
            )
            versions.process.stdin.close()
            running.append(versions)
    for version in running:
        assert version.process.stdout is not None
        version.process.stdout.read()
        version.process.wait()


def measured(problems: list[tuple[str, int]], trees: list[Path], device: int, deadline: float) -> Iterator[Any]:
    """One row a problem: configs, median seconds of the old version and of the new one."""
    versions = [Version(tree, device) for tree in trees]
    for name, number in problems:
        if time.monotonic() > deadline:
            print(f"{name} {number}: left out, the time is up", file=sys.stderr)
            continue
        for version in versions:
            version.tell(do="prepare", part=name, number=number)
        told = [version.answer() for version in versions]
        samples: list[list[float]] = [[], []]
        if not any("error" in t for t in told):
            for i in (0, 1):
                versions[i].tell(do="warm")
                told[i].update(versions[i].answer())
            for turn in range(2 * TURNS):
                i = (turn + 1) // 2 % 2
                versions[i].tell(do="time")
                told[i].update(answer := versions[i].answer())
                samples[i] += answer.get("seconds", [])
        errors = [t["error"] for t in told if "error" in t]
        row = {"part": name, "problem": told[1].get("problem", f"{number}"), "errors": errors}
        if not errors:
            row |= {"configs": [t["config"] for t in told], "seconds": [statistics.median(s) for s in samples]}
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row


def summary(rows: list[Any]) -> str:
    """Geometric means by part, and each problem at least 1% slower."""
    ratios: dict[str, list[float]] = defaultdict(list)
    slower = []
    for row in rows:
        if "seconds" in row:
            ratio = row["seconds"][1] / row["seconds"][0]
            ratios[row["part"]].append(ratio)
            if ratio > 1.01:
                slower.append((ratio, row))
    lines = []
    for part, found in ratios.items():
        mean = math.exp(statistics.mean(map(math.log, found)))
        lines.append(f"{part:28} {len(found):3} new/old {mean:.4f} (from {min(found):.3f} to {max(found):.3f})")
    for ratio, row in sorted(slower, key=lambda s: -s[0]):
        same = "same config" if row["configs"][0].split(" (")[0] == row["configs"][1].split(" (")[0] else "other config"
        lines.append(f"  {ratio:.3f} {row['seconds'][0] * 1e6:9.2f} us {row['part']}: {row['problem']}, {same}")
    lines += [f"  {row['part']} {row['problem']}: {'; '.join(row['errors'])}" for row in rows if row["errors"]]
    return "\n".join(lines)


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the tree of the old version")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--only", default="", help="what the names of the parts begin with")
    parser.add_argument("--share", default="0/1", help="which share of the problems, such as 1/2: the second half")
    parser.add_argument("--compile", type=int, default=0, help="processes a version that compile beforehand")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds after which no problem is begun")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--commits", default=",", help="the commits of both trees, old and new")
    given = parser.parse_args()
    deadline = time.monotonic() + given.limit
    at, of_all = map(int, given.share.split("/"))
    problems = all_problems(given.only)[at::of_all]
    trees = [given.before, ROOT]
    if given.compile:
        compile_all(problems, trees, given.device, given.compile)
        print(f"compiled; {deadline - time.monotonic():.0f} s are left", file=sys.stderr, flush=True)
    from kgen.bench.environment import environment
    from kgen.gpu.target import detect

    rows = list(measured(problems, trees, given.device, deadline))
    target = detect(given.device)
    assert target is not None
    found = {"commits": given.commits.split(","), "environment": environment(given.device, target), "rows": rows}
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
