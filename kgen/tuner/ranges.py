"""Ranges: one config for each part of a range of sizes, from as few measured sizes as will do.

The model is asked for its choice at sizes spread over the range, and searches at some of them bring what it does not know. All
these are the pool. At sizes spread over the range those that may be best there are timed beside each other, and between these
their times are forecast (forecast.py). The regret of a config at a size is how much longer it takes than the fastest. Few
configs are chosen of which one has a small regret at each size, and the range is cut into boxes that one of them serves each
(boxes.py); boxes side by side with the same config are one bucket. Then the buckets' corners are timed, where forecasts decided,
with further sizes, and all is chosen again, until the regrets that are found so are small. In the end sizes are drawn at random,
of which nothing learns any more, to say what the regret is.

Knows neither GPU nor database: a `Bench` times and searches.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgen.dsl.span import Span
from kgen.tuner.boxes import INVALID, Box, Cut, Tree, few, joined
from kgen.tuner.division import Bucket, Check, Division, Point
from kgen.tuner.forecast import Forecast

C = TypeVar("C", bound=Hashable)
#: A regret that is not worth another config: little more than what two timings of one kernel differ by.
TOLERANCE = 0.02
#: A config that the model gives a time so much shorter is worth a search: by so much models are off.
GAIN = 0.03
#: The most configs of a division where nothing else is asked for, and by how much one more must lessen the regret in the mean.
KERNELS, _WORTH = 96, 3e-5
#: The sizes for which times are forecast, and those of them at which the model is asked for its choice.
_SAMPLES, _CHOICES = 1024, 256
#: At a size those are timed that are forecast to take at most so much longer than the best, and no more than so many.
_NEAR, _RIVALS = 0.12, 6
#: Searches take no more than this share of the budget, and are at sizes of which one is at least so many times the other.
_SEARCHES, _APART = 0.2, 1.5
#: How many sizes are timed, and how many corners of buckets beside them, before buckets are made again.
_ROUND, _CORNERS = 48, 24
#: A round ends the rounds where the regret is within the tolerance at all but one in twenty of its sizes, and at its worst
#: within so many tolerances.
_WORST = 3.0
#: Checks take no more than this share of the budget.
_CHECKS = 0.4


class Bench(Protocol[C]):
    """What configs cost at some sizes."""

    def left(self) -> float:
        """The share of the budget that is left; 0 or less: none."""

    def choice(self, sizes: Point) -> C | None:
        """The model's choice at some sizes; None where there is none."""

    def modelled(self, configs: Sequence[C], sizes: Point) -> Sequence[float]:
        """The model's seconds of each config; inf where it is not valid."""

    @property
    def measures(self) -> bool:
        """Whether it measures, any config; else its times are the model's, of configs that a search has verified."""

    def search(self, sizes: Point, first: Sequence[C]) -> C | None:
        """The best config that a short search finds, which begins with `first`; None where no config is valid."""

    def beside(self, sizes: Point, configs: Iterable[C]) -> Mapping[C, float]:
        """Seconds of the configs that are valid and right, timed beside each other."""


