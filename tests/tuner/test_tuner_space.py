"""The diagram of valid configs against plain enumeration, and what candidates and search make of it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import threadpoolctl
from tuner_samples import problem_of

from kgen.codegen.template_schedule import enumerate_space
from kgen.dsl.choice import choice, rule
from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.target import Target, sm
from kgen.ops.elementwise import Elementwise
from kgen.tuner import posterior
from kgen.tuner.candidates import EXHAUSTIVE, Candidates
from kgen.tuner.search import SAMPLERS, Search
from kgen.tuner.space import Space, left_out


class Tangled(Schedule):
    """Rules that reach back over many fields, read them in any order, and some only at times."""

    template = ""
    target = sm(75)
    a = choice(1, 2, 3, 4)
    b = choice("x", "y")
    c = choice(1, 2, 4)
    d = choice(False, True)
    e = choice(1, 2, 3)
    f = choice(1, 2, 4, 8)

    @rule
    def far(self, problem: object, target: object) -> bool:
        """the first and the last go together"""
        return (self.f + self.a) % 3 != 0

    @rule
    def at_times(self, problem: object, target: object) -> bool:
        """c matters only where d is set"""
        return not self.d or self.c == 2 or (self.b == "y" and self.a != 3)

    @rule
    def backwards(self, problem: object, target: object) -> bool:
        """e is read before b"""
        return self.e != 2 or self.b == "x"

    @rule
    def none_of_it(self, problem: object, target: object) -> bool:
        """some subtrees are empty"""
        return self.a != 4 or self.e > 3

    @classmethod
    def applies(cls, problem: object) -> bool:
        return True


def brute_force(schedule: type[Schedule], problem: object, target: object) -> list[Schedule]:
    """Every point of the domains that breaks no rule: the definition, without any cleverness."""
    domains = [field.values for field in schedule.fields.values()]
    points = (schedule(**dict(zip(schedule.fields, values))) for values in itertools.product(*domains))
    return [config for config in points if not config.rejections(problem, target)]


@pytest.fixture
def gelu() -> Problem:
    return problem_of("gelu", {"...": (2**20,)})


@pytest.mark.parametrize("schedule", [Tangled, Elementwise])
def test_space_is_what_brute_force_finds(schedule: type[Schedule], gelu: Problem, target: Target) -> None:
    space = Space.searched(schedule, gelu, target)
    expected = brute_force(schedule, gelu, target)
    assert 0 < len(expected) < len(list(itertools.product(*(f.values for f in schedule.fields.values()))))
    assert list(space) == expected == list(enumerate_space(schedule, gelu, target))
    assert space.count == len(expected)
    valid = set(expected)
    for values in itertools.product(*(f.values for f in schedule.fields.values())):
        config = schedule(**dict(zip(schedule.fields, values)))
        assert (config in space) == (config in valid)


def test_what_a_search_leaves_out_is_counted_by_the_first_rule_that_does(gelu: Problem, target: Target) -> None:
    valid = Space.valid(Elementwise, gelu, target)
    domains = [field.values for field in Elementwise.fields.values()]
    everything = [valid.config(values) for values in itertools.product(*domains)]
    right = [config for config in everything if not config.broken(gelu, target)]
    assert list(valid) == right
    first = Counter(r[0].rule for config in right if (r := config.rejections(gelu, target)))
    assert left_out(valid, gelu, target) == first
    assert valid.count - sum(first.values()) == Space.searched(Elementwise, gelu, target).count
    assert len(first) > 1


@pytest.mark.parametrize("schedule", [Tangled, Elementwise])
def test_neighbours_differ_in_one_field(schedule: type[Schedule], gelu: Problem, target: Target) -> None:
    space = Space.searched(schedule, gelu, target)
    everything = list(space)
    for config in everything[:: len(everything) // 5]:
        expected = [c for c in everything if sum(c.values[k] != v for k, v in config.values.items()) == 1]
        assert list(space.neighbours(config)) == expected


def test_draws_reach_everything_evenly(gelu: Problem, target: Target) -> None:
    space, source = Space.searched(Tangled, gelu, target), random.Random(1)
    counts = dict.fromkeys(space, 0)
    for _ in range(100 * len(counts)):
        counts[space.draw(source)] += 1
    assert min(counts.values()) > 50
    assert max(counts.values()) < 160


def test_space_of_a_list(gelu: Problem, target: Target) -> None:
    some = list(Space.searched(Tangled, gelu, target))[::7]
    space = Space.of(Tangled, some)
    assert list(space) == some
    assert space.count == len(some)


def test_a_gemm_space_is_counted_without_listing(target: Target) -> None:
    """Millions of points: the count agrees with what a sampled walk over the rules says of membership."""
    problem = problem_of("hgemm", {"M": 511, "N": 513, "K": 517})
    candidates = Candidates(problem, target)
    assert candidates.count > 10_000
    source = random.Random(0)
    for space in candidates.spaces:
        for _ in range(200):
            assert not space.draw(source).rejections(problem, target)
        for _ in range(2000):
            values = {name: source.choice(field.values) for name, field in space.schedule.fields.items()}
            config = space.schedule(**values)
            assert (config in space) == (not config.rejections(problem, target))


def test_candidates_rank_by_the_model(gelu: Problem, target: Target) -> None:
    candidates = Candidates(gelu, target)
    everything = list(enumerate_space(Elementwise, gelu, target))
    assert candidates.count == len(everything) <= EXHAUSTIVE
    assert set(candidates.ranking) == set(everything)
    times = [c.estimate(gelu, target) for c in candidates.ranking]
    assert times == sorted(times)
    assert candidates.default == Elementwise.default(gelu, target)
    seeds = candidates.seeds(10)
    assert seeds[0] == candidates.default
    assert len(set(seeds)) == 10
    assert min(times) in [c.estimate(gelu, target) for c in seeds]


def test_large_spaces_are_ranked_by_looking(target: Target) -> None:
    problem = problem_of("sgemm", {"M": 1024, "N": 1024, "K": 1024})
    candidates = Candidates(problem, target)
    assert candidates.count > EXHAUSTIVE
    ranking = candidates.ranking
    assert candidates.default in ranking
    assert len(set(ranking)) == len(ranking) >= EXHAUSTIVE
    source = random.Random(7)
    drawn = min(candidates.estimate(space.draw(source)) for space in candidates.spaces for _ in range(3000))
    assert candidates.estimate(ranking[0]) <= drawn


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_search_asks_for_every_config_once(sampler: str, gelu: Problem, target: Target) -> None:
    candidates = Candidates(gelu, target, only=list(Space.searched(Elementwise, gelu, target))[::31])
    search = Search(candidates, sampler=sampler, seed=3)
    asked = []
    while (config := search.ask()) is not None:
        assert config in candidates
        asked.append(config)
        search.tell(config, None if len(asked) % 4 == 0 else candidates.estimate(config))
    assert len(asked) == len(set(asked)) == candidates.count
    assert asked[0] == candidates.default


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_search_goes_on_from_what_is_known(sampler: str, gelu: Problem, target: Target) -> None:
    candidates = Candidates(gelu, target)
    known = {config: candidates.estimate(config) for config in candidates.ranking[:50]}
    search = Search(candidates, sampler=sampler, known=known)
    asked = [search.ask() for _ in range(40)]
    assert len(set(asked)) == 40
    assert not set(asked) & set(known)


@pytest.mark.parametrize("sampler", ["tpe", "ranking"])
def test_search_begins_with_the_default_and_what_it_is_given(sampler: str, gelu: Problem, target: Target) -> None:
    candidates = Candidates(gelu, target)
    last = candidates.ranking[-1]
    search = Search(candidates, sampler=sampler, first=[candidates.default, last])
    assert [search.ask(), search.ask()] == [candidates.default, last]


def test_search_lists_a_space_that_fits_the_budget(gelu: Problem, target: Target) -> None:
    candidates = Candidates(gelu, target, only=list(Space.searched(Elementwise, gelu, target))[:60])
    search = Search(candidates, limit=60)
    asked = [search.ask() for _ in range(60)]
    assert asked == [candidates.default] + [c for c in candidates.ranking if c != candidates.default]
    assert search.ask() is None
    assert search.exhausted


def test_tpe_learns(gelu: Problem, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that depends on two fields: late in a search TPE has both right several times as often as chance."""
    candidates = Candidates(gelu, target)
    monkeypatch.setattr(posterior.Posterior, "prospect", lambda *_: None)  # it says when to end, and takes longest

    def hits(sampler: str, seed: int) -> int:
        search = Search(candidates, sampler=sampler, seed=seed)
        asked = []
        for _ in range(110):
            config = search.ask()
            assert config is not None
            search.tell(config, 1.0 + (config.threads != 512) + (config.items != 4) * 0.5)
            asked.append(config)
        return sum(c.threads == 512 and c.items == 4 for c in asked[80:])

    assert sum(hits("tpe", seed) for seed in range(6)) > 4 * sum(hits("random", seed) for seed in range(6))


