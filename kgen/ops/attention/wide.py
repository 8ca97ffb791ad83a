"""Attention of wide heads on Hopper's tensor cores (sm_90a): the schedule of templates/attention_wide.cu.j2.

After Shah et al., "FlashAttention-3", 2024, and DeepSeek's FlashMLA, whose warpgroups share the columns of the values.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim, Size
from kgen.dsl.target import Target, sm
from kgen.dsl.types import bf16, f16
from kgen.dsl.vector import Vector, ceil_div, maximum, rounded, where
from kgen.ops.attention.by_tma import TmaAttention
from kgen.ops.attention.pointers import offset, store, strides
from kgen.ops.attention.problem import NARROW, describe, found
from kgen.ops.attention.rows import PLAIN
from kgen.ops.attention.tensor_maps import head_axes, head_coordinates, padded, tensor_map
from kgen.ops.attention.text import AttentionText, attention_text, mask_bounds, parameters
from kgen.tuning_db.machines import constants

#: Warpgroups that add up values.
_CONSUMERS = 2
#: Columns of an instruction at most: ptxas has 128 registers for one. Wider shares take instructions of the other number.
_WIDEST_INSTRUCTION, _INSTRUCTION = 192, 128


@dataclass(frozen=True)
class WideConstants(Constants, model="attention_wide"):
    """Times in seconds."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    l2: float  # bytes a clock that an SM reads of keys and values, which L2 keeps
    exponentials: float  # of a score, in exponentials: 16 a clock and SM
    overlapped_shown: float  # of a step's weights, the part that the values' products do not hide
    serial_shown: float
    step: float  # what handing over weights takes
    latency: float  # from asking for a stage until it is there
    tile: float  # of rows
    bounded: float  # steps that a mask which bounds a side adds to half of the columns'


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++. `rows_of_values` are those of a stage; `instruction` is a product's columns."""

    t: AttentionText
    ctype: str
    depth: int
    width: int
    rows_of_values: int
    value_stages: int
    cluster: str
    pipeline: str
    pipeline_blocks: str
    launch: str
    stored: str
    direct: bool
    store_policy: str
    store: str
    offsets: str
    load_keys: str
    load_values: str
    load_sharers: str
    query_at: str
    key_at: str
    value_at: str
    instruction: int
    wgmma_scores: str
    wgmma_values: str


def direct(problem: Problem) -> bool:
    """Whether threads store results: TMA stores those of 16 bits."""
    return describe(problem).output.operand.dtype not in (f16, bf16)


