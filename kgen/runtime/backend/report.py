"""What became of a model's graphs: which kernels kgen makes, of which lines and ops, and what is left to torch, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kgen.dsl.problem import Problem


@dataclass(frozen=True)
class Taken:
    """A kernel of kgen's in the place of nodes of torch's graph: `ops` in order, `of` what it computes of what shapes.

    `problem` is what it is tuned as, with the sizes that symbols had; attention is tuned by its own operators. There are no `ops`
    where the model calls an operator of kgen's itself, or its attention with a gradient: those are it.
    """

    graph: int
    name: str
    family: str
    ops: tuple[str, ...]
    of: str
    where: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Left:
    """A node that torch computes. `pointwise`: nothing but elements of its own place, which Inductor joins with others."""

    graph: int
    op: str
    why: str
    where: str
    pointwise: bool = False


@dataclass
class Report:
    """What became of every graph that was compiled, in the order in which they were: forward ones and backward ones."""

    graphs: list[str] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What there is to tune, each once."""
        return tuple(dict.fromkeys(one.problem for one in self.taken if one.problem is not None))

    def as_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries."""
        return {
            "graphs": self.graphs,
            "taken": [{**vars(one), "problem": str(one.problem or "")} for one in self.taken],
            "left": [vars(one) for one in self.left],
        }

    def __str__(self) -> str:
        return "\n".join(line for k, name in enumerate(self.graphs) for line in self._of_graph(k, name))

    def _of_graph(self, number: int, name: str) -> list[str]:
        taken = [one for one in self.taken if one.graph == number]
        lines = [f"{name}: {sum(len(one.ops) for one in taken)} ops of torch in {len(taken)} operators of kgen"]
        alike = Counter((one.name, one.family, one.of, one.ops) for one in taken)
        for (own, family, of, ops), count in alike.items():
            lines.append(f"  {count:3} x {family:12} {of}")
            lines.append(f"        {': '.join((own, *filter(None, [' '.join(ops)])))}")
        left = [one for one in self.left if one.graph == number]
        if left:
            lines.append(f"  left to torch: {len(left)} ops")
        reasons = Counter((one.op, "pointwise" if one.pointwise else one.why) for one in left)
        for (op, why), count in sorted(reasons.items(), key=lambda pair: (pair[0][1], -pair[1], pair[0][0])):
            lines.append(f"  {count:3} x {op:32} {why}")
        return lines
