"""Elementwise: any traced pointwise expression over tensors that broadcast, dense or strided.

Dimensions are collapsed first (kgen/ops/elementwise/view.py), so that a dense problem is one-dimensional whatever its shape, and
what exchanges axes, halves or pairs, or counts positions, is a matter of strides. A thread moves `items` vectors of `pack`
elements; `waves` blocks a multiprocessor loop over the tensor, or the grid covers it at once (0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Source
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import FLOAT_FUNCTIONS, walk
from kgen.dsl.family import Family, register
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem, Sizes
from kgen.dsl.schedule import choice, pruning, rule
from kgen.dsl.size import Dim, Size, ceil_div, minimum
from kgen.dsl.types import f64
from kgen.ops.common.axes import dims, has_leading
from kgen.ops.common.memory_bound import LOADS, SECTOR, STORES, VectorSchedule, bytes_in_flight
from kgen.ops.elementwise.kernel import Access, access, function, parameters
from kgen.ops.elementwise.transpose import Transpose
from kgen.ops.elementwise.view import View, matches, normalise, view

#: Bytes that L2 moves to the multiprocessors in the time that memory moves one.
_L2_RATE = 1.3


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^20, 2^24 and 2^27 elements; `large`: 2^27 alone; `small`: 2^12 to 2^20."""

    def of(elements: Sequence[int]) -> list[Sizes]:
        names = graph.dims
        if not names:
            return [{"...": (n,)} for n in elements]
        inner: dict[str, Any] = dict.fromkeys(names, 4096)
        if not has_leading(graph):
            return [inner | {names[0]: max(1, n // 4096 ** (len(names) - 1))} for n in elements]
        return [inner | {"...": (max(1, n // 4096 ** len(names)),)} for n in elements]

    return {"default": of([2**20, 2**24, 2**27]), "large": of([2**27]), "small": of([2**12, 2**16, 2**20])}


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    rank: int
    outer: tuple[int, ...]
    two: int
    sizes: tuple[str, ...]
    wide: bool
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    positions: tuple[Access, ...]
    load: str
    store: str
    function: str
    arguments: str


class Elementwise(VectorSchedule):
    """Vectors straight from global memory to registers and back."""

    template = "elementwise.cu.j2"

    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    items = choice(1, 2, 4, 8)  # vectors a thread has in flight
    threads = choice(128, 256, 512, 1024)
    waves = choice(0, 1, 2, 4, 8)  # blocks a multiprocessor; 0: one pass, as many blocks as it takes
    load = choice("default", "no_allocate")
    store = choice("default", "streaming")

    @rule
    def whole_vectors(self, problem: Problem, target: Any) -> bool:
        """rows of a problem with several dimensions are cut into whole vectors"""
        sizes = view(problem).sizes
        return len(sizes) == 1 or sizes[-1] % self.pack == 0

    @rule
    def whole_pairs(self, problem: Problem, target: Any) -> bool:
        """where neighbours are exchanged, or share an element of a table, a vector holds whole pairs"""
        return self.pack > 1 or not view(problem).paired

    @pruning
    def registers(self, problem: Problem, target: Any) -> bool:
        """the vectors in flight fit in the registers of a thread: at most 160 bytes, 64 with 1024 threads"""
        v = view(problem)
        row = sum(c.dtype.bytes for c in v.inputs if not self.both_halves(v) or v.strides_of(c) == c.name)
        return self.items == 1 or self.items * self.pack * row <= (64 if self.threads == 1024 else 160)

    @pruning
    def long_computations(self, problem: Problem, target: Any) -> bool:
        """where an element takes long to compute (sin, cos, pow, functions in f64), a thread has few: they take registers"""
        return not takes_long(view(problem)) or self.pack * self.items <= 8

    @pruning
    def plain_single_elements(self, problem: Problem, target: Any) -> bool:
        """cache hints are for vectors, they change nothing for single elements"""
        return self.pack > 1 or (self.load == "default" and self.store == "default")

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
    def default(cls, problem: Problem, target: Any) -> Elementwise:
        """The widest legal vectors up to 16 bytes, two in flight, 128 threads, one pass; narrower where strides ask for it."""
        v = view(problem)
        # What is read again and again comes from the caches, by however many accesses.
        widest = max(o.dtype.bytes for o in problem.operands if 16 * o.stored_bytes >= problem.bytes)
        packs = [
            p for p in cls.fields["pack"].values if isinstance(p, int) and p * widest <= (8 if takes_long(v) else 16)
        ]
        found = []
        for pack in (*reversed(packs), 2, 1):
            for items in (1,) if takes_long(v) else (2, 1):
                config = cls(pack=pack, items=items, threads=128, waves=0, load="default", store="default")
                if not config.rejections(problem, target):
                    found.append(config)
                    break
            if found and not any(c.strides[-1] > 1 for c in v.memory):
                break
        if not found:
            raise ConfigError(f"no elementwise config is valid for {problem}")
        return min(found, key=lambda config: config.estimate(problem, target))

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        return view(problem).symbols(problem)

    def both_halves(self, v: View) -> bool:
        """Whether a thread has both halves of the axis that is in halves, an item each: what is exchanged is at hand."""
        return v.two >= 0 and self.items % 2 == 0

    def outer(self, v: View) -> tuple[int, ...]:
        """The dimensions but the last along which threads lie."""
        return tuple(d for d in range(len(v.sizes) - 1) if d != v.two or not self.both_halves(v))

    def vectors(self, v: View) -> Size:
        """Number of vectors, of one half where a thread has both, over the symbols."""
        count: Size = ceil_div(Dim(f"n{len(v.sizes) - 1}"), self.pack)
        for d in self.outer(v):
            count = count * Dim(f"n{d}")
        return count

    def divisors(self, v: View) -> dict[str, Size]:
        """What the number of a vector is divided by to find its place: the vectors of a row, and outer sizes."""
        outer: dict[str, Size] = {f"n{d}": Dim(f"n{d}") for d in self.outer(v)[:0:-1] if d != v.two}
        return {"row_vectors": Dim(f"n{len(v.sizes) - 1}") // self.pack, **outer}

    def source(self, problem: Problem) -> Source:
        v = view(problem)
        rank = len(v.sizes)
        inputs, positions, outputs = (tuple(access(c, v) for c in part) for part in (v.inputs, v.numbers, v.outputs))
        # A 32-bit index also has to hold one step beyond the end.
        wide = v.elements // self.pack >= 2**31
        far = any(abs(s) >= 2**31 for c in v.columns for s in c.strides[:-1])
        both = self.both_halves(v)
        blocks = ceil_div(self.vectors(v), self.threads * (self.items // 2 if both else self.items))
        if self.waves:
            blocks = minimum(blocks, SM_COUNT * self.waves)
        text, names = function(problem, v)
        element = {a.name: a.element for a in (*inputs, *positions)}
        held = {c.name: v.strides_of(c) for c in v.inputs if both and v.strides_of(c) != c.name}
        element |= {n: element[other].replace("_items[i]", "_items[i ^ 1]") for n, other in held.items()}
        sizes = tuple("2" if d == v.two else f"n{d}" for d in range(rank))
        arguments = [*(element.get(name, name) for name in names), *(f"{y.name}_vector[e]" for y in outputs)]
        context = Context(
            rank=rank,
            outer=self.outer(v),
            two=v.two if both else -1,
            sizes=sizes,
            wide=wide,
            inputs=tuple(a for a, c in zip(inputs, v.inputs) if not c.vectors and c.name not in held),
            outputs=outputs,
            positions=positions,
            load=LOADS[self.load],
            store=STORES[self.store],
            function=text,
            arguments=", ".join(arguments),
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
        )

    def estimate(self, problem: Problem, target: Any) -> float:
        """Time to move the bytes: at the bandwidth where enough of them are in flight (Little's law), else at the latency."""
        v = view(problem)
        wanted = bytes_in_flight(target)
        row = sum(c.dtype.bytes for c in v.inputs if any(c.strides))
        threads = min(target.max_threads_per_sm, 2048) * 0.9
        resident = min(threads, max(1.0, v.elements / (self.pack * self.items) / target.sm_count))
        flight = resident * self.items * self.pack * row
        narrow = min(1.0, 0.55 + 0.03 * self.pack * self.widest(problem))
        loop = 0.97 if self.waves else 1.0
        flow = target.bandwidth * 0.93 * min(1.0, flight / wanted if row else 1.0) * narrow * loop
        return 2e-6 + max(problem.bytes / flow, *self._strided(v, target))

    def _strided(self, v: View, target: Any) -> tuple[float, float]:
        """What strides along the last dimension cost: L2 gives whole sectors, and L1 one line after the other."""
        sectors = lines = 0.0
        for c in v.memory:
            step = c.strides[-1] * c.dtype.bytes
            if step > c.dtype.bytes:
                sectors += v.elements * min(SECTOR, step)
                lines += v.elements / 32 * min(32.0, max(1.0, step * self.pack / 4))
        return sectors / (_L2_RATE * target.bandwidth), lines / (target.sm_count * target.clock_hz)


def takes_long(v: View) -> bool:
    """Whether the results have functions that are dozens of instructions each."""
    return any(
        n.op in ("sin", "cos", "pow") or (n.dtype is f64 and n.op in FLOAT_FUNCTIONS) for n in walk(v.lowered.results)
    )


family = register(Family("elementwise", (Elementwise, Transpose), matches, normalise, dims, suites))
