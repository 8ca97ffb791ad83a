"""The modelled time of row-wise configs: by bandwidth, by latency and by instructions, of which the largest counts most.

They rank configs and claim no time.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.dsl.machine import Constants
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, ceil_div, chosen, floor, log2, maximum, minimum, of_class, where
from kgen.ops.common.banks import bank_conflicts
from kgen.ops.common.memory_bound import load_policy
from kgen.ops.rowwise.kernel import accesses, column_bytes, kept_bytes
from kgen.ops.rowwise.measured import row_load
from kgen.ops.rowwise.plan import plan_of
from kgen.tuning_db.machines import constants

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise
    from kgen.ops.rowwise.span import RowwiseSpan


@dataclass(frozen=True)
class RowwiseConstants(Constants, model="rowwise"):
    """Times in seconds; `element` and `reduction` are instructions an element, for each and for each reduction."""

    element: float
    reduction: float
    issued: float  # of the issue slots
    registers: float  # of a thread, beside a share of the bytes that it keeps
    registers_a_byte: float
    load: float  # a round of loads
    columns: float  # a round of loads of what [N] is
    phase: float
    doubling: float  # a phase, for each doubling of the warps that meet
    finish: float
    serial: float  # clocks an instruction of a thread
    across: float  # instructions a byte of [N] that is taken from across two accesses
    cluster: float  # a phase of a cluster, and for each block
    cluster_block: float
    cluster_start: float  # of a cluster that has one row
    start: float  # of a block that has one row
    again: float  # of a row that is read again, what comes from memory
    column_traffic: float  # of the operands of [N], a row
    far_columns: float  # the same, of those that are more than L1 holds beside the rows
    burst: float  # as a power, what a thread keeps beyond 32 bytes costs of the bandwidth
    lasting: float  # of the bandwidth, where what is read stays longer in L2 than what is written
    two_accesses: float  # of the bandwidth, where a vector takes two
    narrow: float  # of the bandwidth, with accesses of two bytes
    line: float  # clocks of a multiprocessor for a line of 128 bytes that an access of a warp touches
    block: float  # of a multiprocessor, until it begins another block
    bandwidth: float
    sharpness: float


@functools.lru_cache(maxsize=256)
def _phases(graph: Graph, online: bool) -> int:
    """Phases of an algorithm: two-pass or online."""
    return len(plan_of(graph, online).phases)


@functools.lru_cache(maxsize=256)
def _reductions(graph: Graph, online: bool) -> int:
    """Reductions of an algorithm; two that go together count double."""
    plan = plan_of(graph, online)
    return sum(map(len, plan.phases)) + 2 * len(plan.online)


@functools.lru_cache(maxsize=1024)
def _moved(problem: Problem) -> tuple[int, int, int]:
    """Bytes of a column of the outputs; of the widest element of what moves from row to row; and how many operands that are."""
    inputs, outputs = accesses(problem)
    full = [a.bytes for a in itertools.chain(inputs, outputs) if a.kind == "full"]
    return sum(a.bytes for a in outputs if a.kind == "full"), max(full, default=4), len(full)


@of_class
def _of_class(config: Rowwise, problem: Problem, target: Target) -> tuple[Vector, ...]:
    """What no size decides: rows of a block, instructions of an element and across threads, seconds of a round, bandwidth, lines.

    The first instructions are those of an element, then those of a thread; the share of the bandwidth is by accesses.
    """
    k = constants(RowwiseConstants, target)
    kept, columns = kept_bytes(problem), column_bytes(problem)
    written, widest, operands = _moved(problem)
    row_threads, clustered, online = config.row_threads, config.cluster > 1, config.algorithm == "online"
    phases = where(online, *(_phases(problem.graph, algorithm) for algorithm in (True, False)))
    reductions = where(online, *(_reductions(problem.graph, algorithm) for algorithm in (True, False)))
    passes = where(config.keep == "none", phases + (written > 0), 1)

    an_element = k.element + k.reduction * reductions
    warps = maximum(1, row_threads * config.cluster // 32)
    across = phases * 20 + reductions * 3 * minimum(5, floor(log2(row_threads)))
    among = phases * 30 + reductions * 3 * minimum(5, floor(log2(warps)) + 1)
    of_thread = 60 + across + where((row_threads > 32) | clustered, among, 0) + where(config.shift, 40, 0)
    beside = (passes + 2) * 12 / config.pack + where(config.shift, columns * k.across, 0)

    a_phase = k.phase + k.doubling * maximum(0, log2(row_threads) - 5)
    a_phase = a_phase + where(clustered, k.cluster + k.cluster_block * config.cluster, 0.0)
    a_round = k.load * passes + phases * a_phase + where(clustered, k.cluster_start, 0.0) + (k.finish + k.start)
    a_round = a_round + where(config.columns == "late", k.columns * (columns > 0), 0.0)

    share = minimum(1.0, 0.4 + 0.6 * minimum(row_threads, 32) * config.pack * max(1, kept) / 256)
    an_access = config.pack * widest
    share = share * where(an_access > 16, k.two_accesses, where(an_access < 4, k.narrow, 1.0))

    # Lines that a warp's vectors touch: those of its rows, each of its own.
    together = minimum(row_threads, 32)
    lines = operands * passes * (32 // together) * maximum(1.0, together * an_access / 128)
    return config.threads // row_threads, an_element, of_thread, beside, a_round, share, passes, lines


def modelled_seconds(config: Rowwise, problem: Problem, target: Target) -> Vector:
    """The time of one launch; only for ranking."""
    k = constants(RowwiseConstants, target)
    *outer, n = problem.leading
    rows, length = max(1, math.prod(outer)), max(n, 1)
    kept, columns = kept_bytes(problem), column_bytes(problem)
    written = _moved(problem)[0]
    rows_of_block, an_element, of_thread, beside, a_round, share, passes, lines = _of_class(config, problem, target)
    threads, again = config.threads, config.keep == "none"
    groups = ceil_div(rows, rows_of_block)
    blocks = groups * config.cluster
    vectors = config.vectors(problem)
    elements = vectors * config.pack  # of a thread

    # Instructions: a thread's elements, those beyond the row too, its vectors, its part of each reduction across threads.
    of_elements = elements * an_element
    work = of_elements + elements * beside + of_thread
    issue = blocks * threads * work / (target.sm_count * 128 * target.clock_hz * k.issued)

    # Lines that warps touch, and blocks that begin one after another.
    warps = blocks * threads / 32
    touched = warps * vectors * lines * k.line / (target.sm_count * target.clock_hz)
    begun = blocks * k.block / target.sm_count

    # Latency: the rounds of what a multiprocessor holds at a time.
    in_registers = elements * (kept * (config.keep != "shared") + config.early_bytes(problem))
    registers = ceil_div(floor(k.registers + in_registers * k.registers_a_byte), 8) * 8 + 8
    limited = target.registers_per_sm // (threads * maximum(1, config.blocks_per_sm))
    registers = where(config.blocks_per_sm != 0, minimum(registers, limited), registers)
    resident = maximum(0.5, target.resident_blocks(threads, registers, config.smem_bytes(problem)))
    mine = ceil_div(blocks, target.sm_count)
    mine = mine * where(again, ceil_div(length, config.step * vectors), 1)
    a_round = a_round + k.serial / target.clock_hz * of_elements
    latency = mine / maximum(1.0, minimum(resident, mine)) * a_round

    # Traffic: what is read and written, in accesses that are wide enough and lie together.
    traffic = rows * length * (kept * (1 + k.again * (passes - 1)) + written)
    each = (k.far_columns if length * columns > 2**17 else k.column_traffic) * length * columns
    traffic = traffic + where(config.columns == "late", each * rows / rows_of_block, 0.0)
    share = share * (32 / maximum(32, elements * kept)) ** k.burst
    if row_load(problem, target) == "evict_last":
        share = share * where(config.load == "evict_last", k.lasting, 1.0)
    memory = traffic / (k.bandwidth * target.bandwidth * share)
    sharp = memory**k.sharpness + latency**k.sharpness + issue**k.sharpness
    sharp = sharp + touched**k.sharpness + begun**k.sharpness
    return 2e-6 + sharp ** (1 / k.sharpness)


@dataclass(frozen=True)
class SpanConstants(Constants, model="rowwise_span"):
    """The same for blocks whose rows are one span of memory."""

    element: float  # instructions of an element,
    operand: float  # for each vector of an operand of rows,
    reduction: float  # for each reduction of an element,
    column: float  # and for each vector of an operand of [N], for every row or once
    row: float  # of a thread, for a phase of a row
    halving: float  # and for each time that the lanes of a reduction meet
    issued: float  # of the issue slots
    access: float  # clocks of a multiprocessor for a warp's access to shared memory, times the conflicts of its banks
    serial: float  # clocks an instruction of a thread
    block: float  # seconds until the rows of a block have come,
    left: float  # and from when its results go
    late: float  # of one value a row, which is loaded where it is needed
    fetched: float  # of each vector of an operand of [N] that is not read before, for every row
    small: float  # how much longer blocks of 64 threads take than those of 128,
    large: float  # and those of 256
    begun: float  # of a multiprocessor, until it begins another block
    ramp: float  # of the memory's time for the blocks that are resident at once: at first they only load, at last only store
    own: float  # of the instructions above, what those of rows in a thread's registers come to, whose length is a constant
    registers: float  # of a thread, beside its elements
    bandwidth: float
    sharpness: float


@of_class
def _span_of_class(config: RowwiseSpan, problem: Problem, target: Target) -> tuple[Vector, ...]:
    """Instructions of a thread for an element, and for a row; registers for an element; seconds that a row waits for loads, and
    for those of each vector."""
    k = constants(SpanConstants, target)
    inputs, operands, reductions = accesses(problem)[0], _moved(problem)[2], _reductions(problem.graph, False)
    columns, early = sum(a.kind == "column" for a in inputs), config.columns == "early"
    an_element = k.element + k.operand * operands / config.pack + k.reduction * reductions
    an_element = an_element + k.column * columns / (config.pack * where(early, config.turns, 1))
    a_row = k.row * (_phases(problem.graph, False) + 1) + k.halving * reductions * log2(config.row_threads)
    waits = k.late * any(a.kind == "row" for a in inputs)
    full = sum(a.kind == "full" for a in inputs)
    return an_element, a_row, full + where(early, columns, 0), waits, where(early, 0.0, k.fetched * columns)


def span_seconds(config: RowwiseSpan, problem: Problem, target: Target) -> Vector:
    """The time of one launch; only for ranking."""
    k = constants(SpanConstants, target)
    *outer, n = problem.leading
    rows, length = max(1, math.prod(outer)), max(n, 1)
    an_element, a_row, kept, waits, fetches = _span_of_class(config, problem, target)
    shared = config.span == "block"
    written, widest, operands = _moved(problem)
    traffic = rows * length * (kept_bytes(problem) + written)
    vectors = config.vectors(problem)
    elements = vectors * config.pack
    blocks = ceil_div(rows, config.rows)
    threads = blocks * config.rows * config.row_threads  # of all rows
    clocks = target.sm_count * target.clock_hz

    of_row = (elements * an_element + a_row) * where(shared, 1.0, k.own)
    issue = threads * of_row / (128 * k.issued * clocks)
    by_pack = {
        pack: chosen(
            config.row_threads, {n: bank_conflicts(n, length, pack, widest, pack) for n in (1, 2, 4, 8, 16, 32)}, 1
        )
        for pack in (1, 2, 4)
    }
    accessed = threads / 32 * vectors * operands * chosen(config.pack, by_pack, 1) * k.access / clocks
    accessed = accessed * where(shared, 1.0, 0.0)

    # Latency: the blocks that a multiprocessor holds at a time, of which each has its rows one after another.
    registers = ceil_div(floor(k.registers + elements * kept), 8) * 8
    resident = maximum(0.5, target.resident_blocks(config.threads, registers, config.smem_bytes(problem)))
    mine = ceil_div(blocks, target.sm_count)
    turn = waits + fetches * vectors + k.serial / target.clock_hz * of_row
    alone = k.block + k.left * (written > 0) + config.turns * turn
    at_once = maximum(1.0, minimum(resident, mine))
    latency = mine / at_once * alone

    memory = traffic / (k.bandwidth * target.bandwidth) * (1 + k.ramp * at_once / mine)
    sharp = memory**k.sharpness + latency**k.sharpness + issue**k.sharpness
    sharp = sharp + accessed**k.sharpness + (mine * k.begun) ** k.sharpness
    return chosen(config.threads, {64: k.small, 256: k.large}, 1.0) * (2e-6 + sharp ** (1 / k.sharpness))


@dataclass(frozen=True)
class ClusterConstants(Constants, model="rowwise_cluster"):
    """The same for clusters that loop."""

    element: float
    reduction: float
    exponential: float  # of f32, where it is not one instruction of the special function unit
    row: float  # instructions of a warp, beside its elements
    part: float
    issued: float
    few: float  # warps, beside which the others have what issue slots give
    latency: float  # of what is on its way to a multiprocessor
    waiting: float  # of a row whose sums wait for the results of the one before
    start: float
    bandwidth: float
    read_bandwidth: float  # of reads, in writes
    lasting: float  # as above
    column_traffic: float
    crowd: float  # what many rows at once cost, as a power of their number
    sharpness: float
    reached_4: (
        float  # of the SMs, which come in groups (of up to 18 on an H200), those that clusters of 4 can be placed on
    )
    reached_8: float
    reached_16: float


def clusters_at_once(config: RowwiseCluster, target: Target) -> Vector:
    """About how many clusters a GPU has room for."""
    k = constants(ClusterConstants, target)
    reached = chosen(config.cluster, {4: k.reached_4, 8: k.reached_8, 16: k.reached_16}, 1.0)
    return maximum(1, floor(target.sm_count * reached / config.cluster)) * config.blocks_per_sm


def cluster_seconds(config: RowwiseCluster, problem: Problem, target: Target) -> Vector:
    """The time of one launch of a RowwiseCluster; only for ranking."""
    k = constants(ClusterConstants, target)
    *outer, length = problem.leading
    rows = max(1, math.prod(outer))
    written, columns = _moved(problem)[0], column_bytes(problem)
    plan = plan_of(problem.graph, True)
    kept, parts, ahead = kept_bytes(problem), config.parts(problem), config.ahead(problem)
    clusters = minimum(rows, clusters_at_once(config, target))
    rounds = ceil_div(rows, clusters)
    resident = maximum(1.0, clusters * config.cluster / target.sm_count)  # blocks of a multiprocessor
    elements = parts * config.unroll * config.pack
    exponentials = 2 * len(plan.online) * (written >= 4)
    an_element = k.element + k.reduction * _reductions(problem.graph, True) + k.exponential * exponentials
    warp = elements * an_element + k.row + k.part * parts
    warps = resident * config.threads / 32
    issue = rounds * warps * warp / (4 * target.clock_hz * k.issued * warps / (warps + k.few))

    block = length / config.cluster
    moved = block * (kept / k.read_bandwidth + written)
    moved = moved + where(config.columns == "late", block * columns * k.column_traffic, 0.0)
    slots = config.threads // 32 * config.slots * config.stage_bytes(problem)
    flight = resident * (slots - (ahead + 0.5) * block * kept)
    loading = resident * block * kept * k.latency / maximum(flight, 1.0)
    a_round = loading + where(ahead != 0, 0.0, k.waiting)
    memory = clusters**k.crowd * clusters * config.cluster * rounds * moved / (k.bandwidth * target.bandwidth)
    if load_policy(problem, target) == "evict_last":
        memory = memory / where(config.load == "evict_last", k.lasting, 1.0)
    sharp = memory**k.sharpness + (rounds * a_round) ** k.sharpness + issue**k.sharpness
    return k.start + sharp ** (1 / k.sharpness)