class _Divider(Generic[C]):
    """The pool of configs of a range, what was timed, and the buckets made of it. Points are sizes, places their indices."""

    def __init__(
        self, spans: tuple[Span, ...], bench: Bench[C], known: Iterable[C], tolerance: float, kernels: int
    ) -> None:
        self.spans, self.bench, self.tolerance, self.kernels = spans, bench, tolerance, kernels
        self.forecast: Forecast[C] = Forecast(bench.modelled)
        self.pool: dict[C, None] = dict.fromkeys(known)
        self.whole = Box((0,) * len(spans), tuple(len(span) - 1 for span in spans))
        #: How often each place stands for the range: its ends, then places spread over it; all where there are few.
        self.samples: dict[Point, int] = dict.fromkeys(self.whole.corners(), 1)
        if math.prod(map(len, spans)) <= _SAMPLES:
            self.samples = dict.fromkeys(itertools.product(*(range(len(span)) for span in spans)), 1)
        self._spread, self._source = _spread(spans), random.Random(0)
        for places in itertools.islice(_spread(spans), _SAMPLES - len(self.samples)):
            self.samples[places] = self.samples.get(places, 0) + 1
        middle = tuple(span.place(math.sqrt(span.low * span.high)) for span in spans)
        self._to_search = [*dict.fromkeys((*self.whole.corners(), middle))]
        self._searched: list[Point] = []

    def sizes(self, places: Point) -> Point:
        return tuple(span.sizes[place] for span, place in zip(self.spans, places))

    # Timing.

    def _rivals(self, sizes: Point, also: Iterable[C] = ()) -> list[C]:
        """The configs that may be best at some sizes, the likeliest first, with `also`."""
        pool = [*self.pool]
        (row,) = self.forecast.table(pool, [sizes])
        bar = row.min(initial=math.inf) + _NEAR
        likely = [pool[i] for i in row.argsort(kind="stable")[:_RIVALS] if row[i] <= bar and row[i] < math.inf]
        return [*dict.fromkeys((*likely, *also))]

    def time(self, sizes: Point, also: Iterable[C] = ()) -> dict[C, float]:
        """Times what may be best at some sizes, with the model's choice there; the seconds of all that were timed there."""
        choice = self.bench.choice(sizes) if self.bench.measures else None
        if choice is not None:
            self.pool.setdefault(choice)
            also = (*also, choice)
        known = self.forecast.times.get(sizes, {})
        asked = [config for config in self._rivals(sizes, also) if config not in known]
        if asked:
            # The fastest so far is timed again: times are compared that were taken beside each other.
            asked += [min(known, key=known.__getitem__)] if known else []
            self.forecast.add(sizes, asked, self.bench.beside(sizes, asked))
        return {config: t for config, t in self.forecast.times.get(sizes, {}).items() if t < math.inf}

    def gather(self) -> None:
        """Fills the pool: with the model's choices where what is timed is measured, and with what searches find."""
        if self.bench.measures:
            some = (*self.whole.corners(), *itertools.islice(_spread(self.spans), _CHOICES))
            for places in dict.fromkeys(some) if len(self.samples) > _CHOICES else self.samples:
                choice = self.bench.choice(self.sizes(places))
                if choice is not None:
                    self.pool.setdefault(choice)
        while self.bench.left() > 1 - _SEARCHES or not self._searched:
            spot = self._next_search()
            if spot is None:
                return
            self._searched.append(spot)
            sizes = self.sizes(spot)
            found = self.bench.search(sizes, self._rivals(sizes, filter(None, [self.bench.choice(sizes)])))
            if found is not None:
                self.pool.setdefault(found)
                self.time(sizes, [found])

    def _next_search(self) -> Point | None:
        """The ends and the middle; then where the model promises most, and, where measuring is what finds more, afar."""
        open_ = [places for places in self._to_search if places not in self._searched]
        if open_:
            return open_[0]
        points = {places: self.sizes(places) for places in self.samples if places not in self._searched}
        if not self.bench.measures:
            promised = {places: self._promise(sizes) for places, sizes in points.items()}
            best = max(promised, key=promised.__getitem__, default=None)
            return best if best is not None and promised[best] > GAIN else None
        logs = np.log(np.array([self.sizes(places) for places in self._searched], dtype=np.float64))
        apart = {places: np.abs(logs - np.log(sizes)).max(1).min() for places, sizes in points.items()}
        furthest = max(apart, key=apart.__getitem__, default=None)
        return furthest if furthest is not None and apart[furthest] > math.log(_APART) else None

    def _promise(self, sizes: Point) -> float:
        """How much longer the best of the pool takes than the model's choice, by the model."""
        choice = self.bench.choice(sizes)
        if choice is None:
            return 0.0
        *pool, promised = self.forecast.modelled([*self.pool, choice], sizes)
        return min(pool, default=math.inf) - promised

    def learn(self, checks: int) -> None:
        """Times further sizes and corners of buckets until regrets are small, or no more is left than `checks` will take."""
        begun, timed = self.bench.left(), len(self.forecast.times)

        def is_over() -> bool:
            left, done = self.bench.left(), len(self.forecast.times) - timed
            return left <= min(_CHECKS, checks * (begun - left) / done if done else _CHECKS)

        while not is_over():
            buckets = self._chosen()
            corners = dict.fromkeys(places for box, _ in buckets for places in box.corners())
            untimed = [places for places in corners if self.sizes(places) not in self.forecast.times]
            some = self._source.sample(untimed, min(_CORNERS, len(untimed)))
            places_of_round = dict.fromkeys((*itertools.islice(self._spread, _ROUND), *some))
            regrets = []
            for places in places_of_round:
                if is_over() or self.sizes(places) in self.forecast.times:
                    continue
                self.samples.setdefault(places, 1)
                config = next((config for box, config in buckets if places in box), None)
                times = self.time(self.sizes(places), [] if config is None else [config])
                if times:
                    own = math.inf if config is None else times.get(config, math.inf)
                    regrets.append(own / min(times.values()) - 1)
            within = sum(regret <= self.tolerance for regret in regrets)
            if within >= 0.95 * len(regrets) and max(regrets, default=0.0) <= _WORST * self.tolerance:
                return

    # Choosing.

    def _chosen(self) -> list[tuple[Box, C]]:
        """Few configs that serve all sizes within the tolerance, or as well as any, with the boxes that they serve."""
        pool = [config for config in self.pool if self.forecast.timed(config)]
        samples = [*self.samples]
        weights = np.array([*self.samples.values()], dtype=np.float64)
        regrets = _regrets(self.forecast.table(pool, [self.sizes(places) for places in samples]))
        # A half, so that the boxes between points have room.
        columns = few(regrets, weights, self.tolerance / 2, self.kernels, _WORTH)
        chosen = [pool[column] for column in columns]
        served = regrets[:, columns]
        # Nobody serves where nothing is valid: that is a column as well.
        none = np.where((served >= INVALID).all(1), 0.0, INVALID)
        tree = Tree(
            samples, np.column_stack([served, none]), weights, self.tolerance, lambda cut: self._where(cut, chosen)
        )
        parts = joined([*tree.leaves(self.whole)])
        return [(box, chosen[column]) for box, column in sorted(parts) if column < len(chosen)]

    def _where(self, cut: Cut, chosen: Sequence[C]) -> int:
        """The first place of a cut's second part: where its config is forecast to be better, by bisection."""
        low, high = cut.before[cut.axis], cut.after[cut.axis]
        configs = [chosen[column] for column in cut.configs if column < len(chosen)]
        while high - low > 1:
            middle = (low + high) // 2
            sides = ((*side[: cut.axis], middle, *side[cut.axis + 1 :]) for side in (cut.before, cut.after))
            points = [*map(self.sizes, dict.fromkeys(sides))]
            table = self.forecast.table(configs, points).clip(max=INVALID).sum(0)
            times = iter(table)
            first, second = (next(times) if column < len(chosen) else INVALID for column in cut.configs)
            if second < first or (second == first and cut.configs[1] == len(chosen)):
                high = middle
            else:
                low = middle
        return high

    def divided(self) -> list[Bucket[C]]:
        """The buckets, of sizes."""
        found = []
        for box, config in self._chosen():
            spans = tuple(span.part(a, b) for span, a, b in zip(self.spans, box.low, box.high))
            inside = Bucket(spans, config, (), ())
            timed = {
                s: t
                for s, t in sorted(self.forecast.times.items())
                if s in inside and t.get(config, math.inf) < math.inf
            }
            regrets = tuple(t[config] / min(t.values()) - 1 for t in timed.values())
            found.append(Bucket(spans, config, tuple(timed), regrets))
        return found

    # Checking.

    def check(self, buckets: Sequence[Bucket[C]], drawn: Iterable[Point]) -> tuple[list[Check[C]], list[Point]]:
        """Checks of sizes, until the budget ends; and those of them that nothing serves."""
        done: list[Check[C]] = []
        unserved: list[Point] = []
        for sizes in drawn:
            if self.bench.left() <= 0:
                break
            bucket = next((bucket for bucket in buckets if sizes in bucket), None)
            times = self.time(sizes, [] if bucket is None else [bucket.config])
            if bucket is None or bucket.config not in times:
                unserved.append(sizes)
            else:
                best = min(times, key=times.__getitem__)
                if times[bucket.config] > (1 + self.tolerance) * times[best]:
                    # Anew, by themselves: the fastest of several was so by chance, too.
                    times |= self.bench.beside(sizes, [bucket.config, best])
                    best = min(best, bucket.config, key=times.__getitem__)
                done.append(Check(sizes, bucket.config, times[bucket.config], best, times[best]))
        return done, unserved


