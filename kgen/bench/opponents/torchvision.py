"""torchvision's operators: nms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torchvision.ops

from kgen.bench.opponents import Launch, Operands
from kgen.dsl.external import is_external
from kgen.dsl.problem import Problem


def why_not(problem: Problem) -> str | None:
    return None if is_external(problem.graph.results, "nms") else "torchvision has no such operator"


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    boxes, scores, threshold = problem.graph.results[0].args
    limit = scalars[threshold.attr] if threshold.op == "scalar" else threshold.attr
    return _Nms(problem, sets, [(operands[boxes.attr], operands[scores.attr], limit) for operands in sets])


class _Nms:
    """The launch. It leaves the indices alone, in a tensor of their number."""

    def __init__(self, problem: Problem, sets: list[Operands], calls: list[tuple[torch.Tensor, torch.Tensor, float]]):
        self.sets, self.calls = sets, calls
        self.indices, self.count = (output.name for output in problem.outputs)
        self.found: dict[int, torch.Tensor] = {}

    def __call__(self, i: int) -> None:
        self.found[i] = torchvision.ops.nms(*self.calls[i])

    def settle(self, i: int) -> None:
        """The indices with what pads them, and their number, as the problem has them."""
        kept = self.found[i]
        self.sets[i][self.indices].fill_(-1)[: len(kept)] = kept
        self.sets[i][self.count].fill_(len(kept))
