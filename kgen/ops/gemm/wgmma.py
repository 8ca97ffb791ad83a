"""GEMM on Hopper's tensor cores (sm_90a): the schedule of templates/gemm_wgmma.cu.j2.

TMA brings tiles to shared memory, wgmma multiplies them from there. With `swap_ab` the kernel computes the transposed product:
its A is the problem's B, its rows are the problem's columns. All that follows looks at the problem through `view`, which
has the two exchanged already. Of a grouped product, tiles are cut from each group's rows (or columns, with `swap_ab`) by
themselves, as the offsets in device memory say. What the template is given follows in wgmma_kernel.py, the model of its
time in wgmma_model.py.
"""

from __future__ import annotations

from kgen.codegen.source import Source
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.target import RESERVED_SHARED, Target, clusters, sm
from kgen.dsl.types import f16, f32
from kgen.dsl.vector import Vector, anywhere, at_least, ceil_div, maximum, minimum, negated, where
from kgen.ops.gemm import techniques
from kgen.ops.gemm.problem import describe, exchanged, matches
from kgen.ops.gemm.schedule import WGMMA_OPERANDS, is_k_major
from kgen.ops.gemm.wgmma_kernel import WgmmaKernel
from kgen.ops.gemm.wgmma_model import WgmmaConstants, seconds
from kgen.ops.gemm.wgmma_sizes import CLUSTERS, WgmmaSizes

#: Widths of tiles beside those that other schedules have too: all that wgmma multiplies.
_WIDTHS = (24, 40, 48, 56, 72, 80, 88, 104, 120, 136, 144, 152, 168, 176, 184, 200, 216, 232, 240, 248)


