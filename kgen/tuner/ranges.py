"""Ranges: one config for each part of a range of sizes, from as few measured sizes as will do.

A range of sizes, of one dimension or several, is cut into boxes. At each corner of a box the configs found so far are timed
beside each other, and a search looks for another where the model promises one. The regret of a config at a size is how much
longer it takes than the fastest timed there. Where each kernel's time is affine in each size between two corners, the ratio of
two times is monotone along each side, so that no regret inside a box is above the worst at its corners. A box of which no config
has a small regret at all corners is cut in two, those first that cost most over most sizes. Real times also have steps, at whole
waves and tiles: the regret is checked at sizes drawn at random, and where it is too large, that size becomes a corner and the
cutting goes on.

In the end few configs that serve all boxes are chosen, and boxes side by side with the same config are one bucket. Knows neither
GPU nor database: a `Bench` times and searches.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kgen.dsl.span import Span
from kgen.tuner.division import Bucket, Check, Division, Point

C = TypeVar("C", bound=Hashable)
#: A regret that is not worth another config: little more than what two timings of one kernel differ by.
TOLERANCE = 0.02
#: Checked sizes may have a regret so many times the tolerance before they become corners: times have steps.
_SLACK = 2.0
#: Corners next to each other along a side are at most so many times apart, however well one config serves both.
_RATIO = 4.0
#: The most points of the grid that _RATIO asks for: of several dimensions it is coarser.
_GRID = 32
#: No search looks for more configs than this: each is timed at every size from then on.
_PORTFOLIO = 12
#: The share of the budget that is left for checks, and how often they may lead to more corners.
_CHECKS, _ROUNDS = 0.3, 3


class Bench(Protocol[C]):
    """What configs cost at some sizes."""

    def left(self) -> float:
        """The share of the budget that is left; 0 or less: none."""

    def promising(self, sizes: Point, among: Sequence[C]) -> C | None:
        """A config that by the model is faster than all of `among`, by more than models are off; None where there is none."""

    def search(self, sizes: Point, first: Sequence[C]) -> C | None:
        """The best config that a short search finds, which begins with `first`; None where no config is valid."""

    def beside(self, sizes: Point, configs: Iterable[C]) -> Mapping[C, float]:
        """Seconds of the configs that are valid and right, timed beside each other."""


@dataclass(frozen=True)
class _Box:
    """The sizes at places `low` to `high` along each axis; `high` itself only where it is the `last` of the span."""

    low: Point
    high: Point
    last: tuple[bool, ...]

    @property
    def end(self) -> Point:
        """The last place along each axis that belongs to it."""
        return tuple(h if last else h - 1 for h, last in zip(self.high, self.last))

    def corners(self) -> list[Point]:
        """Its corners. Along an axis with a single size the next one, which is another box's, says nothing of it."""
        sides = zip(self.low, self.high, self.end)
        return [*itertools.product(*((low, high) if end > low else (low,) for low, high, end in sides))]

    def cut(self, axis: int, place: int) -> list[_Box]:
        """The two parts of it; the first ends before `place`."""

        def changed(values: tuple[int, ...], value: int) -> tuple[int, ...]:
            return (*values[:axis], value, *values[axis + 1 :])

        first = _Box(self.low, changed(self.high, place), (*self.last[:axis], False, *self.last[axis + 1 :]))
        return [first, _Box(changed(self.low, place), self.high, self.last)]

    def holds(self, places: Point) -> bool:
        return all(a <= place <= b for a, place, b in zip(self.low, places, self.end))


