"""How long a gather takes, by a model: what runs where nothing was tuned, and which configs a search tries first.

The constants were fitted on an H200 (docs/notes/gather.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.dsl.machine import Constants
from kgen.dsl.problem import WIDEST_ACCESS, Operand
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, ceil_div, maximum, minimum, where
from kgen.ops.common.lowering import Id
from kgen.ops.common.memory_bound import LINE, SECTOR
from kgen.tuning_db.machines import constants

if TYPE_CHECKING:
    from kgen.ops.gather.gather import Gather, Plan


@dataclass(frozen=True)
class GatherConstants(Constants, model="gather"):
    """Times in seconds; `access`, `line` and `serial` in clocks; `thread` to `id` are instructions."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    anywhere: float  # bytes that could be moved instead of finding a row that may be anywhere in memory
    apart: float  # how much longer it takes where the rows of a warp are not beside each other, but could be
    l2_rate: float  # bytes that L2 moves to the SMs, by whole sectors, in the time that memory moves one
    ends: float  # how many of the sectors at both ends of what a warp has of a row are moved again
    latency: float  # of a load
    first: float  # until what tells where a row lies is read
    threads: float  # of which there is no wait: how many, of an SM's own number
    access: float  # of a warp, in the path to L1
    line: float  # the same, of a line that it touches
    thread: float  # of a thread
    row: float  # of an axis of a row that it has in flight
    element: float  # of an element that is read alone
    id: float  # of an id of an element
    ragged: float  # accesses of an element of vectors that may be partial
    serial: float  # of an instruction of a thread, which waits for the one before


def estimate(config: Gather, p: Plan, target: Target) -> Vector:
    """Seconds to move the bytes, the sectors and lines that warps touch, or to issue instructions, beside the latency of a load.

    Blocks that are not there at once wait that long again.
    """
    k = constants(GatherConstants, target)
    length, rows = max(1, p.sizes[-1]), max(1, p.rows)
    elements = length * rows
    reads = [r for r in p.reads if p.kind(r) != "one"]
    scattered = any(p.is_found(r) for r in reads)
    # Threads beyond the end of a row, and beyond the last row, are launched too.
    vectors, of_block = ceil_div(length, config.pack), maximum(1, config.threads // config.lanes) * config.items
    idle = ceil_div(vectors, config.lanes) * config.lanes / vectors * (ceil_div(rows, of_block) * of_block / rows)
    threads = elements / (config.pack * config.items) * idle
    waves = maximum(1.0, threads / (target.sm_count * target.max_threads_per_sm * k.threads))

    moved: float = sum(o.dtype.bytes * min(o.elements, elements) for o in p.problem.operands)
    sectors: Vector = 0.0
    path: Vector = 0.0
    partial = where(length % config.pack != 0, 1 + k.ragged * config.pack, 1.0)
    for o, read in (*((r.operand, r) for r in reads), *((o, None) for o in p.problem.outputs)):
        alone, found = read is not None and p.kind(read) == "elements", read is not None and p.is_found(read)
        touched, lines = _touched(config, length, o, not found, k)
        wide = maximum(1.0, config.pack * o.dtype.bytes / WIDEST_ACCESS)
        # What lies in order is read once, by whichever of the outputs' threads.
        count = min(elements, o.elements) if read is not None and (alone or not found) else elements
        split = where((config.load == "no_allocate") & (read is not None), wide, 1.0)  # L1 keeps no half of a sector
        sectors += touched * count * split
        issued = count if read is not None and read.guards else elements
        path += issued * idle * (1 if alone else wide * partial / config.pack) / 32 * (k.access + k.line * lines)
        moved += min(rows, o.elements // length) * k.anywhere if found else 0

    read_alone = sum(p.kind(r) == "elements" for r in reads)
    ids = sum(isinstance(s, Id) and p.last in s.axes for s in p.lowering.steps)
    of_row = k.row * len(p.sizes) + config.pack * (2 + k.element * read_alone)
    instructions = k.thread + config.items * of_row + k.id * config.pack * ids
    chain = k.latency + (k.first if len(reads) < len(p.reads) else 0.0) + instructions * k.serial / target.clock_hz
    apart = where((config.items > 1) & (not scattered), k.apart, 1.0)
    parts = (
        moved / (target.bandwidth * k.memory) * apart,
        sectors * SECTOR / (k.l2_rate * target.bandwidth),
        path / (target.sm_count * target.clock_hz),
        threads * instructions / (128 * target.sm_count * target.clock_hz),
        (waves - 1) * chain,
    )
    return k.start + chain + sum(part**4 for part in parts) ** 0.25


def _touched(config: Gather, length: int, o: Operand, in_order: bool, k: GatherConstants) -> tuple[Vector, Vector]:
    """Of an operand that is accessed for each element: sectors that an element costs, and lines that a warp's access touches.

    A warp has a run of each of its rows. Whole rows that follow each other in memory are one run, where a thread has one of them.
    """
    size = o.dtype.bytes
    along = minimum(32, config.lanes)
    run = minimum(along * config.pack * size, max(1, min(length, o.shape[-1])) * size)
    runs = 32 / along
    if in_order:
        joined = (config.items == 1) & (config.lanes * config.pack >= length)
        run, runs = where(joined, run * runs, run), where(joined, 1, runs)
    unaligned = SECTOR - min(SECTOR, o.row_align if o.strides[-1] == 1 else 1)
    return size * (1 + k.ends * unaligned / run) / SECTOR, runs * maximum(1.0, run / LINE)
