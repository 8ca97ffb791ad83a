"""Boxes: a range of sizes cut into boxes that one config serves each, as a decision tree is grown.

Knows regrets at points of the range alone: how much longer each config takes there than the best. A regret within the tolerance
costs nothing. A box where one config costs nothing is done; another is cut where its two parts, with the best config of each,
cost least together (Breiman, Friedman, Olshen and Stone, Classification and Regression Trees, 1984). The exact place of a cut,
between two points, is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgen.tuner.division import Point

#: A regret that is more than any other: of a config that is not valid.
INVALID = 1e3


@dataclass(frozen=True, order=True)
class Box:
    """The places `low` to `high` along each axis, both included."""

    low: Point
    high: Point

    def corners(self) -> list[Point]:
        """Its corners, each once."""
        return [*itertools.product(*(dict.fromkeys(ends) for ends in zip(self.low, self.high)))]

    def cut(self, axis: int, place: int) -> tuple[Box, Box]:
        """The two parts of it; the second begins at `place`."""
        return Box(self.low, _moved(self.high, axis, place - 1)), Box(_moved(self.low, axis, place), self.high)

    def __contains__(self, places: Point) -> bool:
        return all(a <= place <= b for a, place, b in zip(self.low, places, self.high))


@dataclass(frozen=True)
class Cut:
    """Where a box is to be cut: between two points that have the places `before` and `after` along an axis.

    `configs` are the columns of what is best on both sides.
    """

    axis: int
    before: Point
    after: Point
    configs: tuple[int, int]


class Tree:
    """Points of a range, [points, axes], with the regrets of configs at each, [points, configs], and how much they count.

    `where` says, of a Cut, which place is the first of the second part.
    """

    def __init__(
        self,
        points: Sequence[Point],
        regrets: NDArray[np.float64],
        weights: NDArray[np.float64],
        tolerance: float,
        where: Callable[[Cut], int],
    ) -> None:
        self.points = np.array(points)
        self.costs = np.where(regrets > tolerance, regrets, 0.0) * weights[:, None]
        self.where = where

    def leaves(self, box: Box) -> Iterator[tuple[Box, int]]:
        """The parts of a box, with the column of the config that serves each: the first of those that cost least."""
        inside = [tuple(point) in box for point in self.points.tolist()]
        return self._grown(box, np.flatnonzero(inside))

    def _grown(self, box: Box, rows: NDArray[np.intp]) -> Iterator[tuple[Box, int]]:
        costs = self.costs[rows].sum(0)
        column = int(costs.argmin())
        cut = self._best_cut(rows) if costs[column] > 0 else None
        if cut is None:
            yield box, column
            return
        place = self.where(cut)
        upper = self.points[rows, cut.axis] >= cut.after[cut.axis]
        first, second = box.cut(cut.axis, place)
        yield from self._grown(first, rows[~upper])
        yield from self._grown(second, rows[upper])

    def _best_cut(self, rows: NDArray[np.intp]) -> Cut | None:
        """The cut whose parts cost least together, the most even one of several; None of a single point."""
        found: list[tuple[float, int, Cut]] = []
        for axis in range(self.points.shape[1]):
            ordered = rows[self.points[rows, axis].argsort(kind="stable")]
            along = self.points[ordered, axis]
            ends = np.flatnonzero(along[1:] > along[:-1])
            if not len(ends):
                continue
            below = self.costs[ordered].cumsum(0)
            first, second = below[ends], below[-1] - below[ends]
            # What is left of a difference of sums is no cost.
            second[second < 1e-9 * below[-1].max()] = 0.0
            together = first.min(1) + second.min(1)
            least = together.min()
            uneven = np.abs(2 * (ends + 1) - len(ordered))
            best = min(np.flatnonzero(together <= least * (1 + 1e-9)), key=lambda i: int(uneven[i]))
            before, after = (tuple(self.points[ordered[ends[best] + i]].tolist()) for i in (0, 1))
            columns = int(first[best].argmin()), int(second[best].argmin())
            found.append((float(least), int(uneven[best]), Cut(axis, before, after, columns)))
        return min(found, key=lambda one: one[:2])[2] if found else None


def few(
    regrets: NDArray[np.float64], weights: NDArray[np.float64], tolerance: float, most: int, gain: float
) -> list[int]:
    """Columns of few configs of which, at each point, one has a small regret; chosen greedily, at most `most` of them.

    Regrets within the tolerance count nothing. Ends where one more would not lessen what the best of them cost in the mean by
    more than `gain`.
    """
    costs = np.where(regrets > tolerance, np.minimum(regrets, 1.0), 0.0)
    left = np.ones(len(regrets))
    chosen: list[int] = []
    while costs.size and len(chosen) < most:
        gains = (weights[:, None] * (left[:, None] - np.minimum(left[:, None], costs))).sum(0) / weights.sum()
        best = int(gains.argmax())
        if gains[best] <= gain:
            break
        chosen.append(best)
        left = np.minimum(left, costs[:, best])
    return chosen


def joined(parts: list[tuple[Box, int]]) -> list[tuple[Box, int]]:
    """Boxes with the same config that make up a larger one, as that one."""
    found = parts
    for axis in range(len(parts[0][0].low) if parts else 0):
        rows: dict[tuple[object, ...], list[tuple[Box, int]]] = {}
        for box, config in sorted(found, key=lambda part: part[0].low[axis]):
            sides = tuple(side[:axis] + side[axis + 1 :] for side in (box.low, box.high))
            row = rows.setdefault((config, *sides), [])
            if row and row[-1][0].high[axis] + 1 == box.low[axis]:
                row[-1] = Box(row[-1][0].low, box.high), config
            else:
                row.append((box, config))
        found = [part for row in rows.values() for part in row]
    return found if len(found) == len(parts) else joined(found)


def _moved(point: Point, axis: int, place: int) -> Point:
    return (*point[:axis], place, *point[axis + 1 :])
