"""Rowwise: reductions along the last axis, several and nested, with any pointwise expression before, between and after.

A row is read once and waits between the phases in registers or in shared memory; where it does not fit it is read again.
`row_threads` threads of a block, times `cluster` blocks, share a row; a block of more threads has several rows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Source
from kgen.dsl.errors import ConfigError
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, Sizes, common_alignment
from kgen.dsl.schedule import Arch, Schedule, choice, pruning, rule, sm
from kgen.dsl.size import Dim, Size, ceil_div, evaluate
from kgen.ops.common.axes import merged_sizes, merged_strides, runs
from kgen.ops.common.memory_bound import least_arch
from kgen.ops.rowwise.kernel import Writer, accesses, kept_bytes, state_bytes
from kgen.ops.rowwise.model import Constants, modelled_seconds
from kgen.ops.rowwise.plan import full_shape, is_full, is_squeezed, matches, plan_of

#: Columns are counted in 32 bits, with room for a step beyond the end.
LONGEST = 2**30


def normalise(problem: Problem) -> Problem:
    """The problem over as few dimensions as possible: those before the row ordered by strides, neighbours merged.

    The last one is the row's. Where an element's place counts (random, arange of rows) the order stays.
    """
    if problem.origin is not None:
        return problem
    graph = problem.graph
    full = full_shape(graph)
    row = full.dims[-1]
    outer = (*problem.leading, *(evaluate(d, problem.sizes) for d in full.dims[:-1]))
    length = evaluate(row, problem.sizes)
    squeezed = [False] * len(graph.inputs) + [is_squeezed(*pair) for pair in zip(graph.outputs, graph.results)]
    specs = (*graph.inputs, *graph.outputs)
    strides = [
        _strides(o, outer, length, s, is_full(spec, row)) for o, s, spec in zip(problem.operands, squeezed, specs)
    ]
    axes = [a for a, n in enumerate(outer) if n != 1]
    if not any(n.op == "random" or (n.op == "arange" and len(n.shape.dims) > 1) for n in graph.nodes):
        leader = strides[len(problem.inputs)]
        axes.sort(key=lambda a: -leader[a])
    made = runs(axes, outer, strides)
    sizes = merged_sizes(made, outer) or [1]
    # Of a single row, what is like the row itself moves from row to row all the same.
    columns = [merged_strides(made, s) or [length * (spec.shape == full)] for s, spec in zip(strides, specs)]
    operands = []
    for o, spec, c, s, without in zip(problem.operands, specs, columns, strides, squeezed):
        last = () if without else (length if is_full(spec, row) else 1,)
        operands.append(Operand(o.name, o.dtype, (*sizes, *last), (*c, *s[len(outer) :][: len(last)]), o.align))
    leading = (*sizes, length)
    return problem.collapsed(operands, leading, {f"n{i}": n for i, n in enumerate(leading)})


def _strides(o: Operand, outer: tuple[int, ...], length: int, squeezed: bool, full: bool) -> tuple[int, ...]:
    """An operand's strides over the outer dimensions and the row's; one that is `full` moves along rows of one column too."""
    shape = (*o.shape, 1) if squeezed else o.shape
    given = (*o.strides, 0) if squeezed else o.strides
    missing = len(outer) + 1 - len(shape)
    kept = [s if n == f and f != 1 else 0 for s, n, f in zip(given, shape, (*outer, length)[missing:])]
    if length == 1 and full:
        kept[-1] = 1
    return (0,) * missing + tuple(kept)


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default`: rows of 1024, 4096 and 16384; `large`: 2^27 elements in rows of 256 to 262144; `small`: 2^20 elements."""
    full = full_shape(graph)
    row = str(full.dims[-1])

    def of(elements: int, length: int) -> Sizes:
        names = [name for name in graph.dims if name != row]
        sizes: dict[str, Any] = dict.fromkeys(names, 1)
        if row in graph.dims:
            sizes[row] = length
        rows = max(1, elements // length)
        if full.leading:
            sizes["..."] = (rows,)
        elif names:
            sizes[names[0]] = rows
        return sizes

    return {
        "default": [of(2**27, n) for n in (1024, 4096, 16384)],
        "large": [of(2**27, 4**k) for k in range(4, 10)],
        "small": [of(2**20, n) for n in (256, 1024, 4096)],
    }


@functools.lru_cache(maxsize=1024)
def widest_pack(problem: Problem) -> int:
    """The most elements, at most 16, that every operand along the row lets one vector have."""

    def fits(pack: int) -> bool:
        for a, o in zip(itertools.chain(*accesses(problem)), problem.operands):
            if a.kind in ("full", "column") and not a.strided:
                steps = [s * a.bytes for s, n in zip(o.strides[:-1], o.shape) if n > 1]
                if common_alignment(o.align, *steps) < min(16, pack * a.bytes):
                    return False
        return True

    return next(pack for pack in (16, 8, 4, 2, 1) if fits(pack))


@functools.lru_cache(maxsize=1024)
def shifted_pack(problem: Problem) -> int:
    """The most elements of a vector that starts where the first input's row is aligned; 1 where no such vector serves all."""
    along = [
        (a, o) for a, o in zip(itertools.chain(*accesses(problem)), problem.operands) if a.kind in ("full", "column")
    ]
    full = [(a, o) for a, o in along if a.kind == "full"]
    if any(a.strided for a, _ in along) or not any(o in problem.inputs for _, o in full):
        return 1

    def fits(pack: int) -> bool:
        steps = {tuple(s % pack for s, n in zip(o.strides[:-1], o.shape) if n > 1) for _, o in full}
        return len(steps) == 1 and all(o.align >= min(16, pack * a.bytes) for a, o in full)

    return next(pack for pack in (16, 8, 4, 2, 1) if fits(pack))


def sums_alone(problem: Problem) -> bool:
    """Whether one phase finds all that is asked for: nothing is made of the row once its sums are known."""
    return len(plan_of(problem.graph, True).phases) == 1 and not any(a.kind == "full" for a in accesses(problem)[1])


def load_policy(problem: Problem, target: Any) -> str:
    """`load` of a default: where L2 cannot hold what is read and written, it is best full of what is read."""
    large = problem.bytes > 2 * target.l2_bytes and sm(80).runs_on(target.arch)
    return "evict_last" if large and any(a.kind == "full" for a in accesses(problem)[1]) else "default"


class Rowwise(Schedule):
    """One pass over memory where a row fits in the registers or the shared memory of its blocks."""

    template = "rowwise.cu.j2"
    target = sm(75)

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
    blocks = choice(0, 1, 2, 3, 4, 5, 6, 8)  # a multiprocessor, that registers are limited for; 0: the compiler chooses
    load = choice("default", "evict_last")  # evict_last: L2 evicts what is read after what is written
    store = choice("default", "streaming")

    def vectors(self, problem: Problem) -> int:
        """Vectors of a thread: all of its row, or those under way at a time."""
        if self.keep == "none":
            return int(self.unroll)
        return max(1, -(-problem.leading[-1] // (self.cluster * self.row_threads * self.pack)))

    def longest_row(self, problem: Problem) -> int:
        """The longest row that a kernel of as many vectors a thread takes."""
        if self.keep == "none":
            return LONGEST
        return int(self.vectors(problem) * self.cluster * self.row_threads * self.pack)

    def is_whole(self, problem: Problem) -> bool:
        """Whether the threads' vectors are a row exactly."""
        step = self.vectors(problem) * self.cluster * self.row_threads * self.pack
        return self.keep != "none" and not self.shift and problem.leading[-1] == step

    def stage_bytes(self, problem: Problem) -> int:
        """Bytes of shared memory that the rows of a block take."""
        if self.keep != "shared":
            return 0
        return self.stage_columns(problem) * kept_bytes(problem)

    def stage_columns(self, problem: Problem) -> int:
        """Columns of a row, or of several, that a block keeps in shared memory."""
        return int(self.threads * self.vectors(problem) * self.pack)

    def reduce_bytes(self, problem: Problem) -> int:
        """Bytes of shared memory in which threads meet."""
        if self.row_threads <= 32 and self.cluster == 1:
            return 0
        state = state_bytes(plan_of(problem.graph, self.algorithm == "online"))
        warps = self.cluster * self.threads // 32
        return -(-2 * state * warps // 128) * 128

    def smem_bytes(self, problem: Problem) -> int:
        return self.reduce_bytes(problem) + self.stage_bytes(problem)

    def arch(self, problem: Problem) -> Arch:
        """The least architecture with all that the config uses."""
        least = least_arch(problem)
        if self.cluster > 1:
            return sm(90)
        return max(least, sm(80)) if self.keep == "shared" or self.load == "evict_last" else least

    # What the problem and the target allow.

    @rule
    def features_of_the_target(self, problem: Problem, target: Any) -> bool:
        """the dtypes (bf16: sm_80; fp8: sm_89), cp.async and cache policies (sm_80) or clusters (sm_90) need a newer GPU"""
        return self.arch(problem).runs_on(target.arch)

    @rule
    def aligned(self, problem: Problem, target: Any) -> bool:
        """a vector's access needs the alignment of every row of its operand (pack * size, at most 16 bytes): odd lengths have
        none, unless vectors are shifted and the rows of all operands are out of step alike"""
        return self.pack <= (shifted_pack(problem) if self.shift else widest_pack(problem))

    @rule
    def short_enough(self, problem: Problem, target: Any) -> bool:
        """columns are counted in 32 bits: at most 2^30"""
        return problem.leading[-1] <= LONGEST

    @rule
    def rows_of_a_block(self, problem: Problem, target: Any) -> bool:
        """a block has as many threads as share a row, or a multiple; a cluster has one row"""
        return self.row_threads <= self.threads and (self.cluster == 1 or self.row_threads == self.threads)

    @rule
    def unrolls_what_is_read_again(self, problem: Problem, target: Any) -> bool:
        """`unroll` counts vectors where the row is not kept; else a thread has as many as the row takes"""
        return self.keep == "none" or self.unroll == 1

    @rule
    def vectors_of_a_thread(self, problem: Problem, target: Any) -> bool:
        """what a thread has of a row fits in half of its registers (at most 256 bytes) or in 64 vectors of shared memory"""
        kept = 0 if self.keep == "shared" else max(1, kept_bytes(problem))
        size = self.vectors(problem) * self.pack * (kept + self.early_bytes(problem))
        return self.vectors(problem) <= 64 and size <= min(256, 128 * 1024 // (self.threads * max(1, self.blocks)))

    @rule
    def copies_to_shared(self, problem: Problem, target: Any) -> bool:
        """rows in shared memory come by copies of 4, 8 or 16 bytes: operands lie together along the row and have such vectors"""
        if self.keep != "shared":
            return True
        full = [a for a in accesses(problem)[0] if a.kind == "full"]
        return bool(full) and all(not a.strided and self.pack * a.bytes in (4, 8, 16) for a in full)

    @rule
    def fits_smem(self, problem: Problem, target: Any) -> bool:
        """the rows of a block must fit in its shared memory"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def online_of_two(self, problem: Problem, target: Any) -> bool:
        """`online` needs a sum of exponentials of values less their maximum, or a variance"""
        return self.algorithm == "two_pass" or bool(plan_of(problem.graph, True).online)

    @rule
    def early_columns(self, problem: Problem, target: Any) -> bool:
        """operands of [N] are read before the row into registers, where a thread has as many columns as it keeps"""
        return self.columns == "late" or (self.keep != "none" and self.early_bytes(problem) > 0)

    @rule
    def threads_of_the_multiprocessor(self, problem: Problem, target: Any) -> bool:
        """the threads of all `blocks` are at most those of a multiprocessor"""
        return self.threads * max(1, self.blocks) <= target.max_threads_per_sm

    @rule
    def shifts_what_it_may(self, problem: Problem, target: Any) -> bool:
        """shifted vectors go to registers, and lie at other columns in every row"""
        registers = self.keep != "shared" and self.columns == "late"
        return not self.shift or (registers and self.pack > 1 and kept_bytes(problem) > 0)

    @rule
    def elements_beside(self, problem: Problem, target: Any) -> bool:
        """a thread has one at most of the elements before and after the shifted vectors of a row: up to 2 * (pack - 1)"""
        return not self.shift or 2 * (self.pack - 1) <= self.cluster * self.row_threads

    # What is never the best.

    @pruning
    def shifts_what_it_must(self, problem: Problem, target: Any) -> bool:
        """vectors are shifted where that makes them wider"""
        return not self.shift or self.pack > widest_pack(problem)

    @pruning
    def moderate_vectors(self, problem: Problem, target: Any) -> bool:
        """a vector of the widest operand is at most two accesses of 16 bytes"""
        widest = max((a.bytes for a in itertools.chain(*accesses(problem)) if a.kind == "full"), default=1)
        return self.pack == 1 or self.pack * widest <= 32

    @pruning
    def idle_threads(self, problem: Problem, target: Any) -> bool:
        """no row has more than twice the threads that have something to do"""
        step = self.cluster * self.row_threads * self.pack
        return step < 4 * max(problem.leading[-1], 1) or (
            (self.row_threads == 1 or self.threads == 32) and self.cluster == 1
        )

    @pruning
    def shared_by_a_warp(self, problem: Problem, target: Any) -> bool:
        """lanes of one warp keep their rows in registers"""
        return self.keep != "shared" or self.row_threads >= 32

    @pruning
    def plain_single_elements(self, problem: Problem, target: Any) -> bool:
        """cache hints are for vectors, those of loads for registers"""
        hinted = self.load != "default" and self.keep == "shared"
        return not hinted and (self.pack > 1 or (self.load == "default" and self.store == "default"))

    def early_bytes(self, problem: Problem) -> int:
        """Bytes of a column over the operands of [N] that a thread keeps."""
        if self.columns == "late":
            return 0
        return sum(a.bytes for a in accesses(problem)[0] if a.kind == "column")

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def default(cls, problem: Problem, target: Any) -> Rowwise:
        """Of rows up to 16 KB the config that was best on an H200, of others the best of a short list by the model."""
        one_access = 16 // max((a.bytes for a in itertools.chain(*accesses(problem)) if a.kind == "full"), default=4)
        widest, shifted = min(widest_pack(problem), one_access), min(shifted_pack(problem), one_access)
        packs = [(widest, False), (shifted, True)][: 1 + (shifted > widest)]
        load, wide = load_policy(problem, target), problem.leading[-1] * kept_bytes(problem)
        inputs, outputs = accesses(problem)
        plan = plan_of(problem.graph, True)
        phases = len(plan_of(problem.graph, False).phases)
        if 512 <= wide <= (2**15 if phases == 1 else 2**14) and any(a.kind == "full" for a in outputs):
            # A thread has 32 bytes of each operand; of weights across two accesses, of which more are to be under way, 64. Other
            # weights come before the row, where registers are not what limits the threads of a multiprocessor; but three of 16
            # bits, which become f32 there, come with it, and more of the row at a time.
            pack, shift = packs[-1]
            held = [a.bytes for a in inputs if a.kind == "column"]
            before, many = bool(held) and not shift, len(held) > 2 and max(held) < 4
            mine = (64 if shift and held else 32) * sum(a.kind == "full" for a in inputs)
            ideal = max(0, round(math.log2(wide / mine)))
            if before and many and 0 < ideal <= 7:
                before, ideal = False, ideal - 1
            # Half as many where that leaves none without a vector: 32 threads for 96 vectors, not 64. One phase is too short for
            # that to count, and so are two without weights in 128 threads.
            vectors = problem.leading[-1] / pack
            if (
                phases > 1
                and (held or ideal > 7)
                and not shift
                and ideal > 0
                and vectors % 2**ideal
                and vectors % 2 ** (ideal - 1) == 0
            ):
                ideal -= 1
            for row in (2**i for i in range(ideal, 11)):
                columns = "early" if before and row <= 128 else "late"
                threads = max(row, 64 if columns == "early" and row <= 32 else 128)
                config = cls(keep="registers", row_threads=row, threads=threads, cluster=1, pack=pack, shift=shift,
                             unroll=1, algorithm="two_pass", columns=columns, blocks=0,
                             load=load if pack > 1 else "default", store="default")  # fmt: skip
                if not config.rejections(problem, target):
                    return config
        rows = math.prod(problem.leading[:-1])
        if wide > (2**15 if plan.online else 2**16) and sums_alone(problem) and rows >= 2 * target.sm_count:
            # The row passes by, and as many others as there is room for.
            pack, shift = packs[-1]
            row, unroll = (512, 4) if plan.online else (256, 8)
            config = cls(keep="none", row_threads=row, threads=row, cluster=1, pack=pack, shift=shift, unroll=unroll,
                         algorithm="online" if plan.online else "two_pass", columns="late", blocks=0, load="default",
                         store="default")  # fmt: skip
            if not config.rejections(problem, target):
                return config
        # Online evaluates more exponentials, which pays where they are cheap; of a mean and a variance two passes were better.
        cheap = all(o.dtype.bits <= 16 for o in problem.outputs)
        softmax = any(n.op == "sum" for n in plan.online.values())
        algorithms = ("two_pass", "online") if softmax else ("two_pass",)
        found: list[Rowwise] = []
        for (pack, shift), row, cluster, algorithm, keep in itertools.product(
            packs,
            (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            (1, 2, 4, 8, 16),
            algorithms,
            ("registers", "shared", "none"),
        ):
            # Measured: two to eight vectors a thread, in registers where they fit; clusters of blocks that are not too small.
            mine = wide / (row * cluster)
            if (
                (cluster > 1 and row < 128)
                or (algorithm == "online" and (row * cluster <= 32 or not (cheap or cluster > 1)))
                or (keep == "none" and row < 256)
            ):
                continue
            columns_of_a_thread = problem.leading[-1] / (row * cluster)
            # Alone on its multiprocessor, a block that has so many columns leaves the memory idle.
            if row == 1024 and cluster == 1 and columns_of_a_thread > 32 and sm(90).runs_on(target.arch):
                continue
            if keep == "registers" and not (
                mine <= (128 if row < 1024 else 256) and (mine >= 16 or row * cluster == 1)
            ):
                continue
            config = cls(keep=keep, row_threads=row, threads=max(row, 128), cluster=cluster, pack=pack, shift=shift,
                         unroll=4 if keep == "none" else 1, algorithm=algorithm, columns="late", blocks=0,
                         load=load if pack > 1 and keep != "shared" else "default",
                         store="default")  # fmt: skip
            if not config.rejections(problem, target):
                found.append(config)
        found = [c for c in found if c.keep == "registers"] or found
        if not found:
            raise ConfigError(f"no rowwise config is valid for {problem} on {target}")
        best = min(found, key=lambda c: c.estimate(problem, target))
        if best.cluster > 1 and rows <= target.sm_count:
            # Clusters of eight small blocks find places for all rows at once, where those of large ones take turns.
            small = (c for c in found if (c.keep, c.cluster, c.row_threads) == ("registers", 8, 256))
            best = min(small, key=lambda c: c.estimate(problem, target), default=best)
        return best

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.. and strides x_s0.. of the collapsed dimensions, named sizes."""
        found = dict(problem.bindings)
        found |= {f"size_{name}": size for name, size in (problem.origin or problem).sizes.items()}
        for o in problem.operands:
            found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
        return found

    def source(self, problem: Problem) -> Source:
        writer = Writer(self, problem)
        context = writer.context()
        rows: Size = Dim("n0")
        for d in range(1, writer.rank - 1):
            rows = rows * Dim(f"n{d}")
        groups = ceil_div(rows, self.threads // self.row_threads)
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
        )

    def estimate(self, problem: Problem, target: Any) -> float:
        """See model.py."""
        return modelled_seconds(self, problem, target, Constants())
