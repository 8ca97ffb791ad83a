"""ScanSplit: long rows, each shared by blocks, which find what is before their tiles by what others have left of theirs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kgen.codegen.source import SM_COUNT, Launch, Limit, Param, Pointer
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.size import maximum as largest
from kgen.dsl.size import minimum as least
from kgen.dsl.target import Target
from kgen.dsl.types import i32, i64
from kgen.dsl.vector import Vector, ceil_div, maximum, minimum, where
from kgen.ops.common.memory_bound import bytes_in_flight, narrowness
from kgen.ops.scan.kernel import by_kind, input_bytes, state_bytes
from kgen.ops.scan.schedule import VectorScan
from kgen.tuning_db.machines import constants

#: Tiles of a group, and groups of a section (SharedRow, templates/common/scan.cuh).
GROUP = 32
#: Elements of the shortest rows that blocks may share: of 2,863 and more some were faster so (docs/notes/scan.md).
_SHORTEST = 2048
#: Words of tiles at most, so that 32 bits count them and those of groups, 3% more.
_MOST_WORDS = 2**30


@dataclass(frozen=True)
class ScanSplitConstants(Constants, model="scan_split"):
    """Times in seconds; the last four are instructions."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    narrow: float  # how much longer it takes for each halving of a vector of 16 bytes
    latency: float  # for which an SM's share of the bandwidth is to be under way
    tile: float  # of a block's tile: its loads, its barriers
    element: float  # of a thread's element in a tile
    warp: float  # of a block's warp in a tile
    look: float  # until what a block leaves is seen by others
    shown: float  # the share of that which the next tile does not hide
    clear: float  # of a tile's words in memory
    work: float  # an element of a scan
    exponential: float  # the same, where exponentials are added, for results of 16 bits
    precise: float  # the same, for others
    combine: float  # of two lanes' states, beside the work of an element


class ScanSplit(VectorScan):
    """The tiles of all rows, by blocks that are there at once; each tile is read and written once."""

    template = "scan_split.cu.j2"
    model = ScanSplitConstants
    techniques = {
        "rows shared by blocks, single elements": {"pack": 1},
        "rows shared by blocks, a tile of each at a time": {"stages": 1},
        "rows shared by blocks, two tiles of each": {"stages": 2},
    }

    pack = choice(8, 4, 16, 2, 1)  # elements of one vector
    vectors = choice(1, 2, 4, 8, 16)  # of a thread in a tile
    threads = choice(512, 256, 1024, 128)
    blocks_per_sm = choice(2, 1, 4)  # at most
    stages = choice(2, 1)  # tiles of a block under way: what the next comes to is left before this one waits for others
    load = choice("default", "no_allocate")
    store = choice("default", "streaming")

    @rule
    @vectorised
    def on_the_gpu_at_once(self, problem: Problem, target: Target) -> Vector:
        """blocks wait for each other: at most 1024 threads a multiprocessor"""
        return self.threads * self.blocks_per_sm <= 1024

    @property
    def tile(self) -> Vector:
        """Elements of a tile."""
        return self.threads * self.pack * self.vectors

    @property
    def register_bytes(self) -> Vector:
        return where(self.threads * self.blocks_per_sm > 512, 160, 320)  # of 64 registers and of 128: more spill

    @rule
    @sized
    def words_of_tiles(self, problem: Problem, target: Target) -> Vector:
        """words that are left of tiles are counted in 32 bits"""
        tiles = math.prod(problem.leading[:-1]) * ceil_div(problem.leading[-1], self.tile)
        return tiles * (state_bytes(problem.graph) // 4) <= _MOST_WORDS

    @pruning
    @sized
    def several_tiles(self, problem: Problem, target: Target) -> Vector:
        """a row has several tiles"""
        return problem.leading[-1] > self.tile

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """shorter rows are faster by a block each, however few they are"""
        return problem.leading[-1] >= _SHORTEST

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        length = Dim(f"n{len(problem.leading) - 1}")
        return (length, self.tile), (length, GROUP // 2 * self.tile)

    def limits(self, problem: Problem, rows: Size) -> tuple[Limit, ...]:
        return (Limit(rows * self._tiles(problem) * (state_bytes(problem.graph) // 4), _MOST_WORDS),)

    def launch(self, problem: Problem, rows: Size) -> Launch:
        blocks = least(rows * self._tiles(problem), SM_COUNT * self.blocks_per_sm)
        states = self.threads // 32 + 2  # of warps, and of what is before two tiles in turn
        shared = states * state_bytes(problem.graph)
        return Launch((largest(1, blocks), 1, 1), (self.threads, 1, 1), shared, cooperative=True)

    def workspaces(self, problem: Problem, rows: Size) -> tuple[Param, ...]:
        tiles = self._tiles(problem)
        groups = ceil_div_size(tiles, GROUP)
        words = rows * (tiles + groups + ceil_div_size(groups, GROUP)) * (state_bytes(problem.graph) // 4)
        return Pointer("left", i64, "", "counters", words), Pointer("finished", i32, "", "counters", 1)

    def _tiles(self, problem: Problem) -> Size:
        return ceil_div_size(Dim(f"n{len(problem.leading) - 1}"), self.tile)

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """The longest of: the bytes (by Little's law), the instructions, the tiles of a block one after another."""
        k = constants(ScanSplitConstants, target)
        *outer, length = problem.leading
        rows = math.prod(outer)
        tiles = rows * maximum(1, ceil_div(length, self.tile))
        blocks = minimum(tiles, target.sm_count * self.blocks_per_sm)
        flight = blocks / target.sm_count * self.tile * input_bytes(problem)
        enough = flight / bytes_in_flight(target, k.latency)
        flow = target.bandwidth * k.memory * enough / (1 + enough**4) ** 0.25
        flow = flow / narrowness(self.pack * input_bytes(problem), k.narrow)
        work = by_kind(problem, k.work, k.exponential, k.precise)
        instructions = self.pack * work + 6 * (k.combine + work)  # of a thread's vector
        issued = (
            ceil_div(tiles, target.sm_count) * self.threads / 32 * self.vectors * instructions / (4 * target.clock_hz)
        )
        # What a group of neighbours comes to is left when all of them are seen.
        neighbours = blocks / rows
        looks = where(neighbours > 1, 1, 0) + where(neighbours > GROUP, 1, 0)
        tile = k.tile + k.element * self.vectors * self.pack + k.warp * self.threads / 32
        tile = tile + looks * k.look * where(self.stages == 2, k.shown, 1.0)
        parts = (problem.bytes / maximum(flow, 1.0), issued, ceil_div(tiles, blocks) * tile)
        return k.start + k.clear * tiles + sum(part**4 for part in parts) ** 0.25
