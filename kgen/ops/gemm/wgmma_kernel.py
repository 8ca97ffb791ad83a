"""What templates/gemm_wgmma.cu.j2 is given for a config and a problem: tensor maps, parameters, its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.codegen.names import plain
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Source, TensorMap
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size, maximum, minimum
from kgen.dsl.target import sm
from kgen.dsl.types import DType, f16, f32, i32
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
class Copied:
    """C++ for the copy of an operand that TMA cannot address: K-major or as it is, `turned` where that exchanges its axes."""

    turned: str
    source: str
    destination: str
    pitch: str
    row_stride: str
    column_stride: str
    rows: str
    columns: str
    batch: tuple[int, ...]


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
    copied: Copied | None


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
class Context:
    """What the template sees; `grouped`: the axis, m or n, along which groups follow one another, or empty."""

    g: GemmContext
    grouped: str
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
    scales: tuple[Scales, ...]
    one_thread: str
    turned: bool
    from_registers: bool
    by_warps: bool
    padding: int
    slab: int
    pair: int
    swizzled_row: str
    output_batch: str
    batches_touched: tuple[int, ...]


#: Bytes. Rows of a copy begin where lines of memory do: TMA takes longer where they begin inside a sector of 32.
LINE = 128


class WgmmaKernel:
    """The kernel of a config for a problem. A and B, rows and columns are those of the config's view."""

    def __init__(self, config: WgmmaGemm, problem: Problem) -> None:
        self.config, self.problem, self.g = config, problem, config.view(problem)
        self.names, self.scale_names = matrix_names(describe(problem)), scale_names(describe(problem))
        if config.swap:
            self.names[:2] = self.names[1], self.names[0]
            self.scale_names.reverse()

    def source(self) -> Source:
        config, problem, g, names = self.config, self.problem, self.g, self.names
        dtype = g.a.operand.dtype
        half_sums = g.accumulate is f16
        sides = tuple(self._side(side, name) for side, name in zip("ab", names))
        params: list[Param] = [self._map(side, name) for side, name in zip("ab", names)]
        outputs = names[2 + len(g.extras) :]
        y = g.outputs[0]
        if config.store == "tma":
            params.append(self._output_map(outputs[0]))
        params += offset_parameters(g)
        axes = "nm" if config.swap else "mn"
        params += scale_parameters(g, self.scale_names, axes)
        params += [Pointer(n, x.operand.dtype, x.operand.name, "in") for x, n in zip(g.extras, names[2:])]
        if config.store != "tma":
            params += [Pointer(n, x.operand.dtype, x.operand.name, "out") for x, n in zip(g.outputs, outputs)]
        workers = minimum(config.tiles(g) * config.splits, SM_COUNT * config.blocks // config.cluster_size)
        if config.work == "split":
            workers = config.tiles(g) * config.splits
        if config.work != "tiles":
            blocks = workers * config.cluster_size
            params.append(Pointer("partials", f32, "", "scratch", blocks * (config.BM * config.BN)))
            params.append(Pointer("counters", i32, "", "counters", blocks * max(2, config.consumers)))
        copied = [(side, name) for side, name in zip("ab", names) if config.needs_copy(g, side)]
        for side, name in copied:
            params += self._copy_params(side, name)
        if copied:
            params.append(Pointer("gate", i32, "", "counters", 2))
        params += number_parameters(g, problem, names, axes=axes, stored=config.store != "tma")
        k = 32 // dtype.bytes
        types = f"{dtype.name}_{'f16' if half_sums else 'f32'}"
        turns = [config.k_major(g, side) for side in "ab"]
        flags = f"<{', '.join('false' if k_major else 'true' for k_major in turns)}>" if dtype.bits == 16 else ""
        slab = config.slab(problem)
        pointed = g.extras if config.store == "tma" else (*g.extras, *g.outputs)
        ends: dict[str, Any] = {"end_m" if config.grouped_side == "a" else "end_n": "p.end"} if g.offsets else {}
        by_tma = config.store == "tma"
        clamped = by_tma and not config.turned(problem)
        base = context(g, problem, stages=config.stages, evaluate_only=by_tma, clamped=clamped, **ends)
        producer, consumer = config.registers(g)
        rows, columns = config.cluster_shape
        return render(
            config,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (workers * config.cluster_size, 1, 1),
                ((config.consumers + 1) * 128, 1, 1),
                config.smem_bytes(problem),
                (config.cluster_size, 1, 1),
                cooperative=config.work != "tiles" or bool(copied),
                overlapping=config.overlap,
            ),
            arch=sm(90, "a"),
            context=Context(
                g=base,
                grouped=("n" if config.swap else "m") if g.offsets else "",
                a=sides[0],
                b=sides[1],
                cluster=config.cluster_size,
                cluster_m=rows,
                cluster_n=columns,
                producer_registers=producer,
                consumer_registers=consumer,
                sum_type="unsigned" if half_sums else "float",
                sum_count=config.sum_count(g),
                half_sums=half_sums,
                wgmma=f"ptx::wgmma_m64n{config.BN}k{k}_{types}{'_rs' if config.from_registers(g) else ''}{flags}",
                scales=self._scales(),
                one_thread="if (threadIdx.x == 0) " if g.scales else "",
                turned=config.turned(problem),
                from_registers=config.from_registers(g),
                by_warps=config.from_registers(g) or bool(g.scales),
                padding=config.padding(problem),
                slab=slab,
                pair=min(16, slab),
                swizzled_row={64: "row % 8", 32: "row / 2 % 4", 16: "row / 4 % 2", 8: ""}[slab],
                output_batch=_coordinates(y),
                batches_touched=tuple(d for d in range(len(g.batch)) if any(x.batch[d] for x in pointed)),
            ),
        )

    def _row_bytes(self, side: str) -> int:
        """Width of a slab's rows in shared memory, over which TMA swizzles."""
        config, g = self.config, self.g
        extent = config.BM if side == "a" else config.BN
        return 128 if config.k_major(g, side) else min(128, extent * g.a.operand.dtype.bytes)

    def _side(self, side: str, name: str) -> Side:
        config, g = self.config, self.g
        x = g.a if side == "a" else g.b
        return Side(
            side=side.upper(),
            map=f"map_{name}",
            ctype=x.operand.dtype.ctype,
            k_major="true" if config.k_major(g, side) else "false",
            row_bytes=self._row_bytes(side),
            first="m0" if side == "a" else "n0",
            extent="BM" if side == "a" else "BN",
            shared=config.cluster == ("1x2" if side == "a" else "2x1"),
            batch=_coordinates(x),
            copied=self._copied(side, name) if config.needs_copy(g, side) else None,
        )

    def _scales(self) -> tuple[Scales, ...]:
        """The scales of A and of B."""
        g = self.g
        shares = zip("mn", ("a", "b"), g.scales, self.scale_names, self.config.scale_shares(g))
        return tuple(
            Scales(index.upper(), index, share, scale_element(s, name, index, "k", self._axis(side), "p.batch"))
            for index, side, s, name, share in shares
        )

    def _copied(self, side: str, name: str) -> Copied:
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
        unit = LINE // x.operand.dtype.bytes
        pitch = f"({columns} + {unit - 1}) / {unit} * {unit}"
        axes = [d for d, s in enumerate(x.batch) if s]
        index = ""
        for d in axes:
            index = f"({index}) * batches{d} + batch{d}" if index else f"batch{d}"
        batch = "".join(f" + static_cast<long long>(batch{d}) * {name}_sb{d}" for d in axes)
        start = f" + static_cast<long long>({index}) * {rows} * ({pitch})" if axes else ""
        return Copied(
            turned="true" if k_major and not is_k_major(g, side) else "false",
            source=name + batch,
            destination=f"{name}_rows{start}",
            pitch=pitch,
            row_stride=s_outer if k_major else s_k,
            column_stride=s_k if k_major else s_outer,
            rows=rows,
            columns=columns,
            batch=tuple(axes),
        )

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
        return "m" if (side == "a") != config.swap else "n"

    def _map(self, side: str, name: str) -> TensorMap:
        """The tensor map of A or B: a box is a slab of the tile, or this block's share of one."""
        config, g = self.config, self.g
        x = g.a if side == "a" else g.b
        dtype = x.operand.dtype
        outer = self._axis(side)
        k_major = config.k_major(g, side)
        row_bytes = self._row_bytes(side)
        width = row_bytes // dtype.bytes
        extent = config.BM if side == "a" else config.BN
        share = 2 if self._side(side, name).shared else 1
        rows = (extent if k_major else config.BK) // share
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
        """The tensor map of the output: a box is a slab of the results."""
        config, y, problem = self.config, self.g.outputs[0], self.problem
        turned = config.turned(problem)
        rows, columns = (Dim("N"), Dim("M")) if config.swap else (Dim("M"), Dim("N"))
        slab = config.slab(problem)
        axis = ("sn" if turned else "sm") if not config.swap else ("sm" if turned else "sn")
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


def _stride(symbol: str, dtype: DType) -> Size:
    """A row stride for a tensor map; an axis of size 1 may have none of its own."""
    return maximum(Dim(plain(symbol)), 16 // dtype.bytes)


def _coordinates(x: Matrix) -> str:
    """The batch coordinates of a box, in the order of the tensor map's axes."""
    return "".join(f", p.batch{d}" for d in reversed(range(len(x.batch))) if x.batch[d])


def _batch_sizes(x: Matrix) -> tuple[Size, ...]:
    return tuple(Dim(f"batches{d}") for d in reversed(range(len(x.batch))) if x.batch[d])


def _batch_strides(x: Matrix, name: str) -> tuple[Size, ...]:
    return tuple(Dim(plain(f"{name}_sb{d}")) for d in reversed(range(len(x.batch))) if x.batch[d])
