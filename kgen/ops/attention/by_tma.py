"""What the schedules of attention that copy by TMA share: which problems and operands these copies serve."""

from __future__ import annotations

from kgen.dsl.choice import pruning, rule
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.dsl.types import f32
from kgen.ops.attention.problem import describe, found
from kgen.ops.attention.schedule import AttentionSchedule
from kgen.ops.attention.tensor_maps import by_tma


class TmaAttention(AttentionSchedule):
    """Base of the schedules that copy queries, keys and values by TMA, and store by it."""

    pdl: bool

    @rule
    def no_empty_axis(self, problem: Problem, target: Target) -> bool:
        """a tensor map has no empty axis"""
        h = describe(problem)
        return min(h.M, h.N, h.D, h.E, *h.batch, 1) >= 1

    @rule
    def sums_of_32_bits(self, problem: Problem, target: Target) -> bool:
        """scores and results are summed in f32: in f16 attention_mma sums them"""
        return found(problem.graph).sums == (f32, f32)

    @rule
    def tensor_maps(self, problem: Problem, target: Target) -> bool:
        """all matrices have contiguous rows that are multiples of 16 bytes, and at most three axes count heads"""
        h = describe(problem)
        return len(h.batch) <= 3 and all(map(by_tma, (h.q, h.k, h.v, h.output)))

    @pruning
    def overlapping_start(self, problem: Problem, target: Target) -> bool:
        """the launch overlaps the end of the one before"""
        return self.pdl

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """Keys and values lie one after another: TMA copies no rows by ids."""
        return super().applies(problem) and found(problem.graph).ids is None
