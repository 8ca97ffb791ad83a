"""Rowwise: reductions along the last axis, several and nested, with any pointwise expression before, between and after.

A row is read once and waits between the phases in registers or in shared memory; where it does not fit it is read again.
`row_threads` threads of a block, times `cluster` blocks, share a row; a block of more threads has several rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Source
from kgen.dsl.choice import choice, pruning, rule, sized, vectorised
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import ceil_div as ceil_div_size
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.vector import Vector, ceil_div, maximum, minimum, negated, of_class, of_shape, where
from kgen.ops.common.memory_bound import least_arch
from kgen.ops.rowwise.kernel import Writer, accesses, column_bytes, kept_bytes, state_bytes
from kgen.ops.rowwise.measured import limits_registers, misfit, pack_of_one_access, row_load
from kgen.ops.rowwise.model import modelled_seconds
from kgen.ops.rowwise.plan import matches, plan_of
from kgen.ops.rowwise.problem import LONGEST, shifted_pack, widest_pack


class Rowwise(Schedule):
    """One pass over memory where a row fits in the registers or the shared memory of its blocks."""

    template = "rowwise.cu.j2"
    techniques = {
        "single elements": {"pack": 1},
        "several rows a warp": {"row_threads": (1, 2, 4, 8, 16)},
        "a warp a row": {"row_threads": 32},
        "a block a row, in registers": {"row_threads": (64, 128, 256, 512, 1024), "keep": "registers", "cluster": 1},
        "a block a row, in shared memory": {"row_threads": (64, 128, 256, 512, 1024), "keep": "shared", "cluster": 1},
        "a cluster of blocks a row": {"cluster": (2, 4, 8, 16)},
        "rows read again": {"keep": "none"},
        "two passes": {"algorithm": "two_pass"},
        "online": {"algorithm": "online"},
    }
    target = sm(75)
    by_class = ("threads", "unroll")
    by_size = ("load",)
    span = ""  # what RowwiseSpan lets a config choose

    keep = choice("registers", "shared", "none")  # where a row waits between the phases; none: it is read again
    row_threads = choice(32, 8, 16, 64, 128, 256, 512, 1024, 4, 2, 1)  # of a block, that share a row
    threads = choice(128, 256, 512, 1024, 64, 32)
    cluster = choice(1, 2, 4, 8, 16)  # blocks that share a row
    pack = choice(8, 4, 16, 2, 1)  # elements of one vector
    shift = choice(False, True)  # vectors lie where memory is aligned, and not from the start of the row on
    unroll = choice(1, 2, 4, 8)  # vectors of a thread under way, where the row is not kept
    algorithm = choice(
        "two_pass", "online"
    )  # online: a maximum and its exponentials, a mean and its variance in one phase
    columns = choice("late", "early")  # when operands of [N] are read: where they are used, or before the row
    blocks_per_sm = choice(0, 1, 2, 3, 4, 5, 6, 8)  # that registers are limited for; 0: the compiler chooses
    load = choice("default", "evict_last")  # evict_last: L2 evicts what is read after what is written
    store = choice("default", "streaming")

    @property
    @of_class
    def step(self) -> Vector:
        """Columns that the threads of a row have side by side."""
        return self.cluster * self.row_threads * self.pack

    @of_shape
    def vectors(self, problem: Problem) -> Vector:
        """Vectors of a thread: all of its row, or those under way at a time."""
        whole = maximum(1, ceil_div(problem.leading[-1], self.step))
        return where(self.keep == "none", self.unroll, whole)

    def longest_row(self, problem: Problem) -> int:
        """The longest row that a kernel of as many vectors a thread takes."""
        if self.keep == "none":
            return LONGEST
        return int(self.vectors(problem) * self.step)

    def is_whole(self, problem: Problem) -> bool:
        """Whether the threads' vectors are a row exactly."""
        step = self.vectors(problem) * self.step
        return self.keep != "none" and not self.shift and bool(problem.leading[-1] == step)

    def stage_bytes(self, problem: Problem) -> Vector:
        """Bytes of shared memory that the rows of a block take."""
        return where(self.keep == "shared", self.stage_columns(problem) * kept_bytes(problem), 0)

    def stage_columns(self, problem: Problem) -> Vector:
        """Columns of a row, or of several, that a block keeps in shared memory."""
        return self.threads * self.vectors(problem) * self.pack

    @of_class
    def reduce_bytes(self, problem: Problem) -> Vector:
        """Bytes of shared memory that the reductions of a block or a cluster take."""
        two_pass, online = (state_bytes(plan_of(problem.graph, algorithm)) for algorithm in (False, True))
        state = where(self.algorithm == "online", online, two_pass)
        warps = self.cluster * self.threads // 32
        met = -(-2 * state * warps // 128) * 128
        return where((self.row_threads <= 32) & (self.cluster == 1), 0, met)

    def smem_bytes(self, problem: Problem) -> Vector:
        return self.reduce_bytes(problem) + self.stage_bytes(problem)

    def arch(self, problem: Problem) -> Arch:
        """The least architecture with all that the config uses."""
        least = self._least_arch(problem)
        return max(least, sm(80)) if self.load == "evict_last" else least

    def _least_arch(self, problem: Problem) -> Arch:
        """The same but for cache policies."""
        least = least_arch(problem)
        if self.cluster > 1:
            return sm(90)
        return max(least, sm(80)) if self.keep == "shared" else least

    # What the problem and the target allow.

    @rule
    def features_of_the_target(self, problem: Problem, target: Target) -> bool:
        """the dtypes (bf16: sm_80; fp8: sm_89), cp.async (sm_80) or clusters (sm_90) need a newer GPU"""
        return self._least_arch(problem).runs_on(target.arch)

    @rule
    @sized
    def policy_of_the_target(self, problem: Problem, target: Target) -> Vector:
        """a cache policy (evict_last) needs a newer GPU (sm_80)"""
        return (self.load == "default") | sm(80).runs_on(target.arch)

    @rule
    def aligned(self, problem: Problem, target: Target) -> bool:
        """a vector's access needs the alignment of every row of its operand (pack * size, at most 16 bytes): odd lengths have
        none, unless vectors are shifted and the rows of all operands are out of step alike"""
        return self.pack <= (shifted_pack(problem) if self.shift else widest_pack(problem))

    @rule
    @sized
    def short_enough(self, problem: Problem, target: Target) -> bool:
        """columns are counted in 32 bits: at most 2^30"""
        return problem.leading[-1] <= LONGEST

    @rule
    @vectorised
    def rows_of_a_block(self, problem: Problem, target: Target) -> Vector:
        """a block has as many threads as share a row, or a multiple; a cluster has one row"""
        return (self.row_threads <= self.threads) & ((self.cluster == 1) | (self.row_threads == self.threads))

    @rule
    @vectorised
    def unrolls_what_is_read_again(self, problem: Problem, target: Target) -> Vector:
        """`unroll` counts vectors where the row is not kept; else a thread has as many as the row takes"""
        return (self.keep == "none") | (self.unroll == 1)

    @rule
    @sized
    def vectors_of_a_thread(self, problem: Problem, target: Target) -> Vector:
        """what a thread has of a row fits in half of its registers (at most 256 bytes) or in 64 vectors of shared memory"""
        kept = where(self.keep == "shared", 0, max(1, kept_bytes(problem)))
        vectors = self.vectors(problem)
        size = vectors * self.pack * (kept + self.early_bytes(problem))
        most = minimum(256, 128 * 1024 // (self.threads * maximum(1, self.blocks_per_sm)))
        return (vectors <= 64) & (size <= most)

    @rule
    def copies_to_shared(self, problem: Problem, target: Target) -> bool:
        """rows in shared memory come by copies of 4, 8 or 16 bytes: operands lie together along the row and have such vectors"""
        if self.keep != "shared":
            return True
        full = [a for a in accesses(problem)[0] if a.kind == "full"]
        return bool(full) and all(not a.strided and self.pack * a.bytes in (4, 8, 16) for a in full)

    @rule
    @sized
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """the rows of a block must fit in its shared memory"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def online_of_two(self, problem: Problem, target: Target) -> bool:
        """`online` needs a sum of exponentials of values less their maximum, or a variance"""
        return self.algorithm == "two_pass" or bool(plan_of(problem.graph, True).online)

    @rule
    def early_columns(self, problem: Problem, target: Target) -> bool:
        """operands of [N] are read before the row into registers, where a thread has as many columns as it keeps"""
        return self.columns == "late" or (self.keep != "none" and column_bytes(problem) > 0)

    @rule
    @vectorised
    def threads_of_the_multiprocessor(self, problem: Problem, target: Target) -> Vector:
        """the threads of all `blocks` are at most those of a multiprocessor"""
        return self.threads * maximum(1, self.blocks_per_sm) <= target.max_threads_per_sm

    @rule
    def shifts_what_it_may(self, problem: Problem, target: Target) -> bool:
        """shifted vectors go to registers, and lie at other columns in every row"""
        registers = self.keep != "shared" and self.columns == "late"
        return not self.shift or (registers and self.pack > 1 and kept_bytes(problem) > 0)

    @rule
    def elements_beside(self, problem: Problem, target: Target) -> bool:
        """a thread has one at most of the elements before and after the shifted vectors of a row: up to 2 * (pack - 1)"""
        return not self.shift or 2 * (self.pack - 1) <= self.cluster * self.row_threads

    # What is never the best.

    @pruning
    def shifts_what_it_must(self, problem: Problem, target: Target) -> bool:
        """vectors are shifted where that makes them wider"""
        return not self.shift or self.pack > widest_pack(problem)

    @pruning
    def moderate_vectors(self, problem: Problem, target: Target) -> bool:
        """a vector of the widest operand is at most two accesses of 16 bytes"""
        widest = max((a.bytes for a in itertools.chain(*accesses(problem)) if a.kind == "full"), default=1)
        return self.pack == 1 or self.pack * widest <= 32

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """no row has more than twice the threads that have something to do"""
        smallest = ((self.row_threads == 1) | (self.threads == 32)) & (self.cluster == 1)
        return (self.step < 4 * max(problem.leading[-1], 1)) | smallest

    @pruning
    def shared_by_a_warp(self, problem: Problem, target: Target) -> bool:
        """lanes of one warp keep their rows in registers"""
        return self.keep != "shared" or self.row_threads >= 32

    @pruning
    @sized
    def plain_single_elements(self, problem: Problem, target: Target) -> Vector:
        """cache hints are for vectors, those of loads for registers"""
        hinted = (self.load != "default") & (self.keep == "shared")
        return negated(hinted) & ((self.pack > 1) | ((self.load == "default") & (self.store == "default")))

    def early_bytes(self, problem: Problem) -> Vector:
        """Bytes of a column over the operands of [N] that a thread keeps."""
        return where(self.columns == "late", 0, column_bytes(problem))

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and the widest vectors."""
        return problem.graph.digest, accesses(problem), widest_pack(problem), shifted_pack(problem)

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """As many registers as the compiler takes, but where a limit was seen to gain; plain stores, vectors of one access."""
        packs = {min(p, pack_of_one_access(problem, shift)) for p in cls.pack.values for shift in (False, True)}
        blocks = (0, 2) if limits_registers(problem) else (0,)
        return cls.where(blocks_per_sm=blocks, store="default", pack=packs)

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """Blocks of at least 128 threads, or of 64; four vectors under way or eight; L2 keeps what is read where it is full."""
        if field == "threads":
            return maximum(self.row_threads, 128), where(self.row_threads <= 32, 64, 0)
        if field == "load":
            return ("default",) if row_load(problem, target) == "default" else self.fields[field].values
        again = self.keep == "none"
        return where(again, 4, 1), where(again, 8, 0)

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """See measured.py."""
        return misfit(self, problem, target)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> Rowwise:
        """The best of the configs that a search considers, by the model."""
        from kgen.tuner.best import best  # here, as it loads numpy

        return best(cls, problem, target)[0]

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions, named sizes."""
        found = dict(problem.bindings)
        found |= {f"size_{name}": size for name, size in (problem.origin or problem).sizes.items()}
        for o in problem.operands:
            found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
        return found

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        if self.keep != "none":
            return ()
        return ((Dim(f"n{len(problem.leading) - 1}"), self.cluster * self.row_threads * self.pack * self.unroll),)

    def source(self, problem: Problem) -> Source:
        writer = Writer(self, problem)
        context = writer.context()
        rows: Size = Dim("n0")
        for d in range(1, writer.rank - 1):
            rows = rows * Dim(f"n{d}")
        groups = ceil_div_size(rows, self.threads // self.row_threads)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=writer.params(),
            launch=Launch(
                (groups * self.cluster, 1, 1), (self.threads, 1, 1), self.smem_bytes(problem), (self.cluster, 1, 1)
            ),
            arch=self.arch(problem),
            context=context,
            limits=writer.limits(),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """See model.py."""
        return modelled_seconds(self, problem, target)
