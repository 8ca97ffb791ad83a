"""Attention by mma.sync (sm_75 and above): the schedule of templates/attention_mma.cu.j2, after FlashAttention-2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl import vector
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim
from kgen.dsl.target import Target, sm
from kgen.dsl.types import f16
from kgen.dsl.vector import Vector, ceil, maximum, minimum, where
from kgen.ops.attention.decode import DecodeSchedule
from kgen.ops.attention.pointers import offset, pack, step, store, strides
from kgen.ops.attention.problem import NARROW, Heads, describe, found, matches, suites
from kgen.ops.attention.text import AttentionText, attention_text, parameters
from kgen.ops.attention.wgmma import AttentionWgmma
from kgen.ops.attention.wide import AttentionWide
from kgen.ops.common import axes
from kgen.ops.common.lowering import collapse_leading
from kgen.tuning_db.machines import constants

#: Registers a thread for scores, weights, sums, queries and tiles on their way, by how these are copied: with more ptxas spilled.
_REGISTERS = {"cp_async": 200, "register": 164}
#: Warps of an SM whose copies are more than are under way at the memory's bandwidth.
_WARPS = 8


@dataclass(frozen=True)
class MmaConstants(Constants, model="attention_mma"):
    """Times in seconds."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    exponentials: float  # of a score, in exponentials: 16 a clock and SM; those that products do not hide
    beside: float  # clocks of a scheduler that a warp takes for a step, beside its products and exponentials
    copying: float  # and for each of its threads' copies of 16 bytes, where several warps take turns
    step: float  # what a block of one stage waits for its tiles
    block: float  # what a block takes before its first step and after its last
    bounded: float  # steps that a mask which bounds a side adds to half of the columns and of the square that it cuts
    warp: float  # clocks that a warp takes for each of its products of 16 x 8 x 16, alone, with all that goes with them
    turn: float  # and for a step beside them
    issue: float  # clocks that a warp takes for each of its threads' copies of 16 bytes
    memory: float  # the share of the memory's bandwidth that is reached
    copy: float  # bytes a clock that an SM copies at most
    latency: float  # from asking for bytes until they are there
    combine: float  # what combining parts of the columns takes
    combine_part: float  # and each part


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++. `stored` is the dtype of results; `packs` and `columns`, the strides of columns, are
    those of q, k and v. `wide`: addresses of all columns of a tile would take too many registers. `first_column` is what a slice
    takes off the results' columns, `part` the number of its tile. `mma_scores` and `mma_values` multiply for the two products,
    whose sums are in f16 where `half_scores` and `half_values`.
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
    query: str
    first_column: str
    part: str
    wide: bool
    mma_scores: str
    mma_values: str
    half_scores: bool
    half_values: bool
    store: str


