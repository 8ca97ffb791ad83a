"""What both schedules share: the symbols of a launch, its blocks, and the order of their tiles."""

from __future__ import annotations

from collections.abc import Hashable

from kgen.dsl import vector
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, ceil, maximum, where
from kgen.ops.attention.problem import WIDEST_GRADIENT
from kgen.ops.attention.schedule import IN_L2, of_all_heads
from kgen.ops.attention.tensor_maps import by_tma
from kgen.ops.attention_gradient.problem import Sides, depth, describe, found, matches
from kgen.ops.attention_gradient.text import beside_symbols, gradient_text, mask_bounds


class GradientSchedule(Schedule):
    """Base of the schedules: a block has BR rows that stay, and goes over BC columns that pass at a time.

    Of `slices` blocks with the same rows each has a share of the results' columns, and makes all weights.
    """

    BR: int
    BC: int
    stages: int
    slices: int

    order = choice("in_order", "last_first")  # of the tiles of rows
    group = choice(1, 4, 8, 16, 32)  # heads side by side, whose columns L2 keeps
    side_by_side = ("group",)

    @rule
    @sized
    def sizes_in_32_bits(self, problem: Problem, target: Target) -> Vector:
        """M, N and the number of blocks are 32-bit integers, with room for what a block counts beyond the end"""
        s = describe(problem)
        return (vector.ceil_div(s.M, self.BR) * s.heads < 2**31) & (max(s.M, s.N, *s.batch, 1) < 2**30)

    @rule
    def widest_heads(self, problem: Problem, target: Target) -> bool:
        """heads have at most 512 columns"""
        s = describe(problem)
        return max(map(depth, (*s.rows, *s.columns))) <= WIDEST_GRADIENT

    @pruning
    def longest_first(self, problem: Problem, target: Target) -> bool:
        """the tiles of rows to which a mask leaves the most columns come first; only then are heads side by side"""
        return self.order == _order(problem) and (_is_uneven(problem) or self.group == 1)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph) and found(problem.graph).across is None

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; the columns of each matrix, and whether TMA can address it; the order of tiles; what passes with them."""
        s = describe(problem)
        matrices = tuple((depth(x), by_tma(x)) for x in s.matrices.values())
        uneven = _is_uneven(problem)
        return (
            problem.graph.digest,
            len(s.batch),
            matrices,
            _order(problem),
            uneven,
            gradient_text(problem).passing_bytes,
        )

    @classmethod
    def ordered(cls, problem: Problem, target: Target) -> dict[str, str | int]:
        """The order of tiles and the group that defaults take: as many heads as L2 keeps the columns of, and at least two
        tiles of 128 rows an SM, so that the shortest ones fill up what the longest leave."""
        if not _is_uneven(problem):
            return {"order": "in_order", "group": 1}
        s = describe(problem)
        size = s.N * sum(map(depth, s.columns)) * found(problem.graph).dtype.bytes
        kept = max([g for g in cls.group.values if g * size <= IN_L2], default=1)
        tiles = vector.ceil_div(s.M, 128)
        filled = min((g for g in cls.group.values if g * tiles >= 2 * target.sm_count), default=max(cls.group.values))
        return {"order": _order(problem), "group": max(kept, filled)}

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """M, N, batches0.., size_X of every dimension X; r0_depth, r0_row, r0_column, r0_b0.. of rows, as of columns c0.. and
        results o0..; of operands beside x_s0..
        """
        s = describe(problem)
        symbols = {"M": s.M, "N": s.N} | {f"batches{d}": n for d, n in enumerate(s.batch)}
        for name, x in s.matrices.items():
            symbols |= {f"{name}_depth": depth(x), f"{name}_row": x.row, f"{name}_column": x.column}
            symbols |= {f"{name}_b{d}": stride for d, stride in enumerate(x.batch)}
        whole = problem.origin or problem
        symbols |= {f"size_{name}": size for name, size in whole.sizes.items()}
        return symbols | beside_symbols(problem)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        made = found(problem.graph)
        # Random numbers come in blocks of four, along the rows of transposed weights.
        drawn = ((Dim("M"), 4),) if made.dropped is not None and made.transposed else ()
        return ((Dim("N"), self.BC * self.stages), *drawn)

    @property
    def row_tiles(self) -> str:
        """The policy by which blocks take tiles of rows."""
        if self.group == 1 and self.order == "in_order":
            return "RowTilesInOrder"
        return f"{'First' if self.order == 'in_order' else 'Longest'}RowTilesFirst<{self.group}>"

    def grid(self, s: Sides) -> tuple[Size, Size, Size]:
        """The launch's blocks over the symbols: tiles of rows of all heads, and slices of results."""
        return (of_all_heads(ceil_div(Dim("M"), self.BR), s.own), self.slices, 1)

    def steps(self, problem: Problem, bounded: float) -> Vector:
        """Steps of a tile of rows, its blocks of columns: a bound on one side leaves half of them and `bounded` more."""
        b = mask_bounds(problem)
        sides = bool(b.lower) + bool(b.upper)
        s = describe(problem)
        blocks = maximum(1.0, vector.ceil_div(s.N, self.BC) * 0.5**sides + sides * bounded)
        return blocks * (s.batch[-1] if s.summed else 1)

    def rounds(self, problem: Problem, at_once: Vector) -> Vector:
        """How many tiles of rows a multiprocessor has one after another, of as many at once, handed out by the hardware."""
        s, b = describe(problem), mask_bounds(problem)
        waves = vector.ceil_div(s.M, self.BR) * s.heads * self.slices / at_once
        return where((waves < 4) & (not b.bounded), ceil(waves), maximum(1.0, waves + 0.3))


def _order(problem: Problem) -> str:
    """The order in which the longest tiles come first: those whose columns are bounded from above alone grow towards the last."""
    b = mask_bounds(problem)
    return "last_first" if b.upper and not b.lower else "in_order"


def _is_uneven(problem: Problem) -> bool:
    """Whether a mask bounds the columns from one side alone: tiles of rows then have from few of them to all."""
    b = mask_bounds(problem)
    return bool(b.upper) != bool(b.lower)


def widths(problem: Problem, unit: int, slices: Vector) -> tuple[Vector, ...]:
    """The columns of each result that a block has, of whole units."""
    return tuple(maximum(1, vector.ceil_div(depth(x), unit * slices)) * unit for x in describe(problem).outputs)
