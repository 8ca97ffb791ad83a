"""ScatterAdd: values added at ids, by atomic additions of vectors; where ids side by side are equal, in registers first.

One launch of a grid that is on the GPU as a whole. Where the result is a base and a multiple of the sums, in the dtype that
sums are made in, the output first becomes the base, all blocks meet, and additions go straight to the output; of an output
that is the base itself nothing is copied and nobody waits. Else sums are made in a workspace that a launch finds zero and
leaves zero, and after the blocks have met the result follows from it: no kernel nor memset beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.operator import Graph
from kgen.dsl.problem import NormalProblem, Problem, Sizes
from kgen.dsl.size import Dim, Size, ceil_div, minimum, prod
from kgen.dsl.target import Arch, Target, sm
from kgen.dsl.types import bf16, f16, f32
from kgen.ops.common.axes import dims
from kgen.ops.common.lowering import collapse_leading
from kgen.ops.common.memory_bound import LOADS, bytes_in_flight, least_arch
from kgen.ops.common.sizes import fill
from kgen.ops.scatter.plan import ScatterPlan, matches, plan
from kgen.ops.scatter.scatter_bins import ScatterBins
from kgen.ops.scatter.scatter_rows import ScatterRows
from kgen.ops.scatter.schedule import Context, ScatterSchedule
from kgen.ops.scatter.text import Writer
from kgen.tuning_db.machines import constants


@dataclass(frozen=True)
class ScatterAddConstants(Constants, model="scatter_add"):
    """Times in seconds."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    additions: float  # a second, of all of L2's slices
    passes: float  # the share of the bandwidth at which the result is passed over
    lesser: float  # the part of the shorter of memory and additions that the longer does not hide


