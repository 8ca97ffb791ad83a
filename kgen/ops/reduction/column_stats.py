"""Column statistics: reductions over leading axes, or several axes, of any traced expression.

Two schedules by where memory is contiguous. `ColumnStats` (templates/column_stats.cu.j2): along the results, as in column sums or
batch_norm's statistics of NHWC; threads own vectors of columns and rows are shared out. `ChannelStats` (templates/reduce.cu.j2):
along a reduced axis, as in those of NCHW; every result is a reduction of its own, that several blocks share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgen.codegen.source import SM_COUNT
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.family import Family, register_family
from kgen.dsl.operator import Graph
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.size import maximum as largest
from kgen.dsl.size import minimum as least
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, ceil_div, floor, log2, maximum, minimum, where
from kgen.ops.common.axes import dims
from kgen.ops.common.memory_bound import LINE, PAGE, SECTOR, narrowness
from kgen.ops.common.sizes import distinct, fill
from kgen.ops.reduction.kernel import Accumulation, product
from kgen.ops.reduction.plan import View, normalise, reductions_of, view
from kgen.ops.reduction.reduce import TECHNIQUES, InnerSchedule
from kgen.ops.reduction.schedule import ReductionConstants, ReductionSchedule
from kgen.tuning_db.machines import constants


def matches(graph: Graph) -> bool:
    """Whether every result is a pointwise expression of reductions over some axes, the same for all, but not the last alone."""
    made = reductions_of(graph)
    if made is None or made.axes in (None, (-1,)):
        return False
    return all(r.kind != "argmax" for r in made.reductions)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^22 and 2^26 elements in rows of 1024 (of up to 256 along each, where more than one dimension is not the
    first); `large` and `small`: one of each."""
    first = graph.dims[0]

    def of(elements: int) -> Sizes:
        return fill(graph, elements, 1024 if len(graph.dims) == 2 else 256, along=first)

    return {"default": distinct([of(2**22), of(2**26)]), "large": [of(2**26)], "small": [of(2**22)]}


