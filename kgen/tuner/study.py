"""Study: which sampler finds good configs soonest, replayed on a space whose every config has been timed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import NormalProblem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target
from kgen.tuner.candidates import Candidates
from kgen.tuner.search import SEEDS, Search


@dataclass(frozen=True)
class Regret:
    """How far from the optimum a sampler's best is after `trials`: (best / optimum - 1), median and worst over `runs` seeds."""

    sampler: str
    seeds: int
    trials: int
    median: float
    worst: float
    runs: int


#: Samplers by name and number of configs that the ranking gives them to start with.
CONTESTANTS = (("posterior", SEEDS), ("tpe", SEEDS), ("random", SEEDS), ("ranking", 0), ("tpe", 0), ("random", 0))


def best_so_far(
    candidates: Candidates, seconds: Mapping[Schedule, float | None], sampler: str, seeds: int, trials: int, seed: int
) -> list[float]:
    """The best time after each trial of one search; infinity while every config tried has failed."""
    search = Search(candidates, sampler=sampler, seed=seed, seeds=seeds)
    best = float("inf")
    course: list[float] = []
    while len(course) < trials and (config := search.ask()) is not None:
        taken = seconds[config]
        search.tell(config, taken)
        best = min(best, taken if taken is not None else best)
        course.append(best)
    return course


def ended(candidates: Candidates, seconds: Mapping[Schedule, float | None], seed: int) -> tuple[int, float]:
    """After how many trials a search ends by itself, and its regret then: (best found / optimum - 1)."""
    search = Search(candidates, seed=seed)
    trials, best = 0, float("inf")
    while not search.settled and (config := search.ask()) is not None:
        trials += 1
        taken = seconds[config]
        search.tell(config, taken)
        best = min(best, taken if taken is not None else best)
    return trials, best / min(t for t in seconds.values() if t is not None) - 1


def study(
    seconds: Mapping[Schedule, float | None],
    problem: NormalProblem,
    target: Target,
    trials: Sequence[int] = (8, 16, 32, 64, 128),
    runs: int = 20,
    contestants: Sequence[tuple[str, int]] = CONTESTANTS,
) -> list[Regret]:
    """Replays each contestant's search `runs` times on the timed configs (None: failed) of a normalised problem."""
    optimum = min((t for t in seconds.values() if t is not None), default=None)
    if optimum is None:
        raise ArgumentError("no config of the space has a time; there is nothing to study")
    candidates = Candidates(problem, target, only=seconds)
    found = []
    for sampler, seeds in contestants:
        courses = [
            best_so_far(candidates, seconds, sampler, seeds, max(trials), seed)
            # The ranking starts with the model's order, the same for every seed.
            for seed in range(1 if sampler == "ranking" else runs)
        ]
        for count in trials:
            regrets = [course[min(count, len(course)) - 1] / optimum - 1 for course in courses]
            found.append(Regret(sampler, seeds, count, statistics.median(regrets), max(regrets), len(regrets)))
    return found
