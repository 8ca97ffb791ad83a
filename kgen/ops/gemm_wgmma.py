"""GEMM on Hopper's tensor cores (sm_90a): the schedule of templates/gemm_wgmma.cu.j2.

TMA brings tiles to shared memory, wgmma multiplies them from there. With `swap` the kernel computes the transposed product:
its A is the problem's B, its rows are the problem's columns. All that follows looks at the problem through `view`, which
has the two exchanged already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import choice, pruning, rule, sm
from kgen.dsl.size import Dim, Size, maximum, minimum
from kgen.dsl.types import DType, bf16, e4m3, e5m2, f16, f32, i32, tf32
from kgen.ops.gemm import Gemm, Matrix, contraction, describe, matches
from kgen.ops.gemm_schedule import GemmContext, GemmSchedule, context, is_k_major, is_strided, matrix_names, rate_class, touched

OPERANDS = (f16, bf16, tf32, e4m3, e5m2)
#: Bytes of shared memory of a block that barriers take, and what the GPU keeps for itself.
_BARRIERS, _RESERVED = 16, 1024


@dataclass(frozen=True)
class Side:
    """A or B as the template sees it; `first` and `extent` of its rows or columns, `batch` its batch coordinates."""

    side: str
    map: str
    ctype: str
    k_major: str
    row_bytes: int
    first: str
    extent: str
    shared: bool
    batch: str


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    g: GemmContext
    a: Side
    b: Side
    cluster: int
    cluster_m: int
    cluster_n: int
    producer_registers: int
    consumer_registers: int
    sum_type: str
    sum_count: int
    half_sums: bool
    wgmma: str
    turned: bool
    slab: int
    pair: int
    swizzled_row: str
    output_batch: str


class WgmmaGemm(GemmSchedule):
    """Hopper: TMA copies, wgmma multiplies, in warpgroups of their own; blocks that stay, clusters that share tiles."""

    template = "gemm_wgmma.cu.j2"
    target = sm(90, "a")

    swap = choice(False, True)  # compute the transposed product
    BM = choice(128, 64, 192, 256)
    BN = choice(128, 256, 8, 16, 32, 64, 96, 112, 160, 192, 208, 224)
    BK = choice(64, 32, 128, 256)
    consumers = choice(2, 1, 3)  # warpgroups that multiply
    pingpong = choice(False, True)  # they take whole tiles by turns, else they share one
    blocks = choice(1, 2)  # blocks a multiprocessor
    cluster = choice("1x1", "2x1", "1x2")  # blocks along M x N that share tiles by multicast
    splits = choice(1, 2, 4, 8, 16, 32)  # up to so many workers share a tile's sum over K
    store = choice("tma", "direct")
    slabs = choice(2, 1, 4)  # of 64 rows in which a warpgroup's results wait for their store
    stages = choice(4, 2, 3, 5, 6, 7, 8, 10, 12)
    raster = choice("m", "n")  # the axis along which a group of tiles runs
    group = choice(8, 1, 4, 16)

    # What the problem allows.

    @rule
    def rows_of_16_bytes(self, problem: Problem, target: Any) -> bool:
        """TMA needs operands whose rows and address are multiples of 16 bytes, and no empty axis"""
        g = self.view(problem)
        plain = all(not is_strided(x) and x.operand.row_align >= 16 for x in (g.a, g.b))
        return plain and min(g.M, g.N, g.K) >= 1

    @rule
    def across_k(self, problem: Problem, target: Any) -> bool:
        """only 16-bit operands may run along M or N, those of 8 and 32 bits run along K"""
        g = self.view(problem)
        return g.a.operand.dtype.bits == 16 or (is_k_major(g, "a") and is_k_major(g, "b"))

    @rule
    def batch_axes(self, problem: Problem, target: Any) -> bool:
        """a tensor map has five axes: at most three of them count batches"""
        return len(self.view(problem).batch) <= 3

    # Tiles.

    @rule
    def slabs_of_k(self, problem: Problem, target: Any) -> bool:
        """BK is 128 or 256 bytes wide"""
        return self.BK * describe(problem).a.operand.dtype.bytes in (128, 256)

    @rule
    def rows_of_the_warpgroups(self, problem: Problem, target: Any) -> bool:
        """BM is shared evenly by the warpgroups, 64 rows an instruction, at most 128 each"""
        rows = self.BM if self.pingpong else self.BM // self.consumers
        return (self.pingpong or self.BM % self.consumers == 0) and rows % 64 == 0 and rows <= 128

    @rule
    def slabs_of_n(self, problem: Problem, target: Any) -> bool:
        """a tile of B that runs along N has a width of 16, 32 or a multiple of 64"""
        return is_k_major(self.view(problem), "b") or self.BN in (16, 32) or self.BN % 64 == 0

    @rule
    def turns(self, problem: Problem, target: Any) -> bool:
        """ping-pong is for two warpgroups"""
        return not self.pingpong or self.consumers == 2

    @rule
    def accumulators(self, problem: Problem, target: Any) -> bool:
        """accumulators fit in registers: 208 a thread with one or two warpgroups, 128 with three, 64 with two blocks"""
        count = self.sum_count(describe(problem)) * self.rows // 64
        return count <= (64 if self.blocks == 2 else 128 if self.consumers == 3 else 208)

    @rule
    def two_blocks(self, problem: Problem, target: Any) -> bool:
        """two blocks a multiprocessor have one warpgroup each that multiplies, and no cluster"""
        return self.blocks == 1 or (self.consumers == 1 and self.cluster == "1x1")

    @rule
    def shared_tiles(self, problem: Problem, target: Any) -> bool:
        """a shared tile is loaded by both blocks of the cluster, in halves of whole groups of eight rows"""
        if self.cluster == "1x1":
            return True
        side, extent = ("b", self.BN) if self.cluster == "2x1" else ("a", self.BM)
        return not is_k_major(self.view(problem), side) or extent % 16 == 0

    @rule
    def fits_smem(self, problem: Problem, target: Any) -> bool:
        """`stages` tiles of A and B and the slabs of the results must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        return need <= target.smem_per_block and self.blocks * (need + _RESERVED) <= target.shared_per_sm

    # Work and store.

    @rule
    def split_sums(self, problem: Problem, target: Any) -> bool:
        """a sum is split by steps of BK, in 32-bit accumulators, by warpgroups that share tiles"""
        g = describe(problem)
        k_tiles = math.ceil(g.K / self.BK)
        steps = self.clusters_of(self.view(problem)) * k_tiles
        return self.splits == 1 or (self.splits <= k_tiles and not self.pingpong and g.accumulate is f32 and steps < 2**31)

    @rule
    def tma_store(self, problem: Problem, target: Any) -> bool:
        """TMA stores one output of 16-bit elements whose rows and address are multiples of 16 bytes"""
        if self.store == "direct":
            return True
        g = self.view(problem)
        y = g.outputs[0]
        plain = len(g.outputs) == 1 and y.operand.dtype.bits == 16 and y.operand.row_align >= 16
        return plain and not is_strided(y) and self.tile_slabs(problem) % self.slabs == 0

    @rule
    def direct_store(self, problem: Problem, target: Any) -> bool:
        """slabs are for TMA stores"""
        return self.store == "tma" or self.slabs == 1

    # What is never the best.

    @pruning
    def store_by_tma(self, problem: Problem, target: Any) -> bool:
        """a TMA store is taken where one is possible"""
        if self.store == "tma":
            return True
        g = self.view(problem)
        y = g.outputs[0]
        return len(g.outputs) > 1 or y.operand.dtype.bits != 16 or y.operand.row_align < 16 or is_strided(y)

    @pruning
    def deep_pipelines(self, problem: Problem, target: Any) -> bool:
        """the ring of stages takes the shared memory there is, up to 8 stages or 160 KB in flight"""
        stage = self.stage_bytes(problem)
        room = min(target.smem_per_block, target.shared_per_sm // self.blocks - _RESERVED)
        fitting = [s for s in self.fields["stages"].values if self.smem_bytes(problem, s) <= room]
        enough = [s for s in fitting if s * stage >= 160 * 1024 // self.blocks or s >= 8]
        return self.stages == (min(enough) if enough else max(fitting, default=0))

    @pruning
    def order_of_one_wave(self, problem: Problem, target: Any) -> bool:
        """the order of tiles matters only where they take more than one wave, wider groups only across several tiles"""
        g = self.view(problem)
        if self.clusters_of(g) * self.cluster_size <= target.sm_count:
            return self.raster == "m" and self.group == 1
        rows, columns = self.cluster_shape
        across = math.ceil(g.M / (self.BM * rows)) if self.raster == "m" else math.ceil(g.N / (self.BN * columns))
        return self.group == 1 or self.group <= across

    @pruning
    def swapped_for_narrow_products(self, problem: Problem, target: Any) -> bool:
        """the transposed product is computed where M is at most 256 and less than N"""
        g = describe(problem)
        return not self.swap or (g.M <= 256 and g.M < g.N)

    @pruning
    def not_too_wide(self, problem: Problem, target: Any) -> bool:
        """a tile is at most the next of its domain that covers the product"""
        g = self.view(problem)
        covering = min((n for n in self.fields["BN"].values if n >= g.N), default=256)
        return self.BN <= covering and (self.BM <= 64 or self.BM // 2 < g.M)

    @pruning
    def clusters_of_large_tiles(self, problem: Problem, target: Any) -> bool:
        """clusters share tiles where there are more blocks than half a wave, of tiles from 128 x 64"""
        if self.cluster == "1x1":
            return True
        g = self.view(problem)
        rows, columns = self.cluster_shape
        fits = math.ceil(g.M / self.BM) >= rows and math.ceil(g.N / self.BN) >= columns
        return fits and self.BM * self.BN >= 128 * 64

    @pruning
    def splits_fill_the_gpu(self, problem: Problem, target: Any) -> bool:
        """a sum is split only where the tiles leave a good part of a wave idle, and each part keeps four steps"""
        if self.splits == 1:
            return True
        g = self.view(problem)
        workers = target.sm_count * self.blocks // self.cluster_size
        waves = self.clusters_of(g) / workers
        filled = waves / math.ceil(waves)
        return filled < 0.9 and 4 * self.splits <= math.ceil(g.K / self.BK) and (waves > 0.5 or self.splits * waves <= 2)

    @pruning
    def few_columns_few_warpgroups(self, problem: Problem, target: Any) -> bool:
        """three warpgroups multiply tiles of 192 rows"""
        return (self.consumers == 3) == (self.BM == 192)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        if not matches(problem.graph):
            return False
        product = contraction(problem.graph)
        assert product is not None
        dtype, total = product.args[0].dtype, product.attr
        return dtype in OPERANDS and total in ((f32, f16) if dtype is f16 else (f32,))

    @classmethod
    def default(cls, problem: Problem, target: Any) -> WgmmaGemm:
        """The best by the model of a short list of tiles, plain and swapped, with and without split sums."""
        size = describe(problem).a.operand.dtype.bytes
        tiles = [(128, 256, 2), (128, 128, 2), (128, 192, 2), (256, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1)]
        tiles += [(128, n, 2) for n in (8, 16, 32)] + [(64, n, 1) for n in (8, 16, 32)]
        found = []
        for BM, BN, consumers in tiles:
            for depth, swap, splits, cluster in _product((128, 256), (False, True), (1, 2, 4, 8), ("1x1", "2x1")):
                for store, slabs in (("tma", 2), ("tma", 1), ("direct", 1)):
                    for stages in (8, 7, 6, 5, 4, 3, 2):
                        config = cls(swap=swap, BM=BM, BN=BN, BK=depth // size, consumers=consumers, pingpong=False,
                                     blocks=1, cluster=cluster, splits=splits, store=store, slabs=slabs, stages=stages,
                                     raster="m", group=1)  # fmt: skip
                        if config.fits_smem(problem, target):
                            grouped = config.replace(group=8)
                            found += [c for c in (config, grouped) if not c.rejections(problem, target)]
                            break
        if not found:
            raise ConfigError(f"no gemm_wgmma config is valid for {problem} on {target}")
        return min(found, key=lambda c: c.estimate(problem, target))

    # Sizes.

    def view(self, problem: Problem) -> Gemm:
        """The problem as the kernel sees it: with A and B exchanged where `swap` says so."""
        return exchanged(problem) if self.swap else describe(problem)

    @property
    def rows(self) -> int:
        """Rows of a warpgroup."""
        return self.BM if self.pingpong else self.BM // self.consumers

    @property
    def cluster_shape(self) -> tuple[int, int]:
        rows, columns = map(int, self.cluster.split("x"))
        return rows, columns

    @property
    def cluster_size(self) -> int:
        return 1 if self.cluster == "1x1" else 2

    def clusters_of(self, g: Gemm) -> int:
        """Tiles of a cluster, in all batches."""
        rows, columns = self.cluster_shape
        return math.ceil(g.M / (self.BM * rows)) * math.ceil(g.N / (self.BN * columns)) * g.batches

    def sum_count(self, g: Gemm) -> int:
        """Accumulator registers of one instruction's 64 rows."""
        return self.BN // (4 if g.accumulate is f16 else 2)

    def slab(self, problem: Problem) -> int:
        """Columns of a slab of the results: 64, or what divides BN."""
        return math.gcd(self.BN, 64)

    def tile_slabs(self, problem: Problem) -> int:
        """Slabs of a warpgroup's tile."""
        return self.rows // 64 * (self.BN // self.slab(problem))

    def stage_bytes(self, problem: Problem) -> int:
        return (self.BM + self.BN) * self.BK * describe(problem).a.operand.dtype.bytes

    def smem_bytes(self, problem: Problem, stages: int | None = None) -> int:
        """Shared memory of a block: the ring of stages, the slabs of the results, two barriers a stage."""
        stages = stages or self.stages
        slabs = self.consumers * self.slabs * 64 * self.slab(problem) * 2 if self.store == "tma" else 0
        return stages * (self.stage_bytes(problem) + _BARRIERS) + slabs + (_BARRIERS if self.pingpong else 0)

    def registers(self) -> tuple[int, int]:
        """Registers a thread of the copying and of the multiplying warpgroups; 0 where all keep what they start with."""
        if self.blocks > 1 or self.consumers == 1:
            return 0, 0
        return (40, 232) if self.consumers == 2 else (32, 160)

    # The kernel.

    def source(self, problem: Problem) -> Source:
        g = self.view(problem)
        names = matrix_names(g)
        dtype = g.a.operand.dtype
        half_sums = g.accumulate is f16
        turned = self.store == "tma" and g.outputs[0].column != 1 and g.N > 1
        sides = tuple(self._side(g, side, name) for side, name in zip("ab", names))
        params: list[Param] = [self._map(g, side, name) for side, name in zip("ab", names)]
        outputs = names[2 + len(g.extras) :]
        y = g.outputs[0]
        if self.store == "tma":
            params.append(self._output_map(g, y, outputs[0], turned, problem))
        params += [Pointer(n, x.operand.dtype, x.operand.name, "in") for x, n in zip(g.extras, names[2:])]
        if self.store == "direct":
            params += [Pointer(n, x.operand.dtype, x.operand.name, "out") for x, n in zip(g.outputs, outputs)]
        workers = minimum(self._tiles(g) * self.splits, SM_COUNT * self.blocks // self.cluster_size)
        if self.splits > 1:
            blocks = workers * self.cluster_size
            params.append(Pointer("partials", f32, "", "scratch", blocks * (self.BM * self.BN)))
            params.append(Pointer("counters", i32, "", "counters", blocks * self.consumers))
        params += self._numbers(g, problem, names)
        k = 32 // dtype.bytes
        types = f"{dtype.name}_{'f16' if half_sums else 'f32'}"
        turns = [is_k_major(g, side) for side in "ab"]
        flags = f"<{', '.join('false' if k_major else 'true' for k_major in turns)}>" if dtype.bits == 16 else ""
        slab = self.slab(problem)
        base = context(g, problem, 1, (0, 0), self.stages, "", self.splits, False, self.store == "tma")
        producer, consumer = self.registers()
        rows, columns = self.cluster_shape
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (workers * self.cluster_size, 1, 1),
                ((self.consumers + 1) * 128, 1, 1),
                self.smem_bytes(problem),
                (self.cluster_size, 1, 1),
                cooperative=self.splits > 1,
            ),
            arch=sm(90, "a"),
            context=Context(
                g=base,
                a=sides[0],
                b=sides[1],
                cluster=self.cluster_size,
                cluster_m=rows,
                cluster_n=columns,
                producer_registers=producer,
                consumer_registers=consumer,
                sum_type="unsigned" if half_sums else "float",
                sum_count=self.sum_count(g),
                half_sums=half_sums,
                wgmma=f"ptx::wgmma_m64n{self.BN}k{k}_{types}{flags}",
                turned=turned,
                slab=slab,
                pair=min(16, slab),
                swizzled_row={64: "row % 8", 32: "row / 2 % 4", 16: "row / 4 % 2", 8: ""}[slab],
                output_batch="".join(f", p.batch{d}" for d, s in enumerate(y.batch) if s),
            ),
        )

    def _row_bytes(self, g: Gemm, side: str) -> int:
        """Width of a slab's rows in shared memory, over which TMA swizzles."""
        extent = self.BM if side == "a" else self.BN
        return 128 if is_k_major(g, side) else min(128, extent * g.a.operand.dtype.bytes)

    def _side(self, g: Gemm, side: str, name: str) -> Side:
        x = g.a if side == "a" else g.b
        return Side(
            side=side.upper(),
            map=f"map_{name}",
            ctype=x.operand.dtype.ctype,
            k_major="true" if is_k_major(g, side) else "false",
            row_bytes=self._row_bytes(g, side),
            first="m0" if side == "a" else "n0",
            extent="BM" if side == "a" else "BN",
            shared=self.cluster == ("1x2" if side == "a" else "2x1"),
            batch="".join(f", p.batch{d}" for d, s in enumerate(x.batch) if s),
        )

    def _map(self, g: Gemm, side: str, name: str) -> TensorMap:
        """The tensor map of A or B: a box is a slab of the tile, or this block's share of one."""
        x = g.a if side == "a" else g.b
        dtype = x.operand.dtype
        own = (side == "a") != self.swap  # the problem's own a
        outer, symbol = ("m", "M") if own else ("n", "N")
        k_major = is_k_major(g, side)
        row_bytes = self._row_bytes(g, side)
        width = row_bytes // dtype.bytes
        extent = self.BM if side == "a" else self.BN
        share = 2 if self._side(g, side, name).shared else 1
        sizes = (Dim("K"), Dim(symbol)) if k_major else (Dim(symbol), Dim("K"))
        rows = (extent if k_major else self.BK) // share
        return TensorMap(
            f"map_{name}",
            dtype,
            x.operand.name,
            "in",
            (*sizes, *_batch_sizes(x)),
            (_stride(f"{name}_s{outer}" if k_major else f"{name}_sk", dtype), *_batch_strides(x, name)),
            (width, rows, *(1 for s in x.batch if s)),
            row_bytes,  # type: ignore[arg-type]
        )

    def _output_map(self, g: Gemm, y: Matrix, name: str, turned: bool, problem: Problem) -> TensorMap:
        """The tensor map of the output: a box is a slab of the results."""
        rows, columns = (Dim("N"), Dim("M")) if self.swap else (Dim("M"), Dim("N"))
        slab = self.slab(problem)
        axis = ("sn" if turned else "sm") if not self.swap else ("sm" if turned else "sn")
        return TensorMap(
            f"map_{name}",
            y.operand.dtype,
            y.operand.name,
            "out",
            ((rows, columns) if turned else (columns, rows)) + _batch_sizes(y),
            (_stride(f"{name}_{axis}", y.operand.dtype), *_batch_strides(y, name)),
            ((64, slab) if turned else (slab, 64)) + tuple(1 for s in y.batch if s),
            128 if turned else {64: 128, 32: 64, 16: 32, 8: 0}[slab],  # type: ignore[arg-type]
        )

    def _numbers(self, g: Gemm, problem: Problem, names: list[str]) -> list[Param]:
        """Sizes by the kernel's names, the strides of what the epilogue touches, scalars."""
        rows, columns = ("N", "M") if self.swap else ("M", "N")
        found: list[Param] = [Integer("M", Dim(rows)), Integer("N", Dim(columns)), Integer("K", Dim("K"))]
        found += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(len(g.batch))]
        exchange = {"sm": "sn", "sn": "sm"} if self.swap else {"sm": "sm", "sn": "sn"}
        for i, (x, name) in enumerate(zip(g.matrices, names)):
            is_output = i >= 2 + len(g.extras)
            if i < 2 or (is_output and self.store == "tma"):
                continue
            used = ["sm"] if x.row or is_output else []
            used += ["sn"] if touched(g, x, name, is_output).kind == "strided" else []
            found += [Integer(f"{name}_{axis}", Dim(f"{name}_{exchange[axis]}"), 64) for axis in used]
            found += [Integer(f"{name}_sb{d}", Dim(f"{name}_sb{d}"), 64) for d, s in enumerate(x.batch) if s]
        named = {n.attr for n in problem.graph.nodes if n.op == "scalar"}
        return found + [Scalar(s.name, s.dtype) for s in problem.graph.scalars if s.name in named]

    def _tiles(self, g: Gemm) -> Size:
        rows, columns = self.cluster_shape
        m, n = ("N", "M") if self.swap else ("M", "N")
        count = (Dim(m) + (self.BM * rows - 1)) // (self.BM * rows) * ((Dim(n) + (self.BN * columns - 1)) // (self.BN * columns))
        for d in range(len(g.batch)):
            count = count * Dim(f"batches{d}")
        return count

    def estimate(self, problem: Problem, target: Any) -> float:
        """Products, shared memory, L2 and device memory, whichever takes longest, over waves; then fill, store and fix-up."""
        g = self.view(problem)
        size = g.a.operand.dtype.bytes
        peak = target.tensor_flops.get(rate_class(g.a.operand.dtype, g.accumulate), target.tensor_flops["f16_f32acc"])
        clock = target.clock_hz
        k_tiles = math.ceil(g.K / self.BK)
        workers = target.sm_count * self.blocks // self.cluster_size
        clusters = self.clusters_of(g)
        flops = 2 * self.BM * self.BN * self.BK
        step = flops * target.sm_count / (peak * 0.9)
        blocks_m = self.BM // 64
        reads = blocks_m * (64 + self.BN) * self.BK * size / (128 * clock)
        step = max(step, reads)
        rows, columns = self.cluster_shape
        loads = (self.BM / columns + self.BN / rows) * self.BK * size
        busy = min(1.0, clusters * self.splits / workers)
        step = max(step, loads / (64 * clock), loads * target.sm_count * busy / 5.5e12)
        if self.consumers == 1 and self.blocks == 1:
            step *= 1.15
        if self.splits > 1:
            units = min(workers, clusters * self.splits)
            steps = clusters * k_tiles / units
            parts = max(1.0, units / clusters)
        else:
            steps = math.ceil(clusters / workers) * k_tiles
            parts = 1.0
        waves = steps / k_tiles
        compute = step * steps / self.blocks * min(self.blocks, max(1.0, clusters / (target.sm_count)))
        tail = self.BM * self.BN * 3 / (64 * clock)
        compute += tail * (0.3 * waves if self.pingpong else 0.5 * waves + 0.5)
        if parts > 1 or self.splits > 1:
            compute += 1.5e-6 + parts * self.BM * self.BN * 4 / (60 * clock)
        once = g.batches * (g.M * g.K + g.K * g.N) * size
        once += g.batches * g.M * g.N * sum(y.operand.dtype.bytes for y in g.outputs)
        in_flight = min(target.sm_count, clusters * self.cluster_size * self.splits) * self.stages * self.stage_bytes(problem)
        memory = once / (target.bandwidth * 0.9 * min(1.0, in_flight / 12e6))
        found = 2.5e-6 + max(compute, memory) + 0.2 * min(compute, memory)
        found *= {8: 1.0, 16: 1.002, 4: 1.002, 1: 1.01}[self.group] * (1.0 if self.raster == "m" else 1.001)
        return found * (1.0 + 0.01 * max(0, 4 - self.stages) + 0.002 * (self.slabs == 1))


def exchanged(problem: Problem) -> Gemm:
    """The transposed product: out.T = b.T @ a.T, with rows for columns everywhere."""
    g = describe(problem)

    def turn(x: Matrix) -> Matrix:
        return replace(x, row=x.column, column=x.row)

    return replace(
        g,
        M=g.N,
        N=g.M,
        a=turn(g.b),
        b=turn(g.a),
        extras=tuple(map(turn, g.extras)),
        outputs=tuple(map(turn, g.outputs)),
    )


def _product(*domains: tuple[Any, ...]) -> Any:
    import itertools

    return itertools.product(*domains)


def _stride(symbol: str, dtype: DType) -> Size:
    """A row stride for a tensor map; an axis of size 1 may have none of its own."""
    return maximum(Dim(symbol), 16 // dtype.bytes)


def _batch_sizes(x: Matrix) -> tuple[Size, ...]:
    return tuple(Dim(f"batches{d}") for d in reversed(range(len(x.batch))) if x.batch[d])


def _batch_strides(x: Matrix, name: str) -> tuple[Size, ...]:
    return tuple(Dim(f"{name}_sb{d}") for d in reversed(range(len(x.batch))) if x.batch[d])
