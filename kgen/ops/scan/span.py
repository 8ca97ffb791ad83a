"""ScanSpan: short rows, at any address. The rows of a block are one span of memory, which passes through shared memory."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from kgen.codegen.source import Launch, Limit
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import WIDEST_ACCESS, NormalProblem, Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.size import maximum as largest
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.vector import Vector, ceil_div, log2, maximum, minimum, where
from kgen.ops.common.banks import bank_conflicts
from kgen.ops.common.memory_bound import bytes_in_flight, least_arch
from kgen.ops.rowwise.dense import is_one_span, places, slots_of
from kgen.ops.rowwise.kernel import accesses
from kgen.ops.scan.kernel import Context, by_kind, context, input_bytes
from kgen.ops.scan.schedule import ScanSchedule
from kgen.tuning_db.machines import constants


@dataclass(frozen=True)
class ScanSpanConstants(Constants, model="scan_span"):
    """Times in seconds, `access` in clocks; the last five are instructions of a warp."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    block: float  # until the next block is started
    span: float  # of a block's span: until it is there
    turn: float  # of rows that a block has at a time
    element: float  # of a thread, one after another
    serial: float  # clocks of an instruction of such an element
    access: float  # of a warp to its elements in shared memory, in one bank each
    work: float  # an element of a scan
    exponential: float  # the same, where exponentials are added, for results of 16 bits
    precise: float  # the same, for others
    row: float  # of a thread's share of a row
    combine: float  # of two lanes' states, beside the work of an element


@dataclass(frozen=True)
class SpanContext(Context):
    """What the template sees beside; `places` are where operands begin in shared memory, in bytes."""

    elements: int
    whole_rows: int
    places: tuple[tuple[str, int], ...]


class ScanSpan(ScanSchedule):
    """Each block's rows at once, read and written as one span of memory."""

    template = "scan_span.cu.j2"
    model = ScanSpanConstants
    techniques = {
        "a thread a row, in shared memory": {"row_threads": 1},
        "several rows a warp, in shared memory": {"row_threads": (2, 4, 8, 16)},
        "a warp a row, in shared memory": {"row_threads": 32},
    }
    target = sm(80)

    span_bytes = choice(16384, 8192, 32768, 49152)  # of shared memory, for a block's rows
    row_threads = choice(1, 2, 4, 8, 16, 32)  # that share a row
    threads = choice(128, 64, 256, 32)
    vectors = choice(8, 4)  # elements of a thread at a time

    def elements(self, problem: Problem) -> Vector:
        """Elements of each operand that a block has room for: a multiple of 16, as its place begins at one of 16 bytes."""
        return self.span_bytes // sum(slots_of(problem, True)[1]) // 16 * 16

    def smem_bytes(self, problem: Problem) -> Vector:
        return self.elements(problem) * sum(slots_of(problem, True)[1])

    def rows(self, problem: Problem) -> Vector:
        """Rows of a block; see `rows_of_a_block` for 0."""
        whole = whole_rows(problem) * max(1, problem.leading[-1])
        return self.elements(problem) // whole * whole_rows(problem)

    def arch(self, problem: Problem) -> Arch:
        """The least architecture with the dtypes, and with copies to shared memory that nobody waits for."""
        return max(least_arch(problem), sm(80))

    @rule
    def features_of_the_target(self, problem: Problem, target: Target) -> bool:
        """cp.async needs a newer GPU (sm_80)"""
        return self.arch(problem).runs_on(target.arch)

    @rule
    def one_span(self, problem: Problem, target: Target) -> bool:
        """rows follow one another without gaps, from a multiple of 16 bytes on, in every operand that has one for each"""
        return is_one_span(problem)

    @rule
    @sized
    def rows_of_a_block(self, problem: Problem, target: Target) -> Vector:
        """a block has room for rows, so many that those of the next begin at a multiple of 16 bytes"""
        return self.rows(problem) > 0

    @rule
    @vectorised
    def row_of_a_block(self, problem: Problem, target: Target) -> Vector:
        """the threads of a row are of one block"""
        return self.row_threads <= self.threads

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """three of four threads have a share of a row, and of more than an element where there are several"""
        few = (self.row_threads == 1) | (self.row_threads * 2 <= problem.leading[-1])
        return few & (4 * self.rows(problem) * self.row_threads >= 3 * self.threads)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and whether rows are one span."""
        return problem.graph.digest, accesses(problem), is_one_span(problem)

    def lengths(self, problem: Problem) -> tuple[Limit, ...]:
        return (Limit(Dim(f"n{len(problem.leading) - 1}"), int(self.elements(problem)) // whole_rows(problem)),)

    def launch(self, problem: Problem, rows: Size) -> Launch:
        whole = whole_rows(problem)
        length = largest(1, Dim(f"n{len(problem.leading) - 1}"))
        of_block = int(self.elements(problem)) // (length * whole) * whole
        return Launch((ceil_div_size(rows, of_block), 1, 1), (self.threads, 1, 1), int(self.smem_bytes(problem)))

    def context(self, problem: Problem, wide: bool) -> SpanContext:
        slots, elements = slots_of(problem, True), int(self.elements(problem))
        return SpanContext(
            **vars(context(problem, wide, "", "", slots[0])),
            elements=elements,
            whole_rows=whole_rows(problem),
            places=places(slots, elements),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """The longest of: the bytes (by Little's law), the instructions, shared memory, the blocks of an SM one after another."""
        k = constants(ScanSpanConstants, target)
        *outer, length = problem.leading
        rows = math.prod(outer)
        slot, sizes = slots_of(problem, True)
        own = maximum(1, self.rows(problem))
        turns = ceil_div(own, self.threads // self.row_threads)
        share = ceil_div(length, self.row_threads) // 2 * 2 + 1
        passes = where(self.row_threads > 1, 2, 1)
        blocks = ceil_div(rows, own)
        most = ceil_div(blocks, target.sm_count)
        resident = maximum(1, minimum(most, target.resident_blocks(self.threads, 40, self.span_bytes)))

        enough = resident * own * length * input_bytes(problem) / bytes_in_flight(target, k.latency)
        flow = target.bandwidth * k.memory * enough / (1 + enough**4) ** 0.25
        at_once = ceil_div(share, self.vectors) * self.vectors * passes
        work = by_kind(problem, k.work, k.exponential, k.precise)
        alone = k.span + turns * (k.turn + at_once * (k.element + k.serial * work / target.clock_hz))
        combined = (k.combine + work) * log2(2 * self.row_threads) * where(self.row_threads > 1, 1, 0)
        warps = most * self.threads / 32 * turns
        issued = warps * (k.row + combined + at_once * work)
        # The threads of a row are in different banks, of several rows seldom more than two in one.
        apart = bank_conflicts(1, length, 0, max(sizes))
        conflicts = where(self.row_threads == 1, apart, minimum(apart, 2))
        accessed = warps * share * (passes + 1) * len(slot) / 2 * conflicts * k.access
        parts = (
            problem.bytes / maximum(flow, 1.0),
            issued / (4 * target.clock_hz),
            accessed / target.clock_hz,
            most / resident * alone,
            blocks * k.block,
        )
        return k.start + sum(part**4 for part in parts) ** 0.25


def whole_rows(problem: Problem) -> int:
    """So many rows of any length begin at multiples of 16 bytes, in every operand."""
    return WIDEST_ACCESS // min(slots_of(problem, True)[1], default=1)
