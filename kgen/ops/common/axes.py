"""Axes: the names that a shape is written by, and neighbours that are one axis to all operands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kgen.dsl.operator import Graph


def has_leading(graph: Graph) -> bool:
    """Whether an operand has leading sizes."""
    return any(spec.shape.leading for spec in (*graph.inputs, *graph.outputs))


def dims(graph: Graph) -> tuple[str, ...]:
    """A shape is written as leading sizes, then the named dimensions."""
    return (*(("...",) if has_leading(graph) else ()), *graph.dims)


def runs(axes: Iterable[int], sizes: Sequence[int], strides: Iterable[Sequence[int]]) -> list[list[int]]:
    """The axes, in this order, in runs that are one axis each: to every operand a stride is the next one times its size."""
    columns, found = list(strides), list[list[int]]()
    for axis in axes:
        if found and all(s[found[-1][-1]] == s[axis] * sizes[axis] for s in columns):
            found[-1].append(axis)
        else:
            found.append([axis])
    return found


def merged_sizes(made: Iterable[Sequence[int]], sizes: Sequence[int]) -> list[int]:
    """The size of each run."""
    return [math.prod(sizes[axis] for axis in run) for run in made]


def merged_strides(made: Iterable[Sequence[int]], strides: Sequence[int]) -> list[int]:
    """An operand's stride along each run."""
    return [strides[run[-1]] for run in made]
