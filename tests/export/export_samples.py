"""Problems and configs that the export tests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kgen.ops
from kgen.dsl.expr import cast, where
from kgen.dsl.family import family_of
from kgen.dsl.functions import amax, exp, gelu, mean, sum
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.problem import Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import dims
from kgen.dsl.types import DType, bf16, dtype_var, f16, f32
from kgen.gpu.target import Target, resolve

M, N, K = dims("M N K")
T = dtype_var("T", f16, bf16, f32)
TARGET = resolve("sm_90a")


@Operator
def bias_gelu(x: Tensor[T, ..., N], b: Tensor[T, N], alpha: float = 1.0) -> Tensor[T, ..., N]:
    """Two inputs that broadcast, and a scalar."""
    return gelu(x * alpha + b)


@Operator
def split_sign(x: Tensor[f16, ...]) -> tuple[Tensor[f16, ...], Tensor[f32, ...]]:
    """Two outputs of different dtypes."""
    return where(x > 0, x, 0.0), where(x > 0, 0.0, cast(x * 3, f16))


@Operator
def scaled_product(a: Tensor[f16, ..., M, K], b: Tensor[f16, N, K], bias: Tensor[f16, N]) -> Tensor[f16, ..., M, N]:
    """A contraction with a transposed operand and an epilogue."""
    return gelu(a @ b.T + bias)


@Operator
def softmax_mean(x: Tensor[f32, M, N]) -> Tensor[f32, M, N]:
    """Row reductions: no family serves it yet, the reference does."""
    shifted = exp(x - amax(x))
    return shifted / sum(shifted) + mean(x)


def problem(operator: Operator | str, dtypes: Mapping[str, DType], sizes: Any, layouts: Any = None) -> Problem:
    found = kgen.ops.operator(operator) if isinstance(operator, str) else operator
    return Problem.dense(found.graph(dtypes), sizes, layouts)


def elementwise(of: Problem, **changes: Any) -> Schedule:
    """The default config, with some fields changed."""
    family = family_of(of.graph)
    config = family.schedules[0].default(family.normalise(of), TARGET)
    return config.replace(**changes) if changes else config


def default(of: Problem, schedule: str, target: Target = TARGET, **changes: Any) -> Schedule:
    """The default config of a schedule by name, with some fields changed."""
    family = family_of(of.graph)
    kind = next(s for s in family.schedules if s.__name__ == schedule)
    config = kind.default(family.normalise(of), target)
    return config.replace(**changes) if changes else config
