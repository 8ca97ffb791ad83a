"""RowwiseSpan: short rows, at any address. The rows of a block, or of a thread, are one span of memory.

Rows of a few elements, or of an odd number, have no vectors of 16 bytes of their own, and less keeps too little on its way for
too many instructions. Here what comes and goes are such vectors, whatever a row's length. A block's span passes through shared
memory: of a row there each thread of a warp, or of a part of one, has the vectors that the row does have, and then of the next
row that these threads have in the span. Of rows that are shorter than a vector a thread has several, as a span in its registers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Limit, Source
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.expr import walk
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.vector import Vector, ceil_div, maximum, of_class, of_shape, where
from kgen.ops.common.memory_bound import least_arch
from kgen.ops.rowwise.dense import full_operands, is_one_span, places, slots_of
from kgen.ops.rowwise.kernel import Writer, accesses, column_bytes
from kgen.ops.rowwise.measured import longest_span
from kgen.ops.rowwise.model import span_seconds
from kgen.ops.rowwise.plan import matches, plan_of
from kgen.ops.rowwise.problem import widest_pack
from kgen.ops.rowwise.rowwise import Rowwise


class RowwiseSpan(Schedule):
    """The rows of a block come to shared memory, and leave it, as one span of memory; or those of a thread to its registers."""

    template = "rowwise_span.cu.j2"
    techniques = {
        "a warp a row": {"row_threads": 32},
        "a block's rows at once": {"turns": 1},
        "rows one after another": {"turns": (2, 4, 8, 16)},
    }
    target = sm(80)

    # What Rowwise lets a config choose.
    keep, shift, algorithm, cluster, unroll, load, store = "span", False, "two_pass", 1, 1, "default", "default"

    span = choice(
        "block", "thread", absent="block"
    )  # whose rows it is: a block's, in shared memory; a thread's, in registers
    row_threads = choice(32, 16, 8, 4, 2, 1)  # that share a row
    threads = choice(128, 256, 64)
    turns = choice(1, 2, 4, 8, 16)  # rows of a thread, one after another
    pack = choice(1, 2, 4, absent=1)  # elements of a vector in shared memory
    columns = choice("early", "late")  # when operands of [N] are read: once, or for every row

    @property
    @of_class
    def rows(self) -> Vector:
        """Rows of a block."""
        return self.threads // self.row_threads * self.turns

    @of_shape
    def vectors(self, problem: Problem) -> Vector:
        """Vectors of a row that a thread has."""
        return maximum(1, ceil_div(problem.leading[-1], self.row_threads * self.pack))

    def longest_row(self, problem: Problem) -> int:
        """The longest row that a kernel of as many elements a thread takes."""
        return int(self.vectors(problem) * self.row_threads * self.pack)

    def is_whole(self, problem: Problem) -> bool:
        """Whether the threads' elements are a row exactly."""
        return problem.leading[-1] == self.longest_row(problem)

    def reduce_bytes(self, problem: Problem) -> int:
        """A row's threads are lanes of one warp: their reductions take no shared memory."""
        return 0

    def stage_columns(self, problem: Problem) -> Vector:
        """Elements of each operand that a block has in shared memory."""
        return where(self.span == "block", self.rows * self.vectors(problem) * self.row_threads * self.pack, 0)

    @of_shape
    def stage_bytes(self, problem: Problem) -> Vector:
        """Bytes of shared memory of a block's rows."""
        return self.stage_columns(problem) * sum(slots(problem)[1])

    def smem_bytes(self, problem: Problem) -> Vector:
        return self.stage_bytes(problem)

    def arch(self, problem: Problem) -> Arch:
        """The least architecture with the dtypes, and with copies to shared memory that nobody waits for."""
        return max(least_arch(problem), sm(80))

    # What the problem and the target allow.

    @rule
    def features_of_the_target(self, problem: Problem, target: Target) -> bool:
        """cp.async (sm_80), or the dtypes (fp8: sm_89), need a newer GPU"""
        return self.arch(problem).runs_on(target.arch)

    @rule
    def one_span(self, problem: Problem, target: Target) -> bool:
        """rows follow one another without gaps, from a multiple of 16 bytes on, in every operand that has one for each"""
        return is_one_span(problem)

    @rule
    @vectorised
    def whole_vectors(self, problem: Problem, target: Target) -> Vector:
        """a block's span begins at a multiple of 16 bytes, whatever the length of a row"""
        return self.rows * min(slots(problem)[1], default=1) % 16 == 0

    @rule
    @sized
    def rows_of_a_vector(self, problem: Problem, target: Target) -> Vector:
        """a thread's span is one vector of 16 bytes, of the operand whose elements are the smallest, and its rows are its own; no
        result is one value a row"""
        size = self.turns * problem.leading[-1] * min(slots(problem)[1], default=1)
        alone = all(a.kind == "full" for a in accesses(problem)[1])
        return (self.span == "block") | (alone & (self.row_threads * self.pack == 1) & (size == 16))

    @rule
    @sized
    def vectors_of_rows(self, problem: Problem, target: Target) -> Vector:
        """a row is whole vectors, of at most 16 bytes, and begins at a multiple of them in every operand"""
        along = [a.bytes for a in itertools.chain(*accesses(problem)) if a.kind in ("full", "column")]
        widest = max(along, default=1)
        aligned = (self.pack <= widest_pack(problem)) & (self.pack * widest <= 16)
        return aligned & (problem.leading[-1] % self.pack == 0)

    @rule
    @sized
    def elements_of_a_thread(self, problem: Problem, target: Target) -> Vector:
        """a thread has at most 32 elements of a row, and keeps 64 of all operands in its registers"""
        columns = sum(a.kind == "column" for a in accesses(problem)[0])
        kept = len(full_operands(problem)[0]) + where(self.columns == "early", columns, 0)
        elements = self.vectors(problem) * self.pack
        return (elements <= 32) & (elements * kept <= 64)

    @rule
    @sized
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """the rows of a block must fit in its shared memory"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def early_columns(self, problem: Problem, target: Target) -> bool:
        """where no operand is of [N], none is read before"""
        return self.columns == "late" or column_bytes(problem) > 0

    # What is never the best.

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """no row has twice the threads that have something to do"""
        return (self.row_threads * self.pack < 2 * maximum(1, problem.leading[-1])) | (self.row_threads == 1)

    @pruning
    @sized
    def several_blocks(self, problem: Problem, target: Target) -> Vector:
        """a multiprocessor has room for four blocks, so that some compute while others wait for their rows"""
        return target.resident_blocks(self.threads, 32, self.smem_bytes(problem)) >= 4

    @pruning
    @vectorised
    def blocks_of_own_spans(self, problem: Problem, target: Target) -> Vector:
        """threads with spans of their own are 128 to a block: 256 are as fast, of 64 a multiprocessor cannot begin enough"""
        return (self.span == "block") | (self.threads == 128)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """longer rows, and those that threads share evenly by vectors of 16 bytes, need not pass through shared memory"""
        read, written = full_operands(problem)
        widest = max((a.bytes for a in (*read.values(), *written.values())), default=16)
        return problem.leading[-1] <= longest_span(problem, widest_pack(problem) * widest >= 16, widest)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and whether rows are one span."""
        return problem.graph.digest, accesses(problem), is_one_span(problem)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> RowwiseSpan:
        """The best of the configs that a search considers, by the model."""
        from kgen.tuner.best import best  # here, as it loads numpy

        return best(cls, problem, target)[0]

    symbols = staticmethod(Rowwise.symbols)

    def source(self, problem: Problem) -> Source:
        writer = Writer(self, problem)
        rows: Size = Dim("n0")
        for d in range(1, writer.rank - 1):
            rows = rows * Dim(f"n{d}")
        context = writer.context(places(slots(problem), int(self.stage_columns(problem))))
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(p for p in writer.params() if self.span == "block" or p.name != writer.length),
            launch=Launch((ceil_div_size(rows, int(self.rows)), 1, 1), (self.threads, 1, 1), self.smem_bytes(problem)),
            arch=self.arch(problem),
            context=context,
            limits=(*writer.limits(), self._least(problem)),
        )

    def _least(self, problem: Problem) -> Limit:
        """Rows are so long that no thread lacks more than its last element."""
        length = Dim(f"n{len(problem.leading) - 1}")
        return Limit(length, least=(int(self.vectors(problem)) - 1) * self.row_threads * self.pack + 1)

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """See model.py."""
        return span_seconds(self, problem, target)


@functools.lru_cache(maxsize=1024)
def slots(problem: Problem) -> tuple[dict[str, int], tuple[int, ...]]:
    """See slots_of. Results take no input's place where one column decides of a row's value, which is read again."""
    return slots_of(problem, not any(n.op == "pick" for n in walk(plan_of(problem.graph, False).results)))
