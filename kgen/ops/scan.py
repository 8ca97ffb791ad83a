"""Scan: what each element of a row and all before it come to (cumsum, cumprod, logcumsumexp), of any expression and into any.

`row_threads` threads of a block share a row, which they go through tile by tile, so that it is read and written once whatever
its length; what is before a tile stays in registers. A row is never shared by blocks: few long rows leave a GPU idle.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from kgen.codegen.expression import Argument, pointwise_function, walk_to
from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Scalar, Source
from kgen.dsl import functions as F
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.expr import Expr, walk
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.operator import Graph, Operator, Tensor
from kgen.dsl.ops import LEAVES, POINTWISE, SCANS, accumulator
from kgen.dsl.problem import NormalProblem, Operand, Problem, common_alignment
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size, dims, prod
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Target
from kgen.dsl.types import DType, bf16, dtype_var, f16, f32, f64, i64
from kgen.dsl.vector import Vector, ceil_div, log2, maximum, minimum, where
from kgen.ops.common import axes, row_state
from kgen.ops.common.memory_bound import LINE, LOADS, STORES, VectorSchedule, bytes_in_flight, narrowness
from kgen.ops.rowwise.access import Access, Reached
from kgen.ops.rowwise.kernel import accesses
from kgen.ops.rowwise.plan import full_shape, has_full_shape
from kgen.ops.rowwise.problem import LONGEST, normalise, suites
from kgen.tuning_db.machines import constants

(N,) = dims("N")
T = dtype_var("T", f16, bf16, f32, f64)
#: Sums of integers too: torch sums those of any width in i64.
S = dtype_var("S", f16, bf16, f32, f64, i64)


@Operator
def cumsum(x: Tensor[S, ..., N]) -> Tensor[S, ..., N]:
    """The sum of the elements up to each one, along the last axis."""
    return F.cumsum(x)


@Operator
def cumprod(x: Tensor[S, ..., N]) -> Tensor[S, ..., N]:
    """The product of the elements up to each one, along the last axis."""
    return F.cumprod(x)


@Operator
def logcumsumexp(x: Tensor[T, ..., N]) -> Tensor[T, ..., N]:
    """log(sum(exp(x))) of the elements up to each one, along the last axis, of any range."""
    return F.logcumsumexp(x)


OPERATORS = (cumsum, cumprod, logcumsumexp)


def matches(graph: Graph) -> bool:
    """Whether every result is a pointwise expression of inputs and of scans along the last axis, none of them of another."""
    nodes = graph.nodes
    scans = [n for n in nodes if n.op in SCANS]
    if not scans or not all(n.op in LEAVES or n.op in POINTWISE or n.op in SCANS for n in nodes):
        return False
    if any(n.op in SCANS for scan in scans for n in walk(scan.args)) or not has_full_shape(graph):
        return False
    full = full_shape(graph)
    row = full.dims[-1]
    lasts = {x.dims[-1] for x in (*(n.shape for n in nodes), *(s.shape for s in graph.inputs)) if x.dims}
    if row == 1 or not lasts <= {row, 1} or any(scan.shape.dims[-1] != row for scan in scans):
        return False
    return all(y.shape == full for y in graph.outputs)


@dataclass(frozen=True)
class Along:
    """An operand as the template writes it: `kind` is "row" where it runs along the row, else "value".

    `policy` is the C++ type by which its vectors are loaded or stored (templates/common/operand.cuh), `step` what neighbours are
    apart.
    """

    access: Access
    kind: str
    pointer: str
    row: str
    element: str
    step: str
    policy: str

    @property
    def name(self) -> str:
        return self.access.name

    @property
    def ctype(self) -> str:
        return self.access.ctype

    @classmethod
    def of(cls, a: Access, rank: int, output: bool, vectors: str) -> Along:
        """`vectors` is the policy of accesses by vectors, ", LoadEvictLast" for one."""
        kind = "row" if a.kind in ("full", "column") else "value"
        pointer = f"{a.ctype}* const {a.name}_row" if output else f"const {a.ctype}* const {a.name}_row"
        stride = f"{a.name}_s{rank - 1}" if a.strided else ""
        element = f"{a.name}_row + column{f' * {stride}' if stride else ''}"
        way, unit = "Output" if output else "Input", "" if a.strided else vectors
        policy = f"{'Strided' if a.strided else 'Unit'}{way}<{a.ctype}, PACK{unit}>"
        return cls(a, kind, pointer, Reached(a, rank, "", "", "").row(), element, stride or "1", policy)


@dataclass(frozen=True)
class Scanned:
    """A scan: the variable of what it is of and its type, its state, and how its value is read there."""

    name: str
    ctype: str
    state: str
    value: str


@dataclass(frozen=True)
class Function:
    """A generated function of one element, and what it is called with."""

    text: str
    arguments: str


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    index_type: str
    length: str
    rows: str
    inputs: tuple[Along, ...]
    outputs: tuple[Along, ...]
    scans: tuple[Scanned, ...]
    values: Function
    finish: Function


@dataclass(frozen=True)
class ScanConstants(Constants, model="scan"):
    """Times in seconds, `line` in clocks; the last four are instructions."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    narrow: float  # how much longer it takes for each halving of a vector of 16 bytes
    line: float  # of a line that a warp's access touches
    latency: float  # for which an SM's share of the bandwidth is to be under way
    threads: float  # the share of an SM's threads that are there
    tile: float  # of a row's tile, which waits for the one before
    element: float  # of a thread's element in a tile
    barrier: float  # where several warps share a row
    work: float  # an element of a scan
    exponential: float  # the same, where exponentials are added
    combine: float  # of two lanes' states
    barrier_instructions: float