class AttentionWide(TmaAttention):
    """Hopper, wide heads: one warpgroup makes weights, two add up values; keys and values pass in parts of a block."""

    template = "attention_wide.cu.j2"
    target = sm(90, "a")
    techniques: ClassVar[Techniques] = {
        "weights beside values": {"cluster": 1, "overlap": True},
        "values beside scores": {"cluster": 1, "overlap": False},
        "multicast": {"cluster": 2},
    }

    BC = choice(64, 96, 128, allows=range(16, 129, 16))  # rows of keys and values of a step
    BK = choice(64, 128, 192)  # columns of keys of a stage
    stages = choice(4, 2, 3, 5, 6, 8)  # of keys; those of values follow
    slices = choice(1, 2)  # blocks that share the columns of the results, each with all scores
    cluster = choice(1, 2)  # blocks of neighbouring rows that get keys and values by the same copies
    # values are added up while the weights of the next step are made, rather than while its scores are
    overlap = choice(True, False)
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends

    @rule
    def whole_stages(self, problem: Problem, target: Target) -> bool:
        """all stages have as many columns of keys"""
        return padded(describe(problem).D) % self.BK == 0

    @rule
    def columns_of_a_warpgroup(self, problem: Problem, target: Target) -> bool:
        """a warpgroup adds up at most 256 columns of values"""
        return bool(self.width(problem) <= NARROW * _CONSUMERS)

    @rule
    def slices_of_columns(self, problem: Problem, target: Target) -> bool:
        """every slice has columns of the results"""
        return bool((self.slices - 1) * self.width(problem) < describe(problem).E)

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """queries, weights and `stages` parts of keys and values must fit in the shared memory of a block"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @pruning
    def fewest_slices(self, problem: Problem, target: Target) -> bool:
        """blocks share the columns of the results where one has no room for all"""
        return self.slices == 1 or NARROW * self.slices < describe(problem).E

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """Values are as they lie in memory, and conditions no data of rows, which the producers, a thread each, do not read."""
        return super().applies(problem) and not found(problem.graph).kept and mask_bounds(problem).of_row is None

    @classmethod
    def worth_searching(cls, problem: NormalProblem, target: Target) -> bool:
        """values of at most 256 columns are added up by the warpgroup that makes their weights"""
        return describe(problem).E > NARROW

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionWide:
        """The model's best of the configs that a search considers."""
        from kgen.tuner.listed import best_of  # here, as it loads numpy

        ordered = cls.ordered(problem)
        return best_of(cls, tuple(ordered.values()), lambda: cls.listed(ordered), problem, target)

    @classmethod
    def listed(cls, ordered: Mapping[str, str | int]) -> list[AttentionWide]:
        """The configs that a default is taken from."""
        # Of equal times the multicast's: 5 to 15% faster where both were measured.
        fields = (cls.BC.values, cls.BK.values, cls.stages.values, cls.slices.values, (2, 1), (True, False))
        return [
            cls(BC=BC, BK=BK, stages=stages, slices=slices, cluster=cluster, overlap=overlap, pdl=True, **ordered)
            for BC, BK, stages, slices, cluster, overlap in itertools.product(*fields)
        ]

    @property
    def BR(self) -> int:  # type: ignore[override]
        """Rows of queries of a cluster, 64 a block."""
        return 64 * self.cluster

    def width(self, problem: Problem) -> Vector:
        """Columns of the results that a block has: of each warpgroup as many, whole swizzle atoms."""
        return ceil_div(describe(problem).E, 64 * _CONSUMERS * self.slices) * 64 * _CONSUMERS

    def rows_of_values(self, problem: Problem) -> Vector:
        """Rows of values of a stage: as many as make it no larger than one of keys, 16 at least."""
        room, found = self.BC * self.BK / self.width(problem), 16
        for n in range(32, max(type(self).BC.allows) + 1, 16):
            found = where((n <= room) & (self.BC % n == 0), n, found)
        return found

    def value_stages(self, problem: Problem) -> Vector:
        """Stages of values: of a step's values as much is under way as of its keys, two stages at least."""
        keys = padded(describe(problem).D) * self.rows_of_values(problem)
        return maximum(2, rounded(self.stages * self.BC * self.BK / keys))

    def epilogue_stages(self, problem: Problem) -> int:
        """Buffers of 64 rows and columns through which a warpgroup's results leave, in the place of the queries."""
        return 2 if padded(describe(problem).D) >= 2 * 64 * _CONSUMERS else 1

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: queries, whose place results take, keys, values, weights, barriers."""
        depth = padded(describe(problem).D)
        results = 0 if direct(problem) else _CONSUMERS * self.epilogue_stages(problem) * 64 * 64 * 2
        keys = self.stages * (self.BC * self.BK * 2 + 16)
        values = self.value_stages(problem) * (self.rows_of_values(problem) * self.width(problem) * 2 + 16)
        weights = 2 * (64 * padded(self.BC) * 2 + 64 * 4 + 16)
        return int(max(64 * depth * 2, results) + keys + values + weights + 16)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("N"), self.BC * 2),)  # the ring of weights has two stages

    def source(self, problem: Problem) -> Source:
        h, dtype = describe(problem), found(problem.graph).dtype
        depth, width, rows = padded(h.D), self.width(problem), self.rows_of_values(problem)
        share, clustered = width // _CONSUMERS, self.cluster > 1
        instruction = _INSTRUCTION if share > _WIDEST_INSTRUCTION else share
        params: list[Param] = [
            tensor_map("q", h.q, Dim("M"), Dim("D"), 64, "in"),
            tensor_map("k", h.k, Dim("N"), Dim("D"), self.BC // self.cluster, "in"),
            tensor_map("v", h.v, Dim("N"), Dim("E"), rows, "in"),
        ]
        o, stored = h.output, h.output.operand.dtype
        if direct(problem):
            params += [Pointer("o", stored, o.operand.name, "out"), Integer("E", Dim("E")), *strides("o", o)]
            store_policy = "DirectStore<float, WgmmaRows>"
        else:
            params.append(tensor_map("o", o, Dim("M"), Dim("E"), 64, "out"))
            shape = f"{stored.ctype}, WV, 64, {self.epilogue_stages(problem)}, RowMajorStage, CONSUMERS, WgmmaRows"
            store_policy = f"TmaStore<{shape}{''.join(f', {d}' for d in head_axes(o))}>"
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(*params, *parameters(problem)),
            launch=Launch(
                (self.blocks(h) * self.cluster, self.slices, 1),
                ((2 + _CONSUMERS) * 128, 1, 1),
                self.smem_bytes(problem),
                (self.cluster, 1, 1),
                pdl=self.pdl,
            ),
            arch=sm(90, "a"),
            limits=(Limit(Dim("D"), depth), Limit(Dim("E"), width * self.slices)),
            context=Context(
                t=attention_text(problem, PLAIN, self.slices > 1),
                ctype=dtype.ctype,
                depth=depth,
                width=width,
                rows_of_values=rows,
                value_stages=self.value_stages(problem),
                cluster=f"BlockCluster<{self.cluster}, 1>" if clustered else "SingleBlock",
                pipeline="MulticastPipeline" if clustered else "TmaPipeline",
                pipeline_blocks=", Cluster::SIZE" if clustered else "",
                launch="ProgrammaticDependentLaunch" if self.pdl else "StreamOrder",
                stored=stored.ctype,
                direct=direct(problem),
                store_policy=store_policy,
                store=store("o", o, "E"),
                offsets=offset("o", o),
                load_keys="load_operand_share<TileK, Cluster::SIZE>" if clustered else "load_operand<TileK>",
                load_values="load_operand_atoms<TileV, Cluster::SIZE>" if clustered else "load_operand<TileV>",
                load_sharers=", Cluster::of_b(Cluster::rank())" if clustered else "",
                query_at=head_coordinates(h.q),
                key_at=head_coordinates(h.k),
                value_at=head_coordinates(h.v),
                instruction=instruction,
                wgmma_scores=f"ptx::wgmma_m64n{self.BC}k16_{dtype.name}_f32<false, false>",
                wgmma_values=f"ptx::wgmma_m64n{instruction}k16_{dtype.name}_f32<false, true>",
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Seconds: of a step the larger of its products and of what it reads from L2, and a part of its weights; of all blocks'
        steps.
        """
        h = describe(problem)
        k = constants(WideConstants, target)
        columns = padded(h.D) + self.width(problem)
        rate = k.products * target.tensor_flops["f16_f32acc"] / target.sm_count
        products = 2 * 64 * self.BC * columns / rate
        reading = 2 * self.BC * columns / self.cluster / (k.l2 * target.clock_hz)
        weights = 64 * self.BC / (16 * target.clock_hz) * k.exponentials
        keys = padded(h.D) / self.BK / (self.stages - 1)
        values = self.BC / self.rows_of_values(problem) / (self.value_stages(problem) - 1)
        waiting = k.latency * maximum(keys, values)
        shown = where(self.overlap, k.overlapped_shown, k.serial_shown)
        step = maximum(products, reading, waiting) + shown * weights + k.step
        tile = self.steps(problem, k.bounded) * step + k.tile
        return k.start + self.rounds(problem, target.sm_count / (self.cluster * self.slices)) * tile