class AttentionMma(DecodeSchedule):
    """mma.sync: cp.async fills rings of swizzled or padded tiles, or they pass through registers; scores and weights stay in
    registers, the softmax is online.
    """

    template = "attention_mma.cu.j2"
    target = sm(75)
    techniques: ClassVar[Techniques] = {
        "queries in shared memory, one stage": {"queries": "shared", "stages": 1},
        "queries in registers, one stage": {"queries": "registers", "stages": 1},
        "queries in registers, two stages": {"queries": "registers", "stages": 2},
        "swizzle": {"swizzle": "xor"},
        "padding": {"swizzle": "pad"},
        "store by shuffles": {"store": "shuffle"},
        "packed heads": {"pack_gqa": True},
        "tiles through registers": {"copy": "register"},
        "slices of results": {"slices": (2, 4)},
        "split-KV": {"splits": (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)},
    }

    BR = choice(64, 16, 32, 128)  # rows of queries of a block, 16 a warp
    BC = choice(64, 16, 32, 128)  # rows of keys and values of a step
    copy = choice("cp_async", "register", absent="cp_async")  # from global to shared memory
    stages = choice(1, 2, 3, 4)
    queries = choice("registers", "shared")  # where they stay while a block goes over the keys
    swizzle = choice("xor", "pad")
    store = choice("direct", "shuffle")
    blocks_per_sm = choice(1, 2)  # that registers are limited for
    pack_gqa = choice(False, True, absent=False)  # a tile has rows of all the heads that share keys
    # blocks that share the columns of a tile of rows; the last one combines what they have found
    splits = choice(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, absent=1)
    slices = choice(1, 2, 4, absent=1)  # blocks that share the columns of the results, each with all scores

    @rule
    def dtype_of_the_target(self, problem: Problem, target: Target) -> bool:
        """the operands' dtype needs a newer architecture (bf16: sm_80)"""
        return found(problem.graph).dtype is f16 or target.arch.sm >= 80

    @rule
    def copy_of_the_target(self, problem: Problem, target: Target) -> bool:
        """cp.async needs sm_80"""
        return self.copy != "cp_async" or target.arch.sm >= 80

    @pruning
    def asynchronous_copies(self, problem: Problem, target: Target) -> bool:
        """copies are asynchronous where the target has cp.async"""
        return self.copy == "cp_async" or target.arch.sm < 80

    @rule
    def register_stages(self, problem: Problem, target: Target) -> bool:
        """a copy through registers has one stage"""
        return self.copy == "cp_async" or self.stages == 1

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """scores, weights, sums, and queries where they stay there and tiles on their way, fit in registers"""
        h = describe(problem)
        kept = self.padded(h.D) // 4 if self.queries == "registers" else 0
        sums = self.width(h) // (4 if found(problem.graph).sums[1] is f16 else 2)
        need = self.BC // 2 + self.BC // 4 + sums + kept + self.on_their_way(h)
        return need <= min(_REGISTERS[self.copy], 65536 // (self.BR * 2 * self.blocks_per_sm) - 40)

    @rule
    def shuffled_columns(self, problem: Problem, target: Target) -> bool:
        """lanes exchange results of 32 columns"""
        return self.store == "direct" or self.width(describe(problem)) % 32 == 0

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """queries and `stages` tiles of keys and values must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        return (
            need <= target.smem_per_block
            and self.blocks_per_sm * (need + target.reserved_shared) <= target.shared_per_sm
        )

    @rule
    def slices_of_columns(self, problem: Problem, target: Target) -> bool:
        """every slice has columns of the results"""
        h = describe(problem)
        return self.slices == 1 or (self.slices - 1) * self.width(h) < h.E

    @pruning
    @sized
    def rows_for_all_warps(self, problem: Problem, target: Target) -> Vector:
        """more than half of a tile's rows are there, unless it is of four warps or fewer: the others copy, too"""
        h = describe(problem)
        rows = h.M * where(self.pack_gqa, h.group, 1)
        return (self.BR <= 64) | (2 * rows > self.BR)

    @pruning
    @sized
    def split_to_fill_the_gpu(self, problem: Problem, target: Target) -> Vector:
        """the columns of a tile of rows are shared where tiles leave warps idle, by no more blocks than there are steps"""
        h = describe(problem)
        few = self.tiles(h) * self.BR < 16 * _WARPS * target.sm_count
        return (self.splits == 1) | (few & (self.splits <= vector.ceil_div(h.N, self.BC)))

    @pruning
    def slices_of_wide_heads(self, problem: Problem, target: Target) -> bool:
        """blocks share the columns of the results where one has no room for all"""
        return self.slices == 1 or NARROW * self.slices // 2 < describe(problem).E

    @pruning
    def swizzle_of_whole_lines(self, problem: Problem, target: Target) -> bool:
        """tiles are swizzled where their rows are whole lines of 128 bytes without padding"""
        h = describe(problem)
        return (self.swizzle == "xor") == (h.D % 64 == 0 and h.E % 64 == 0)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionMma:
        """The model's best of some configs that a search considers."""
        from kgen.tuner.listed import best_of  # here, as it loads numpy

        h, ordered = describe(problem), cls.ordered(problem)
        ordered |= {"copy": "cp_async" if target.arch.sm >= 80 else "register"}
        few = h.M * h.group <= 16 and max(h.D, h.E) <= NARROW

        # Steps of 16 columns where no others fit: the model has no eye for what a step costs there.
        def ranked(config: AttentionMma) -> tuple[Vector, Vector]:
            return config.BC == 16, config.estimate(problem, target)

        like = (few, *ordered.values())
        return best_of(cls, like, lambda: cls.listed(h, ordered, few), problem, target, ranked)

    @classmethod
    def listed(cls, h: Heads, ordered: Mapping[str, str | int], few: bool) -> list[AttentionMma]:
        """The configs that a default is taken from; `few` rows."""
        swizzle = "xor" if h.D % 64 == 0 and h.E % 64 == 0 else "pad"
        # Of few rows all warps of a block copy, though one multiplies: one alone was a third slower in all that was measured.
        wide, by_registers = max(h.D, h.E) > NARROW, ordered["copy"] == "register"
        rows, columns = ((64,), (128, 64, 32)) if few else ((64, 32, 16), (64, 32, 16))
        if by_registers:
            columns = (64, 32, 16)
        queries = ("shared",) if wide else ("registers", "shared")
        slices = next((n for n in cls.slices.values if NARROW * n >= h.E), 1)
        fields = (rows, columns, (2, 3, 4, 1), queries, (False, True))
        return [
            cls(BR=BR, BC=BC, stages=stages, queries=queries, swizzle=swizzle, store="direct", blocks_per_sm=1,
                pack_gqa=pack_gqa, slices=slices, splits=splits, **ordered)
            for BR, BC, stages, queries, pack_gqa, splits in itertools.product(*fields, cls.splits.values)
            if stages <= 2 or few
        ]  # fmt: skip

    def padded(self, columns: int) -> int:
        """Columns of a tile; what lies beyond the operand's is zero."""
        unit = 64 if self.swizzle == "xor" else 16
        return max(1, math.ceil(columns / unit)) * unit

    def width(self, h: Heads) -> int:
        """Columns of the results that a block has."""
        return self.padded(math.ceil(h.E / self.slices))

    def on_their_way(self, h: Heads) -> int:
        """Registers of a thread that hold its share of a tile of keys or of values, and the addresses of its loads."""
        if self.copy == "cp_async":
            return 0
        tiles = ((self.padded(h.D), pack(h.k)), (self.width(h), pack(h.v)))
        return max(math.ceil(self.BC * columns / n / (self.BR * 2)) * (max(1, n // 2) + 2) for columns, n in tiles)

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block."""
        h = describe(problem)
        padding = 8 if self.swizzle == "pad" else 0
        depth, width = self.padded(h.D) + padding, self.width(h) + padding
        return 2 * (self.BR * depth + self.stages * self.BC * (depth + width))

    def source(self, problem: Problem) -> Source:
        h, dtype, sums = describe(problem), found(problem.graph).dtype, found(problem.graph).sums
        # f16 through registers also runs on sm_75.
        old = self.copy == "register" and dtype is f16
        instructions = [f"ptx::mma_m16n8k{8 if old else 16}_{dtype.name}_{total.name}" for total in sums]
        mma = [f"InHalves<{name}>()" if old else name for name in instructions]
        rows = self.rows(h)
        depth, width, sliced = self.padded(h.D), self.width(h), self.slices > 1
        named = {"q": h.q, "k": h.k, "v": h.v, "o": h.output}
        params: list[Param] = [
            Pointer(n, x.operand.dtype, x.operand.name, "out" if n == "o" else "in") for n, x in named.items()
        ]
        params += parameters(problem)
        params += [Integer("D", Dim("D")), Integer("E", Dim("E"))]
        params += [p for n, x in named.items() for p in strides(n, x)]
        params += self.workspace(h, width)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (self.blocks(h) * self.splits, self.slices, 1), (self.BR * 2, 1, 1), self.smem_bytes(problem)
            ),
            arch=sm(75 if old else 80),
            limits=(Limit(Dim("D"), depth), Limit(Dim("E"), width * self.slices)),
            context=Context(
                t=attention_text(problem, rows, sliced),
                ctype=dtype.ctype,
                stored=h.output.operand.dtype.ctype,
                depth=depth,
                width=width,
                xor="true" if self.swizzle == "xor" else "false",
                packs=tuple(pack(x) for x in (h.q, h.k, h.v)),
                columns=tuple(step(n, x) for n, x in named.items()),
                offsets="\n".join(filter(None, (offset(n, x, rows) for n, x in named.items()))),
                query=rows.at("tile.m0 + row", "q", h.q.batch),
                first_column=" - first_column" if sliced else "",
                part="(tile_number * gridDim.y + blockIdx.y)" if sliced else "tile_number",
                wide=depth > NARROW and self.queries == "shared",
                mma_scores=mma[0],
                mma_values=mma[1],
                half_scores=sums[0] is f16,
                half_values=sums[1] is f16,
                store=store("o", h.output, "E", rows),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Seconds: of a step its products, its exponentials and what it waits for, or its copies; of all steps of an SM, whose
        last blocks are fewer than there is room for; and of combining parts of the columns.
        """
        h = describe(problem)
        depth, width = self.padded(h.D), self.width(h)
        k = constants(MmaConstants, target)
        rates = (
            k.products * target.tensor_flops["f16_f16acc" if total is f16 else "f16_f32acc"] / target.sm_count
            for total in found(problem.graph).sums
        )
        products = sum(2 * self.BR * self.BC * columns / rate for columns, rate in zip((depth, width), rates))
        exponentials = self.BR * self.BC / (16 * target.clock_hz) * k.exponentials
        copied, steps = self.BC * (h.D + min(h.E, width)) * 2, self.steps(problem, self.cut(problem) + k.bounded)
        copies = copied / (16 * self.BR * 2)  # of 16 bytes, by each thread
        warps = self.BR // 16
        busy = products + exponentials + warps / 4 * (k.beside + k.copying * copies) / target.clock_hz
        alone = (k.warp * self.BC * (depth + width) / 128 + k.turn + k.issue * copies) / target.clock_hz
        # What other tiles have read is in L2.
        tiles = self.tiles(h) * self.slices * vector.ceil_div(h.N, self.BC)
        fresh = minimum(1.0, problem.bytes / (maximum(1, tiles) * copied))
        reading = fresh * copied * target.sm_count / (k.memory * target.bandwidth)

        def step(together: Vector) -> Vector:
            """Of a block, of so many on an SM."""
            computing = maximum(busy, alone / together) + k.step / self.stages / together
            in_flight = together * (self.stages - 0.5) * copied
            return maximum(computing, reading, copied / minimum(k.copy * target.clock_hz, in_flight / k.latency))

        blocks = self.rounds(problem, target.sm_count / (self.splits * self.slices))
        resident = target.shared_per_sm // (self.smem_bytes(problem) + target.reserved_shared)
        resident = minimum(maximum(1, resident), maximum(1, 2 * _WARPS // warps))
        whole = blocks // resident * resident
        part = where(self.splits > 1, ceil(steps / self.splits), steps)
        running = part * (whole * step(resident) + (blocks - whole) * step(maximum(1.0, blocks - whole)))
        running = running + k.block * ceil(blocks / resident)
        return k.start + running + where(self.splits > 1, k.combine + self.splits * k.combine_part, 0.0)


family = register_family(
    Family(
        "attention",
        (AttentionWgmma, AttentionWide, AttentionMma),
        matches=matches,
        normalise=collapse_leading,
        dims=axes.dims,
        suites=suites,
        priority=2,
    )
)