class Scan(VectorSchedule):
    """Tiles of a row one after the other, each read and written once."""

    template = "scan.cu.j2"
    model = ScanConstants
    by_class = ("threads",)
    techniques = {
        "single elements": {"pack": 1, "vectors": 1},
        "several rows a warp": {"row_threads": (1, 2, 4, 8, 16)},
        "a warp a row": {"row_threads": 32},
        "a block a row": {"row_threads": (64, 128, 256, 512, 1024)},
        "several vectors in flight": {"vectors": (2, 4, 8)},
    }

    pack = choice(8, 4, 16, 2, 1)  # elements of one vector
    vectors = choice(1, 2, 4, 8)  # of a thread in a tile
    row_threads = choice(32, 64, 128, 256, 512, 1024, 16, 8, 4, 2, 1)  # of a block, that share a row
    threads = choice(128, 256, 512, 1024, 64, 32)
    load = choice("default", "no_allocate", "evict_last")
    store = choice("default", "streaming")

    @rule
    @vectorised
    def rows_of_a_block(self, problem: Problem, target: Target) -> Vector:
        """a block has one row, or several of at most a warp each"""
        return (self.row_threads == self.threads) | (self.row_threads <= minimum(32, self.threads))

    @rule
    @sized
    def short_enough(self, problem: Problem, target: Target) -> bool:
        """columns are counted in 32 bits: at most 2^30"""
        return problem.leading[-1] <= LONGEST

    @pruning
    @vectorised
    def registers(self, problem: Problem, target: Target) -> Vector:
        """a thread's vectors of a tile and their states fit in its registers: at most 160 bytes, 80 with 1024 threads"""
        held = self.vectors * (self.pack * _input_bytes(problem) + _state_bytes(problem.graph))
        return (self.vectors == 1) | (held <= where(self.threads == 1024, 80, 160))

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """no row has more than twice the threads that have something to do"""
        return (self.row_threads == 1) | (self.row_threads * self.pack < 4 * max(problem.leading[-1], 1))

    @pruning
    def plain_single_elements(self, problem: Problem, target: Target) -> bool:
        """cache hints are for vectors, they change nothing for single elements"""
        return self.pack > 1 or (self.load == "default" and self.store == "default")

    @classmethod
    def vectors_of(cls, problem: Problem) -> Iterable[tuple[float, int]]:
        for a, o in _along(problem):
            if not a.strided:
                steps = [s * a.bytes for s, n in zip(o.strides[:-1], o.shape) if n > 1]
                yield a.bytes, common_alignment(o.align, *steps)

    @classmethod
    def widest(cls, problem: Problem) -> int:
        return max(a.bytes for a, _ in _along(problem))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and what its rows are aligned to."""
        return problem.graph.digest, accesses(problem), tuple(cls.vectors_of(problem))

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """Vectors up to 16 bytes, plain loads and stores."""
        return cls.where(pack=cls.packs(problem), load="default", store="default")

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """Eight vectors of single elements alone, by a warp or more: of others four were as fast, or faster."""
        return where((self.vectors == 8) & ((self.pack > 1) | (self.row_threads < 32)), 1, 0)

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """A block of 128 threads has as many rows as it takes."""
        return (maximum(128, self.row_threads),)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> Scan:
        """The best of the configs that a search considers, by the model."""
        from kgen.tuner.best import best  # here, as it loads numpy

        return best(cls, problem, target)[0]

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        found = dict(problem.bindings)
        for o in problem.operands:
            found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
        return found

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim(f"n{len(problem.leading) - 1}"), self.row_threads * self.pack * self.vectors),)

    def source(self, problem: Problem) -> Source:
        rank = len(problem.leading)
        limit = Limit(prod(Dim(f"n{d}") for d in range(rank - 1)), 2**31 - 1)
        wide = not limit.holds(self.symbols(problem))
        writer = _Writer(problem, LOADS[self.load], STORES[self.store])
        outer = [f"n{d}" for d in range(rank - 1)]
        context = Context(
            index_type="unsigned long long" if wide else "unsigned",
            length=f"n{rank - 1}",
            rows=" * ".join([f"static_cast<Index>({outer[0]})", *outer[1:]]),
            inputs=writer.inputs,
            outputs=writer.outputs,
            scans=writer.scans,
            values=writer.values,
            finish=writer.finish,
        )
        rows: Size = Dim("n0")
        for d in range(1, rank - 1):
            rows = rows * Dim(f"n{d}")
        warps = self.row_threads // 32 if self.row_threads > 32 else 0
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=_parameters(problem, 64 if wide else 32),
            launch=Launch(
                (ceil_div_size(rows, self.threads // self.row_threads), 1, 1),
                (self.threads, 1, 1),
                2 * warps * _state_bytes(problem.graph),
            ),
            arch=self.arch(problem),
            context=context,
            limits=() if wide else (limit,),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Time to move the bytes, at the bandwidth where enough of them are in flight (Little's law), or that of a row's tiles.

        Or of the instructions: of the elements, and of a tile's shuffles.
        """
        k = constants(ScanConstants, target)
        *outer, length = problem.leading
        rows, tile = math.prod(outer), self.row_threads * self.pack * self.vectors
        tiles = maximum(1, ceil_div(length, tile))
        warps = ceil_div(rows * self.row_threads, 32)
        resident = minimum(target.max_threads_per_sm * k.threads, 32 * warps / target.sm_count)
        flight = (
            resident * self.pack * self.vectors * _input_bytes(problem) / maximum(1.0, tiles * tile / max(length, 1))
        )
        enough = flight / bytes_in_flight(target, k.latency)
        flow = target.bandwidth * k.memory * enough / (1 + enough**4) ** 0.25
        flow = flow / narrowness(self.pack * _input_bytes(problem), k.narrow)
        waves = maximum(1.0, 32 * warps / (target.sm_count * target.max_threads_per_sm * k.threads))
        several = self.row_threads > 32
        latency = k.tile + k.element * self.vectors * self.pack + where(several, k.barrier, 0.0)
        work = sum(k.exponential if scan.op == "logcumsumexp" else k.work for scan in _scans(problem.graph))
        shuffles = k.combine * log2(2 * minimum(32, self.row_threads)) * self.vectors
        shuffles = shuffles + where(several, k.barrier_instructions, 0.0)
        instructions = warps * tiles * (self.pack * self.vectors * work + shuffles)
        issued = instructions / (4 * target.sm_count * target.clock_hz * minimum(1.0, resident / 512))
        parts = (
            problem.bytes / maximum(flow, 1.0),
            issued,
            self._lines(problem, warps * tiles, target),
            tiles * latency * waves,
        )
        return k.start + sum(part**4 for part in parts) ** 0.25

    def _lines(self, problem: Problem, tiles: Vector, target: Target) -> Vector:
        """Seconds for the lines that warps touch in so many tiles: the rows of a warp lie apart, but short ones share lines."""
        k, length = constants(ScanConstants, target), max(problem.leading[-1], 1)
        rows = 32 / minimum(32, self.row_threads)
        found: Vector = 0.0
        for a, _ in _along(problem):
            stretch = minimum(self.row_threads, 32) * self.pack * a.bytes / LINE
            found = found + maximum(1.0, minimum(rows * (stretch + 1), rows * length * a.bytes / LINE))
        return tiles * self.vectors * found * k.line / (target.sm_count * target.clock_hz)