class _Divider(Generic[C]):
    """The boxes of a range and the times at their corners."""

    def __init__(self, spans: tuple[Span, ...], bench: Bench[C], portfolio: Iterable[C], tolerance: float) -> None:
        self.spans, self.bench, self.tolerance = spans, bench, tolerance
        self.portfolio: list[C] = list(portfolio)
        self.times: dict[Point, dict[C, float]] = {}
        self.asked: dict[Point, set[C]] = {}
        several = sum(len(span) > 1 for span in spans)
        width = sum(math.log(span.high / span.low) for span in spans)
        steps = max(_GRID ** (1 / several) - 1, 1) if several else 1
        self.ratio = max(math.log(_RATIO), width / (several or 1) / steps)
        high = tuple(len(span) - 1 for span in spans)
        self.boxes = [_Box((0,) * len(spans), high, (True,) * len(spans))]
        #: The ends are searched, and the middle.
        self.searched = 2**several + 1
        self._time_corners(self.boxes[0])

    def sizes(self, places: Point) -> Point:
        return tuple(span.sizes[place] for span, place in zip(self.spans, places))

    # Timing.

    def _time(self, places: Point, again: bool = False) -> None:
        """Times the portfolio at some sizes, and where it is worth a search what that finds."""
        sizes, known, found = self.sizes(places), list(self.portfolio), None
        if not again and len(known) < _PORTFOLIO:
            promised = self.bench.promising(sizes, known)
            if promised is not None or len(self.times) < self.searched:
                found = self.bench.search(sizes, [*known, *([promised] if promised is not None else [])])
        configs = [*dict.fromkeys((*known, *([found] if found is not None else [])))]
        self.asked[places] = set(configs)
        times = self.times[places] = dict(self.bench.beside(sizes, configs))
        if found in times and found not in known:
            rivals = [seconds for config, seconds in times.items() if config in known]
            if not rivals or times[found] * (1 + self.tolerance / 2) < min(rivals):
                self.portfolio.append(found)

    def _time_corners(self, box: _Box) -> None:
        for places in box.corners():
            if places not in self.times:
                self._time(places)

    def _complete(self, box: _Box) -> bool:
        """Times what wins at one corner at all others, where it was found after they were timed; whether any lacked."""
        winners = {min(t, key=t.__getitem__) for p in box.corners() if (t := self._own(p))}
        lacking = [places for places in box.corners() if not winners <= self.asked[places]]
        for places in lacking:
            self._time(places, again=True)
        return bool(lacking)

    def _own(self, places: Point) -> dict[C, float]:
        return {config: seconds for config, seconds in self.times[places].items() if config in self.portfolio}

    # Cutting.

    def refine(self, until: float) -> None:
        """Cuts boxes until each has a config of little regret, or no more than the share `until` of the budget is left."""
        while self.bench.left() > until:
            box = max(self.boxes, key=self._urgency)
            if self._urgency(box) == (0.0, 0.0):
                # What was found since a corner was timed may be faster there, or between it and the next.
                lacking = next((p for p, asked in self.asked.items() if not asked.issuperset(self.portfolio)), None)
                if lacking is None:
                    return
                self._time(lacking, again=True)
            elif self._wide(box) or not self._complete(box):
                self._cut(box, *self._middle(box))

    def _cut(self, box: _Box, axis: int, place: int) -> None:
        parts = box.cut(axis, place)
        for part in parts:
            self._time_corners(part)
        self.boxes.remove(box)
        self.boxes += parts

    def _extent(self, box: _Box, axis: int) -> float:
        """How many times the sizes differ along an axis, as a logarithm."""
        sizes = self.spans[axis].sizes
        return math.log(sizes[box.high[axis]] / sizes[box.low[axis]])

    def _cuttable(self, box: _Box) -> list[int]:
        return [axis for axis, (a, b) in enumerate(zip(box.low, box.end)) if b > a]

    def _wide(self, box: _Box) -> bool:
        return any(self._extent(box, axis) > self.ratio + 1e-9 for axis in self._cuttable(box))

    def _weight(self, box: _Box) -> float:
        """How much of the range it is; a single size counts a little."""
        return sum(self._extent(box, axis) for axis in range(len(self.spans))) + 1e-3

    def _urgency(self, box: _Box) -> tuple[float, float]:
        """Wide boxes first, then those that lose most over most sizes; (0, 0) for one that is done."""
        if not self._cuttable(box):
            return 0.0, 0.0
        if self._wide(box):
            return 1.0, self._weight(box)
        least = min(self._regrets(box).values(), default=1.0 if any(map(self._own, box.corners())) else 0.0)
        return 0.0, (min(least, 1.0) * self._weight(box) if least > self.tolerance else 0.0)

    def _middle(self, box: _Box) -> tuple[int, int]:
        """The axis along which a box is widest, and the place in its geometric middle."""
        axis = max(self._cuttable(box), key=lambda axis: self._extent(box, axis))
        low, high = box.low[axis], box.high[axis]
        sizes = self.spans[axis].sizes
        middle = self.spans[axis].place(math.sqrt(sizes[low] * sizes[high]))
        return axis, min(max(middle, low + 1), max(high - 1, low + 1))

    def _regrets(self, box: _Box) -> dict[C, float]:
        """The worst regret of each config of the portfolio at the corners, of those that are valid at all of them."""
        corners = [self.times[places] for places in box.corners()]
        common = [config for config in self.portfolio if all(config in times for times in corners)]
        return {config: max(t[config] / min(t.values()) - 1 for t in corners) for config in common}

    # Choosing.

    def buckets(self) -> list[Bucket[C]]:
        """Few configs that serve all boxes within the tolerance, or as well as any; boxes side by side are joined."""
        regrets = {box: found for box in self.boxes if (found := self._regrets(box))}
        enough = {
            box: {c for c, r in found.items() if r <= max(self.tolerance, min(found.values()))}
            for box, found in regrets.items()
        }
        chosen: dict[_Box, C] = {}
        while len(chosen) < len(regrets):
            open_ = [box for box in regrets if box not in chosen]
            gain = {c: sum(self._weight(box) for box in open_ if c in enough[box]) for c in self.portfolio}
            widest = max(self.portfolio, key=gain.__getitem__)
            chosen |= {box: widest for box in open_ if widest in enough[box]}
        parts = [(box.low, box.end, config, regrets[box][config]) for box, config in chosen.items()]
        return [self._bucket(*part) for part in sorted(_joined(parts))]

    def _bucket(self, low: Point, end: Point, config: C, regret: float) -> Bucket[C]:
        spans = tuple(span.part(a, b) for span, a, b in zip(self.spans, low, end))
        inside = [p for p, t in self.times.items() if config in t and all(a <= i <= b for a, i, b in zip(low, p, end))]
        return Bucket(spans, config, tuple(map(self.sizes, sorted(inside))), regret)

    # Checking.

    def check(
        self, buckets: Sequence[Bucket[C]], count: int, source: random.Random
    ) -> tuple[list[Check[C]], list[Point]]:
        """Checks of sizes drawn with their logarithms alike likely, all where there are few; and those that nothing serves."""
        done: list[Check[C]] = []
        unserved: list[Point] = []
        configs = dict.fromkeys(bucket.config for bucket in buckets)
        for sizes in self._drawn(count, source):
            if self.bench.left() <= 0:
                break
            promised = self.bench.promising(sizes, [*configs])
            times = self.bench.beside(sizes, [*configs, *([promised] if promised is not None else [])])
            bucket = next((bucket for bucket in buckets if sizes in bucket), None)
            if bucket is None or bucket.config not in times:
                unserved.append(sizes)
            else:
                best = min(times, key=times.__getitem__)
                done.append(Check(sizes, bucket.config, times[bucket.config], best, times[best]))
        return done, unserved

    def _drawn(self, count: int, source: random.Random) -> list[Point]:
        if math.prod(map(len, self.spans)) <= count:
            return [*itertools.product(*(span.sizes for span in self.spans))]
        low, high = ([math.log(getattr(span, end)) for span in self.spans] for end in ("low", "high"))
        drawn = ([source.uniform(a, b) for a, b in zip(low, high)] for _ in range(count))
        return [tuple(s.sizes[s.place(math.exp(x))] for s, x in zip(self.spans, point)) for point in drawn]

    def cut_at(self, sizes: Point) -> None:
        """Makes sizes inside a box a corner of two, along the axis on which they lie furthest inside."""
        places = tuple(span.place(size) for span, size in zip(self.spans, sizes))
        box = next(box for box in self.boxes if box.holds(places))
        inside = [axis for axis in self._cuttable(box) if places[axis] > box.low[axis]]
        if inside:
            axis = max(inside, key=lambda axis: self._extent(box, axis))
            self._cut(box, axis, places[axis])


