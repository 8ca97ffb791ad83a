"""Requirements: what the sizes, strides and addresses of a launch must satisfy for an exported kernel to be right.

How large and how small sizes may be, the source says (`Limit`, `Integer.most`). The rest is inferred from the schedule's own
rules (`variants`): every problem that the source serves tells values that its symbols may have, and what all of these have in
common is required. Divisibility by powers of two and a fixed value are found this way, of one symbol at a time. A rule on two
sizes together is not; but of blocks that wait for each other there are no more than the target has at once.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Union

from kgen.codegen.source import SM_COUNT, Integer, Pointer, Source, TensorMap
from kgen.dsl.problem import WIDEST_ACCESS, Problem
from kgen.dsl.size import Dim, Size, evaluate, symbols_of
from kgen.export.variants import Served, axes, realigned, resized

#: Steps a size is changed by: tells divisibility by powers of two up to a large tile.
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_GAPS = (1, 2, 4, 8, 16)
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Requirement:
    """`value`, over the launch's symbols, is a multiple of `bound`, at least `bound`, at most `bound` or equal to it.

    `along` is the size of the axis that a stride is of: of a single element the stride does not matter.
    """

    value: Size
    relation: Literal["a multiple of", "at least", "at most", "equal to"]
    bound: int
    along: Union[Dim, None] = None

    def holds(self, symbols: Mapping[str, int]) -> bool:
        """Whether a launch with these sizes and strides meets it."""
        if self.along is not None and evaluate(self.along, symbols) == 1:
            return True
        value = evaluate(self.value, symbols)
        if self.relation == "a multiple of":
            return value % self.bound == 0
        if self.relation == "equal to":
            return value == self.bound
        return value <= self.bound if self.relation == "at most" else value >= self.bound

    @property
    def is_bound(self) -> bool:
        """Whether it is a bound of a size."""
        return self.relation in ("at least", "at most")


@dataclass(frozen=True)
class Requirements:
    """`alignment` of every operand's address in bytes, and what the symbols must satisfy."""

    alignment: dict[str, int]
    sizes: tuple[Requirement, ...]

    def hold(self, symbols: Mapping[str, int], alignment: Mapping[str, int]) -> bool:
        """Whether a launch with these sizes and strides meets all of them, on operands at multiples of so many bytes."""
        aligned = all(alignment[name] % least == 0 for name, least in self.alignment.items())
        return aligned and all(r.holds(symbols) for r in self.sizes)

    @property
    def demands(self) -> int:
        """How much is asked for beyond what follows from the layout: 0 for a kernel that takes any size, stride and address."""
        asked = [r.bound for r in self.sizes if r.along is None and not r.is_bound]
        return sum(asked) + sum(self.alignment.values())


def used_symbols(source: Source, known: dict[str, int]) -> list[str]:
    """The symbols that a launch depends on, without SM_COUNT, in the order of `known`."""
    sizes: list[Size] = [*source.launch.grid]
    sizes += [p.value for p in source.params if isinstance(p, Integer)]
    sizes += [p.size for p in source.params if isinstance(p, Pointer)]
    sizes += [limit.value for limit in source.limits]
    sizes += [size for p in source.params if isinstance(p, TensorMap) for size in (*p.sizes, *p.strides)]
    used = frozenset().union(*map(symbols_of, sizes)) - {SM_COUNT.name}
    return [name for name in known if name in used]


_STRIDE = re.compile(r"_s(?:([mnk])|b(\d+)|(\d+))$")


def is_stride(symbol: str) -> bool:
    """Whether a symbol is a stride, by the names that schedules give: a_sm, a_sb0, x_s1."""
    return _STRIDE.search(symbol) is not None


def axis_of(stride: str, known: Container[str]) -> str | None:
    """The symbol for the size of the axis that a stride is of: M of a_sm, batches0 of a_sb0, n1 of x_s1.

    None for what is no stride, or none of an axis that is known.
    """
    match = _STRIDE.search(stride)
    if match is None:
        return None
    name = match[1].upper() if match[1] else f"batches{match[2]}" if match[2] else f"n{match[3]}"
    return name if name in known else None


