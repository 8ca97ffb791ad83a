"""The modelled time of row-wise configs: by bandwidth, by latency and by instructions, of which the largest counts most.

The constants are fitted to configs timed on an H200 (docs/notes/rowwise.md); they rank configs and claim no time.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.ops.rowwise.kernel import accesses, kept_bytes
from kgen.ops.rowwise.plan import plan_of

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise


@dataclass(frozen=True)
class Constants:
    """Times in seconds; `element` and `reduction` are instructions an element, for each and for each reduction."""

    element: float = 1.71
    reduction: float = 3.99
    issued: float = 0.95  # of the issue slots
    registers: float = 4.18  # of a thread, beside a share of the bytes that it keeps
    registers_a_byte: float = 0.21
    load: float = 6.61e-07  # a round of loads
    columns: float = 1.09e-06  # a round of loads of what [N] is
    phase: float = 1.24e-07
    doubling: float = 2.18e-08  # a phase, for each doubling of the warps that combine their states
    finish: float = 9.57e-08
    serial: float = 8  # clocks an instruction of a thread
    across: float = 1.6  # instructions a byte of [N] that is taken from across two accesses
    cluster: float = 3.6e-06  # a phase of a cluster, and for each block
    cluster_block: float = 1.15e-07
    cluster_start: float = 3.7e-07  # of a cluster that has one row
    start: float = 6.79e-08  # of a block that has one row
    again: float = 0.341  # of a row that is read again, what comes from memory
    column_traffic: float = 0.013  # of the operands of [N], a row
    far_columns: float = 0.1  # the same, of those that are more than L1 holds beside the rows
    burst: float = 0.012  # as a power, what a thread keeps beyond 32 bytes costs of the bandwidth
    lasting: float = 1.035  # of the bandwidth, where what is read stays longer in L2 than what is written
    two_accesses: float = 0.842  # of the bandwidth, where a vector takes two
    narrow: float = 0.7  # of the bandwidth, with accesses of two bytes
    bandwidth: float = 0.95
    sharpness: float = 2.2


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


def modelled_seconds(config: Rowwise, problem: Problem, target: Target, k: Constants) -> float:
    """The time of one launch; only for ranking."""
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
    resident = max(0.5, min(
        target.max_threads_per_sm // threads,
        target.registers_per_sm // (registers * threads),
        target.shared_per_sm // (config.smem_bytes(problem) + 1024),
        target.max_blocks_per_sm,
    ))  # fmt: skip
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
class ClusterConstants:
    """The same for clusters that loop."""

    element: float = 4.27
    reduction: float = 1.8
    exponential: float = 2.88  # of f32, where it is not one instruction of the special function unit
    row: float = 124.0  # instructions of a warp, beside its elements
    part: float = 27.3
    issued: float = 1.0
    few: float = 3.17  # warps, beside which the others have what issue slots give
    latency: float = 7.89e-07  # of what is on its way to a multiprocessor
    waiting: float = 1.13e-06  # of a row whose sums wait for the results of the one before
    start: float = 5.75e-06
    bandwidth: float = 0.838
    read_bandwidth: float = 1.16  # of reads, in writes
    lasting: float = 1.06  # as above
    column_traffic: float = 0.772
    crowd: float = 0.0125  # what many rows at once cost, as a power of their number
    sharpness: float = 3.54


#: Of an H200's multiprocessors, which come in groups of up to 18, those that clusters of each size can be placed on.
_REACHED = {2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}


def clusters_at_once(config: RowwiseCluster, target: Target) -> int:
    """About how many clusters a GPU has room for."""
    return max(1, int(target.sm_count * _REACHED[config.cluster] / config.cluster)) * config.blocks_per_sm


def cluster_seconds(config: RowwiseCluster, problem: Problem, target: Target, k: ClusterConstants) -> float:
    """The time of one launch of a RowwiseCluster; only for ranking."""
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
