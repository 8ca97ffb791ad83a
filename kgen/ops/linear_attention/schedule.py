"""What the schedules of linear attention share: which problems they serve, the symbols of a launch, what decay and scale are."""

from __future__ import annotations

import itertools
import math

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Param, Scalar
from kgen.dsl.choice import rule
from kgen.dsl.errors import ConfigError
from kgen.dsl.expr import walk
from kgen.dsl.problem import NormalProblem, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import Dim, Size
from kgen.dsl.target import Target
from kgen.dsl.types import bf16, f16, f32
from kgen.ops.attention.evaluation import numbers_in
from kgen.ops.attention.problem import NARROW
from kgen.ops.common.lowering import size_name
from kgen.ops.linear_attention.problem import describe, found, matches

#: CUDA's function that rounds two f32 to a pair of a dtype.
ROUND = {f16: "__floats2half2_rn", bf16: "__floats2bfloat162_rn"}


class LinearAttentionSchedule(Schedule):
    """Base of the schedules: a block goes over a head's rows, BC at a time, with the state of BV columns of its values."""

    BC: int
    stages: int

    @property
    def BV(self) -> int:
        """Columns of values of a block."""
        raise NotImplementedError

    def blocks(self, problem: Problem) -> int:
        """Blocks of the launch."""
        h = describe(problem)
        return math.ceil(h.E / self.BV) * h.heads

    @rule
    def sizes_in_32_bits(self, problem: Problem, target: Target) -> bool:
        """N and the number of blocks are 32-bit integers, with room for what a block counts beyond the end"""
        h = describe(problem)
        return max(h.N, h.E, *h.batch, 1) < 2**30 and self.blocks(problem) < 2**31

    @rule
    def widest_heads(self, problem: Problem, target: Target) -> bool:
        """queries and keys have at most 256 columns"""
        return describe(problem).D <= NARROW

    @classmethod
    def applies(cls, problem: Problem) -> bool:
        return matches(problem.graph) and found(problem.graph).dtype in (f16, bf16)

    @classmethod
    def default(cls, problem: NormalProblem, target: Target) -> LinearAttentionSchedule:
        """The best of all by the model: they are few."""
        values = (cls.fields[name].values for name in cls.fields)
        configs = [cls(**dict(zip(cls.fields, chosen))) for chosen in itertools.product(*values)]
        valid = [config for config in configs if not config.rejections(problem, target)]
        if not valid:
            smallest = cls(**{name: min(field.values) for name, field in cls.fields.items()})
            broken = "; ".join(r.reason for r in smallest.broken(problem, target))
            raise ConfigError(f"no {cls.__name__} config is valid for {problem} on {target}; expected: {broken}")
        return min(valid, key=lambda config: config.estimate(problem, target))

    @staticmethod
    def symbols(problem: Problem) -> dict[str, int]:
        """N, D, E, batches0.., size_X of every dimension X; strides q_row, q_column, q_b0.. of every operand."""
        h = describe(problem)
        symbols = {"N": h.N, "D": h.D, "E": h.E} | {f"batches{d}": n for d, n in enumerate(h.batch)}
        for name, x in h.matrices.items():
            symbols |= {f"{name}_row": x.row, f"{name}_column": x.column}
            symbols |= {f"{name}_b{d}": s for d, s in enumerate(x.batch)}
        whole = problem.origin or problem
        return symbols | {f"size_{name}": size for name, size in whole.sizes.items()}

    def loops(self, problem: Problem) -> tuple[tuple[Size, Size], ...]:
        return ((Dim("N"), self.BC * self.stages),)

    @staticmethod
    def numbers(problem: Problem) -> list[Param]:
        """The parameters of sizes and numbers that decay and scale are computed of."""
        attended = found(problem.graph)
        leaves = walk(tuple(x for x in (attended.scale, attended.decay) if x is not None))
        sizes = dict.fromkeys(size_name(n.attr) for n in leaves if n.op == "size")
        scalars = {n.attr for n in leaves if n.op == "scalar"}
        given = [Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars if s.name in scalars]
        return [*(Integer(name, Dim(name)) for name in sizes), *given]

    @staticmethod
    def texts(problem: Problem) -> tuple[str, str, str]:
        """Functions; statements that make `scale`, and that return the decay of `row`."""
        attended = found(problem.graph)
        written, scale, read = list[str](), "const float scale = 1.0f;", ""
        if attended.scale is not None:
            numbers = numbers_in([attended.scale])
            written.append(pointwise_function("factor", numbers, [attended.scale], [f32], fast=False))
            scale = f"float scale;\n  factor({', '.join([*(a.name for a in numbers), 'scale'])});"
        if attended.decay is not None:
            node = next(n for n in walk((attended.decay,)) if n.op == "input")
            value = Argument(node, "value", f32)
            numbers = numbers_in([attended.decay], (value,))
            written.append(pointwise_function("decay_of", [value, *numbers], [attended.decay], [f32], fast=False))
            given = ", ".join(["decay[steps(row, decay_column)]", *(a.name for a in numbers), "result"])
            read = f"float result;\n    decay_of({given});\n    return result;"
        return "\n".join(written), scale, read
