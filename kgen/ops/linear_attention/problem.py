"""Linear attention's problems by their axes: heads, rows, and the columns of queries and of values."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, Sizes
from kgen.ops.attention.problem import Matrix
from kgen.ops.common.axes import has_leading
from kgen.ops.linear_attention.algebra import LinearAttention, linear_attention


@dataclass(frozen=True)
class Rows:
    """A problem of this family: of each head q and k are [N, D], v and the result [N, E], decay a row of N.

    `batch` are the axes that count heads.
    """

    N: int
    D: int
    E: int
    batch: tuple[int, ...]
    q: Matrix
    k: Matrix
    v: Matrix
    output: Matrix
    decay: Matrix | None

    @property
    def heads(self) -> int:
        return math.prod(self.batch)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """By the names that kernels have for them."""
        named = {"q": self.q, "k": self.k, "v": self.v, "o": self.output}
        return named if self.decay is None else {**named, "decay": self.decay}


def found(graph: Graph) -> LinearAttention:
    """The algebra of a graph of this family."""
    attended = linear_attention(graph)
    assert attended is not None
    return attended


def matches(graph: Graph) -> bool:
    return linear_attention(graph) is not None


@functools.lru_cache(maxsize=4096)
def describe(problem: Problem) -> Rows:
    """The problem by its axes."""
    attended = found(problem.graph)
    output = problem.outputs[0]
    batch = output.shape[:-2]

    def matrix(operand: Operand) -> Matrix:
        return Matrix.of(operand, len(batch))

    q, k, v = (matrix(problem.operand(name)) for name in (attended.q, attended.k, attended.v))
    decay = matrix(problem.operand(attended.decayed)) if attended.decayed else None
    (N, D), E = q.operand.shape[-2:], v.operand.shape[-1]
    return Rows(N, D, E, batch, q, k, v, matrix(output), decay)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: heads of 128 and of 64 columns, as long as a prompt; `small`: short ones."""
    attended = found(graph)
    specs = {spec.name: spec for spec in graph.inputs}
    rows, depth = (str(d) for d in specs[attended.q].shape.dims[-2:])
    width = str(specs[attended.v].shape.dims[-1])

    def of(length: int, columns: int) -> Sizes:
        lead = {"...": (2, 8)} if has_leading(graph) else {}
        return {**lead, **dict.fromkeys(graph.dims, 1), rows: length, depth: columns, width: columns}

    return {"default": [of(2048, 128), of(4096, 64)], "small": [of(512, 64)]}
