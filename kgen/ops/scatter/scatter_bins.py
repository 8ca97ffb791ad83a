"""ScatterBins: values added at ids into bins that a block's shared memory has room for, such as a histogram."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Limit, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.size import Dim, Size, ceil_div, maximum, minimum
from kgen.dsl.target import Target
from kgen.dsl.types import compute_dtype
from kgen.ops.common.memory_bound import bytes_in_flight
from kgen.ops.scatter.plan import matches, plan
from kgen.ops.scatter.schedule import Context, ScatterSchedule
from kgen.ops.scatter.text import Writer
from kgen.tuning_db.machines import constants


def _room(bins: int) -> int:
    """How many bins there is memory for: a power of two."""
    return 1 << (max(32, bins) - 1).bit_length()


@dataclass(frozen=True)
class ScatterBinsConstants(Constants, model="scatter_bins"):
    """Times in seconds; `clock` is that by which additions count."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # for which an SM's share of the bandwidth is to be under way
    clock: float
    lesser: float  # the part of the shorter of memory and additions that the longer does not hide


class ScatterBins(ScatterSchedule):
    """Bins in shared memory, some of each in a block, added to the result at the block's end."""

    template = "scatter_bins.cu.j2"
    techniques = {
        "a histogram a block": {"replicas": 1},
        "replicated histograms": {"replicas": (2, 4, 8, 16, 32)},
        "single elements": {"pack": 1},
        "vectors": {"pack": (2, 4, 8, 16)},
    }

    replicas = choice(32, 1, 2, 4, 8, 16)  # of each bin of a block; lanes are spread over them
    pack = choice(1, 2, 4, 8, 16)  # elements of one vector
    items = choice(1, 2, 4, 8)  # vectors a thread has in flight
    threads = choice(256, 128, 512, 1024)
    blocks_per_sm = choice(4, 1, 2, 8)

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """the bins of a block must fit in its shared memory, and those of all its blocks in that of a multiprocessor"""
        bytes = self.smem_bytes(problem)
        return bytes <= target.smem_per_block and self.blocks_per_sm * (bytes + 1024) <= target.smem_per_block + 1024

    @pruning
    def registers(self, problem: Problem, target: Target) -> bool:
        """the vectors in flight fit in the registers of a thread: at most 96 bytes, or one"""
        p = plan(problem)
        row = sum(r.operand.dtype.bytes for r in p.reads)
        return self.items == 1 or self.items * self.pack * row <= 96

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """One sum for each bin, and few enough of them."""
        if not matches(problem.graph):
            return False
        p = plan(problem)
        return (p.flat or len(p.sizes) == 1) and p.result_sizes[0] <= 32768

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> ScatterBins:
        """As many replicas as leave room for 1024 threads, and vectors of up to 16 bytes."""
        widest = cls.widest(problem)
        for replicas in (32, 16, 8, 4, 2, 1):
            for threads, blocks_per_sm in ((256, 4), (512, 2), (1024, 1)):
                for pack in (q for q in (16, 8, 4, 2, 1) if q == 1 or q * widest <= 16):
                    for items in (4, 2, 1):
                        config = cls(
                            replicas=replicas, pack=pack, items=items, threads=threads, blocks_per_sm=blocks_per_sm
                        )
                        if not config.rejections(problem, target):
                            return config
        raise ConfigError(f"no histogram config is valid for {problem} on {target}")

    @classmethod
    def vectors_of(cls, problem: Problem) -> list[tuple[float, int]]:
        p = plan(problem)
        return [(r.operand.dtype.bytes, r.operand.row_align) for r in p.reads if p.last_kind(r) == "vector"]

    @classmethod
    def widest(cls, problem: Problem) -> int:
        return max([1, *(r.operand.dtype.bytes for r in plan(problem).reads)])

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block, with room for so many bins in each replica."""
        p = plan(problem)
        return int(_room(p.result_sizes[0]) * self.replicas * compute_dtype(p.total).bytes)

    def source(self, problem: Problem) -> Source:
        p = plan(problem)
        writer = Writer(p, vectors=True)
        vectors: Size = ceil_div(Dim(f"m{len(p.sizes) - 1}"), self.pack)
        for d in range(len(p.sizes) - 1):
            vectors = vectors * Dim(f"m{d}")
        blocks = maximum(1, minimum(ceil_div(vectors, self.threads * self.items), SM_COUNT * self.blocks_per_sm))
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=writer.parameters(),
            launch=Launch((blocks, 1, 1), (self.threads, 1, 1), self.smem_bytes(problem), cooperative=True),
            arch=self.arch(problem),
            context=Context(writer.text()),
            limits=(*writer.limits(), Limit(Dim("n0"), _room(p.result_sizes[0]))),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Time to read the values, or of the additions in shared memory: 16 lanes a clock, fewer where they meet in a bank."""
        p, k = plan(problem), constants(ScatterBinsConstants, target)
        elements = math.prod(p.sizes)
        row = sum(r.operand.dtype.bytes for r in p.reads)
        wanted = bytes_in_flight(target, k.latency)
        threads = min(
            self.threads * self.blocks_per_sm, max(1.0, elements / (self.pack * self.items) / target.sm_count)
        )
        narrow = min(1.0, 0.5 + 0.035 * self.pack * self.widest(problem))
        memory = (
            elements
            * row
            / (target.bandwidth * k.memory * min(1.0, threads * self.items * self.pack * row / wanted) * narrow)
        )
        meet = 1 + 0.5 * math.log2(32 / self.replicas)
        additions = elements * meet * compute_dtype(p.total).bytes / (64 * target.sm_count * k.clock)
        flush = (
            p.result_sizes[0]
            * (self.replicas / 8 + 0.05 * self.blocks_per_sm * target.sm_count)
            / (self.threads * k.clock)
        )
        return float(k.start + flush + max(memory, additions) + k.lesser * min(memory, additions))
