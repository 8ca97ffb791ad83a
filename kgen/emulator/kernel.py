"""A kernel compiled for the emulator, and its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Union

from kgen.codegen.source import Integer, Param, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import ArgumentError, EmulatorError
from kgen.emulator.buffer import Buffer
from kgen.emulator.build import Cache, load
from kgen.emulator.coverage import Coverage
from kgen.emulator.lines import name_lines, resolve
from kgen.emulator.report import Report, Site
from kgen.emulator.tensor_map import Map, encode

_MAX_SHARED_BYTES = 227 * 1024
_MAX_CLUSTER = 16
_ASYNC_MODES = ("eager", "late", "random")


@dataclass(frozen=True)
class Options:
    """How to run a launch.

    `checks` looks at every access (slower by some factor). `seed` shuffles the order of warps and lanes. `async_mode` says
    when asynchronous copies land and products (wgmma) arrive: at once, as late as waiting for them allows, or either at
    random. `threads` is the number of CPU threads (default: all; a cooperative launch takes one). A launch that takes
    longer than `timeout` seconds is an error. `traffic` (with checks) also counts how well global accesses coalesce and
    shared ones avoid bank conflicts, line by line: slower again. `coverage` notes what of the kernel runs; it is compiled for
    that anew.
    """

    checks: bool = True
    seed: int = 0
    async_mode: Literal["eager", "late", "random"] = "late"
    threads: int | None = None
    timeout: float = 120.0
    traffic: bool = False
    coverage: Coverage | None = None


Argument = Union[int, float, Buffer, Map]


class _CBuffer(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_int32),
        ("initialized", ctypes.c_int32),
        ("unit", ctypes.c_int32),
    ]


_COUNTERS = tuple(field.name for field in fields(Report) if field.name != "sites")
_MAX_SITES = 4096


class _CCounters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _COUNTERS]


class _CSite(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint64),
        ("transactions", ctypes.c_uint64),
        ("ideal", ctypes.c_uint64),
        ("shared", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
    ]


class _CLaunch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("checks", ctypes.c_int32),
        ("async_mode", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("traffic", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("pdl", ctypes.c_int32),
        ("first_cluster", ctypes.c_uint64),
        ("cluster_count", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("timeout", ctypes.c_double),
        ("buffers", ctypes.POINTER(_CBuffer)),
        ("buffer_count", ctypes.c_uint64),
        ("counters", _CCounters),
        ("sites", ctypes.POINTER(_CSite)),
        ("site_capacity", ctypes.c_uint64),
        ("site_count", ctypes.c_uint64),
        ("code_seen", ctypes.c_void_p),
        ("code_bytes", ctypes.c_uint64),
        ("error", ctypes.c_char * 8192),
    ]


_SCALARS = {
    "f32": ctypes.c_float, "tf32": ctypes.c_float, "f64": ctypes.c_double, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
}  # fmt: skip


class EmulatedKernel:
    """A kernel to launch on the CPU. Made by `compile`."""

    def __init__(self, source: Source, cache: Cache) -> None:
        self.source = source
        self._cache = cache
        self._loaded: dict[tuple[bool, bool], tuple[ctypes.CDLL, ctypes.CDLL, str]] = {}

    def launch(
        self,
        arguments: Sequence[Argument],
        grid: tuple[int, int, int],
        *,
        options: Options | None = None,
        blocks: range | None = None,
    ) -> Report:
        """Runs the kernel over `grid` blocks with `arguments` in the order of `source.params`.

        With `blocks` only those run, of the grid's blocks in their order (x first), with the clusters they belong to.
        Raises ArgumentError for arguments that do not fit the parameters, EmulatorError for a fault of the kernel.
        """
        options = options or Options()
        source = self.source
        launch = source.launch
        if options.traffic and not options.checks:
            raise ArgumentError("Options.traffic needs checks=True: only checked kernels report their accesses")
        if options.async_mode not in _ASYNC_MODES:
            raise ArgumentError(f"async_mode is one of {', '.join(_ASYNC_MODES)}, got {options.async_mode!r}")
        if len(arguments) != len(source.params):
            raise ArgumentError(f"{source.entry} takes {len(source.params)} arguments, got {len(arguments)}")
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if not 0 < threads <= 1024:
            raise ArgumentError(f"{source.entry}: a block has 1 to 1024 threads, got {launch.block}")
        if not 0 <= launch.shared_bytes <= _MAX_SHARED_BYTES:
            raise ArgumentError(
                f"{source.entry}: a block has at most {_MAX_SHARED_BYTES} bytes of shared memory, got {launch.shared_bytes}"
            )
        if not 0 < launch.cluster[0] * launch.cluster[1] * launch.cluster[2] <= _MAX_CLUSTER:
            raise ArgumentError(f"{source.entry}: a cluster has 1 to {_MAX_CLUSTER} blocks, got {launch.cluster}")
        if any(g < 1 or g % c for g, c in zip(grid, launch.cluster)):
            raise ArgumentError(
                f"{source.entry}: the grid {grid} is not made of whole clusters of {launch.cluster} blocks"
            )
        clusters = self._clusters(grid, blocks)

        runtime, library, entry = self._libraries(options.checks, options.coverage is not None)
        values, buffers = self._arguments(library[f"{entry}_parameter_size"], arguments)
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        record = _CLaunch(
            entry=ctypes.cast(library[f"{entry}_call"], ctypes.c_void_p),
            arguments=pointers,
            grid=(ctypes.c_uint32 * 3)(*grid),
            block=(ctypes.c_uint32 * 3)(*launch.block),
            cluster=(ctypes.c_uint32 * 3)(*launch.cluster),
            shared_bytes=launch.shared_bytes,
            checks=options.checks,
            async_mode=_ASYNC_MODES.index(options.async_mode),
            threads=options.threads or 0,
            traffic=options.traffic,
            cooperative=launch.cooperative,
            pdl=launch.pdl,
            first_cluster=clusters.start,
            cluster_count=len(clusters),
            seed=options.seed,
            timeout=options.timeout,
            buffers=buffers,
            buffer_count=len(buffers),
            sites=(_CSite * _MAX_SITES)() if options.traffic else None,
            site_capacity=_MAX_SITES if options.traffic else 0,
        )
        if options.coverage:
            record.code_seen, record.code_bytes = options.coverage.room(library._name)
        runtime.emu_launch(ctypes.byref(record))
        if record.error:
            raise EmulatorError(f"{source.entry}: {name_lines(record.error.decode(), source.body, library._name)}")
        sites = _sites(library._name, record.sites[: record.site_count]) if options.traffic else ()
        return Report(**{name: getattr(record.counters, name) for name in _COUNTERS}, sites=sites)

    def _clusters(self, grid: tuple[int, int, int], blocks: range | None) -> range:
        """The clusters to run, by their number in the grid."""
        launch, count = self.source.launch, grid[0] * grid[1] * grid[2]
        along = launch.cluster[0]
        if blocks is None:
            return range(count // (along * launch.cluster[1] * launch.cluster[2]))
        if not (0 <= blocks.start < blocks.stop <= count and blocks.step == 1):
            raise ArgumentError(f"blocks are a range within the grid's {count}, one after the other, got {blocks}")
        if launch.cooperative or launch.cluster[1:] != (1, 1):
            raise ArgumentError(
                f"{self.source.entry}: all blocks have to run, as they wait for each other or clusters are not along x alone"
            )
        return range(blocks.start // along, -(-blocks.stop // along))

    def _libraries(self, checks: bool, covered: bool) -> tuple[ctypes.CDLL, ctypes.CDLL, str]:
        """The runtime, the kernel's library, and its name in there."""
        if (checks, covered) not in self._loaded:
            runtime = self._cache.runtime()  # first: the kernel's library refers to it
            built = self._cache.kernel(self.source, checks, covered)
            self._loaded[checks, covered] = runtime, load(str(built.library)), built.entry
        return self._loaded[checks, covered]

    def _arguments(
        self, parameter_size: Callable[[int], int], arguments: Sequence[Argument]
    ) -> tuple[list[Any], ctypes.Array[_CBuffer]]:
        values: list[Any] = []
        buffers = []
        for i, (param, argument) in enumerate(zip(self.source.params, arguments)):
            value = self._value(param, argument)
            size = parameter_size(i)
            if size != ctypes.sizeof(value):
                raise ArgumentError(
                    f"{self.source.entry}: parameter {i} ({param.name}) has {ctypes.sizeof(value)} bytes in Source.params but "
                    f"{size} in the kernel; their lists must agree"
                )
            values.append(value)
            shown = argument.buffer if isinstance(argument, Map) else argument
            if isinstance(shown, Buffer):
                assert isinstance(param, (Pointer, TensorMap))
                buffers.append(
                    _CBuffer(
                        param.name.encode(),
                        shown.address,
                        shown.bytes,
                        shown.writable,
                        shown.initialized,
                        param.dtype.bytes,
                    )
                )
        if parameter_size(len(values)) != -1:
            raise ArgumentError(
                f"{self.source.entry}: the kernel has more parameters than the {len(values)} of Source.params"
            )
        return values, (_CBuffer * len(buffers))(*buffers)

    def _value(self, param: Param, argument: Argument) -> Any:
        """The argument as the kernel takes it, in memory of its own."""
        kinds: dict[type, tuple[tuple[type, ...], str]] = {
            Pointer: ((Buffer,), "a Buffer"), TensorMap: ((Map,), "a Map"),
        }  # fmt: skip
        accepted, wanted = kinds.get(type(param), ((int, float), "a number"))
        if not isinstance(argument, accepted):
            raise ArgumentError(f"{self.source.entry}: argument {param.name} must be {wanted}, got {argument!r}")
        if isinstance(param, TensorMap):
            assert isinstance(argument, Map)
            return encode(param, argument)
        if isinstance(argument, Buffer):
            return ctypes.c_uint64(argument.address)
        assert isinstance(param, (Integer, Scalar))
        kind: Any
        if isinstance(param, Integer):
            kind = ctypes.c_int32 if param.bits == 32 else ctypes.c_int64
        else:
            kind = _SCALARS[param.dtype.name]
        integral = kind in (ctypes.c_int32, ctypes.c_int64)
        bits = 8 * ctypes.sizeof(kind)
        if integral and not (isinstance(argument, int) and -(1 << (bits - 1)) <= argument < 1 << (bits - 1)):
            raise ArgumentError(
                f"{self.source.entry}: {param.name} must be an integer of {bits} bits, got {argument!r}"
            )
        return kind(argument)


