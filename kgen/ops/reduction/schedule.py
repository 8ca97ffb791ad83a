"""ReductionSchedule: what the schedules of reductions have in common, whether their vectors lie along the results or across."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import Choice, pruning, rule, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.size import Size
from kgen.dsl.target import Target
from kgen.dsl.types import i32
from kgen.dsl.vector import Vector, ceil, ceil_div, each, floor, log2, maximum, minimum, of_class, where
from kgen.ops.common.memory_bound import LOADS, VectorSchedule
from kgen.ops.reduction.kernel import (
    LARGEST,
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
from kgen.ops.reduction.plan import View, one_shape, reductions_of, view
from kgen.tuning_db.machines import constants


@dataclass(frozen=True)
class Context:
    """What the templates see: axes 0 to kept - 1 stay, the others up to rank - 1 are reduced."""

    rank: int
    kept: int
    index_type: str
    made: Accumulation
    operands: tuple[Access, ...]
    used: tuple[int, ...]
    load: str


@dataclass(frozen=True)
class ReductionConstants(Constants, model="reduction"):
    """Times in seconds; `item` in instructions, `serial` in clocks."""

    start: float  # a launch and the end of its blocks
    wave: float  # each wave of blocks but the first
    memory: float  # the share of the bandwidth that vectors of 16 bytes reach
    narrow: float  # how much longer it takes for each halving of these vectors
    strided: float  # the share of the bandwidth that single elements reach which lie apart
    sectors: float  # the share that L2 hands out, whole sectors of 32 bytes
    lines: float  # how much longer a row takes of which a tile reads less than a line, at most
    pages: float  # the same, less than a row of a bank of memory
    latency: float  # of the vectors that a thread has in flight
    arriving: float  # bytes a clock that a multiprocessor receives
    issue: float  # the share of the CUDA cores' rate
    serial: float  # of an instruction of a thread by itself
    item: float  # a vector's place in what a thread has in flight, used or not
    lesser: float  # the part of the shorter of memory and instructions that the longer does not hide
    block: float  # each block's launch
    warp: float  # of a warp of a block, until all of them are there
    shuffle: float  # a step of shuffles, by which the threads of a block combine their states
    round: float  # a step of it through shared memory, where threads have columns
    word: float  # a word of the states in such a step
    moments: float  # the same, of moments, which divide
    sequential: float  # of a block whose threads meet in shared memory, by addresses in sequence
    interleaved: float
    meeting: float  # blocks of one result: what they leave, count, and what the last one reads
    more: float  # the same, for each doubling of them
    atomic: float  # of a block that adds to the result
    grid_barrier: float


class ReductionSchedule(VectorSchedule):
    """Vectors along the axis `inner`; blocks that share a result leave their states to the last of them."""

    items: Choice[int]
    threads: Choice[int]
    blocks_per_sm: Choice[int]
    load: Choice[str]

    model = ReductionConstants
    by_class = ("load",)

    @rule
    def of_one_shape(self, problem: Problem, target: Target) -> bool:
        """all reductions of a graph run over the same elements"""
        return one_shape(problem)

    @rule
    def moderate_vectors(self, problem: Problem, target: Target) -> bool:
        """the widest operand's vector is at most two accesses of 16 bytes, and the states of a thread fit its registers"""
        return self.pack == 1 or (self.pack * self.widest(problem) <= 32 and self.pack * state_words(problem) <= 64)

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """what a thread has in flight and its states fit in its share of the registers"""
        return self.items == 1 or self.held(problem) <= min(160, 65536 // self.threads)

    @pruning
    @vectorised
    def vectors_of_vectors(self, problem: Problem, target: Target) -> Vector:
        """vectors and hints are for operands that are contiguous along the axis of the vectors"""
        plain = (self.pack == 1) & (self.load == "default")
        return plain | any(a.kind == "vector" for a in self.accesses(problem))

    @pruning
    def threads_of_the_multiprocessor(self, problem: Problem, target: Target) -> bool:
        """the blocks of a multiprocessor are there at once"""
        return self.threads * self.blocks_per_sm <= target.max_threads_per_sm

    # What a subclass gives.

    @classmethod
    def inner(cls, v: View) -> int:
        """The axis along which a thread's vectors lie."""
        raise NotImplementedError

    @property
    def states(self) -> int:
        """Results of a tile."""
        return 1

    def narrow_limits(self, problem: Problem) -> tuple[Limit, ...]:
        """Where indices have 32 bits."""
        v = view(problem)
        parts = product(v, v.kept, len(v.sizes)), product(v, 0, v.kept)
        return tuple(Limit(size, 2**31 - 1) for size in parts)

    def wide(self, problem: Problem) -> bool:
        """Whether indices have 64 bits."""
        sizes = view(problem).sizes
        return (len(sizes) > 1 and max(sizes) > LARGEST) or not all(
            limit.holds(symbols(problem)) for limit in self.narrow_limits(problem)
        )

    def grid(self, problem: Problem) -> tuple[Size, Size]:
        """How many tiles there are, and how many blocks share each."""
        raise NotImplementedError

    def smem_of(self, made: Accumulation) -> int:
        """Shared memory of a block, in bytes."""
        raise NotImplementedError

    def partials(self, made: Accumulation, tiles: Size, share: Size) -> list[Param]:
        """Where the blocks that share a tile leave what they have found, beside the counters of those that have."""
        return workspace(made, tiles * share, self.states)

    @property
    def cooperative(self) -> bool:
        """Whether blocks wait for each other."""
        return False

    # What follows from it.

    @classmethod
    def accesses(cls, problem: Problem) -> tuple[Access, ...]:
        """How the operands under the reductions are reached."""
        v, made = view(problem), reductions_of(problem.graph)
        assert made is not None
        under = {leaf.attr for leaf in made.under}
        return tuple(Access.of(o, v, cls.inner(v)) for o in problem.inputs if o.name in under)

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        return [(a.dtype.bytes, a.align) for a in cls.accesses(problem) if a.kind == "vector"]

    @classmethod
    def widest(cls, problem: Problem) -> int:
        return max((a.dtype.bytes for a in cls.accesses(problem) if a.kind == "vector"), default=1)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how operands are reached; how many axes there are of each kind, and whether indices may have 64 bits."""
        v = view(problem)
        return problem.graph.digest, cls.accesses(problem), len(v.sizes), v.kept, one_shape(problem), _is_large(v)

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """Vectors leave no line in L1."""
        return (where(self.pack > 1, "no_allocate", "default"),)

    @classmethod
    def row(cls, problem: Problem) -> int:
        """Bytes of an element of all operands."""
        return sum(a.dtype.bytes for a in cls.accesses(problem) if a.kind != "broadcast" and not a.fixed) or 1

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the view's axes."""
        return symbols(problem)

    @of_class
    def held(self, problem: Problem) -> Vector:
        """About the registers of a thread."""
        made = reductions_of(problem.graph)
        assert made is not None
        found = [a for a in self.accesses(problem) if not a.fixed]
        flight = sum((a.dtype.bytes * (1 if a.kind == "broadcast" else self.pack) for a in found), 0) * self.items / 4
        kept = sum(r.dtype.bytes / 4 for r in made.reductions if r.kind == "moments") * self.pack * self.items
        return floor(20 + flight + kept + self.pack * state_words(problem))

    def parts(self, problem: Problem) -> Accumulation:
        """The graph as the template sees it."""
        return accumulation(problem, self.inner(view(problem)), self.pack, self.wide(problem))

    def source(self, problem: Problem) -> Source:
        v, parts, wide = view(problem), self.parts(problem), self.wide(problem)
        tiles, share = self.grid(problem)
        params: list[Param] = [
            *parameters(problem, parts, 64 if wide else 32),
            *self.partials(parts, tiles, share),
            Pointer("counters", i32, "", "counters", tiles),
        ]
        operands = {x.name: x for x in (*parts.inputs, *parts.above, *parts.outputs)}
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (tiles, share, 1) if v.kept else (share, 1, 1),
                (self.threads, 1, 1),
                self.smem_of(parts),
                cooperative=self.cooperative,
            ),
            arch=self.arch(problem),
            context=Context(
                len(v.sizes),
                v.kept,
                "unsigned long long" if wide else "unsigned",
                parts,
                tuple(operands.values()),
                parts.used,
                LOADS[self.load],
            ),
            limits=() if wide else self.narrow_limits(problem),
        )

    # The model.

    def seconds(
        self,
        problem: Problem,
        target: Target,
        row: int,
        blocks: Vector,
        share: Vector,
        per_thread: Vector,
        reached: Vector,
        combining: Vector,
    ) -> Vector:
        """Time to read the bytes, or to execute the instructions; and until the blocks have combined their states.

        `row` are the bytes of an element, `share` the blocks of a result, `per_thread` the vectors of a thread. `reached` is the
        share of the bandwidth that loads of these widths reach, `combining` the seconds in which the threads of a block combine
        their states. Blocks that do not fit at once come in rounds.
        """
        v, k = view(problem), constants(ReductionConstants, target)
        uneven, rounds = self._rounds(problem, blocks, target)
        batches = ceil(per_thread / self.items)
        streamed = v.outputs * v.length * row / (k.memory * reached * target.bandwidth) * uneven
        most = ceil_div(blocks, target.sm_count)  # blocks of a multiprocessor
        arriving = most * self.threads * per_thread * self.pack * row / (k.arriving * target.clock_hz)
        memory = (streamed**4 + (batches * rounds * k.latency + arriving) ** 4) ** 0.25
        instructions = per_thread * self.pack * self._instructions(problem) + batches * self.items * k.item
        lanes = target.f32_flops / (2 * target.sm_count * target.clock_hz)
        issued = most * self.threads * instructions / (k.issue * lanes)
        work = maximum(issued, rounds * instructions * k.serial) / target.clock_hz
        met = where(share > 1, k.meeting + k.more * log2(share) + combining, 0.0)
        around = k.start + (rounds - 1) * k.wave + k.block * blocks + k.warp * self.threads / 32 + combining + met
        # What is read first, and what is computed of the last, nothing hides.
        shown = k.lesser + (1 - k.lesser) / (batches * rounds)
        return around + maximum(memory, work) + shown * minimum(memory, work)

    def combined(self, problem: Problem, states: Vector, k: ReductionConstants) -> Vector:
        """Seconds of a combination of so many states of two threads, beside what hands them over."""
        made = reductions_of(problem.graph)
        assert made is not None
        moments = sum(r.dtype.bytes // 4 for r in made.reductions if r.kind == "moments")
        return states * (state_words(problem) * k.word + moments * k.moments)

    @of_class
    def _instructions(self, problem: Problem) -> Vector:
        reduces = self.inner(view(problem)) >= view(problem).kept
        return each(lambda pack: instructions(problem, self.accesses(problem), pack, reduces), self.pack)

    @of_class
    def _resident(self, problem: Problem, target: Target) -> Vector:
        """Blocks that a multiprocessor has at once."""
        return maximum(1, floor(target.resident_blocks(self.threads, self.held(problem))))

    def _rounds(self, problem: Problem, blocks: Vector, target: Target) -> tuple[Vector, Vector]:
        """What unequal shares of the multiprocessors cost, and how many rounds of blocks there are."""
        slots = self._resident(problem, target) * target.sm_count
        rounds = ceil_div(blocks, slots)
        uneven = ceil_div(blocks, target.sm_count) * target.sm_count / blocks
        waiting = where(rounds > 1, rounds * slots / blocks, 1.0)
        one = blocks <= target.sm_count
        return where(one, 1.0, 1 + (uneven - 1) / 2 + (waiting - 1) / 4), where(one, 1, rounds)


def _is_large(v: View) -> bool:
    """Whether indices may have 64 bits."""
    return max(v.outputs, v.length, *v.sizes) >= 2**30
