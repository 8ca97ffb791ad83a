"""Whether the tests of the PTX layer would see a mistake in it: python tests/gpu/mutate_ptx.py [FUNCTION ...] [--limit SECONDS]

Every change that tests/ptx_mutants.py knows is put into the kernels of tests/ptx_cases.py that have the statement, one at a time,
and these run on the GPU, in processes that are ended where one hangs. Exit code 1 where all kernels come out right in spite of a
change of the class "value". With --compile nothing runs: only how many changes the compiler refuses (needs no GPU). With --limit
the changes are taken in a random order, always the same, and those that were not reached in so many seconds are "not tried".
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from ptx_cases import Case  # noqa: E402
from ptx_mutants import Change, Statement, changes, statements  # noqa: E402

SECONDS = 5.0  # of one kernel: it takes milliseconds
WORKERS = 16
#: Kernels that a change is tried with which no value need show.
_FEW = 6


def shape_of(function: str) -> str:
    """What the shapes of wgmma have in common: of those that differ in their columns alone one is changed."""
    return re.sub(r"^(wgmma_m64)n\d+", r"\1", function)


def work(cases: Sequence[Case], only: Sequence[str]) -> list[tuple[Change, list[int]]]:
    """Every change, and the numbers of the cases that have its statement, the shortest kernels first."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    found: dict[tuple[str, str], Statement] = {}
    for number, case in enumerate(cases):
        for statement in statements(case.source.ptx):
            if re.findall(r"^#(?:if|else|endif)", case.source.ptx[: statement.start], re.MULTILINE)[-1:] == ["#else"]:
                continue  # for older GPUs
            places[statement.function, statement.text].append(number)
            found.setdefault((statement.function, statement.text), statement)
    shapes: dict[str, tuple[bool, int, int, str]] = {}
    for function, text in found:
        kind, n = shape_of(function), int(re.findall(r"^wgmma_m64n(\d+)|$", function)[0] or 0)
        layouts = {a for i in places[function, text] for a in re.findall(rf"{function}<(.*?)>", cases[i].source.body)}
        # Best one with A and B turned differently, then one of many layouts, then a small one.
        mixed = not layouts.isdisjoint(("true, false", "false, true"))
        shapes[kind] = max(shapes.get(kind, (False, -1, 0, "")), (mixed, len(layouts), -n, function))
    chosen = {function for *_, function in shapes.values()}
    jobs = []
    for key, statement in found.items():
        if key[0] in chosen and (not only or key[0] in only):
            order = sorted(
                places[key],
                key=lambda number: (
                    cases[number].source.body.count(f"ptx::{key[0]}") == 0,
                    len(cases[number].source.ptx),
                ),
            )
            jobs += [(change, order if change.kind == "value" else order[:_FEW]) for change in changes(statement)]
    return jobs


def changed(case: Case, change: Change) -> Case:
    """The case with the change in its PTX layer."""
    there = next(
        s
        for s in statements(case.source.ptx)
        if (s.function, s.text) == (change.statement.function, change.statement.text)
    )
    return replace(case, source=replace(case.source, ptx=replace(change, statement=there).applied(case.source.ptx)))


def cases_here() -> list[Case]:
    """The cases that tests/gpu/test_ptx.py runs."""
    from test_ptx import CASES

    return CASES


def serve(pipe: Connection) -> None:
    """A process that compiles and runs what it is sent: a case's number and a change, or None. Answers with what became of it."""
    from test_ptx import run

    from kgen.dsl.errors import CompileError, KgenError
    from kgen.gpu.compile import compile
    from kgen.gpu.target import detect

    target, cases = detect(0), cases_here()
    assert target is not None, "no GPU"
    pipe.send("ready")
    while True:
        number, change = pipe.recv()
        case = cases[number] if change is None else changed(cases[number], change)
        if not case.source.arch.runs_on(target.arch):
            pipe.send("not here")
            continue
        try:
            warned = compile(case.source, target.arch).fatal_warnings
        except CompileError:
            pipe.send("compiler")
            continue
        if warned:
            pipe.send("compiler")
            continue
        try:
            run(case, target)
            pipe.send("right")
        except AssertionError:
            pipe.send("wrong")
        except KgenError:
            pipe.send("fault")
            os._exit(0)  # this process's context is lost


