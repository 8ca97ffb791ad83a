"""What follows from the fields of a config of gemm_wgmma: its view of the problem, tiles, workers, shared memory, registers."""

from __future__ import annotations

import math

from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import RESERVED_SHARED, Target, clusters
from kgen.dsl.types import f16, tf32
from kgen.dsl.vector import (
    Vector,
    at_least,
    at_most,
    ceil_div,
    chosen,
    gcd,
    maximum,
    minimum,
    of_class,
    of_shape,
    of_sizes,
    where,
)
from kgen.ops.common.memory_bound import LINE, SECTOR
from kgen.ops.gemm.problem import Gemm, describe, exchanged
from kgen.ops.gemm.schedule import GemmSchedule, is_k_major, rows_begin_with, tma_addresses
from kgen.ops.gemm.wgmma_model import WgmmaConstants
from kgen.tuning_db.machines import constants

#: Bytes of shared memory of a block that barriers take.
_BARRIERS = 16
#: Clusters, named by their blocks along M x N; of each name these two numbers, and the blocks in all.
CLUSTERS = ("1x1", "2x1", "1x2", "2x2", "4x2", "2x4")
_ROWS, _COLUMNS = ({name: int(name[at]) for name in CLUSTERS} for at in (0, 2))
_BLOCKS = {name: rows * _COLUMNS[name] for name, rows in _ROWS.items()}


def _stored(width: int) -> int:
    """Columns of a tile of `width` that TMA stores at once where the output runs along the kernel's rows.

    Parts that follow one another wait for barriers and for the store before, 0.1 us each (1366x1024x1024 by 128x88 took 8.8 us in
    eleven of 8 columns, 7.0 in one): 64 columns, or the least part of the tile from 40 to 160, a multiple of 8.
    """
    box = math.gcd(width, 64)
    parts = (part for part in range(8, width + 1, 8) if width % part == 0)
    return box if box == 64 else next((part for part in parts if min(40, width) <= part <= 160), box)


#: By BN.
_STORED = {width: _stored(width) for width in range(8, 257, 8)}


