"""GatherSum: scatter_add at ids that never fall from one position to the next, such as upsampling's gradient: no atomics.

The positions with one id lie side by side then. Where they begin is searched (`monotone` in kgen/dsl/ranges.py says
of which ids that is known), and every element gathers what belongs to it: one launch, the same bits each time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Scalar, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import Expr, Shape, walk
from kgen.dsl.machine import Constants
from kgen.dsl.operator import Graph
from kgen.dsl.ops import LEAVES, POINTWISE
from kgen.dsl.problem import NormalProblem, Operand, Problem
from kgen.dsl.ranges import monotone
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size, ceil_div, evaluate, prod
from kgen.dsl.target import Target
from kgen.dsl.types import compute_dtype
from kgen.ops.common.access_text import AccessText
from kgen.ops.common.lowering import Axis, Found, Lowering, Read, size_name
from kgen.ops.common.memory_bound import MemoryBound, bytes_in_flight
from kgen.tuning_db.machines import constants

_LEAVES = LEAVES | {"size"}


@dataclass(frozen=True)
class Sums:
    """The one sum of a graph: `node`, what is summed, and for each axis with a window (from the end) the ids along it."""

    node: Expr
    values: Expr
    windows: tuple[tuple[int, Expr], ...]


def sums(graph: Graph) -> Sums | None:
    """The sum that all results are pointwise over, where ids are such that it can be gathered; else None."""
    nodes = graph.nodes
    found = [n for n in nodes if n.op == "scatter_add"]
    inner = {id(n.args[1]) for n in found}
    top = [n for n in found if id(n) not in inner]
    if len(top) != 1 or any(spec.shape != top[0].shape for spec in graph.outputs):
        return None
    node, windows = top[0], list[tuple[int, Expr]]()
    while node.op == "scatter_add":
        ids, values = node.args
        _, axis, total = node.attr
        rows = values.shape.dims and ids.shape.dims == (values.shape.dims[axis],) and not ids.shape.leading
        if not rows or not monotone(ids) or total is not compute_dtype(total) or axis in dict(windows):
            return None
        windows.append((axis, ids))
        node = values
    plain = POINTWISE | _LEAVES | {"arange"}
    behind = {id(n) for n in walk((top[0],))} - {id(n) for n in walk((node,))}
    if not all(n.op in POINTWISE | _LEAVES for n in walk((node,))):
        return None
    if not all(n.op in plain or n is top[0] or id(n) in behind for n in nodes):
        return None
    return Sums(top[0], node, tuple(windows))


def matches(graph: Graph) -> bool:
    """Whether the results are pointwise over one sum whose ids do not fall."""
    return sums(graph) is not None


@dataclass(frozen=True)
class Window:
    """An axis with a window as the template writes it: how many positions there are, and the parameters of its ids' function."""

    axis: int
    positions: str
    parameters: str
    given: str
    arguments: str


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    last: int
    wide: bool
    sum_type: str
    used_axes: tuple[int, ...]
    windows: tuple[Window, ...]
    outer: tuple[Window, ...]
    across: Window | None
    whole: bool
    functions: str
    value: str
    value_arguments: str
    compute: str
    arguments: str
    reads: tuple[AccessText, ...]
    outputs: tuple[AccessText, ...]


@dataclass(frozen=True)
class Plan:
    """A problem lowered: what is summed, at axes beyond the rank where there are windows; and the results, over the sum."""

    problem: Problem
    lowering: Lowering
    windows: tuple[tuple[int, Expr], ...]
    value: Expr
    reads: tuple[Read, ...]
    total: Expr
    results: tuple[Expr, ...]
    sizes: tuple[int, ...]

    @property
    def last(self) -> int:
        return len(self.sizes) - 1

    @property
    def across(self) -> bool:
        """Whether the last axis has a window."""
        return any(axis == self.last for axis, _ in self.windows)

    def positions(self, axis: int) -> int:
        """How many positions a window's axis has."""
        for at, ids in self.windows:
            if at == axis:
                return evaluate(ids.shape.dims[0], self.problem.sizes)
        return self.sizes[axis]

    def kind(self, read: Read) -> str:
        """How what is summed is read; see AccessText."""
        axis = len(read.operand.shape) - 1
        if all(a != axis or not isinstance(c, Axis) or c.number % len(self.sizes) != self.last for c, a in read.terms):
            return "one"
        return "vector" if read.operand.strides[-1] == 1 else "strided"