def _sites(library: str, records: Sequence[_CSite]) -> tuple[Site, ...]:
    """Sums by line, memory and width; the worst first."""
    lines = resolve(library, [f"{record.code:x}" for record in records])
    sums: dict[tuple[int, bool, int], list[int]] = {}
    for record in records:
        total = sums.setdefault((lines.get(f"{record.code:x}", 0), bool(record.shared), record.bytes), [0, 0])
        total[0] += record.transactions
        total[1] += record.ideal
    sites = [
        Site(line, "shared" if shared else "global", width, moved, ideal)
        for (line, shared, width), (moved, ideal) in sums.items()
    ]
    return tuple(sorted(sites, key=lambda site: (site.ideal - site.transactions, site.line)))


def compile(source: Source, *, checks: bool = True, cache_dir: Path | None = None) -> EmulatedKernel:
    """Compiles `source.body` for the CPU, or takes it from the cache in `cache_dir` (default: kgen's cache folder).

    `checks` says for which kind of launch to compile now; the other kind is compiled when first launched.
    Raises CompileError, with the compiler's output as its `log`, ToolchainError without a compiler that works, CacheError for a
    folder that cannot be used.
    """
    cache = Cache(cache_dir)
    cache.kernel(source, checks)
    return EmulatedKernel(source, cache)


def compile_together(sources: Iterable[Source], *, checks: bool = True, cache_dir: Path | None = None) -> None:
    """Compiles kernels for the CPU ahead of `compile`, several at a time, for less than one by one.

    What the compiler rejects is left to `compile`, which says why.
    """
    Cache(cache_dir).together(sources, checks)