class _Writer:
    """The functions of a problem's graph, and the leaves that are their arguments."""

    def __init__(self, problem: Problem, load: str, store: str) -> None:
        rank, graph = len(problem.leading), problem.graph
        inputs, outputs = accesses(problem)
        used = {n.attr for n in graph.nodes if n.op == "input"}
        reached = {o.name: Along.of(a, rank, False, load) for o, a in zip(problem.inputs, inputs) if o.name in used}
        self.inputs = tuple(reached.values())
        self.outputs = tuple(Along.of(a, rank, True, store) for a in outputs)
        self.fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        self.leaves: dict[int, tuple[Argument, str]] = {}
        for node in graph.nodes:
            if node.op == "input":
                x = reached[node.attr]
                self._leaf(
                    node, x.name, x.access.dtype, f"{x.name}_items[v][e]" if x.kind == "row" else f"{x.name}_value"
                )
            elif node.op == "scalar":
                self._leaf(node, identifier(node.attr), node.dtype, identifier(node.attr))
        scans = _scans(graph)
        self.scans = tuple(self._scanned(node, f"value{i}") for i, node in enumerate(scans))
        self.values = self._function(
            "values", [n.args[0] for n in scans], [accumulator(n) for n in scans], [s.name for s in self.scans]
        )
        for i, (node, scan) in enumerate(zip(scans, self.scans)):
            self._leaf(node, f"{node.op}{i}", accumulator(node), f"get<{i}>(state).{scan.value}")
        self.finish = self._function(
            "finish", graph.results, [o.dtype for o in problem.outputs], [f"{y.name}_vector[e]" for y in self.outputs]
        )

    def _leaf(self, node: Expr, name: str, dtype: DType, passed: str) -> None:
        self.leaves[id(node)] = (Argument(node, name, dtype), passed)

    def _scanned(self, node: Expr, name: str) -> Scanned:
        ctype = accumulator(node).ctype
        if node.op == "logcumsumexp":
            exp = "FastExp" if self.fast else "PreciseExp"
            return Scanned(name, ctype, f"LogSumExpState<{ctype}, {exp}>", "value()")
        return Scanned(name, ctype, f"{'ProductState' if node.op == 'cumprod' else 'SumState'}<{ctype}>", "value")

    def _function(self, name: str, roots: Sequence[Expr], dtypes: Sequence[DType], results: Sequence[str]) -> Function:
        stops = {i: argument for i, (argument, _) in self.leaves.items()}
        needed = dict.fromkeys(id(n) for root in roots for n in walk_to(root, stops) if id(n) in stops)
        taken = [self.leaves[i] for i in needed]
        text = pointwise_function(name, [argument for argument, _ in taken], roots, dtypes, self.fast)
        return Function(text, ", ".join([*(passed for _, passed in taken), *results]))


