"""Attention problems by their axes: heads, rows of queries, columns of keys, and the depths of both products."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.dsl.expr import walk
from kgen.dsl.operator import Graph, left_out
from kgen.dsl.problem import Operand, Problem, Sizes
from kgen.dsl.size import evaluate
from kgen.ops.attention.algebra import Attention, attention, mask
from kgen.ops.attention.masks import is_limit
from kgen.ops.common.axes import has_leading

#: The widest heads that there are kernels for; the widest values of which a thread has a row's sums, half as many registers; and
#: the widest heads of gradients.
WIDEST, NARROW, WIDEST_GRADIENT = 1024, 256, 512


@dataclass(frozen=True)
class Matrix:
    """An operand with its strides over the heads' axes, 0 where it has none there, and over its own two."""

    operand: Operand
    batch: tuple[int, ...]
    row: int
    column: int

    @classmethod
    def of(cls, operand: Operand, rank: int, own: int = 2) -> Matrix:
        """The operand where `rank` axes count heads; with `own` of 1, it has one number a row."""
        cut = len(operand.shape) - own
        head = [s if n > 1 else 0 for n, s in zip(operand.shape[:cut], operand.strides)]
        row, column = operand.strides[cut:] if own == 2 else (operand.strides[-1], 0)
        return cls(operand, (*([0] * (rank - cut)), *head), row, column)


@dataclass(frozen=True)
class Heads:
    """A problem of this family: of each head q is [M, D], k [N, D], v [N, E], or [E, N] where it is transposed, and the result
    [M, E]. Where keys are taken by ids, k and v are matrices of more rows.

    `batch` are the axes that count heads, those of a group of queries that share keys the last. `rows` are the outputs of one
    number a row, `limits` the strides over the heads of the inputs that bound columns, by name. `group` heads of queries share
    each head of keys and values: those of the last axis, or 1.
    """

    M: int
    N: int
    D: int
    E: int
    batch: tuple[int, ...]
    q: Matrix
    k: Matrix
    v: Matrix
    output: Matrix
    rows: tuple[Matrix, ...]
    limits: tuple[tuple[str, tuple[int, ...]], ...]
    group: int

    @property
    def heads(self) -> int:
        return math.prod(self.batch)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """By the names that kernels have for them."""
        return {"q": self.q, "k": self.k, "v": self.v, "o": self.output} | {
            f"row{i}": matrix for i, matrix in enumerate(self.rows)
        }


def found(graph: Graph) -> Attention:
    """The algebra of a graph of this family."""
    attended = attention(graph)
    assert attended is not None
    return attended


def matches(graph: Graph) -> bool:
    return attention(graph) is not None


@functools.lru_cache(maxsize=4096)
def describe(problem: Problem) -> Heads:
    """The problem by its axes."""
    attended = found(problem.graph)
    output, *rows = problem.outputs
    batch = output.shape[:-2]

    def matrix(operand: Operand, own: int = 2) -> Matrix:
        return Matrix.of(operand, len(batch), own)

    q, k, v = (matrix(problem.operand(name)) for name in (attended.q, attended.k, attended.v))
    (M, D), E = q.operand.shape[-2:], v.operand.shape[-2 if attended.transposed else -1]
    N = evaluate(attended.product.shape.dims[-1], (problem.origin or problem).sizes)
    conditions = (*mask(attended.score, attended.hidden)[1], *attended.kept)
    names = dict.fromkeys(n.attr for n in walk(conditions) if is_limit(n))
    limits = tuple((name, matrix(problem.operand(name)).batch) for name in names)
    graph = problem.graph
    axes = [1 if left_out(node, spec) else 2 for node, spec in zip(graph.results, graph.outputs)]
    numbers = tuple(matrix(r, own) for r, own in zip(rows, axes[1:]))
    shared = bool(batch) and all(s[-1] == 0 for s in (k.batch, v.batch, *(s for _, s in limits)))
    if attended.ids is not None:  # of a leading axis it is not seen whether ids differ along it
        shared = shared and attended.ids.shape.dims[-2:-1] == (1,)
    group = batch[-1] if shared else 1
    return Heads(M, N, D, E, batch, q, k, v, matrix(output), numbers, limits, group)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: heads of 64 and of 128 columns, as long as a prompt; `small`: short ones."""
    attended = found(graph)
    specs = {spec.name: spec for spec in graph.inputs}
    rows, depth = (str(d) for d in specs[attended.q].shape.dims[-2:])
    columns, width = (str(d) for d in specs[attended.v].shape.dims[-2:][:: -1 if attended.transposed else 1])
    lead = {"...": (2, 8)} if has_leading(graph) else {}

    def of(length: int, head: int, heads: int) -> Sizes:
        sizes = dict.fromkeys(graph.dims, 1) | {rows: length, columns: length, depth: head, width: head}
        others = [name for name in graph.dims if name not in (rows, columns, depth, width)]
        return {**{name: lead[name] for name in lead}, **sizes, **({others[-1]: heads} if others else {})}

    return {"default": [of(2048, 128, 2), of(4096, 64, 2)], "small": [of(512, 64, 2)]}
