"""Linear attention on Hopper's tensor cores (sm_90a): the schedule of templates/linear_attention_wgmma.cu.j2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.machine import Constants
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.target import Target, sm
from kgen.ops.attention.evaluation import head_place
from kgen.ops.attention.pointers import offset
from kgen.ops.attention.schedule import of_all_heads
from kgen.ops.attention.tensor_maps import by_tma, head_axes, head_coordinates, padded, tensor_map
from kgen.ops.linear_attention.problem import describe, found
from kgen.ops.linear_attention.schedule import ROUND, LinearAttentionSchedule
from kgen.tuning_db.machines import constants

#: Registers a thread that the state, scores, weights and results may take, by consumer warpgroups and blocks per SM.
_REGISTERS = {(1, 1): 216, (2, 1): 196, (3, 1): 120, (4, 1): 88, (1, 2): 176}
#: What setmaxnreg leaves to a thread of the producer and gives to one of the consumers, by the same.
_SHARES = {(2, 1): (40, 232), (3, 1): (32, 160), (4, 1): (32, 112), (1, 2): (40, 216)}


@dataclass(frozen=True)
class LinearWgmmaConstants(Constants, model="linear_attention_wgmma"):
    """Times in seconds, clocks where said."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    products: float  # the share of the tensor cores' rate that all warpgroups of an SM reach together
    shared: float  # bytes a clock of shared memory
    wait: float  # clocks that a warpgroup waits in a chunk, for products and barriers
    overlapped: float  # the share of that which is left where the next chunk's scores overlap stores
    number: float  # clocks of a warpgroup for a number of the state, of scores or of results of each thread
    decay: float  # and for one that decay scales
    passed: float  # bytes a clock of states between the blocks of a cluster


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++."""

    ctype: str
    round: str
    depth: int
    backwards: str
    functions: str
    scale: str
    decay: bool
    read_decay: str
    batches: str
    batch_rank: int
    offsets: str
    registers: str
    launch: str
    output_axes: str
    query_at: str
    key_at: str
    value_at: str
    wgmma: str
    kind: str


class LinearAttentionWgmma(LinearAttentionSchedule):
    """Hopper: TMA copies, wgmma multiplies; a warpgroup has the state of its columns of values, in f32, from chunk to chunk."""

    template = "linear_attention_wgmma.cu.j2"
    target = sm(90, "a")
    techniques: ClassVar[Techniques] = {
        "one consumer warpgroup": {"consumers": 1},
        "two consumer warpgroups": {"consumers": 2},
        "wide states of a warpgroup": {"WV": 128},
        "shared sequences": {"segments": (2, 3, 4, 6, 8)},
    }

    WV = choice(64, 128)  # columns of values of a warpgroup
    consumers = choice(2, 1, 3, 4)  # warpgroups, each with columns of its own
    stages = choice(3, 2, 4)
    registers = choice(False, True)  # queries are read once, as A from registers
    overlap = choice(True, False)  # the next chunk's scores are computed while the state and results are stored
    # blocks that share a head's rows, a cluster: each first adds up what its rows leave to those behind
    segments = choice(1, 2, 4, 8, 3, 6)
    blocks_per_sm = choice(1, 2)  # that registers are shared out for
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends

    @rule
    def no_empty_axis(self, problem: Problem, target: Target) -> bool:
        """a tensor map has no empty axis"""
        h = describe(problem)
        return min(h.N, h.D, h.E, *h.batch, 1) >= 1

    @rule
    def tensor_maps(self, problem: Problem, target: Target) -> bool:
        """all matrices have contiguous rows that are multiples of 16 bytes, and at most three axes count heads"""
        h = describe(problem)
        return len(h.batch) <= 3 and all(map(by_tma, (h.q, h.k, h.v, h.output)))

    @rule
    def one_dtype(self, problem: Problem, target: Target) -> bool:
        """results are stored in the dtype of queries, keys and values"""
        h = describe(problem)
        return h.output.operand.dtype == h.v.operand.dtype

    @rule
    def two_blocks_of_an_sm(self, problem: Problem, target: Target) -> bool:
        """two blocks of an SM have one consumer warpgroup each"""
        return (self.consumers, self.blocks_per_sm) in _REGISTERS

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """the state, scores, weights and results of a chunk fit in the registers of a consumer warpgroup"""
        state = padded(describe(problem).D) // 64 * self.WV // 2
        queries = padded(describe(problem).D) // 4 if self.registers else 0
        return state + self.WV // 2 + self.BC * 3 // 4 + queries <= _REGISTERS.get(
            (self.consumers, self.blocks_per_sm), 0
        )

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """`stages` chunks of queries, keys and values, the state and results must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        return need <= target.smem_per_block and self.blocks_per_sm * (need + 1024) <= target.shared_per_sm

    @pruning
    def no_idle_columns(self, problem: Problem, target: Target) -> bool:
        """no warpgroup of a block of several is without columns"""
        return bool(self.consumers == 1 or self.BV - self.WV < describe(problem).E)

    @pruning
    def segments_to_fill_the_gpu(self, problem: Problem, target: Target) -> bool:
        """a head's rows are shared where blocks are fewer than there may be at once, by no more than there are chunks"""
        few = self.blocks(problem) < 2 * self.segments * target.sm_count
        return self.segments == 1 or (few and self.segments <= math.ceil(describe(problem).N / self.BC))

    @pruning
    def queries_in_registers(self, problem: Problem, target: Target) -> bool:
        """queries are in registers where there is decay: 3 to 8% faster there on an H200, up to 5% slower without"""
        return not self.registers or describe(problem).decay is not None

    @pruning
    def overlapping_start(self, problem: Problem, target: Target) -> bool:
        """the launch overlaps the end of the one before"""
        return self.pdl

    @property
    def BC(self) -> int:  # type: ignore[override]
        """Rows of a chunk."""
        return 64

    @property
    def BV(self) -> int:
        return int(self.consumers * self.WV)

    def blocks(self, problem: Problem) -> int:
        return super().blocks(problem) * self.segments

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        # A block of several goes over its rows twice.
        return ((Dim("N"), self.BC * self.stages * math.ceil(self.segments / 2)),)

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: the ring, the state as two numbers, results, barriers, decay of each stage."""
        h = describe(problem)
        depth = padded(h.D)
        ring = self.stages * self.BC * (2 * depth + self.BV) * 2
        decay = self.stages * 4 * (3 * self.BC + 1) + (4 if self.segments > 1 else 0) if h.decay is not None else 0
        return int(ring + 2 * depth * self.BV * 2 + self.BC * self.BV * 2 + 16 * self.stages + decay)

    def source(self, problem: Problem) -> Source:
        h, attended = describe(problem), found(problem.graph)
        decay = {"decay": h.decay} if h.decay is not None else {}
        params: list[Param] = [
            tensor_map("q", h.q, Dim("N"), Dim("D"), self.BC, "in"),
            tensor_map("k", h.k, Dim("N"), Dim("D"), self.BC, "in"),
            tensor_map("v", h.v, Dim("N"), Dim("E"), self.BC, "in"),
            tensor_map("o", h.output, Dim("N"), Dim("E"), self.BC, "out"),
        ]
        params += [Pointer(name, x.operand.dtype, x.operand.name, "in") for name, x in decay.items()]
        params += [Integer(name, Dim(name)) for name in ("N", "E")]
        params += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(1, len(h.batch))]
        for name, x in decay.items():
            params += [Integer.stride(f"{name}_column")]
            params += [Integer.stride(f"{name}_b{d}") for d, s in enumerate(x.batch) if s]
        functions, scale, read_decay = self.texts(problem)
        shares = _SHARES.get((self.consumers, self.blocks_per_sm))
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(*params, *self.numbers(problem)),
            launch=Launch(
                (of_all_heads(ceil_div(Dim("E"), self.BV), h.batch) * self.segments, 1, 1),
                ((self.consumers + 1) * 128, 1, 1),
                self.smem_bytes(problem),
                (self.segments, 1, 1),
                pdl=self.pdl,
            ),
            arch=sm(90, "a"),
            limits=(Limit(Dim("D"), padded(h.D)),),
            context=Context(
                ctype=attended.dtype.ctype,
                round=ROUND[attended.dtype],
                depth=padded(h.D),
                backwards="true" if attended.backwards else "false",
                functions=functions,
                scale=scale,
                decay=attended.decay is not None,
                read_decay=read_decay,
                batches="\n".join(head_place(d) for d in reversed(range(len(h.batch)))),
                batch_rank=max(1, len(h.batch)),
                offsets="\n".join(offset(n, x) for n, x in decay.items() if any(x.batch)),
                registers=f"SharedRegisters<{shares[0]}, {shares[1]}>" if shares else "EvenRegisters",
                launch="ProgrammaticDependentLaunch" if self.pdl else "StreamOrder",
                output_axes="".join(f", {d}" for d in head_axes(h.output)),
                query_at=head_coordinates(h.q),
                key_at=head_coordinates(h.k),
                value_at=head_coordinates(h.v),
                wgmma="ptx::wgmma_m64n",
                kind=f"k16_{attended.dtype.name}_f32",
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Seconds: of each round of blocks the largest of what memory, tensor cores, shared memory and a warpgroup alone take,
        and what it waits. With segments, that of the states before too, for which keys and values are read again.
        """
        h = describe(problem)
        k = constants(LinearWgmmaConstants, target)
        depth, tiles = padded(h.D), math.ceil(h.E / self.BV)
        at_once = min(self.blocks_per_sm, math.ceil(self.blocks(problem) / target.sm_count))
        rounds = math.ceil(self.blocks(problem) / (target.sms_in_clusters(self.segments) * at_once))
        together, state = self.consumers * at_once, depth * self.WV
        rate = target.tensor_flops["f16_f32acc"] / target.sm_count / target.clock_hz

        def chunk(flops: int, traffic: int, numbers: int, scaled: int, wait: float) -> float:
            alone = flops / rate + k.number * numbers + (k.decay * scaled if h.decay is not None else 0)
            return max(alone, together * flops / rate / k.products, together * traffic / k.shared) + wait

        # Of a warpgroup: scores, weights by values, queries by both parts of the state, and what is added to it. An instruction
        # reads 16 rows of B, and 64 of A where that is not in registers.
        rows, copied = self.BC, 2 * self.BC * (2 * depth + self.BV) // self.consumers
        a, b = depth // 16 * (1 if self.registers else 3) + rows // 16 * depth // 64, 32 * self.WV
        read = 2048 * (a + depth // 16) + b * (depth // 16 * 2 + rows // 16 * (1 + depth // 64))
        flops = 2 * rows * (rows * depth + rows * self.WV + 3 * state)
        numbers = state // 128 + rows // 2 + self.WV // 2
        wait = k.wait * (k.overlapped if self.overlap else 1.0)
        written = 4 * state + 4 * rows * self.WV * (2 if h.decay is not None else 1)
        clocks = chunk(flops, read + written + copied, numbers, numbers + self.WV // 2, wait)
        before = 0.0
        if self.segments > 1:
            update = rows // 16 * depth // 64 * (2048 + b) + copied
            before = chunk(2 * rows * state, update, 0, state // 128 + self.WV // 2, k.wait / 2)
        running = math.ceil(math.ceil(h.N / rows) / self.segments) * (clocks + before)
        running += (self.segments - 1) * self.consumers * 4 * state / k.passed
        again = (self.segments - 1) / self.segments * (h.D + h.E)
        moved = 2 * h.heads * h.N * (2 * h.D * (1 + 0.3 * (tiles - 1)) + 2 * h.E + again)
        return float(k.start + max(rounds * running / target.clock_hz, moved / (k.memory * target.bandwidth)))
