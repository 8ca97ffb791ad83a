"""TransposeNarrow: matrices of a few rows or columns. The rows of a few elements are a span of memory, by way of shared memory.

A matrix of M x few elements is, for M rows of a block, one span of memory on that side, which moves by vectors of 16 bytes, and a
few lines on the other, along which neighbouring threads are neighbours. Batches follow one another on both sides, so that a block
may have rows of several of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Limit, Source
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.machine import Constants
from kgen.dsl.problem import WIDEST_ACCESS, NormalProblem, Problem, dense_strides
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.vector import Vector, chosen, maximum, minimum, where
from kgen.dsl.vector import ceil_div as ceil_div_vector
from kgen.ops.common.banks import bank_conflicts
from kgen.ops.common.memory_bound import SECTOR, MemoryBound, bytes_in_flight
from kgen.ops.elementwise.kernel import access, function, parameters
from kgen.ops.elementwise.tiling import Tiling, tiling
from kgen.ops.elementwise.view import Column, matches, view
from kgen.tuning_db.machines import constants

#: Elements of the longest rows of a span.
_MOST = 64
#: Vectors that a thread has under way, as in the template.
_AT_ONCE = 8
#: What a size is at most that is counted in 32 bits.
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class NarrowConstants(Constants, model="transpose_narrow"):
    """Times in seconds, `access` and `sector` in clocks; the last two are instructions of a warp."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    ends: float  # sectors at both ends of a block's part of a line, which others have a part of too
    block: float  # until the next block is started
    span: float  # of a block
    turn: float  # of the columns that a thread has under way, where they come from shared memory
    turn_fetched: float  # the same, where they come from memory
    access: float  # of a warp to elements in shared memory, in one bank each
    sector: float  # that a warp's access to a line touches
    vector: float
    element: float


@dataclass(frozen=True)
class Context:
    """What the template sees. `few`, `many` and `outer` (empty of one matrix) are names of sizes, of 64 bits if `wide`."""

    wide: bool
    few: str
    many: str
    outer: str
    input: str
    source_type: str
    output: str
    result_type: str
    function: str
    arguments: str


