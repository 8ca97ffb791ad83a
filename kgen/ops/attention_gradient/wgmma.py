"""Gradients of attention on Hopper's tensor cores (sm_90a): the schedule of templates/attention_gradient_wgmma.cu.j2."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Launch, Limit, Source
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim
from kgen.dsl.target import Target, sm
from kgen.dsl.vector import Vector, maximum, minimum, where
from kgen.ops.attention.tensor_maps import by_tma, head_axes, head_coordinates, padded, tensor_map
from kgen.ops.attention_gradient.problem import depth, describe, found
from kgen.ops.attention_gradient.schedule import GradientSchedule, widths
from kgen.ops.attention_gradient.text import GradientText, gradient_text, parameters
from kgen.tuning_db.machines import constants

#: Registers a thread that inner products, weights and sums may take: what ptxas was seen to have without spills, of tiles of
#: up to 128 columns and of wider ones.
_SERIAL, _OVERLAPPED, _OVERLAPPED_WIDE = 208, 192, 160
#: Of two consumer warpgroups with numbers of passing columns, whose producer has registers too.
_PASSING = 168


@dataclass(frozen=True)
class WgmmaConstants(Constants, model="attention_gradient_wgmma"):
    """Times in seconds."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    element: float  # instructions that make the weights of an element
    pipelined_shown: float  # of the shorter of products and weights, the part that the longer does not hide
    serial_shown: float
    step: float  # of a warpgroup
    tile: float  # of rows
    bounded: float  # steps that a mask which bounds a side adds to half of the columns'


@dataclass(frozen=True)
class Context:
    """What the template sees; texts are C++. `depths` are those of tiles of rows and of columns, `widths` those of results."""

    t: GradientText
    ctype: str
    row_depths: tuple[int, ...]
    column_depths: tuple[int, ...]
    widths: tuple[int, ...]
    #: Of each inner product the tiles of rows and of columns, and of each result the tile of columns.
    inners: tuple[tuple[int, int], ...]
    outers: tuple[int, ...]
    registers: str
    launch: str
    row_at: tuple[str, ...]
    column_at: tuple[str, ...]
    output_axes: tuple[str, ...]
    wgmma_inner: str
    wgmma_outer: tuple[str, ...]


