"""ScanThread: rows of a few elements. A thread has several, whose span is vectors of 16 bytes, in its registers."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from kgen.codegen.source import Launch, Limit
from kgen.dsl.choice import choice, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import WIDEST_ACCESS, NormalProblem, Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.vector import Vector, ceil_div, maximum, minimum, where
from kgen.ops.common.memory_bound import LINE, bytes_in_flight, least_arch
from kgen.ops.rowwise.dense import is_one_span, places, slots_of
from kgen.ops.rowwise.kernel import accesses
from kgen.ops.scan.kernel import Context, by_kind, context, input_bytes
from kgen.ops.scan.schedule import ScanSchedule
from kgen.tuning_db.machines import constants

#: Elements of a thread's rows, which are unrolled.
_MOST = 64
#: Bytes of them over the inputs: those of 64 registers.
_MOST_BYTES = 256


@dataclass(frozen=True)
class ScanThreadConstants(Constants, model="scan_thread"):
    """Times in seconds; `line` and `access` in clocks; the last four are instructions of a warp."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    block: float  # until the next block is started
    span: float  # of a thread's rows
    stage: float  # the same, through shared memory
    serial: float  # clocks of an instruction of an element
    line: float  # of a line that a warp's access touches
    access: float  # of 16 bytes of each thread of a warp in shared memory
    thread: float
    work: float  # an element of a scan
    exponential: float  # the same, where exponentials are added, for results of 16 bits
    precise: float  # the same, for others


@dataclass(frozen=True)
class ThreadContext(Context):
    """What the template sees beside; `places` are where operands begin in shared memory, in bytes."""

    rows_of_thread: int
    columns: int
    places: tuple[tuple[str, int], ...]


class ScanThread(ScanSchedule):
    """The least number of rows that are whole vectors of 16 bytes, by a thread, of which the kernel knows the length."""

    template = "scan_thread.cu.j2"
    model = ScanThreadConstants
    techniques = {
        "rows of a thread, in registers": {"stage": False},
        "rows of a thread, by way of shared memory": {"stage": True},
        "blocks of two warps": {"threads": 64},
    }
    target = sm(75)

    threads = choice(128, 256, 64)
    stage = choice(False, True)  # in shared memory, where a block's rows are one span

    def smem_bytes(self, problem: Problem) -> Vector:
        own = rows_of_thread(problem) * problem.leading[-1]
        return where(self.stage, self.threads * own * sum(slots_of(problem, True)[1]), 0)

    def arch(self, problem: Problem) -> Arch:
        """The least architecture with the dtypes, and with cp.async where rows come by way of shared memory."""
        return max(least_arch(problem), sm(80)) if self.stage else least_arch(problem)

    @rule
    @vectorised
    def copies_of_the_target(self, problem: Problem, target: Target) -> Vector:
        """cp.async needs a newer GPU (sm_80)"""
        return where(self.stage, sm(80).runs_on(target.arch), True)

    @rule
    def one_span(self, problem: Problem, target: Target) -> bool:
        """rows follow one another without gaps, from a multiple of 16 bytes on, and no operand is of [N]"""
        return is_one_span(problem) and all(a.kind != "column" for a in accesses(problem)[0])

    @rule
    @sized
    def few_elements(self, problem: Problem, target: Target) -> bool:
        """a thread's rows are at most 64 elements, and those of all inputs 256 bytes"""
        return has_few_elements(problem)

    @rule
    @sized
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """the rows of a block must fit in its shared memory"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """where a thread has room for rows"""
        return has_few_elements(problem)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and whether rows are one span."""
        return problem.graph.digest, accesses(problem), is_one_span(problem)

    def lengths(self, problem: Problem) -> tuple[Limit, ...]:
        columns = problem.leading[-1]
        return (Limit(Dim(f"n{len(problem.leading) - 1}"), columns, least=columns),)

    def launch(self, problem: Problem, rows: Size) -> Launch:
        blocks = ceil_div_size(rows, self.threads * rows_of_thread(problem))
        return Launch((blocks, 1, 1), (self.threads, 1, 1), int(self.smem_bytes(problem)))

    def context(self, problem: Problem, wide: bool) -> ThreadContext:
        slots = slots_of(problem, True)
        elements = self.threads * rows_of_thread(problem) * problem.leading[-1]
        return ThreadContext(
            **vars(context(problem, wide, "", "", slots[0] if self.stage else ())),
            rows_of_thread=rows_of_thread(problem),
            columns=problem.leading[-1],
            places=places(slots, elements) if self.stage else (),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """The longest of: the bytes (by Little's law), the instructions, the lines or shared memory, the blocks of an SM."""
        k = constants(ScanThreadConstants, target)
        *outer, length = problem.leading
        slot, sizes = slots_of(problem, True)
        own = rows_of_thread(problem)
        blocks = ceil_div(math.prod(outer), self.threads * own)
        most = ceil_div(blocks, target.sm_count)
        registers = 24 + own * length * input_bytes(problem) // 4
        resident = maximum(1, minimum(most, target.resident_blocks(self.threads, registers, self.smem_bytes(problem))))

        enough = resident * self.threads * own * length * input_bytes(problem) / bytes_in_flight(target, k.latency)
        flow = target.bandwidth * k.memory * enough / (1 + enough**4) ** 0.25
        work = by_kind(problem, k.work, k.exponential, k.precise)
        alone = where(self.stage, k.stage, k.span) + k.serial * own * length * work / target.clock_hz
        warps = most * self.threads / 32
        issued = warps * (k.thread + own * length * work) / 4
        spans = [own * length * sizes[i] for i in slot.values()]  # of a thread, in bytes
        vectors = sum(spans) / WIDEST_ACCESS
        lines = sum(span / WIDEST_ACCESS * min(32, 32 * span / LINE) for span in spans)
        reached = warps * where(self.stage, 2 * vectors * k.access, lines * k.line)
        parts = (
            problem.bytes / maximum(flow, 1.0),
            issued / target.clock_hz,
            reached / target.clock_hz,
            most / resident * alone,
            blocks * k.block,
        )
        return k.start + sum(part**4 for part in parts) ** 0.25


def rows_of_thread(problem: Problem) -> int:
    """The least number of rows that are whole vectors of 16 bytes in every operand."""
    _, sizes = slots_of(problem, True)
    return WIDEST_ACCESS // math.gcd(WIDEST_ACCESS, max(1, problem.leading[-1]) * min(sizes, default=1))


def has_few_elements(problem: Problem) -> bool:
    """Whether a thread has room for the rows that it must have."""
    elements = rows_of_thread(problem) * max(1, problem.leading[-1])
    return elements <= _MOST and elements * input_bytes(problem) <= _MOST_BYTES
