"""Problems of this family by their axes: heads, rows that stay, columns that pass, and the depths of their products."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, Sizes
from kgen.ops.attention.problem import Matrix
from kgen.ops.attention_gradient.algebra import Gradient, gradient
from kgen.ops.common.axes import has_leading


@dataclass(frozen=True)
class Sides:
    """Of each head `rows` are [M, depth] and `columns` [N, depth]; `outputs` are [M, width], each as deep as its columns, and
    `across`, where there is one, [N, width].

    `batch` are the axes that count heads; where `outputs` are `summed`, over the last of them.
    """

    M: int
    N: int
    batch: tuple[int, ...]
    summed: bool
    rows: tuple[Matrix, ...]
    columns: tuple[Matrix, ...]
    outputs: tuple[Matrix, ...]
    across: Matrix | None = None

    @property
    def own(self) -> tuple[int, ...]:
        """The axes that count heads of results."""
        return self.batch[:-1] if self.summed else self.batch

    @property
    def heads(self) -> int:
        return math.prod(self.own)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """By the names that kernels have for them."""
        across = () if self.across is None else (self.across,)
        groups = (("r", self.rows), ("c", self.columns), ("o", self.outputs), ("a", across))
        return {f"{letter}{i}": matrix for letter, group in groups for i, matrix in enumerate(group)}


def found(graph: Graph) -> Gradient:
    """The algebra of a graph of this family."""
    made = gradient(graph)
    assert made is not None
    return made


def matches(graph: Graph) -> bool:
    return gradient(graph) is not None


def depth(x: Matrix) -> int:
    """The columns of a matrix."""
    return x.operand.shape[-1]


@functools.lru_cache(maxsize=4096)
def describe(problem: Problem) -> Sides:
    """The problem by its axes."""
    made = found(problem.graph)
    outputs = [problem.outputs[place] for place in made.places]
    batch = outputs[0].shape[:-2]
    if made.summed:
        batch = (*batch[:-1], max(problem.operand(name).shape[-3] for name in (*made.rows, *made.columns)))

    def matrix(operand: Operand) -> Matrix:
        return Matrix.of(operand, len(batch))

    rows, columns = (tuple(matrix(problem.operand(n)) for n in names) for names in (made.rows, made.columns))
    (M, _), (N, _) = (group[0].operand.shape[-2:] for group in (rows, columns))
    across = None if made.across is None else matrix(problem.outputs[made.across_place])
    return Sides(M, N, batch, made.summed, rows, columns, tuple(map(matrix, outputs)), across)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: heads of 64 and of 128 columns, as long as a prompt; `small`: short ones."""
    made = found(graph)
    shapes = {spec.name: spec.shape.dims for spec in graph.inputs}
    lengths = {str(shapes[name][-2]) for name in (*made.rows, *made.columns)}
    depths = {str(shapes[name][-1]) for name in (*made.rows, *made.columns)}
    lead = {"...": (2, 8)} if has_leading(graph) else {}

    def of(length: int, head: int, heads: int) -> Sizes:
        own = {name: length if name in lengths else head if name in depths else heads for name in graph.dims}
        return {**lead, **own}

    return {"default": [of(2048, 128, 2), of(4096, 64, 2)], "small": [of(512, 64, 2)]}
