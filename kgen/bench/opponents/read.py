"""torch.sum of as many bytes as the problem, in f32: the bandwidth that what only reads is held to."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kgen.bench.opponents import Launch, Operands
from kgen.dsl.errors import KgenError
from kgen.dsl.problem import Problem

COMPUTES = False


def why_not(problem: Problem) -> str | None:
    return None if problem.bytes >= 4 else "there is nothing to read"


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    device = sets[0][problem.inputs[0].name].device
    # Whole numbers of both signs: every order of adding them up is exact.
    sources = [torch.randint(-8, 9, (problem.bytes // 4,), device=device).float() for _ in sets]
    results = [torch.empty((), device=device) for _ in sets]

    def launch(i: int) -> None:
        torch.sum(sources[i], dim=0, out=results[i])

    for i, source in enumerate(sources):
        launch(i)
        if float(results[i]) != float(source.double().sum()):
            raise KgenError(f"the sum of {source.numel()} numbers is wrong")
    return launch
