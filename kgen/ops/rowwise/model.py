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
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.ops.rowwise.kernel import accesses, kept_bytes
from kgen.ops.rowwise.plan import plan_of
from kgen.tuning_db.machines import constants

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise


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
    bandwidth: float
    sharpness: float


@functools.lru_cache(maxsize=1024)
def _shape(problem: Problem, online: bool) -> tuple[int, int, int, int, int]:
    """Phases, reductions (two that go together count double), bytes of the outputs' and [N] operands' columns, widest element."""
    plan = plan_of(problem.graph, online)
    inputs, outputs = accesses(problem)
    return (
        len(plan.phases),
        sum(map(len, plan.phases)) + 2 * len(plan.online),
        sum(a.bytes for a in outputs if a.kind == "full"),
        sum(a.bytes for a in inputs if a.kind == "column"),
        max((a.bytes for a in itertools.chain(inputs, outputs) if a.kind == "full"), default=4),
    )


def modelled_seconds(config: Rowwise, problem: Problem, target: Target) -> float:
    """The time of one launch; only for ranking."""
    k = constants(RowwiseConstants, target)
    *outer, n = problem.leading
    rows, length = max(1, math.prod(outer)), max(n, 1)
    phases, reductions, written, columns, widest = _shape(problem, config.algorithm == "online")
    kept, shared, again = kept_bytes(problem), config.keep == "shared", config.keep == "none"
    threads, blocks_of_row = config.threads, config.cluster
    passes = phases + (written > 0) if again else 1
    blocks = -(-rows // (threads // config.row_threads)) * blocks_of_row

    # Instructions: a thread's elements, its vectors, its part of each reduction across threads.
    used = max(1, -(-length // (blocks_of_row * config.row_threads)))
    of_elements = used * (k.element + k.reduction * reductions)
    across = phases * 20 + reductions * 3 * min(5, config.row_threads.bit_length() - 1)
    if config.row_threads > 32 or blocks_of_row > 1:
        across += phases * 30 + reductions * 3 * min(5, (config.row_threads * blocks_of_row // 32).bit_length())
    work = of_elements + across + 60 + used / config.pack * (passes + 2) * 12
    if config.shift:
        work += 40 + used * columns * k.across
    issue = blocks * threads * work / (target.sm_count * 128 * target.clock_hz * k.issued)

    # Latency: the rounds of what a multiprocessor holds at a time.
    in_registers = config.vectors(problem) * config.pack * (kept * (not shared) + config.early_bytes(problem))
    registers = -(-int(k.registers + in_registers * k.registers_a_byte) // 8) * 8 + 8
    if config.blocks_per_sm:
        registers = min(registers, target.registers_per_sm // (threads * config.blocks_per_sm))
    resident = max(0.5, target.resident_blocks(threads, registers, config.smem_bytes(problem)))
    a_round = k.load * passes + k.finish + k.serial * of_elements / target.clock_hz
    a_round += phases * (k.phase + k.doubling * max(0, config.row_threads.bit_length() - 6))
    a_round += k.columns * (columns > 0 and config.columns == "late")
    a_round += k.start
    if blocks_of_row > 1:
        a_round += phases * (k.cluster + k.cluster_block * blocks_of_row) + k.cluster_start
    mine = -(-blocks // target.sm_count)
    if again:
        mine *= -(-length // (blocks_of_row * config.row_threads * config.vectors(problem) * config.pack))
    latency = mine / max(1.0, min(resident, mine)) * a_round

    # Traffic: what is read and written, in accesses that are wide enough and lie together.
    traffic = rows * length * (kept * (1 + k.again * (passes - 1)) + written)
    if config.columns == "late":
        far = length * columns > 2**17
        each = (k.far_columns if far else k.column_traffic) * length * columns
        traffic += each * rows / (threads // config.row_threads)
    share = min(1.0, 0.4 + 0.6 * min(config.row_threads, 32) * config.pack * max(1, kept) / 256)
    share *= (32 / max(32, config.vectors(problem) * config.pack * kept)) ** k.burst
    share *= k.lasting if config.load == "evict_last" and written and blocks_of_row == 1 else 1.0
    share *= k.two_accesses if config.pack * widest > 16 else 1.0
    share *= k.narrow if config.pack * widest < 4 else 1.0
    memory = traffic / (k.bandwidth * target.bandwidth * share)
    parts = (memory, latency, issue)
    return 2e-6 + float(sum(part**k.sharpness for part in parts) ** (1 / k.sharpness))


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


def clusters_at_once(config: RowwiseCluster, target: Target) -> int:
    """About how many clusters a GPU has room for."""
    k = constants(ClusterConstants, target)
    reached = {4: k.reached_4, 8: k.reached_8, 16: k.reached_16}.get(config.cluster, 1.0)
    return max(1, int(target.sm_count * reached / config.cluster)) * config.blocks_per_sm


def cluster_seconds(config: RowwiseCluster, problem: Problem, target: Target) -> float:
    """The time of one launch of a RowwiseCluster; only for ranking."""
    k = constants(ClusterConstants, target)
    *outer, length = problem.leading
    rows = max(1, math.prod(outer))
    _, reductions, written, columns, _ = _shape(problem, True)
    plan = plan_of(problem.graph, True)
    kept, parts, ahead = kept_bytes(problem), config.parts(problem), config.ahead(problem)
    clusters = min(rows, clusters_at_once(config, target))
    rounds = -(-rows // clusters)
    resident = max(1.0, clusters * config.cluster / target.sm_count)  # blocks of a multiprocessor
    elements = parts * config.unroll * config.pack
    exponentials = 2 * len(plan.online) * (written >= 4)
    an_element = k.element + k.reduction * reductions + k.exponential * exponentials
    warp = elements * an_element + k.row + k.part * parts
    warps = resident * config.threads / 32
    issue = rounds * warps * warp / (4 * target.clock_hz * k.issued * warps / (warps + k.few))

    block = length / config.cluster
    moved = block * (kept / k.read_bandwidth + written)
    if config.columns == "late":
        moved += block * columns * k.column_traffic
    slots = config.threads // 32 * config.slots * config.stage_bytes(problem)
    flight = resident * (slots - (ahead + 0.5) * block * kept)
    loading = resident * block * kept * k.latency / max(flight, 1.0)
    a_round = loading + k.waiting * (not ahead)
    memory = clusters**k.crowd * clusters * config.cluster * rounds * moved / (k.bandwidth * target.bandwidth)
    memory /= k.lasting if config.load == "evict_last" and written else 1.0
    parts_of_time = (memory, rounds * a_round, issue)
    return k.start + float(sum(part**k.sharpness for part in parts_of_time) ** (1 / k.sharpness))