class ScatterAdd(ScatterSchedule):
    """Vectors of columns, added up over equal ids side by side, and then atomically in memory."""

    template = "scatter_add.cu.j2"
    techniques = {
        "scalar atomics": {"atomic": "scalar"},
        "atomics of pairs": {"atomic": "pair"},
        "atomics of vectors": {"atomic": "vector"},
        "several indices in flight": {"items": (2, 4, 8)},
    }

    pack = choice(1, 2, 4, 8)  # elements of one vector
    atomic = choice(
        "scalar", "pair", "vector"
    )  # additions of one element, of two of 16 bits, or of a vector of up to 16 bytes
    lanes = choice(32, 1, 2, 4, 8, 16, 64, 128, 256)  # threads along the columns
    items = choice(1, 2, 4, 8)  # indices that a thread has in flight
    rounds = choice(1, 2, 4, 8, 16)  # times that it takes so many, side by side
    threads = choice(256, 128, 512)
    blocks_per_sm = choice(4, 1, 2, 8)
    load = choice("default", "streaming")  # streaming: what is read once leaves L2 to what is added to

    @rule
    def whole_vectors(self, problem: Problem, target: Target) -> bool:
        """the columns are cut into whole vectors"""
        return plan(problem).columns % self.pack == 0

    @rule
    def additions_of_the_target(self, problem: Problem, target: Target) -> bool:
        """additions of several aligned elements: pairs of 16 bits; on sm_90 vectors of f32 or 16 bits, up to 16 bytes"""
        p = plan(problem)
        bytes = self.pack * p.total.bytes
        dense = p.has_columns and p.target.strides[-1] == 1
        if self.atomic == "pair":
            return dense and self.pack > 1 and p.total in (f16, bf16) and p.target.row_align >= 4
        if self.atomic == "vector":
            fits = 4 <= bytes <= 16 and self.pack > 1 and p.target.row_align >= bytes
            return bool(dense and fits and p.total in (f16, bf16, f32) and target.arch.sm >= 90)
        return True

    @rule
    def whole_groups(self, problem: Problem, target: Target) -> bool:
        """the threads along the columns are at most those of the block"""
        return self.lanes <= self.threads

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """what a thread has in flight fits in its registers: at most 100 bytes, or one index"""
        p = plan(problem)
        row = sum(r.operand.dtype.bytes * (1 if p.kind(r) == "one" else self.pack) for r in p.reads)
        return self.items == 1 or self.items * row <= 100

    @pruning
    def busy_lanes(self, problem: Problem, target: Target) -> bool:
        """most of the threads along the columns have some"""
        return self.lanes < 2 * math.ceil(plan(problem).columns / self.pack)

    @pruning
    def runs_of_the_problem(self, problem: Problem, target: Target) -> bool:
        """a thread takes no more indices than there are"""
        return self.items * self.rounds == 1 or self.items * self.rounds < 2 * plan(problem).count

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        p = plan(problem)
        return [(r.operand.dtype.bytes, r.operand.row_align) for r in p.reads if p.kind(r) == "vector"]

    @classmethod
    def widest(cls, problem: Problem) -> int:
        p = plan(problem)
        return max([p.total.bytes, *(r.operand.dtype.bytes for r in p.reads if p.kind(r) != "one")])

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> ScatterAdd:
        """The widest legal vectors and additions; as many indices a thread as leave enough threads."""
        p = plan(problem)
        found = []
        for pack in (8, 4, 2, 1):
            for atomic in ("vector", "pair", "scalar"):
                for lanes in (32, 16, 8, 4, 2, 1, 64, 128, 256):
                    for items, rounds in ((4, 16), (4, 8), (4, 4), (2, 4), (4, 1), (2, 1), (1, 1)):
                        config = cls(
                            pack=pack,
                            atomic=atomic,
                            lanes=lanes,
                            items=items,
                            rounds=rounds,
                            threads=256,
                            blocks_per_sm=4,
                            load="default",
                        )
                        if not config.rejections(problem, target):
                            found.append(config)
        if not found:
            raise ConfigError(f"no scatter_add config is valid for {problem} on {target}")
        return min(found, key=lambda c: c.estimate(problem, target) * (1 if c.pack * p.total.bytes <= 16 else 1.1))

    def units(self, p: ScatterPlan) -> Size:
        """Units of work, over the symbols."""
        columns: Size = Dim(f"m{len(p.sizes) - 1}") if p.has_columns else 1
        count: Size = 1
        for d in range(len(p.sizes)) if p.flat else (p.along,):
            count = count * Dim(f"m{d}")
        units = ceil_div(columns, self.pack * self.lanes) * ceil_div(count, self.items * self.rounds)
        for d in p.batch_axes:
            units = units * Dim(f"m{d}")
        return units

    def source(self, problem: Problem) -> Source:
        p = plan(problem)
        writer = Writer(p)
        result = prod(Dim(f"n{d}") for d in range(len(p.result_sizes)))
        text = writer.text()
        blocks = ceil_div(self.units(p), self.threads // self.lanes) + ceil_div(
            result, self.threads * text.width * text.batch
        )
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=writer.parameters(),
            launch=Launch(
                (minimum(blocks, SM_COUNT * self.blocks_per_sm), 1, 1), (self.threads, 1, 1), cooperative=True
            ),
            arch=self.arch(problem),
            context=Context(text, LOADS[self.load]),
            limits=writer.limits(),
        )

    def arch(self, problem: Problem) -> Arch:
        """Vectors of additions are sm_90's."""
        return sm(90) if self.atomic == "vector" else least_arch(problem)

    def estimate(self, problem: Problem, target: Target) -> float:
        """Time to read the values and to pass over the result, or that of the additions: a sector a clock and slice of L2."""
        p, k = plan(problem), constants(ScatterAddConstants, target)
        read = sum(r.operand.dtype.bytes * (1 if p.kind(r) == "one" else self.pack) for r in p.reads)
        elements = p.count * p.batches * p.columns
        threads = min(
            self.threads * self.blocks_per_sm, elements / (self.pack * self.items * self.rounds) / target.sm_count
        )
        wanted = bytes_in_flight(target, k.latency)
        flight = max(1.0, threads) * self.items * read
        narrow = min(1.0, 0.5 + 0.035 * self.pack * max([1, *(r.operand.dtype.bytes for r in p.reads)]))
        whole = math.prod(p.result_sizes) * sum(o.dtype.bytes for o in problem.outputs)
        passes = 2 * whole if p.direct else whole + 3 * math.prod(p.result_sizes) * p.total.bytes
        memory = (problem.bytes - whole) / (target.bandwidth * k.memory * min(1.0, flight / wanted) * narrow)
        width = {"scalar": 1, "pair": min(2, self.pack), "vector": self.pack}[self.atomic]
        idle = math.ceil(p.columns / self.pack / self.lanes) * self.lanes * self.pack / max(1, p.columns)
        # Ids differ as often as not, as far as anybody knows.
        additions = elements / width * idle * (0.6 + 0.4 / (self.items * self.rounds)) / k.additions
        return float(
            k.start
            + max(memory, additions)
            + k.lesser * min(memory, additions)
            + passes / (target.bandwidth * k.passes)
        )


def suites(graph: Graph) -> Mapping[str, Sequence[Sizes]]:
    """`default` and `small`: up to 1024 or 64 along each dimension, 2^24 or 2^16 elements."""
    return {"default": [fill(graph, 2**24, 1024)], "small": [fill(graph, 2**16, 64)]}


family = register_family(
    Family("scatter_add", (ScatterAdd, ScatterBins, ScatterRows), matches, collapse_leading, dims, suites, priority=-1)
)
