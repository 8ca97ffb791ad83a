"""torch's products of groups: all in one call (_grouped_mm), or one mm a group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Problem
from kgen.dsl.product import factors
from kgen.dsl.types import bf16, f16


def why_not(node: Expr) -> str | None:
    """Why torch does not make a grouped product in one call; None where it does."""
    if not hasattr(torch, "_grouped_mm"):
        return "this torch has no product of groups in one call (_grouped_mm)"
    return None if node.args[0].dtype is bf16 else "torch multiplies groups of bf16 alone in one call (_grouped_mm)"


def call(a: Any, b: Any, offsets: Any) -> Any:
    """All groups in one call, which takes where each group ends. Rows behind the last group are left as they are."""
    return torch._grouped_mm(a, b, offs=offsets[1:])


def product(graph: Graph) -> Expr | None:
    """The grouped product of inputs that a graph is, with nothing around it."""
    node = graph.results[0]
    alone = len(graph.results) == 1 and node.op == "grouped_matmul" and node.args[2].op == "input"
    return node if alone and factors(node) else None


def why_not_one_by_one(problem: Problem, node: Expr) -> str | None:
    """Why torch.mm does not make these products; None where it does."""
    dtype, out = node.args[0].dtype, problem.outputs[0].dtype
    if dtype is not out:
        return f"torch.mm of {dtype} gives no {out}"
    return "torch.mm a group sums in f32 alone here" if node.attr is f16 else None


def one_by_one(problem: Problem, node: Expr, operands: Mapping[str, torch.Tensor]) -> Callable[[], object]:
    """One mm a group into the output. Where groups begin is read beforehand, which is not part of the call."""
    sides = factors(node)
    assert sides
    a, b = (operands[f.name].mT if f.transposed else operands[f.name] for f in sides)
    out = operands[problem.outputs[0].name]
    ends = operands[node.args[2].attr].tolist()
    groups = [(g, begin, end) for g, (begin, end) in enumerate(itertools.pairwise(ends)) if end > begin]
    calls: list[Callable[[], object]] = [
        partial(torch.mm, a[begin:end], b[g], out=out[begin:end]) for g, begin, end in groups
    ]
    if ends[-1] < len(out):
        calls.append(out[ends[-1] :].zero_)

    def launch() -> None:
        for one in calls:
            one()

    return launch
