"""Reduce: full reductions of any traced expression in one launch, and reductions along the inner axis of a result each.

The schedules of templates/reduce.cu.j2. `blocks_per_sm` blocks go over the elements together; with several results
(see column_stats) they are shared out among them. The last block of a result adds what the others have left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgen.codegen.source import SM_COUNT, Limit, Param, Pointer
from kgen.dsl.choice import choice, rule
from kgen.dsl.family import Family, register_family
from kgen.dsl.operator import Graph
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.schedule import SearchSpace, Techniques
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.size import maximum as largest
from kgen.dsl.size import minimum as least
from kgen.dsl.target import Target
from kgen.dsl.types import i32, i64
from kgen.dsl.vector import Vector, ceil_div, chosen, floor, log2, maximum, minimum, where
from kgen.ops.common.axes import dims
from kgen.ops.common.memory_bound import narrowness
from kgen.ops.common.sizes import LARGE_BYTES, distinct, fill
from kgen.ops.reduction.kernel import Accumulation, product
from kgen.ops.reduction.plan import View, normalise, reductions_of, view
from kgen.ops.reduction.schedule import ReductionConstants, ReductionSchedule
from kgen.tuning_db.machines import constants


def matches(graph: Graph) -> bool:
    """Whether every result is a pointwise expression of reductions over all axes."""
    made = reductions_of(graph)
    return made is not None and made.axes is None


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^20, 2^24 and up to 2^28 elements; `large`: 2^28; `small`: 2^12 to 2^20. Up to 4096 along each dimension."""
    return {
        "default": distinct(fill(graph, n, 4096) for n in (2**20, 2**24, 2**28)),
        "large": [fill(graph, 2**28, 4096, most=LARGE_BYTES)],
        "small": [fill(graph, n, 4096) for n in (2**12, 2**16, 2**20)],
    }


#: Of the schedules that reduce along the inner axis.
TECHNIQUES: Techniques = {
    "interleaved addressing": {"within": "interleaved"},
    "sequential addressing": {"within": "sequential"},
    "warp shuffles": {"within": "shuffle", "pack": 1, "items": 1},
    "warp shuffles, several elements a thread": {"within": "shuffle", "pack": 1, "items": (2, 4, 8)},
    "warp shuffles, vectors": {"within": "shuffle", "pack": (2, 4, 8, 16)},
    "last block": {"finish": "last_block"},
    "atomics": {"finish": "atomic"},
    "two passes of a cooperative launch": {"finish": "two_pass"},
}


