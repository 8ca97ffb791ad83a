"""What the schedules of scans have in common, and those of them whose threads access memory by vectors of a row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Limit, Param, Source
from kgen.dsl.choice import Choice, pruning, rule, sized, vectorised
from kgen.dsl.problem import NormalProblem, Problem, common_alignment
from kgen.dsl.schedule import SearchSpace
from kgen.dsl.size import Dim, Size, prod
from kgen.dsl.target import Target
from kgen.dsl.vector import Vector
from kgen.ops.common.memory_bound import LOADS, STORES, MemoryBound, VectorSchedule
from kgen.ops.rowwise.kernel import accesses
from kgen.ops.rowwise.problem import LONGEST
from kgen.ops.scan.kernel import Context, along_row, context, input_bytes, matches, parameters, state_bytes


class ScanSchedule(MemoryBound):
    """A kernel of one launch over the rows of a problem."""

    @rule
    @sized
    def short_enough(self, problem: Problem, target: Target) -> bool:
        """columns are counted in 32 bits: at most 2^30"""
        return problem.leading[-1] <= LONGEST

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions."""
        found = dict(problem.bindings)
        for o in problem.operands:
            found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
        return found

    def source(self, problem: Problem) -> Source:
        rows = prod(Dim(f"n{d}") for d in range(len(problem.leading) - 1))
        limits = self.limits(problem, rows)
        wide = not all(limit.holds(self.symbols(problem)) for limit in limits)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(*parameters(problem, 64 if wide else 32), *self.workspaces(problem, rows)),
            launch=self.launch(problem, rows),
            arch=self.arch(problem),
            context=self.context(problem, wide),
            limits=(*self.lengths(problem), *(() if wide else limits)),
        )

    # What a subclass gives.

    def context(self, problem: Problem, wide: bool) -> Context:
        """What the template sees, with indices of rows of 64 bits if `wide`."""
        raise NotImplementedError

    def limits(self, problem: Problem, rows: Size) -> tuple[Limit, ...]:
        """What indices of 32 bits allow."""
        return (Limit(rows, 2**31 - 1),)

    def lengths(self, problem: Problem) -> tuple[Limit, ...]:
        """What its rows may be."""
        return ()

    def launch(self, problem: Problem, rows: Size) -> Launch:
        """How it is launched on so many rows."""
        raise NotImplementedError

    def workspaces(self, problem: Problem, rows: Size) -> tuple[Param, ...]:
        """Memory beside the operands."""
        return ()


class VectorScan(ScanSchedule, VectorSchedule):
    """`pack` elements of a vector of a row, `vectors` of a thread in a tile, `stages` tiles under way."""

    vectors: Choice[int]
    stages: Choice[int] | int = 1
    threads: Choice[int]
    load: Choice[str]
    store: Choice[str]

    @pruning
    @vectorised
    def registers(self, problem: Problem, target: Target) -> Vector:
        """a thread's vectors of the tiles under way, and their states, fit in its registers"""
        held = self.stages * self.vectors * (self.pack * input_bytes(problem) + state_bytes(problem.graph))
        return (self.vectors == 1) | (held <= self.register_bytes)

    @pruning
    def plain_single_elements(self, problem: Problem, target: Target) -> bool:
        """cache hints are for vectors, they change nothing for single elements"""
        return self.pack > 1 or (self.load == "default" and self.store == "default")

    @classmethod
    def vectors_of(cls, problem: Problem) -> Iterable[tuple[float, int]]:
        for a, o in along_row(problem):
            if not a.strided:
                steps = [s * a.bytes for s, n in zip(o.strides[:-1], o.shape) if n > 1]
                yield a.bytes, common_alignment(o.align, *steps)

    @classmethod
    def widest(cls, problem: Problem) -> int:
        return max(a.bytes for a, _ in along_row(problem))

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and what its rows are aligned to."""
        return problem.graph.digest, accesses(problem), tuple(cls.vectors_of(problem))

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """Vectors up to 16 bytes, plain loads and stores."""
        return cls.where(pack=cls.packs(problem), load="default", store="default")

    def context(self, problem: Problem, wide: bool) -> Context:
        return context(problem, wide, LOADS[self.load], STORES[self.store])

    # What a subclass gives.

    @property
    def register_bytes(self) -> Vector:
        """Bytes of a thread's registers for these."""
        raise NotImplementedError