def divide(
    spans: Sequence[Span],
    bench: Bench[C],
    *,
    checks: int,
    portfolio: Iterable[C] = (),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Division[C]:
    """The buckets of a range: of as many dimensions as there are `spans`, checked at up to `checks` random sizes.

    `portfolio`: configs to time from the beginning, such as those of an earlier division. It ends with the bench's budget; an
    interrupt (KeyboardInterrupt) ends it too, with what is known by then, or is raised where that is nothing.
    """
    divider = _Divider(tuple(spans), bench, portfolio, tolerance)
    source = random.Random(seed)
    checked: list[Check[C]] = []
    unserved: list[Point] = []
    buckets: list[Bucket[C]] = []
    try:
        divider.refine(_CHECKS)
        for further in reversed(range(_ROUNDS)):
            buckets, before = divider.buckets(), bench.left()
            checked, unserved = divider.check(buckets, checks, source)
            worst = sorted(checked, key=lambda check: -check.regret)
            bad = [check.sizes for check in worst if check.regret > _SLACK * tolerance]
            spare = before - bench.left()
            # Sizes that became corners check nothing any more: there must be time to draw others.
            if not bad or not further or bench.left() < 1.5 * spare:
                break
            for sizes in bad:
                if bench.left() > spare:
                    divider.cut_at(sizes)
            divider.refine(spare)
    except KeyboardInterrupt:
        return Division(tuple(divider.buckets()), len(divider.times), (), (), interrupted=True)
    return Division(tuple(buckets), len(divider.times), tuple(checked), tuple(unserved))


def _joined(parts: list[tuple[Point, Point, C, float]]) -> list[tuple[Point, Point, C, float]]:
    """Boxes (first and last places, config, regret) with the same config that make up a larger one, as that one."""
    found = parts
    for axis in range(len(parts[0][0]) if parts else 0):
        rows: dict[tuple[object, ...], list[tuple[Point, Point, C, float]]] = {}
        for low, end, config, regret in sorted(found, key=lambda part: part[0][axis]):
            sides = tuple(side[:axis] + side[axis + 1 :] for side in (low, end))
            row = rows.setdefault((config, *sides), [])
            if row and row[-1][1][axis] + 1 == low[axis]:
                first, _, _, other = row.pop()
                row.append((first, end, config, max(other, regret)))
            else:
                row.append((low, end, config, regret))
        found = [part for row in rows.values() for part in row]
    return found if len(found) == len(parts) else _joined(found)
