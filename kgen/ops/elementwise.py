"""Elementwise: any traced pointwise expression over tensors that broadcast, dense or strided.

Dimensions are collapsed first (`normalise`), so that a dense problem is one-dimensional whatever its shape. A thread moves
`items` vectors of `pack` elements; `waves` blocks a multiprocessor loop over the tensor, or the grid covers it at once (0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Scalar, Source
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import POINTWISE
from kgen.dsl.family import Family, register
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, Sizes
from kgen.dsl.schedule import Arch, Schedule, choice, pruning, rule, sm
from kgen.dsl.size import Dim, Size, ceil_div, minimum
from kgen.dsl.types import bf16, e4m3, e5m2


def matches(graph: Graph) -> bool:
    """Whether the graph is pointwise from its inputs to its outputs, all of one full shape."""
    leaves = {"input", "scalar", "const"}
    shapes = {spec.shape for spec in graph.outputs}
    return len(shapes) == 1 and all(n.op in leaves or n.op in POINTWISE for n in graph.nodes)


def normalise(problem: Problem) -> Problem:
    """The problem over as few dimensions as possible: size 1 dropped, ordered by the output's strides, neighbours merged."""
    if problem.origin is not None:
        return problem
    full = problem.outputs[0].shape
    strides = [_broadcast_strides(o, full) for o in problem.operands]
    leader = len(problem.inputs)
    axes = [a for a, n in enumerate(full) if n != 1]
    axes.sort(key=lambda a: -strides[leader][a])
    sizes = [full[a] for a in axes] or [1]
    columns = [[s[a] for a in axes] or [1] for s in strides]
    axis = 0
    while axis + 1 < len(sizes):
        if all(c[axis] == c[axis + 1] * sizes[axis + 1] for c in columns):
            sizes[axis : axis + 2] = [sizes[axis] * sizes[axis + 1]]
            for c in columns:
                del c[axis]
        else:
            axis += 1
    operands = [Operand(o.name, o.dtype, tuple(sizes), tuple(c), o.align) for o, c in zip(problem.operands, columns)]
    return problem.collapsed(operands, tuple(sizes), {f"n{i}": n for i, n in enumerate(sizes)})


def _broadcast_strides(operand: Operand, full: tuple[int, ...]) -> tuple[int, ...]:
    missing = len(full) - len(operand.shape)
    kept = [s if n == f or f == 1 else 0 for s, n, f in zip(operand.strides, operand.shape, full[missing:])]
    return (0,) * missing + tuple(kept)


