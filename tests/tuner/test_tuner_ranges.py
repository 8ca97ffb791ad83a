"""Ranges by made-up times: where buckets end, how few configs they take, and that no regret is above what is told."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from kgen.dsl.span import Span
from kgen.tuner.division import Division, Point
from kgen.tuner.ranges import TOLERANCE, _drawn, divide

Cost = Callable[[Point], float]


class Made:
    """A bench of kernels by name with times that are known; every config timed costs one, of `budget`.

    `model` has other times than `costs` for its choices and forecasts: those of the costs without. `blind`: there are no choices.
    """

    def __init__(
        self,
        costs: Mapping[str, Cost],
        budget: int = 10**6,
        model: Mapping[str, Cost] | None = None,
        measures: bool = True,
        blind: bool = False,
    ) -> None:
        self.costs, self.budget, self.model, self.measures, self.blind = costs, budget, model or costs, measures, blind
        self.spent = 0
        self.searched: list[Point] = []
        self.timed: list[Point] = []

    def left(self) -> float:
        return 1 - self.spent / self.budget

    def choice(self, sizes: Point) -> str | None:
        if self.blind:
            return None
        return min(
            (n for n in self.model if self.model[n](sizes) < math.inf), key=lambda n: self.model[n](sizes), default=None
        )

    def modelled(self, configs: Sequence[str], sizes: Point) -> list[float]:
        return [self.model[name](sizes) for name in configs]

    def search(self, sizes: Point, first: Sequence[str]) -> str | None:
        self.searched.append(sizes)
        self.spent += 8
        valid = [name for name in self.costs if self.costs[name](sizes) < math.inf]
        return min(valid, key=lambda name: self.costs[name](sizes), default=None)

    def beside(self, sizes: Point, configs: Iterable[str]) -> Mapping[str, float]:
        given = [*configs]
        self.timed.append(sizes)
        self.spent += len(given)
        return {name: cost for name in given if (cost := self.costs[name](sizes)) < math.inf}


def off(costs: Mapping[str, Cost], by: float) -> dict[str, Cost]:
    """A model of these costs that is off by a factor of up to 1 + `by`, another one for each, that changes slowly."""

    def modelled(number: int, cost: Cost) -> Cost:
        return lambda sizes: cost(sizes) * (1 + by * math.sin(2.4 * number + 0.5 * sum(map(math.log, sizes))))

    return {name: modelled(number, cost) for number, (name, cost) in enumerate(costs.items())}


def spans(*texts: str) -> list[Span]:
    return [Span.parse(text) for text in texts]


def regrets(found: Division[str], costs: Mapping[str, Cost], points: Iterable[Point]) -> list[float]:
    """At each point the regret of its one bucket, beside the fastest of the portfolio."""
    result = []
    for point in points:
        (bucket,) = [bucket for bucket in found.buckets if point in bucket]
        best = min(costs[name](point) for name in found.portfolio)
        result.append(costs[bucket.config](point) / best - 1)
    return result


def affine(source: random.Random, count: int, axes: int) -> dict[str, Cost]:
    """Kernels whose times are affine in each size: the later a kernel starts, the faster it goes on."""

    def cost(start: float, speeds: Mapping[tuple[int, ...], float]) -> Cost:
        return lambda sizes: start + sum(s * math.prod(sizes[axis] for axis in along) for along, s in speeds.items())

    terms = [along for n in range(1, axes + 1) for along in itertools.combinations(range(axes), n)]
    made = {}
    for i in range(count):
        late = source.uniform(0, 3)
        speeds = {along: 10 ** (-late * source.uniform(0.5, 1) - 1.5 * (len(along) - 1)) for along in terms}
        made[f"k{i}"] = cost(10**late, speeds)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_times_that_the_model_is_off_by_are_learnt(seed: int) -> None:
    """Every size is looked at: kernels whose times cross, by a model that is off by up to 10%."""
    costs = affine(random.Random(seed), 8, 1)
    made = Made(costs, model=off(costs, 0.1))
    found = divide(spans("1..8192"), made, checks=64, seed=seed)
    told = regrets(found, costs, ((m,) for m in range(1, 8193)))
    assert max(told) <= 0.04
    assert found.quantile(0.95) <= TOLERANCE  # type: ignore[operator]  # there are checks
    assert found.bound <= 0.08
    assert found.points < 120


@pytest.mark.parametrize("seed", range(6))
def test_so_it_is_in_two_dimensions_but_for_corners(seed: int) -> None:
    costs = affine(random.Random(seed), 6, 2)
    made = Made(costs, model=off(costs, 0.05), budget=4000)
    found = divide(spans("1..200", "64..8192:64"), made, checks=64, seed=seed)
    told = sorted(regrets(found, costs, itertools.product(range(1, 201), range(64, 8193, 64))))
    assert told[int(0.95 * len(told))] <= 0.03
    assert told[int(0.995 * len(told))] <= 0.08  # where configs cross aslant boxes leave corners


@pytest.mark.parametrize("seed", range(20))
def test_times_with_steps_are_within_what_the_checks_tell(seed: int) -> None:
    """Tiles and waves make steps: the share of worse sizes is below what is told."""
    source = random.Random(seed)

    def cost(tile: int, start: float, speed: float) -> Cost:
        return lambda sizes: start + speed * tile**0.6 * math.ceil(math.ceil(sizes[0] / tile) / 8)

    costs = {f"t{t}": cost(t, source.uniform(20, 60), source.uniform(1, 2)) for t in (16, 32, 64, 128, 192, 256)}
    found = divide(spans("1..8192"), Made(costs, budget=1500, model=off(costs, 0.1)), checks=64, seed=seed)
    assert found.beyond == pytest.approx(1 - 0.05 ** (1 / len(found.checks)))
    drawn = [(round(math.exp(source.uniform(0, math.log(8192)))),) for _ in range(4000)]
    told, worst = sorted(regrets(found, costs, drawn)), found.quantile(1.0)
    assert worst is not None
    assert worst <= found.bound
    assert sum(regret > worst + 1e-12 for regret in told) / len(told) <= found.beyond + 0.01
    assert told[int(0.95 * len(told))] <= 0.03


def test_without_a_model_s_choice_searches_find_what_there_is() -> None:
    costs: dict[str, Cost] = {"small": lambda s: 1 + s[0] / 10, "large": lambda s: 100 + s[0] / 100}
    made = Made(costs, blind=True)
    found = divide(spans("1..8192"), made, checks=8)
    assert made.searched[:3] == [(1,), (8192,), (91,)]  # the geometric middle of 1 and 8192 is 90.5
    assert all(
        max(a, b) / min(a, b) > 1.4 for (a,), (b,) in itertools.combinations(made.searched, 2)
    )  # a search of what is near tells no more
    change = (100 - 1) / (1 / 10 - 1 / 100)  # 1,100: there both are alike
    first, second = found.buckets
    assert (first.config, second.config) == ("small", "large")
    assert (first.spans[0].low, second.spans[0].high) == (1, 8192)
    assert second.spans[0].low == first.spans[0].high + 1
    assert abs(first.spans[0].high / change - 1) < 0.05
    assert max(regrets(found, costs, ((m,) for m in range(1, 8193)))) <= 0.02


@pytest.mark.parametrize("known", [True, False])
def test_a_sudden_change_is_found_to_the_very_size(known: bool) -> None:
    """The model knows the step; or it does not, and the corners of buckets are timed again and again."""
    costs: dict[str, Cost] = {"tile": lambda s: 10 if s[0] <= 128 else 20, "other": lambda s: 12}
    flat: dict[str, Cost] = {"tile": lambda s: 10, "other": lambda s: 12}
    made = Made(costs, model=costs if known else flat)
    found = divide(spans("1..4096"), made, checks=32)
    assert [(str(b.spans[0]), b.config) for b in found.buckets] == [("1..128", "tile"), ("129..4096", "other")]
    assert found.bound == 0.0 or not known  # what was timed on the way is told


def test_buckets_are_of_no_more_kernels_than_are_allowed() -> None:
    """Of five kernels, each the best of a part, the two that lose least."""
    costs: dict[str, Cost] = {f"k{i}": lambda s, i=i: 10 + abs(math.log2(s[0]) - 3 * i) for i in range(5)}
    all_, two = (divide(spans("1..4096"), Made(costs, 2000), checks=16, kernels=kernels) for kernels in (48, 2))
    assert {*all_.portfolio} == {*costs}
    assert two.portfolio == ("k1", "k3")
    assert all_.bound <= TOLERANCE < 0.2 < two.bound < 0.35
    assert [bucket.config for bucket in two.buckets] == ["k1", "k3"]
    assert abs(two.buckets[1].spans[0].low - 64) <= 1  # both take 13


def test_by_the_model_alone_a_search_looks_where_it_promises_most() -> None:
    costs: dict[str, Cost] = {f"k{i}": lambda s, i=i: 10 + abs(math.log2(s[0]) - 3 * i) for i in range(5)}
    made = Made(costs, measures=False)
    found = divide(spans("1..4096"), made, checks=16)
    assert {made.choice(sizes) for sizes in made.searched} == {*found.portfolio} == {*costs}
    assert len(made.searched) == 5  # the ends, the middle, and once for each of the other two
    assert found.bound <= 0.02


def test_configs_that_are_alike_are_one_and_buckets_are_joined() -> None:
    costs: dict[str, Cost] = {f"k{i}": lambda s, i=i: (100 + s[0]) * (1 + 0.001 * ((s[0] + i) % 7)) for i in range(7)}
    found = divide(spans("1..1000"), Made(costs), checks=16)
    assert len(found.portfolio) == 1
    assert [str(b.spans[0]) for b in found.buckets] == ["1..1000"]


def test_a_config_that_is_not_valid_everywhere_serves_where_it_is() -> None:
    """As one whose registers hold rows of a certain length."""
    costs: dict[str, Cost] = {"held": lambda s: 10 if s[0] <= 1000 else math.inf, "any": lambda s: 15}
    found = divide(spans("1..65536"), Made(costs), checks=64)
    assert [(str(b.spans[0]), b.config) for b in found.buckets] == [("1..1000", "held"), ("1001..65536", "any")]
    assert found.unserved == ()


def test_what_nothing_serves_is_in_no_bucket() -> None:
    costs: dict[str, Cost] = {"held": lambda s: 10 if s[0] <= 1000 else math.inf}
    found = divide(spans("1..4000"), Made(costs), checks=64)
    assert all(b.spans[0].high <= 1000 for b in found.buckets)
    assert found.unserved
    assert all(sizes[0] > 1000 for sizes in found.unserved)
    assert (1000,) in found.buckets[-1]


@pytest.mark.parametrize("text", ["7", "3,9", "1,8,64,512", "64..192:64"])
def test_few_sizes_are_all_looked_at(text: str) -> None:
    costs: dict[str, Cost] = {f"k{n}": lambda s, n=n: 1 + abs(s[0] - n) for n in Span.parse(text)}
    found = divide(spans(text), Made(costs), checks=16)
    assert [size for bucket in found.buckets for size in bucket.spans[0]] == [*Span.parse(text)]
    assert found.bound == 0.0
    assert len(found.checks) == len(Span.parse(text))


def test_the_budget_ends_it_and_what_is_known_is_told() -> None:
    costs = affine(random.Random(3), 8, 1)
    for budget in (10, 40, 80, 160):
        made = Made(costs, budget)
        found = divide(spans("1..8192"), made, checks=32)
        assert made.spent < budget + 17  # the last search, and one size of all configs
        assert sum(len(b.spans[0]) for b in found.buckets) == 8192
        assert all(b.regret <= found.bound for b in found.buckets)
    assert divide(spans("1..8192"), Made(costs, 8), checks=32).quantile(0.95) is None


def test_what_is_known_from_before_is_timed_first() -> None:
    costs: dict[str, Cost] = {"a": lambda s: 10, "b": lambda s: 10.05}
    found = divide(spans("1..64"), Made(costs), checks=4, portfolio=["b"])
    assert found.portfolio == ("b",)  # what is not faster by more than timings differ replaces nothing


def test_an_interrupt_keeps_what_is_known() -> None:
    costs = affine(random.Random(5), 8, 1)

    class Interrupted(Made):
        def search(self, sizes: Point, first: Sequence[str]) -> str | None:
            if len(self.searched) == 2:
                raise KeyboardInterrupt
            return super().search(sizes, first)

    found = divide(spans("1..8192"), Interrupted(costs), checks=4)
    assert found.interrupted
    assert found.checks == ()
    assert sum(len(b.spans[0]) for b in found.buckets) == 8192


def test_a_checked_regret_is_of_times_taken_anew() -> None:
    """Of several that are timed one may seem the fastest by chance; beside the bucket's config alone it does not."""

    class Once(Made):
        """The first time at a checked size "slower" seems to be the faster."""

        def beside(self, sizes: Point, configs: Iterable[str]) -> Mapping[str, float]:
            lucky = sizes in checked and sizes not in self.timed
            return {n: t * (0.8 if lucky and n == "slower" else 1.0) for n, t in super().beside(sizes, configs).items()}

    (span,) = spans("10000..1000000")  # so many that none of the drawn is among those that are learnt from
    checked = {*_drawn([span], 16, random.Random(0))}
    made = Once({"faster": lambda sizes: 1.0 * sizes[0], "slower": lambda sizes: 1.1 * sizes[0]})
    found = divide([span], made, checks=16, portfolio=["faster", "slower"], seed=0)
    assert found.portfolio == ("faster",)
    assert len(found.checks) == 16
    assert found.quantile(1.0) == 0
    assert all(made.timed.count(sizes) == 2 for sizes in checked)