class WgmmaSizes(GemmSchedule):
    """Base of the schedule, which has its fields and rules: no rule is here."""

    swap_ab: bool
    BK: int
    consumers: int
    pingpong: bool
    blocks_per_sm: int
    cluster: str
    work: str
    store: str
    epilogue_stages: int
    stages: int

    def domain(self, name: str) -> list[int]:
        """The values of a field of numbers that a search considers, the least first."""
        return sorted(int(value) for value in self.fields[name].values)

    @of_shape
    def fitting_splits(self, problem: Problem, target: Target) -> Vector:
        """The most workers a tile that are on the GPU at once, of those that the domain has, eight of a cluster at most; 1 where
        it has none.
        """
        tiles = self.clusters_of(self.view(problem))
        found = at_most(self.clusters_at_once(target) // tiles, self.domain("splits"), 1)
        return where(self.work == "cluster_k", minimum(8, found), found)

    @of_shape
    def filling_splits(self, problem: Problem, target: Target) -> Vector:
        """The fewest workers a tile, of those that the domain has, with which none is idle; at least two. No more there are."""
        tiles = self.clusters_of(self.view(problem))
        several = [n for n in self.domain("splits") if n > 1]
        return at_least(ceil_div(self.clusters_at_once(target), tiles), several, several[-1])

    def view(self, problem: Problem) -> Gemm:
        """The problem as the kernel sees it: with A and B exchanged where `swap_ab` says so."""
        return exchanged(problem) if self.swap_ab else describe(problem)

    def from_registers(self, g: Gemm) -> bool:
        """Whether A goes to wgmma through registers: tf32 that runs along M, which wgmma does not read from shared memory."""
        return g.a.operand.dtype is tf32 and not is_k_major(g, "a")

    def k_major(self, g: Gemm, side: str) -> bool:
        """Whether the tile of A or B runs along K: as the operand does, and always where wgmma wants it so.

        So do rows in groups: the first of a group may be any, but a box of TMA begins at a multiple of 16 bytes in a row.
        """
        if g.offsets and side == self.grouped_side:
            return True
        return is_k_major(g, side) or not (g.a.operand.dtype.bits == 16 or (side == "a" and self.from_registers(g)))

    def needs_copy(self, g: Gemm, side: str) -> bool:
        """Whether TMA cannot address A or B as it is: its rows and address are no multiples of 16 bytes, or it runs across K."""
        x = g.a if side == "a" else g.b
        return not tma_addresses(x) or self.k_major(g, side) != is_k_major(g, side)

    @of_class
    def copied(self, g: Gemm) -> tuple[bool, bool]:
        """Whether A and B are copied before anything else."""
        return self.needs_copy(g, "a"), self.needs_copy(g, "b")

    def inside_sectors(self, g: Gemm) -> list[bool]:
        """Whether rows of A, and of B, as TMA reads them begin inside sectors of 32 bytes."""
        return [not (copied or rows_begin_with(x, SECTOR)) for copied, x in zip(self.copied(g), (g.a, g.b))]

    def inside_lines(self, g: Gemm) -> list[bool]:
        """The same of lines of 128 bytes."""
        return [not (copied or rows_begin_with(x, LINE)) for copied, x in zip(self.copied(g), (g.a, g.b))]

    def copies(self, g: Gemm) -> bool:
        """Whether an operand is copied before anything else."""
        return any(self.copied(g))

    def tma_stores(self, g: Gemm) -> bool:
        """Whether TMA can store the output: it writes whole 16 bytes, also at the end of a row, and whole boxes."""
        y = g.outputs[0]
        length = g.N if y.column == 1 or g.N <= 1 else g.M
        return not g.offsets and tma_addresses(y) and length * y.operand.dtype.bytes % 16 == 0

    @of_sizes
    def may_overlap(self, problem: Problem, target: Target) -> Vector:
        """Whether to start while the kernel before ends, which saves 0.5 to 0.7 us (docs/notes/gemm_wgmma.md). Few
        blocks may where they read little: 16x6144x4096 (51 MB, 96 blocks) lost 1 us by it, 768^3 (3.5 MB, 72 blocks) won 0.5.
        """
        g = self.view(problem)
        if self.copies(g):
            return False
        little = problem.bytes <= constants(WgmmaConstants, target).few_bytes
        return little | (self.clusters_of(g) * self.cluster_size * self.splits >= 0.9 * target.sm_count)

    @property
    def grouped_side(self) -> str:
        """The side that the rows of groups are on."""
        return "b" if self.swap_ab else "a"

    @property
    def rows(self) -> Vector:
        """Rows of a warpgroup."""
        return where(self.pingpong, self.BM, self.BM // self.consumers)

    @property
    @of_class
    def cluster_shape(self) -> tuple[Vector, Vector]:
        """Blocks of a cluster along M and along N."""
        return chosen(self.cluster, _ROWS), chosen(self.cluster, _COLUMNS)

    @property
    @of_class
    def cluster_size(self) -> Vector:
        """Blocks of a cluster."""
        return chosen(self.cluster, _BLOCKS)

    @property
    @of_class
    def cluster_tile(self) -> tuple[Vector, Vector]:
        """Rows and columns of a cluster's tile."""
        rows, columns = self.cluster_shape
        return self.BM * rows, self.BN * columns

    @of_class
    def clusters_at_once(self, target: Target) -> Vector:
        """Clusters that the GPU has at once; a worker is one."""
        return maximum(1, clusters(target.sm_count, self.cluster_size) * self.blocks_per_sm)

    @of_class
    def shares(self) -> tuple[Vector, Vector, Vector]:
        """Whether `work` is whole tiles; even shares of all steps; even shares of a tile."""
        return self.work == "tiles", self.work == "stream_k", self.splits_tiles

    @property
    def through_memory(self) -> Vector:
        """Whether sums are shared through device memory, by workers that wait for each other."""
        return (self.work == "stream_k") | (self.work == "split_k")

    @property
    def splits_tiles(self) -> Vector:
        """Whether `splits` blocks share a tile evenly, through device memory or as a cluster."""
        return (self.work == "split_k") | (self.work == "cluster_k")

    @of_shape
    def tiles_across(self, g: Gemm) -> tuple[Vector, Vector]:
        """Tiles of a cluster along M and along N; of groups, of one where all are of one size."""
        extents = [max(1, g.M), max(1, g.N)]
        if g.offsets:
            extents[self.swap_ab] = math.ceil(extents[self.swap_ab] / min(g.groups, extents[self.swap_ab]))
        rows, columns = self.cluster_tile
        return ceil_div(extents[0], rows), ceil_div(extents[1], columns)

    @of_shape
    def clusters_of(self, g: Gemm) -> Vector:
        """Tiles of a cluster, in all batches or groups."""
        along_m, along_n = self.tiles_across(g)
        return along_m * along_n * (min(g.groups, max(1, g.N if self.swap_ab else g.M)) if g.offsets else g.batches)

    def tiles(self, g: Gemm) -> Size:
        """Tiles of a cluster, in all batches, over the symbols; `g` is the kernel's view.

        Of groups, the most there can be: one more a group than of all rows, and one more of the rows behind the last.
        """
        rows, columns = self.cluster_shape
        m, n = ("N", "M") if self.swap_ab else ("M", "N")
        if g.offsets:
            cut, across = (self.BN * columns, self.BM * rows) if self.swap_ab else (self.BM * rows, self.BN * columns)
            most: Size = (Dim("M") // cut + Dim("batches0") + 1) * ceil_div_size(Dim("N"), across)
            return most
        count = ceil_div_size(Dim(m), self.BM * rows) * ceil_div_size(Dim(n), self.BN * columns)
        for d in range(len(g.batch)):
            count = count * Dim(f"batches{d}")
        return count

    def sum_count(self, g: Gemm) -> int:
        """Accumulator registers of one instruction's 64 rows."""
        return self.BN // (4 if g.accumulate is f16 else 2)

    def scale_shares(self, g: Gemm) -> tuple[Vector, ...]:
        """How many rows of A's tile, and columns of B's, are sure to have one scale wherever the tile lies."""
        return tuple(gcd(extent, s.outer) for extent, s in zip((self.BM, self.BN), g.scales))

    def scale_counts(self, g: Gemm) -> tuple[Vector, ...]:
        """The scales of a step's tile of A and of B."""
        return tuple(extent // share for extent, share in zip((self.BM, self.BN), self.scale_shares(g)))

    def epilogue_columns(self, problem: Problem) -> Vector:
        """Columns of a tile of results that is stored at once: a box of TMA's; else 32, or what divides BN."""
        by_tma = chosen(self.BN, _STORED) if self.transposed(problem) else gcd(self.BN, 64)
        return where(self.store == "tma", by_tma, gcd(self.BN, 32))

    def epilogue_tiles(self, problem: Problem) -> Vector:
        """Epilogue tiles of a warpgroup's tile: of 64 rows and `epilogue_columns`."""
        return self.rows // 64 * (self.BN // self.epilogue_columns(problem))

    @of_class
    def stage_bytes(self, problem: Problem) -> Vector:
        return (self.BM + self.BN) * self.BK * describe(problem).a.operand.dtype.bytes

    def slot_bytes(self, problem: Problem) -> Vector:
        """Shared memory that a stage takes: its tiles, their scales, two barriers."""
        return self.stage_bytes(problem) + sum(self.scale_counts(self.view(problem))) * 4 + _BARRIERS

    def epilogue_bytes(self, problem: Problem) -> Vector:
        """Shared memory beside the stages: the epilogue's stages, and the order barriers of pingpong."""
        columns = self.epilogue_columns(problem)
        by_tma = self.epilogue_stages * columns * 2
        by_threads = (columns + self.padding(problem)) * 4
        a_row = where(self.store == "tma", by_tma, where(self.store == "shared", by_threads, 0))
        return where(self.pingpong, _BARRIERS, 0) + self.consumers * 64 * a_row

    def smem_bytes(self, problem: Problem) -> Vector:
        """Shared memory of a block."""
        need = self.stages * self.slot_bytes(problem) + self.epilogue_bytes(problem)
        sums = where(self.work == "cluster_k", self.BM * self.BN * 4, 0)
        return maximum(need, maximum(self.transpose_bytes(problem), sums))

    def ring(self, problem: Problem, target: Target) -> Vector:
        """The number of stages that fills shared memory or keeps 180 KB under way; 0 where not even two fit."""
        room = minimum(target.smem_per_block, target.shared_per_sm // self.blocks_per_sm - RESERVED_SHARED)
        most = (room - self.epilogue_bytes(problem)) // self.slot_bytes(problem)
        wanted = 180 * 1024 // self.blocks_per_sm
        found: Vector = 0
        for stages in self.domain("stages"):  # the next as long as too little is under way
            found = where((stages <= most) & (found * self.stage_bytes(problem) < wanted), stages, found)
        return where(self.transpose_bytes(problem) > room, 0, found)

    def transposed(self, problem: Problem) -> bool:
        """Whether the output is contiguous along the kernel's rows."""
        g = self.view(problem)
        return g.outputs[0].column != 1 and g.N > 1

    def vectors_stored(self, problem: Problem) -> int:
        """Elements that a thread can read and write at once of what passes through shared memory: 16 bytes of the widest result,
        where the rows of all that the epilogue reads and writes are aligned so; else one. Groups begin anywhere."""
        g = self.view(problem)
        if g.N <= 1 or self.transposed(problem) or (g.offsets and self.swap_ab):
            return 1
        count = min(8, 16 // max(y.operand.dtype.bytes for y in g.outputs))
        beside = (*(x for x in g.extras if x.column), *g.outputs)
        aligned = all(
            x.column == 1 and x.operand.row_align % min(16, count * x.operand.dtype.bytes) == 0 for x in beside
        )
        return count if aligned else 1

    def stored_together(self, problem: Problem) -> Vector:
        """Neighbours along n that a thread finishes at once: vectors where a stage has 16 columns or more, of which 128 threads
        have some each."""
        return where(self.epilogue_columns(problem) % 16 == 0, self.vectors_stored(problem), 1)

    def padding(self, problem: Problem) -> int:
        """Padding of the rows of a tile of 32-bit results: it keeps its columns, or its rows, in different banks."""
        return 1 if self.transposed(problem) else 8

    def transpose_bytes(self, problem: Problem) -> Vector:
        """Shared memory in which every warp transposes 32 x 32 elements of an operand that is copied to run along K."""
        g = self.view(problem)
        transposed = any(self.k_major(g, side) and not is_k_major(g, side) for side in "ab")
        return (self.consumers + 1) * 4 * 32 * 33 * g.a.operand.dtype.bytes if transposed else 0

    def registers(self, g: Gemm) -> tuple[int, int]:
        """Registers a thread of the producer and of the consumer warpgroups; 0 where all keep what they start with."""
        if self.blocks_per_sm > 1 or self.consumers == 1:
            return 0, 0
        if g.scales:  # their addresses take registers
            return (56, 224) if self.consumers == 2 else (56, 152)
        return (40, 232) if self.consumers == 2 else (32, 160)
