"""RowwiseCluster: long rows, one phase, each shared by a cluster of blocks that loops over rows and never waits for bytes.

Rows come by bulk copies into a ring of slots that each warp has in shared memory. A warp adds up what it has of a row, leaves
that to the warp that exchanges states with the other blocks, and makes the results of the row before; so what is on its way to
a multiprocessor never falls to nothing. Weights stay in registers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Source
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import Family, register_family
from kgen.dsl.problem import NormalProblem, Problem, common_alignment
from kgen.dsl.schedule import Schedule, SearchSpace
from kgen.dsl.size import Dim, Size
from kgen.dsl.size import maximum as largest
from kgen.dsl.size import minimum as least
from kgen.dsl.target import Target, sm
from kgen.dsl.vector import Vector, ceil_div, maximum, minimum, of_class, of_shape, where
from kgen.ops.common.axes import dims
from kgen.ops.common.memory_bound import load_policy
from kgen.ops.rowwise.kernel import Context, Writer, accesses, column_bytes, kept_bytes, state_bytes
from kgen.ops.rowwise.measured import cluster_misfit, left_to_blocks, pack_of_one_access
from kgen.ops.rowwise.model import cluster_seconds
from kgen.ops.rowwise.plan import matches, plan_of
from kgen.ops.rowwise.problem import LONGEST, normalise, suites, widest_pack
from kgen.ops.rowwise.rowwise import Rowwise
from kgen.ops.rowwise.span import RowwiseSpan


@dataclass(frozen=True)
class ClusterContext(Context):
    """What the template sees beside; `places` in shared memory are those of operands of [N], and of the barriers."""

    parts: int
    ahead: int
    places: tuple[tuple[str, str], ...]


class RowwiseCluster(Schedule):
    """Clusters of blocks loop over the rows; sums of the next row are under way while the results of one are made."""

    template = "rowwise_cluster.cu.j2"
    techniques = {
        "a cluster of 2 a row": {"cluster": 2},
        "a cluster of 4 a row": {"cluster": 4},
        "a cluster of 8 a row": {"cluster": 8},
        "a cluster of 16 a row": {"cluster": 16},
    }
    target = sm(90)
    by_size = ("load",)

    # What Rowwise lets a config choose.
    keep, shift, algorithm, row_threads = "ring", False, "online", 0
    span = ""  # what RowwiseSpan does

    cluster = choice(2, 4, 8, 16)  # blocks that share a row
    threads = choice(512, 256, 128)  # of a block, that compute
    pack = choice(8, 4, 2, 1, 16)  # elements of one vector
    unroll = choice(4, 2, 1, 8)  # vectors of a thread in a part of a row
    slots = choice(2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)  # parts of rows in shared memory
    blocks_per_sm = choice(1, 2, 3, 4)
    columns = choice("early", "shared", "late")  # where operands of [N] are kept: registers, shared memory, nowhere
    load = choice("default", "evict_last")  # evict_last: L2 evicts what is read after what is written
    store = choice("default", "streaming")

    def vectors(self, problem: Problem) -> int:
        """Vectors of a thread in a part."""
        return int(self.unroll)

    @property
    def part(self) -> Vector:
        """Columns of a part, over the cluster."""
        return self.cluster * self.threads * self.pack * self.unroll

    @of_shape
    def parts(self, problem: Problem) -> Vector:
        """Parts of a row."""
        return maximum(1, ceil_div(problem.leading[-1], self.part))

    def ahead(self, problem: Problem) -> Vector:
        """Rows whose sums are under way while results are made: one, where there is room for two and for what comes."""
        return where(self.slots > 2 * self.parts(problem), 1, 0)

    def longest_row(self, problem: Problem) -> int:
        """The longest row that a kernel of as many parts takes."""
        return int(self.parts(problem) * self.part)

    def is_whole(self, problem: Problem) -> bool:
        """Whether the parts are a row exactly."""
        return problem.leading[-1] == self.longest_row(problem)

    def stage_columns(self, problem: Problem) -> Vector:
        """Columns of a part that a warp has, in a slot."""
        return 32 * self.unroll * self.pack

    def stage_bytes(self, problem: Problem) -> Vector:
        """Bytes of a slot."""
        return self.stage_columns(problem) * kept_bytes(problem)

    def column_bytes(self, problem: Problem) -> Vector:
        """Bytes of shared memory with what a block keeps of operands of [N]."""
        own = self.parts(problem) * self.unroll * self.threads * self.pack
        return where(self.columns == "shared", own * column_bytes(problem), 0)

    @of_class
    def reduce_bytes(self, problem: Problem) -> Vector:
        """Bytes of shared memory beside the slots: barriers, and what is exchanged."""
        warps = self.threads // 32
        states = 2 * (warps + self.cluster + 1) * state_bytes(plan_of(problem.graph, True))
        return 8 * (6 + warps * self.slots) + states

    @of_shape
    def smem_bytes(self, problem: Problem) -> Vector:
        slots = self.threads // 32 * self.slots * self.stage_bytes(problem)
        return slots + self.column_bytes(problem) + self.reduce_bytes(problem)

    def early_registers(self, problem: Problem) -> Vector:
        """Registers of a thread with operands of [N]; 16-bit ones may be held as f32."""
        a_column = sum(-(-a.bytes // 4) for a in accesses(problem)[0] if a.kind == "column")
        return where(self.columns == "early", self.parts(problem) * self.unroll * self.pack * a_column, 0)

    @of_class
    def registers(self, target: Target) -> Vector:
        """Registers that a thread may have: each quarter of a multiprocessor has a quarter of the warps, rounded up."""
        warps = -(-self.blocks_per_sm * (self.threads // 32 + 1) // 4)
        return minimum(255, target.registers_per_sm // 4 // (32 * warps) // 8 * 8)

    # What the problem and the target allow.

    @rule
    def one_phase(self, problem: Problem, target: Target) -> bool:
        """the reductions of a row are found in one phase, and what they need is known of no row before"""
        plan = plan_of(problem.graph, True)
        return len(plan.phases) == 1 and not plan.divisors[0]

    @rule
    def bulk_copies(self, problem: Problem, target: Target) -> bool:
        """rows come by copies of multiples of 16 bytes: they lie together, and start and end at such"""
        full = [(a, o) for a, o in zip(accesses(problem)[0], problem.inputs) if a.kind == "full"]
        return kept_bytes(problem) > 0 and all(
            not a.strided
            and problem.leading[-1] * a.bytes % 16 == 0
            and common_alignment(o.align, *(s * a.bytes for s, n in zip(o.strides[:-1], o.shape) if n > 1)) % 16 == 0
            for a, o in full
        )

    @rule
    @sized
    def aligned(self, problem: Problem, target: Target) -> Vector:
        """a vector's access needs the alignment of every row of its operand, and rows are whole vectors"""
        return (self.pack <= widest_pack(problem)) & (problem.leading[-1] % self.pack == 0)

    @rule
    @sized
    def short_enough(self, problem: Problem, target: Target) -> bool:
        """columns are counted in 32 bits: at most 2^30"""
        return problem.leading[-1] <= LONGEST

    @rule
    @sized
    def holds_a_row(self, problem: Problem, target: Target) -> Vector:
        """the slots hold a row and a part of the next one"""
        return self.slots > self.parts(problem)

    @rule
    @sized
    def fits_smem(self, problem: Problem, target: Target) -> Vector:
        """the slots must fit in the shared memory of a block, and of as many as share a multiprocessor"""
        size = self.smem_bytes(problem)
        return (size <= target.smem_per_block) & (self.blocks_per_sm * (size + 1024) <= target.shared_per_sm)

    @rule
    def threads_of_the_multiprocessor(self, problem: Problem, target: Target) -> bool:
        """a multiprocessor has the threads of all its blocks, with one warp each that exchanges states with the other blocks"""
        return self.blocks_per_sm * (self.threads + 32) <= target.max_threads_per_sm

    @rule
    @sized
    def registers_of_a_thread(self, problem: Problem, target: Target) -> Vector:
        """the vectors of a part and what a thread keeps of [N] leave it 16 of its registers, and 8 for each operand of rows"""
        part = self.unroll * self.pack * kept_bytes(problem) // 4
        rest = 16 + 8 * sum(a.kind == "full" for a in accesses(problem)[0])
        return part + self.early_registers(problem) + rest <= self.registers(target)

    @rule
    def early_columns(self, problem: Problem, target: Target) -> bool:
        """where no operand is of [N], none is kept"""
        return self.columns == "late" or any(a.kind == "column" for a in accesses(problem)[0])

    # What is never the best.

    @pruning
    def moderate_vectors(self, problem: Problem, target: Target) -> bool:
        """a vector of the widest operand is one access of 16 bytes"""
        inputs, outputs = accesses(problem)
        return self.pack * max(a.bytes for a in (*inputs, *outputs) if a.kind == "full") <= 16

    @pruning
    @sized
    def idle_threads(self, problem: Problem, target: Target) -> Vector:
        """a row has something to do for every thread"""
        return self.part <= problem.leading[-1]

    @pruning
    @sized
    def few_parts(self, problem: Problem, target: Target) -> Vector:
        """a row is at most eight parts"""
        return self.parts(problem) <= 8

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def worth_searching(cls, problem: Problem, target: Target) -> bool:
        """rows of less than 64 KB fit in the registers of one block"""
        return problem.leading[-1] * kept_bytes(problem) >= 65536

    @classmethod
    def class_of(cls, problem: NormalProblem) -> Hashable:
        """The graph; how each operand is reached, and the widest vectors."""
        return Rowwise.class_of(problem)

    @classmethod
    def shortlist(cls, problem: NormalProblem, target: Target) -> SearchSpace:
        """One block a multiprocessor, plain stores, vectors of one access."""
        return cls.where(blocks_per_sm=1, store="default", pack=pack_of_one_access(problem, False))

    def worth(self, field: str, problem: NormalProblem, target: Target) -> tuple[Vector, ...]:
        """L2 keeps what is read where it is full."""
        return ("default",) if load_policy(problem, target) == "default" else self.fields[field].values

    def misfit(self, problem: NormalProblem, target: Target) -> Vector:
        """See measured.py."""
        return cluster_misfit(self, problem)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> RowwiseCluster:
        """The best of the configs that a search considers, by the model."""
        from kgen.tuner.best import best  # here, as it loads numpy

        why = left_to_blocks(problem)
        if why:
            raise ConfigError(why)
        return best(cls, problem, target)[0]

    symbols = staticmethod(Rowwise.symbols)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        rows, clusters = self._rows_and_clusters(problem)
        return ((rows, clusters * max(2, -(-self.slots // int(self.parts(problem))))),)

    def _rows_and_clusters(self, problem: Problem) -> tuple[Size, Size]:
        rows: Size = Dim("n0")
        for d in range(1, len(problem.leading) - 1):
            rows = rows * Dim(f"n{d}")
        return rows, least(rows, largest(1, SM_COUNT * self.blocks_per_sm // self.cluster))

    def source(self, problem: Problem) -> Source:
        writer = Writer(self, problem)
        context = writer.context()
        clusters = self._rows_and_clusters(problem)[1]
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=writer.params(),
            launch=Launch(
                (clusters * self.cluster, 1, 1),
                (self.threads + 32, 1, 1),
                self.smem_bytes(problem),
                (self.cluster, 1, 1),
                persistent=True,
            ),
            arch=sm(90),
            context=ClusterContext(
                **vars(context), parts=self.parts(problem), ahead=self.ahead(problem), places=self._places(context)
            ),
            limits=writer.limits(),
        )

    def _places(self, context: Context) -> tuple[tuple[str, str], ...]:
        found, at = [], "WARPS * SLOTS * SLOT_BYTES"
        for a in context.columns if self.columns == "shared" else ():
            found.append((a.name, at))
            at = f"{a.name}_AT + 32 * WARPS * PARTS * VECTORS * PACK * {a.bytes}"
        return (*found, ("BARRIERS", at))

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """See model.py."""
        return cluster_seconds(self, problem, target)


family = register_family(Family("rowwise", (Rowwise, RowwiseCluster, RowwiseSpan), matches, normalise, dims, suites))