@functools.lru_cache(maxsize=256)
def _scans(graph: Graph) -> tuple[Expr, ...]:
    return tuple(n for n in graph.nodes if n.op in SCANS)


def _state_bytes(graph: Graph) -> int:
    members = [[accumulator(n).bytes] * (2 if n.op == "logcumsumexp" else 1) for n in _scans(graph)]
    return row_state.state_bytes(members)


def _along(problem: Problem) -> list[tuple[Access, Operand]]:
    """The operands that run along the row."""
    inputs, outputs = accesses(problem)
    pairs = zip((*inputs, *outputs), problem.operands)
    return [(a, o) for a, o in pairs if a.kind in ("full", "column")]


def _input_bytes(problem: Problem) -> int:
    """Bytes of an element over the inputs along the row."""
    return sum(a.bytes for a in accesses(problem)[0] if a.kind in ("full", "column")) or 1


def _parameters(problem: Problem, bits: int) -> tuple[Param, ...]:
    """Pointers, sizes, the strides that are not known, scalars."""
    rank = len(problem.leading)
    inputs, outputs = accesses(problem)
    params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
    params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
    params += [Integer(f"n{d}", Dim(f"n{d}"), 64 if bits == 64 else 32) for d in range(rank - 1)]
    params.append(Integer(f"n{rank - 1}", Dim(f"n{rank - 1}"), most=LONGEST))
    for a in (*inputs, *outputs):
        params += [Integer.stride(f"{a.name}_s{d}") for d in (*a.moving, *([rank - 1] if a.strided else []))]
    return (*params, *(Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars))


family = register_family(Family("scan", (Scan,), matches, normalise, axes.dims, suites))
