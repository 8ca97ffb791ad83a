"""Tensor.copy_ that moves as many bytes as the problem, half read and half written: the bandwidth others are held to."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kgen.bench.opponents import Launch, Operands
from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem

COMPUTES = False


def why_not(problem: Problem) -> str | None:
    return None if problem.bytes >= 2 else "there is nothing to copy"


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    device = sets[0][problem.inputs[0].name].device
    half = problem.bytes // 2
    sources = [torch.randint(256, (half,), dtype=torch.uint8, device=device) for _ in sets]
    targets = [torch.zeros_like(source) for source in sources]

    def launch(i: int) -> None:
        targets[i].copy_(sources[i])

    for i, (source, target) in enumerate(zip(sources, targets)):
        launch(i)
        if not torch.equal(source, target):
            raise KgenError(f"a copy of {half} bytes differs from its source")
    return launch
