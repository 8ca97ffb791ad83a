"""GEMM on tensor cores through mma.sync or wmma (sm_75 and above): the schedule of templates/gemm_mma.cu.j2."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Source
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.types import DType, bf16, e4m3, e5m2, f16, f32, i8, i32, tf32
from kgen.dsl.vector import Vector, ceil, ceil_div, chosen, maximum, minimum, where
from kgen.ops.gemm import techniques
from kgen.ops.gemm.problem import Gemm, contraction, describe, matches
from kgen.ops.gemm.schedule import (
    GemmContext,
    GemmSchedule,
    context,
    is_k_major,
    is_strided,
    least_arch,
    left_to_wgmma,
    memory_seconds,
    parameters,
    rate_class,
    widest_pack,
)
from kgen.tuning_db.machines import constants

#: The rows and columns of an instruction's results, in its tile of the epilogue's strips.
_RESULTS = {"mma": (16, 8), "wmma": (16, 16), "wmma_m32n8k16": (32, 8), "wmma_m8n32k16": (8, 32)}
#: What mma.sync multiplies. Plain f32 and f64 are not among them: gemm_simt serves those.
OPERANDS = (f16, bf16, tf32, i8, e4m3, e5m2)


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    g: GemmContext
    xor: str
    units: int
    step: int
    mma: str
    sum_type: str
    sum_registers: int
    is_tf32: bool
    operand_a: str
    operand_b: str
    fragment_m: int
    fragment_n: int
    wmma_type: str
    staged_type: str


@dataclass(frozen=True)
class MmaConstants(Constants, model="gemm_mma"):
    """Times in seconds; shares of the rate that is reached by what differs from the best choice."""

    start: float
    fill: float  # of the pipeline, once
    filled: float  # bytes a second at which a block's fills
    rate: float  # of the tensor cores' rate, on sm_90 and sm_100
    rate_before: float  # the same on others
    shared: float  # bytes a clock and SM from shared memory
    reading: float  # the part of the shorter of products and reads that the longer does not hide
    warps: float  # that keep an SM busy
    through_l2: float  # of the bandwidth of device memory
    memory: float  # of the bandwidth of device memory
    scattered: float  # how much longer operands take that are contiguous nowhere
    tail: float  # bytes a clock and SM of results
    split: float  # of adding up shares of a sum
    lesser: float  # the part of the shorter of products and copies that the longer does not hide
    one_stage: float
    two_stages: float
    two_registers: float  # the same, of copies through registers
    one_fragment: float
    wmma: float


class MmaGemm(GemmSchedule):
    """Tensor cores through mma.sync: a pipeline of swizzled or padded tiles in shared memory, a warp tile in registers."""

    template = "gemm_mma.cu.j2"
    target = sm(75)
    techniques = techniques.MMA
    model = MmaConstants
    alike = ("swizzle",)
    by_size = ("splits",)
    last = ("raster", "group")

    # wmma: m16n16k16, of tf32 m16n16k8. The other shapes cut the same products otherwise, of fewer layouts: they are there to be
    # compared, no search takes them.
    instruction = choice("mma", "wmma", allows=("wmma_m32n8k16", "wmma_m8n32k16"))
    BM = choice(64, 16, 32, 128, 256, allows=range(16, 257, 16))
    BN = choice(64, 16, 32, 128, 256, allows=range(16, 257, 16))
    BK = choice(32, 16, 64, 128)
    WM = choice(32, 16, 64, 128)  # tile of a warp
    WN = choice(32, 16, 64, 128)
    copy = choice("cp_async", "register")  # from global to shared memory
    stages = choice(2, 1, 3, 4, 5, allows=range(1, 9))
    swizzle = choice("xor", "pad")
    pack = choice(16, 8, 4, 2, 1)  # elements of one global load, fewer where an operand's alignment asks for it
    splits = choice(1, 2, 4, 8, 16, allows=range(1, 33))  # blocks that share the sum over K
    store = choice("direct", "shuffle", "stmatrix", "shared")
    fragments = choice(
        1, 2
    )  # register buffers of operands; with 2 the next step's are fetched during this step's products
    raster = choice("m", "n")  # the axis along which a group of tiles runs
    group = choice(1, 4, 8, 16, allows=range(1, 65))
    blocks_per_sm = choice(1, 2)  # that registers are limited for

    # What the problem's dtypes and layouts allow.

    @rule
    def dtype_of_the_target(self, problem: Problem, target: Target) -> bool:
        """the operands' dtype needs a newer architecture (bf16, tf32, i8: sm_80; fp8: sm_89)"""
        return self.needs(describe(problem)).runs_on(target.arch)

    @rule
    def copy_of_the_target(self, problem: Problem, target: Target) -> bool:
        """cp.async needs sm_80"""
        return self.copy != "cp_async" or target.arch.sm >= 80

    @rule
    def wmma_dtypes(self, problem: Problem, target: Target) -> bool:
        """wmma is generated for f16, bf16, tf32 and i8, with padded tiles, and stores through shared memory"""
        if self.instruction == "mma":
            return True
        dtype = describe(problem).a.operand.dtype
        return dtype in (f16, bf16, tf32, i8) and self.swizzle == "pad" and self.store == "shared"

    @rule
    @sized
    def wmma_splits(self, problem: Problem, target: Target) -> Vector:
        """wmma is generated without split-K"""
        return (self.instruction == "mma") | (self.splits == 1)

    @rule
    def wmma_shapes(self, problem: Problem, target: Target) -> bool:
        """wmma's m32n8k16 and m8n32k16 are for f16, bf16 and i8, and for warp tiles that they tile"""
        rows, columns = _RESULTS[self.instruction]
        square = self.instruction in ("mma", "wmma") or describe(problem).a.operand.dtype is not tf32
        return square and self.WM % rows == 0 and self.WN % columns == 0

    @rule
    def wmma_alignment(self, problem: Problem, target: Target) -> bool:
        """wmma's fragments of 16 bits begin every 32 bytes: m32n8k16 needs B along K, sums of f32; m8n32k16 A along K"""
        g = describe(problem)
        if self.instruction in ("mma", "wmma") or g.a.operand.dtype is i8:
            return True
        if self.instruction == "wmma_m8n32k16":
            return is_k_major(g, "a")
        return is_k_major(g, "b") and g.accumulate is not f16

    @rule
    def wmma_buffers(self, problem: Problem, target: Target) -> bool:
        """wmma fragments have one buffer"""
        return self.instruction == "mma" or self.fragments == 1

    @rule
    def pack_in_bytes(self, problem: Problem, target: Target) -> bool:
        """a pack is at most 16 bytes, and no wider than the alignment of both operands allows"""
        g = describe(problem)
        return self.pack <= max(widest_pack(g.a), widest_pack(g.b))

    @pruning
    def narrow_packs(self, problem: Problem, target: Target) -> bool:
        """a pack narrower than the operands' alignment allows is kept for the plain kernels of one stage"""
        g = describe(problem)
        return self.stages == 1 or self.pack == max(widest_pack(g.a), widest_pack(g.b))

    # Tiles.

    @rule
    def warps_tile_the_block(self, problem: Problem, target: Target) -> bool:
        """warp tiles must divide the block's tile"""
        return self.BM % self.WM == 0 and self.BN % self.WN == 0

    @rule
    def warps(self, problem: Problem, target: Target) -> bool:
        """a block has 1 to 16 warps"""
        return 1 <= (self.BM // self.WM) * (self.BN // self.WN) <= 16

    @pruning
    def one_warp_tiles(self, problem: Problem, target: Target) -> bool:
        """a single warp takes tiles up to 32 x 32 or 16 x 64; larger ones are shared by 2 warps and more"""
        return (self.BM // self.WM) * (self.BN // self.WN) > 1 or self.BM * self.BN <= 1024

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """a warp's accumulators fit in registers: at most 128 of 32 bits a thread, and 64 with two blocks per SM"""
        registers = self.WM * self.WN // 32
        if describe(problem).accumulate is f16:
            registers //= 2
        return registers <= (64 if self.blocks_per_sm == 2 else 128)

    @rule
    @vectorised
    def registers_of_the_block(self, problem: Problem, target: Target) -> Vector:
        """accumulators and operands of all threads fit in the 65536 registers of a multiprocessor"""
        threads = self.threads
        a_thread = self.WM * self.WN // 32 + self.fragments * (self.WM + self.WN) // 4 + 32
        return threads * self.blocks_per_sm * a_thread <= 65536

    @rule
    def steps(self, problem: Problem, target: Target) -> bool:
        """BK is a multiple of the K of an instruction, and 32 to 128 bytes wide"""
        size = describe(problem).a.operand.dtype.bytes
        return 32 <= self.BK * size <= 128

    @rule
    def buffers_need_steps(self, problem: Problem, target: Target) -> bool:
        """two register buffers need two instructions along BK, and a pipeline of asynchronous copies"""
        wide = self.BK * describe(problem).a.operand.dtype.bytes >= 64
        return self.fragments == 1 or (wide and self.copy == "cp_async" and self.stages >= 2)

    @rule
    @vectorised
    def copies(self, problem: Problem, target: Target) -> Vector:
        """each thread copies at least one pack, and at most 32, of every tile"""
        g = describe(problem)
        a, b = (outer * self.BK // minimum(self.pack, widest_pack(x)) for x, outer in ((g.a, self.BM), (g.b, self.BN)))
        return (2 * minimum(a, b) >= self.threads) & (maximum(a, b) <= 32 * self.threads)

    @rule
    def swizzle_rows(self, problem: Problem, target: Target) -> bool:
        """the xor swizzle needs rows of 32, 64 or a multiple of 128 bytes; and 16-bit elements where a tile runs along M or N"""
        if self.swizzle == "pad":
            return True
        g = describe(problem)
        size = g.a.operand.dtype.bytes
        widths = [self.BK if is_k_major(g, "a") else self.BM, self.BK if is_k_major(g, "b") else self.BN]
        if size != 2 and not (is_k_major(g, "a") and is_k_major(g, "b")):
            return False
        return all(w * size in (32, 64) or w * size % 128 == 0 for w in widths)

    @rule
    def register_stages(self, problem: Problem, target: Target) -> bool:
        """a copy through registers has one or two stages"""
        return self.copy == "cp_async" or self.stages <= 2

    @rule
    def asynchronous_packs(self, problem: Problem, target: Target) -> bool:
        """a pipeline of three and more stages needs asynchronous copies: packs of 4 bytes of at least one operand"""
        g = describe(problem)
        return self.stages <= 2 or any(min(self.pack, widest_pack(x)) * x.operand.dtype.bytes >= 4 for x in (g.a, g.b))

    @rule
    @vectorised
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """`stages` tiles of A and B, or the strips of the epilogue, must fit in the shared memory of a block"""
        return self.smem_bytes(describe(problem)) * self.blocks_per_sm <= target.smem_per_block

    # Order, split and store.

    @pruning
    @sized
    def order_of_one_wave(self, problem: Problem, target: Target) -> Vector:
        """the order of tiles matters only where they take more than one wave, wider groups only across several tiles"""
        g, by_m = describe(problem), self.raster == "m"
        one_wave = self.blocks_of(g) * self.splits <= target.sm_count
        across = where(by_m, ceil_div(g.M, self.BM), ceil_div(g.N, self.BN))
        return where(one_wave, by_m & (self.group == 1), (self.group == 1) | (self.group <= across))

    @pruning
    @sized
    def splits_fill_the_gpu(self, problem: Problem, target: Target) -> Vector:
        """split-K pays only where the tiles alone fill at most one wave, and each part keeps two steps of BK"""
        g = describe(problem)
        pays = (self.blocks_of(g) <= target.sm_count) & (2 * self.BK * self.splits <= g.K)
        return (self.splits == 1) | pays

    @rule
    def shuffled_store(self, problem: Problem, target: Target) -> bool:
        """the shuffled store exchanges groups of four tiles of eight columns, in their natural order"""
        return self.store != "shuffle" or (self.WN % 32 == 0 and not self.permuted(describe(problem), "b"))

    @rule
    def strips(self, problem: Problem, target: Target) -> bool:
        """a store through strips of 16 rows needs the rows of a fragment in their natural order"""
        return self.store not in ("shared", "stmatrix") or not self.permuted(describe(problem), "a")

    @rule
    def stmatrix_store(self, problem: Problem, target: Target) -> bool:
        """stmatrix needs sm_90 and one 16-bit output with contiguous rows, in their natural order"""
        if self.store != "stmatrix":
            return True
        g = describe(problem)
        plain = len(g.outputs) == 1 and g.outputs[0].operand.dtype.bits == 16 and (g.outputs[0].column == 1 or g.N <= 1)
        return target.arch.sm >= 90 and plain and not self.permuted(g, "b")

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        if not matches(problem.graph):
            return False
        product = contraction(problem.graph)
        assert product is not None
        if product.op != "matmul":
            return False
        dtype, total = product.args[0].dtype, product.attr
        return dtype in OPERANDS and total in ((i32,) if dtype is i8 else (f32, f16) if dtype is f16 else (f32,))

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """operands that TMA can address are multiplied best by wgmma, where the target has it"""
        return not left_to_wgmma(problem, target)

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """Instructions, copies, swizzles and packs that are the best wherever they are valid."""
        g = describe(problem)
        pack = max(widest_pack(g.a), widest_pack(g.b))
        swizzled = g.a.operand.dtype.bytes == 2 or all(is_k_major(g, side) for side in "ab")
        copied = target.arch.sm >= 80 and pack * g.a.operand.dtype.bytes >= 4
        return cls.where(
            instruction="mma",
            copy="cp_async" if copied else "register",
            stages=(2, 3) if copied else (2, 1),
            swizzle="xor" if swizzled else "pad",
            pack=pack,
            store=("direct", "stmatrix"),
        )

    # Sizes.

    @property
    def threads(self) -> Vector:
        return (self.BM // self.WM) * (self.BN // self.WN) * 32

    def _fragments(self, g: Gemm, side: str) -> str:
        """How a warp takes its fragments of A or B from shared memory."""
        tile, count = ("TileA", "MMA_M") if side == "a" else ("TileB", "MMA_N / 2")
        if self.permuted(g, side):
            return f"PermutedFragments{side.upper()}<{tile}, {count}>"
        is_a, k_major = str(side == "a").lower(), str(is_k_major(g, side)).lower()
        return f"Fragments<{tile}, {is_a}, {k_major}, UNITS, {count}, BK / STEP>"

    def permuted(self, g: Gemm, side: str) -> bool:
        """Whether fragments of A or B hold rows or columns in another order: 32-bit elements are read four at a time across K."""
        return self.instruction == "mma" and g.a.operand.dtype.bytes == 4 and not is_k_major(g, side)

    def paddings(self, g: Gemm) -> tuple[int, int]:
        """16-byte units between the rows of the tiles of A and B. Two keep 4- and 1-byte elements read across K apart."""
        wide = g.a.operand.dtype.bytes != 2
        one, two = (2 if wide and not is_k_major(g, side) else 1 for side in "ab")
        return (one, two) if self.swizzle == "pad" else (0, 0)

    def tile_bytes(self, g: Gemm) -> Vector:
        """Shared memory of one stage."""
        size = g.a.operand.dtype.bytes
        total: Vector = 0
        for side, outer, padding in zip("ab", (self.BM, self.BN), self.paddings(g)):
            rows, columns = (outer, self.BK) if is_k_major(g, side) else (self.BK, outer)
            total = total + rows * (columns * size + 16 * padding)
        return total

    def staged(self, g: Gemm) -> DType | None:
        """What the epilogue's strips in shared memory hold; None where the store needs none."""
        if self.store == "stmatrix":
            return g.outputs[0].operand.dtype
        if self.store != "shared":
            return None
        return f16 if self.instruction != "mma" and g.accumulate is f16 else i32 if g.accumulate is i32 else f32

    def smem_bytes(self, g: Gemm) -> Vector:
        """Shared memory of a block: the pipeline, or the epilogue's strips after it."""
        half = (self.instruction != "mma") & (g.accumulate is f16)
        width = where(self.store == "stmatrix", g.outputs[0].operand.dtype.bytes, where(half, 2, 4))
        rows = chosen(self.instruction, {name: rows for name, (rows, _) in _RESULTS.items()})
        strips = self.threads // 32 * rows * (self.WN * width + 16)
        staged = (self.store == "stmatrix") | (self.store == "shared")
        return maximum(self.stages * self.tile_bytes(g), where(staged, strips, 0))

    def needs(self, g: Gemm) -> Arch:
        """The least architecture: sm_75 has mma for f16 with eight of K, the rest came with sm_80 and sm_89."""
        dtype = g.a.operand.dtype
        return sm(89) if dtype in (e4m3, e5m2) else sm(75) if dtype is f16 else sm(80)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("K"), self.BK * max(self.stages, 1) * self.splits),)

    def source(self, problem: Problem) -> Source:
        g = describe(problem)
        dtype = g.a.operand.dtype
        old = (
            self.copy == "register" and dtype is f16
        )  # f16 through registers also runs on sm_75: eight of K an instruction
        units = 1 if old else 2
        half_sums = g.accumulate is f16
        total = "f16" if half_sums else "s32" if dtype is i8 else "f32"
        name = {f16: "f16", bf16: "bf16", tf32: "tf32", i8: "s8", e4m3: "e4m3", e5m2: "e5m2"}[dtype]
        mma = f"ptx::mma_m16n8k{units * 16 // dtype.bytes}_{name}_{total}"
        wmma = self.instruction != "mma"
        sum_type = {"f16": "__half" if wmma else "unsigned", "s32": "int", "f32": "float"}[total]
        staged = self.staged(g)
        arch = max(self.needs(g), least_arch(g), sm(80 if self.copy == "cp_async" else 75))
        if wmma and dtype is f16 and self.copy == "register":
            arch = sm(75)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=parameters(g, problem, self.split_workspace(problem)),
            launch=Launch((self.tiles(g) * self.splits, 1, 1), (self.threads, 1, 1), self.smem_bytes(g)),
            arch=max(arch, sm(90)) if self.store == "stmatrix" else arch,
            context=Context(
                g=context(
                    g,
                    problem,
                    self.pack,
                    self.paddings(g),
                    stages=self.stages,
                    copy=self.copy,
                    splits=self.splits,
                    overlapped=self.fragments == 2,
                    evaluate_only=self.store == "stmatrix",
                ),
                xor="true" if self.swizzle == "xor" else "false",
                units=units,
                step=8 if dtype is tf32 else 16,
                mma=mma,
                sum_type=sum_type,
                sum_registers=2 if half_sums else 4,
                is_tf32=dtype is tf32,
                operand_a=self._fragments(g, "a"),
                operand_b=self._fragments(g, "b"),
                fragment_m=_RESULTS[self.instruction][0],
                fragment_n=_RESULTS[self.instruction][1],
                wmma_type="wmma::precision::tf32" if dtype is tf32 else dtype.ctype,
                staged_type=staged.ctype if staged else "",
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Products, and half of the shorter of products and copies, over waves.

        On an H200 mma.sync reaches 62% of the tensor cores' rate, 90% before sm_90, and loses a sixth to its operands' way from
        shared memory, which delivers 128 bytes a clock. See docs/notes/gemm_mma.md for what was measured.
        """
        g, k = describe(problem), constants(MmaConstants, target)
        dtype = g.a.operand.dtype
        size = dtype.bytes
        peak = target.tensor_flops.get(rate_class(dtype, g.accumulate), target.f32_flops)
        peak *= k.rate if target.arch.sm in (90, 100) else k.rate_before
        blocks = self.blocks_of(g) * self.splits
        registers = minimum(255, self.WM * self.WN // 32 + self.fragments * (self.WM + self.WN) // 4 + 40)
        registers = minimum(registers, target.registers_per_sm // (self.threads * self.blocks_per_sm))
        resident = maximum(1, target.resident_blocks(self.threads, registers, self.smem_bytes(g)))
        at_once = minimum(resident, target.waves(blocks))
        turns = target.waves(blocks, resident) * at_once
        k_tiles = ceil(g.K / self.BK / self.splits)
        products = self.BM * self.BN * self.BK * (2 * target.sm_count / peak)
        warps = self.threads // 32
        reads = warps * (self.WM + self.WN) * self.BK * size + self.tile_bytes(g)
        reading = reads / (k.shared * target.clock_hz)
        step = maximum(products, reading) + minimum(products, reading) * k.reading
        step = step / (minimum(1.0, warps * at_once / k.warps) ** 0.5 * self._quality(g, k))
        compute = step * k_tiles * turns
        memory = memory_seconds(g, self.BM, self.BN, target, k.through_l2, k.memory)
        scattered = k.scattered if any(is_strided(x) for x in (g.a, g.b)) else 1.0
        tail = self.BM * self.BN * 4 / (k.tail * target.clock_hz) * turns
        tail = where(self.splits > 1, tail * (3 + self.splits / 2) + k.split, tail)
        fill = k.fill + self.stages * self.tile_bytes(g) / k.filled * target.waves(blocks, resident)
        return k.start + maximum(compute, memory) * scattered + minimum(compute, memory) * k.lesser + tail + fill

    def _quality(self, g: Gemm, k: MmaConstants) -> Vector:
        """How near the choices that cost nothing in the count of operations come to the best of them (measured, H200)."""
        size = g.a.operand.dtype.bytes
        pack = minimum(self.pack, widest_pack(g.a), widest_pack(g.b))
        deep = chosen(self.stages, {1: k.one_stage, 2: k.two_stages, 3: 1.0, 4: 0.98}, 0.96)
        plain = chosen(self.stages, {1: k.one_stage, 2: k.two_registers}, 0.96)
        found = where(self.copy == "cp_async", deep, plain)
        found = found * where(self.fragments == 2, 1.0, k.one_fragment)
        found = found * chosen(self.BK * size, {128: 1.0, 64: 0.95}, 0.85)
        found = found * chosen(self.store, {"stmatrix": 1.0, "direct": 0.99, "shuffle": 0.985, "shared": 0.97})
        found = found * chosen(self.group, {8: 1.0, 4: 0.998, 16: 0.99, 1: 0.985}, 0.985)
        found = found * where(self.raster == "m", 1.0, 0.995) * where(self.swizzle == "xor", 1.0, 0.97)
        found = found * where(self.instruction == "mma", 1.0, k.wmma)
        return found * (0.4 + 0.6 * minimum(1.0, pack * size / 16))
