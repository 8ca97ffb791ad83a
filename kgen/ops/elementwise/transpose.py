"""Transpose: a pointwise problem whose inputs are contiguous along another dimension than its output, by tiles.

A schedule of the elementwise family. Rows are the dimension along which what is transposed is contiguous, columns that of the
output. A block loads a tile of each transposed input along its rows, in vectors, and passes it through shared memory to threads
that write vectors along the columns; what is not transposed is read as elementwise does. Lines that are not aligned to the
vectors are covered by aligned ones: a tile of the output then begins, in every row, where a vector does.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import accumulate

from kgen.codegen.names import plain
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Limit, Pointer, Source, TensorMap
from kgen.dsl import vector
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size, ceil_div, minimum
from kgen.dsl.target import Target, sm
from kgen.dsl.types import f32, tf32
from kgen.dsl.vector import Vector, maximum, where
from kgen.ops.common.memory_bound import LOADS, SECTOR, STORES, MemoryBound, load_policy
from kgen.ops.elementwise import transpose_model
from kgen.ops.elementwise.kernel import Access, Direct, Transposed, access, function, parameters
from kgen.ops.elementwise.tiling import Tiling, tiling
from kgen.ops.elementwise.view import Column, matches, view

#: What a size is at most that is counted in 32 bits, with room for a tile beyond the end.
_LARGEST = 2**31 - 2**16 - 1
#: Rows and columns of the tiles that a default is taken from: larger ones gain 2% at most (docs/notes/transpose.md).
_TILES = (64, 16, 32, 128)


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    rank: int
    wide: bool
    row: int
    outer: tuple[int, ...]
    inputs: tuple[Access, ...]
    transposed: tuple[Transposed, ...]
    direct: tuple[Direct, ...]
    positions: tuple[Access, ...]
    outputs: tuple[Direct, ...]
    vector_in: int
    vector_out: int
    halo: int
    any_shifted: bool
    barrier: int
    located: tuple[str, ...]
    sizes: tuple[str, ...]
    policies: tuple[tuple[str, str], ...]
    load: str
    function: str
    arguments: str


def _tiling(problem: Problem) -> Tiling:
    found = tiling(problem)
    if found is None:
        raise ConfigError(
            f"nothing is transposed in {problem}; expected an input contiguous along another axis than the output"
        )
    return found


class Transpose(MemoryBound):
    """Tiles through shared memory, wide vectors on both sides."""

    template = "transpose.cu.j2"
    model = transpose_model.TransposeConstants
    by_class = ("tile_rows", "tile_columns", "threads")
    by_size = ("load",)
    alike = ("shift", "copy")
    techniques = {
        "words, padding": {"load_bytes": 4, "store_bytes": 4, "pad": (1, 3, 5, 7)},
        "vectors of 16 bytes, padding": {"load_bytes": 16, "store_bytes": 16, "pad": (1, 3, 5, 7)},
        "vectors of 16 bytes, xor swizzle": {"load_bytes": 16, "store_bytes": 16, "pad": 0},
        "column order": {"order": "columns"},
        "row order": {"order": "rows"},
        "diagonal order": {"order": "diagonal"},
        "persistent blocks": {"blocks_per_sm": (1, 2, 4, 8)},
        "TMA": {"copy": "tma"},
    }

    tile_rows = choice(64, 16, 32, 128, 256)  # elements along the contiguous dimension of what is transposed
    tile_columns = choice(64, 16, 32, 128, 256)  # elements along that of the output
    load_bytes = choice(16, 8, 4, 2, 1)  # of a vector of the widest input that is transposed
    store_bytes = choice(16, 8, 4, 2, 1)  # of a vector of the widest output
    shift = choice(
        "none", "load", "store", "both"
    )  # sides whose lines no vector is aligned to: aligned ones cover them
    pad = choice(1, 0, 3, 5, 7)  # shared memory: words between rows, an odd number apart; 0: 16-byte units permuted
    threads = choice(256, 128, 512)
    # Neighbouring blocks lie beside each other along this dimension; or diagonally, which kept the blocks of GPUs whose memory
    # was dealt out in a fixed order from meeting in one part of it: no search takes it.
    order = choice("columns", "rows", allows=("diagonal",))
    blocks_per_sm = choice(0, 1, 2, 4, 8)  # persistent blocks, each loading a tile ahead; 0: one tile a block
    load = choice("default", "no_allocate", "evict_last")
    store = choice("default", "streaming")
    copy = choice("vector", "tma", absent="vector")  # how lines are read: by all threads, or by TMA and from there

    @rule
    def vectors_of_whole_elements(self, problem: Problem, target: Target) -> bool:
        """a vector holds at least an element of the widest operand on its side"""
        t = _tiling(problem)
        return self.load_bytes >= t.in_bytes and self.store_bytes >= t.out_bytes

    @rule
    @vectorised
    def vectors_within_the_tile(self, problem: Problem, target: Target) -> Vector:
        """a tile is at least a vector long, and a vector, or a sector where it begins with one, and a word of bytes wide"""
        t = _tiling(problem)
        longest = maximum(self.vector_out(t), self.halo(t), 4)
        return (self.vector_in(t) <= self.tile_rows) & (longest <= self.tile_columns)

    @rule
    def aligned_loads(self, problem: Problem, target: Target) -> bool:
        """a vector's load needs the alignment of its line, where loads are not shifted"""
        t = _tiling(problem)
        return self.loads_shifted or all(self.loads_aligned(t, c) for c in t.transposed)

    @rule
    def aligned_stores(self, problem: Problem, target: Target) -> bool:
        """a vector's store needs the alignment of its row, where stores are not shifted"""
        t = _tiling(problem)
        return self.stores_shifted or all(c.strides[-1] != 1 or self.stores_aligned(t, c) for c in t.view.outputs)

    @rule
    def one_output_to_shift(self, problem: Problem, target: Target) -> bool:
        """stores are shifted where there is one output, with contiguous rows"""
        outputs = _tiling(problem).view.outputs
        return not self.stores_shifted or (len(outputs) == 1 and outputs[0].strides[-1] == 1)

    @rule
    @vectorised
    def rows_that_begin_alike(self, problem: Problem, target: Target) -> Vector:
        """where stores are shifted, the rows of a thread begin alike: whole sectors apart, counted in elements"""
        t = _tiling(problem)
        halo = self.halo(t)
        return (halo == 0) | (self.threads * self.vector_out(t) % (self.tile_columns * maximum(1, halo)) == 0)

    @pruning
    def shifts_that_are_needed(self, problem: Problem, target: Target) -> bool:
        """only what is not aligned is shifted"""
        t = _tiling(problem)
        loads = not self.loads_shifted or not all(self.loads_aligned(t, c) for c in t.transposed)
        return loads and (not self.stores_shifted or not all(self.stores_aligned(t, c) for c in t.view.outputs))

    @rule
    @vectorised
    def units_to_permute(self, problem: Problem, target: Target) -> Vector:
        """without padding whole 16-byte units are permuted, as many as a power of two: not where a side is shifted"""
        least = min(c.dtype.bytes for c in _tiling(problem).transposed)
        return (self.pad != 0) | ((self.shift == "none") & (self.tile_columns * least >= 32))

    @pruning
    def pads_that_differ(self, problem: Problem, target: Target) -> bool:
        """more than a word of padding is for lines that are not aligned: which is best depends on where they begin"""
        return self.pad < 3 or self.loads_shifted

    @rule
    def copy_of_the_target(self, problem: Problem, target: Target) -> bool:
        """TMA needs sm_90"""
        return self.copy == "vector" or sm(90).runs_on(target.arch)

    @rule
    def tma_addresses(self, problem: Problem, target: Target) -> bool:
        """TMA reads tensors of up to five axes of 32 bits, none backwards, addresses and strides multiples of 16 bytes"""
        if self.copy == "vector":
            return True
        t = _tiling(problem)
        return max(t.view.sizes) <= _LARGEST and all(
            c.align(t.view.sizes, t.row) >= 16 and len(self.box_axes(t, c)) <= 5
            and all(0 <= s * c.dtype.bytes < 2**40 for s in (c.offset and -1, *c.strides)) for c in t.transposed
        )  # fmt: skip

    @rule
    @sized
    def tma_boxes(self, problem: Problem, target: Target) -> Vector:
        """TMA takes boxes of at most 256 lines and elements, not shifted to their addresses, without a hint for L1"""
        if self.copy == "vector":
            return True
        columns = self.tile_columns + self.halo(_tiling(problem))
        plain = (not self.loads_shifted) & (self.load == "default")
        return plain & (self.tile_rows <= 256) & (columns <= 256)

    @pruning
    def tma_vectors(self, problem: Problem, target: Target) -> bool:
        """what TMA has copied is read by whole vectors of 16 bytes"""
        return self.copy == "vector" or self.load_bytes == 16

    @rule
    @vectorised
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """the tiles of all inputs that are transposed must fit in the shared memory of a block"""
        return self.smem_bytes(_tiling(problem)) <= target.smem_per_block

    @rule
    @sized
    def tiles_of_a_grid(self, problem: Problem, target: Target) -> Vector:
        """the number of tiles fits in 31 bits"""
        t = _tiling(problem)
        columns = vector.ceil_div(t.columns + maximum(1, self.halo(t)) - 1, self.tile_columns)
        return vector.ceil_div(t.rows, self.tile_rows) * columns * math.prod(t.view.sizes[d] for d in t.outer) < 2**31

    @rule
    @vectorised
    def registers(self, problem: Problem, target: Target) -> Vector:
        """what a thread loads at once fits in its registers: at most 256 bytes, and a quarter of that with 512 threads"""
        t = _tiling(problem)
        loaded = self.tile_rows * (self.tile_columns + self.halo(t)) * sum(c.dtype.bytes for c in t.transposed)
        loaded += self.tile_rows * self.tile_columns * sum(c.dtype.bytes for c in t.direct if any(c.strides))
        return loaded <= self.threads * where(self.threads < 512, 256, 128)

    @pruning
    @vectorised
    def work_for_all_threads(self, problem: Problem, target: Target) -> Vector:
        """every thread stores at least one vector of a tile"""
        return self.tile_rows * self.tile_columns >= self.threads * self.vector_out(_tiling(problem))

    @pruning
    @sized
    def tiles_within_the_problem(self, problem: Problem, target: Target) -> Vector:
        """a tile is less than twice as long as the problem, or the smallest there is"""
        t = _tiling(problem)
        rows = (self.tile_rows < 2 * t.rows) | (self.tile_rows == 16)
        return rows & ((self.tile_columns < 2 * t.columns) | (self.tile_columns == 16))

    @pruning
    @sized
    def long_lines(self, problem: Problem, target: Target) -> Vector:
        """a line of a tile is at least 32 bytes on both sides, where the problem is that long"""
        t = _tiling(problem)
        inside, outside = (min(c.dtype.bytes for c in part) for part in (t.transposed, t.view.outputs))
        return ((self.tile_rows * inside >= 32) | (self.tile_rows >= t.rows)) & (
            (self.tile_columns * outside >= 32) | (self.tile_columns >= t.columns)
        )

    @pruning
    @sized
    def hints_for_vectors(self, problem: Problem, target: Target) -> Vector:
        """hints for L1 are for vectors, they change nothing for single elements"""
        t = _tiling(problem)
        loads = (self.load != "no_allocate") | (self.vector_in(t) > 1)
        return loads & ((self.store == "default") | (self.vector_out(t) > 1))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """Where an input is contiguous along another dimension than the output."""
        return matches(problem.graph) and not problem.empty and tiling(problem) is not None

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The form; which lines of what operand are aligned to what."""
        t = _tiling(problem)
        aligned = tuple((c.align(t.view.sizes, t.row), c.align(t.view.sizes)) for c in t.view.memory)
        moved = tuple(tuple(min(s, 2) for s in c.strides) for c in t.view.columns)
        return problem.form, t.row, aligned, moved

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """A block for each tile, in the order of columns, by vectors: others are as fast at most (docs/notes/transpose.md)."""
        return cls.where(order="columns", blocks_per_sm=0, store="default", copy="vector")

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """Tiles of up to 128 rows or columns; L2 keeps what is read where it is full."""
        if field == "load":
            return (load_policy(problem, target),)
        return super().worth(field, problem, target) if field == "threads" else _TILES

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """Whole vectors where they are shifted."""
        return (self.loads_shifted & (self.load_bytes < 16)) | (self.stores_shifted & (self.store_bytes < 16))

    # Sizes.

    def vector_in(self, t: Tiling) -> Vector:
        """Elements of a vector that is loaded."""
        return maximum(1, self.load_bytes // t.in_bytes)

    def vector_out(self, t: Tiling) -> Vector:
        """Elements of a vector that is stored."""
        return maximum(1, self.store_bytes // t.out_bytes)

    @property
    def loads_shifted(self) -> bool:
        """Whether vectors are loaded from where lines are aligned."""
        return self.shift in ("load", "both")

    @property
    def stores_shifted(self) -> bool:
        """Whether vectors are stored to where rows are aligned."""
        return self.shift in ("store", "both")

    def loads_aligned(self, t: Tiling, c: Column) -> bool:
        """Whether the lines of an input are aligned to the vectors that are loaded."""
        return bool(self.vector_in(t) * c.dtype.bytes <= c.align(t.view.sizes, t.row))

    def stores_aligned(self, t: Tiling, c: Column) -> bool:
        """Whether the rows of an operand are aligned to the vectors that are stored."""
        return c.strides[-1] == 1 and min(16, self.vector_out(t) * c.dtype.bytes) <= c.align(t.view.sizes)

    def halo(self, t: Tiling) -> Vector:
        """Columns before a tile that its rows reach where stores are shifted: they begin where a sector does; else 0."""
        most = max(SECTOR // t.out_bytes, 4 // min(4, *(c.dtype.bytes for c in t.transposed)))
        return where(self.stores_shifted, maximum(self.vector_out(t), most), 0)

    def pitch(self, t: Tiling, size: int) -> Vector:
        """Bytes from a row in shared memory to the next, for elements of `size` bytes; see TransposedTile."""
        step = max(4, size)
        words = (self.tile_columns + self.halo(t)) * size // step
        return where(self.pad != 0, words // 2 * 2 + self.pad, words) * step

    def starts(self, t: Tiling) -> list[Vector]:
        """Where the tile of each input that is transposed begins in shared memory, in bytes, and where the last one ends."""
        rows = self.tile_rows + where(self.loads_shifted, 2 * self.vector_in(t), 0)
        sizes = [-(-rows * self.pitch(t, c.dtype.bytes) // 16) * 16 for c in t.transposed]
        return [0, *accumulate(sizes)]

    def boxes(self, t: Tiling) -> list[Vector]:
        """Where TMA leaves the lines of each input that is transposed, in bytes, and after the last one its barrier."""
        tiles = -(-self.starts(t)[-1] // 128) * 128
        return [*accumulate((-(-self.box_bytes(t, c) // 128) * 128 for c in t.transposed), initial=tiles)]

    def box_bytes(self, t: Tiling, c: Column) -> Vector:
        """Bytes of the lines of a tile of an input."""
        return self.tile_rows * (self.tile_columns + self.halo(t)) * c.dtype.bytes

    def box_axes(self, t: Tiling, c: Column) -> list[int]:
        """The dimensions along which a box of an input lies, in the order of its map: rows, columns, then those that move it."""
        return [t.row, len(t.view.sizes) - 1, *(d for d in t.outer if c.strides[d])]

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        """A tile with others on all sides is read and stored with fewer checks than those at the edges."""
        t = _tiling(problem)
        rows = self.tile_rows + int(self.vector_in(t))
        return (Dim(f"n{t.row}"), rows), (Dim(f"n{len(t.view.sizes) - 1}"), self.tile_columns)

    def smem_bytes(self, t: Tiling) -> Vector:
        """Shared memory of a block."""
        return self.boxes(t)[-1] + 8 if self.copy == "tma" else self.starts(t)[-1]

    def tiles_along(self, t: Tiling) -> tuple[Size, Size]:
        """The numbers of tiles along the rows' dimension and the columns', over the symbols."""
        columns = Dim(f"n{len(t.view.sizes) - 1}") + (max(1, self.halo(t)) - 1)
        return ceil_div(Dim(f"n{t.row}"), self.tile_rows), ceil_div(columns, self.tile_columns)

    def tiles(self, t: Tiling) -> Size:
        """The number of tiles, over the symbols."""
        rows, columns = self.tiles_along(t)
        count = rows * columns
        for d in t.outer:
            count = count * Dim(f"n{d}")
        return count

    def divisors(self, t: Tiling) -> dict[str, Size]:
        """What the number of a tile is divided by to find its place: numbers of tiles, and outer sizes."""
        rows, columns = self.tiles_along(t)
        along = {"row_tiles": rows, "column_tiles": columns}
        used = [*self.lines(t), *(["column_tiles"] if self.order == "diagonal" else [])]
        return {**{name: along[name] for name in used}, **{f"n{d}": Dim(f"n{d}") for d in t.outer[:0:-1]}}

    def lines(self, t: Tiling) -> list[str]:
        """The numbers of tiles that a tile's is divided by: those of a line, and where there are planes of the lines of one."""
        names = ["column_tiles", "row_tiles"] if self.order == "columns" else ["row_tiles", "column_tiles"]
        return names if t.outer else names[:1]

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        return view(problem).symbols(problem)

    def source(self, problem: Problem) -> Source:
        t = _tiling(problem)
        v = t.view
        limits = tuple(Limit(Dim(f"n{d}"), _LARGEST) for d in range(len(v.sizes)))
        wide = not all(limit.holds(v.symbols(problem)) for limit in limits)
        far = any(abs(s) >= 2**31 for c in v.columns for s in c.strides[:-1])
        boxes = self.boxes(t)
        transposed = tuple(self._transposed(t, c, *starts) for c, *starts in zip(t.transposed, self.starts(t), boxes))
        halo = self.halo(t)
        direct = tuple(Direct.input(access(c, v), not halo and self.stores_aligned(t, c)) for c in t.direct)
        positions = tuple(replace(a, align=1 if halo else a.align) for a in (access(c, v) for c in v.numbers))
        store = STORES[self.store] or ", StoreUnsplit"
        outputs = tuple(Direct.output(access(c, v), c.strides[-1] == 1, store) for c in v.outputs)
        text, names = function(problem, v)
        element = {a.name: a.element for a in (*direct, *positions)}
        element |= {a.name: f"{a.name}_items[i][e]" for a in transposed}
        blocks = self.tiles(t)
        if self.blocks_per_sm:
            blocks = minimum(blocks, SM_COUNT * self.blocks_per_sm)
        context = Context(
            rank=len(v.sizes),
            wide=wide,
            row=t.row,
            outer=t.outer,
            inputs=direct,
            transposed=transposed,
            direct=tuple(a for a in direct if a.kind != "scalar"),
            positions=positions,
            outputs=outputs,
            vector_in=self.vector_in(t),
            vector_out=self.vector_out(t),
            halo=halo,
            any_shifted=self.loads_shifted,
            barrier=boxes[-1],
            located=("along", "across", *(f"at.i{d}" for d in t.outer[::-1])),
            sizes=(*self.lines(t), *(f"n{d}" for d in t.outer[:0:-1])),
            policies=(
                *((f"Tile_{a.name}", a.tile) for a in transposed),
                *((f"Input_{a.name}", a.part) for a in direct if a.kind != "scalar"),
                *((f"Output_{a.name}", a.part) for a in outputs),
            ),
            load=LOADS[self.load],
            function=text,
            arguments=", ".join([*(element.get(n, n) for n in names), *(f"{y.name}_vector[e]" for y in outputs)]),
        )
        by_threads = (*(transposed if self.copy == "vector" else ()), *direct, *positions, *outputs)
        params = parameters(
            problem, v, by_threads, 64 if wide else 32, 64 if far else 32, {} if wide else self.divisors(t)
        )
        if self.copy == "tma":
            read = {a.pointer for a in by_threads}
            kept = tuple(p for p in params if not isinstance(p, Pointer) or p.name in read)
            params = (*(self._map(t, c) for c in t.transposed), *kept)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=params,
            launch=Launch((blocks, 1, 1), (self.threads, 1, 1), self.smem_bytes(t)),
            arch=max(self.arch(problem), sm(90)) if self.copy == "tma" else self.arch(problem),
            context=context,
            limits=() if wide else limits,
        )

    def _map(self, t: Tiling, c: Column) -> TensorMap:
        """What TMA knows of an input that is transposed: a box is the lines of a tile."""
        assert c.operand is not None
        axes = self.box_axes(t, c)
        names = [f"{t.view.strides_of(c)}_s{d}" for d in axes[1:]]
        box = (self.tile_rows, self.tile_columns + self.halo(t), *(1 for _ in axes[2:]))
        dtype = f32 if c.dtype is tf32 else c.dtype  # TMA rounds what it knows as tf32
        sizes, strides = tuple(Dim(f"n{d}") for d in axes), tuple(Dim(plain(name)) for name in names)
        return TensorMap(f"map_{c.name}", dtype, c.operand.name, "in", sizes, strides, box)

    def _transposed(self, t: Tiling, c: Column, start: int, box: int) -> Transposed:
        """The access of an input that is transposed, whose index along the rows needs no stride."""
        a = access(c, t.view)
        terms = tuple(replace(term, stride="") if term.dimension == t.row else term for term in a.terms)
        shifted = "true" if self.loads_shifted else "false"
        pitch, size = self.pitch(t, c.dtype.bytes), self.box_bytes(t, c)
        tile = f"TransposedTile<{a.ctype}, ROWS, COLUMNS + HALO, IN, {shifted}, {pitch}, THREADS>"
        return Transposed(**{**vars(a), "terms": terms}, tile=tile, start=start, box=box, box_bytes=size)

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Modelled time in seconds; see transpose_model."""
        return transpose_model.estimate(self, _tiling(problem), problem, target)
