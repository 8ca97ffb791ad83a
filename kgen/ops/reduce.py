"""Reduce: full reductions of any traced expression in one launch, and reductions along the inner axis of a result each.

The schedules of templates/reduce.cu.j2. `waves` blocks a multiprocessor go over the elements together; with several results
(see column_stats) they are shared out among them. The last block of a result adds what the others have left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Param, Pointer, Source
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import Family, register
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, Sizes
from kgen.dsl.schedule import choice, pruning, rule
from kgen.dsl.size import Dim, Size, ceil_div, maximum, minimum
from kgen.dsl.types import i32
from kgen.ops.axes import dims, has_leading
from kgen.ops.memory_bound import VectorSchedule
from kgen.ops.reduction import one_shape, reductions_of, view
from kgen.ops.reduction_kernel import (
    Access,
    Accumulation,
    accumulation,
    instructions,
    parameters,
    product,
    state_words,
    symbols,
    workspace,
)


def matches(graph: Graph) -> bool:
    """Whether every result is a pointwise expression of reductions over all axes."""
    made = reductions_of(graph)
    return made is not None and made.axes is None


def normalise(problem: Problem) -> Problem:
    """The problem over the axes of its view, where the graph names none."""
    made = reductions_of(problem.graph)
    assert made is not None
    if problem.origin is not None or any(n.op == "size" for n in problem.graph.nodes):
        return problem
    if any(node.attr is not None for node, _, _ in made.results) or not one_shape(problem):
        return problem
    v = view(problem)
    under = {leaf.attr for leaf in made.under}
    operands = [
        Operand(o.name, o.dtype, v.sizes, v.strides[o.name], o.align)
        if o.name in under
        else Operand(o.name, o.dtype, (), (), o.align)
        for o in problem.operands
    ]
    return problem.collapsed(operands, v.sizes, {f"n{a}": n for a, n in enumerate(v.sizes)})


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^20, 2^24 and 2^28 elements; `large`: 2^28 alone; `small`: 2^12 to 2^20."""

    def of(elements: Sequence[int]) -> list[Sizes]:
        names = graph.dims
        if not names:
            return [{"...": (n,)} for n in elements]
        inner: dict[str, Any] = dict.fromkeys(names, 4096 if len(names) > 1 else 1)
        first = {names[0]: lambda n: max(1, n // 4096 ** (len(names) - 1))}
        leading = {"...": (1,)} if has_leading(graph) else {}
        return [inner | leading | {name: size(n) for name, size in first.items()} for n in elements]

    return {"default": of([2**20, 2**24, 2**28]), "large": of([2**28]), "small": of([2**12, 2**16, 2**20])}


@dataclass(frozen=True)
class Context:
    """What the template sees: axes 0 to kept - 1 stay, the others up to rank - 1 are reduced."""

    rank: int
    kept: int
    index_type: str
    made: Accumulation
    used: tuple[int, ...]
    load: str


class InnerSchedule(VectorSchedule):
    """What the schedules have in common that reduce along the inner axis."""

    template = "reduce.cu.j2"

    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    items = choice(1, 2, 4, 8)  # vectors a thread has in flight
    threads = choice(256, 32, 64, 128, 512, 1024)
    waves = choice(4, 1, 2, 8, 16)  # blocks a multiprocessor, at most
    load = choice("default", "no_allocate")

    @rule
    def of_one_shape(self, problem: Problem, target: Any) -> bool:
        """all reductions of a graph run over the same elements"""
        return one_shape(problem)

    @rule
    def moderate_vectors(self, problem: Problem, target: Any) -> bool:
        """the widest operand's vector is at most two accesses of 16 bytes, and the states of a thread fit its registers"""
        widest = max((a.dtype.bytes for a in accesses(problem) if a.kind == "vector"), default=1)
        return self.pack == 1 or (self.pack * widest <= 32 and self.pack * state_words(problem) <= 64)

    @pruning
    def registers(self, problem: Problem, target: Any) -> bool:
        """what a thread has in flight and its states fit in its share of the registers"""
        return self.items == 1 or self.held(problem) <= min(160, 65536 // self.threads)

    @pruning
    def vectors_of_vectors(self, problem: Problem, target: Any) -> bool:
        """vectors and hints are for operands that lie along the inner axis"""
        plain = self.pack == 1 and self.load == "default"
        return plain or any(a.kind == "vector" for a in accesses(problem))

    @pruning
    def threads_of_the_multiprocessor(self, problem: Problem, target: Any) -> bool:
        """the blocks of a multiprocessor are there at once"""
        return self.threads * self.waves <= target.max_threads_per_sm

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        return [(a.dtype.bytes, a.align) for a in accesses(problem) if a.kind == "vector"]

    @classmethod
    def default(cls, problem: Problem, target: Any) -> InnerSchedule:
        """The widest legal vectors up to 16 bytes, 128 bytes in flight a thread and 64 KB a multiprocessor."""
        found, made = accesses(problem), reductions_of(problem.graph)
        assert made is not None
        widest = max((a.dtype.bytes for a in found if a.kind != "broadcast"), default=1)
        row = sum(a.dtype.bytes for a in found if a.kind != "broadcast") or 1
        most = 32 if any(r.kind in ("moments", "argmax") for r in made.reductions) else 128  # elements in registers
        vectors = any(a.kind == "vector" for a in found)
        packs = [
            p for p in cls.fields["pack"].values if isinstance(p, int) and p * widest <= 16 and (p == 1 or vectors)
        ]
        for pack in (*reversed(packs), 1):
            load = "no_allocate" if pack > 1 else "default"
            for items in (8, 4, 2, 1):
                if items > 1 and (items * pack * row > 128 or items * pack > most):
                    continue
                threads = cls.default_threads(problem, pack * items)
                enough = 65536 // (pack * items * row)
                configs = [
                    cls(pack=pack, items=items, threads=threads, waves=waves, load=load)
                    for waves in cls.fields["waves"].values
                    if min(512, enough) <= threads * waves <= max(1024, min(enough, 2048))
                ]
                valid = [config for config in configs if not config.rejections(problem, target)]
                if valid:
                    return min(valid, key=lambda config: config.estimate(problem, target))
        plain = cls(pack=1, items=1, threads=256, waves=4, load="default")
        broken = plain.rejections(problem, target)
        if broken:
            raise ConfigError(f"no {cls.__name__} config is valid for {problem}: {'; '.join(map(str, broken))}")
        return plain

    @classmethod
    def default_threads(cls, problem: Problem, elements: int) -> int:
        """Threads of a block, of which each takes so many elements at a time."""
        return 256

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the view's axes."""
        return symbols(problem)

    def held(self, problem: Problem) -> int:
        """About the registers of a thread."""
        made = reductions_of(problem.graph)
        assert made is not None
        found = [a for a in accesses(problem) if not a.fixed]
        flight = sum(a.dtype.bytes * (1 if a.kind == "broadcast" else self.pack) for a in found) * self.items / 4
        kept = sum(r.dtype.bytes / 4 for r in made.reductions if r.kind == "moments") * self.pack * self.items
        return int(20 + flight + kept + self.pack * state_words(problem))

    def vectors(self, problem: Problem) -> Size:
        """Vectors of a result, over the symbols."""
        v = view(problem)
        inner = len(v.sizes) - 1
        return ceil_div(Dim(f"n{inner}"), self.pack) * product(v, v.kept, inner)

    def source(self, problem: Problem) -> Source:
        v = view(problem)
        rank = len(v.sizes)
        wide = v.length // self.pack >= 2**31 or v.outputs >= 2**31
        made = reductions_of(problem.graph)
        assert made is not None
        if any(r.kind == "argmax" for r in made.reductions):
            wide = wide or v.length >= 2**31
        parts = accumulation(problem, rank - 1, self.pack, wide)
        results = product(v, 0, v.kept)
        most = SM_COUNT * self.waves
        each = most // maximum(results, 1) if v.kept else most
        share = maximum(1, minimum(ceil_div(self.vectors(problem), self.threads), each))
        params: list[Param] = [
            *parameters(problem, parts, 64 if wide else 32),
            *workspace(parts, results * share, 1),
            Pointer("counters", i32, "", "counters", results),
        ]
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (results, share, 1) if v.kept else (share, 1, 1),
                (self.threads, 1, 1),
                parts.state_bytes * (self.threads // 32),
            ),
            arch=self.arch(problem),
            context=Context(
                rank,
                v.kept,
                "unsigned long long" if wide else "unsigned",
                parts,
                parts.used,
                "load_vector_once" if self.load == "no_allocate" else "load_vector",
            ),
        )

    def estimate(self, problem: Problem, target: Any) -> float:
        """Time to read the bytes, or to execute the instructions, with a constant for the launch and the last block.

        A multiprocessor must have about 40 KB in flight (Little's law). Blocks that do not fit at once come in rounds, and
        the last round, or the last vectors of a thread, take as long as full ones. Fitted to an H200's times.
        """
        v = view(problem)
        found = accesses(problem)
        row = sum(a.dtype.bytes for a in found if not a.fixed) or 1
        results = max(1, v.outputs)
        vectors = max(1, math.ceil(v.length / self.pack))
        share = max(1, min(math.ceil(vectors / self.threads), target.sm_count * self.waves // results))
        blocks = share * results
        per_thread = vectors / (share * self.threads)
        a_thread = min(self.items, per_thread) * self.pack * row
        uses_vectors = any(a.kind == "vector" for a in found)
        flow = in_flight(self.threads, self.held(problem), blocks, a_thread, target)
        flow *= min(1.0, 0.5 + self.pack * row / 32) if uses_vectors else 0.12
        flow *= 1.005 if self.load == "no_allocate" else 1.0
        steps = math.ceil(per_thread) / per_thread if per_thread > 1 else 1.0
        uneven, rounds = waves_of_blocks(self.threads, self.held(problem), blocks, target)
        elements = v.outputs * v.length
        memory = elements * row / (0.95 * target.bandwidth * flow) * uneven * steps
        work = elements * instructions(problem, found, self.pack, True) / (0.35 * target.f32_flops)
        return 4.5e-6 + max(memory, work) + 0.1 * min(memory, work) + (rounds - 1) * 1e-6 + 2e-10 * blocks


class Reduce(InnerSchedule):
    """All elements to one state: vectors straight from global memory, several states a thread, one launch."""

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)


def accesses(problem: Problem) -> tuple[Access, ...]:
    """How the operands under the reductions are reached along the inner axis."""
    v, made = view(problem), reductions_of(problem.graph)
    assert made is not None
    under = {leaf.attr for leaf in made.under}
    return tuple(Access.of(o, v, len(v.sizes) - 1) for o in problem.inputs if o.name in under)


def resident(threads: int, registers: int, target: Any) -> int:
    """Blocks that a multiprocessor has at once."""
    most = min(target.max_threads_per_sm // threads, target.max_blocks_per_sm)
    return max(1, min(most, target.registers_per_sm // (threads * registers)))


def in_flight(threads: int, registers: int, blocks: int, a_thread: float, target: Any) -> float:
    """The share of the bandwidth that so many bytes in flight a thread make use of."""
    at_once = min(resident(threads, registers, target), blocks / target.sm_count)
    enough = at_once * threads * a_thread / (700e-9 * target.bandwidth / target.sm_count)
    return float(enough / (1 + enough**4) ** 0.25)


def waves_of_blocks(threads: int, registers: int, blocks: int, target: Any) -> tuple[float, int]:
    """What unequal shares of the multiprocessors cost, and how many rounds of blocks there are."""
    if blocks <= target.sm_count:
        return 1.0, 1
    slots = resident(threads, registers, target) * target.sm_count
    rounds = math.ceil(blocks / slots)
    uneven = math.ceil(blocks / target.sm_count) * target.sm_count / blocks
    waiting = rounds * slots / blocks if rounds > 1 else 1.0
    return 1 + (uneven - 1) / 2 + (waiting - 1) / 4, rounds


family = register(Family("reduce", (Reduce,), matches, normalise, dims, suites))
