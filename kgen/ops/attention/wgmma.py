"""Attention on Hopper's tensor cores (sm_90a): the schedule of templates/attention_wgmma.cu.j2, after FlashAttention-3."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import SM_COUNT, Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl import vector
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.size import minimum as fewer
from kgen.dsl.target import Target, sm
from kgen.dsl.types import bf16, e4m3, f16
from kgen.dsl.vector import Vector, ceil, maximum, minimum, where
from kgen.ops.attention.by_tma import TmaAttention
from kgen.ops.attention.decode import DecodeSchedule
from kgen.ops.attention.pointers import offset, pack, step, store, strides
from kgen.ops.attention.problem import NARROW, Heads, describe, found, matches
from kgen.ops.attention.schedule import is_short, of_all_heads
from kgen.ops.attention.tensor_maps import atom_bytes, by_tma, head_axes, head_coordinates, padded, tensor_map
from kgen.ops.attention.text import AttentionText, adds_numbers, attention_text, parameters
from kgen.tuning_db.machines import constants

#: Rows up to which tiles under a mask have so few steps that two blocks of an SM, which hide each other's ends, were 13 to 21%
#: faster where heads have 64 columns (1024 rows), and were not (2048).
_FEW_STEPS = 1536
#: Registers a thread that accumulators and weights may take, by the number of consumer warpgroups.
_REGISTERS = {1: 216, 2: 196, 3: 120}
#: Registers that it takes to draw which weights are dropped.
_DROPPING = 12
#: Columns of a step up to which scores become weights without a normaliser, by arithmetic of their own: of 192 ptxas spilled.
_MOST_WEIGHED = 176
#: What setmaxnreg leaves to a thread of the producer and gives to one of the consumers, by their warpgroups, blocks per SM, and
#: whether the producer reads which columns rows see.
_SHARES = {
    (2, 1, False): (24, 240), (2, 1, True): (40, 232), (3, 1, False): (32, 160), (3, 1, True): (32, 160),
    (1, 2, False): (40, 216), (1, 2, True): (40, 216),
}  # fmt: skip


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
    pair_shown: float  # the same of two blocks of an SM
    step: float  # of a warpgroup
    single_stage: float  # what waiting for tiles costs of a step
    other_group: float  # what heads side by side cost that are more or fewer than L2 keeps
    tile: float  # of rows, where a block has one
    persistent_tile: float
    bounded: float  # steps that a mask which bounds a side adds to half of the columns and of the square that it cuts
    memory: float  # the share of the memory's bandwidth that is reached
    busy: float  # the share of the SMs that reach it together
    latency: float  # from asking memory for a tile until it is there
    combine: float  # what combining parts of the columns takes by a workspace
    combine_part: float  # and each part
    cluster_combine: float  # the same by a cluster's shared memory
    cluster_part: float


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
    stored: str
    direct: bool
    store_policy: str
    store: str
    parts: str
    parts_at: str
    offsets: str
    query: str
    pack_q: int
    column_q: str
    query_at: str
    key_at: str
    value_at: str
    transposed: str
    atom: int
    atom_of_values: int
    weights: str
    wgmma_scores: str
    wgmma_values: str


class AttentionWgmma(DecodeSchedule, TmaAttention):
    """Hopper: TMA copies, wgmma multiplies; scores and weights stay in registers, the softmax is online."""

    template = "attention_wgmma.cu.j2"
    target = sm(90, "a")
    techniques: ClassVar[Techniques] = {
        "one consumer warpgroup": {"BR": 64},
        "ping-pong warpgroups": {"pingpong": True, "overlap": False},
        "pipelining within a warpgroup": {"BR": 128, "pingpong": False, "overlap": True},
        "ping-pong and pipelining": {"pingpong": True, "overlap": True},
        "three consumer warpgroups": {"BR": 192},
        "packed heads": {"pack_gqa": True},
        "late rescaling": {"rescale": "late"},
        "some exponentials by a polynomial": {"polynomial": (8, 6, 4)},
        "split-KV": {"splits": (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)},
        "split-KV in a cluster": {"splits": (2, 3, 4, 6, 8, 12, 16), "cluster": True},
    }

    order = choice("in_order", "longest_first", "paired")  # of the tiles of rows
    BR = choice(128, 64, 192)  # rows of queries of a block, 64 a consumer warpgroup
    # rows of keys and values of a step
    BC = choice(128, 64, 80, 96, 112, 144, 160, 176, 192, allows=range(16, 257, 16))
    stages = choice(2, 1, 3, 4)
    pingpong = choice(True, False)  # two warpgroups multiply in turns: one's softmax overlaps the other's products
    overlap = choice(True, False)  # a warpgroup computes the next scores while it adds up values
    # sums are multiplied whenever a row's maximum grows, or once it has grown by a factor of 256
    rescale = choice("always", "late", absent="always")
    polynomial = choice(0, 8, 6, 4, absent=0)  # of so many exponentials one is left to additions and multiplications
    # a block per SM takes tiles in turn: the next one's loads overlap the last one's store
    persistent = choice(True, False, absent=False)
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends
    blocks_per_sm = choice(1, 2, absent=1)  # that registers are shared out for
    pack_gqa = choice(False, True, absent=False)  # a tile has rows of all the heads that share keys
    # blocks that share the columns of a tile of rows; the last one combines what they have found
    splits = choice(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, absent=1)
    cluster = choice(False, True, absent=False)  # these blocks are one, and leave their parts in shared memory

    @rule
    def tensor_maps(self, problem: Problem, target: Target) -> bool:
        """matrices that TMA copies have contiguous rows that are multiples of 16 bytes, and at most three axes count heads"""
        h = describe(problem)
        others = (*(() if self.pack_gqa else (h.q,)), *(() if self.direct(problem) else (h.output,)))
        values = by_tma(h.v, whole=not found(problem.graph).transposed)
        return len(h.batch) <= 3 and values and all(map(by_tma, (h.k, *others)))

    @rule
    def widest_values(self, problem: Problem, target: Target) -> bool:
        """values have at most 256 columns, as many as an instruction"""
        return describe(problem).E <= NARROW

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """scores, the weights before them, sums and what dropping takes fit in the registers of a consumer warpgroup"""
        weights = self.BC * found(problem.graph).dtype.bytes // 8 if self.overlap else 0
        weights += _DROPPING if found(problem.graph).dropped is not None else 0
        registers = _REGISTERS[self.consumers] - 40 * (self.blocks_per_sm - 1)
        return self.BC // 2 + weights + padded(describe(problem).E) // 2 <= registers

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """queries and `stages` tiles of keys and values must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        return need <= target.smem_per_block and self.blocks_per_sm * (need + 1024) <= target.shared_per_sm

    @rule
    def steps_of_8_bits(self, problem: Problem, target: Target) -> bool:
        """of values of 8 bits a step has a multiple of 32 rows, tiles have rows of a head, and no number is added to scores"""
        attended = found(problem.graph)
        return attended.dtype.bytes > 1 or (self.BC % 32 == 0 and not self.pack_gqa and not adds_numbers(problem))

    @rule
    def pingpong_pairs(self, problem: Problem, target: Target) -> bool:
        """ping-pong is for two warpgroups, which do not wait for each other to clear values behind a length"""
        return not self.pingpong or (self.consumers == 2 and not found(problem.graph).kept)

    @rule
    def orders(self, problem: Problem, target: Target) -> bool:
        """persistent blocks take tiles in order or in pairs, blocks of one tile in order or the longest first"""
        return self.order != ("longest_first" if self.persistent else "paired")

    @rule
    def tile_of_a_block(self, problem: Problem, target: Target) -> bool:
        """blocks whose threads store results, or that have an SM with another one, have a tile each"""
        return not self.persistent or (not self.direct(problem) and self.blocks_per_sm == 1)

    @rule
    def two_blocks_of_an_sm(self, problem: Problem, target: Target) -> bool:
        """two blocks of an SM have one consumer warpgroup each, and values of at most 192 columns: 128 registers of a thread"""
        return self.blocks_per_sm == 1 or (self.consumers == 1 and padded(describe(problem).E) < NARROW)

    @rule
    def parts_in_a_cluster(self, problem: Problem, target: Target) -> bool:
        """a cluster is of 2 to 16 blocks of one consumer warpgroup, whose parts fit in the place of keys and values"""
        h = describe(problem)
        depth, width = padded(h.D), padded(h.E)
        fits = 4 * self.BR * (width + 8) <= self.stages * self.BC * (depth + width) * 2
        return not self.cluster or (1 < self.splits <= 16 and self.consumers == 1 and fits)

    @rule
    def sums_of_16_bits(self, problem: Problem, target: Target) -> bool:
        """sums are scaled late, and exponentials are polynomials, of a softmax none of whose maxima and sums is a result"""
        plain = len(problem.graph.results) == 1 and found(problem.graph).softmax is not None
        return (self.rescale == "always" and not self.polynomial) or plain

    @rule
    def room_to_grow(self, problem: Problem, target: Target) -> bool:
        """weights of 8 bits have no room for a factor of 256"""
        return self.rescale == "always" or found(problem.graph).dtype.bytes > 1

    @pruning
    def worth_their_instructions(self, problem: Problem, target: Target) -> bool:
        """sums are scaled late by three consumer warpgroups, and no exponential is a polynomial: on Hopper the rest was slower"""
        return not self.polynomial and (self.rescale == "always" or (self.consumers == 3 and self.splits == 1))

    @pruning
    def weighed_without_spills(self, problem: Problem, target: Target) -> bool:
        """a step of weights without a normaliser has at most 176 columns"""
        return found(problem.graph).softmax is not None or self.BC <= _MOST_WEIGHED

    @pruning
    @sized
    def rows_for_all_warpgroups(self, problem: Problem, target: Target) -> Vector:
        """every warpgroup has rows"""
        h = describe(problem)
        return h.M * where(self.pack_gqa, h.group, 1) > self.BR - 64

    @pruning
    def pairs_of_narrow_heads(self, problem: Problem, target: Target) -> bool:
        """an SM has two blocks where heads have rows for one tile alone, or at most 64 columns: of 128 it was slower"""
        h = describe(problem)
        return self.blocks_per_sm == 1 or is_short(h) or max(h.D, h.E) <= 64

    @pruning
    def clusters_of_few_rows(self, problem: Problem, target: Target) -> bool:
        """blocks are a cluster where heads have rows for one tile alone"""
        return not self.cluster or is_short(describe(problem))

    @pruning
    @sized
    def split_to_fill_the_gpu(self, problem: Problem, target: Target) -> Vector:
        """the columns of a tile of rows are shared where tiles are fewer than blocks at once, by no more than there are steps"""
        h = describe(problem)
        few = self.tiles(h) < 2 * self.blocks_per_sm * target.sm_count
        return (self.splits == 1) | (few & (self.splits <= vector.ceil_div(h.N, self.BC)))

    @pruning
    def overlapping_somehow(self, problem: Problem, target: Target) -> bool:
        """products overlap a softmax, another warpgroup's or the same one's"""
        return self.pingpong or self.overlap

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        """Values of 8 bits lie column by column, as wgmma takes them, and are as they lie in memory."""
        return super().applies(problem) or (
            matches(problem.graph) and found(problem.graph).dtype is e4m3 and found(problem.graph).transposed
        )

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionWgmma:
        """The model's best of the configs that a search considers."""
        from kgen.tuner.listed import best_of  # here, as it loads numpy

        h, ordered = describe(problem), cls.ordered(problem)
        few = h.M * h.heads < 128 * target.sm_count  # rows alone do not fill the GPU
        short = ordered["order"] != "in_order" and h.M <= _FEW_STEPS and max(h.D, h.E) <= 64

        # Two blocks of an SM by the length of rows: the model tells them from others by a quarter too little.
        def ranked(config: AttentionWgmma) -> tuple[Vector, Vector]:
            return (not few) & ((config.blocks_per_sm == 2) != short), config.estimate(problem, target)

        like = (few, *ordered.values())
        return best_of(cls, like, lambda: cls.listed(h, ordered, few), problem, target, ranked)

    @classmethod
    def listed(cls, h: Heads, ordered: Mapping[str, str | int], few: bool) -> list[AttentionWgmma]:
        """The configs that a default is taken from."""
        paired = {"order": "paired", "group": 1} if ordered["order"] == "longest_first" else ordered
        one = {"persistent": False, **ordered}
        kinds: list[dict[str, Any]] = [{"persistent": True, **paired}, one]
        if max(h.D, h.E) <= 64 and not few:
            kinds.append({"blocks_per_sm": 2, **one})
        if few:
            packs = (False, True) if h.group > 1 else (False,)
            blocks_per_sm, clusters = (
                (cls.blocks_per_sm.values, cls.cluster.values) if is_short(h) else ((1,), (False,))
            )
            kinds += [
                {"pack_gqa": pack_gqa, "splits": splits, "blocks_per_sm": blocks, "cluster": cluster, **one}
                for pack_gqa, splits, blocks, cluster in itertools.product(
                    packs, cls.splits.values, blocks_per_sm, clusters
                )
                if not cluster or 1 < splits <= 16
            ]
        fields: tuple[Sequence[int], ...] = (cls.BR.values, cls.BC.values, cls.stages.values, (True, False))
        if is_short(h):  # one warpgroup; it is copies that take time: the more of them are under way the better
            fields = ((64,), [BC for BC in cls.BC.values if BC <= 128], (3, 2, 4, 1), (False,))
        return [
            cls(BR=BR, BC=BC, stages=stages, pingpong=pingpong, overlap=True, pdl=True, **kind)
            for BR, BC, stages, pingpong in itertools.product(*fields)
            for kind in kinds
        ]

    def direct(self, problem: Problem) -> bool:
        """Whether threads store results: of rows of several heads, of what several blocks have summed up, and not of 16 bits."""
        return bool(self.pack_gqa or self.splits > 1 or describe(problem).output.operand.dtype not in (f16, bf16))

    @property
    def scheduler(self) -> str:
        """The policy by which blocks take tiles of rows."""
        if self.persistent:
            return "PersistentPairs" if self.order == "paired" else "PersistentTiles"
        return f"SplitTilePerBlock<{self.row_tiles}, SPLITS>" if self.splits > 1 else f"TilePerBlock<{self.row_tiles}>"

    def blocks(self, h: Heads) -> Size:
        """The launch's blocks over the symbols: as many as there are tiles of rows, or persistent ones."""
        if not self.persistent:
            return super().blocks(h)
        blocks = of_all_heads(ceil_div(Dim("M"), self.BR * (2 if self.order == "paired" else 1)), h.batch)
        return fewer(blocks, SM_COUNT)

    def rounds(self, problem: Problem, at_once: Vector) -> Vector:
        """As of all schedules; persistent blocks have whole tiles, or pairs of them."""
        h, together = describe(problem), where(self.order == "paired", 2, 1)
        own = together * ceil(vector.ceil_div(h.M, self.BR * together) * h.heads / at_once)
        return where(self.persistent, own, super().rounds(problem, at_once))

    @property
    def consumers(self) -> int:
        return self.BR // 64

    def epilogue_stages(self, problem: Problem) -> int:
        """Buffers of 64 rows and columns through which a warpgroup's results leave, in the place of the queries."""
        h = describe(problem)
        return 2 if min(padded(h.D), padded(h.E)) >= 128 else 1

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: queries, results (in the place of queries where it has one tile), keys, values, barriers."""
        h, size = describe(problem), found(problem.graph).dtype.bytes
        depth, width = padded(h.D), padded(h.E)
        queries = self.BR * depth * size
        results = 0 if self.direct(problem) else self.consumers * self.epilogue_stages(problem) * 64 * 64 * 2
        rows = queries + results if self.persistent else max(queries, results)
        return int(rows + self.stages * self.BC * (depth + width) * size + 16 + 2 * self.stages * 16 + 16)

    def source(self, problem: Problem) -> Source:
        h, dtype = describe(problem), found(problem.graph).dtype
        depth, width = padded(h.D), padded(h.E)
        rows, direct = self.rows(h), self.direct(problem)
        if self.splits > 1:  # warps share a row's columns
            rows = dataclasses.replace(rows, writer=f"{rows.writer} && first_column == 0")
        text = attention_text(problem, rows)
        shares = _SHARES.get((self.consumers, self.blocks_per_sm, text.by_warp))
        transposed, step_of_k = found(problem.graph).transposed, 32 // dtype.bytes
        atom, atom_of_values = atom_bytes(depth, dtype), atom_bytes(self.BC if transposed else width, dtype)
        lines, line, box = (Dim("E"), Dim("N"), width) if transposed else (Dim("N"), Dim("E"), self.BC)
        maps = {
            "q": tensor_map("q", h.q, Dim("M"), Dim("D"), self.BR, "in", atom),
            "k": tensor_map("k", h.k, Dim("N"), Dim("D"), self.BC, "in", atom),
            "v": tensor_map("v", h.v, lines, line, box, "in", atom_of_values),
            "o": tensor_map("o", h.output, Dim("M"), Dim("E"), 64, "out"),
        }
        pointers = {**({"q": h.q} if self.pack_gqa else {}), **({"o": h.output} if direct else {})}
        params: list[Param] = [maps[n] for n in maps if n not in pointers]
        params += [Pointer(n, x.operand.dtype, x.operand.name, maps[n].access) for n, x in pointers.items()]
        params += parameters(problem)
        params += [Integer(n, Dim(n)) for n in ("DE" if self.pack_gqa else "E" if direct else "")]
        params += [p for n, x in pointers.items() for p in strides(n, x)]
        params += [] if self.cluster else self.workspace(h, width)
        stages, axes = self.epilogue_stages(problem), "".join(f", {d}" for d in head_axes(h.output))
        stored = h.output.operand.dtype.ctype
        tma_store = f"TmaStore<{stored}, DV, 64, {stages}, RowMajorStage, CONSUMERS, WgmmaRows{axes}>"
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(
                (self.blocks(h) * self.splits, 1, 1),
                ((self.consumers + 1) * 128, 1, 1),
                self.smem_bytes(problem),
                (self.splits if self.cluster else 1, 1, 1),
                pdl=self.pdl,
            ),
            arch=sm(90, "a"),
            limits=(Limit(Dim("D"), depth), Limit(Dim("E"), width)),
            context=Context(
                t=text,
                ctype=dtype.ctype,
                depth=depth,
                width=width,
                order="PingPong" if self.pingpong else "Cooperative",
                registers=f"SharedRegisters<{shares[0]}, {shares[1]}>" if shares else "EvenRegisters",
                launch="ProgrammaticDependentLaunch" if self.pdl else "StreamOrder",
                stored=stored,
                direct=direct,
                store_policy="DirectStore<float, WgmmaRows>" if direct else tma_store,
                store=store("o", h.output, "E", rows),
                parts="PartsInCluster" if self.cluster else "PartsInMemory",
                parts_at="shared + TileQ::BYTES" if self.cluster else "partials, counters, shared",
                offsets="\n".join(filter(None, (offset(n, x, rows) for n, x in pointers.items()))),
                query=rows.at("tile.m0 + row", "q", h.q.batch),
                pack_q=pack(h.q),
                column_q=step("q", h.q),
                query_at=head_coordinates(h.q),
                key_at=head_coordinates(h.k),
                value_at=head_coordinates(h.v),
                transposed="true" if transposed else "false",
                atom=atom,
                atom_of_values=atom_of_values,
                weights=f"RegisterWeights8<{dtype.ctype.replace('fp8', 'fp8x4')}, BC>"
                if dtype.bytes == 1
                else f"RegisterWeights<{dtype.ctype}, BC, 16>",
                wgmma_scores=f"ptx::wgmma_m64n{self.BC}k{step_of_k}_{dtype.name}_f32"
                + ("" if transposed else "<false, false>"),
                wgmma_values=f"ptx::wgmma_m64n{width}k{step_of_k}_{dtype.name}_f32_rs"
                + ("" if transposed else "<true>"),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Seconds: of a step the larger of its products and its exponentials, and a part of the smaller; of all blocks' steps, of
        which an SM may have two blocks' at once, or of their copies and the last step; and of combining parts of the columns.
        """
        h = describe(problem)
        depth, width = padded(h.D), padded(h.E)
        k = constants(WgmmaConstants, target)
        dtype = found(problem.graph).dtype
        kind = "fp8" if dtype.bytes == 1 else "f16_f32acc"
        rate = k.products * target.tensor_flops[kind] / target.sm_count
        products = 2 * self.BR * self.BC * (depth + width) / rate
        exponentials = self.BR * self.BC / (16 * target.clock_hz) * k.exponentials
        in_turns = where(self.overlap, k.both_shown, k.pingpong_shown)
        shown = where(self.pingpong, in_turns, where(self.consumers == 1, k.alone_shown, k.pipelined_shown))
        longer = maximum(products, exponentials)
        step = longer + shown * minimum(products, exponentials) + k.step / self.consumers
        step = step * where(self.stages == 1, k.single_stage, 1.0)
        other = (self.order == "longest_first") & (self.group != self.ordered(problem)["group"])
        step = step * where(other, k.other_group, 1.0)
        reached = target.sms_in_clusters(where(self.cluster, self.splits, 1))
        steps, rounds = self.steps(problem, self.cut(problem) + k.bounded), self.rounds(problem, reached / self.splits)
        together = minimum(self.blocks_per_sm, maximum(1.0, rounds))
        # What other tiles have read is in L2.
        copied, tiles = self.BC * (h.D + h.E) * dtype.bytes, maximum(1, self.tiles(h))
        fresh = minimum(1.0, problem.bytes / (tiles * vector.ceil_div(max(1, h.N), self.BC) * copied))
        readers = maximum(minimum(target.sm_count, tiles * self.splits / rounds), k.busy * target.sm_count)
        reading = fresh * copied * readers / (k.memory * target.bandwidth)
        waiting = fresh * k.latency / ((self.stages - 0.5) * together)
        own = where(self.splits > 1, ceil(steps / self.splits), steps)
        two = longer + where(self.blocks_per_sm == 2, k.pair_shown, 0.0) * minimum(products, exponentials)
        computing, copying = maximum(two, step / together), maximum(reading, waiting)
        block = maximum(own * computing, own * copying + step / together)
        tile = where(self.persistent, k.persistent_tile, k.tile)
        running = rounds * block + maximum(1.0, rounds / together) * tile
        combine = where(self.cluster, k.cluster_combine, k.combine)
        part = where(self.cluster, k.cluster_part, k.combine_part)
        return k.start + running + where(self.splits > 1, combine + self.splits * part, 0.0)