def requirements(served: Served, names: Iterable[str] = (), problems: Sequence[Problem] = ()) -> Requirements:
    """The requirements of a launch of `served.source`; `names` are symbols that it is given beside those it depends on.

    Of these it takes the one value that all its problems have: the stride 1 of a layout, 0 of a broadcast. `problems` are
    those that the source is known to serve; without them it is `served.origin` alone.
    """
    source = served.source
    origins = [served if p is served.origin else replace(served, origin=p) for p in problems] or [served]
    seen = [s for o in origins for s in map(served.symbols, (*variants(o.origin), *_odd(o))) if s is not None]
    found = []
    known = served.config.symbols(served.problem)
    used, given = used_symbols(source, known), [*names]
    for name in (n for n in given if n not in used):
        values = {s[name] for s in seen}
        along = axis_of(name, given)
        if len(values) == 1:
            found.append(Requirement(Dim(name), "equal to", values.pop(), Dim(along) if along else None))
    for name in used:
        values = {s[name] for s in seen}
        if len(values) == 1:
            found.append(Requirement(Dim(name), "equal to", values.pop()))
            continue
        step = min(v & -v for v in values if v)
        if step > 1:
            found.append(Requirement(Dim(name), "a multiple of", min(step, STEPS[-1])))
    most: dict[Size, int] = {}
    integers = [p for p in source.params if isinstance(p, Integer) and (p.most or p.bits == 32)]
    limits = [(x.value, x.most) for x in source.limits if x.most is not None]
    for value, n in (*((p.value, p.most or _INT_MAX) for p in integers), *limits):
        most[value] = min(n, most.get(value, n))
    at_once = _blocks_at_once(served)
    if at_once is not None:
        blocks, count = at_once
        most[blocks] = min(count, most.get(blocks, count))
    fixed = [r.value for r in found if r.relation == "equal to"]
    found += [Requirement(v, "at most", n) for v, n in most.items() if not isinstance(v, int) and v not in fixed]
    least = [x for x in source.limits if x.least > 0 and x.value not in fixed]
    found += [Requirement(x.value, "at least", x.least) for x in least]
    alignment = {o.name: min(_alignment(served, p.origin, o.name) for p in origins) for o in served.origin.operands}
    return Requirements(alignment, tuple(found))


def _blocks_at_once(served: Served) -> tuple[Size, int] | None:
    """The blocks of a cooperative launch whose number goes with the sizes alone, and how many of them the target has at once."""
    launch = served.source.launch
    blocks = functools.reduce(operator.mul, launch.grid)
    if not launch.cooperative or SM_COUNT.name in symbols_of(blocks):
        return None
    return blocks, served.target.sm_count * int(served.config.values.get("blocks_per_sm", 1))


@functools.lru_cache(maxsize=64)
def variants(origin: Problem) -> tuple[Problem, ...]:
    """The problem with each size changed, over dense rows and over rows padded to the widest access; and with gaps."""
    sizes = itertools.product(axes(origin).items(), STEPS, (1, WIDEST_ACCESS))
    changed = (resized(origin, {name: size + step}, pitch=pitch) for (name, size), step, pitch in sizes)
    apart = itertools.product((o.name for o in origin.operands), _GAPS)
    return (origin, *changed, *(resized(origin, {}, gaps={name: gap}) for name, gap in apart))


def _odd(served: Served) -> Iterator[Problem]:
    """The problem with every size as odd as the source allows, one after the other, and last with narrow gaps between rows.

    A size is made smaller where the source serves none that is larger. A symbol may be the product of two sizes: while one of
    them stays as it was tuned, its factors show in the product.
    """
    for pitch in (1, WIDEST_ACCESS):
        sizes: dict[str, int] = {}
        for name, size in axes(served.origin).items():
            steps = [s for s in STEPS if size % (2 * s) == 0 or size == 1 < s]
            for other in (*(size + s for s in steps), *(size - s for s in steps if s < size)):
                odd = resized(served.origin, {**sizes, name: other}, pitch=pitch)
                if served.symbols(odd) is not None:
                    sizes[name] = other
                    yield odd
                    break
        apart = ({o.name: gap for o in served.origin.operands} for gap in _GAPS)
        gaps = (resized(served.origin, sizes, pitch=pitch, gaps=of) for of in apart)
        yield from itertools.islice((odd for odd in gaps if served.symbols(odd) is not None), 1)


def _alignment(served: Served, origin: Problem, name: str) -> int:
    """The least alignment in bytes with which the source still serves a problem."""
    operand = origin.operand(name)
    align = operand.dtype.bytes
    while align < operand.align and served.symbols(realigned(origin, name, align)) is None:
        align *= 2
    return align
