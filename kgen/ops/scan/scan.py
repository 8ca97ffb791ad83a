"""Scan: rows of one block each, or several rows of a block.

`row_threads` threads of a block share a row, which they go through tile by tile, so that it is read and written once whatever
its length; what is before a tile stays in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kgen.codegen.source import Launch
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, ceil_div, floor, log2, maximum, minimum, where
from kgen.ops.common.memory_bound import LINE, bytes_in_flight, narrowness
from kgen.ops.scan.kernel import along_row, by_kind, input_bytes, state_bytes
from kgen.ops.scan.schedule import VectorScan
from kgen.tuning_db.machines import constants


@dataclass(frozen=True)
class ScanConstants(Constants, model="scan"):
    """Times in seconds, `line` in clocks; the last five are instructions of a warp."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    narrow: float  # how much longer it takes for each halving of a vector of 16 bytes
    uneven: float  # how much of the bandwidth is lost with multiprocessors that have fewer blocks than others: 1 all, 0 none
    block: float  # until the next block is started
    line: float  # of a line that a warp's access touches
    latency: float  # for which an SM's share of the bandwidth is to be under way
    threads: float  # the share of an SM's threads that are there
    tile: float  # of a row's tile, which waits for the one before
    element: float  # of a thread's element in a tile
    serial: float  # clocks of an instruction of such an element
    barrier: float  # where several warps share a row
    work: float  # an element of a scan
    exponential: float  # the same, where exponentials are added, for results of 16 bits
    precise: float  # the same, for others
    combine: float  # of two lanes' states, beside the work of an element
    barrier_instructions: float


class Scan(VectorScan):
    """Tiles of a row one after the other, each read and written once."""

    template = "scan.cu.j2"
    model = ScanConstants
    by_class = ("threads",)
    techniques = {
        "single elements": {"pack": 1, "vectors": 1},
        "several rows a warp": {"row_threads": (1, 2, 4, 8, 16)},
        "a warp a row": {"row_threads": 32},
        "a block a row": {"row_threads": (64, 128, 256, 512, 1024)},
        "several vectors in flight": {"vectors": (2, 4, 8)},
    }

    pack = choice(8, 4, 16, 2, 1)  # elements of one vector
    vectors = choice(1, 2, 4, 8)  # of a thread in a tile
    row_threads = choice(32, 64, 128, 256, 512, 1024, 16, 8, 4, 2, 1)  # of a block, that share a row
    threads = choice(128, 256, 512, 1024, 64, 32)
    load = choice("default", "no_allocate", "evict_last")
    store = choice("default", "streaming")

    @rule
    @vectorised
    def rows_of_a_block(self, problem: Problem, target: Target) -> Vector:
        """a block has one row, or several of at most a warp each"""
        return (self.row_threads == self.threads) | (self.row_threads <= minimum(32, self.threads))

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """no row has more than twice the threads that have something to do"""
        return (self.row_threads == 1) | (self.row_threads * self.pack < 4 * max(problem.leading[-1], 1))

    @property
    def register_bytes(self) -> Vector:
        return where(self.threads == 1024, 80, 160)  # of 64 registers and of more: more spill

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """Eight vectors of single elements alone, by a warp or more: of others four were as fast, or faster."""
        return where((self.vectors == 8) & ((self.pack > 1) | (self.row_threads < 32)), 1, 0)

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """A block of 128 threads has as many rows as it takes."""
        return (maximum(128, self.row_threads),)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim(f"n{len(problem.leading) - 1}"), self.row_threads * self.pack * self.vectors),)

    def launch(self, problem: Problem, rows: Size) -> Launch:
        warps = self.row_threads // 32 if self.row_threads > 32 else 0
        return Launch(
            (ceil_div_size(rows, self.threads // self.row_threads), 1, 1),
            (self.threads, 1, 1),
            2 * warps * state_bytes(problem.graph),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Time to move the bytes, at the bandwidth where enough of them are in flight (Little's law), or that of a row's tiles.

        Or of the instructions: of the elements, and of a tile's shuffles.
        """
        k = constants(ScanConstants, target)
        *outer, length = problem.leading
        rows, tile = math.prod(outer), self.row_threads * self.pack * self.vectors
        tiles = maximum(1, ceil_div(length, tile))
        blocks = ceil_div(rows, floor(self.threads / self.row_threads))
        most = ceil_div(blocks, target.sm_count)  # of a multiprocessor
        room = minimum(target.max_threads_per_sm * k.threads, target.max_blocks_per_sm * self.threads)
        resident = minimum(room, most * self.threads)
        flight = (
            resident * self.pack * self.vectors * input_bytes(problem) / maximum(1.0, tiles * tile / max(length, 1))
        )
        enough = flight / bytes_in_flight(target, k.latency)
        busy = (blocks / (most * target.sm_count)) ** k.uneven
        flow = target.bandwidth * k.memory * busy * enough / (1 + enough**4) ** 0.25
        flow = flow / narrowness(self.pack * input_bytes(problem), k.narrow)
        waves = maximum(1.0, most * self.threads / room)
        several = self.row_threads > 32
        work = by_kind(problem, k.work, k.exponential, k.precise)
        element = k.element + k.serial * work / target.clock_hz
        latency = k.tile + element * self.vectors * self.pack + where(several, k.barrier, 0.0)
        shuffles = (k.combine + work) * log2(2 * minimum(32, self.row_threads)) * self.vectors
        shuffles = shuffles + where(several, k.barrier_instructions, 0.0)
        instructions = tiles * (self.pack * self.vectors * work + shuffles)  # of a warp
        issued = most * self.threads / 32 * instructions / (4 * target.clock_hz * minimum(1.0, resident / 512))
        parts = (
            problem.bytes / maximum(flow, 1.0),
            issued,
            self._lines(problem, blocks * self.threads / 32 * tiles, target),
            tiles * latency * waves,
            blocks * k.block,
        )
        return k.start + sum(part**4 for part in parts) ** 0.25

    def _lines(self, problem: Problem, tiles: Vector, target: Target) -> Vector:
        """Seconds for the lines that warps touch in so many tiles: the rows of a warp lie apart, but short ones share lines."""
        k, length = constants(ScanConstants, target), max(problem.leading[-1], 1)
        rows = 32 / minimum(32, self.row_threads)
        found: Vector = 0.0
        for a, _ in along_row(problem):
            stretch = minimum(self.row_threads, 32) * self.pack * a.bytes / LINE
            found = found + maximum(1.0, minimum(rows * (stretch + 1), rows * length * a.bytes / LINE))
        return tiles * self.vectors * found * k.line / (target.sm_count * target.clock_hz)
