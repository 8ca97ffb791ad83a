"""Sizes: problems for an operator of which nothing is known but its dimensions, bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem, Sizes
from kgen.ops.common.axes import has_leading

#: Bytes that all operands of a problem of a default suite take at most: a few hundred MB, as of one layer of a model.
MOST_BYTES = 600 << 20
#: The same of a suite of large problems.
LARGE_BYTES = 8 << 30


def operand_bytes(graph: Graph, sizes: Sizes) -> int:
    """Bytes of all operands, dense."""
    return sum(o.stored_bytes for o in Problem.dense(graph, sizes).operands)


def fill(
    graph: Graph,
    elements: int,
    side: int,
    given: Mapping[str, int] | None = None,
    along: str | None = None,
    most: int = MOST_BYTES,
) -> Sizes:
    """Sizes of which the largest operand has about `elements` elements, a power of two, and all take at most `most` bytes.

    Each dimension is `side`, or as `given`; while that is too much, the first of the longest that are not given is halved.
    Then `along` (the leading dimension, or the first one not given) is doubled while it fits.
    """
    free = [name for name in graph.dims if name not in (given or {})]
    leading = ("...",) if has_leading(graph) else ()
    sizes: dict[str, int] = {**dict.fromkeys((*leading, *free), 1), **dict.fromkeys(free, side), **(given or {})}

    def fits(found: Mapping[str, int]) -> bool:
        operands = Problem.dense(graph, dict(found)).operands
        return max(o.elements for o in operands) <= elements and operand_bytes(graph, dict(found)) <= most

    while free and not fits(sizes) and max(sizes[name] for name in free) > 1:
        longest = max(free, key=lambda name: sizes[name])
        sizes[longest] //= 2
    grown = along or next(iter((*leading, *free)), None)
    while grown and fits({**sizes, grown: 2 * sizes[grown]}):
        sizes[grown] *= 2
    return {**sizes, **{name: (sizes[name],) for name in leading}}


def bounded(graph: Graph, suite: Iterable[Sizes]) -> list[Sizes]:
    """The problems of a suite that take at most MOST_BYTES."""
    return [sizes for sizes in suite if operand_bytes(graph, sizes) <= MOST_BYTES]


def distinct(suite: Iterable[Sizes]) -> list[Sizes]:
    """The problems of a suite, each once: the bound may make two of them equal."""
    found = list[Sizes]()
    for sizes in suite:
        if sizes not in found:
            found.append(sizes)
    return found
