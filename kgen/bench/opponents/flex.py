"""torch's FlexAttention, compiled: any score, with a block mask."""

from __future__ import annotations

from collections.abc import Mapping

from kgen.bench.attention import flex, flex_why_not
from kgen.bench.opponents import Launch, Operands
from kgen.dsl.problem import Problem


def why_not(problem: Problem) -> str | None:
    return flex_why_not(problem)


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    return flex(problem, sets, scalars)
