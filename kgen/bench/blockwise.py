"""torch's product of fp8 with scales of blocks (_scaled_mm, of cuBLASLt): what it takes, and the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem
from kgen.dsl.product import Factor, blocked, factors
from kgen.dsl.types import e4m3

#: The blocks that torch knows: of a row of a or a column of b, and of a square of b; each 128 deep.
_BLOCKS = (1, 128)


def product(graph: Graph) -> tuple[Factor, Factor] | None:
    """The factors of a graph that is one product of fp8 with scales of blocks and nothing else."""
    node = graph.results[0]
    return factors(node) if len(graph.results) == 1 and node.op == "matmul" and blocked(node) else None


def why_not(problem: Problem, a: Factor, b: Factor) -> str | None:
    """Why torch does not multiply these; None where it does."""
    assert a.scale
    assert b.scale
    left, right = (problem.operand(f.name) for f in (a, b))
    if a.dtype is not e4m3 or len(left.shape) != 2 or len(right.shape) != 2:
        return "torch has scales of blocks for two e4m3 matrices alone (_scaled_mm)"
    if (a.scale.rows, a.scale.columns, b.scale.rows) != (1, 128, 128) or b.scale.columns not in _BLOCKS:
        return "torch has scales of 1 x 128 of a, and of 128 x 1 or 128 x 128 of b, alone (_scaled_mm)"
    along_k = left.strides[-2 if a.transposed else -1] == 1 and right.strides[-1 if b.transposed else -2] == 1
    k, n = left.shape[-2 if a.transposed else -1], right.shape[-2 if b.transposed else -1]
    if not along_k or k % 16 or n % 16:
        return "torch multiplies fp8 whose rows run along K, with K and N multiples of 16, alone (_scaled_mm)"
    return None


def call(problem: Problem, a: Factor, b: Factor, operands: Mapping[str, torch.Tensor]) -> Callable[[], object]:
    """The product into the output. Scales are laid out as torch asks for, which is not part of the call."""
    assert b.scale
    out = operands[problem.outputs[0].name]
    left, right = _transposed(operands[a.name], a), _transposed(operands[b.name], b)
    scale_a, scale_b = _scales(operands, a), _scales(operands, b)
    rows = scale_a.t().contiguous().t()
    if b.scale.columns == 1:
        columns = scale_b.contiguous()
    else:  # rows of N / 128, each of a multiple of four scales
        padded = scale_b.new_zeros(scale_b.shape[1], -(-scale_b.shape[0] // 4) * 4)
        padded[:, : scale_b.shape[0]] = scale_b.t()
        columns = padded[:, : scale_b.shape[0]].t()
    return partial(torch._scaled_mm, left, right, rows, columns, out_dtype=out.dtype, out=out)


def _transposed(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    return x.mT if factor.transposed else x


def _scales(operands: Mapping[str, torch.Tensor], factor: Factor) -> torch.Tensor:
    assert factor.scale
    return _transposed(operands[factor.scale.name], factor)
