"""What both schedules share: the symbols of a launch, its blocks, and the order of their tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from kgen.dsl.choice import choice, pruning, rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size, ceil_div
from kgen.dsl.target import Target
from kgen.ops.attention.problem import NARROW
from kgen.ops.attention.schedule import IN_L2, of_all_heads
from kgen.ops.attention_gradient.problem import Sides, depth, describe, found, matches
from kgen.ops.attention_gradient.text import beside_symbols, mask_bounds

Config = TypeVar("Config", bound="GradientSchedule")


class GradientSchedule(Schedule):
    """Base of the schedules: a block has BR rows that stay, and goes over BC columns that pass at a time.

    Of `slices` blocks with the same rows each has a share of the results' columns, and makes all weights.
    """

    BR: int
    BC: int
    stages: int
    slices: int

    order = choice("in_order", "last_first")  # of the tiles of rows
    group = choice(1, 4, 8, 16, 32)  # heads side by side, whose columns L2 keeps

    @rule
    def sizes_in_32_bits(self, problem: Problem, target: Target) -> bool:
        """M, N and the number of blocks are 32-bit integers, with room for what a block counts beyond the end"""
        s = describe(problem)
        return max(s.M, s.N, *s.batch, 1) < 2**30 and math.ceil(s.M / self.BR) * s.heads < 2**31

    @rule
    def widest_heads(self, problem: Problem, target: Target) -> bool:
        """heads have at most 256 columns"""
        s = describe(problem)
        return max(map(depth, (*s.rows, *s.columns))) <= NARROW

    @pruning
    def longest_first(self, problem: Problem, target: Target) -> bool:
        """the last tiles of rows come first where a mask leaves them the most columns; only then are heads side by side"""
        return self.order == _order(problem) and (self.order == "last_first" or self.group == 1)

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph)

    @classmethod
    def ordered(cls, problem: Problem) -> dict[str, str | int]:
        """The order of tiles and the group that defaults take."""
        if _order(problem) == "in_order":
            return {"order": "in_order", "group": 1}
        s = describe(problem)
        size = s.N * sum(map(depth, s.columns)) * found(problem.graph).dtype.bytes
        return {"order": "last_first", "group": max([g for g in cls.group.values if g * size <= IN_L2], default=1)}

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """M, N, batches0.., size_X of every dimension X; r0_depth, r0_row, r0_column, r0_b0.. of rows, as of columns c0.. and
        results o0..; of operands beside x_s0..
        """
        s = describe(problem)
        symbols = {"M": s.M, "N": s.N} | {f"batches{d}": n for d, n in enumerate(s.batch)}
        for name, x in s.matrices.items():
            symbols |= {f"{name}_depth": depth(x), f"{name}_row": x.row, f"{name}_column": x.column}
            symbols |= {f"{name}_b{d}": stride for d, stride in enumerate(x.batch)}
        whole = problem.origin or problem
        symbols |= {f"size_{name}": size for name, size in whole.sizes.items()}
        return symbols | beside_symbols(problem)

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("N"), self.BC * self.stages),)

    @property
    def row_tiles(self) -> str:
        """The policy by which blocks take tiles of rows."""
        return "RowTilesInOrder" if self.order == "in_order" else f"LongestRowTilesFirst<{self.group}>"

    def grid(self, s: Sides) -> tuple[Size, Size, Size]:
        """The launch's blocks over the symbols: tiles of rows of all heads, and slices of results."""
        return (of_all_heads(ceil_div(Dim("M"), self.BR), s.own), self.slices, 1)

    def steps(self, problem: Problem, bounded: float) -> float:
        """Steps of a tile of rows, its blocks of columns: a bound on one side leaves half of them and `bounded` more."""
        b = mask_bounds(problem)
        sides = bool(b.lower) + bool(b.upper)
        s = describe(problem)
        blocks = max(1.0, math.ceil(s.N / self.BC) * 0.5**sides + sides * bounded)
        return blocks * (s.batch[-1] if s.summed else 1)

    def rounds(self, problem: Problem, at_once: float) -> float:
        """How many tiles of rows a multiprocessor has one after another, of as many at once, handed out by the hardware."""
        s, b = describe(problem), mask_bounds(problem)
        waves = math.ceil(s.M / self.BR) * s.heads * self.slices / at_once
        return math.ceil(waves) if waves < 4 and not b.bounded else max(1.0, waves + 0.3)


def _order(problem: Problem) -> str:
    """The order in which the longest tiles come first: those whose columns are bounded from above alone grow towards the last."""
    b = mask_bounds(problem)
    return "last_first" if b.upper and not b.lower else "in_order"


def first_valid(configs: Sequence[Config], problem: NormalProblem, target: Target) -> Config:
    """The first of them that breaks no rule. ConfigError where all do."""
    found = next((config for config in configs if not config.rejections(problem, target)), None)
    if found is None:
        broken = "; ".join(r.reason for r in configs[-1].broken(problem, target))
        name = configs[-1].template.split(".")[0]
        raise ConfigError(f"no {name} config is valid for {problem} on {target}; expected: {broken}")
    return found


def widths(problem: Problem, unit: int, slices: int) -> tuple[int, ...]:
    """The columns of each result that a block has, of whole units."""
    return tuple(max(1, math.ceil(depth(x) / (unit * slices))) * unit for x in describe(problem).outputs)
