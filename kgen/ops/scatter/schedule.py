"""ScatterSchedule: what the schedules have in common that add at ids, in one launch of a grid that is on the GPU as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.dsl.choice import Choice, rule
from kgen.dsl.problem import Problem
from kgen.dsl.target import Target
from kgen.ops.common.memory_bound import VectorSchedule
from kgen.ops.scatter.plan import plan
from kgen.ops.scatter.text import ScatterText, symbols


@dataclass(frozen=True)
class Context:
    """What the templates see."""

    s: ScatterText
    load: str = ""


class ScatterSchedule(VectorSchedule):
    """A grid barrier stands between the passes over the result and the additions: at most 1024 threads per SM."""

    threads: Choice[int]
    blocks_per_sm: Choice[int]

    @rule
    def on_the_gpu_at_once(self, problem: Problem, target: Target) -> bool:
        """all blocks of the grid are on the GPU at once: at most 1024 threads a multiprocessor, of 64 registers"""
        return self.threads * self.blocks_per_sm <= 1024

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """The integers a launch depends on; see kgen/ops/scatter/text.py."""
        return symbols(plan(problem))
