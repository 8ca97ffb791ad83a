"""What decode wants of both schedules: tiles of the rows of all heads that share keys, and columns shared by several blocks."""

from __future__ import annotations

from kgen.codegen.source import Param, Pointer
from kgen.dsl import vector
from kgen.dsl.choice import pruning, rule, sized
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.target import Target
from kgen.dsl.types import f32, i32
from kgen.dsl.vector import Vector, negated, where
from kgen.ops.attention.problem import Heads, describe, found
from kgen.ops.attention.rows import PLAIN, Rows, packed
from kgen.ops.attention.schedule import AttentionSchedule, of_all_heads


class DecodeSchedule(AttentionSchedule):
    """Base of the schedules that have the fields `pack_gqa` and `splits`."""

    pack_gqa: bool
    splits: int
    slices: int = 1  # blocks that share the columns of the results

    @rule
    @sized
    def blocks_in_32_bits(self, problem: Problem, target: Target) -> Vector:
        """the blocks of all tiles of rows are a 32-bit integer"""
        return self.tiles(describe(problem)) * self.splits * self.slices < 2**31

    @rule
    @sized
    def packs_heads_that_share_keys(self, problem: Problem, target: Target) -> Vector:
        """heads that share keys are packed: those of the last axis of heads, with fewer than 2**30 rows"""
        h = describe(problem)
        return negated(self.pack_gqa) | (h.group > 1 and h.M * h.group < 2**30)

    @pruning
    @sized
    def packed_where_tiles_are_fuller(self, problem: Problem, target: Target) -> Vector:
        """heads are packed where that leaves fewer rows of tiles without work, and rows have 16 bits"""
        h = describe(problem)
        if found(problem.graph).dtype.bytes == 1:
            return negated(self.pack_gqa)
        alone, together = (
            rows / (vector.ceil_div(rows, self.BR) * self.BR) for rows in (max(1, h.M), max(1, h.M) * h.group)
        )
        return self.pack_gqa == (alone < 0.9 * together)

    def rows(self, h: Heads) -> Rows:
        """What the rows of tiles are."""
        return packed(h) if self.pack_gqa else PLAIN

    def tiles(self, h: Heads) -> Vector:
        packed = vector.ceil_div(h.M * h.group, self.BR) * (h.heads // max(1, h.group))
        return where(self.pack_gqa, packed, super().tiles(h))

    def blocks(self, h: Heads) -> Size:
        """As of all schedules, without those that share a tile's columns."""
        if not self.pack_gqa:
            return super().blocks(h)
        count = ceil_div(Dim("M") * Dim(f"batches{len(h.batch) - 1}"), self.BR)
        return of_all_heads(count, h.batch[:-1])

    def workspace(self, h: Heads, width: int) -> list[Param]:
        """What blocks that share a tile's columns leave for each other: each row's sums of `width` columns, maximum and total."""
        if self.splits == 1:
            return []
        partial = self.BR * 2 * (width // 2 + 4)  # templates/common/attention_splits.cuh
        return [
            Pointer("partials", f32, "", "scratch", self.blocks(h) * (self.slices * self.splits * partial)),
            Pointer("counters", i32, "", "counters", self.blocks(h) * self.slices),
        ]
