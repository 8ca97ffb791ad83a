"""GEMM on CUDA cores: the schedule of templates/gemm_simt.cu.j2. For f32 and f64, and wherever there is no tensor core."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Source
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size
from kgen.dsl.target import Target, sm
from kgen.dsl.types import f64, tf32
from kgen.dsl.vector import Vector, ceil, ceil_div, chosen, maximum, minimum, where
from kgen.ops.gemm import techniques
from kgen.ops.gemm.problem import Gemm, contraction, describe, matches
from kgen.ops.gemm.schedule import (
    GemmContext,
    GemmSchedule,
    context,
    is_k_major,
    least_arch,
    left_to_wgmma,
    memory_seconds,
    parameters,
    widest_pack,
)
from kgen.tuning_db.machines import constants


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    g: GemmContext


@dataclass(frozen=True)
class SimtConstants(Constants, model="gemm_simt"):
    """Shares of the rate that is reached by what differs from the best choice."""

    start: float  # seconds
    step: float  # seconds that a block waits each step of K, for tiles and for its warps; other blocks hide them
    reads: float  # the part of the reads from shared memory that multiply-adds do not hide
    through_l2: float  # of the bandwidth of device memory
    memory: float  # of the bandwidth of device memory
    lesser: float  # the part of the shorter of compute and memory that the longer does not hide
    warps: float  # that keep an SM busy
    unstaged: float
    one_stage: float
    one_copy: float  # of copies by cp.async: of one stage, of two, of more
    two_copies: float
    copies: float
    along_k: float  # what reads along K cost, each operand
    unpadded: float
    split: float  # seconds, of adding up shares of a sum
    partials: float  # of the bandwidth of device memory, for shares of sums


class SimtGemm(GemmSchedule):
    """CUDA cores: tiles in shared memory, TM x TN results a thread. Without stages: no shared memory, one read an operand."""

    template = "gemm_simt.cu.j2"
    target = sm(75)
    techniques = techniques.SIMT
    model = SimtConstants
    alike = ("transpose",)
    by_size = ("splits",)
    last = ("raster", "group")

    BM = choice(64, 16, 32, 128, 256, allows=range(16, 257, 16))
    BN = choice(64, 16, 32, 128, 256, allows=range(16, 257, 16))
    BK = choice(16, 8, 32, allows=range(4, 65, 4))
    TM = choice(4, 1, 8, 16)  # tile of a thread
    TN = choice(4, 1, 8, 16)
    copy = choice("register", "cp_async")
    transpose = choice(
        True, False
    )  # tiles of operands contiguous along K are transposed, so that threads read along M and N
    stages = choice(2, 0, 1, 3, 4, allows=range(7))
    vector = choice(4, 1, 2, 8)  # elements of one access to shared memory
    padding = choice(1, 0, allows=range(5))  # 16-byte units between rows of a tile
    pack = choice(8, 4, 2, 1)  # elements of one global load, fewer where an operand's alignment asks for it
    splits = choice(1, 2, 4, 8, 16, allows=range(1, 33), absent=1)  # blocks that share the sum over K
    raster = choice("m", "n")
    group = choice(1, 4, 8, 16, allows=range(1, 65))
    blocks_per_sm = choice(1, 2)  # that registers are limited for

    @rule
    def dtype_of_the_target(self, problem: Problem, target: Target) -> bool:
        """the operands' dtype needs a newer architecture (bf16: sm_80; fp8: sm_89)"""
        return least_arch(describe(problem)).runs_on(target.arch)

    @rule
    def copy_of_the_target(self, problem: Problem, target: Target) -> bool:
        """cp.async needs sm_80"""
        return self.copy != "cp_async" or target.arch.sm >= 80

    @rule
    def warps_tile_the_block(self, problem: Problem, target: Target) -> bool:
        """a warp covers 4 TM x 8 TN results, which must divide the block's tile"""
        return self.BM % (4 * self.TM) == 0 and self.BN % (8 * self.TN) == 0

    @rule
    def thread_count(self, problem: Problem, target: Target) -> Vector:
        """a block has 32 to 1024 threads"""
        return 32 <= self.threads <= 1024

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """a thread's results fit in its registers: at most 128 of 32 bits, 64 with two blocks per SM"""
        words = self.TM * self.TN * (2 if describe(problem).accumulate is f64 else 1)
        return words <= (64 if self.blocks_per_sm == 2 else 128)

    @rule
    @vectorised
    def registers_of_the_block(self, problem: Problem, target: Target) -> Vector:
        """results and operands of all threads fit in the 65536 registers of a multiprocessor"""
        words = 2 if describe(problem).accumulate is f64 else 1
        a_thread = (self.TM * self.TN + 2 * (self.TM + self.TN)) * words + 32
        return self.threads * self.blocks_per_sm * a_thread <= 65536

    @pruning
    def square_thread_tiles(self, problem: Problem, target: Target) -> bool:
        """a thread's tile is at most twice as long as wide, as its operands are read from shared memory"""
        return max(self.TM, self.TN) <= 2 * min(self.TM, self.TN)

    @rule
    def plain_without_stages(self, problem: Problem, target: Target) -> bool:
        """without shared memory there are no copies, vectors, paddings, K tiles, registers and splits to choose"""
        plain = self.copy == "register" and self.vector == 1 and self.padding == 0 and self.pack == 1
        plain = plain and self.BK == 16 and self.blocks_per_sm == 1 and self.TM * self.TN <= 16
        return self.stages > 0 or plain

    @rule
    @sized
    def splits_of_tiles(self, problem: Problem, target: Target) -> Vector:
        """blocks share the sums of tiles that pass through shared memory"""
        return (self.splits == 1) | (self.stages > 0)

    @pruning
    @sized
    def splits_fill_the_gpu(self, problem: Problem, target: Target) -> Vector:
        """split-K pays only where the tiles alone leave an SM two blocks or fewer, and each part keeps two steps of BK"""
        g = describe(problem)
        pays = (self.blocks_of(g) <= 2 * target.sm_count) & (2 * self.BK * self.splits <= g.K)
        return (self.splits == 1) | pays

    @rule
    def scaled_without_stages(self, problem: Problem, target: Target) -> bool:
        """operands with scales or groups are multiplied without shared memory: each is scaled, or chosen, as it is read"""
        g = describe(problem)
        return not (g.scales or g.offsets) or self.stages == 0

    @rule
    def register_stages(self, problem: Problem, target: Target) -> bool:
        """a copy through registers has one or two stages"""
        return self.copy == "cp_async" or self.stages <= 2

    @rule
    def transposed_copies(self, problem: Problem, target: Target) -> bool:
        """only copies through registers transpose, and only tiles of operands contiguous along K"""
        g = describe(problem)
        any_k_major = is_k_major(g, "a") or is_k_major(g, "b")
        return not self.transpose or (self.copy == "register" and self.stages > 0 and any_k_major)

    @rule
    def vectors(self, problem: Problem, target: Target) -> bool:
        """a vector is at most 16 bytes and divides BK where a tile runs along K, TM or TN where it runs along M or N"""
        g = describe(problem)
        if self.vector * g.a.operand.dtype.bytes > 16:
            return False
        along = [self.BK if self.along_k(g, "a") else self.TM, self.BK if self.along_k(g, "b") else self.TN]
        return all(size % self.vector == 0 for size in along)

    @rule
    def pack_in_bytes(self, problem: Problem, target: Target) -> bool:
        """a pack is at most 16 bytes, and no wider than the alignment of both operands allows"""
        g = describe(problem)
        return self.pack <= max(widest_pack(g.a), widest_pack(g.b))

    @pruning
    def narrow_packs(self, problem: Problem, target: Target) -> bool:
        """a pack narrower than the operands' alignment allows is kept for the plain kernels of one stage"""
        g = describe(problem)
        return self.stages < 2 or self.pack == min(8, max(widest_pack(g.a), widest_pack(g.b)))

    @rule
    @vectorised
    def copies(self, problem: Problem, target: Target) -> Vector:
        """each thread copies at most 32 packs of every tile; a pack divides the tile's rows"""
        g, fits = describe(problem), True
        for x, outer, side in ((g.a, self.BM, "a"), (g.b, self.BN, "b")):
            pack = minimum(self.pack, widest_pack(x))
            row = self.BK if is_k_major(g, side) else outer
            fits = fits & (row % pack == 0) & (outer * self.BK // pack <= 32 * self.threads)
        return (self.stages == 0) | fits

    @rule
    @vectorised
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """`stages` tiles of A and B must fit in the shared memory of a block"""
        return self.smem_bytes(describe(problem)) * self.blocks_per_sm <= target.smem_per_block

    @pruning
    @sized
    def order_of_one_wave(self, problem: Problem, target: Target) -> Vector:
        """the order of tiles matters only where they take more than one wave, wider groups only across several tiles"""
        g, by_m = describe(problem), self.raster == "m"
        across = where(by_m, ceil_div(g.M, self.BM), ceil_div(g.N, self.BN))
        one_wave = self.blocks_of(g) * self.splits <= target.sm_count
        return where(one_wave, by_m & (self.group == 1), (self.group == 1) | (self.group <= across))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """All but tf32, which is defined by the tensor cores' rounding."""
        product = contraction(problem.graph) if matches(problem.graph) else None
        return product is not None and product.args[0].dtype is not tf32

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """operands that TMA can address are multiplied best by wgmma, where the target has it"""
        return not left_to_wgmma(problem, target)

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """Copies through registers, of the widest packs; with groups or scales what reads both operands from global memory."""
        g = describe(problem)
        if g.scales or g.offsets:
            return cls.where(stages=0, transpose=False, blocks_per_sm=1, splits=1)
        transposed = is_k_major(g, "a") or is_k_major(g, "b")
        pack = min(8, max(widest_pack(g.a), widest_pack(g.b)))
        return cls.where(copy="register", stages=(2, 1), transpose=transposed, padding=1, pack=pack)

    @property
    def threads(self) -> Vector:
        return (self.BM // self.TM) * (self.BN // self.TN)

    def along_k(self, g: Gemm, side: str) -> bool:
        """Whether the rows of the tile of A ("a") or B ("b") in shared memory run along K."""
        return is_k_major(g, side) and not self.transpose

    def smem_bytes(self, g: Gemm) -> Vector:
        """Shared memory of a block: `stages` tiles of A and B."""
        size = g.a.operand.dtype.bytes
        total: Vector = 0
        for side, outer in (("a", self.BM), ("b", self.BN)):
            rows, columns = (outer, self.BK) if self.along_k(g, side) else (self.BK, outer)
            total = total + rows * (columns * size + 16 * self.padding)
        return self.stages * total

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("K"), self.BK * max(self.stages, 1) * self.splits),)

    def source(self, problem: Problem) -> Source:
        g = describe(problem)
        arch = max(least_arch(g), sm(80 if self.copy == "cp_async" else 75))
        paddings = self.padding, self.padding
        shared = context(
            g, problem, self.pack, paddings, self.transpose, stages=self.stages, copy=self.copy, splits=self.splits
        )
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=parameters(g, problem, self.split_workspace(problem)),
            launch=Launch((self.tiles(g) * self.splits, 1, 1), (self.threads, 1, 1), self.smem_bytes(g)),
            arch=arch,
            context=Context(shared),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Multiply-adds and a third of the reads from shared memory of an SM's blocks, or those of one and what it waits, over
        waves; a part of the copies; and what shares of sums take to memory and back. Constants fitted on an H200.

        f64 runs at half the f32 rate on data-centre GPUs. Each lane of a warp reads TM + TN operands a step of K, of which shared
        memory delivers 128 bytes a clock.
        """
        g, k = describe(problem), constants(SimtConstants, target)
        size = g.a.operand.dtype.bytes
        rate = target.f32_flops * (0.5 if g.accumulate is f64 else 1.0)
        blocks = self.blocks_of(g) * self.splits
        k_tiles = ceil(g.K / self.BK / self.splits)
        depth = where(self.splits == 1, g.K, k_tiles * self.BK)
        words = where(self.TM * self.TN > 128, 2, 1)
        registers = minimum(255, (self.TM * self.TN + 2 * (self.TM + self.TN)) * words + 40)
        registers = minimum(registers, target.registers_per_sm // (self.threads * self.blocks_per_sm))
        resident = maximum(1, target.resident_blocks(self.threads, registers, self.smem_bytes(g)))
        at_once = minimum(resident, target.waves(blocks))
        warps = self.threads / 32
        reads = warps * depth * (self.TM + self.TN) * max(size, 4) / 4 / target.clock_hz
        reads = reads * where(self.stages == 0, 8, 1)
        busy = minimum(1.0, warps * at_once / k.warps)
        work = self.BM * self.BN * (2 * depth * target.sm_count / rate)
        work = (work + reads * k.reads) / (self._quality(g, k) * busy)
        compute = target.waves(blocks, resident) * maximum(work * at_once, work + k_tiles * k.step)
        memory = memory_seconds(g, self.BM, self.BN, target, k.through_l2, k.memory)
        shares = blocks * self.BM * self.BN * (2 * g.accumulate.bytes / (k.partials * target.bandwidth))
        adding = where(self.splits > 1, k.split + shares, 0.0)
        return k.start + maximum(compute, memory) + minimum(compute, memory) * k.lesser + adding

    def _quality(self, g: Gemm, k: SimtConstants) -> Vector:
        """How near the choices that cost nothing in the count of operations come to the best of them (measured, H200)."""
        size = g.a.operand.dtype.bytes
        by_register = chosen(self.stages, {1: k.one_stage}, 1.0)
        by_copy = chosen(self.stages, {1: k.one_copy, 2: k.two_copies}, k.copies)
        found = where(self.copy == "register", by_register, by_copy)
        found = found * minimum(1.0, 0.7 + 0.075 * self.vector * size / 4) * where(self.padding > 0, 1.0, k.unpadded)
        along_k = self.along_k(g, "a") + self.along_k(g, "b")
        found = found * (1 - k.along_k * along_k) * chosen(self.BK, {8: 0.97, 16: 1.0}, 0.9)
        found = found * (0.6 + 0.4 * minimum(1.0, self.pack * size / 16))
        found = where(self.stages == 0, k.unstaged, found)
        order = chosen(self.group, {8: 1.0, 4: 0.999, 16: 0.997}, 0.998) * where(self.raster == "m", 1.0, 0.998)
        return found * order
