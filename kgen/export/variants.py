"""Variants: the same problem with other sizes, strides and alignments, and which of them one generated source serves.

The rules of a schedule are stated once, over whole problems. Export turns them into checks of a launch function by asking
them: a source serves a problem when its config is valid there and would render the very same source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kgen.codegen.source import SM_COUNT, Source, TensorMap
from kgen.dsl.errors import ArgumentError, KgenError
from kgen.dsl.family import normalised
from kgen.dsl.problem import NormalProblem, Operand, Problem
from kgen.dsl.schedule import Schedule
from kgen.dsl.size import evaluate
from kgen.dsl.target import Target
from kgen.gpu.tensor_map import UNIT, check


@dataclass(frozen=True)
class Served:
    """A config's source for a problem, and the question whether it serves another one. `origin` has the caller's shapes."""

    config: Schedule
    origin: Problem
    target: Target

    @functools.cached_property
    def problem(self) -> NormalProblem:
        """The problem as its family sees it."""
        return normalised(self.origin)

    @functools.cached_property
    def source(self) -> Source:
        source: Source = self.config.source(self.problem)
        return source

    @functools.cached_property
    def _asked(self) -> dict[Problem, dict[str, int] | None]:
        """What `symbols` has answered: each answer takes a rendering."""
        return {}

    def symbols(self, variant: Problem) -> dict[str, int] | None:
        """The launch's symbols for another problem; None where the source does not serve it."""
        if variant not in self._asked:
            self._asked[variant] = self._symbols(variant)
        return self._asked[variant]

    def _symbols(self, variant: Problem) -> dict[str, int] | None:
        try:
            normal = normalised(variant)
        except KgenError:  # such sizes mean nothing to the operator
            return None
        if self._illegal(normal) or not self._renders_alike(normal):
            return None
        symbols = self.config.symbols(normal)
        return symbols if self._mappable(normal, symbols) else None

    def renders_alike(self, variant: Problem) -> bool:
        """Whether the very same source is generated for another problem, whatever the rules say of it."""
        try:
            return self._renders_alike(normalised(variant))
        except KgenError:
            return False

    def _renders_alike(self, normal: NormalProblem) -> bool:
        try:
            other: Source = self.config.source(normal)
        except KgenError:
            return False
        mine = self.source
        return (other.params, other.launch, other.digest) == (mine.params, mine.launch, mine.digest)

    def _illegal(self, normal: NormalProblem) -> bool:
        """Whether a rule is broken that a launch depends on: those marked as pruning only spare the search a point."""
        return bool(self.config.broken(normal, self.target))

    def _mappable(self, normal: Problem, symbols: dict[str, int]) -> bool:
        """Whether the tensor memory accelerator takes the operands, whatever the rules say of it."""
        maps = self.source.bind({**symbols, SM_COUNT.name: self.target.sm_count}).maps
        aligns = {o.name: o.align for o in normal.operands}
        for index, extent in maps.items():
            map = self.source.params[index]
            assert isinstance(map, TensorMap)
            if aligns.get(map.operand, UNIT) % UNIT:
                return False
            try:
                check(map, extent)
            except ArgumentError:
                return False
        return True


def axes(problem: Problem) -> dict[str, int]:
    """The sizes of a problem by name: its named dimensions, and `...0`, `...1` for the leading ones."""
    return {f"...{i}": n for i, n in enumerate(problem.leading)} | problem.sizes


def resized(
    origin: Problem, sizes: Mapping[str, int], *, pitch: int = 1, gaps: Mapping[str, int] | None = None
) -> Problem:
    """`origin` with some of its `axes` changed, every operand in the same order of memory and otherwise dense.

    All strides but the innermost are multiples of `pitch`; an operand in `gaps` leaves so many elements between its rows.
    """
    known = axes(origin) | dict(sizes)
    leading = [known[f"...{i}"] for i in range(len(origin.leading))]
    operands = []
    for spec, operand in zip((*origin.graph.inputs, *origin.graph.outputs), origin.operands):
        extra = len(operand.shape) - len(spec.shape.dims)
        kept = zip(operand.shape[:extra], origin.leading[len(leading) - extra :], leading[len(leading) - extra :])
        head = [old if old != full else new for old, full, new in kept]
        shape: tuple[Any, ...] = (*head, *(evaluate(d, known) for d in spec.shape.dims))
        gap = (gaps or {}).get(operand.name, 0)
        operands.append(replace(operand, shape=shape, strides=_strides(operand, shape, pitch, gap)))
    return Problem.bind(origin.graph, operands)


def _strides(operand: Operand, shape: tuple[Any, ...], pitch: int, gap: int) -> tuple[int, ...]:
    """Strides for `shape` in the operand's order of memory; an axis that broadcasts stays so."""
    moving = [a for a, (s, n) in enumerate(zip(operand.strides, operand.shape)) if s != 0 or n == 1]
    moving.sort(key=lambda a: (operand.strides[a], -a))
    strides = [0] * len(shape)
    step = min((operand.strides[a] for a in moving), default=1) or 1
    for position, axis in enumerate(moving):
        if position:
            step = -(-(step + gap) // pitch) * pitch
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def realigned(problem: Problem, name: str, align: int) -> Problem:
    """The problem with one operand's address a multiple of `align` bytes only."""
    return Problem.bind(
        problem.graph, [replace(o, align=align) if o.name == name else o for o in problem.operands]
    )  # fmt: skip
