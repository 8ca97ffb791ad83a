"""Attention on Hopper's tensor cores (sm_90a): the schedule of templates/attention_wgmma.cu.j2, after FlashAttention-3."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Launch, Limit, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim, Size, ceil_div, minimum
from kgen.dsl.target import Target, sm
from kgen.ops.attention.by_tma import TmaAttention
from kgen.ops.attention.problem import NARROW, Heads, describe, found
from kgen.ops.attention.rows import PLAIN
from kgen.ops.attention.schedule import of_all_heads
from kgen.ops.attention.tensor_maps import head_axes, head_coordinates, padded, tensor_map
from kgen.ops.attention.text import AttentionText, attention_text, parameters
from kgen.tuning_db.machines import constants

#: Registers a thread that accumulators and weights may take, by the number of consumer warpgroups.
_REGISTERS = {1: 216, 2: 196, 3: 120}
#: What setmaxnreg leaves to a thread of the producer and gives to one of the consumers.
_SHARES = {2: (24, 240), 3: (32, 160)}


@dataclass(frozen=True)
class WgmmaConstants(Constants, model="attention_wgmma"):
    """Times in seconds. A `..._shown` is the part of the shorter of products and exponentials that the longer does not hide."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    exponentials: float  # of a score, in exponentials: 16 a clock and SM
    both_shown: float  # ping-pong, and pipelining within a warpgroup
    pingpong_shown: float
    pipelined_shown: float  # by several warpgroups
    alone_shown: float  # by one
    step: float  # of a warpgroup
    single_stage: float  # what waiting for tiles costs of a step
    other_group: float  # what heads side by side cost that are more or fewer than L2 keeps
    tile: float  # of rows, where a block has one
    persistent_tile: float
    bounded: float  # steps that a mask which bounds a side adds to half of the columns'


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++."""

    t: AttentionText
    ctype: str
    depth: int
    width: int
    order: str
    registers: str
    launch: str
    epilogue_stages: int
    output_axes: str
    query_at: str
    key_at: str
    value_at: str
    wgmma_scores: str
    wgmma_values: str


class AttentionWgmma(TmaAttention):
    """Hopper: TMA copies, wgmma multiplies; scores and weights stay in registers, the softmax is online."""

    template = "attention_wgmma.cu.j2"
    target = sm(90, "a")
    techniques: ClassVar[Techniques] = {
        "one consumer warpgroup": {"BR": 64},
        "ping-pong warpgroups": {"pingpong": True, "overlap": False},
        "pipelining within a warpgroup": {"BR": 128, "pingpong": False, "overlap": True},
        "ping-pong and pipelining": {"pingpong": True, "overlap": True},
        "three consumer warpgroups": {"BR": 192},
    }

    order = choice("in_order", "longest_first", "paired")  # of the tiles of rows
    BR = choice(128, 64, 192)  # rows of queries of a block, 64 a consumer warpgroup
    # rows of keys and values of a step
    BC = choice(128, 64, 80, 96, 112, 144, 160, 176, 192, allows=range(16, 257, 16))
    stages = choice(2, 1, 3, 4)
    pingpong = choice(True, False)  # two warpgroups multiply in turns: one's softmax overlaps the other's products
    overlap = choice(True, False)  # a warpgroup computes the next scores while it adds up values
    # a block per SM takes tiles in turn: the next one's loads overlap the last one's store
    persistent = choice(True, False, absent=False)
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends

    @rule
    def widest_values(self, problem: Problem, target: Target) -> bool:
        """values have at most 256 columns, as many as an instruction"""
        return describe(problem).E <= NARROW

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """scores, the weights before them and sums fit in the registers of a consumer warpgroup"""
        weights = self.BC // 4 if self.overlap else 0
        return self.BC // 2 + weights + padded(describe(problem).E) // 2 <= _REGISTERS[self.consumers]

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """queries and `stages` tiles of keys and values must fit in the shared memory of a block"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def pingpong_pairs(self, problem: Problem, target: Target) -> bool:
        """ping-pong is for two warpgroups"""
        return not self.pingpong or self.consumers == 2

    @rule
    def orders(self, problem: Problem, target: Target) -> bool:
        """persistent blocks take tiles in order or in pairs, blocks of one tile in order or the longest first"""
        return self.order != ("longest_first" if self.persistent else "paired")

    @pruning
    def overlapping_somehow(self, problem: Problem, target: Target) -> bool:
        """products overlap a softmax, another warpgroup's or the same one's"""
        return self.pingpong or self.overlap

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionWgmma:
        """The model's best of the configs that a search considers."""
        ordered = cls.ordered(problem)
        paired = {"order": "paired", "group": 1} if ordered["order"] == "longest_first" else ordered
        fields = (cls.BR.values, cls.BC.values, cls.stages.values, (True, False), (True, False))
        configs = [
            cls(BR=BR, BC=BC, stages=stages, pingpong=pingpong, overlap=True, pdl=True, persistent=persistent,
                **(paired if persistent else ordered))
            for BR, BC, stages, pingpong, persistent in itertools.product(*fields)
        ]  # fmt: skip
        configs.sort(key=lambda config: config.estimate(problem, target))
        best = next((c for c in configs if not c.rejections(problem, target)), None)
        if best is None:
            raise configs[0].refusal(problem, target)
        return best

    @property
    def scheduler(self) -> str:
        """The policy by which blocks take tiles of rows."""
        if self.persistent:
            return "PersistentPairs" if self.order == "paired" else "PersistentTiles"
        return f"TilePerBlock<{self.row_tiles}>"

    def blocks(self, h: Heads) -> Size:
        """The launch's blocks over the symbols: as many as there are tiles of rows, or persistent ones."""
        blocks = of_all_heads(ceil_div(Dim("M"), self.BR * (2 if self.order == "paired" else 1)), h.batch)
        return minimum(blocks, SM_COUNT) if self.persistent else blocks

    def rounds(self, problem: Problem, at_once: float) -> float:
        """As of all schedules; persistent blocks have whole tiles, or pairs of them."""
        if not self.persistent:
            return super().rounds(problem, at_once)
        h, together = describe(problem), 2 if self.order == "paired" else 1
        return together * math.ceil(math.ceil(h.M / (self.BR * together)) * h.heads / at_once)

    @property
    def consumers(self) -> int:
        return self.BR // 64

    def epilogue_stages(self, problem: Problem) -> int:
        """Buffers of 64 rows and columns through which a warpgroup's results leave, in the place of the queries."""
        h = describe(problem)
        return 2 if min(padded(h.D), padded(h.E)) >= 128 else 1

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: queries, results (in the place of queries where it has one tile), keys, values, barriers."""
        h = describe(problem)
        depth, width = padded(h.D), padded(h.E)
        queries, results = self.BR * depth * 2, self.consumers * self.epilogue_stages(problem) * 64 * 64 * 2
        rows = queries + results if self.persistent else max(queries, results)
        return int(rows + self.stages * self.BC * (depth + width) * 2 + 16 + 2 * self.stages * 16 + 16)

    def source(self, problem: Problem) -> Source:
        h, dtype = describe(problem), found(problem.graph).dtype
        depth, width = padded(h.D), padded(h.E)
        shares = _SHARES.get(self.consumers)
        maps = (
            tensor_map("q", h.q, Dim("M"), Dim("D"), self.BR, "in"),
            tensor_map("k", h.k, Dim("N"), Dim("D"), self.BC, "in"),
            tensor_map("v", h.v, Dim("N"), Dim("E"), self.BC, "in"),
            tensor_map("o", h.output, Dim("M"), Dim("E"), 64, "out"),
        )
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(*maps, *parameters(problem)),
            launch=Launch(
                (self.blocks(h), 1, 1), ((self.consumers + 1) * 128, 1, 1), self.smem_bytes(problem), pdl=self.pdl
            ),
            arch=sm(90, "a"),
            limits=(Limit(Dim("D"), depth), Limit(Dim("E"), width)),
            context=Context(
                t=attention_text(problem, PLAIN),
                ctype=dtype.ctype,
                depth=depth,
                width=width,
                order="PingPong" if self.pingpong else "Cooperative",
                registers=f"SharedRegisters<{shares[0]}, {shares[1]}>" if shares else "EvenRegisters",
                launch="ProgrammaticDependentLaunch" if self.pdl else "StreamOrder",
                epilogue_stages=self.epilogue_stages(problem),
                output_axes="".join(f", {d}" for d in head_axes(h.output)),
                query_at=head_coordinates(h.q),
                key_at=head_coordinates(h.k),
                value_at=head_coordinates(h.v),
                wgmma_scores=f"ptx::wgmma_m64n{self.BC}k16_{dtype.name}_f32<false, false>",
                wgmma_values=f"ptx::wgmma_m64n{width}k16_{dtype.name}_f32_rs<true>",
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Seconds: of a step the larger of its products and its exponentials, and a part of the smaller; of all blocks' steps."""
        h = describe(problem)
        depth, width = padded(h.D), padded(h.E)
        k = constants(WgmmaConstants, target)
        rate = k.products * target.tensor_flops["f16_f32acc"] / target.sm_count
        products = 2 * self.BR * self.BC * (depth + width) / rate
        exponentials = self.BR * self.BC / (16 * target.clock_hz) * k.exponentials
        if self.pingpong:
            shown = k.both_shown if self.overlap else k.pingpong_shown
        else:
            shown = k.alone_shown if self.consumers == 1 else k.pipelined_shown
        step = max(products, exponentials) + shown * min(products, exponentials) + k.step / self.consumers
        step *= k.single_stage if self.stages == 1 else 1.0
        if self.order == "longest_first" and self.group != self.ordered(problem)["group"]:
            step *= k.other_group
        tile = self.steps(problem, k.bounded) * step + (k.persistent_tile if self.persistent else k.tile)
        return k.start + self.rounds(problem, target.sm_count) * tile