@functools.lru_cache(maxsize=256)
def plan(problem: Problem) -> Plan:
    """A problem, normalised, lowered."""
    found = sums(problem.graph)
    assert found is not None
    sizes = problem.outputs[0].shape
    rank = len(sizes)
    windows = tuple((rank + axis, ids) for axis, ids in found.windows)
    at = [Axis(a + rank if a in dict(windows) else a) for a in range(rank)]
    named = len(found.values.shape.dims)
    lowering = Lowering(problem, rank)
    head = at[: rank - named] if found.values.shape.leading else []
    inner = [None if size == 1 else c for c, size in zip(at[rank - named :], found.values.shape.dims)]
    value = lowering.lower(found.values, (*head, *inner), ())
    reads = tuple(s for s in lowering.steps if isinstance(s, Read))
    total = Expr("total", (), found.node.dtype, Shape(), None)
    lowering.define(found.node, lowering.coordinates(found.node.shape), total)
    results = tuple(lowering.result(i) for i in range(len(problem.outputs)))
    return Plan(problem, lowering, windows, value, reads, total, results, sizes)


@dataclass(frozen=True)
class GatherSumConstants(Constants, model="gather_sum"):
    """Times in seconds; `clock` is that by which instructions count."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    threads: float  # the share of an SM's threads that are there
    clock: float
    search: float  # instructions of a search for the ends of a window
    row: float  # of a row
    lesser: float  # the part of the shorter of memory and instructions that the longer does not hide


class GatherSum(MemoryBound):
    """A warp makes a stretch of columns of some rows: vectors over the outer windows, then shared memory along the columns."""

    template = "gather_sum.cu.j2"
    techniques = {
        "single elements": {"pack": 1},
        "vectors": {"pack": (2, 4, 8)},
        "several rows in flight": {"rows": (2, 4)},
    }

    pack = choice(1, 2, 4, 8)  # elements of one vector of what is summed
    columns = choice(4, 1, 2, 8)  # of a row that a lane makes, where the last axis has a window
    rows = choice(2, 1, 4)  # that a warp has in flight
    rounds = choice(1, 2, 4, 8)  # times that a warp takes so many rows
    taps = choice(2, 1, 4)  # positions of a window that are added at once
    threads = choice(256, 128, 512)

    # Not a VectorSchedule: beside its alignment only the registers limit a vector, vectors of 64 bytes included.
    @rule
    def aligned(self, problem: Problem, target: Target) -> bool:
        """a vector's access needs the alignment of its operand (pack * size, at most 16 bytes)"""
        p = plan(problem)
        found = [r.operand for r in p.reads if p.kind(r) == "vector"]
        found += [] if p.across else [o for o in problem.outputs if o.strides[-1] == 1]
        return all(min(16, self.pack * o.dtype.bytes) <= o.row_align for o in found)

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """the sums of all warps must fit in half of the shared memory of a block"""
        return 2 * self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def axes_of_32_bits(self, problem: Problem, target: Target) -> bool:
        """every axis has fewer than 2^31 - 2^16 elements"""
        p = plan(problem)
        return max(*p.sizes, *(p.positions(a) for a in range(len(p.sizes))), 0) < 2**31 - 2**16

    @pruning
    def columns_of_windows(self, problem: Problem, target: Target) -> bool:
        """without a window along the last axis, the columns of a lane are those of a vector"""
        return plan(problem).across or self.columns == 4

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """what a thread has in flight fits in its registers: at most 128 bytes of vectors, and 32 sums"""
        p = plan(problem)
        row = self.pack * sum(r.operand.dtype.bytes for r in p.reads)
        taps = self.taps if any(a != p.last for a, _ in p.windows) else 1
        return self.rows * taps * row <= 128 and self.rows * self.pack <= 32

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> GatherSum:
        """The widest legal vectors of at most 16 bytes, and as many columns as make a chunk of positions."""
        p = plan(problem)
        widest = max((r.operand.dtype.bytes for r in p.reads), default=4)
        ratio = p.positions(p.last) / max(1, p.sizes[-1])
        windows = [p.positions(a) / max(1, p.sizes[a]) for a, _ in p.windows]
        taps = 1 if max(windows) <= 1 else 2 if max(windows) <= 2 else 4
        for pack in (b for b in (8, 4, 2, 1) if b == 1 or b * widest <= 16):
            columns = max((c for c in (1, 2, 4, 8) if c == 1 or c * ratio <= pack), default=1) if p.across else 4
            for rows in (2, 1):
                work = p.lowering.problem.outputs[0].elements / (32 * columns * rows)
                rounds = next((r for r in (8, 4, 2) if work / r >= 32 * target.sm_count), 1)
                config = cls(pack=pack, columns=columns, rows=rows, rounds=rounds, taps=taps, threads=128)
                if not config.rejections(problem, target):
                    return config
        raise ConfigError(f"no gather_sum config is valid for {problem}")

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. of the output, strides x_s0.., and the sizes of dimensions."""
        found = {f"n{d}": n for d, n in enumerate(problem.outputs[0].shape)}
        for o in problem.operands:
            found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
        return found | {f"size_{name}": n for name, n in problem.bindings}

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: the sums of a chunk of positions of each warp's rows."""
        p = plan(problem)
        return int(self.threads * self.pack * self.rows * p.total.dtype.bytes) if p.across else 0

    def width(self, problem: Problem) -> int:
        """Columns that a warp makes at a time."""
        return int(32 * (self.columns if plan(problem).across else self.pack))

    def source(self, problem: Problem) -> Source:
        p = plan(problem)
        writer = _Writer(p, self)
        rows = prod(Dim(f"n{d}") for d in range(p.last))
        context, stretches = writer.context(), ceil_div(Dim(f"n{p.last}"), self.width(problem))
        outer = range(p.last - 1, max(1, min(context.used_axes)) - 1, -1) if context.used_axes else ()
        divisors: dict[str, Size] = {"stretches": stretches, **{f"n{d}": Dim(f"n{d}") for d in outer}}
        warps = stretches * ceil_div(rows, self.rows * self.rounds)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=writer.parameters({} if context.wide else divisors),
            launch=Launch((ceil_div(warps, self.threads // 32), 1, 1), (self.threads, 1, 1), self.smem_bytes(problem)),
            arch=self.arch(problem),
            context=context,
            limits=() if context.wide else (writer.narrow_limit,),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Time to move the bytes with enough of them in flight, or to issue the instructions, whichever is longer."""
        p, k = plan(problem), constants(GatherSumConstants, target)
        summed = sum(r.operand.dtype.bytes for r in p.reads)
        taps = self.taps if any(a != p.last for a, _ in p.windows) else 1
        positions = math.prod(p.positions(a) for a in range(len(p.sizes)))
        elements = math.prod(p.sizes)
        wanted = bytes_in_flight(target, k.latency)
        warps = elements / (self.width(problem) * self.rows * self.rounds)
        threads = min(k.threads * target.max_threads_per_sm, 32 * max(1.0, warps / target.sm_count))
        flight = threads * self.rows * taps * self.pack * summed
        memory = problem.bytes / (target.bandwidth * k.memory * min(1.0, flight / wanted))
        ratio = p.positions(p.last) / max(1, p.sizes[-1])
        chunks = max(1, math.ceil(self.columns * ratio / self.pack)) if p.across else 1
        idle = chunks * self.pack / max(1e-9, self.columns * ratio) if p.across else 1.0
        searches = k.search * (self.columns + 1) / self.rounds if p.across else 0
        row = searches + k.row + 40 * len(p.sizes)
        lanes = elements / (self.width(problem) * self.rows) * 32
        loads = positions * (2.5 + 8 / self.pack) * min(idle, 4.0)
        issue = (lanes * row + loads + elements * 6 * max(1.0, ratio)) / (128 * target.sm_count * k.clock)
        return float(k.start + max(memory, issue) + k.lesser * min(memory, issue))


@dataclass(frozen=True)
class _Writer:
    """The texts of a plan for a config."""

    p: Plan
    config: GatherSum

    def at(self, c: Axis | Found, column: str) -> str:
        """A coordinate in C++; `column` is what stands for the last axis."""
        rank = len(self.p.sizes)
        if c.number % rank == self.p.last:
            return column
        return f"i{c.number}[i]" if c.number < rank else f"w{c.number - rank}"

    def offset(self, o: Operand, terms: Iterable[tuple[Axis | Found, int]], column: str) -> str:
        """The sum of coordinates times strides."""
        found = []
        for c, axis in terms:
            at = self.at(c, column)
            found.append(at if o.strides[axis] == 1 else f"steps({at}, {identifier(o.name)}_s{axis})")
        return " + ".join(found)

    def read(self, read: Read) -> AccessText:
        p, o = self.p, read.operand
        kind, axis = p.kind(read), len(o.shape) - 1
        rows = [t for t in read.terms if kind == "one" or t[1] != axis]
        name = identifier(o.name)
        return AccessText(read.name, o.dtype.ctype, name, kind, self.offset(o, rows, "position"), f"{name}_s{axis}")

    def output(self, o: Operand) -> AccessText:
        rows = [(Axis(a), a) for a in range(self.p.last) if o.strides[a]]
        return AccessText.output(o, self.offset(o, rows, ""))

    def leaf(self, leaf: Expr) -> str:
        """A leaf of the results in C++."""
        if leaf is self.p.total:
            return "total"
        if leaf.op == "read":
            read: Read = leaf.attr
            return f"{identifier(read.operand.name)}[{self.offset(read.operand, read.terms, 'column') or '0'}]"
        if leaf.op == "position":
            return f"static_cast<int>({self.at(leaf.attr, 'column')})"
        return Lowering.parameter(leaf)

    @property
    def wide(self) -> bool:
        """Whether the number of a row needs 64 bits."""
        return not self.narrow_limit.holds(self.config.symbols(self.p.problem))

    @property
    def narrow_limit(self) -> Limit:
        """Where the number of a row has 32 bits."""
        return Limit(prod(Dim(f"n{d}") for d in range(len(self.p.sizes))), 2**31 - 2**16 - 1)

    def windows(self) -> tuple[list[Window], str]:
        """The windows, the outermost first, and the functions of their ids."""
        found, texts = [], []
        for axis, ids in sorted(self.p.windows, key=lambda w: w[0]):
            lowering = Lowering(self.p.problem, 1)
            value = lowering.lower(ids, (Axis(0),), ())
            leaves = lowering.leaves((value,))
            named = [Argument(x, "position" if x.op == "position" else lowering.parameter(x), x.dtype) for x in leaves]
            texts.append(pointwise_function(f"find{axis}", named, [value], [value.dtype], fast=False))
            others = [a for a in named if a.name != "position"]
            found.append(
                Window(
                    axis,
                    size_name(ids.shape.dims[0]),
                    "".join(f", {a.dtype.ctype} {a.name}" for a in others),
                    "".join(f", {a.name}" for a in others),
                    ", ".join([*(a.name for a in named), "found"]),
                )
            )
        return found, "\n".join(texts)

    def context(self) -> Context:
        p, problem = self.p, self.p.problem
        windows, functions = self.windows()
        reads = tuple(map(self.read, p.reads))
        inner = p.lowering.leaves((p.value,))
        value = [Argument(x, p.lowering.parameter(x), x.dtype) for x in inner]
        outer = p.lowering.leaves(p.results)
        named = [Argument(x, "total" if x is p.total else p.lowering.parameter(x), x.dtype) for x in outer]
        outputs = tuple(map(self.output, problem.outputs))
        arguments = [self.leaf(x) for x in outer] + [f"{y.name}_value" for y in outputs]
        texts = [*(r.row for r in (*reads, *outputs)), *arguments]
        moved = {w.axis for w in windows if w.axis != p.last}
        used = tuple(a for a in range(p.last) if a in moved or any(f"i{a}[i]" in t for t in texts))
        fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        return Context(
            last=p.last,
            wide=self.wide,
            sum_type=p.total.dtype.ctype,
            used_axes=used,
            windows=tuple(windows),
            outer=tuple(w for w in windows if w.axis != p.last),
            across=next((w for w in windows if w.axis == p.last), None),
            whole=p.positions(p.last) % self.config.pack == 0,
            functions=functions,
            value=pointwise_function("value", value, [p.value], [p.total.dtype], fast),
            value_arguments=", ".join(
                [f"{x.attr.name}[t][i][e]" if x.op == "read" else p.lowering.parameter(x) for x in inner] + ["one"]
            ),
            compute=pointwise_function("compute", named, p.results, [o.dtype for o in problem.outputs], fast),
            arguments=", ".join(arguments),
            reads=reads,
            outputs=outputs,
        )

    def parameters(self, divisors: Mapping[str, Size]) -> tuple[Param, ...]:
        """Pointers, the output's sizes, inverses of `divisors`, strides that are used, sizes that ids refer to, numbers."""
        p, problem = self.p, self.p.problem
        params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
        params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
        params += [Integer(f"n{d}", Dim(f"n{d}")) for d in range(len(p.sizes))]
        params += [Integer.inverse(f"{name}_inverse", size) for name, size in divisors.items()]
        used: dict[str, None] = {}
        for r in (s for s in p.lowering.steps if isinstance(s, Read)):
            used |= {f"{identifier(r.operand.name)}_s{a}": None for _, a in r.terms if r.operand.strides[a] != 1}
        for o in problem.outputs:
            used |= {f"{identifier(o.name)}_s{a}": None for a, s in enumerate(o.strides) if s not in (0, 1)}
            used |= {f"{identifier(o.name)}_s{p.last}": None for s in o.strides[-1:] if s != 1}
        narrow = all(s < 2**31 for o in problem.operands for s in o.strides)
        params += [Integer.stride(name, 32 if narrow else 64) for name in used]
        sizes = {n.attr: None for _, ids in p.windows for n in walk((ids,)) if n.op == "size"}
        sizes |= {ids.shape.dims[0]: None for _, ids in p.windows}
        sizes |= {leaf.attr: None for leaf in p.lowering.sizes.values()}
        params += [Integer(size_name(d), Dim(size_name(d)) if isinstance(d, Dim) else d) for d in sizes]
        return (*params, *(Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars))


SCHEDULES: tuple[type[Schedule], ...] = (GatherSum,)
