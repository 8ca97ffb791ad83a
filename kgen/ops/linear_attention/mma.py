"""Linear attention by mma.sync (sm_80 and above): the schedule of templates/linear_attention.cu.j2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.family import Family, register_family
from kgen.dsl.machine import Constants
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim, ceil_div
from kgen.dsl.target import Target, sm
from kgen.ops.attention.evaluation import head_place
from kgen.ops.attention.pointers import offset, pack, step, store
from kgen.ops.attention.schedule import of_all_heads
from kgen.ops.common import axes
from kgen.ops.common.lowering import collapse_leading
from kgen.ops.linear_attention.problem import describe, found, matches, suites
from kgen.ops.linear_attention.schedule import ROUND, LinearAttentionSchedule
from kgen.ops.linear_attention.wgmma import LinearAttentionWgmma
from kgen.tuning_db.machines import constants

#: Registers a thread for the state, a chunk's results, and addresses of fragments.
_REGISTERS = 235


@dataclass(frozen=True)
class LinearAttentionConstants(Constants, model="linear_attention"):
    """Times in seconds."""

    start: float
    memory: float  # the share of the bandwidth that is reached
    latency: float  # clocks of an instruction of a warp, with all that goes with it
    product: float  # what each warp beside it in a quarter of an SM adds
    decay: float  # the same of a number that decay scales
    decay_beside: float
    chunk: float  # clocks that a block waits in a chunk
    warp: float  # and for each of its warps
    copy: float  # clocks of a copy of a thread
    loose: float  # what registers cost that are limited for one block an SM


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++. `packs` and `columns`, the strides of columns, are those of q, k and v."""

    ctype: str
    round: str
    stored: str
    depth: int
    backwards: str
    packs: tuple[int, ...]
    columns: tuple[str, ...]
    functions: str
    scale: str
    decay: bool
    read_decay: str
    batches: str
    batch_rank: int
    offsets: str
    mma: str
    store: str