class AttentionGradientWgmma(GradientSchedule):
    """Hopper: TMA copies, wgmma multiplies; weights stay in registers, of which they are the A of the outer products."""

    template = "attention_gradient_wgmma.cu.j2"
    target = sm(90, "a")
    techniques: ClassVar[Techniques] = {
        "one consumer warpgroup": {"BR": 64},
        "two consumer warpgroups": {"BR": 128, "overlap": False},
        "pipelining within a warpgroup": {"BR": 128, "overlap": True},
    }

    BR = choice(128, 64)  # rows of a block, 64 a consumer warpgroup
    BC = choice(64, 32, 48, 80, 96, allows=range(16, 257, 16))  # columns of a step
    stages = choice(2, 1, 3, 4)
    slices = choice(1, 2, 4)  # blocks that share the columns of the results
    overlap = choice(True, False)  # a warpgroup computes the next inner products while it adds up outer ones
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends

    @rule
    @sized
    def no_empty_axis(self, problem: Problem, target: Target) -> bool:
        """a tensor map has no empty axis"""
        s = describe(problem)
        return min(s.M, s.N, *map(depth, s.matrices.values()), *s.batch, 1) >= 1

    @rule
    def tensor_maps(self, problem: Problem, target: Target) -> bool:
        """all matrices have contiguous rows that are multiples of 16 bytes, and at most three axes count heads"""
        s = describe(problem)
        return len(s.batch) <= 3 and all(map(by_tma, s.matrices.values()))

    @rule
    def one_dtype(self, problem: Problem, target: Target) -> bool:
        """results are stored in the dtype of what is multiplied"""
        return {x.operand.dtype for x in describe(problem).outputs} == {found(problem.graph).dtype}

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """inner products, the weights before them and sums fit in the registers of a consumer warpgroup"""
        made = found(problem.graph)
        weights = len(made.outers) * self.BC // 4 if self.overlap else 0
        scores = max(len(made.inners), len(made.outers)) * self.BC // 2
        wide = max(self.row_depths(problem)) > 128
        most = (_OVERLAPPED_WIDE if wide else _OVERLAPPED) if self.overlap else _SERIAL
        most = min(most, _PASSING) if gradient_text(problem).passing and self.consumers == 2 else most
        return scores + weights + sum(widths(problem, 64, self.slices)) // 2 <= most

    @rule
    def instruction(self, problem: Problem, target: Target) -> Vector:
        """a block has at most 256 columns of a result, those of an instruction"""
        shares = widths(problem, 64, self.slices)
        return functools.reduce(operator.and_, (width <= 256 for width in shares))

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """tiles of rows and `stages` of columns must fit in the shared memory of a block"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @rule
    def stages_of_overlap(self, problem: Problem, target: Target) -> bool:
        """the columns of one step are still read while the next one's are"""
        return self.stages > 1 or not self.overlap

    @rule
    def slices_of_columns(self, problem: Problem, target: Target) -> bool:
        """every slice has columns of a result"""
        shares = zip(widths(problem, 64, self.slices), describe(problem).outputs)
        return any((self.slices - 1) * width < depth(x) for width, x in shares)

    @pruning
    def overlapping_start(self, problem: Problem, target: Target) -> bool:
        """the launch overlaps the end of the one before"""
        return self.pdl

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionGradientWgmma:
        """The model's best of the configs that a search considers."""
        from kgen.tuner.listed import best_of  # here, as it loads numpy

        ordered = cls.ordered(problem, target)
        return best_of(cls, tuple(ordered.values()), lambda: cls.listed(ordered), problem, target)

    @classmethod
    def listed(cls, ordered: Mapping[str, str | int]) -> list[AttentionGradientWgmma]:
        """The configs that a default is taken from."""
        fields = itertools.product(cls.BR.values, cls.BC.values, cls.stages.values, cls.slices.values, (True, False))
        return [
            cls(BR=BR, BC=BC, stages=stages, slices=slices, overlap=overlap, pdl=True, **ordered)
            for BR, BC, stages, slices, overlap in fields
        ]

    @property
    def consumers(self) -> int:
        return self.BR // 64

    def column_depths(self, problem: Problem) -> tuple[int, ...]:
        """The columns of tiles of what passes: whole slices of the results that are made of it."""
        s, made = describe(problem), found(problem.graph)
        depths = [padded(depth(x)) for x in s.columns]
        for outer, width in zip(made.outers, widths(problem, 64, self.slices)):
            place = made.columns.index(outer.column)
            depths[place] = max(depths[place], width * self.slices)
        return tuple(depths)

    def row_depths(self, problem: Problem) -> tuple[int, ...]:
        """The columns of tiles of what stays."""
        return tuple(padded(depth(x)) for x in describe(problem).rows)

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: rows, whose place results take, columns and their numbers, barriers."""
        rows, columns = sum(self.row_depths(problem)), sum(self.column_depths(problem))
        numbers = self.stages * self.BC * gradient_text(problem).passing_bytes
        return 2 * (self.BR * rows + self.stages * self.BC * columns) + 16 + self.stages * 16 + numbers

    def source(self, problem: Problem) -> Source:
        s, made = describe(problem), found(problem.graph)
        shares, text = widths(problem, 64, self.slices), gradient_text(problem)
        row_depths, column_depths = self.row_depths(problem), self.column_depths(problem)
        maps = (
            *(tensor_map(f"r{i}", x, Dim("M"), Dim(f"r{i}_depth"), self.BR, "in") for i, x in enumerate(s.rows)),
            *(tensor_map(f"c{i}", x, Dim("N"), Dim(f"c{i}_depth"), self.BC, "in") for i, x in enumerate(s.columns)),
            *(tensor_map(f"o{i}", x, Dim("M"), Dim(f"o{i}_depth"), 64, "out") for i, x in enumerate(s.outputs)),
        )
        limits = [Limit(Dim(f"r{i}_depth"), most) for i, most in enumerate(row_depths)]
        limits += [Limit(Dim(f"o{i}_depth"), width * self.slices) for i, width in enumerate(shares)]
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(*maps, *parameters(problem)),
            launch=Launch(self.grid(s), ((self.consumers + 1) * 128, 1, 1), self.smem_bytes(problem), pdl=self.pdl),
            arch=sm(90, "a"),
            limits=tuple(limits),
            context=Context(
                t=text,
                ctype=made.dtype.ctype,
                row_depths=row_depths,
                column_depths=column_depths,
                widths=shares,
                inners=tuple((made.rows.index(i.row), made.columns.index(i.column)) for i in made.inners),
                outers=tuple(made.columns.index(o.column) for o in made.outers),
                registers=_registers(text.passing) if self.consumers == 2 else "EvenRegisters",
                launch="ProgrammaticDependentLaunch" if self.pdl else "StreamOrder",
                row_at=tuple(map(head_coordinates, s.rows)),
                column_at=tuple(map(head_coordinates, s.columns)),
                output_axes=tuple("".join(f", {d}" for d in head_axes(x)) for x in s.outputs),
                wgmma_inner=f"ptx::wgmma_m64n{self.BC}k16_{made.dtype.name}_f32<false, false>",
                wgmma_outer=tuple(f"ptx::wgmma_m64n{w}k16_{made.dtype.name}_f32_rs<true>" for w in shares),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Seconds: of a step the larger of its products and its weights, and a part of the smaller; of all blocks' steps."""
        k = constants(WgmmaConstants, target)
        made = found(problem.graph)
        rows = self.row_depths(problem)
        deep = sum(rows[made.rows.index(inner.row)] for inner in made.inners) + sum(widths(problem, 64, self.slices))
        rate = k.products * target.tensor_flops["f16_f32acc"] / target.sm_count
        products = 2 * self.BR * self.BC * deep / rate
        weights = self.BR * self.BC * k.element / (128 * target.clock_hz)
        shown = where(self.overlap | (self.consumers > 1), k.pipelined_shown, k.serial_shown)
        step = maximum(products, weights) + shown * minimum(products, weights)
        step = step + k.step / (self.consumers * self.stages)
        tile = self.steps(problem, k.bounded) * step + k.tile
        return k.start + self.rounds(problem, target.sm_count) * tile


def _registers(passing: bool) -> str:
    """How two consumer warpgroups share registers with the producer, which makes numbers of columns where they pass."""
    return "SharedRegisters<40, 232>" if passing else "SharedRegisters<24, 240>"
