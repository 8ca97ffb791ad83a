"""Gather: pointwise expressions over tensors that are reached by index (take), nested ones along several axes too.

Two classes of access come out of the graph. Rows: the last axis is untouched, so that whole vectors of it are read at an id
that is read once a row. Elements: the last axis itself is indexed; outputs are vectors all the same, inputs are read one by one,
through L1. A thread keeps its columns and moves over `items` rows, so that what follows from the column is worked out once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Scalar, Source
from kgen.dsl import vector
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.expr import Expr
from kgen.dsl.family import Family, register_family
from kgen.dsl.operator import Graph
from kgen.dsl.problem import NormalProblem, Operand, Problem, Sizes
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size, ceil_div, prod
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, maximum, where
from kgen.ops.common.access_text import AccessText
from kgen.ops.common.axes import dims
from kgen.ops.common.lowering import (
    Axis,
    Found,
    Id,
    Lowering,
    Read,
    collapse_leading,
    dim_names,
    is_gathered,
    size_name,
)
from kgen.ops.common.memory_bound import LOADS, STORES, VectorSchedule, load_policy
from kgen.ops.common.sizes import fill
from kgen.ops.gather import gather_model, gather_sum


@dataclass(frozen=True)
class StepText:
    """A step as the template writes it; see there."""

    name: str
    kind: str
    level: str
    value: str = ""  # the statement that finds an id
    ctype: str = ""
    pointer: str = ""
    row: str = ""
    column: str = ""
    hoisted: str = ""
    offset_type: str = ""
    guard: str = ""


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    rank: int
    last: int
    wide: bool
    ragged: bool
    checked: bool
    positions: bool
    used_axes: tuple[int, ...]
    next: tuple[str, ...]
    next_sizes: tuple[str, ...]
    functions: str
    compute: str
    arguments: str
    steps: tuple[StepText, ...]
    outputs: tuple[AccessText, ...]
    load: str
    store: str


@dataclass(frozen=True)
class Plan:
    """A problem lowered: steps and results over the axes `sizes` of the output, and how each step is done."""

    problem: Problem
    lowering: Lowering
    results: tuple[Expr, ...]
    sizes: tuple[int, ...]

    @property
    def last(self) -> int:
        return len(self.sizes) - 1

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[:-1])

    @property
    def reads(self) -> list[Read]:
        return [s for s in self.lowering.steps if isinstance(s, Read)]

    def level(self, axes: frozenset[int]) -> str:
        """What a value depends on: "row", "column", both ("element"), or on nothing ("fixed")."""
        if self.last not in axes:
            return "row" if axes else "fixed"
        return "column" if axes == {self.last} else "element"

    def column_terms(self, read: Read) -> list[tuple[Axis | Found, int]]:
        """The terms of an address that differ within a row."""
        return [(c, a) for c, a in read.terms if self.last in self.lowering.axes_of((c,))]

    def kind(self, read: Read) -> str:
        """How a read is done: "one" value for a row, a "vector", or "elements" one by one."""
        terms = self.column_terms(read)
        guarded = any(self.last in self.lowering.axes_of((Found(g),)) for g in read.guards)
        if not terms and not guarded:
            return "one"
        if terms == [(Axis(self.last), len(read.operand.shape) - 1)] and not guarded and read.operand.strides[-1] == 1:
            return "vector"
        return "elements"

    def is_found(self, read: Read) -> bool:
        """Whether it is anywhere: by an id that is read."""
        ids = {s.number for s in self.lowering.steps if isinstance(s, Id) and any(a.op == "read" for a in s.arguments)}
        return any(isinstance(c, Found) and c.number in ids for c, _ in read.terms)

    @property
    def vectors(self) -> list[Operand]:
        """The operands that are read or written by vectors."""
        found = [r.operand for r in self.reads if self.kind(r) == "vector"]
        return found + [o for o in self.problem.outputs if o.strides[-1] == 1]


@functools.lru_cache(maxsize=256)
def plan(problem: Problem) -> Plan:
    """A problem, normalised, lowered."""
    sizes = problem.outputs[0].shape
    lowering = Lowering(problem, len(sizes))
    results = tuple(lowering.result(i) for i in range(len(problem.outputs)))
    return Plan(problem, lowering, results, sizes)


def matches(graph: Graph) -> bool:
    """Whether the results are pointwise over what is taken; or over sums of outputs that were taken from an element."""
    ranked = all(spec.shape.dims or spec.shape.leading for spec in graph.outputs)
    return ranked and (is_gathered(graph) or gather_sum.matches(graph))


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default` and `small`: up to 256 or 64 along each of the named dimensions, 2^24 or 2^20 elements."""
    return {"default": [fill(graph, 2**24, 256)], "small": [fill(graph, 2**20, 64)]}