class ColumnStats(ReductionSchedule):
    """Columns side by side in threads, rows shared out among threads and blocks."""

    template = "column_stats.cu.j2"
    techniques = {
        "a column a thread": {"pack": 1},
        "vectors of columns": {"pack": (2, 4, 8, 16)},
        "one row in flight": {"items": 1},
        "several rows in flight": {"items": (2, 4, 8, 16)},
        "one block per SM": {"blocks_per_sm": 1},
        "several blocks per SM": {"blocks_per_sm": (2, 4, 8, 16)},
    }

    pack = choice(1, 2, 4, 8, 16)  # results of a thread
    items = choice(4, 1, 2, 8, 16)  # rows a thread has in flight
    threads = choice(256, 64, 128, 512, 1024)
    lanes = choice(32, 1, 2, 4, 8, 16, 64, 128, 256)  # threads side by side
    blocks_per_sm = choice(4, 1, 2, 8, 16)  # at most, where blocks share a tile
    load = choice("default", "no_allocate")

    @rule
    def lanes_of_the_block(self, problem: Problem, target: Target) -> bool:
        """the threads side by side are at most those of the block"""
        return self.lanes <= self.threads

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """the states of half of the threads must fit in the shared memory of a block"""
        return self.smem_of(self.parts(problem)) <= target.smem_per_block

    @pruning
    def unrolled(self, problem: Problem, target: Target) -> bool:
        """a thread has at most 128 elements in flight: they are unrolled"""
        return self.pack * self.items <= 128

    @pruning
    @sized
    def lanes_of_the_problem(self, problem: Problem, target: Target) -> Vector:
        """no more threads lie side by side than it takes for all columns"""
        v = view(problem)
        return (self.lanes == 1) | (self.lanes // 2 * self.pack < v.sizes[v.kept - 1])

    @pruning
    @sized
    def groups_of_the_problem(self, problem: Problem, target: Target) -> Vector:
        """groups of threads have rows to take, unless the block is the smallest"""
        groups = self.threads // self.lanes
        return (groups == 1) | (groups < 2 * view(problem).length) | (self.threads == 64)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph) and view(problem).kept > 0

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """columns that lie side by side are read by vectors"""
        one_row = view(problem).length == 1
        return any(a.kind == "vector" and (one_row or not a.fixed) for a in cls.accesses(problem))

    @classmethod
    def inner(cls, v: View) -> int:
        return v.kept - 1

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """64 threads, 256, or more of fewer blocks."""
        return cls.where(pack=cls.packs(problem), threads=(64, 256, 512, 1024), blocks_per_sm=(4, 1, 2, 8))

    @property
    def states(self) -> int:
        return int(self.lanes * self.pack)

    def grid(self, problem: Problem) -> tuple[Size, Size]:
        v = view(problem)
        tiles: Size = ceil_div_size(Dim(f"n{v.kept - 1}"), self.states) * product(v, 0, v.kept - 1)
        rows = ceil_div_size(product(v, v.kept, len(v.sizes)), self.threads // self.lanes)
        return tiles, largest(1, least(rows, SM_COUNT * self.blocks_per_sm // largest(tiles, 1)))

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        v = view(problem)
        rows = self.threads // self.lanes * self.items
        return ((product(v, v.kept, len(v.sizes)), self.grid(problem)[1] * rows),)

    def smem_of(self, made: Accumulation) -> int:
        """The groups of a block combine their states by those of half of its threads."""
        return 0 if self.threads == self.lanes else self.threads // 2 * self.pack * made.packed_bytes

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """See `seconds`. The groups of a block combine their states, the last block of a tile those of all others."""
        v, k = view(problem), constants(ReductionConstants, target)
        found, row = self.accesses(problem), self.row(problem)
        columns, groups = max(v.sizes[v.kept - 1], 1), self.threads // self.lanes
        width = self.lanes * self.pack
        tiles = ceil_div(columns, width) * max(1, v.outputs // columns)
        share = floor(target.sm_count * self.blocks_per_sm / tiles)
        share = maximum(1, minimum(ceil_div(v.length, groups), share))
        widest = max((a.dtype.bytes for a in found if a.kind == "vector"), default=0)
        if widest:
            dense = (columns <= width) & all(v.strides[o.name][-1] in (0, columns) for o in problem.inputs)
            # Of a row that others go on with, L2 hands out sectors, one more where it does not begin with one; all of it at most.
            beside = minimum(width, columns) * widest
            begins = (columns * widest % SECTOR == 0) & (beside % SECTOR == 0)
            sectors = ceil_div(beside, SECTOR) + where(begins, 0, 1)
            used = where(dense, 1.0, beside / minimum(sectors * SECTOR, columns * widest))
            reached = minimum(1 / narrowness(self.pack * widest, k.narrow), k.sectors * used)
            short = 1 + k.lines * (1 - minimum(1.0, beside / LINE)) + k.pages * (1 - minimum(1.0, beside / PAGE))
            reached = reached / where(dense, 1.0, short)
        else:
            reached = k.strided
        combined = self.combined(problem, self.pack, k)
        combining = log2(groups) * (k.round + combined)
        left = where(share > 1, share / groups * combined, 0.0)
        per_thread = max(v.length, 1) / (share * groups)
        return left + self.seconds(problem, target, row, tiles * share, share, per_thread, reached, combining)


class ChannelStats(InnerSchedule):
    """Each result a reduction along the memory's contiguous axis, which several blocks share."""

    techniques = TECHNIQUES

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """threads side by side take columns, where these lie side by side"""
        return view(problem).kept == 0 or not ColumnStats.worth_searching(problem, target)

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """32 to 256 threads."""
        return cls.where(pack=cls.packs(problem), threads=(32, 64, 128, 256))


family = register_family(Family("column_stats", (ColumnStats, ChannelStats), matches, normalise, dims, suites))