class LinearAttention(LinearAttentionSchedule):
    """mma.sync: the state stays in registers, in f32, from chunk to chunk; cp.async fills a ring of chunks."""

    template = "linear_attention.cu.j2"
    target = sm(80)
    techniques: ClassVar[Techniques] = {
        "long chunks": {"BC": 64},
        "short chunks": {"BC": (16, 32)},
        "wide states of a warp": {"WV": 32},
        "three stages": {"stages": 3},
    }

    BC = choice(64, 32, 16)  # rows of a chunk
    WV = choice(16, 32)  # columns of values of a warp
    warps = choice(4, 8, 2, 1)  # of a block
    stages = choice(2, 3)
    blocks_per_sm = choice(1, 2)  # that registers are limited for

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """the state and a chunk's results fit in registers, beside two addresses for each 16 columns of keys"""
        depth = self.padded(problem)
        need = self.WV * depth // 32 + self.BC * self.WV // 32 + 2 * depth // 16 + 40
        return need <= min(_REGISTERS, 65536 // (self.warps * 32 * self.blocks_per_sm))

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """`stages` chunks of queries, keys and values must fit in the shared memory of a block"""
        need = self.smem_bytes(problem)
        return need <= target.smem_per_block and self.blocks_per_sm * (need + 1024) <= target.shared_per_sm

    @pruning
    def no_idle_columns(self, problem: Problem, target: Target) -> bool:
        """no warp of a block of several is without columns"""
        return bool(self.warps == 1 or self.BV - self.WV < describe(problem).E)

    @property
    def BV(self) -> int:
        return int(self.warps * self.WV)

    def padded(self, problem: Problem) -> int:
        """Columns of a tile of keys; what lies beyond the operand's is zero."""
        return max(1, math.ceil(describe(problem).D / 16)) * 16

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: the ring, the weights, decay of two chunks."""

        def row(columns: int) -> int:
            return 2 * (columns + (8 if columns % 64 else 0))

        ring = self.stages * self.BC * (2 * row(self.padded(problem)) + row(self.BV))
        return int(ring + self.BC * row(self.BC) + 2 * 4 * (3 * self.BC + 1))

    def source(self, problem: Problem) -> Source:
        h, attended = describe(problem), found(problem.graph)
        params: list[Param] = [
            Pointer(name, x.operand.dtype, x.operand.name, "out" if name == "o" else "in")
            for name, x in h.matrices.items()
        ]
        params += [Integer(name, Dim(name)) for name in ("N", "D", "E")]
        params += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(1, len(h.batch))]
        for name, x in h.matrices.items():
            # Decay lies along its columns, the others' places are rows and columns.
            params += [Integer.stride(f"{name}_row")] if name != "decay" else []
            params += [Integer.stride(f"{name}_column")] if name == "decay" or x.column != 1 else []
            params += [Integer.stride(f"{name}_b{d}") for d, s in enumerate(x.batch) if s]
        params += self.numbers(problem)
        functions, scale, read_decay = self.texts(problem)
        blocks = of_all_heads(ceil_div(Dim("E"), self.BV), h.batch)
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch((blocks, 1, 1), (self.warps * 32, 1, 1), self.smem_bytes(problem)),
            arch=sm(80),
            limits=(Limit(Dim("D"), self.padded(problem)),),
            context=Context(
                ctype=attended.dtype.ctype,
                round=ROUND[attended.dtype],
                stored=h.output.operand.dtype.ctype,
                depth=self.padded(problem),
                backwards="true" if attended.backwards else "false",
                packs=tuple(pack(x) for x in (h.q, h.k, h.v)),
                columns=tuple(step(n, x) for n, x in h.matrices.items()),
                functions=functions,
                scale=scale,
                decay=attended.decay is not None,
                read_decay=read_decay,
                batches="\n".join(head_place(d) for d in reversed(range(len(h.batch)))),
                batch_rank=len(h.batch),
                offsets="\n".join(offset(n, x) for n, x in h.matrices.items() if any(x.batch)),
                mma=f"ptx::mma_m16n8k16_{attended.dtype.name}_f32",
                store=store("o", h.output, "E"),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Seconds: of each round of blocks the larger of what memory takes and what its chunks do, each a sum of what a warp does
        one after another, slower where several share a quarter of the SM.
        """
        h, depth = describe(problem), self.padded(problem)
        k = constants(LinearAttentionConstants, target)
        blocks = self.blocks(problem)
        registers = 65536 // (self.warps * 32 * (self.WV * (depth + self.BC) // 32 + depth // 8 + 40))
        together = max(1, min(registers, target.shared_per_sm // (self.smem_bytes(problem) + 1024)))
        at_once = min(together, math.ceil(blocks / target.sm_count))
        rounds = math.ceil(blocks / (target.sm_count * at_once))
        chunks = max(1, math.ceil(h.N / self.BC))
        # Of a warp: tiles of weights, shared by all; its columns' products with weights, and with the state, which is read twice.
        steps = self.BC // 16
        tiles = steps * (steps + 1) // 2
        weights = math.ceil(tiles / self.warps)
        products = weights * depth // 8 + tiles * self.WV // 8 + 3 * steps * depth // 16 * self.WV // 8
        scaled = weights * 8 + (depth + self.BC) * self.WV // 32 if h.decay is not None else 0
        beside = max(1.0, self.warps * at_once / 4)
        clocks = products * (k.latency + k.product * beside) + scaled * (k.decay + k.decay_beside * beside)
        copies = self.BC * (2 * depth + self.BV) // 8 / (self.warps * 32)
        clocks += k.chunk + k.warp * self.warps + k.copy * copies
        clocks *= k.loose if self.blocks_per_sm == 1 else 1.0
        moved = 2 * h.heads * h.N * (h.D * 2 + h.E * 2)
        return k.start + max(rounds * chunks * clocks / target.clock_hz, moved / (k.memory * target.bandwidth))


family = register_family(
    Family(
        "linear_attention",
        (LinearAttentionWgmma, LinearAttention),
        matches=matches,
        normalise=collapse_leading,
        dims=axes.dims,
        suites=suites,
        priority=3,
    )
)
