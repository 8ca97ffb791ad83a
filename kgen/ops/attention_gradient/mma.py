"""Gradients of attention by mma.sync (sm_80 and above): the schedule of templates/attention_gradient_mma.cu.j2."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Param, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim
from kgen.dsl.target import Target, sm
from kgen.ops.attention.pointers import offset, pack, step, store
from kgen.ops.attention.problem import Matrix
from kgen.ops.attention_gradient.problem import depth, describe, found
from kgen.ops.attention_gradient.schedule import GradientSchedule, widths
from kgen.ops.attention_gradient.text import GradientText, gradient_text, parameters
from kgen.tuning_db.machines import constants

#: Registers a thread that inner products, weights and sums may take.
_REGISTERS = 184


@dataclass(frozen=True)
class MmaConstants(Constants, model="attention_gradient_mma"):
    """Times in seconds."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    element: float  # instructions that make the weights of an element, those that products do not hide
    step: float  # what a block waits for its tiles
    bounded: float  # steps that a mask which bounds a side adds to half of the columns'


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++. Packs and strides are those of columns."""

    t: GradientText
    ctype: str
    row_depths: tuple[int, ...]
    column_depths: tuple[int, ...]
    widths: tuple[int, ...]
    #: Of each inner product the tiles of rows and of columns, and of each result the tile of columns.
    inners: tuple[tuple[int, int], ...]
    outers: tuple[int, ...]
    xor: str
    row_packs: tuple[int, ...]
    column_packs: tuple[int, ...]
    row_strides: tuple[str, ...]
    column_strides: tuple[str, ...]
    members: tuple[str, ...]  # what leads to the columns of the step's head, where results are sums over heads
    offsets: str
    mma: str
    stored: tuple[str, ...]
    stores: tuple[str, ...]


class AttentionGradientMma(GradientSchedule):
    """mma.sync: cp.async fills rings of swizzled or padded tiles; weights stay in registers."""

    template = "attention_gradient_mma.cu.j2"
    target = sm(80)
    techniques: ClassVar[Techniques] = {
        "swizzle": {"swizzle": "xor"},
        "padding": {"swizzle": "pad"},
        "three stages": {"stages": 3},
    }

    BR = choice(64, 16, 32, 128)  # rows of a block, 16 a warp
    BC = choice(32, 16, 64)  # columns of a step
    stages = choice(2, 3)
    slices = choice(1, 2, 4)  # blocks that share the columns of the results
    swizzle = choice("pad", "xor")

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """inner products, weights and sums fit in registers"""
        made = found(problem.graph)
        scores = max(len(made.inners), len(made.outers)) * self.BC // 2
        sums = sum(widths(problem, self.unit, self.slices)) // 2
        return scores + len(made.outers) * self.BC // 4 + sums <= min(_REGISTERS, 65536 // (self.BR * 2) - 40)

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """tiles of rows and `stages` of columns must fit in the shared memory of a block"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def slices_of_columns(self, problem: Problem, target: Target) -> bool:
        """every slice has columns of a result"""
        shares = zip(widths(problem, self.unit, self.slices), describe(problem).outputs)
        return any((self.slices - 1) * width < depth(x) for width, x in shares)

    @pruning
    def swizzle_of_whole_lines(self, problem: Problem, target: Target) -> bool:
        """tiles are swizzled where their rows are whole lines of 128 bytes without padding"""
        s = describe(problem)
        return self.swizzle == "pad" or all(depth(x) % 64 == 0 for x in (*s.rows, *s.columns))

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionGradientMma:
        """Blocks of 64 rows, of 16 where there are few; the fewest slices and the widest steps that fit."""
        from kgen.tuner.listed import best_of  # here, as it loads numpy

        ordered, rows = cls.ordered(problem, target), 64 if describe(problem).M > 16 else 16
        # Where keys and values stay, of two registers more a thread ptxas 13.0 spilled 20 bytes.
        if ordered["order"] == "in_order":
            ordered["group"] = 1

        def listed() -> list[AttentionGradientMma]:
            fields = itertools.product(cls.slices.values, (32, 16), (rows, 32, 16))
            return [cls(BR=BR, BC=BC, stages=2, slices=slices, swizzle="pad", **ordered) for slices, BC, BR in fields]

        return best_of(cls, (rows, *ordered.values()), listed, problem, target, ranked=lambda config: ())

    @property
    def unit(self) -> int:
        """Columns of a tile are a multiple of it; what lies beyond the operand's is zero."""
        return 64 if self.swizzle == "xor" else 16

    def padded(self, columns: int) -> int:
        return max(1, math.ceil(columns / self.unit)) * self.unit

    def row_depths(self, problem: Problem) -> tuple[int, ...]:
        """The columns of tiles of what stays."""
        return tuple(self.padded(depth(x)) for x in describe(problem).rows)

    def column_depths(self, problem: Problem) -> tuple[int, ...]:
        """The columns of tiles of what passes: whole slices of the results that are made of it."""
        made = found(problem.graph)
        depths = [self.padded(depth(x)) for x in describe(problem).columns]
        for outer, width in zip(made.outers, widths(problem, self.unit, self.slices)):
            place = made.columns.index(outer.column)
            depths[place] = max(depths[place], width * self.slices)
        return tuple(depths)

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block."""
        padding = 8 if self.swizzle == "pad" else 0
        rows, columns = (
            sum(d + padding for d in depths) for depths in (self.row_depths(problem), self.column_depths(problem))
        )
        numbers = self.stages * self.BC * gradient_text(problem).passing_bytes
        return 2 * (self.BR * rows + self.stages * self.BC * columns) + numbers

    def source(self, problem: Problem) -> Source:
        s, made = describe(problem), found(problem.graph)
        shares = widths(problem, self.unit, self.slices)
        row_depths = self.row_depths(problem)
        params: list[Param] = [
            Pointer(n, x.operand.dtype, x.operand.name, "out" if n.startswith("o") else "in")
            for n, x in s.matrices.items()
        ]
        params += parameters(problem)
        for n, x in s.matrices.items():
            params += [Integer(f"{n}_depth", Dim(f"{n}_depth")), Integer.stride(f"{n}_row")]
            params += [Integer.stride(f"{n}_column")] if x.column != 1 else []
            params += [Integer.stride(f"{n}_b{d}") for d, stride in enumerate(x.batch) if stride]
        limits = [Limit(Dim(f"r{i}_depth"), most) for i, most in enumerate(row_depths)]
        limits += [Limit(Dim(f"o{i}_depth"), width * self.slices) for i, width in enumerate(shares)]
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=tuple(params),
            launch=Launch(self.grid(s), (self.BR * 2, 1, 1), self.smem_bytes(problem)),
            arch=sm(80),
            limits=tuple(limits),
            context=Context(
                t=gradient_text(problem),
                ctype=made.dtype.ctype,
                row_depths=row_depths,
                column_depths=self.column_depths(problem),
                widths=shares,
                inners=tuple((made.rows.index(i.row), made.columns.index(i.column)) for i in made.inners),
                outers=tuple(made.columns.index(o.column) for o in made.outers),
                xor="true" if self.swizzle == "xor" else "false",
                row_packs=tuple(map(pack, s.rows)),
                column_packs=tuple(map(pack, s.columns)),
                row_strides=tuple(step(f"r{i}", x) for i, x in enumerate(s.rows)),
                column_strides=tuple(step(f"c{i}", x) for i, x in enumerate(s.columns)),
                members=tuple(_member(f"c{i}", x) if s.summed else "" for i, x in enumerate(s.columns)),
                offsets="\n".join(offset(n, x) for n, x in s.matrices.items() if any(x.batch)),
                mma=f"ptx::mma_m16n8k16_{made.dtype.name}_f32",
                stored=tuple(x.operand.dtype.ctype for x in s.outputs),
                stores=tuple(store(f"o{i}", x, f"o{i}_depth") for i, x in enumerate(s.outputs)),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> float:
        """Seconds: of a step its products, its weights and what it waits for; of all blocks' steps."""
        k = constants(MmaConstants, target)
        made, rows = found(problem.graph), self.row_depths(problem)
        deep = sum(rows[made.rows.index(i.row)] for i in made.inners) + sum(widths(problem, self.unit, self.slices))
        rate = k.products * target.tensor_flops["f16_f32acc"] / target.sm_count
        products = 2 * self.BR * self.BC * deep / rate
        weights = self.BR * self.BC * k.element / (128 * target.clock_hz)
        together = min(4, max(1, target.shared_per_sm // (self.smem_bytes(problem) + 1024)), 1024 // (self.BR * 2))
        steps = self.rounds(problem, target.sm_count) * self.steps(problem, k.bounded)
        return float(k.start + steps * (products + weights + k.step / together))


def _member(name: str, x: Matrix) -> str:
    axis = len(x.batch) - 1
    return f" + steps(tile.batch[{axis}], {name}_b{axis})" if x.batch[axis] else ""