class Worker:
    """A process that serves, started again where it ended or had to be."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, number: int, change: Change | None) -> str:
        """What becomes of a case with a change: right, wrong, fault, hang, compiler, or "not here"."""
        if self.process is None or not self.process.is_alive():
            self.start()
        try:
            self.pipe.send((number, change))
            if self.pipe.poll(SECONDS):
                answer: str = self.pipe.recv()
                if answer == "fault":
                    self.end()
                return answer
        except (EOFError, OSError):
            self.end()
            return "fault"
        self.end()
        return "hang"

    def start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        if not self.pipe.poll(120) or self.pipe.recv() != "ready":
            raise RuntimeError("a worker did not start")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def on_the_gpu(
    jobs: Sequence[tuple[Change, list[int]]], cases: Sequence[Case], deadline: float
) -> Iterator[tuple[Change, str]]:
    """What each change came to by `deadline` (of time.monotonic); first all cases have to be right without one."""
    own = threading.local()
    workers: list[Worker] = []

    def ask(number: int, change: Change | None) -> str:
        if not hasattr(own, "worker"):
            own.worker = Worker()
            workers.append(own.worker)
        return own.worker.ask(number, change)  # type: ignore[no-any-return]

    def judge(job: tuple[Change, list[int]]) -> tuple[Change, str]:
        change, numbers = job
        if time.monotonic() > deadline:
            return change, "not tried"
        seen = []
        for number in numbers:
            seen.append(ask(number, change))
            if seen[-1] not in ("right", "not here"):
                break
        return change, "not here" if set(seen) == {"not here"} else next(
            (s for s in reversed(seen) if s != "not here"), "right"
        )

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            sound = list(pool.map(lambda number: ask(number, None), range(len(cases))))
            wrong = [f"{case}: {told}" for case, told in zip(cases, sound) if told not in ("right", "not here")]
            if wrong:
                raise SystemExit("without any change:\n" + "\n".join(wrong))
            yield from pool.map(judge, jobs)
    finally:
        for worker in workers:
            worker.end()


def by_the_compiler(jobs: Sequence[tuple[Change, list[int]]], cases: Sequence[Case]) -> Iterator[tuple[Change, str]]:
    """Whether each change compiles, for sm_90a."""
    from kgen.dsl.errors import CompileError
    from kgen.dsl.target import sm
    from kgen.gpu.compile import compile

    def judge(job: tuple[Change, list[int]]) -> tuple[Change, str]:
        try:
            binary = compile(changed(cases[job[1][0]], job[0]).source, sm(90, "a"))
            return job[0], "compiler" if binary.fatal_warnings else "compiles"
        except CompileError:
            return job[0], "compiler"

    with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        yield from pool.map(judge, jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    begun = time.monotonic()
    cases = cases_here()
    jobs = work(cases, given.functions)
    print(f"{len(jobs)} changes of {len({c.statement.function for c, _ in jobs})} functions", flush=True)
    if given.limit:
        random.Random(0).shuffle(jobs)
    deadline = begun + (given.limit or math.inf)
    told = list(by_the_compiler(jobs, cases) if given.compile else on_the_gpu(jobs, cases, deadline))
    for kind in ("value", "order", "hint"):
        counts = Counter(what for change, what in told if change.kind == kind)
        print(f"{kind}: " + ", ".join(f"{what} {n}" for what, n in counts.most_common()))
    through = [(change, what) for change, what in told if what in ("right", "not here")]
    for kind in ("value", "order", "hint"):
        print(
            "\n".join(
                [f"== {kind}, let through:", *(f"{change} ({what})" for change, what in through if change.kind == kind)]
            )
        )
    print(f"{time.monotonic() - begun:.0f} s")
    if given.json:
        rows = [
            {"function": c.statement.function, "change": c.told, "class": c.kind, "outcome": what} for c, what in told
        ]
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(change.kind == "value" and what == "right" for change, what in through) else 0


if __name__ == "__main__":
    sys.exit(main())
