"""Which sampler should search? Times a whole space on a GPU (or loads such a file) and replays TPE, random and the ranking.

    python benchmarks/samplers.py gelu --shape ...=134217728 --out gelu.json
    python benchmarks/samplers.py hgemm --shape M=4096,N=4096,K=4096 --fix instruction=mma,copy=cp_async,BK=32,pack=8 --out h.json
    python benchmarks/samplers.py --load gelu.json --out gelu.json

`--fix` keeps only the configs with these values, for spaces too large to time whole. Trials are kept in a database beside
the file, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kgen.ops
from kgen.dsl.config_text import parse_config
from kgen.dsl.family import family_of, schedules
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.gpu.cache import CubinCache
from kgen.gpu.target import resolve
from kgen.tuner.budget import Budget
from kgen.tuner.candidates import Candidates
from kgen.tuner.measured import Measured
from kgen.tuner.progress import Silent
from kgen.tuner.run import Run
from kgen.tuner.study import ended, study
from kgen.tuning_db import MEASURED, TrialRecord, open_store


class Counter(Silent):
    """One line for every hundred trials."""

    def __init__(self) -> None:
        self.done = 0

    def trial(self, trial: TrialRecord, best: TrialRecord | None) -> None:
        self.done += 1
        if self.done % 100 == 0:
            print(
                f"{self.done} trials, best {best.seconds * 1e6:.2f} us" if best else f"{self.done} trials", flush=True
            )


def pairs(text: str) -> dict[str, Any]:
    """`M=64,swizzle=xor` as a dictionary, numbers as integers."""
    items = (item.split("=", 1) for item in text.split(",") if item)
    return {name: int(value) if value.lstrip("-").isdigit() else value for name, value in items}


def make_problem(operator: str, sizes: dict[str, Any]) -> Problem:
    """The normalised problem; sizes name leading dimensions by "..."."""
    sizes = {name: (size,) if name == "..." else size for name, size in sizes.items()}
    graph = kgen.ops.operators()[operator].graphs[0]
    return family_of(graph).normalise(Problem.dense(graph, sizes))


def time_all(problem: Problem, fixed: dict[str, Any], database: Path) -> dict[Schedule, float | None]:
    """Every config's time in seconds, None for those that failed."""
    target = resolve("auto")
    with open_store(database) as store:
        run = Run(problem, target, store, Budget(trials=10**6), MEASURED, Counter())
        everything = Candidates(problem, target)
        chosen = [
            config
            for space in everything.spaces
            for config in space
            if all(config.values.get(name) == value for name, value in fixed.items())
        ]
        print(f"{len(chosen)} of {everything.count} configs of {problem} on {target}", flush=True)
        candidates = Candidates(problem, target, only=chosen)
        Measured(run, 0, "ranking", 0, CubinCache(), candidates=candidates, whole=True).tune()
        return {config: trial.seconds for config, trial in run.known().items() if config in candidates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operator", nargs="?")
    parser.add_argument("--shape", default="")
    parser.add_argument("--fix", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.load:
        data = json.loads(arguments.load.read_text())
        problem = make_problem(data["operator"], data["sizes"])
        target = resolve(data["gpu"])
        times = {parse_config(text, schedules()): seconds for text, seconds in data["configs"].items()}
    else:
        if not arguments.operator or not arguments.out:
            parser.error("an operator and --out are needed to time a space; or --load a file")
        sizes = pairs(arguments.shape)
        problem, target = make_problem(arguments.operator, sizes), resolve("auto")
        times = time_all(problem, pairs(arguments.fix), arguments.out.with_suffix(".sqlite"))
        data = {
            "operator": arguments.operator,
            "sizes": sizes,
            "fixed": pairs(arguments.fix),
            "gpu": target.name,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "configs": {repr(config): seconds for config, seconds in times.items()},
        }
    results = study(times, problem, target, runs=arguments.runs)
    data["regret"] = [asdict(result) for result in results]
    candidates = Candidates(problem, target, only=times)
    ends = [ended(candidates, times, seed) for seed in range(arguments.runs)]
    data["ended"] = [{"trials": trials, "regret": round(regret, 6)} for trials, regret in ends]
    if arguments.out:
        arguments.out.write_text(json.dumps(data, indent=1) + "\n")
    worked = [t for t in times.values() if t is not None]
    print(f"{problem}: {len(times)} configs, {len(worked)} ran, best {min(worked) * 1e6:.2f} us")
    print(
        f"{'sampler':>9} {'seeds':>6} {'trials':>7} {'median':>8} {'worst':>8}   regret (best found / best of all - 1)"
    )
    for row in results:
        print(f"{row.sampler:>9} {row.seeds:>6} {row.trials:>7} {row.median:>8.2%} {row.worst:>8.2%}")
    told = ", ".join(f"{trials} ({regret:.2%})" for trials, regret in ends)
    print(f"a search ends by itself after so many trials (regret): {told}")


if __name__ == "__main__":
    main()
