"""Attention by mma.sync (sm_80 and above): the schedule of templates/attention_mma.cu.j2, after FlashAttention-2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim
from kgen.dsl.target import Target, sm
from kgen.ops.attention.problem import Matrix, describe, found, matches, suites
from kgen.ops.attention.schedule import AttentionSchedule
from kgen.ops.attention.text import AttentionText, attention_text, parameters
from kgen.ops.attention.wgmma import AttentionWgmma
from kgen.ops.common import axes
from kgen.ops.common.lowering import collapse_leading
from kgen.tuning_db.machines import constants

#: Registers a thread for scores, weights, sums and queries.
_REGISTERS = 200


@dataclass(frozen=True)
class MmaConstants(Constants, model="attention_mma"):
    """Times in seconds."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    exponentials: float  # of a score, in exponentials: 16 a clock and SM; those that products do not hide
    step: float  # what a block of one stage waits for its tiles
    bounded: float  # steps that a mask which bounds a side adds to half of the columns'


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++. `stored` is the dtype of results; `packs` and `columns`, the strides of columns, are
    those of q, k and v.
    """

    t: AttentionText
    ctype: str
    stored: str
    depth: int
    width: int
    xor: str
    packs: tuple[int, ...]
    columns: tuple[str, ...]
    offsets: str
    mma: str
    store: str


class AttentionMma(AttentionSchedule):
    """mma.sync: cp.async fills rings of swizzled or padded tiles; scores and weights stay in registers, the softmax is online."""

    template = "attention_mma.cu.j2"
    target = sm(80)
    techniques: ClassVar[Techniques] = {
        "queries in shared memory, one stage": {"queries": "shared", "stages": 1},
        "queries in registers, one stage": {"queries": "registers", "stages": 1},
        "queries in registers, two stages": {"queries": "registers", "stages": 2},
        "swizzle": {"swizzle": "xor"},
        "padding": {"swizzle": "pad"},
        "store by shuffles": {"store": "shuffle"},
    }

    BR = choice(64, 16, 32, 128)  # rows of queries of a block, 16 a warp
    BC = choice(64, 16, 32, 128)  # rows of keys and values of a step
    stages = choice(1, 2)
    queries = choice("registers", "shared")  # where they stay while a block goes over the keys
    swizzle = choice("xor", "pad")
    store = choice("direct", "shuffle")
    blocks_per_sm = choice(1, 2)  # that registers are limited for

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """scores, weights, sums, and queries where they stay there, fit in registers"""
        h = describe(problem)
        kept = self.padded(h.D) // 4 if self.queries == "registers" else 0
        need = self.BC // 2 + self.BC // 4 + self.padded(h.E) // 2 + kept
        return need <= min(_REGISTERS, 65536 // (self.BR * 2 * self.blocks_per_sm) - 40)

    @rule
    def shuffled_columns(self, problem: Problem, target: Target) -> bool:
        """lanes exchange results of 32 columns"""
        return self.store == "direct" or self.padded(describe(problem).E) % 32 == 0

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """queries and `stages` tiles of keys and values must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        return need <= target.smem_per_block and self.blocks_per_sm * (need + 1024) <= target.shared_per_sm

    @pruning
    def swizzle_of_whole_lines(self, problem: Problem, target: Target) -> bool:
        """tiles are swizzled where their rows are whole lines of 128 bytes without padding"""
        h = describe(problem)
        return (self.swizzle == "xor") == (h.D % 64 == 0 and h.E % 64 == 0)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionMma:
        """Blocks of 64 rows, of 16 where there are few; the widest steps that fit."""
        h = describe(problem)
        swizzle = "xor" if h.D % 64 == 0 and h.E % 64 == 0 else "pad"
        for BC, stages, queries in ((64, 2, "registers"), (64, 1, "shared"), (32, 1, "shared"), (16, 1, "shared")):
            for BR in (64 if h.M > 16 else 16, 32, 16):
                config = cls(
                    BR=BR, BC=BC, stages=stages, queries=queries, swizzle=swizzle, store="direct", blocks_per_sm=1,
                    **cls.ordered(problem),
                )  # fmt: skip
                if not config.rejections(problem, target):
                    return config
        raise config.refusal(problem, target)

    def padded(self, columns: int) -> int:
        """Columns of a tile; what lies beyond the operand's is zero."""
        unit = 64 if self.swizzle == "xor" else 16
        return max(1, math.ceil(columns / unit)) * unit

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block."""
        h = describe(problem)
        padding = 8 if self.swizzle == "pad" else 0
        depth, width = self.padded(h.D) + padding, self.padded(h.E) + padding
        return 2 * (self.BR * depth + self.stages * self.BC * (depth + width))

    def source(self, problem: Problem) -> Source:
        h, dtype = describe(problem), found(problem.graph).dtype
        depth, width = self.padded(h.D), self.padded(h.E)
        named = {"q": h.q, "k": h.k, "v": h.v, "o": h.output}
        params: list[Param] = [
            Pointer(n, x.operand.dtype, x.operand.name, "out" if n == "o" else "in") for n, x in named.items()
        ]
        params += parameters(problem)
        params += [Integer("D", Dim("D")), Integer("E", Dim("E"))]
        for n, x in named.items():
            params.append(Integer.stride(f"{n}_row"))
            params += [Integer.stride(f"{n}_column")] if x.column != 1 else []
            params += [Integer.stride(f"{n}_b{d}") for d, s in enumerate(x.batch) if s]
        columns = {n: "1" if x.column == 1 else f"{n}_column" for n, x in named.items()}
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch((self.blocks(h), 1, 1), (self.BR * 2, 1, 1), self.smem_bytes(problem)),
            arch=sm(80),
            limits=(Limit(Dim("D"), depth), Limit(Dim("E"), width)),
            context=Context(
                t=attention_text(problem),
                ctype=dtype.ctype,
                stored=h.output.operand.dtype.ctype,
                depth=depth,
                width=width,
                xor="true" if self.swizzle == "xor" else "false",
                packs=tuple(pack_of(x) for x in (h.q, h.k, h.v)),
                columns=tuple(columns.values()),
                offsets="\n".join(offset_of(n, x) for n, x in named.items() if any(x.batch)),
                mma=f"ptx::mma_m16n8k16_{dtype.name}_f32",
                store=store_of(h.output, columns["o"]),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Seconds: of a step its products, its exponentials and what it waits for; of all blocks' steps."""
        h = describe(problem)
        depth, width = self.padded(h.D), self.padded(h.E)
        k = constants(MmaConstants, target)
        rate = k.products * target.tensor_flops["f16_f32acc"] / target.sm_count
        products = 2 * self.BR * self.BC * (depth + width) / rate
        exponentials = self.BR * self.BC / (16 * target.clock_hz) * k.exponentials
        together = min(4, max(1, target.shared_per_sm // (self.smem_bytes(problem) + 1024)), 1024 // (self.BR * 2))
        waiting = k.step / self.stages / together
        steps = self.rounds(problem, target.sm_count) * self.steps(problem, k.bounded)
        return k.start + steps * (products + exponentials + waiting)


def pack_of(x: Matrix) -> int:
    """Elements of one copy: 16 bytes, less where the alignment of the rows is less, 1 where columns are strided or one."""
    if x.column != 1 or x.operand.shape[-1] == 1:
        return 1
    return max(1, min(16, x.operand.row_align) // x.operand.dtype.bytes)


def offset_of(name: str, x: Matrix) -> str:
    terms = [f"steps(tile.batch[{d}], {name}_b{d})" for d, s in enumerate(x.batch) if s]
    return f"  {name} += {' + '.join(terms)};"


def store_of(x: Matrix, column: str) -> str:
    """The statement that stores neighbours of a row."""
    if column != "1":
        return f"store_strided<COUNT>(o + steps(row, o_row) + steps(column, {column}), rounded, {column}, E - column);"
    return f"store_columns<COUNT, {x.operand.row_align}>(o + steps(row, o_row) + column, rounded, E - column);"


family = register_family(
    Family(
        "attention",
        (AttentionWgmma, AttentionMma),
        matches=matches,
        normalise=collapse_leading,
        dims=axes.dims,
        suites=suites,
        priority=2,
    )
)
