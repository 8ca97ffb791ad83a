"""Elementwise: any traced pointwise expression over tensors that broadcast, dense or strided.

Dimensions are collapsed first (kgen/ops/elementwise/view.py), so that a dense problem is one-dimensional whatever its shape, and
what exchanges axes, halves or pairs, or counts positions, is a matter of strides. A thread moves `items` vectors of `pack`
elements, `along` the tensor or the dimensions that let them share what is loaded and computed; `blocks_per_sm` blocks
loop over the tensor, or the grid covers it at once (0).
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from kgen.codegen.expression import Argument
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Limit, Source
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.operator import Graph
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size, ceil_div, prod
from kgen.dsl.size import minimum as least
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector, each, log2, maximum, minimum, of_class, where
from kgen.ops.common.axes import dims
from kgen.ops.common.memory_bound import LINE, LOADS, SECTOR, STORES, VectorSchedule, bytes_in_flight, load_policy
from kgen.ops.common.sizes import LARGE_BYTES, distinct, fill
from kgen.ops.elementwise.items import Items, calls, parts, repeating
from kgen.ops.elementwise.kernel import Access, access, function, parameters
from kgen.ops.elementwise.narrow import TransposeNarrow
from kgen.ops.elementwise.transpose import Transpose
from kgen.ops.elementwise.view import Column, View, matches, normalise, view
from kgen.tuning_db.machines import constants


@dataclass(frozen=True)
class ElementwiseConstants(Constants, model="elementwise"):
    """Times in seconds; the others are shares, or counts by clock."""

    start: float  # with the latency of a load
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    threads: float  # the share of an SM's threads that are there
    loop: float  # how much of the bandwidth is left to blocks that loop
    many_items: float  # the same, to more than two items a thread
    l2_rate: float  # bytes that L2 moves to the SMs in the time that memory moves one
    l2_small: float  # how much more of what is an eighth of L2 or less
    l1_rate: float  # bytes a clock between L1 and an SM
    hidden: float  # the share of memory's time that hides what goes through L1
    beside: float  # what the rest of that costs
    lasting: float  # of the bandwidth, where what is read stays longer in L2 than what is written
    call: float  # instructions of a function that takes long
    block: float  # until the next block is started, of those that do not loop
    vector: float  # instructions that find a vector in several dimensions and move it


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^20, 2^24 and up to 2^27 elements; `large`: 2^27; `small`: 2^12 to 2^20. Up to 4096 along each dimension."""
    return {
        "default": distinct(fill(graph, n, 4096) for n in (2**20, 2**24, 2**27)),
        "large": [fill(graph, 2**27, 4096, most=LARGE_BYTES)],
        "small": [fill(graph, n, 4096) for n in (2**12, 2**16, 2**20)],
    }


@dataclass(frozen=True)
class Stage:
    """A function: its arguments, what is `made` for later ones, and the numbers by position that it takes."""

    arguments: str
    made: tuple[Argument, ...]
    positions: tuple[Access, ...]


@dataclass(frozen=True)
class Context:
    """What the template sees. `located` are the indices of a place, the innermost first, `divisors` the sizes of their axes."""

    rank: int
    outer: tuple[int, ...]
    located: tuple[str, ...]
    divisors: tuple[str, ...]
    along: int
    two: int
    share: int
    repeats: int
    sizes: tuple[str, ...]
    wide: bool
    inputs: tuple[Access, ...]
    packed: tuple[str, ...]
    outputs: tuple[Access, ...]
    functions: tuple[tuple[str, str], ...]
    constants: Stage | None
    common: Stage | None
    compute: Stage


