"""All gradients of attention in one pass on Hopper: the schedule of templates/attention_gradient_one_pass.cu.j2.

A block has a tile of keys and values and goes over blocks of queries. The gradients of keys and values are summed up in
registers, that of queries in memory, by additions of vectors in any order: five products for the seven of a pass over each side.
Sums are f32 in a workspace that is 0 before a launch and after it: the last tile of a head to end makes the head's result.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kgen.codegen.render import render
from kgen.codegen.source import Integer, Launch, Limit, Pointer, Source
from kgen.dsl.choice import choice, pruning, rule, sized
from kgen.dsl.machine import Constants
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Techniques
from kgen.dsl.size import Dim, ceil_div
from kgen.dsl.target import Target, sm
from kgen.dsl.types import f32, i32
from kgen.dsl.vector import Vector, maximum, minimum, where
from kgen.ops.attention.schedule import of_all_heads
from kgen.ops.attention.tensor_maps import by_tma, head_axes, head_coordinates, padded, tensor_map
from kgen.ops.attention_gradient.problem import depth, describe, found, matches
from kgen.ops.attention_gradient.schedule import GradientSchedule, widths
from kgen.ops.attention_gradient.text import GradientText, gradient_text, parameters
from kgen.tuning_db.machines import constants

#: Consumer warpgroups.
_CONSUMERS = 2
#: Registers a thread that sums, inner products and their weights may take; and these with products across, where it has both.
_REGISTERS, _SHARED_REGISTERS = 192, 224


@dataclass(frozen=True)
class OnePassConstants(Constants, model="attention_gradient_one_pass"):
    """Times in seconds."""

    start: float
    products: float  # the share of the tensor cores' rate that is reached
    element: float  # instructions that make the weights of an element
    pingpong_shown: float  # of the shorter of products and weights, the part that the longer does not hide
    cooperative_shown: float
    step: float
    shared: (
        float  # what a step takes longer where warpgroups share rows: as many sums go to memory for half of the rows
    )
    tile: float  # of rows
    bounded: float  # steps that a mask which bounds a side adds to half of the columns'


@dataclass(frozen=True)
class Context:
    """What the template sees, as in wgmma.py; `across` is the tile of rows that products across are made with, `weight_across`
    the result whose weights these have; of `given` results weights go to shared memory."""

    t: GradientText
    ctype: str
    row_depths: tuple[int, ...]
    column_depths: tuple[int, ...]
    widths: tuple[int, ...]
    inners: tuple[tuple[int, int], ...]
    outers: tuple[int, ...]
    across: int
    weight_across: int
    given: int
    registers: str
    launch: str
    order: str
    row_at: tuple[str, ...]
    column_at: tuple[str, ...]
    output_axes: tuple[str, ...]
    across_head: str
    members: str
    summed: bool
    wgmma_inner: str
    wgmma_across: str
    wgmma_outer: tuple[str, ...]


class AttentionGradientOnePass(GradientSchedule):
    """Hopper: as AttentionGradientWgmma of keys and values, with the queries' gradient added up in memory."""

    template = "attention_gradient_one_pass.cu.j2"
    target = sm(90, "a")
    techniques: ClassVar[Techniques] = {
        "64 queries a step": {"BC": 64},
        "128 queries a step": {"BC": 128},
        "three stages": {"stages": 3},
        "ping-pong warpgroups": {"pingpong": True},
    }

    # Rows of a block, keys: 64 a consumer warpgroup; or 64 of all, which share their weights and the results' columns.
    BR = choice(128, 64)
    BC = choice(64, 128)  # columns of a step, queries
    stages = choice(2, 3)
    pingpong = choice(True, False)  # one warpgroup makes weights while the other multiplies
    pdl = choice(True, False)  # starts while the kernel before it in the stream ends
    slices = 1

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
        return {x.dtype for x in problem.outputs} == {found(problem.graph).dtype}

    @rule
    def two_sides(self, problem: Problem, target: Target) -> bool:
        """keys and values are two matrices: results leave through the place of the one that other warpgroups do not read"""
        return len(describe(problem).rows) == 2

    @rule
    def whole_shares(self, problem: Problem, target: Target) -> bool:
        """a consumer warpgroup has 64 x 64 of a step's products across: of 64 columns half of 128 deep, of 128 all of 64; of
        rows that are shared 64 x 128: half of 256 deep"""
        if self.shared:
            return self.BC == 64 and self.across_depth(problem) == 256
        return self.BC * self.across_depth(problem) == 64 * 128

    @rule
    def accumulators(self, problem: Problem, target: Target) -> bool:
        """inner products and sums fit in the registers of a consumer warpgroup"""
        made = found(problem.graph)
        scores = max(len(made.inners), len(made.outers)) * self.BC // 2
        if self.shared:
            across = self.across_depth(problem) // _CONSUMERS // 2
            return scores // _CONSUMERS + sum(self.shares(problem)) // 2 + across <= _SHARED_REGISTERS
        return scores + sum(self.shares(problem)) // 2 <= _REGISTERS

    @rule
    def elements_in_registers(self, problem: Problem, target: Target) -> bool:
        """elements read no memory, such as a bias or a mask that is data: ptxas spilled what that takes"""
        return not gradient_text(problem).reads

    @rule
    def fits_smem(self, problem: Problem, target: Target) -> bool:
        """tiles of rows, `stages` of columns and two of weights must fit in the shared memory of a block"""
        return self.smem_bytes(problem) <= target.smem_per_block

    @pruning
    def takes_turns(self, problem: Problem, target: Target) -> bool:
        """warpgroups that share rows need each other's weights in every step, and two stages fill the shared memory"""
        return not self.shared or not (self.pingpong or self.stages > 2)

    @pruning
    def overlapping_start(self, problem: Problem, target: Target) -> bool:
        """the launch overlaps the end of the one before"""
        return self.pdl

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph) and found(problem.graph).across is not None

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> AttentionGradientOnePass:
        """The model's best of the configs that a search considers."""
        from kgen.tuner.listed import best_of  # here, as it loads numpy

        ordered = cls.ordered(problem, target)
        return best_of(cls, tuple(ordered.values()), lambda: cls.listed(ordered), problem, target)

    @classmethod
    def listed(cls, ordered: Mapping[str, str | int]) -> list[AttentionGradientOnePass]:
        """The configs that a default is taken from."""
        fields = itertools.product(cls.BC.values, cls.stages.values, cls.pingpong.values)
        found = [
            cls(BR=128, BC=BC, stages=stages, pingpong=pingpong, pdl=True, **ordered) for BC, stages, pingpong in fields
        ]
        return [*found, cls(BR=64, BC=64, stages=2, pingpong=False, pdl=True, **ordered)]

    @property
    def shared(self) -> bool:
        """Whether the warpgroups share the rows of a tile."""
        return self.BR == 64

    @property
    def parts(self) -> Vector:
        """Of a step's columns, and of the results', a consumer warpgroup has one of so many parts."""
        return where(self.BR == 64, _CONSUMERS, 1)

    def shares(self, problem: Problem) -> tuple[Vector, ...]:
        """The columns of each result that a consumer warpgroup has."""
        return widths(problem, 64, self.parts)

    def across_depth(self, problem: Problem) -> int:
        """How deep products across are: the columns of the rows that they are made with."""
        made = found(problem.graph)
        assert made.across is not None
        return self.row_depths(problem)[made.rows.index(made.across.column)]

    def given(self, problem: Problem) -> int:
        """Of how many results weights go to shared memory: of that with products across, or of all."""
        return len(found(problem.graph).outers) if self.shared else 1

    def column_depths(self, problem: Problem) -> tuple[int, ...]:
        """The columns of tiles of what passes."""
        s, made = describe(problem), found(problem.graph)
        depths = [padded(depth(x)) for x in s.columns]
        for outer, width in zip(made.outers, self.shares(problem)):
            place = made.columns.index(outer.column)
            depths[place] = max(depths[place], int(width * self.parts))
        return tuple(depths)

    def row_depths(self, problem: Problem) -> tuple[int, ...]:
        """The columns of tiles of what stays."""
        return tuple(padded(depth(x)) for x in describe(problem).rows)

    def smem_bytes(self, problem: Problem) -> int:
        """Shared memory of a block: rows, whose place results take, columns and their numbers, weights, barriers."""
        rows, columns = sum(self.row_depths(problem)), sum(self.column_depths(problem))
        numbers = self.stages * self.BC * gradient_text(problem).passing_bytes
        barriers = (1 + 2 * self.stages + 2 + 1) * 16
        given = 2 * self.given(problem) * self.BR * self.BC
        tiles = 2 * (self.BR * rows + self.stages * self.BC * columns + given)
        return tiles + barriers + numbers

    def source(self, problem: Problem) -> Source:
        s, made = describe(problem), found(problem.graph)
        assert s.across is not None
        assert made.across is not None
        shares, text = self.shares(problem), gradient_text(problem)
        if self.shared:
            text = text.of_columns_from("consumer * PART")
        row_depths, column_depths = self.row_depths(problem), self.column_depths(problem)
        across, outer = made.rows.index(made.across.column), "<false, true>" if self.shared else "_rs<true>"
        maps = (
            *(tensor_map(f"r{i}", x, Dim("M"), Dim(f"r{i}_depth"), self.BR, "in") for i, x in enumerate(s.rows)),
            *(tensor_map(f"c{i}", x, Dim("N"), Dim(f"c{i}_depth"), self.BC, "in") for i, x in enumerate(s.columns)),
            *(tensor_map(f"o{i}", x, Dim("M"), Dim(f"o{i}_depth"), 64, "out") for i, x in enumerate(s.outputs)),
        )
        places = of_all_heads(ceil_div(Dim("N"), self.BC), s.batch)
        strided = [d for d, stride in enumerate(s.across.batch) if stride]
        limits = [Limit(Dim(f"r{i}_depth"), most) for i, most in enumerate(row_depths)]
        limits += [Limit(Dim(f"o{i}_depth"), int(width * self.parts)) for i, width in enumerate(shares)]
        limits += [Limit(places, 2**31 - 1)]
        return render(
            self,
            problem,
            entry=problem.graph.name,
            params=(
                *maps,
                Pointer("across", made.dtype, s.across.operand.name, "out"),
                Pointer("sums_of_columns", f32, "", "counters", places * (self.BC * row_depths[across])),
                Pointer("counters", i32, "", "counters", 2 * of_all_heads(1, s.own) + 2),
                *parameters(problem),
                Integer("across_depth", Dim("a0_depth")),
                Integer("across_row", Dim("a0_row"), 64),
                *(Integer(f"across_b{d}", Dim(f"a0_b{d}"), 64) for d in strided),
            ),
            launch=Launch(self.grid(s), ((_CONSUMERS + 1) * 128, 1, 1), self.smem_bytes(problem), pdl=self.pdl),
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
                across=across,
                weight_across=next(i for i, o in enumerate(made.outers) if o.weight is made.across.weight),
                given=self.given(problem),
                registers="SharedRegisters<40, 232>",
                launch="ProgrammaticDependentLaunch" if self.pdl else "StreamOrder",
                order="PingPong" if self.pingpong else "Cooperative",
                row_at=tuple(map(head_coordinates, s.rows)),
                column_at=tuple(map(head_coordinates, s.columns)),
                output_axes=tuple("".join(f", {d}" for d in head_axes(x)) for x in s.outputs),
                across_head="".join(f"steps(tile.batch[{d}], across_b{d}) + " for d in strided),
                members=f"batches{len(s.batch) - 1}" if s.summed else "1",
                summed=s.summed,
                wgmma_inner=f"ptx::wgmma_m64n{self.BC // self.parts}k16_{made.dtype.name}_f32<false, false>",
                wgmma_across=f"ptx::wgmma_m64n{128 if self.shared else 64}k16_{made.dtype.name}_f32<true, true>",
                wgmma_outer=tuple(f"ptx::wgmma_m64n{w}k16_{made.dtype.name}_f32{outer}" for w in shares),
            ),
        )

    def estimate(self, problem: Problem, target: Target) -> Vector:
        """Seconds: of a step the larger of its products and its weights, and a part of the smaller; of all blocks' steps."""
        k = constants(OnePassConstants, target)
        made = found(problem.graph)
        assert made.across is not None
        rows = self.row_depths(problem)
        deep = sum(rows[made.rows.index(inner.row)] for inner in made.inners)
        deep = deep + sum(self.shares(problem)) * self.parts
        deep += rows[made.rows.index(made.across.column)]
        rate = k.products * target.tensor_flops["f16_f32acc"] / target.sm_count
        products = 2 * self.BR * self.BC * deep / rate
        weights = self.BR * self.BC * k.element / (128 * target.clock_hz)
        shown = where(self.pingpong, k.pingpong_shown, k.cooperative_shown)
        step = maximum(products, weights) + shown * minimum(products, weights) + k.step
        step = step * where(self.BR == 64, k.shared, 1.0)
        tile = self.steps(problem, k.bounded) * step + k.tile
        return k.start + self.rounds(problem, target.sm_count) * tile