class InnerSchedule(ReductionSchedule):
    """What the schedules have in common that reduce along the inner axis."""

    template = "reduce.cu.j2"
    version = 2  # a block has as many vectors as its threads have in flight

    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    items = choice(1, 2, 4, 8)  # vectors a thread has in flight
    threads = choice(256, 32, 64, 128, 512, 1024)
    blocks_per_sm = choice(4, 1, 2, 8, 16)  # at most
    load = choice("default", "no_allocate")
    # How the threads of a block combine their states: by shuffles, or in shared memory, halves of them or neighbours by steps.
    # The latter are there to be compared (`kgen bench --variants`), no search takes them.
    within = choice("shuffle", allows=("sequential", "interleaved"), absent="shuffle")
    # How the blocks of a result do it: the last one adds what all have left; or all by atomics; or the first waits for all others
    # in a cooperative launch. (Two passes by two launches need programs of several.) No search takes those that wait more.
    finish = choice("last_block", allows=("atomic", "two_pass"), absent="last_block")

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """where a block's threads combine states in shared memory, the states of all of them must fit there"""
        return self.within == "shuffle" or self.smem_of(self.parts(problem)) <= target.smem_per_block

    @rule
    def alike_in_any_order(self, problem: Problem, target: Target) -> bool:
        """atomics are for what has the same bits in any order: sums of integers, the largest and the smallest; no index of it"""
        if self.finish != "atomic":
            return True
        made = reductions_of(problem.graph)
        assert made is not None
        return all(r.kind in ("max", "min") or (r.kind == "sum" and not r.dtype.is_float) for r in made.reductions)

    @rule
    def on_the_gpu_at_once(self, problem: Problem, target: Target) -> bool:
        """blocks of which one waits for the others are on the GPU at once: at most 1024 threads a multiprocessor"""
        if self.finish != "two_pass":
            return True
        resident = (
            self.threads * self.blocks_per_sm <= 1024 and view(problem).outputs <= target.sm_count * self.blocks_per_sm
        )
        return resident and self.blocks_per_sm * (self.smem_of(self.parts(problem)) + 1024) <= target.shared_per_sm

    @classmethod
    def inner(cls, v: View) -> int:
        return len(v.sizes) - 1

    def narrow_limits(self, problem: Problem) -> tuple[Limit, ...]:
        v, made = view(problem), reductions_of(problem.graph)
        assert made is not None
        counted = any(r.kind == "argmax" for r in made.reductions)
        length = product(v, v.kept, len(v.sizes))
        return Limit(length, (1 if counted else self.pack) * 2**31 - 1), Limit(product(v, 0, v.kept), 2**31 - 1)

    def grid(self, problem: Problem) -> tuple[Size, Size]:
        v = view(problem)
        inner = self.inner(v)
        vectors = ceil_div_size(Dim(f"n{inner}"), self.pack) * product(v, v.kept, inner)
        results, most = product(v, 0, v.kept), SM_COUNT * self.blocks_per_sm
        each = most // largest(results, 1) if v.kept else most
        return results, largest(1, least(ceil_div_size(vectors, self.threads * self.items), each))

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        v = view(problem)
        return ((product(v, v.kept, len(v.sizes)), self.grid(problem)[1] * (self.threads * self.items * self.pack)),)

    def smem_of(self, made: Accumulation) -> int:
        return int(made.state_bytes * (self.threads // 32 if self.within == "shuffle" else self.threads))

    def partials(self, made: Accumulation, tiles: Size, share: Size) -> list[Param]:
        if self.finish != "atomic":
            return super().partials(made, tiles, share)
        words = [(m.name, i64 if m.held.bytes == 8 else i32) for m in made.members]
        return [Pointer(f"{name}_total", word, "", "counters", tiles) for name, word in words]

    @property
    def cooperative(self) -> bool:
        return bool(self.finish == "two_pass")

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """See `seconds`. A block has as many vectors as its threads have in flight, where there are enough."""
        v, k = view(problem), constants(ReductionConstants, target)
        found = self.accesses(problem)
        row = sum(a.dtype.bytes for a in found if not a.fixed) or 1
        results = max(1, v.outputs)
        vectors = maximum(1, ceil_div(v.length, self.pack))
        each = floor(target.sm_count * self.blocks_per_sm / results)
        share = maximum(1, minimum(ceil_div(vectors, self.threads * self.items), each))
        vectored = any(a.kind == "vector" for a in found)
        reached = 1 / narrowness(self.pack * row, k.narrow) if vectored else k.strided
        combining = log2(self.threads) * (k.shuffle + self.combined(problem, 2, k))  # sums are f64
        combining = combining + chosen(self.within, {"sequential": k.sequential, "interleaved": k.interleaved}, 0.0)
        finished = where(
            self.finish == "atomic", k.atomic * share, where(self.finish == "two_pass", k.grid_barrier, 0.0)
        )
        per_thread = vectors / (share * self.threads)
        seconds = self.seconds(problem, target, row, share * results, share, per_thread, reached, combining)
        return seconds + where(share > 1, finished, 0.0)


class Reduce(InnerSchedule):
    """All elements to one state: vectors straight from global memory, several states a thread, one launch."""

    techniques = TECHNIQUES

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """256 threads, fewer gain nothing (docs/notes/reduce.md); or more, of which one block may do without others."""
        return cls.where(pack=cls.packs(problem), threads=(256, 512, 1024))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)


family = register_family(Family("reduce", (Reduce,), matches, normalise, dims, suites, priority=1))