class Elementwise(VectorSchedule):
    """Vectors straight from global memory to registers and back."""

    template = "elementwise.cu.j2"
    model = ElementwiseConstants
    by_size = ("load",)
    techniques = {
        "single elements": {"pack": 1, "items": 1},
        "packs of 2": {"pack": 2},
        "packs of 4": {"pack": 4},
        "packs of 8": {"pack": 8},
        "packs of 16": {"pack": 16},
        "several packs in flight": {"pack": (2, 4, 8, 16), "items": (2, 4, 8, 16)},
        "grid-stride loop": {"blocks_per_sm": (1, 2, 4, 8)},
        "streaming stores": {"store": "streaming"},
    }

    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    items = choice(1, 2, 4, 8, 16, allows=range(1, 17))  # vectors a thread has in flight
    # Where they lie: as vectors follow each other, in both halves, along a dimension where operands repeat, or in both of these.
    along = choice("vectors", "repeats", "halves", "both")
    threads = choice(128, 256, 512, 1024, allows=range(32, 1025, 32))
    blocks_per_sm = choice(0, 1, 2, 4, 8, allows=range(33))  # 0: one pass, as many blocks as it takes
    load = choice("default", "no_allocate", "evict_last")
    store = choice("default", "streaming")

    @rule
    @sized
    def whole_vectors(self, problem: Problem, target: Target) -> Vector:
        """rows of a problem with several dimensions are cut into whole vectors"""
        sizes = view(problem).sizes
        return (sizes[-1] % self.pack == 0) | (len(sizes) == 1)

    @rule
    def whole_pairs(self, problem: Problem, target: Target) -> bool:
        """where neighbours are exchanged, or share an element of a table, a vector holds whole pairs"""
        return self.pack > 1 or not view(problem).paired

    @rule
    def groups_of_items(self, problem: Problem, target: Target) -> bool:
        """items along halves, or a dimension where operands repeat: there is one, and groups are of two or more"""
        items = self.laid(view(problem))
        halves = self.along in ("vectors", "repeats") or (items.two >= 0 and self.items % 2 == 0)
        return halves and (self.along in ("vectors", "halves") or items.repeats > 1)

    @rule
    @sized
    def whole_groups(self, problem: Problem, target: Target) -> Vector:
        """a dimension where operands repeat is cut into whole groups"""
        v = view(problem)
        return v.sizes[repeating(v)] % self.laid_out(problem)[3] == 0

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """the vectors in flight fit in the registers of a thread: at most 160 bytes, 64 with 1024 threads"""
        return self.items == 1 or self.held(problem) <= (64 if self.threads == 1024 else 160)

    @pruning
    def long_computations(self, problem: Problem, target: Target) -> bool:
        """where an element takes long to compute (sin, cos, pow, functions in f64), a thread has few: they take registers"""
        return self.pack * self.items <= 8 or not self.laid_out(problem)[2]

    @pruning
    def shared_computations(self, problem: Problem, target: Target) -> bool:
        """where two items share what takes long to compute, it is for at most 4 elements: of more the compiler spills 80 bytes"""
        _, calls, own, _ = self.laid_out(problem)
        return self.along != "repeats" or self.items != 2 or self.pack <= 4 or calls == own

    @pruning
    @sized
    def plain_single_elements(self, problem: Problem, target: Target) -> Vector:
        """cache hints are for vectors, they change nothing for single elements"""
        return (self.pack > 1) | ((self.load == "default") & (self.store == "default"))

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        v = view(problem)
        found = [c for c in v.memory if c.strides[-1] == 1]
        return [(c.dtype.bytes / (2 if c.inner == "half" else 1), c.align(v.sizes)) for c in found]

    @classmethod
    def widest(cls, problem: Problem) -> int:
        return max(o.dtype.bytes for o in problem.operands)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; along which dimensions each column moves, and how, and what its lines are aligned to."""
        v = view(problem)
        moved = tuple((tuple(min(s, 2) for s in c.strides), c.inner, c.vectors, v.strides_of(c)) for c in v.columns)
        aligned = tuple(c.align(v.sizes) for c in v.memory)
        return problem.graph.digest, len(v.sizes), v.two, moved, aligned

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """128 threads, one pass, plain stores: as fast as others on an H200, or faster (docs/notes/elementwise.md)."""
        return cls.where(threads=128, blocks_per_sm=0, store="default")

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """L2 keeps what is read where it is full."""
        return tuple(dict.fromkeys(("default", load_policy(problem, target))))

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """The widest vectors up to 16 bytes, or of up to 8 elements that take long to compute; of any width where strides ask.

        What is read again and again comes from the caches, by however many accesses.
        """
        v = view(problem)
        weighty = [o for o in problem.operands if 16 * o.stored_bytes >= problem.bytes] or problem.operands
        size = self.pack * max(o.dtype.bytes for o in weighty)
        wide = size > where(self.laid_out(problem)[2] > 0, 8, 16)
        narrow = 0 if any(c.strides[-1] > 1 for c in v.memory) else 5 - log2(self.pack)
        return where(wide & (self.pack > (2 if v.paired else 1)), 8, 0) + narrow

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        return view(problem).symbols(problem)

    def laid(self, v: View) -> Items:
        """How the items of a thread lie."""
        return _laid(v, self.along, self.items)

    @of_class
    def laid_out(self, problem: Problem) -> tuple[Vector, ...]:
        """What follows from how the items of a thread lie.

        Bytes that it has in flight for each element of a vector; functions that take long, for an element, with those that are
        common to the items of a place and without; items along a dimension where operands repeat.
        """
        found = each(functools.partial(_laid_out, problem), self.along, self.items)
        return found if isinstance(found, tuple) else tuple(found.T)

    def held(self, problem: Problem) -> Vector:
        """Bytes that a thread has in flight."""
        return self.pack * self.laid_out(problem)[0]

    def outer(self, v: View) -> tuple[int, ...]:
        """The dimensions but the last along which threads lie."""
        return tuple(d for d in range(len(v.sizes) - 1) if d != self.laid(v).two)

    def sizes(self, v: View) -> dict[int, Size]:
        """How many places there are along each outer dimension, over the symbols."""
        items = self.laid(v)
        return {d: Dim(f"n{d}") // items.repeats if d == items.along else Dim(f"n{d}") for d in self.outer(v)}

    def places(self, v: View) -> Size:
        """Number of places: the vectors but for those that a thread has at one place."""
        count: Size = ceil_div(Dim(f"n{len(v.sizes) - 1}"), self.pack)
        for size in self.sizes(v).values():
            count = count * size
        return count

    def divisors(self, v: View) -> dict[str, Size]:
        """What the number of a place is divided by to find it: the vectors of a row, and outer sizes."""
        names = {self.laid(v).along: "groups"}
        outer = {names.get(d, f"n{d}"): n for d, n in list(self.sizes(v).items())[:0:-1] if d != v.two}
        return {"row_vectors": Dim(f"n{len(v.sizes) - 1}") // self.pack, **outer}

    def source(self, problem: Problem) -> Source:
        v = view(problem)
        rank, items = len(v.sizes), self.laid(v)
        policies = (LOADS[self.load], "", STORES[self.store])
        inputs, positions, outputs = (
            tuple(_reached(c, v, items, policy) for c in part)
            for part, policy in zip((v.inputs, v.numbers, v.outputs), policies)
        )
        # A 32-bit index also has to hold one step beyond the end.
        elements = prod(2 if d == v.two else Dim(f"n{d}") for d in range(rank))
        limit = Limit(elements, self.pack * 2**31 - 1)
        wide = not limit.holds(v.symbols(problem)) or (rank > 1 and max(v.sizes) >= 2**31)
        far = any(abs(s) >= 2**31 for c in v.columns for s in c.strides[:-1])
        blocks = ceil_div(self.places(v), self.threads * (self.items // items.shared))
        if self.blocks_per_sm:
            blocks = least(blocks, SM_COUNT * self.blocks_per_sm)
        constants, common = parts(v, items)
        by_name = {c.name: c for c in v.inputs}
        held = {c.name: by_name[v.strides_of(c)] for c in v.inputs if items.two >= 0 and v.strides_of(c) != c.name}
        read = [(a, c) for a, c in zip(inputs, v.inputs) if not c.vectors and c.name not in held]
        element = {a.name: a.element for a in (*inputs, *positions)}
        element |= {name: access(c, v, items.slot(c).exchanged).element for name, c in held.items()}
        element |= {a.name: f"{a.name}_items[{'0' if items.shared == items.count else 'i / 2'}][e]" for a in common}

        def stage(name: str, made: Sequence[Argument], given: Sequence[Argument]) -> Stage:
            text, names = function(problem, v, name, made, given)
            results = [element.get(a.name, a.name) for a in made] or [f"{y.name}_vector[e]" for y in outputs]
            arguments = ", ".join([*(element.get(name, name) for name in names), *results])
            texts.append(text)
            return Stage(arguments, tuple(made), tuple(a for a in positions if a.name in names))

        texts: list[str] = []
        comments = ["What depends on numbers alone."] if constants else []
        comments += ["What the items of a place have in common, for one element."] if common else []
        stages = (
            stage("constants", constants, ()) if constants else None,
            stage("common", common, constants) if common else None,
            stage("compute", (), (*constants, *common)),
        )
        outer, sizes = self.outer(v), {v.two: "2", items.along: "groups"}
        context = Context(
            rank=rank,
            outer=outer,
            located=("at.column", *(f"at.i{d}" for d in outer[::-1])),
            divisors=("row_vectors", *(sizes.get(d, f"n{d}") for d in outer[:0:-1])),
            along=items.along,
            two=items.two,
            share=items.shared,
            repeats=items.repeats,
            sizes=tuple(sizes.get(d, f"n{d}") for d in range(rank)),
            wide=wide,
            inputs=tuple(a for a, _ in read),
            packed=tuple(
                a.name
                for a, c in read
                if a.kind in ("vector", "half")
                and c.dtype.bytes < 4
                and self.pack * c.dtype.bytes >= (8 if a.kind == "half" else 4)
            ),
            outputs=outputs,
            functions=tuple(zip((*comments, "The operator, for one element."), texts)),
            constants=stages[0],
            common=stages[1],
            compute=stages[2],
        )
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=parameters(
                problem,
                v,
                (*context.inputs, *positions, *outputs),
                64 if wide else 32,
                64 if far else 32,
                {} if wide or rank == 1 else self.divisors(v),
            ),
            launch=Launch((blocks, 1, 1), (self.threads, 1, 1)),
            arch=self.arch(problem),
            context=context,
            limits=() if wide else (limit,),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Time to move the bytes: at the bandwidth where enough of them are in flight (Little's law), else at the latency.

        Or to move them through L1, what is loaded from there again included; or to call functions that take long.
        """
        v, k = view(problem), constants(ElementwiseConstants, target)
        held, calls = self.held(problem), self.laid_out(problem)[1]
        threads = v.elements / (self.pack * self.items)
        resident = minimum(target.max_threads_per_sm * k.threads, threads / target.sm_count)
        narrow = minimum(1.0, 0.55 + 0.03 * self.pack * self.widest(problem))
        loop = where(self.blocks_per_sm != 0, k.loop, 1.0) * where(self.items > 2, k.many_items, 1.0)
        hidden = where(held > 0, minimum(1.0, resident * held / bytes_in_flight(target, k.latency)), 1.0)
        streamed = problem.bytes / (target.bandwidth * k.memory * narrow * loop)
        waves = maximum(1.0, threads / (target.sm_count * target.max_threads_per_sm * k.threads))
        memory = minimum(
            streamed / hidden, streamed + (waves - 1) * k.latency
        )  # the latter where all threads are there at once
        written = self.items * self.pack * sum(c.dtype.bytes for c in v.outputs)
        near = threads * (held + written) / (k.l1_rate * target.sm_count * target.clock_hz)
        lanes = 128 * target.sm_count * target.clock_hz  # for which instructions are issued in a second
        computing = calls * (v.elements * k.call / lanes)
        finding = v.elements / self.pack * k.vector / lanes if len(v.sizes) > 1 else 0.0
        beside = k.beside * maximum(0.0, near - k.hidden * memory)
        if load_policy(problem, target) == "evict_last":
            memory = memory / where(self.load == "evict_last", k.lasting, 1.0)
        started = where(self.blocks_per_sm == 0, threads / self.threads * k.block, 0.0)
        rate = k.l2_rate * where(8 * problem.bytes < target.l2_bytes, k.l2_small, 1.0)
        return k.start + maximum(memory, near, computing, finding, started, *self._strided(v, target, rate)) + beside

    def _strided(self, v: View, target: Target, l2_rate: float) -> tuple[Vector, Vector]:
        """What strides along the last dimension cost: L2 gives whole sectors, and L1 one line after the other.

        Where that dimension is short, a warp goes over several of its rows, whose elements may lie side by side.
        """
        sectors: Vector = 0.0
        lines: Vector = 0.0
        for c in v.memory:
            size = c.dtype.bytes
            step = c.strides[-1] * size
            if step > size:
                apart = minimum(32.0, maximum(1.0, step * self.pack / 4))
                whole: Vector = min(SECTOR, step)
                if len(v.sizes) > 1 and c.strides[-2] == 1:
                    along = maximum(1.0, 32 * self.pack / v.sizes[-1])
                    parts = maximum(1.0, v.sizes[-1] / self.pack) * maximum(1.0, along * size / LINE)
                    apart = minimum(apart, maximum(1.0, parts))
                    whole = minimum(whole, size + SECTOR / along)
                sectors = sectors + v.elements * whole
                lines = lines + v.elements / 32 * apart
        return sectors / (l2_rate * target.bandwidth), lines / (target.sm_count * target.clock_hz)


