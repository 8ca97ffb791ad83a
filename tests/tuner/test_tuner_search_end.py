"""When a search ends: replayed on spaces of which an H200 timed every config (benchmarks/samplers.py)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kgen.dsl.config_text import parse_config
from kgen.dsl.family import family_of, schedules
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.gpu.target import resolve
from kgen.ops import operators
from kgen.tuner.budget import Budget
from kgen.tuner.candidates import Candidates
from kgen.tuner.posterior import Posterior
from kgen.tuner.search import Search
from kgen.tuner.study import ended

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
#: Those whose configs are still read as they are; gelu's are older than a field.
TIMED = sorted(path.stem for path in RESULTS.glob("samplers_*.json") if path.stem != "samplers_gelu")


def timed(name: str) -> tuple[Candidates, dict[Schedule, float | None]]:
    """The configs of a file with their times in seconds, None where they failed."""
    data = json.loads((RESULTS / f"{name}.json").read_text())
    sizes = {dim: (size,) if dim == "..." else size for dim, size in data["sizes"].items()}
    graph = operators()[data["operator"]].graphs[0]
    problem = family_of(graph).normalise(Problem.dense(graph, sizes))
    times = {parse_config(text, schedules()): seconds for text, seconds in data["configs"].items()}
    return Candidates(problem, resolve(data["gpu"]), only=times), times


@pytest.mark.parametrize("name", TIMED)
def test_a_search_ends_early_with_a_winner_within_a_percent(name: str) -> None:
    candidates, times = timed(name)
    assert len(times) > 250
    trials, regret = ended(candidates, times, seed=0)
    assert trials < 0.55 * len(times)
    assert regret < 0.01


def test_times_that_scatter_end_a_search_too() -> None:
    """3% from one time of a config to the next, as of a card at its power limit: known, they promise no faster config."""
    candidates, times = timed("samplers_hgemm_m16")
    drawn = np.random.default_rng(0)
    trials, regrets = [], []
    for seed in range(3):
        search, found = Search(candidates, seed=seed), {}
        while not search.settled and (config := search.ask()) is not None:
            taken = times[config]
            if taken is not None:
                found[config] = taken * math.exp(0.03 * drawn.standard_normal())
            search.tell(config, found.get(config))
            trials.append(seed)
        finalists = sorted(found, key=lambda c: found[c])[:4]
        regrets.append(min(times[c] for c in finalists) / min(t for t in times.values() if t) - 1)
    assert len(trials) < 3 * 45  # half of the configs or more where all of it is taken for what fields make of a config
    assert max(regrets) < 0.01


def test_the_chance_is_large_where_the_rest_is_faster_and_small_where_it_is_slower() -> None:
    candidates, times = timed("samplers_hgemm_cube1024")
    ranked = [config for config in candidates.ranking if times[config]]
    chances = []
    for share in (1.0, 0.6):  # the rest takes as long as the model says, or much less than those that were tried
        posterior = Posterior(candidates)
        for config in ranked[:24]:
            posterior.learn(config, candidates.estimate(config) / share)
        for config in ranked[24:48:2]:
            posterior.learn(config, candidates.estimate(config) * (1.0 if share == 1.0 else 1.05))
        prospect = posterior.prospect({*ranked[:24], *ranked[24:48:2]})
        assert prospect is not None
        assert prospect.config not in ranked[:24]
        chances.append(prospect.chance)
    assert chances[0] < 0.1 < 0.9 < chances[1]


def test_too_little_is_known_of_few_trials() -> None:
    candidates, _ = timed("samplers_hgemm_cube1024")
    posterior = Posterior(candidates)
    for config in candidates.ranking[:7]:
        posterior.learn(config, candidates.estimate(config))
    assert posterior.prospect(set(candidates.ranking[:7])) is None


def test_a_search_is_not_settled_by_failures_alone() -> None:
    candidates, _ = timed("samplers_hgemm_cube1024")
    search = Search(candidates)
    for _ in range(60):
        config = search.ask()
        assert config is not None
        search.tell(config, None)
    assert not search.settled


def test_a_settled_search_leaves_nothing_to_a_larger_budget() -> None:
    assert Budget(seconds=600).covered_by({"settled": True, "seconds": 5.0})
    assert not Budget(seconds=600).covered_by({"settled": False, "seconds": 5.0})
