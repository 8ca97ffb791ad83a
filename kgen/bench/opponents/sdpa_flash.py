"""torch's scaled_dot_product_attention by FlashAttention-2."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn.attention import SDPBackend

from kgen.bench.attention import sdpa, sdpa_why_not
from kgen.bench.opponents import Launch, Operands
from kgen.dsl.problem import Problem


def why_not(problem: Problem) -> str | None:
    return sdpa_why_not(problem)


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    return sdpa(SDPBackend.FLASH_ATTENTION, problem, sets, scalars)
