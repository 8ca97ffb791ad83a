"""GEMV: a matrix by one to eight vectors, bound by memory: the schedule of templates/gemv.cu.j2.

The operand on the small side of the product (rows of A or columns of B, 8 at most) is the vectors, the other one is the
matrix. O is the axis of the matrix that is not K. Two shapes of the kernel: where the matrix is contiguous along K, a load is
`pack` elements of one row and a thread's sums meet those of its lanes; else a load is `pack` columns and a thread owns them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Target, sm
from kgen.dsl.types import DType, e4m3, e5m2, f64, i8, i32, tf32
from kgen.dsl.vector import Vector, ceil_div, floor, log2, maximum, minimum, of_class, sqrt, where
from kgen.ops.gemm import techniques
from kgen.ops.gemm.problem import Gemm, Matrix, contraction, describe, matches
from kgen.ops.gemm.schedule import (
    GemmContext,
    GemmSchedule,
    OperandAccess,
    context,
    is_k_major,
    is_strided,
    least_arch,
    parameters,
    widest_pack,
)
from kgen.tuning_db.machines import constants

#: The most vectors that count as few, and how many bytes of them a block keeps in shared memory at a time.
MOST_VECTORS = 8
_STAGED_BYTES = 16 * 1024


@dataclass(frozen=True)
class Context:
    """What the template sees. `side` is the axis of the vectors, `count` and `outer` are the sizes of that axis and of O."""

    g: GemmContext
    matrix: OperandAccess
    vectors: OperandAccess
    side: str
    count: str
    outer: str
    along_k: bool
    w_strided: bool
    x_stride_k: str
    x_stride_v: str
    x_align: int
    held: str
    part: int
    chunk: int
    pitch: int
    dot: bool
    pair: str


@dataclass(frozen=True)
class View:
    """The problem as matrix and vectors: `side` is "m" where the vectors are rows of A, "n" where they are columns of B."""

    g: Gemm
    side: str

    @property
    def matrix(self) -> Matrix:
        return self.g.b if self.side == "m" else self.g.a

    @property
    def vectors(self) -> Matrix:
        return self.g.a if self.side == "m" else self.g.b

    @property
    def count(self) -> int:
        """How many vectors there are."""
        return self.g.M if self.side == "m" else self.g.N

    @property
    def outer(self) -> int:
        """The size of O."""
        return self.g.N if self.side == "m" else self.g.M

    @property
    def along_k(self) -> bool:
        """Whether a load of the matrix runs along K."""
        return is_k_major(self.g, "b" if self.side == "m" else "a")

    @property
    def dtype(self) -> DType:
        return self.matrix.operand.dtype

    @property
    def sum_bytes(self) -> int:
        return 8 if self.g.accumulate is f64 else 4

    @property
    def bytes(self) -> int:
        """What moves at least: the operands once and the results once."""
        g = self.g
        read = math.prod(n for n, s in zip(g.batch, self.matrix.batch) if s) * self.outer + g.batches * self.count
        return read * g.K * self.dtype.bytes + g.batches * g.M * g.N * sum(y.operand.dtype.bytes for y in g.outputs)


@functools.lru_cache(maxsize=4096)
def view(problem: Problem) -> View:
    """The smaller of M and N are the vectors."""
    g = describe(problem)
    return View(g, "m" if g.M <= g.N else "n")


@dataclass(frozen=True)
class GemvConstants(Constants, model="gemv"):
    """Times in seconds; the others are shares, or how much longer something takes."""

    start: float
    latency: float  # for which an SM's share of the bandwidth is to be under way
    idle: float  # iterations in which a block has nothing in flight while it starts and while its sums meet
    beside: float  # for each halving of 512 bytes that lie beside each other
    few_loads: float  # of one or two vectors, for each halving of 16 loads of a thread
    unrolled: float  # for each doubling beyond four of the loads of one row: their products begin when all are there
    beyond: float  # for each doubling of them beyond four, of what no whole step of a block reads
    staged: float  # vectors in shared memory beside rows along K
    several: float  # two to four of them, of rows along K: their loads and products keep a thread from its next ones
    several_across: float  # the same, of rows across K
    memory: float  # the share of the bandwidth that is reached
    issue: float  # the share of the CUDA cores' rate
    split: float  # blocks that share a sum
    split_each: float
    chunk: float  # of a chunk of vectors in shared memory
    lesser: float  # the part of the shorter of memory and instructions that the longer does not hide


class Gemv(GemmSchedule):
    """A matrix read once, by few vectors on CUDA cores: many 16-byte loads in flight, sums over lanes, warps and blocks."""

    template = "gemv.cu.j2"
    target = sm(75)
    techniques = techniques.GEMV
    model = GemvConstants
    by_size = ("splits",)

    vectors = choice(1, 2, 4, 8)  # that a block multiplies
    pack = choice(8, 16, 4, 2, 1)  # elements of one load of the matrix, fewer where its alignment asks for it
    rows = choice(1, 2, 4, 8)  # a thread: rows of the matrix, or packs of columns
    unroll = choice(4, 1, 2, 8, 16)  # loads in flight of each row; of each pack of columns, one below the other
    threads = choice(256, 64, 128, 512)
    warps = choice(1, 2, 4, 8, 16)  # of a block that share a sum over K
    lanes = choice(32, 1, 2, 4, 8, 16)  # of a warp that share a sum over K
    splits = choice(1, 2, 4, 8, 16, 32)  # blocks that share a sum over K
    staged = choice(False, True)  # the vectors come through shared memory, else each thread reads them by L1
    blocks_per_sm = choice(1, 2, 4)  # that registers are limited for

    # What the problem allows.

    @rule
    def dtype_of_the_target(self, problem: Problem, target: Target) -> bool:
        """the operands' dtype needs a newer architecture (bf16: sm_80; fp8: sm_89)"""
        return least_arch(describe(problem)).runs_on(target.arch)

    @rule
    def pack_in_bytes(self, problem: Problem, target: Target) -> bool:
        """a load is at most 16 bytes, and no wider than the alignment of the matrix allows"""
        return self.pack <= widest_pack(view(problem).matrix)

    @pruning
    def narrow_packs(self, problem: Problem, target: Target) -> bool:
        """a load narrower than the alignment of the matrix allows only costs instructions; half as wide is kept for columns"""
        v = view(problem)
        widest = widest_pack(v.matrix)
        return self.pack == widest or (not v.along_k and 2 * self.pack == widest)

    @pruning
    def vectors_of_the_problem(self, problem: Problem, target: Target) -> bool:
        """all vectors go into one block, as the matrix is read once for each of them, and no more than their power of two"""
        count = max(1, view(problem).count)
        return self.vectors == min(MOST_VECTORS, 1 << (count - 1).bit_length())

    # Threads.

    @rule
    def whole_warps(self, problem: Problem, target: Target) -> bool:
        """the warps that share a sum are at most those of the block"""
        return 32 * self.warps <= self.threads

    @rule
    def loads_of_a_thread(self, problem: Problem, target: Target) -> bool:
        """a thread has at most 16 loads in flight, what it waits for lies in registers"""
        return self.rows * self.unroll <= 16

    @rule
    @sized
    def registers_of_a_thread(self, problem: Problem, target: Target) -> Vector:
        """sums, loads and elements of the vectors fit in the registers of a thread: 65536 over the threads of all `blocks`"""
        return self.registers_of_shares(view(problem)) <= minimum(200, 65536 // (self.threads * self.blocks_per_sm))

    @rule
    def threads_of_the_multiprocessor(self, problem: Problem, target: Target) -> bool:
        """the threads of all `blocks` are at most 1024"""
        return self.threads * self.blocks_per_sm <= 1024

    @rule
    @vectorised
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """the vectors of an iteration, and the sums of all warps, must fit in half of the shared memory of a block"""
        return 2 * self.smem_bytes(view(problem)) <= target.smem_per_block

    # What is never the best.

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """no block is four times as large as the problem, along K or across it, where a smaller one could be"""
        v = view(problem)
        fits = self.outer_tile(v) < 4 * max(v.outer, 1)
        long = self.k_tile(v) * self.splits >= 4 * max(v.g.K, 1)
        least = (self.rows == 1) & (self.threads == 64)
        return where(long, (self.unroll == 1) & (fits | least), fits | (self.rows == 1))

    @pruning
    @sized
    def whole_sectors(self, problem: Problem, target: Target) -> Vector:
        """lanes side by side read at least 64 bytes in a row, where the matrix has so many"""
        v = view(problem)
        beside, size = (self.lanes, v.g.K) if v.along_k else (32 // self.lanes, v.outer)
        return (beside == 32) | (beside * self.pack >= minimum(64 // v.dtype.bytes, size))

    @pruning
    @sized
    def splits_fill_the_gpu(self, problem: Problem, target: Target) -> Vector:
        """split-K pays only where the blocks alone are at most four a multiprocessor, and leaves each an iteration"""
        v = view(problem)
        pays = (self.blocks_of(v.g) <= 4 * target.sm_count) & (self.k_tile(v) * self.splits <= v.g.K)
        return (self.splits == 1) | pays

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """One to eight rows or columns, no scales, no groups; all dtypes but tf32, which the tensor cores' rounding defines."""
        product = contraction(problem.graph) if matches(problem.graph) else None
        if product is None or product.op != "matmul" or describe(problem).scales:
            return False
        return product.args[0].dtype is not tf32 and view(problem).count <= MOST_VECTORS

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """That of all products, the side of the vectors, and to which power of two they are filled up."""
        v = view(problem)
        return super().class_of(problem), v.side, (max(1, v.count) - 1).bit_length()

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """The widest packs; 32 or 8 lanes beside each other in the matrix's rows."""
        v = view(problem)
        return cls.where(pack=widest_pack(v.matrix), lanes=(32, 8) if v.along_k else (1, 4), blocks_per_sm=(1, 2))

    # Sizes.

    def width(self, v: View) -> Vector:
        """Elements of one load of the matrix."""
        return minimum(self.pack, widest_pack(v.matrix))

    @property
    def k_lanes(self) -> Vector:
        """Threads of a block along K."""
        return self.lanes * self.warps

    @property
    def o_lanes(self) -> Vector:
        """Threads of a block along O."""
        return self.threads // self.k_lanes

    def step(self, v: View) -> Vector:
        """Consecutive elements of K that a thread takes."""
        return self.width(v) if v.along_k else self.unroll

    @of_class
    def k_tile(self, v: View) -> Vector:
        """Elements of K of one iteration of a block."""
        return self.step(v) * self.k_lanes * (self.unroll if v.along_k else 1)

    def out(self, v: View) -> Vector:
        """Results of a thread for each vector, before they meet those of other threads."""
        return self.rows * (1 if v.along_k else self.width(v))

    @of_class
    def outer_tile(self, v: View) -> Vector:
        """Results of a block for each vector."""
        return self.o_lanes * self.out(v)

    def dot(self, v: View) -> Vector:
        """Whether four products of bytes take one instruction (dp4a)."""
        return (self.step(v) % 4 == 0) & (v.along_k | (self.width(v) % 4 == 0)) & (v.dtype is i8)

    def held_bytes(self, v: View) -> Vector:
        """Bytes of an element of a vector as it is multiplied."""
        return where(self.dot(v), 1, v.sum_bytes)

    def part(self, v: View) -> Vector:
        """Elements of one access to a vector."""
        widest = 16 // where(self.staged, self.held_bytes(v), v.dtype.bytes)
        return minimum(self.step(v), widest if v.along_k else minimum(widest, 32 // self.vectors))

    def chunk(self, v: View) -> Vector:
        """Iterations for which the vectors are in shared memory."""
        return maximum(1, _STAGED_BYTES // self._iteration_bytes(v))

    def _iteration_bytes(self, v: View) -> Vector:
        return self.vectors * self.k_tile(v) * self.held_bytes(v)

    def pitch(self, v: View) -> Vector:
        """Elements from the sums of a result to those of the next, of all lanes; neighbouring columns lie in other banks."""
        pack = self.width(v)
        return self.o_lanes if v.along_k else self.o_lanes + where(pack > 1, 32 // pack, 0)

    @of_class
    def smem_bytes(self, v: View) -> Vector:
        """Shared memory of a block: the vectors, and then the sums of its warps."""
        sums = self.warps * self.vectors * self.out(v) * self.pitch(v) * v.sum_bytes
        return maximum(sums, where(self.staged, self.chunk(v) * self._iteration_bytes(v), 0))

    @of_class
    def registers(self, v: View) -> Vector:
        """About what a thread needs at least, of a sum that is not shared; the compiler takes more where it may."""
        words, pack = v.sum_bytes // 4, self.width(v)
        loads = self.rows * self.unroll * maximum(1, pack * v.dtype.bytes // 4)
        wide = where(self.dot(v), 0, pack * words * (self.rows if v.along_k else 1))
        addresses = 2 * (self.rows if v.along_k else 1) + where(self.staged, 0, 4 * self.vectors)
        values = maximum(1, self.part(v) * self.held_bytes(v) // 8) * (1 if v.along_k else self.vectors)
        return 22 + self.vectors * self.out(v) * words + loads + wide + values + addresses

    def registers_of_shares(self, v: View) -> Vector:
        """The same, with what sharing a sum takes."""
        return self.registers(v) + where(self.splits == 1, 0, 10)

    def blocks_of(self, g: Gemm) -> Vector:
        v = View(g, "m" if g.M <= g.N else "n")
        return ceil_div(v.count, self.vectors) * ceil_div(v.outer, self.outer_tile(v)) * g.batches

    def tiles(self, g: Gemm) -> Size:
        v = View(g, "m" if g.M <= g.N else "n")
        count, outer = ("M", "N") if v.side == "m" else ("N", "M")
        tiles = ceil_div_size(Dim(count), self.vectors) * ceil_div_size(Dim(outer), self.outer_tile(v))
        for d in range(len(g.batch)):
            tiles = tiles * Dim(f"batches{d}")
        return tiles

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        v = view(problem)
        return ((Dim("K"), self.k_tile(v) * self.splits * (self.chunk(v) if self.staged else 1)),)

    def source(self, problem: Problem) -> Source:
        v = view(problem)
        g = v.g
        workspace = []
        if self.splits > 1:
            tiles, kind = self.tiles(g), contraction(problem.graph)
            assert kind is not None
            workspace = [
                Pointer(
                    "partials", kind.dtype, "", "scratch", tiles * (self.splits * self.vectors * self.outer_tile(v))
                ),
                Pointer("counters", i32, "", "counters", tiles),
            ]
        shared = context(g, problem, self.pack, splits=self.splits)
        matrix, vectors = (shared.b, shared.a) if v.side == "m" else (shared.a, shared.b)
        x_along_k = vectors.k_major == "true"
        strides = (vectors.row_stride, vectors.column_stride)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=parameters(g, problem, workspace),
            launch=Launch((self.tiles(g) * self.splits, 1, 1), (self.threads, 1, 1), self.smem_bytes(v)),
            arch=least_arch(g),
            context=Context(
                g=shared,
                matrix=matrix,
                vectors=vectors,
                side=v.side,
                count=v.side.upper(),
                outer="N" if v.side == "m" else "M",
                along_k=v.along_k,
                w_strided=is_strided(v.matrix),
                x_stride_k=strides[1 if x_along_k else 0],
                x_stride_v=strides[0 if x_along_k else 1],
                x_align=v.vectors.operand.row_align,
                held="signed char" if self.dot(v) else shared.result_type,
                part=self.part(v),
                chunk=self.chunk(v),
                pitch=self.pitch(v),
                dot=self.dot(v),
                pair={e4m3: "__nv_fp8x2_e4m3", e5m2: "__nv_fp8x2_e5m2"}.get(v.dtype, ""),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """The memory floor, stretched where too little is in flight or multiprocessors get unequal shares, or the instructions.

        Instructions are multiply-adds, conversions, and reads of the vectors, at a sixth of the rate: eight vectors of f16 took
        2.3 times as long as full issue slots would. What few loads a thread cost, and vectors in shared memory beside rows along
        K, is from 130 trials of eight matrices (docs/notes/gemv.md), what two vectors along K cost from 18 of one. The others
        were not fitted.
        """
        v, k = view(problem), constants(GemvConstants, target)
        g, size, pack = v.g, v.dtype.bytes, self.width(v)
        outer, depth = max(v.outer, 1), max(g.K, 1)
        blocks = maximum(1, self.blocks_of(g) * self.splits)
        most = target.waves(blocks)
        at_once = minimum(self._resident(v, target), most)
        iterations = ceil_div(depth, self.k_tile(v) * self.splits)
        used = depth / (iterations * self.k_tile(v) * self.splits)
        used = used * (outer / (ceil_div(outer, self.outer_tile(v)) * self.outer_tile(v)))
        in_flight = at_once * self.threads * self.rows * self.unroll * pack * size * used
        in_flight = in_flight * (iterations / (iterations + k.idle))
        enough = in_flight / (k.latency * target.bandwidth / target.sm_count)
        uneven = most * target.sm_count / blocks
        flow = enough / sqrt(sqrt(1 + enough * enough * enough * enough)) / (1 + (uneven - 1) / 2)
        beside = (self.lanes if v.along_k else 32 // self.lanes) * pack * size
        flow = flow / (1 + k.beside * log2(maximum(1.0, 512 / beside)))
        # A thread with many loads under way keeps on while others start and end.
        few = 1 + k.few_loads * log2(maximum(1.0, 16 / (self.rows * self.unroll)))
        flow = flow / where(self.vectors <= 2, few, 1.0)
        if v.along_k:
            # What whole steps leave is loaded where each thread has some: it branches past the others.
            left = (depth - floor(depth / (self.k_tile(v) * self.splits)) * (self.k_tile(v) * self.splits)) / depth
            many = log2(maximum(1.0, self.unroll / 4))
            flow = flow / where(self.staged, k.staged, 1.0 + k.unrolled * many + k.beyond * left * many)
        several = (self.vectors > 1) & (self.vectors <= 4)
        flow = flow / where(several, k.several if v.along_k else k.several_across, 1.0)
        tiles = ceil_div(max(v.count, 1), self.vectors)
        memory = v.bytes * (1 + (tiles - 1) / 2) / (k.memory * target.bandwidth * flow)
        elements = outer * depth * g.batches * tiles / used
        rate = k.issue * target.f32_flops * (0.5 if g.accumulate is f64 else 1.0)
        compute = elements * self._instructions(v) / rate
        tail = where(self.splits > 1, k.split + k.split_each * self.splits, 0.0)
        tail = tail + where(self.staged, k.chunk * ceil_div(iterations, self.chunk(v)) / at_once, 0.0)
        return k.start + maximum(memory, compute) + k.lesser * minimum(memory, compute) + tail

    def _resident(self, v: View, target: Target) -> Vector:
        """Blocks that a multiprocessor has at once."""
        allowed = 65536 // (self.blocks_per_sm * self.threads)
        a_thread = where(self.blocks_per_sm == 1, self.registers_of_shares(v), allowed)
        return maximum(1, target.resident_blocks(self.threads, a_thread, self.smem_bytes(v)))

    @of_class
    def _instructions(self, v: View) -> Vector:
        """Instructions for each element of the matrix."""
        converts = {1: 1.5, 2: 1.0}.get(v.dtype.bytes, 0.0)
        part = self.part(v)
        reads = self.vectors * (1 / part) / (self.rows if v.along_k else self.out(v))
        if 1 not in ((v.vectors.column,) if v.side == "m" else (v.vectors.row,)):
            reads = reads * where(self.staged, 1, 3 * part)  # element by element
        reads = reads + where(self.staged, self.vectors * (converts + 8 / part) / self.outer_tile(v), 0.0)
        by_four = self.vectors / 2 + reads + (0 if v.along_k else 0.5)  # dp4a at half the rate; byte permutations
        widened = where(self.staged, 0.0, converts * self.vectors / (self.rows if v.along_k else self.out(v)))
        scalar = where(self.width(v) * v.dtype.bytes < 4, 2.0, 0.0)
        return where(self.dot(v), by_four, self.vectors + converts + widened + reads + 1.0 / self.width(v) + scalar)
