"""GEMM on CUDA cores: the schedule of templates/gemm_simt.cu.j2. For f32 and f64, and wherever there is no tensor core."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.target import Target, sm
from kgen.dsl.types import f64, tf32
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


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    g: GemmContext


class SimtGemm(GemmSchedule):
    """CUDA cores: tiles in shared memory, TM x TN results a thread. Without stages: no shared memory, one read an operand."""

    template = "gemm_simt.cu.j2"
    target = sm(75)
    techniques = techniques.SIMT

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
    def thread_count(self, problem: Problem, target: Target) -> bool:
        """a block has 32 to 1024 threads"""
        return 32 <= self.threads <= 1024

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """a thread's results fit in its registers: at most 128 of 32 bits, 64 with two blocks per SM"""
        words = self.TM * self.TN * (2 if describe(problem).accumulate is f64 else 1)
        return words <= (64 if self.blocks_per_sm == 2 else 128)

    @rule
    def registers_of_the_block(self, problem: Problem, target: Target) -> bool:
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
        """without shared memory there are no copies, vectors, paddings, K tiles and registers to choose"""
        plain = self.copy == "register" and self.vector == 1 and self.padding == 0 and self.pack == 1
        return self.stages > 0 or (plain and self.BK == 16 and self.blocks_per_sm == 1 and self.TM * self.TN <= 16)

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
    def copies(self, problem: Problem, target: Target) -> bool:
        """each thread copies at most 32 packs of every tile; a pack divides the tile's rows"""
        if self.stages == 0:
            return True
        g = describe(problem)
        for x, outer, side in ((g.a, self.BM, "a"), (g.b, self.BN, "b")):
            pack = min(self.pack, widest_pack(x))
            if (self.BK if is_k_major(g, side) else outer) % pack or outer * self.BK // pack > 32 * self.threads:
                return False
        return True

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """`stages` tiles of A and B must fit in the shared memory of a block"""
        return self.smem_bytes(describe(problem)) * self.blocks_per_sm <= target.smem_per_block

    @pruning
    def order_of_one_wave(self, problem: Problem, target: Target) -> bool:
        """the order of tiles matters only where they take more than one wave, wider groups only across several tiles"""
        g = describe(problem)
        if self.blocks_of(g) <= target.sm_count:
            return self.raster == "m" and self.group == 1
        across = math.ceil(g.M / self.BM) if self.raster == "m" else math.ceil(g.N / self.BN)
        return self.group == 1 or self.group <= across

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
    def default(cls, problem: NormalProblem, target: Target) -> SimtGemm:
        """The best of a short list of tiles by the model: copies through registers, two stages."""
        g = describe(problem)
        if g.scales or g.offsets:
            plain = cls(BM=64, BN=64, BK=16, TM=4, TN=4, copy="register", transpose=False, stages=0, vector=1, padding=0,
                        pack=1, raster="m", group=1, blocks_per_sm=1)  # fmt: skip
            plain.check(problem, target)
            return plain
        pack = min(8, max(widest_pack(g.a), widest_pack(g.b)))
        transposed = is_k_major(g, "a") or is_k_major(g, "b")
        found = []
        for BM, BN, TM, TN in (
            (128, 256, 8, 16),
            (128, 128, 8, 8),
            (64, 64, 4, 4),
            (32, 64, 4, 4),
            (32, 32, 1, 1),
            (16, 16, 1, 1),
        ):
            for vector in (4, 2, 1):
                for BK, stages in ((16, 2), (8, 2), (8, 1)):
                    config = cls(BM=BM, BN=BN, BK=BK, TM=TM, TN=TN, copy="register", transpose=transposed, stages=stages,
                                 vector=vector, padding=1, pack=pack, raster="m", group=1, blocks_per_sm=1)  # fmt: skip
                    if not config.rejections(problem, target):
                        found.append(config)
        if not found:
            raise ConfigError(f"no gemm_simt config is valid for {problem} on {target}")
        return min(found, key=lambda c: c.estimate(problem, target))

    @property
    def threads(self) -> int:
        return (self.BM // self.TM) * (self.BN // self.TN)

    def along_k(self, g: Gemm, side: str) -> bool:
        """Whether the rows of the tile of A ("a") or B ("b") in shared memory run along K."""
        return is_k_major(g, side) and not self.transpose

    def smem_bytes(self, g: Gemm) -> int:
        """Shared memory of a block: `stages` tiles of A and B."""
        size = g.a.operand.dtype.bytes
        total = 0
        for side, outer in (("a", self.BM), ("b", self.BN)):
            rows, columns = (outer, self.BK) if self.along_k(g, side) else (self.BK, outer)
            total += rows * (columns * size + 16 * self.padding)
        return self.stages * total

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("K"), self.BK * max(self.stages, 1)),)

    def source(self, problem: Problem) -> Source:
        g = describe(problem)
        arch = max(least_arch(g), sm(80 if self.copy == "cp_async" else 75))
        paddings = self.padding, self.padding
        shared = context(g, problem, self.pack, paddings, self.transpose, stages=self.stages, copy=self.copy)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=parameters(g, problem),
            launch=Launch((self.tiles(g), 1, 1), (self.threads, 1, 1), self.smem_bytes(g)),
            arch=arch,
            context=Context(shared),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Multiply-adds, a third of the reads from shared memory and half of the copies, over waves; constants fitted on an H200.

        f64 runs at half the f32 rate on data-centre GPUs. Each lane of a warp reads TM + TN operands a step of K, of which shared
        memory delivers 128 bytes a clock.
        """
        g = describe(problem)
        size = g.a.operand.dtype.bytes
        rate = target.f32_flops * (0.5 if g.accumulate is f64 else 1.0)
        blocks = self.blocks_of(g)
        resident = max(
            1,
            min(
                target.shared_per_sm // (self.smem_bytes(g) + 1024),
                target.max_threads_per_sm // self.threads,
                self._by_registers(target),
            ),
        )
        at_once = min(resident, math.ceil(blocks / target.sm_count))
        rounds = math.ceil(blocks / (target.sm_count * resident))
        work = 2 * self.BM * self.BN * g.K * target.sm_count / rate
        warps = self.threads / 32
        reads = warps * g.K * (self.TM + self.TN) * max(size, 4) / 4 / target.clock_hz
        if self.stages == 0:
            quality, reads = 0.5, reads * 8
        else:
            quality = (
                {1: 0.97, 2: 1.0}[self.stages] if self.copy == "register" else {1: 0.5, 2: 0.8}.get(self.stages, 0.85)
            )
            quality *= min(1.0, 0.7 + 0.075 * self.vector * size / 4) * (1.0 if self.padding else 0.95)
            along_k = self.along_k(g, "a") + self.along_k(g, "b")
            quality *= (1 - 0.06 * along_k) * {8: 0.98, 16: 1.0}.get(self.BK, 0.97)
            quality *= 0.6 + 0.4 * min(1.0, self.pack * size / 16)
        quality *= {8: 1.0, 4: 0.999, 16: 0.997, 1: 0.998}[self.group] * (1.0 if self.raster == "m" else 0.998)
        busy = min(1.0, warps * at_once / 8) ** 0.5
        compute = (work + reads / 3) / (quality * busy) * rounds * at_once
        memory = memory_seconds(g, self.BM, self.BN, target)
        return float(3e-6 + max(compute, memory) + min(compute, memory) / 2)

    def _by_registers(self, target: Target) -> int:
        words = 2 if self.TM * self.TN > 128 else 1
        a_thread = min(255, (self.TM * self.TN + 2 * (self.TM + self.TN)) * words + 40)
        return max(self.blocks_per_sm, int(target.registers_per_sm // (a_thread * self.threads)))