def test_a_posterior_takes_one_thread_of_blas(gelu: Problem, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside compilers on all cores, threads that wait for each other took five times as long; the caller has his again."""
    fits, seen = posterior._fits, []

    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}

    def watched(*of: Any) -> Any:
        seen.append(threads())
        return fits(*of)

    monkeypatch.setattr(posterior, "_fits", watched)
    search = Search(Candidates(gelu, target))
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        for _ in range(posterior.LEAST):
            config = search.ask()
            assert config is not None
            search.tell(config, search.candidates.estimate(config))
        assert seen == [{1}]
        assert threads() == {2}


def test_search_is_reproducible(gelu: Problem, target: Target) -> None:
    def course(seed: int) -> list[Schedule | None]:
        candidates = Candidates(gelu, target)
        search = Search(candidates, sampler="tpe", seed=seed)
        asked = []
        for _ in range(40):
            asked.append(search.ask())
            search.tell(asked[-1], candidates.estimate(asked[-1]) * (1 + len(asked) % 5))
        return asked

    assert course(1) == course(1) != course(2)


def test_an_unknown_sampler_is_named(gelu: Problem, target: Target) -> None:
    with pytest.raises(ArgumentError, match=r"'annealing'.*tpe, random, ranking"):
        Search(Candidates(gelu, target), sampler="annealing")