def dims(graph: Graph) -> tuple[str, ...]:
    """A shape is written as the output's: leading sizes, then the named dimensions."""
    return (*(("...",) if graph.outputs[0].shape.leading else ()), *graph.dims)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: 2^20, 2^24 and 2^27 elements; `large`: 2^27 alone; `small`: 2^12 to 2^20."""

    def of(elements: Sequence[int]) -> list[Sizes]:
        names = graph.dims
        if not names:
            return [{"...": (n,)} for n in elements]
        inner: dict[str, Any] = dict.fromkeys(names, 4096)
        if not graph.outputs[0].shape.leading:
            return [inner | {names[0]: max(1, n // 4096 ** (len(names) - 1))} for n in elements]
        return [inner | {"...": (max(1, n // 4096 ** len(names)),)} for n in elements]

    return {"default": of([2**20, 2**24, 2**27]), "large": of([2**27]), "small": of([2**12, 2**16, 2**20])}


@dataclass(frozen=True)
class Access:
    """How the template reaches an operand: its `kind`, and the outer dimensions along which its address moves."""

    name: str
    ctype: str
    kind: str
    moving: tuple[int, ...]

    @classmethod
    def of(cls, o: Operand, is_output: bool) -> Access:
        *outer, inner = o.strides
        kind = {1: "vector", 0: "broadcast"}.get(inner, "strided")
        if not is_output and not any(o.strides):
            kind = "scalar"
        elif is_output and kind == "broadcast":
            kind = "strided"
        moving = tuple(d for d, s in enumerate(outer) if s != 0)
        return cls(identifier(o.name), o.dtype.ctype, kind, moving)


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    rank: int
    index_type: str
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    load: str
    store: str
    function: str
    arguments: str


class Elementwise(Schedule):
    """Vectors straight from global memory to registers and back."""

    template = "elementwise.cu.j2"
    target = sm(75)

    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    items = choice(1, 2, 4, 8)  # vectors a thread has in flight
    threads = choice(128, 256, 512, 1024)
    waves = choice(0, 1, 2, 4, 8)  # blocks a multiprocessor; 0: one pass, as many blocks as it takes
    load = choice("default", "no_allocate")
    store = choice("default", "streaming")

    @rule
    def dtype_of_the_target(self, problem: Problem, target: Any) -> bool:
        """the operands' dtype needs a newer architecture (bf16: sm_80; fp8: sm_89)"""
        return least_arch(problem).runs_on(target.arch)

    @rule
    def aligned(self, problem: Problem, target: Any) -> bool:
        """a vector's access needs the alignment of its operand (pack * size, at most 16 bytes)"""
        return all(min(16, self.pack * o.dtype.bytes) <= o.row_align for o in problem.operands if o.strides[-1] == 1)

    @rule
    def whole_vectors(self, problem: Problem, target: Any) -> bool:
        """rows of a problem with several dimensions are cut into whole vectors"""
        return len(problem.leading) == 1 or problem.leading[-1] % self.pack == 0

    @rule
    def moderate_vectors(self, problem: Problem, target: Any) -> bool:
        """the widest operand's vector is at most two accesses of 16 bytes"""
        return self.pack == 1 or self.pack * max(o.dtype.bytes for o in problem.operands) <= 32

    @pruning
    def registers(self, problem: Problem, target: Any) -> bool:
        """the vectors in flight fit in the registers of a thread: at most 128 bytes, 64 with 1024 threads"""
        row = sum(o.dtype.bytes for o in problem.inputs)
        return self.items == 1 or self.items * self.pack * row <= (64 if self.threads == 1024 else 128)

    @pruning
    def plain_single_elements(self, problem: Problem, target: Any) -> bool:
        """cache hints are for vectors, they change nothing for single elements"""
        return self.pack > 1 or (self.load == "default" and self.store == "default")

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def default(cls, problem: Problem, target: Any) -> Elementwise:
        """The widest legal vectors up to 16 bytes, two in flight, 256 threads, one pass."""
        widest = max(o.dtype.bytes for o in problem.operands)
        packs = [p for p in cls.fields["pack"].values if isinstance(p, int) and p * widest <= 16]
        for pack in (*reversed(packs), 1):
            for items in (2, 1):
                config = cls(pack=pack, items=items, threads=256, waves=0, load="default", store="default")
                if not config.rejections(problem, target):
                    return config
        raise ConfigError(f"no elementwise config is valid for {problem}")

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        found = dict(problem.bindings)
        for o in problem.operands:
            found |= {f"{identifier(o.name)}_s{d}": s for d, s in enumerate(o.strides)}
        return found

    def vectors(self, rank: int) -> Size:
        """Number of vectors, over the symbols."""
        count: Size = ceil_div(Dim(f"n{rank - 1}"), self.pack)
        for d in range(rank - 1):
            count = count * Dim(f"n{d}")
        return count

    def source(self, problem: Problem) -> Source:
        graph, rank = problem.graph, len(problem.leading)
        inputs = tuple(Access.of(o, False) for o in problem.inputs)
        outputs = tuple(Access.of(o, True) for o in problem.outputs)
        params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
        params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
        # A 32-bit index also has to hold one step beyond the end.
        wide = math.prod(problem.leading) // self.pack >= 2**31
        params += [Integer(f"n{d}", Dim(f"n{d}"), 64 if rank == 1 or wide else 32) for d in range(rank)]
        for a in (*inputs, *outputs):
            used = [*a.moving, *([rank - 1] if a.kind == "strided" else [])]
            params += [Integer(f"{a.name}_s{d}", Dim(f"{a.name}_s{d}"), 64) for d in used]
        params += [Scalar(s.name, s.dtype) for s in graph.scalars]
        blocks = ceil_div(self.vectors(rank), self.threads * self.items)
        if self.waves:
            blocks = minimum(blocks, SM_COUNT * self.waves)
        fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        leaves = {n.attr: n for n in graph.nodes if n.op in ("input", "scalar")}
        named = [(s.name, identifier(s.name), s.dtype) for s in (*graph.inputs, *graph.scalars) if s.name in leaves]
        function = pointwise_function(
            "compute",
            [Argument(leaves[name], written, dtype) for name, written, dtype in named],
            graph.results,
            [o.dtype for o in graph.outputs],
            fast,
        )
        element = {
            "vector": "{}_items[i][e]",
            "strided": "{}_items[i][e]",
            "broadcast": "{}_items[i]",
            "scalar": "{}_value",
        }
        kinds = {a.name: element[a.kind] for a in inputs}
        arguments = [kinds.get(written, "{}").format(written) for _, written, _ in named]
        arguments += [f"{y.name}_vector[e]" for y in outputs]
        used = tuple(a for a, o in zip(inputs, problem.inputs) if o.name in leaves)
        context = Context(
            rank,
            "unsigned long long" if wide else "unsigned",
            used,
            outputs,
            "load_vector_once" if self.load == "no_allocate" else "load_vector",
            "store_vector_streaming" if self.store == "streaming" else "store_vector",
            function,
            ", ".join(arguments),
        )
        return render(
            self,
            problem,
            entry=graph.name,
            params=tuple(params),
            launch=Launch((blocks, 1, 1), (self.threads, 1, 1)),
            arch=least_arch(problem),
            context=context,
        )

    def estimate(self, problem: Problem, target: Any) -> float:
        """Time to move the bytes: at the bandwidth where enough of them are in flight (Little's law), else at the latency.

        A multiprocessor must have about 40 KB in flight to hide 700 ns of memory latency at its share of 4.4 TB/s.
        """
        wanted = 700e-9 * target.bandwidth / target.sm_count
        row = sum(o.dtype.bytes for o in problem.inputs if any(o.strides))
        threads = min(target.max_threads_per_sm, 2048) * 0.9
        elements = math.prod(problem.leading)
        resident = min(threads, max(1.0, elements / (self.pack * self.items) / target.sm_count))
        flight = resident * self.items * self.pack * row
        narrow = min(1.0, 0.55 + 0.03 * self.pack * max(o.dtype.bytes for o in problem.operands))
        loop = 0.97 if self.waves else 1.0
        return 2e-6 + problem.bytes / (target.bandwidth * 0.93 * min(1.0, flight / wanted) * narrow * loop)


def least_arch(problem: Problem) -> Arch:
    """The least architecture on which all dtypes of a problem exist."""
    dtypes = {o.dtype for o in problem.operands}
    return sm(89) if dtypes & {e4m3, e5m2} else sm(80) if bf16 in dtypes else sm(75)


family = register(Family("elementwise", (Elementwise,), matches, normalise, dims, suites))