class TransposeNarrow(MemoryBound):
    """A block's rows of a few elements, as one span on that side."""

    template = "transpose_narrow.cu.j2"
    model = NarrowConstants
    target = sm(80)
    techniques = {
        "few columns are read": {"span": "input"},
        "few columns are written": {"span": "output"},
        "vectors along the lines": {"pack": (2, 4, 8, 16)},
    }

    span = choice("input", "output")  # the side whose rows are of a few elements
    pack = choice(1, 2, 4, 8, 16)  # elements of a vector along the lines of the other
    vectors = choice(1, 2, 4)  # of a thread, of each line
    threads = choice(128, 256, 64)

    @property
    def rows(self) -> Vector:
        """Rows of a block."""
        return self.threads * self.pack * self.vectors

    def few(self, t: Tiling) -> Vector:
        """Elements of a row of the span."""
        return where(self.span == "input", t.rows, t.columns)

    def many(self, t: Tiling) -> Vector:
        """Rows of a matrix."""
        return where(self.span == "input", t.columns, t.rows)

    def span_size(self, t: Tiling) -> Vector:
        """Bytes of an element of the span."""
        return where(self.span == "input", t.in_bytes, t.out_bytes)

    def line_size(self, t: Tiling) -> Vector:
        """Bytes of an element of the lines."""
        return where(self.span == "input", t.out_bytes, t.in_bytes)

    def most(self, t: Tiling) -> Vector:
        """Elements of the longest row that a block has room for: a power of two."""
        return where(self.span == "input", _room(t.rows), _room(t.columns))

    def smem_bytes(self, t: Tiling) -> Vector:
        return self.rows * self.most(t) * self.span_size(t)

    def arch(self, problem: Problem) -> Arch:
        """The least architecture with the dtypes, and with copies to shared memory that nobody waits for."""
        return max(super().arch(problem), sm(80))

    @rule
    @sized
    def short_rows(self, problem: Problem, target: Target) -> Vector:
        """rows have at most 64 elements"""
        return self.few(_tiling(problem)) <= _MOST

    @rule
    @sized
    def blocks_of_a_grid(self, problem: Problem, target: Target) -> Vector:
        """the number of blocks fits in 31 bits"""
        t = _tiling(problem)
        return ceil_div_vector(self.many(t) * math.prod(t.view.sizes[d] for d in t.outer), self.rows) <= _LARGEST

    @rule
    def aligned(self, problem: Problem, target: Target) -> bool:
        """a vector's access needs the alignment of its line"""
        t = _tiling(problem)
        line: Column = t.view.outputs[0] if self.span == "input" else t.transposed[0]
        along = -1 if self.span == "input" else t.row
        size = self.pack * line.dtype.bytes
        return self.pack == 1 or (size <= WIDEST_ACCESS and size <= line.align(t.view.sizes, along))

    @rule
    @sized
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """a block's rows must fit in its shared memory"""
        return self.smem_bytes(_tiling(problem)) <= target.smem_per_block

    @pruning
    @sized
    def several_blocks(self, problem: Problem, target: Target) -> Vector:
        """a multiprocessor has room for two blocks, so that one reads while another writes"""
        return target.resident_blocks(self.threads, 32, self.smem_bytes(_tiling(problem))) >= 2

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """One input and one output, both dense, with their last two dimensions exchanged."""
        return matches(problem.graph) and not problem.empty and is_exchanged(problem)

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """where a side has rows of a few elements"""
        return min(problem.leading[-2:]) <= _MOST

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The form; the number of dimensions, and what lines are aligned to."""
        t = _tiling(problem)
        aligned = tuple((c.align(t.view.sizes, t.row), c.align(t.view.sizes)) for c in t.view.memory)
        return problem.form, t.row, aligned

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """Blocks of 256 threads, of which fewer read while others write: 5% slower in the mean (docs/notes/transpose.md)."""
        return where(self.threads > 128, 1, 0)

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        return view(problem).symbols(problem)

    def source(self, problem: Problem) -> Source:
        t = _tiling(problem)
        v, last = t.view, len(t.view.sizes) - 1
        few, many = (t.row, last) if self.span == "input" else (last, t.row)
        x, y = access(t.transposed[0], v), access(v.outputs[0], v)
        text, names = function(problem, v)
        outer: tuple[int, ...] = t.outer
        rows: Size = Dim(f"n{many}")
        for d in outer:
            rows = rows * Dim(f"n{d}")
        limits = tuple(Limit(size, _LARGEST) for size in (Dim(f"n{few}"), Dim(f"n{many}"), *([rows] if outer else [])))
        wide = not all(limit.holds(v.symbols(problem)) for limit in limits)
        divisors = {f"n{many}": Dim(f"n{many}")} if outer and not wide else {}
        context = Context(
            wide=wide,
            few=f"n{few}",
            many=f"n{many}",
            outer="".join(f"n{d}" for d in outer),
            input=x.pointer,
            source_type=x.ctype,
            output=y.pointer,
            result_type=y.ctype,
            function=text,
            arguments=", ".join([*("items[v][i][e]" if n == x.name else n for n in names), "results[e]"]),
        )
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=parameters(problem, v, (), 64 if wide else 32, 32, divisors),
            launch=Launch((ceil_div(rows, self.rows), 1, 1), (self.threads, 1, 1), int(self.smem_bytes(t))),
            arch=self.arch(problem),
            context=context,
            limits=(Limit(Dim(f"n{few}"), int(self.most(t))), *(() if wide else limits)),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """The longest of: the bytes (by Little's law), the instructions, L1 and shared memory, the blocks of an SM."""
        k = constants(NarrowConstants, target)
        t = _tiling(problem)
        few, line = self.few(t), self.line_size(t)
        blocks = ceil_div_vector(self.many(t) * math.prod(t.view.sizes[d] for d in t.outer), self.rows)
        most = ceil_div_vector(blocks, target.sm_count)
        resident = maximum(1, minimum(most, target.resident_blocks(self.threads, 32, self.smem_bytes(t))))
        under_way = where(self.span == "input", few, minimum(few, _AT_ONCE / self.vectors))
        enough = resident * self.rows * under_way * t.in_bytes / bytes_in_flight(target, k.latency)
        cut = where(self.pack * line < WIDEST_ACCESS, 1, 0)  # lines may begin anywhere
        flow = target.bandwidth * k.memory * enough / (1 + enough**4) ** 0.25
        flow = flow / (1 + cut * k.ends * SECTOR / (self.rows * line))
        accesses = most * self.threads / 32 * self.vectors * few  # of warps to vectors of lines
        apart = {pack: self._conflicts(t, pack) for pack in (1, 2, 4, 8, 16)}
        shared = accesses * (self.pack * chosen(self.pack, apart) * k.access)
        sectors = accesses * (32 * self.pack * line / SECTOR + cut) * k.sector
        issued = accesses * (k.vector + self.pack * k.element) / 4
        turns = ceil_div_vector(few, _AT_ONCE // self.vectors)
        alone = k.span + turns * where(self.span == "input", k.turn, k.turn_fetched)
        parts = (
            problem.bytes / maximum(flow, 1.0),
            (shared + sectors) / target.clock_hz,
            issued / target.clock_hz,
            most / resident * alone,
            blocks * k.block,
        )
        return k.start + sum(part**4 for part in parts) ** 0.25

    def _conflicts(self, t: Tiling, pack: int) -> Vector:
        """In how many parts a warp reads or writes an element of each of its vectors in shared memory."""
        read, written = (
            bank_conflicts(1, pack * t.rows, 0, t.in_bytes),
            bank_conflicts(1, pack * t.columns, 0, t.out_bytes),
        )
        return where(self.span == "input", read, written)


def _tiling(problem: Problem) -> Tiling:
    found = tiling(problem)
    assert found is not None
    return found


def is_exchanged(problem: Problem) -> bool:
    """Whether a problem has one input and one output, both dense, with their last two dimensions exchanged."""
    t = tiling(problem)
    if t is None:
        return False
    v = t.view
    if len(v.memory) != 2 or v.numbers or len(t.transposed) != 1 or t.row != len(v.sizes) - 2 or len(v.sizes) > 3:
        return False
    *outer, rows, columns = v.sizes
    (x,), (y,) = t.transposed, v.outputs
    *head, across, along = dense_strides((*outer, columns, rows))
    aligned = all(c.operand is not None and c.operand.align % WIDEST_ACCESS == 0 for c in (x, y))
    return aligned and not x.offset and x.strides == (*head, along, across) and y.strides == dense_strides(v.sizes)


def _room(elements: int) -> int:
    """The least power of two from 4 on that is no less."""
    return 1 << max(2, (elements - 1).bit_length())
