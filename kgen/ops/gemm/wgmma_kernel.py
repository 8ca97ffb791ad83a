"""What templates/gemm_wgmma.cu.j2 is given for a config and a problem: tensor maps, parameters, its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.codegen.names import plain
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Source, TensorMap
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size, maximum, minimum
from kgen.dsl.target import clusters, sm
from kgen.dsl.types import DType, f16, f32, i32
from kgen.ops.common.memory_bound import LINE
from kgen.ops.gemm.problem import Matrix, describe
from kgen.ops.gemm.schedule import (
    GemmContext,
    context,
    is_k_major,
    matrix_names,
    number_parameters,
    offset_parameters,
    scale_element,
    scale_names,
    scale_parameters,
)

if TYPE_CHECKING:
    from kgen.ops.gemm.wgmma import WgmmaGemm


@dataclass(frozen=True)
class PackedOperand:
    """The statement that copies an operand which TMA cannot address."""

    text: str


@dataclass(frozen=True)
class Side:
    """A or B as the template sees it; `load` is the statement that copies its tile to shared memory."""

    map: str
    ctype: str
    k_major: str
    row_bytes: int
    load: str


@dataclass(frozen=True)
class Scales:
    """The scales of A or B as the template sees them: of tiles along `side` (M, N), `share` rows or columns have one.

    `element` is C++ for the one of row or column `index` at step k.
    """

    side: str
    index: str
    share: int
    element: str


@dataclass(frozen=True)
class Policies:
    """The types of templates/common that a config's kernel is made of, and what their constructors are given, in C++.

    `producers` and `releases` are the arrivals that fill a stage and, from each block, empty it.
    """

    cluster: str
    pipeline: str
    grid: str
    scheduler: str
    schedule: str
    order: str
    registers: str
    launch: str
    rows: str
    operand_a: str
    store: str
    stored: str
    producers: str
    releases: str


@dataclass(frozen=True)
class Context:
    """What the template sees; `by_warps`: each warp releases a stage for itself; `reads_ahead`: what the epilogue reads is under
    way while results wait for their store."""

    g: GemmContext
    a: Side
    b: Side
    policies: Policies
    packed: tuple[PackedOperand, ...]
    sum_type: str
    sum_count: int
    half_sums: bool
    wgmma: str
    scales: tuple[Scales, ...]
    by_warps: bool
    reads_ahead: bool
    batches_touched: tuple[int, ...]


class WgmmaKernel:
    """The kernel of a config for a problem. A and B, rows and columns are those of the config's view."""

    def __init__(self, config: WgmmaGemm, problem: Problem) -> None:
        self.config, self.problem, self.g = config, problem, config.view(problem)
        self.names, self.scale_names = matrix_names(describe(problem)), scale_names(describe(problem))
        if config.swap_ab:
            self.names[:2] = self.names[1], self.names[0]
            self.scale_names.reverse()

    def source(self) -> Source:
        config, problem, g, names = self.config, self.problem, self.g, self.names
        dtype = g.a.operand.dtype
        half_sums = g.accumulate is f16
        sides = tuple(self._side(side, name) for side, name in zip("ab", names))
        params: list[Param] = [self._map(side, name) for side, name in zip("ab", names)]
        outputs = names[2 + len(g.extras) :]
        if config.store == "tma":
            params.append(self._output_map(outputs[0]))
        params += offset_parameters(g)
        axes = "nm" if config.swap_ab else "mn"
        params += scale_parameters(g, self.scale_names, axes)
        params += [Pointer(n, x.operand.dtype, x.operand.name, "in") for x, n in zip(g.extras, names[2:])]
        if config.store != "tma":
            params += [Pointer(n, x.operand.dtype, x.operand.name, "out") for x, n in zip(g.outputs, outputs)]
        at_once = maximum(1, clusters(SM_COUNT, config.cluster_size)) * config.blocks_per_sm
        workers = minimum(config.tiles(g) * config.splits, at_once)
        if config.splits_tiles:
            workers = config.tiles(g) * config.splits
        if config.through_memory:
            blocks = workers * config.cluster_size
            params.append(Pointer("partials", f32, "", "scratch", blocks * (config.BM * config.BN)))
            params.append(Pointer("counters", i32, "", "counters", blocks * max(2, config.consumers)))
        copied = [(side, name) for side, name in zip("ab", names) if config.needs_copy(g, side)]
        for side, name in copied:
            params += self._copy_params(side, name)
        if copied:
            params.append(Pointer("grid_barrier", i32, "", "counters", 2))
        params += number_parameters(g, problem, names, axes=axes, stored=config.store != "tma")
        k = 32 // dtype.bytes
        types = f"{dtype.name}_{'f16' if half_sums else 'f32'}"
        k_majors = [config.k_major(g, side) for side in "ab"]
        flags = f"<{', '.join('false' if k_major else 'true' for k_major in k_majors)}>" if dtype.bits == 16 else ""
        pointed = g.extras if config.store == "tma" else (*g.extras, *g.outputs)
        ends: dict[str, Any] = {"end_m" if config.grouped_side == "a" else "end_n": "tile.end"} if g.offsets else {}
        by_tma = config.store == "tma"
        whole = by_tma and not config.transposed(problem)
        base = context(g, problem, stages=config.stages, evaluate_only=by_tma, whole_vectors=whole, **ends)
        return render(
            config,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (workers * config.cluster_size, 1, 1),
                ((config.consumers + 1) * 128, 1, 1),
                config.smem_bytes(problem),
                (config.splits if config.work == "cluster_k" else config.cluster_size, 1, 1),
                cooperative=bool(config.through_memory or copied),
                pdl=config.pdl,
            ),
            arch=sm(90, "a"),
            context=Context(
                g=base,
                a=sides[0],
                b=sides[1],
                policies=self._policies(base, outputs[0]),
                packed=tuple(self._packed(side, name) for side, name in copied),
                sum_type="unsigned" if half_sums else "float",
                sum_count=config.sum_count(g),
                half_sums=half_sums,
                wgmma=f"ptx::wgmma_m64n{config.BN}k{k}_{types}{'_rs' if config.from_registers(g) else ''}{flags}",
                scales=self._scales(),
                by_warps=self._by_warps,
                reads_ahead=self._reads_ahead,
                batches_touched=tuple(d for d in range(len(g.batch)) if any(x.batch[d] for x in pointed)),
            ),
        )

    def _row_bytes(self, side: str) -> int:
        """Bytes of a row of swizzle atoms."""
        config, g = self.config, self.g
        extent = config.BM if side == "a" else config.BN
        return 128 if config.k_major(g, side) else min(128, extent * g.a.operand.dtype.bytes)

    def _side(self, side: str, name: str) -> Side:
        config, g = self.config, self.g
        x = g.a if side == "a" else g.b
        tile, outer = f"Tile{side.upper()}", "tile.m0" if side == "a" else "tile.n0"
        function, sharers = f"load_operand<{tile}>", ""
        if self._sharers(side) > 1:
            function = f"load_operand_share<{tile}, Cluster::{'N' if side == 'a' else 'M'}>"
            sharers = f"Cluster::of_{side}(scheduler.grid.rank), "
        at = "".join(f", tile.batch[{d}]" for d in _axes(x))
        to = f"tiles_{side} + state.stage * {tile}::BYTES"
        return Side(
            map=f"map_{name}",
            ctype=x.operand.dtype.ctype,
            k_major=_bool(config.k_major(g, side)),
            row_bytes=self._row_bytes(side),
            load=f"{function}({to}, map_{name}, full, {sharers}{outer}, k * BK{at});",
        )

    def _sharers(self, side: str) -> int:
        """Blocks of a cluster that share the tile of A or B."""
        rows, columns = self.config.cluster_shape
        return int(columns if side == "a" else rows)

    @property
    def _by_warps(self) -> bool:
        """Whether warps themselves read what lies in a stage."""
        return self.config.from_registers(self.g) or bool(self.g.scales)

    @property
    def _reads_ahead(self) -> bool:
        if self.config.store == "tma":
            return bool(self.g.extras)
        return self.config.store == "shared" and bool(self.config.stored_together(self.problem) > 1)

    def _policies(self, base: GemmContext, output: str) -> Policies:
        config, g = self.config, self.g
        rows, columns = config.cluster_shape
        clustered, pingpong = config.cluster_size > 1, config.pingpong
        cluster = f"BlockCluster<{rows}, {columns}>" if clustered else "SingleBlock"
        if config.work == "cluster_k":
            cluster = f"SplitCluster<{config.splits}>"
        producer, consumer = config.registers(g)
        from_registers = config.from_registers(g)
        scheduler, schedule = self._scheduler(base)
        store, stored = self._store(base, output)
        blocks = "TileA, Rows, ROWS / 64"
        return Policies(
            cluster=cluster,
            pipeline="MulticastPipeline<STAGES, Cluster::SIZE>" if clustered else "TmaPipeline<STAGES>",
            grid=f"TileGrid<BM, BN, {_bool(config.raster == 'm')}, {config.group}, Cluster, {base.batch_rank}>",
            scheduler=scheduler,
            schedule=schedule,
            order="PingPong" if pingpong else "Cooperative",
            registers=f"SharedRegisters<{producer}, {consumer}>" if producer else "EvenRegisters",
            launch="ProgrammaticDependentLaunch" if config.pdl else "StreamOrder",
            rows="BankFreeRows" if from_registers else "WgmmaRows",
            operand_a=(
                f"RegisterOperand<{blocks}> operand_a{{shared, first_row, thread / 32, thread % 32}}"
                if from_registers
                else "SharedOperand<TileA> operand_a(tiles_a, first_row)"
            ),
            store=store,
            stored=stored,
            producers="1 + 32" if g.scales else "1",
            releases=("1" if pingpong else "CONSUMERS") + (" * 4" if self._by_warps else ""),
        )

    def _scheduler(self, base: GemmContext) -> tuple[str, str]:
        """The tile scheduler and what it is made of."""
        config, g = self.config, self.g
        batches = "".join(f", batches{d}" for d in range(base.batch_rank))
        made = f"Grid(M, N, (K + BK - 1) / BK{batches})"
        if g.offsets:
            along, extent = ("false", "N") if config.swap_ab else ("true", "M")
            offset = g.offsets.dtype.ctype
            return f"GroupedScheduler<Grid, {along}, {offset}>", f"{made}, {base.offsets}, {extent}, batches0"
        types = {
            "tiles": "PersistentScheduler<Grid>",
            "stream_k": "StreamKScheduler<Grid>",
            "split_k": f"SplitKScheduler<Grid, {config.splits}, false>",
            "cluster_k": f"SplitKScheduler<Grid, {config.splits}, true>",
        }
        return types[config.work], made

    def _store(self, base: GemmContext, output: str) -> tuple[str, str]:
        """How results leave, and what that is made of."""
        config, problem = self.config, self.problem
        transposed, width, value = _bool(config.transposed(problem)), config.epilogue_columns(problem), base.result_type
        if config.store == "tma":
            axes = "".join(f", {d}" for d in _axes(self.g.outputs[0]))
            layout = f"{'Column' if config.transposed(problem) else 'Row'}MajorStage"
            of = f"{value}, BN, {width}, {config.epilogue_stages}, {layout}, CONSUMERS, Rows{axes}"
            return f"TmaStore<{of}>", f"stores, consumer, thread, map_{output}"
        if config.store == "shared":
            made, together = "shared + (stores - tiles_a), consumer, thread", config.stored_together(problem)
            if together > 1:
                return f"SharedVectorStore<{value}, BN, {width}, {together}, CONSUMERS, Rows>", made
            return f"SharedStore<{value}, BN, {width}, {config.padding(problem)}, {transposed}, CONSUMERS, Rows>", made
        if config.work == "cluster_k":
            return "ClusterSplitStore<BN, Cluster, CONSUMERS, Rows>", "tiles_a, consumer, thread"
        if config.work == "split_k":
            of = f"BM, BN, {config.splits}, CONSUMERS, Rows, {transposed}"
            made = "partials, counters, scheduler.tile(), scheduler.split(), consumer, thread"
            return f"SplitKStore<{of}>", made
        return f"DirectStore<{value}, Rows>", "thread"

    def _scales(self) -> tuple[Scales, ...]:
        """The scales of A and of B."""
        g = self.g
        shares = zip("mn", ("a", "b"), g.scales, self.scale_names, self.config.scale_shares(g))
        return tuple(
            Scales(index.upper(), index, share, scale_element(s, name, index, "k", self._axis(side), "tile.batch[{}]"))
            for index, side, s, name, share in shares
        )

    def _packed(self, side: str, name: str) -> PackedOperand:
        """How A or B is copied into rows that TMA can address."""
        config, g = self.config, self.g
        x = g.a if side == "a" else g.b
        extent, outer = ("M" if side == "a" else "N"), self._axis(side)
        s_outer, s_k = (
            "1" if stride == 1 else f"{name}_{axis}"
            for stride, axis in zip((x.row, x.column) if side == "a" else (x.column, x.row), (f"s{outer}", "sk"))
        )
        k_major = config.k_major(g, side)
        rows, columns = (extent, "K") if k_major else ("K", extent)
        unit = LINE // x.operand.dtype.bytes  # rows begin with lines: TMA takes longer where they begin inside a sector
        pitch = f"({columns} + {unit - 1}) / {unit} * {unit}"
        axes = [d for d, s in enumerate(x.batch) if s]
        index = ""
        for d in axes:
            index = f"({index}) * batches{d} + batch{d}" if index else f"batch{d}"
        batch = "".join(f" + static_cast<long long>(batch{d}) * {name}_sb{d}" for d in axes)
        start = f" + static_cast<long long>({index}) * {rows} * ({pitch})" if axes else ""
        loops = "".join(f"  for (int batch{d} = 0; batch{d} < batches{d}; ++batch{d})\n" for d in axes)
        strides = f"{s_outer}, {s_k}" if k_major else f"{s_k}, {s_outer}"
        arguments = f"{name}_rows{start}, {pitch}, {name}{batch}, {strides}, {rows}, {columns}, shared"
        transposed = _bool(k_major and not is_k_major(g, side))
        return PackedOperand(f"{loops}{'    ' if loops else '  '}copy_rows<{transposed}>({arguments});")

    def _copy_params(self, side: str, name: str) -> list[Param]:
        """The operand itself, where its copy goes, and its strides."""
        g = self.g
        x = g.a if side == "a" else g.b
        outer = self._axis(side)
        sizes, strides = self._copy_shape(side)
        strided = [(x.row if side == "a" else x.column, f"s{outer}"), (x.column if side == "a" else x.row, "sk")]
        count = strides[-1] * sizes[-1]
        found: list[Param] = [Pointer(name, x.operand.dtype, x.operand.name, "in")]
        found.append(Pointer(f"{name}_rows", x.operand.dtype, "", "scratch", count))
        found += [Integer.stride(f"{name}_{axis}") for stride, axis in strided if stride != 1]
        return found + [Integer.stride(f"{name}_sb{d}") for d, s in enumerate(x.batch) if s]

    def _copy_shape(self, side: str) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
        """Sizes and strides of the copy, the contiguous axis first."""
        config, g = self.config, self.g
        x = g.a if side == "a" else g.b
        outer = Dim(self._axis(side).upper())
        unit = LINE // x.operand.dtype.bytes
        columns, rows = (Dim("K"), outer) if config.k_major(g, side) else (outer, Dim("K"))
        pitch = (columns + (unit - 1)) // unit * unit
        sizes: list[Size] = [columns, rows]
        strides: list[Size] = [pitch]
        for size in _batch_sizes(x):
            strides.append(strides[-1] * sizes[-1])
            sizes.append(size)
        return tuple(sizes), tuple(strides)

    def _axis(self, side: str) -> str:
        """The problem's own axis, m or n, along which the kernel's A or B has its rows or columns."""
        config = self.config
        return "m" if (side == "a") != config.swap_ab else "n"

    def _map(self, side: str, name: str) -> TensorMap:
        """The tensor map of A or B: a box is a column of swizzle atoms of the tile, or this block's share of one."""
        config, g = self.config, self.g
        x = g.a if side == "a" else g.b
        dtype = x.operand.dtype
        outer = self._axis(side)
        k_major = config.k_major(g, side)
        row_bytes = self._row_bytes(side)
        width = row_bytes // dtype.bytes
        extent = config.BM if side == "a" else config.BN
        rows = (extent if k_major else config.BK) // self._sharers(side)
        sizes: tuple[Size, ...] = (Dim("K"), Dim(outer.upper())) if k_major else (Dim(outer.upper()), Dim("K"))
        strides: tuple[Size, ...] = (_stride(f"{name}_s{outer}" if k_major else f"{name}_sk", dtype),)
        sizes, strides = sizes + _batch_sizes(x), strides + _batch_strides(x, name)
        copied = config.needs_copy(g, side)
        if copied:
            sizes, strides = self._copy_shape(side)
        return TensorMap(
            f"map_{name}",
            dtype,
            f"{name}_rows" if copied else x.operand.name,
            "in",
            sizes,
            strides,
            (width, rows, *(1 for s in x.batch if s)),
            row_bytes,  # type: ignore[arg-type]
        )

    def _output_map(self, name: str) -> TensorMap:
        """The tensor map of the output: a box is one of the epilogue's stages."""
        config, y, problem = self.config, self.g.outputs[0], self.problem
        transposed = config.transposed(problem)
        rows, columns = (Dim("N"), Dim("M")) if config.swap_ab else (Dim("M"), Dim("N"))
        width = config.epilogue_columns(problem)
        axis = ("sn" if transposed else "sm") if not config.swap_ab else ("sm" if transposed else "sn")
        return TensorMap(
            f"map_{name}",
            y.operand.dtype,
            y.operand.name,
            "out",
            ((rows, columns) if transposed else (columns, rows)) + _batch_sizes(y),
            (_stride(f"{name}_{axis}", y.operand.dtype), *_batch_strides(y, name)),
            ((64, width) if transposed else (width, 64)) + tuple(1 for s in y.batch if s),
            128 if transposed else {64: 128, 32: 64, 16: 32, 8: 0}[width],  # type: ignore[arg-type]
        )


def _stride(symbol: str, dtype: DType) -> Size:
    """A row stride for a tensor map; an axis of size 1 may have none of its own."""
    return maximum(Dim(plain(symbol)), 16 // dtype.bytes)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _axes(x: Matrix) -> list[int]:
    """The batch axes of a box, in the order of the tensor map's."""
    return [d for d in reversed(range(len(x.batch))) if x.batch[d]]


def _batch_sizes(x: Matrix) -> tuple[Size, ...]:
    return tuple(Dim(f"batches{d}") for d in reversed(range(len(x.batch))) if x.batch[d])


def _batch_strides(x: Matrix, name: str) -> tuple[Size, ...]:
    return tuple(Dim(plain(f"{name}_sb{d}")) for d in reversed(range(len(x.batch))) if x.batch[d])
