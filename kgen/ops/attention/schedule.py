"""What the schedules of attention share: the symbols of a launch, the order of a launch's tiles, the tensor cores' share."""

from __future__ import annotations

from collections.abc import Hashable

from kgen.dsl import vector
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.target import Target
from kgen.dsl.types import bf16, f16
from kgen.dsl.vector import Vector, ceil, maximum, minimum, where
from kgen.ops.attention.problem import WIDEST, Heads, describe, found, matches
from kgen.ops.attention.tensor_maps import by_tma
from kgen.ops.attention.text import beside_symbols, mask_bounds

#: Bytes of keys and values that L2 is expected to keep.
IN_L2 = 32e6


def is_bounded(problem: Problem) -> bool:
    """Whether a mask bounds the columns of tiles of rows, so that these differ in length."""
    return mask_bounds(problem).bounded


def is_short(h: Heads) -> bool:
    """Whether the rows of all heads that share keys are one tile of a warpgroup."""
    return h.M * h.group <= 64


class AttentionSchedule(Schedule):
    """Base of the schedules: a block has BR rows of queries, and goes over BC rows of keys and values at a time."""

    BR: int
    BC: int
    stages: int

    order = choice("in_order", "longest_first")  # of the tiles of rows
    group = choice(1, 4, 8, 16, 32)  # heads side by side, whose keys and values L2 keeps
    side_by_side = ("group",)

    @rule
    @sized
    def sizes_in_32_bits(self, problem: Problem, target: Target) -> Vector:
        """M, N and the number of blocks are 32-bit integers, with room for what a block counts beyond the end"""
        h = describe(problem)
        return (self.tiles(h) < 2**31) & (max(h.M, h.N, h.v.operand.shape[-2], *h.batch, 1) < 2**30)

    @rule
    def widest_heads(self, problem: Problem, target: Target) -> bool:
        """heads have at most 1024 columns"""
        h = describe(problem)
        return max(h.D, h.E) <= WIDEST

    @pruning
    def longest_first_where_bounded(self, problem: Problem, target: Target) -> bool:
        """tiles of rows differ in length where a mask bounds their columns; only then are heads side by side"""
        return (self.order != "in_order") == is_bounded(problem) and (self.order == "longest_first" or self.group == 1)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return (
            matches(problem.graph) and found(problem.graph).dtype in (f16, bf16) and not found(problem.graph).transposed
        )

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph, the columns of heads, which matrices TMA can address, and whether heads share keys and are short."""
        h = describe(problem)
        addressed = (*map(by_tma, (h.q, h.k, h.output)), by_tma(h.v, not found(problem.graph).transposed))
        return problem.graph.digest, h.D, h.E, len(h.batch), addressed, h.group > 1, is_short(h)

    @classmethod
    def ordered(cls, problem: Problem) -> dict[str, str | int]:
        """The order of tiles and the group that defaults take."""
        if not is_bounded(problem):
            return {"order": "in_order", "group": 1}
        h = describe(problem)
        size = h.N * (h.D + h.E) * found(problem.graph).dtype.bytes
        return {"order": "longest_first", "group": max([g for g in cls.group.values if g * size <= IN_L2], default=1)}

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """M, N, D, E, batches0.., size_X of every dimension X; strides q_row, q_column, q_b0.., of others x_s0.."""
        h = describe(problem)
        symbols = {"M": h.M, "N": h.N, "D": h.D, "E": h.E} | {f"batches{d}": n for d, n in enumerate(h.batch)}
        for name, x in h.matrices.items():
            symbols |= {f"{name}_row": x.row, f"{name}_column": x.column}
            symbols |= {f"{name}_b{d}": s for d, s in enumerate(x.batch)}
        whole = problem.origin or problem
        symbols |= {f"size_{name}": size for name, size in whole.sizes.items()}
        return symbols | beside_symbols(problem)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("N"), self.BC * self.stages),)

    @property
    def row_tiles(self) -> str:
        """The policy by which blocks take tiles of rows."""
        return "RowTilesInOrder" if self.order == "in_order" else f"LongestRowTilesFirst<{self.group}>"

    def tiles(self, h: Heads) -> Vector:
        """Tiles of rows of all heads."""
        return vector.ceil_div(h.M, self.BR) * h.heads

    def blocks(self, h: Heads) -> Size:
        """The launch's blocks over the symbols: tiles of rows of all heads."""
        return of_all_heads(ceil_div(Dim("M"), self.BR), h.batch)

    def steps(self, problem: Problem, more: Vector) -> Vector:
        """Blocks of columns of a tile of rows: a bound on one side leaves half of them, of few rows that end with the columns
        nearly all, and `more`.
        """
        b, h = mask_bounds(problem), describe(problem)
        sides, left = bool(b.lower) + bool(b.upper), 1 - 0.5 * min(1.0, h.M / max(1, h.N))
        return maximum(1.0, vector.ceil_div(h.N, self.BC) * left**sides + sides * more)

    def cut(self, problem: Problem) -> Vector:
        """Half of the square of a tile's rows that a bound cuts, in blocks of columns."""
        return minimum(self.BR, describe(problem).M) / (2 * self.BC)

    def rounds(self, problem: Problem, at_once: Vector) -> Vector:
        """How many tiles of rows a multiprocessor has one after another, of as many at once, handed out by the hardware."""
        waves = self.tiles(describe(problem)) / at_once
        return where((waves < 4) & (not is_bounded(problem)), ceil(waves), maximum(1.0, waves + 0.3))


def of_all_heads(count: Size, batch: tuple[int, ...]) -> Size:
    """So many of each head, which the axes `batch` count."""
    for d in range(len(batch)):
        count = count * Dim(f"batches{d}")
    return count
