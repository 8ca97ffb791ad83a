"""Covering: a few hundred rows of a class of which, at any sizes, one is nearly as fast as the best of all, by the model.

Of 4600 configs of a class of products some 430 are enough: a tenth of the arithmetic of a first call's choice. Sizes are drawn;
the rows that are as fast as the best at some of them cover it; and few rows that cover all are found by the greedy algorithm for
set cover (Chvatal 1979). docs/notes/search.md has what that costs at sizes that were not drawn.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from kgen.dsl.problem import NormalProblem, Operand

#: A row covers sizes at which it takes at most so many times as long as the best.
_AS_FAST = 1.005
#: How many sizes are drawn, the largest of a dimension, and what of its divisors is kept: alignments follow from these.
_DRAWN, _LARGEST, _DIVISORS = 8192, 2**16, 64
#: A table of the class, and a row of it.
Row = tuple[int, int]


def covering(
    problem: NormalProblem, best: Callable[[Sequence[int]], Mapping[Row, float]]
) -> Generator[None, None, list[Row]]:
    """The rows that cover the sizes of problems like this one, in many short steps; none where none can be.

    `best` gives the modelled seconds of the best rows at sizes and strides in the order of `kgen.tuner.traced.sizes_of`, nothing
    where it does not serve them.
    """
    sizes = Sizes(problem)
    drawn, rows = random.Random(0), dict[Row, int]()
    places, covers = array("q"), array("q")
    for number in range(_DRAWN if sizes.told else 0):
        yield
        found = best(sizes.drawn(drawn))
        least = min(found.values(), default=0.0) * _AS_FAST
        for row in (row for row, seconds in found.items() if seconds <= least):
            places.append(rows.setdefault(row, len(rows)))
            covers.append(number)
    taken = yield from cover(np.column_stack((places, covers)))
    found_rows = [*rows]
    return [found_rows[place] for place in taken]


def cover(places: np.ndarray) -> Generator[None, None, list[int]]:
    """Few rows that cover all: `places` are pairs of a row and what it covers. Each takes most of what those before it left."""
    taken, left = list[int](), np.ones(places[:, 1].max(initial=0) + 1, dtype=bool)
    while len(places := places[left[places[:, 1]]]):
        yield
        taken.append(int(np.bincount(places[:, 0]).argmax()))
        left[places[places[:, 0] == taken[-1], 1]] = False
    return taken


class Sizes:
    """Sizes and strides of problems like one: operands in its order of axes, dense, and padded where padding keeps alignment.

    Sizes that are equal here are equal in all: `told` says that no two dimensions are so by accident, nor a size made of others.
    """

    def __init__(self, problem: NormalProblem) -> None:
        self._problem = problem
        named = [n for _, n in problem.bindings if n > 1]
        own = {n for o in problem.operands for n in (*o.shape, *problem.leading) if n > 1}
        self.told = len({*named}) == len(named) and own <= {*named}
        #: What the sizes that stand for one are multiples of: where strides follow from it, alignments do.
        inner = {o.shape[axis] for o in problem.operands for axis in _outwards(o)[:-1]}
        self._steps = {n: math.gcd(n, _DIVISORS) if n in inner else 1 for n in named}

    def drawn(self, drawn: random.Random) -> list[int]:
        """Some sizes and strides, in the order of `kgen.tuner.traced.sizes_of`. Logarithms of sizes are drawn evenly."""
        to = {n: step * round(2 ** drawn.uniform(0, math.log2(_LARGEST / step))) for n, step in self._steps.items()}
        found: list[int] = []
        for o in self._problem.operands:
            shape = [to.get(n, n) for n in o.shape]
            strides, pitch = [*o.strides], 1
            for axis in _outwards(o):
                if o.strides[axis] > 1:
                    step = math.gcd(o.strides[axis], _DIVISORS)
                    strides[axis] = -(-pitch // step) * step
                pitch = max(pitch, strides[axis] * shape[axis])
            found += (*shape, *strides)
        found += (to.get(n, n) for n in self._problem.leading)
        found += (to.get(n, n) for _, n in self._problem.bindings)
        return found


def _outwards(o: Operand) -> list[int]:
    """The axes of an operand that go through memory, that of the least stride first."""
    return sorted(
        (a for a, (n, s) in enumerate(zip(o.shape, o.strides)) if n > 1 and s > 0), key=lambda a: o.strides[a]
    )