def divide(
    spans: Sequence[Span],
    bench: Bench[C],
    *,
    checks: int,
    portfolio: Iterable[C] = (),
    kernels: int = KERNELS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Division[C]:
    """The buckets of a range: of as many dimensions as there are `spans`, checked at up to `checks` random sizes.

    They are of `kernels` configs at most. `portfolio`: configs to time from the beginning, such as those of an earlier division.
    It ends with the bench's budget; an interrupt (KeyboardInterrupt) ends it too, with what is known by then, or is raised where
    that is nothing.
    """
    divider = _Divider(tuple(spans), bench, portfolio, tolerance, kernels)
    drawn = _drawn(spans, checks, random.Random(seed))
    try:
        divider.gather()
        divider.learn(len({*drawn}))
    except KeyboardInterrupt:
        buckets = divider.divided()
        if not buckets:
            raise
        return Division(tuple(buckets), len(divider.forecast.times), (), (), interrupted=True)
    buckets, points = divider.divided(), len(divider.forecast.times)
    try:
        checked, unserved = divider.check(buckets, drawn)
    except KeyboardInterrupt:
        return Division(tuple(buckets), points, (), (), interrupted=True)
    return Division(tuple(buckets), points, tuple(checked), tuple(unserved))


def _regrets(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Regrets by the logarithms of times, [points, configs]; INVALID where a config is not valid."""
    least = table.min(1, keepdims=True, initial=math.inf)
    found = np.full_like(table, INVALID)
    valid = table < math.inf
    found[valid] = np.minimum(np.expm1((table - np.where(least < math.inf, least, 0.0))[valid]), INVALID)
    return found


def _drawn(spans: Sequence[Span], count: int, source: random.Random) -> list[Point]:
    """So many sizes of a range, drawn with their logarithms alike likely; all where they are no more."""
    if math.prod(map(len, spans)) <= count:
        return [*itertools.product(*(span.sizes for span in spans))]
    drawn = (_places(spans, [source.random() for _ in spans]) for _ in range(count))
    return [tuple(span.sizes[place] for span, place in zip(spans, places)) for places in drawn]


def _spread(spans: Sequence[Span]) -> Iterator[Point]:
    """Places spread evenly over a range by their sizes' logarithms, without end, the first few as evenly as all.

    Multiples of the powers of a root of x^(d+1) = x + 1, modulo 1: of one dimension the golden ratio (Roberts, The unreasonable
    effectiveness of quasirandom sequences, 2018).
    """
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (len(spans) + 1))
    for n in itertools.count(1):
        yield _places(spans, [(0.5 + n / root ** (axis + 1)) % 1 for axis in range(len(spans))])


def _places(spans: Sequence[Span], shares: Sequence[float]) -> Point:
    """The places at these shares of a range's extent, by the logarithms of its sizes."""
    return tuple(s.place(s.low * (s.high / s.low) ** share) for s, share in zip(spans, shares))