class Gather(VectorSchedule):
    """Vectors of the output, each read at its own place, by rows or element by element."""

    template = "gather.cu.j2"
    model = gather_model.GatherConstants
    by_size = ("load",)
    techniques = {
        "single elements": {"pack": 1},
        "vectors": {"pack": (2, 4, 8, 16), "items": 1},
        "vectors, several rows in flight": {"pack": (2, 4, 8, 16), "items": (2, 4, 8)},
        "streaming stores": {"store": "streaming"},
    }

    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    lanes = choice(
        32, 1, 2, 4, 8, 16, 64, 128, 256
    )  # threads along a row; those of a block that are left take other rows
    items = choice(1, 2, 4, 8)  # rows a thread has in flight
    threads = choice(256, 128, 512)
    load = choice("default", "no_allocate", "evict_last")  # of what is not one value a row
    store = choice("default", "streaming")

    @rule
    def whole_rows(self, problem: Problem, target: Target) -> bool:
        """the threads along a row are at most those of the block"""
        return self.lanes <= self.threads

    @rule
    @sized
    def blocks_of_the_grid(self, problem: Problem, target: Target) -> Vector:
        """the grid has at most 2^31 - 1 blocks"""
        p, rows = plan(problem), maximum(1, self.threads // self.lanes) * self.items
        return vector.ceil_div(p.sizes[-1], self.pack * self.lanes) * vector.ceil_div(p.rows, rows) < 2**31

    @rule
    def rows_in_flight(self, problem: Problem, target: Target) -> bool:
        """a problem without rows has one in flight"""
        return self.items == 1 or len(plan(problem).sizes) > 1

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """what is in flight fits in the registers of a thread: at most 128 bytes, and 32 elements that are read alone"""
        p = plan(problem)
        row = sum(r.operand.dtype.bytes for r in p.reads if p.kind(r) != "one")
        alone = sum(p.kind(r) == "elements" for r in p.reads)
        in_flight = self.items * self.pack
        return self.items == 1 or (in_flight * row <= 128 and in_flight * alone <= 32)

    @pruning
    @sized
    def busy_lanes(self, problem: Problem, target: Target) -> Vector:
        """most of the threads along a row have columns"""
        return self.lanes < 2 * vector.ceil_div(max(1, plan(problem).sizes[-1]), self.pack)

    @pruning
    @sized
    def busy_rows(self, problem: Problem, target: Target) -> Vector:
        """there are rows for all of a block"""
        return (self.threads // self.lanes * self.items < 2 * max(1, plan(problem).rows)) | (self.items == 1)

    @pruning
    @sized
    def loads_with_hints(self, problem: Problem, target: Target) -> Vector:
        """hints for L1 are for vectors, they change nothing for single elements; L2's policy counts for both"""
        p = plan(problem)
        kinds = {p.kind(r) for r in p.reads}
        evicts = (self.load == "evict_last") & ("elements" in kinds)
        return (self.load == "default") | ((self.pack > 1) & (("vector" in kinds) | evicts))

    @pruning
    def stores_with_hints(self, problem: Problem, target: Target) -> bool:
        """hints for stores are for vectors, they change nothing for single elements"""
        return self.pack > 1 or self.store == "default"

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        return [(o.dtype.bytes, o.row_align) for o in plan(problem).vectors]

    @classmethod
    def widest(cls, problem: Problem) -> int:
        p = plan(problem)
        return max(o.dtype.bytes for o in (*problem.outputs, *(r.operand for r in p.reads if p.kind(r) != "one")))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return is_gathered(problem.graph)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The form."""
        return problem.form

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """Vectors of one access, small blocks, plain stores: as fast as others on an H200, or faster (docs/notes/gather.md)."""
        return cls.where(pack=cls.packs(problem), threads=(128, 256), store="default")

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """L2 keeps what is read where it is full."""
        return tuple(dict.fromkeys((load_policy(problem, target), "default")))

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """Blocks of 256 threads: 2% slower in the mean; for what has too many rows for a grid of smaller ones."""
        return where(self.threads > 128, 1, 0)

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. of the output, strides x_s0.., and the dimensions that ids refer to."""
        found = {f"n{d}": n for d, n in enumerate(problem.outputs[0].shape)}
        for o in problem.operands:
            found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
        return found | {f"size_{name}": problem.sizes[name] for name in dim_names(problem.graph)}

    def source(self, problem: Problem) -> Source:
        p = plan(problem)
        writer = _Writer(p, self)
        context = writer.context()
        rank, per_block = len(p.sizes), self.threads // self.lanes * self.items
        columns = ceil_div(Dim(f"n{rank - 1}"), self.pack * self.lanes)
        rows = prod(Dim(f"n{d}") for d in range(rank - 1))
        outer = context.next_sizes if context.used_axes else ()
        divisors: dict[str, Size] = {"column_blocks": columns, **{n: Dim(n) for n in outer}}
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=writer.parameters({} if context.wide else divisors),
            launch=Launch((columns * ceil_div(rows, per_block), 1, 1), (self.threads, 1, 1)),
            arch=self.arch(problem),
            context=context,
            limits=writer.limits(),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Modelled time in seconds; see gather_model."""
        return gather_model.estimate(self, plan(problem), target)


def _reach(o: Operand) -> int:
    """The bytes from an operand's first element to the end of its last."""
    return (sum((n - 1) * s for n, s in zip(o.shape, o.strides)) + 1) * o.dtype.bytes


@dataclass(frozen=True)
class _Writer:
    """The texts of a plan's steps for a config."""

    p: Plan
    config: Gather

    def at(self, c: Axis | Found) -> str:
        """A coordinate in C++."""
        if isinstance(c, Axis):
            return "position[e]" if c.number == self.p.last else f"i{c.number}[i]"
        level = self.p.level(self.p.lowering.axes_of((c,)))
        return f"id{c.number}" + {"fixed": "", "row": "[i]", "column": "[e]", "element": "[i][e]"}[level]

    def leaf(self, leaf: Expr) -> str:
        """A leaf's value in C++."""
        if leaf.op == "position":
            at: Axis | Found = leaf.attr
            return f"static_cast<int>({self.at(at)})" if self.wide else self.at(at)
        if leaf.op == "inside":
            return f"{self.at(Found(leaf.attr))} >= 0"
        if leaf.op == "read":
            read: Read = leaf.attr
            rows = "[i]" if self.p.level(read.axes) in ("row", "element") else ""
            return read.name + rows + ("" if self.p.kind(read) == "one" else "[e]")
        return Lowering.parameter(leaf)

    def offset(self, operand: Operand, terms: Sequence[tuple[Axis | Found, int]], small: bool = False) -> str:
        """The sum of coordinates times strides; `small` where it fits in 32 bits."""
        found = []
        for c, axis in terms:
            at, stride = self.at(c), operand.strides[axis]
            if stride == 1:
                found.append(at)
            elif stride != 0:
                name = f"{identifier(operand.name)}_s{axis}"
                found.append(f"{at} * {name}" if small else f"steps({at}, {name})")
        return " + ".join(found)

    @property
    def narrow(self) -> bool:
        """Whether all strides fit in 32 bits, so that an address takes one multiplication."""
        return all(s < 2**31 for o in self.p.problem.operands for s in o.strides)

    @property
    def wide(self) -> bool:
        """Whether a position, or a number of rows, needs 64 bits; with room for a step beyond the end."""
        return not all(limit.holds(self.config.symbols(self.p.problem)) for limit in self.narrow_limits)

    @functools.cached_property
    def narrow_limits(self) -> tuple[Limit, ...]:
        """Where positions and numbers of rows have 32 bits."""
        sizes = [Dim(f"n{d}") for d in range(len(self.p.sizes))]
        known = [Dim(f"size_{name}") for name in dim_names(self.p.problem.graph)]
        return tuple(Limit(size, 2**31 - 2**16 - 1) for size in (prod(sizes[:-1]), *sizes, *known))

    def step(self, step: Read | Id) -> StepText:
        p = self.p
        if isinstance(step, Id):
            size = str(step.size) if isinstance(step.size, int) else size_name(step.size)
            return StepText(
                name=step.name,
                kind="id",
                level=p.level(step.axes),
                value=f"find{step.number}({', '.join([*map(self.leaf, step.arguments[:-1]), 'found'])})",
                ctype=step.arguments[-1].dtype.ctype,
                guard=f"inside(found, {size})" if step.checked else "found",
            )
        kind, o = p.kind(step), step.operand
        columns = p.column_terms(step)
        rows = [t for t in step.terms if t not in columns]
        reach = _reach(o)
        offset_type = "unsigned" if reach < 2**32 else "unsigned long long"
        column = self.offset(o, columns, small=reach < 2**31) or "0"
        offset = f"static_cast<{offset_type}>({column})" + (f" * {o.dtype.bytes}" if o.dtype.bytes > 1 else "")
        hoisted = kind == "elements" and p.level(p.lowering.axes_of(c for c, _ in columns)) == "column"
        return StepText(
            name=step.name,
            kind=kind,
            level=p.level(step.axes),
            ctype=o.dtype.ctype,
            pointer=identifier(o.name),
            row=self.offset(o, rows) or ("0" if kind == "one" else ""),
            column="" if kind != "elements" else f"{step.name}_offset[e]" if hoisted else offset,
            hoisted=offset if hoisted else "",
            offset_type=offset_type,
            guard=" && ".join(f"{self.at(Found(g))} >= 0" for g in step.guards),
        )

    def limits(self) -> tuple[Limit, ...]:
        """How large a problem this source is right for."""
        found = () if self.wide else self.narrow_limits
        for step in self.p.reads:
            most = next((m for m in (2**31, 2**32) if _reach(step.operand) < m), None)
            if most is not None and self.p.kind(step) == "elements":
                found += (Limit(self.extent(step), (most - 1) // step.operand.dtype.bytes),)
        return found

    def extent(self, step: Read) -> Size:
        """The elements from an operand's first to its last, over the symbols."""
        o = step.operand
        ids = {s.number: s.size for s in self.p.lowering.steps if isinstance(s, Id)}
        end: Size = 1
        for c, axis in step.terms:
            size: Size = Dim(f"n{c.number}") if isinstance(c, Axis) else ids[c.number]
            size = Dim(size_name(size)) if isinstance(c, Found) and isinstance(size, Dim) else size
            if o.strides[axis]:
                end = end + (size - 1) * (1 if o.strides[axis] == 1 else Dim(f"{o.name}_s{axis}"))
        return end

    def output(self, o: Operand) -> AccessText:
        return AccessText.output(o, self.offset(o, [(Axis(a), a) for a in range(self.p.last)]))

    def context(self) -> Context:
        p, problem = self.p, self.p.problem
        steps = p.lowering.steps
        leaves = p.lowering.leaves(p.results)
        named = [Argument(leaf, p.lowering.parameter(leaf), leaf.dtype) for leaf in leaves]
        fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        outputs = [self.output(o) for o in problem.outputs]
        compute = pointwise_function("compute", named, p.results, [o.dtype for o in problem.outputs], fast)
        texts = tuple(self.step(s) for s in steps)
        arguments = [self.leaf(leaf) for leaf in leaves] + [f"{y.name}_vector[e]" for y in outputs]
        written = (
            [t for s in texts for t in (s.value, s.row, s.column, s.hoisted)] + arguments + [y.row for y in outputs]
        )
        used = tuple(a for a in range(p.last) if any(f"i{a}[i]" in text for text in written))
        least = min(used, default=0)
        return Context(
            rank=len(p.sizes),
            last=p.last,
            wide=self.wide,
            ragged=p.sizes[-1] % self.config.pack != 0,
            checked=any(isinstance(s, Id) and s.checked for s in steps),
            positions=any("position[e]" in text for text in written),
            used_axes=used,
            next=(*(f"next{d}" for d in range(p.last - 1, least - 1, -1)), *(["beyond"] if least > 0 else [])),
            next_sizes=tuple(f"n{d}" for d in range(p.last - 1, max(1, least) - 1, -1)),
            functions="\n".join(s.function for s in steps if isinstance(s, Id)),
            compute=compute,
            arguments=", ".join(arguments),
            steps=texts,
            outputs=tuple(outputs),
            load=LOADS[self.config.load],
            store=STORES[self.config.store],
        )

    def parameters(self, divisors: Mapping[str, Size]) -> tuple[Param, ...]:
        """Pointers, the output's sizes, inverses of `divisors`, strides that are used, sizes that are referred to, numbers."""
        p, problem = self.p, self.p.problem
        params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
        params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
        bits: Literal[32, 64] = 64 if self.wide else 32
        params += [Integer(f"n{d}", Dim(f"n{d}"), bits) for d in range(len(p.sizes))]
        params += [Integer.inverse(f"{name}_inverse", size) for name, size in divisors.items()]
        used: dict[str, None] = {}
        for r in p.reads:
            used |= {f"{identifier(r.operand.name)}_s{a}": None for _, a in r.terms if r.operand.strides[a] != 1}
        for o in problem.outputs:
            used |= {f"{identifier(o.name)}_s{a}": None for a, s in enumerate(o.strides) if s not in (0, 1)}
            used |= {f"{identifier(o.name)}_s{p.last}": None for s in o.strides[-1:] if s != 1}
        params += [Integer.stride(name, 32 if self.narrow else 64) for name in used]
        checked = [
            size_name(s.size) for s in p.lowering.steps if isinstance(s, Id) and s.checked and isinstance(s.size, Dim)
        ]
        params += [Integer(name, Dim(name), bits) for name in dict.fromkeys([*checked, *p.lowering.sizes])]
        return (*params, *(Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars))


family = register_family(Family("gather", (Gather, *gather_sum.SCHEDULES), matches, collapse_leading, dims, suites))
