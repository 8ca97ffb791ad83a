"""What a type checker makes of kgen's public names; run by mypy alone."""

from typing import assert_type

import kgen
from kgen import (
    KernelOperator,
    MmaGemm,
    Number,
    Schedule,
    SearchSpace,
    Tensor,
    ceil_div,
    choice,
    dims,
    dtype_var,
    f16,
    f32,
    i64,
    rule,
)  # fmt: skip
from kgen.dsl.expr import Expr
from kgen.dsl.family import normalised


class Mine(MmaGemm):
    BM = choice(96, 192)

    @rule
    def square(self, problem: kgen.Problem, target: object) -> bool:
        """tiles are square here"""
        return bool(self.BM == self.BN)


assert_type(MmaGemm.where(BM=(64, 128), stages=3), SearchSpace)
assert_type(kgen.hgemm.using(BM=128, stages=(3, 4)), KernelOperator)
assert_type(kgen.hgemm.using(Mine), KernelOperator)
assert_type(kgen.gelu, KernelOperator)


def product(x: object, w: object) -> object:
    return x


assert_type(kgen.operator(schedules=[Mine, kgen.WgmmaGemm])(product), KernelOperator)
assert_type(kgen.operator(product), KernelOperator)


class Tile(Schedule):
    rows = choice(1, 2)
    order = choice("row", "column")


def fields(tile: Tile) -> None:
    assert_type(tile.rows, int)
    assert_type(tile.order, str)
    assert_type(tile.replace(rows=2), Tile)


# A schedule takes problems as its family sees them.
def the_source(tile: Tile, problem: kgen.Problem) -> None:
    tile.source(problem)  # type: ignore[arg-type]
    tile.source(normalised(problem))


# In an operator's body tensors are expressions and numbers are numbers, by kgen.mypy_plugin.
M, N = dims("M N")
T = dtype_var("T", f16, f32)


@kgen.operator
def scaled(
    x: Tensor[T, ..., M, ceil_div(N, 2)], p: Number[float, 0, 1] = 0.5, n: i64 = 0
) -> tuple[Tensor[T, ..., M], Tensor[f32, N]]:
    assert_type(x, Expr)
    assert_type(p, float)
    assert_type(n, int)
    return x * p, x + n


assert_type(scaled, KernelOperator)
