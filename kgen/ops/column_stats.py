"""Column statistics: reductions over leading axes, or several axes, of any traced expression.

Two schedules by where memory is contiguous. `ColumnStats` (templates/column_stats.cu.j2): along the results, as in column sums or
batch_norm's statistics of NHWC; threads own vectors of columns and rows are shared out. `ChannelStats` (templates/reduce.cu.j2):
along a reduced axis, as in those of NCHW; every result is a reduction of its own, that several blocks share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Param, Pointer, Source
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import Family, register
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem, Sizes
from kgen.dsl.schedule import choice, pruning, rule
from kgen.dsl.size import Dim, Size, ceil_div, maximum, minimum
from kgen.dsl.types import i32
from kgen.ops.axes import dims, has_leading
from kgen.ops.memory_bound import VectorSchedule
from kgen.ops.reduce import InnerSchedule, in_flight, waves_of_blocks
from kgen.ops.reduction import one_shape, reductions_of, view
from kgen.ops.reduction_kernel import (
    Access,
    Accumulation,
    accumulation,
    instructions,
    parameters,
    product,
    state_words,
    symbols,
    workspace,
)


def matches(graph: Graph) -> bool:
    """Whether every result is a pointwise expression of reductions over some axes, the same for all, but not the last alone."""
    made = reductions_of(graph)
    if made is None or made.axes in (None, (-1,)):
        return False
    return all(r.kind != "argmax" for r in made.reductions)


def normalise(problem: Problem) -> Problem:
    """The problem as it is: its axes have meanings, see `kgen.ops.reduction.view`."""
    return problem


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 4096 or 2^16 rows; `large` and `small`: one of each. All dimensions but the first are 1024, or share 2^16."""

    def of(rows: Sequence[int]) -> list[Sizes]:
        names = graph.dims
        inner: dict[str, Any] = {name: 1024 if len(names) == 2 else 256 for name in names[1:]}
        leading = {"...": (1,)} if has_leading(graph) else {}
        return [inner | leading | {names[0]: max(1, n if len(names) == 2 else n // 64)} for n in rows]

    return {"default": of([4096, 1 << 16]), "large": of([1 << 16]), "small": of([4096])}


def accesses(problem: Problem) -> tuple[Access, ...]:
    """How the operands under the reductions are reached along the results."""
    v, made = view(problem), reductions_of(problem.graph)
    assert made is not None
    under = {leaf.attr for leaf in made.under}
    return tuple(Access.of(o, v, v.kept - 1) for o in problem.inputs if o.name in under)


@dataclass(frozen=True)
class Context:
    """What the template sees: axes 0 to kept - 1 stay, the others up to rank - 1 are reduced."""

    rank: int
    kept: int
    index_type: str
    made: Accumulation
    operands: tuple[Access, ...]
    used: tuple[int, ...]
    load: str


class ColumnStats(VectorSchedule):
    """Columns side by side in threads, rows shared out among threads and blocks."""

    template = "column_stats.cu.j2"

    pack = choice(1, 2, 4, 8, 16)  # results of a thread
    items = choice(4, 1, 2, 8, 16)  # rows a thread has in flight
    threads = choice(256, 64, 128, 512, 1024)
    lanes = choice(32, 1, 2, 4, 8, 16, 64, 128, 256)  # threads side by side
    waves = choice(4, 1, 2, 8, 16)  # blocks a multiprocessor, at most, where blocks share a tile
    load = choice("default", "no_allocate")

    @rule
    def of_one_shape(self, problem: Problem, target: Any) -> bool:
        """all reductions of a graph run over the same elements"""
        return one_shape(problem)

    @rule
    def lanes_of_the_block(self, problem: Problem, target: Any) -> bool:
        """the threads side by side are at most those of the block"""
        return self.lanes <= self.threads

    @rule
    def moderate_vectors(self, problem: Problem, target: Any) -> bool:
        """the widest operand's vector is at most two accesses of 16 bytes, and the states of a thread fit its registers"""
        widest = max((a.dtype.bytes for a in accesses(problem) if a.kind == "vector"), default=1)
        return self.pack == 1 or (self.pack * widest <= 32 and self.pack * self.words(problem) <= 64)

    @rule
    def fits_smem(self, problem: Problem, target: Any) -> bool:
        """the states of half of the threads must fit in the shared memory of a block"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @pruning
    def registers(self, problem: Problem, target: Any) -> bool:
        """what a thread has in flight and its states fit in its share of the registers"""
        return self.items == 1 or self.held(problem) <= min(160, 65536 // self.threads)

    @pruning
    def unrolled(self, problem: Problem, target: Any) -> bool:
        """a thread has at most 128 elements in flight: they are unrolled"""
        return self.pack * self.items <= 128

    @pruning
    def lanes_of_the_problem(self, problem: Problem, target: Any) -> bool:
        """no more threads lie side by side than it takes for all columns"""
        v = view(problem)
        return self.lanes == 1 or (self.lanes // 2) * self.pack < v.sizes[v.kept - 1]

    @pruning
    def groups_of_the_problem(self, problem: Problem, target: Any) -> bool:
        """groups of threads have rows to take, unless the block is the smallest"""
        groups = self.threads // self.lanes
        return groups == 1 or groups < 2 * view(problem).length or self.threads == 64

    @pruning
    def threads_of_the_multiprocessor(self, problem: Problem, target: Any) -> bool:
        """the blocks of a multiprocessor are there at once"""
        return self.threads * self.waves <= target.max_threads_per_sm

    @pruning
    def vectors_of_vectors(self, problem: Problem, target: Any) -> bool:
        """vectors and hints are for operands that lie along the results"""
        plain = self.pack == 1 and self.load == "default"
        return plain or any(a.kind == "vector" for a in accesses(problem))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph) and view(problem).kept > 0

    @classmethod
    def worth_searching(cls, problem: Problem, target: Any) -> bool:
        return any(a.kind == "vector" and not a.fixed for a in accesses(problem))

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        return [(a.dtype.bytes, a.align) for a in accesses(problem) if a.kind == "vector"]

    @classmethod
    def default(cls, problem: Problem, target: Any) -> ColumnStats:
        """The widest legal vectors up to 16 bytes, two warps side by side, 128 bytes in flight a thread."""
        v, found, made = view(problem), accesses(problem), reductions_of(problem.graph)
        assert made is not None
        widest = max((a.dtype.bytes for a in found if a.kind != "broadcast"), default=1)
        row = sum(a.dtype.bytes for a in found if a.kind != "broadcast" and not a.fixed) or 1
        most = 32 if any(r.kind == "moments" for r in made.reductions) else 128  # elements in registers
        vectors = any(a.kind == "vector" for a in found)
        packs = [
            p for p in cls.fields["pack"].values if isinstance(p, int) and p * widest <= 16 and (p == 1 or vectors)
        ]
        for pack in (*reversed(packs), 1):
            across = _power(math.ceil(max(v.sizes[v.kept - 1], 1) / pack))
            # Few rows: more columns a block instead.
            lanes = min(across, max(64, 256 // _power(max(v.length, 1))))
            load = "no_allocate" if pack > 1 else "default"
            for items in (8, 4, 2, 1):
                if items > 1 and (items * pack * row > 128 or items * pack > most):
                    continue
                configs = [cls(pack=pack, items=items, threads=256, lanes=lanes, waves=w, load=load) for w in (4, 2, 8)]
                valid = [config for config in configs if not config.rejections(problem, target)]
                if valid:
                    return min(valid, key=lambda config: config.estimate(problem, target))
        plain = cls(pack=1, items=1, threads=64, lanes=1, waves=4, load="default")
        broken = plain.rejections(problem, target)
        if broken:
            raise ConfigError(f"no {cls.__name__} config is valid for {problem}: {'; '.join(map(str, broken))}")
        return plain

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the view's axes."""
        return symbols(problem)

    @staticmethod
    def words(problem: Problem) -> int:
        """Registers of a state."""
        return state_words(problem)

    def held(self, problem: Problem) -> int:
        """About the registers of a thread."""
        made = reductions_of(problem.graph)
        assert made is not None
        found = [a for a in accesses(problem) if not a.fixed]
        flight = sum(a.dtype.bytes * (1 if a.kind == "broadcast" else self.pack) for a in found) * self.items / 4
        kept = sum(r.dtype.bytes / 4 for r in made.reductions if r.kind == "moments") * self.pack * self.items
        return int(20 + flight + kept + self.pack * self.words(problem))

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block, over which its groups meet."""
        return 0 if self.threads == self.lanes else self.threads // 2 * self.pack * self._parts(problem).packed_bytes

    def _parts(self, problem: Problem) -> Accumulation:
        return accumulation(problem, view(problem).kept - 1, self.pack, self._wide(problem))

    @staticmethod
    def _wide(problem: Problem) -> bool:
        return any(n >= 2**31 for n in (view(problem).length, view(problem).outputs))

    def source(self, problem: Problem) -> Source:
        v = view(problem)
        parts, wide = self._parts(problem), self._wide(problem)
        tiles: Size = ceil_div(Dim(f"n{v.kept - 1}"), self.lanes * self.pack) * product(v, 0, v.kept - 1)
        groups = self.threads // self.lanes
        rows = product(v, v.kept, len(v.sizes))
        share = maximum(1, minimum(ceil_div(rows, groups), SM_COUNT * self.waves // maximum(tiles, 1)))
        params: list[Param] = [
            *parameters(problem, parts, 64 if wide else 32),
            *workspace(parts, tiles * share, self.lanes * self.pack),
            Pointer("counters", i32, "", "counters", tiles),
        ]
        operands = {x.name: x for x in (*parts.inputs, *parts.above, *parts.outputs)}
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch((tiles, share, 1), (self.threads, 1, 1), self.smem_bytes(problem)),
            arch=self.arch(problem),
            context=Context(
                len(v.sizes),
                v.kept,
                "unsigned long long" if wide else "unsigned",
                parts,
                tuple(operands.values()),
                parts.used,
                "load_vector_once" if self.load == "no_allocate" else "load_vector",
            ),
        )

    def estimate(self, problem: Problem, target: Any) -> float:
        """Time to read the bytes, or to execute the instructions, with a constant for the launch and the last blocks.

        As that of the reductions along the inner axis; besides, what a tile reads of a row should be 512 bytes or more.
        """
        v = view(problem)
        found = accesses(problem)
        row = sum(a.dtype.bytes for a in found if a.kind != "broadcast" and not a.fixed) or 1
        columns, groups = max(v.sizes[v.kept - 1], 1), self.threads // self.lanes
        width = self.lanes * self.pack
        tiles = math.ceil(columns / width) * max(1, v.outputs // columns)
        share = max(1, min(math.ceil(v.length / groups), target.sm_count * self.waves // tiles))
        blocks = tiles * share
        per_thread = max(v.length, 1) / (share * groups)
        used = columns / (math.ceil(columns / width) * width)
        flow = in_flight(
            self.threads, self.held(problem), blocks, min(self.items, per_thread) * self.pack * row * used, target
        )
        widest = max((a.dtype.bytes for a in found if a.kind == "vector"), default=0)
        beside = width * widest
        dense = columns <= width and all(v.strides[o.name][-1] in (0, columns) for o in problem.inputs)
        flow *= min(1.0, 0.5 + self.pack * widest / 32) if widest else 0.12
        flow *= 1.0 if dense or not widest else min(1.0, 0.5 + beside / 256, 0.98 + beside / 51200)
        flow *= 1.005 if self.load == "no_allocate" else 1.0
        steps = math.ceil(per_thread) / per_thread if per_thread > 1 else 1.0
        uneven, rounds = waves_of_blocks(self.threads, self.held(problem), blocks, target)
        elements = v.outputs * v.length
        memory = elements * row / (0.95 * target.bandwidth * flow) * uneven * steps
        work = elements / used * instructions(problem, found, self.pack, False) / (0.35 * target.f32_flops)
        words = self.pack * self.words(problem)
        finish = (share / groups + math.log2(max(groups, 2))) * words * 1e-8 if share > 1 else 0.0
        return 4.5e-6 + max(memory, work) + 0.1 * min(memory, work) + (rounds - 1) * 1e-6 + finish


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


class ChannelStats(InnerSchedule):
    """Each result a reduction along the memory's contiguous axis, which several blocks share."""

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def worth_searching(cls, problem: Problem, target: Any) -> bool:
        return view(problem).kept == 0 or not ColumnStats.worth_searching(problem, target)

    @classmethod
    def default_threads(cls, problem: Problem, elements: int) -> int:
        """As many as have something to do for one result, at most 256."""
        share = max(1, view(problem).length // elements)
        return max(32, min(256, 1 << (share.bit_length() - 1)))


family = register(Family("column_stats", (ColumnStats, ChannelStats), matches, normalise, dims, suites))