def _reached(c: Column, v: View, items: Items, policy: str) -> Access:
    """The access of a column, moved last by what differs within a thread: the rest of its address is the same for all items."""
    a = access(c, v, items.slot(c), policy)
    return replace(a, terms=tuple(sorted(a.terms, key=lambda term: term.dimension in (items.along, items.two))))


def _laid(v: View, along: str, count: int) -> Items:
    return Items(
        count, repeating(v) if along in ("repeats", "both") else -1, v.two if along in ("halves", "both") else -1
    )


@functools.lru_cache(maxsize=256)
def _laid_out(problem: Problem, along: str, count: int) -> tuple[float, ...]:
    """See `Elementwise.laid_out`."""
    v = view(problem)
    items = _laid(v, along, count)
    read = [c for c in v.inputs if any(c.strides) and not c.vectors and (items.two < 0 or v.strides_of(c) == c.name)]
    constants, shared = parts(v, items)
    own = calls(v.lowered.results, (*constants, *shared))
    common = calls([a.node for a in shared], constants) / items.shared
    return sum(c.dtype.bytes * (items.slot(c).count or count) for c in read), own + common, own, items.repeats


# Before gather, which would serve graphs that take nothing too.
family = register_family(
    Family("elementwise", (Elementwise, Transpose, TransposeNarrow), matches, normalise, dims, suites, priority=1)
)