class WgmmaGemm(WgmmaSizes):
    """Hopper: TMA copies, wgmma multiplies, in warpgroups of their own; persistent blocks, clusters that share tiles."""

    template = "gemm_wgmma.cu.j2"
    target = sm(90, "a")
    techniques = techniques.WGMMA
    model = WgmmaConstants
    alike = ("swap_ab",)
    by_class = ("stages",)
    by_size = ("splits", "pdl")
    last = ("raster", "group")

    swap_ab = choice(False, True)  # compute the transposed product
    BM = choice(128, 64, 192, 256)
    BN = choice(128, 256, 8, 16, 32, 64, 96, 112, 160, 192, 208, 224, *_WIDTHS)
    BK = choice(64, 32, 128, 256)
    consumers = choice(2, 1, 3)  # warpgroups that multiply
    pingpong = choice(False, True)  # each takes whole tiles in turn, else they share one
    blocks_per_sm = choice(1, 2)
    cluster = choice(*CLUSTERS)  # blocks along M x N that share tiles by multicast
    # workers take whole tiles; even shares of all steps; even shares of a tile, added up in device memory or in a cluster's
    # shared memory
    work = choice("tiles", "stream_k", "split_k", "cluster_k")
    # workers that share a tile's sum over K, at most (stream_k) or each (split_k, cluster_k)
    splits = choice(1, 2, 4, 8, 16, 32, 64, 128)
    store = choice("tma", "shared", "direct")  # results leave shared memory by TMA or by threads; registers directly
    epilogue_stages = choice(2, 1, 4)  # buffers, of 64 rows each, through which a warpgroup's results reach their store
    stages = choice(4, 2, 3, 5, 6, 7, 8, 10, 12, allows=range(2, 17))
    raster = choice("m", "n")  # the axis along which a group of tiles runs
    group = choice(8, 1, 4, 16, allows=range(1, 65))
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends

    @rule
    @sized
    def no_empty_axis(self, problem: Problem, target: Target) -> Vector:
        """a tensor map has no empty axis"""
        g = self.view(problem)
        return minimum(g.M, g.N, g.K, *g.batch) >= 1

    @rule
    def batch_axes(self, problem: Problem, target: Target) -> bool:
        """a tensor map has five axes: at most three of them count batches"""
        return len(self.view(problem).batch) <= 3

    @rule
    def swizzle_atoms_of_k(self, problem: Problem, target: Target) -> bool:
        """BK is 128 or 256 bytes wide"""
        return self.BK * describe(problem).a.operand.dtype.bytes in (128, 256)

    @rule
    def blocks_of_scales(self, problem: Problem, target: Target) -> bool:
        """a step along K is as deep as the blocks of the operands' scales, which have one or a multiple of 8 rows or columns"""
        scales = self.view(problem).scales
        return all(s.depth == self.BK and (s.outer == 1 or s.outer % 8 == 0) for s in scales)

    @rule
    def rows_of_the_warpgroups(self, problem: Problem, target: Target) -> bool:
        """BM is shared evenly by the warpgroups, 64 rows an instruction, at most 128 each"""
        rows = self.BM if self.pingpong else self.BM // self.consumers
        return (self.pingpong or self.BM % self.consumers == 0) and rows % 64 == 0 and rows <= 128

    @rule
    def swizzle_atoms_of_n(self, problem: Problem, target: Target) -> bool:
        """a tile of B that runs along N has a width of 16, 32 or a multiple of 64"""
        return self.k_major(self.view(problem), "b") or self.BN in (16, 32) or self.BN % 64 == 0

    @rule
    def pingpong_pairs(self, problem: Problem, target: Target) -> bool:
        """ping-pong is for two warpgroups"""
        return not self.pingpong or self.consumers == 2

    @rule
    def turns_from_registers(self, problem: Problem, target: Target) -> bool:
        """an A that goes through registers is read by all warpgroups of a tile while the others multiply: no ping-pong"""
        return not (self.pingpong and self.from_registers(self.view(problem)))

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """accumulators, doubled by scales, and an A from registers fit: 192 a thread, 96 of 3 warpgroups, 64 of 2 blocks"""
        g = self.view(problem)
        count = self.sum_count(g) * self.rows // 64 * (2 if g.scales else 1)
        if self.from_registers(g):
            count += self.rows // 64 * (self.BK // 8) * 4
        return bool(count <= (64 if self.blocks_per_sm == 2 else 96 if self.consumers == 3 else 192))

    @rule
    def two_blocks(self, problem: Problem, target: Target) -> bool:
        """two blocks per SM have one warpgroup each that multiplies, and no cluster"""
        return self.blocks_per_sm == 1 or (self.consumers == 1 and self.cluster == "1x1")

    @rule
    def shared_tiles(self, problem: Problem, target: Target) -> bool:
        """a shared tile is loaded by the blocks that share it, in parts of whole rows of 128 bytes; of operands that do not run
        along K, of whole groups of eight rows"""
        g, (rows, columns) = self.view(problem), self.cluster_shape
        of_a = self.BM % columns if self.k_major(g, "a") else self.BK % (8 * columns)
        return bool(of_a == 0 and (self.BN % rows if self.k_major(g, "b") else self.BK % (8 * rows)) == 0)

    @rule
    @vectorised
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """`stages` tiles of A and B and `epilogue_stages` tiles of the results must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        fits = self.blocks_per_sm * (need + RESERVED_SHARED) <= target.shared_per_sm
        return (need <= target.smem_per_block) & fits

    @rule
    def grouped_work(self, problem: Problem, target: Target) -> bool:
        """tiles of groups are whole work, and stored through shared memory: TMA would write the next group's rows"""
        return not self.view(problem).offsets or (self.work == "tiles" and self.store == "shared")

    @rule
    def shared_sums(self, problem: Problem, target: Target) -> bool:
        """a sum is shared in 32-bit accumulators, by warpgroups that share tiles"""
        return self.work == "tiles" or (not self.pingpong and describe(problem).accumulate is f32)

    @rule
    @sized
    def split_sums(self, problem: Problem, target: Target) -> Vector:
        """a sum is shared by steps of BK"""
        k_tiles = ceil_div(describe(problem).K, self.BK)
        steps = self.clusters_of(self.view(problem)) * k_tiles
        shared = (self.splits > 1) & (self.splits <= k_tiles) & (steps < 2**31)
        return where(self.shares()[0], self.splits == 1, shared)

    @rule
    def waiting_clusters(self, problem: Problem, target: Target) -> bool:
        """blocks that all wait for each other, for sums or copied operands, are in clusters of two at most: of larger ones it is
        not known how many are there at once"""
        waits = self.through_memory or self.copies(self.view(problem))
        return not waits or (self.cluster_size <= 2 and self.work != "cluster_k")

    @rule
    def split_stores(self, problem: Problem, target: Target) -> bool:
        """workers that share a tile evenly share no tiles of A and B, and store their shares directly"""
        return not self.splits_tiles or (self.cluster == "1x1" and self.store == "direct")

    @rule
    @sized
    def split_clusters(self, problem: Problem, target: Target) -> Vector:
        """a cluster that shares a tile's sum has at most eight blocks, one a multiprocessor"""
        return negated(self.work == "cluster_k") | ((self.splits <= 8) & (self.blocks_per_sm == 1))

    @rule
    @sized
    def split_clusters_at_once(self, problem: Problem, target: Target) -> Vector:
        """clusters that share tiles' sums are all there at once"""
        tiles = self.clusters_of(self.view(problem))
        return negated(self.work == "cluster_k") | (tiles <= clusters(target.sm_count, self.splits))

    @rule
    @sized
    def split_at_once(self, problem: Problem, target: Target) -> Vector:
        """workers that share a tile evenly through device memory are all there at once"""
        fits = self.clusters_of(self.view(problem)) * self.splits <= target.sm_count * self.blocks_per_sm
        return negated(self.work == "split_k") | fits

    @rule
    def tma_store(self, problem: Problem, target: Target) -> bool:
        """results leave by TMA where rows, not of groups, are multiples of 16 bytes, in place and in length: it writes no less"""
        return self.store != "tma" or self.tma_stores(self.view(problem))

    @rule
    def epilogue_store(self, problem: Problem, target: Target) -> bool:
        """TMA stores one output of 16-bit elements, from `epilogue_stages` buffers, no more than it fills; else there is one"""
        if self.store != "tma":
            return self.epilogue_stages == 1
        y = self.view(problem).outputs
        return len(y) == 1 and y[0].operand.dtype.bits == 16 and self.epilogue_stages <= self.epilogue_tiles(problem)

    @rule
    def direct_store(self, problem: Problem, target: Target) -> bool:
        """registers are stored directly as 32-bit results; where they are converted first, wgmma would be serialised (C7514)"""
        if self.store != "direct" or self.splits_tiles:
            return True
        wide = all(y.operand.dtype.bits == 32 for y in self.view(problem).outputs)
        return wide and not any(n.op == "cast" for n in problem.graph.nodes)

    @rule
    @sized
    def overlapping_start(self, problem: Problem, target: Target) -> Vector:
        """a kernel that copies an operand first reads before it waits for the kernel before it"""
        return negated(self.pdl) | (not self.copies(self.view(problem)))

    # What is never the best.

    @pruning
    @sized
    def overlapping_ends(self, problem: Problem, target: Target) -> Vector:
        """kernels overlap, unless few blocks read much: the next kernel's would then crowd on what multiprocessors are left"""
        return self.pdl == self.may_overlap(problem, target)

    @pruning
    def best_store(self, problem: Problem, target: Target) -> bool:
        """16-bit results leave by TMA where they can, but where matrices are read beside them by aligned vectors; all others
        through shared memory or directly"""
        g = self.view(problem)
        y, reads = g.outputs, any(x.row and x.column for x in g.extras)
        by_tma = len(y) == 1 and y[0].operand.dtype.bits == 16 and self.tma_stores(g)
        by_tma = by_tma and not (reads and self.vectors_stored(problem) > 1)
        return self.splits_tiles or (self.store == "tma") == by_tma

    @pruning
    def operands_in_registers(self, problem: Problem, target: Target) -> bool:
        """beside an epilogue that reads matrices and stores by TMA 144 accumulators a thread fit, 128 where it reads more; beside
        one that reads anything, or has several results, and stores through shared memory 160: else ptxas spilled"""
        g = self.view(problem)
        count = self.sum_count(g) * self.rows // 64
        if self.store == "tma":
            reads = any(x.row and x.column for x in g.extras)
            return not reads or count <= (144 if len(g.extras) == 1 else 128)
        return self.store != "shared" or len(g.extras) + len(g.outputs) == 1 or count <= 160

    @pruning
    def boxes_of_wide_tiles(self, problem: Problem, target: Target) -> bool:
        """tiles of more than 64 columns leave through shared memory by 16 columns at least, a barrier each; by 32 where threads
        store vectors: by 16 a product took twice as long"""
        vectors = self.store == "shared" and self.vectors_stored(problem) > 1
        return self.BN <= 64 or self.store == "direct" or self.epilogue_columns(problem) >= (32 if vectors else 16)

    @pruning
    def two_buffers(self, problem: Problem, target: Target) -> bool:
        """tiles that are no multiple of 64 columns leave through two buffers at most: more were not timed"""
        return self.epilogue_stages <= 2 or self.BN % 64 == 0

    @pruning
    @vectorised
    def deep_pipelines(self, problem: Problem, target: Target) -> Vector:
        """the ring of stages takes the shared memory there is, up to 12 stages or 180 KB in flight; two are too few"""
        return (self.stages == self.ring(problem, target)) & (self.stages > 2)

    @pruning
    @sized
    def order_of_tiles(self, problem: Problem, target: Target) -> Vector:
        """groups, but those of 8, are no wider than the tiles across; in one wave they run along M"""
        g = self.view(problem)
        one_wave = self.clusters_of(g) * self.cluster_size <= target.sm_count
        by_m = self.raster == "m"
        fits = (self.group == 1) | (self.group <= where(by_m, *self.tiles_across(g)))
        return where(one_wave, by_m & (fits | (self.group == 8)), fits)

    @pruning
    @sized
    def swapped_where_it_pays(self, problem: Problem, target: Target) -> Vector:
        """the transposed product is computed where M (a group's) is at most 256 and less than N, where that saves copying an
        operand, or where it makes tiles whose extent along M is no multiple of 64"""
        g, swapped = describe(problem), exchanged(problem)
        saved = sum(self.needs_copy(g, side) - self.needs_copy(swapped, side) for side in "ab")
        if not self.swap_ab or saved > 0:
            return True
        rows = ceil_div(g.M, g.groups)
        return ((rows <= 256) & (rows < g.N)) | ((self.BN > 64) & (self.BN % 64 != 0))

    @pruning
    @sized
    def rows_of_the_instruction(self, problem: Problem, target: Target) -> Vector:
        """a product of at most 32 rows, which run along K, is computed transposed where that copies no more operands: of the 64
        rows of an instruction most would be padding"""
        g, swapped = describe(problem), exchanged(problem)
        more = sum(self.needs_copy(swapped, side) - self.needs_copy(g, side) for side in "ab")
        if self.swap_ab or more > 0 or not is_k_major(g, "a") or g.offsets or g.scales:
            return True
        return (g.M > 32) | (g.N <= 32)

    @pruning
    @sized
    def not_too_wide(self, problem: Problem, target: Target) -> Vector:
        """a tile is at most the next power of two or multiple of 32 that covers the product"""
        g = self.view(problem)
        covering = at_least(g.N, (8, 16, *range(32, 257, 32)), 256)
        return (covering >= self.BN) & ((self.BM <= 64) | (self.BM // 2 < g.M))

    @pruning
    def large_tiles_of_clusters(self, problem: Problem, target: Target) -> bool:
        """clusters share tiles from 64 x 64"""
        return self.cluster == "1x1" or self.BM * self.BN >= 64 * 64

    @pruning
    def large_clusters(self, problem: Problem, target: Target) -> bool:
        """clusters of more than two blocks share tiles whose rows begin inside lines, of which neighbours share less, or tiles of
        64 rows and 64 columns or more, which take long to copy beside their products; of 64 rows 128 columns at most"""
        narrow = (self.BM, self.BK, self.consumers) == (64, 64, 1) and self.BN >= 64
        shared = narrow or any(self.inside_lines(self.view(problem)))
        return self.cluster_size <= 2 or (shared and (self.BM > 64 or self.BN <= 128))

    @pruning
    def parts_of_shared_tiles(self, problem: Problem, target: Target) -> bool:
        """tiles are shared in parts of whole groups of eight rows, but for rows that begin inside sectors: 1000 x 1000 is an even
        wave of 128 x 72"""
        rows, columns = self.cluster_shape
        return any(self.inside_sectors(self.view(problem))) or (
            self.BM % (8 * columns) == 0 and self.BN % (8 * rows) == 0
        )

    @pruning
    @sized
    def whole_clusters(self, problem: Problem, target: Target) -> Vector:
        """the blocks of a cluster all have a tile"""
        g, (rows, columns) = self.view(problem), self.cluster_tile
        return (rows - self.BM < g.M) & (columns - self.BN < g.N)

    @pruning
    @sized
    def shares_of_idle_workers(self, problem: Problem, target: Target) -> Vector:
        """a sum is shared only where whole tiles leave a good part of a wave idle"""
        workers, tiles = self.clusters_at_once(target), self.clusters_of(self.view(problem))
        return self.shares()[0] | (tiles < 0.9 * workers * ceil_div(tiles, workers))

    @pruning
    @sized
    def shares_fill_the_gpu(self, problem: Problem, target: Target) -> Vector:
        """a sum is shared by workers that are there at once or that leave none idle, and each share keeps two steps"""
        whole, _, split = self.shares()
        steps = ceil_div(describe(problem).K, self.BK)
        fitting = self.fitting_splits(problem, target)
        even = (self.splits == fitting) | (self.splits == fitting // 2)
        filling = (self.splits == maximum(2, fitting)) | (self.splits == self.filling_splits(problem, target))
        return whole | (where(split, even, filling) & (2 * self.splits <= steps))

    @pruning
    def split_clusters_of_small_tiles(self, problem: Problem, target: Target) -> bool:
        """clusters share the sums of tiles of 64 rows"""
        return self.work != "cluster_k" or self.BM == 64

    @pruning
    def few_columns_few_warpgroups(self, problem: Problem, target: Target) -> bool:
        """three warpgroups multiply tiles of 192 rows"""
        return (self.consumers == 3) == (self.BM == 192)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        if not matches(problem.graph):
            return False
        g = describe(problem)
        dtype, total = g.a.operand.dtype, g.accumulate
        if g.offsets and dtype.bits != 16:
            return False
        return dtype in WGMMA_OPERANDS and total in ((f32, f16) if dtype is f16 else (f32,))

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        if field == "stages":
            return (self.ring(problem, target),)
        if field == "pdl":
            return (self.may_overlap(problem, target),)
        whole, stream, split = self.shares()
        if not anywhere(stream | split):
            return (1,)
        fitting = self.fitting_splits(problem, target)
        least, filling = maximum(2, fitting), self.filling_splits(problem, target)
        first = where(whole, 1, where(stream, least, fitting))
        return first, where(split, fitting // 2, where(stream & (filling != least), filling, 0))

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("K"), self.BK * self.stages * self.splits),)

    def source(self, problem: Problem) -> Source:
        return WgmmaKernel(self, problem).source()

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Seconds, by wgmma_model.py."""
        return seconds(self, problem, target)
