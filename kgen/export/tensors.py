"""Tensors: how the sizes and strides of a launch follow from tensors in the caller's shapes, as C++ of an extension of torch.

A family normalises problems in Python, which no extension can call. What comes of it is told from examples, as requirements
are: over many variants of the problems each symbol of the launch equals one size, product of sizes or stride of a tensor,
always the same; and so does each stride of a tensor that the launch is not given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Union

from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Operand, Problem
from kgen.export.requirements import variants
from kgen.export.variants import Served

#: A size is divided by these at most: a family may look at an axis as two.
_PARTS = (2, 4)


@dataclass(frozen=True)
class Term:
    """A number that tensors have: the product of the sizes of `axes` of an operand, over `parts`, times one of its strides."""

    operand: str = ""
    axes: tuple[int, ...] = ()
    stride: Union[int, None] = None
    factor: int = 1
    parts: int = 1

    def of(self, problem: Problem) -> int | None:
        """Its value for a problem; None where that is no whole number."""
        found = self.factor
        if self.operand:
            operand = problem.operand(self.operand)
            for axis in self.axes:
                found *= operand.shape[axis]
            if self.stride is not None:
                found *= _stride(operand, self.stride)
        return found // self.parts if found % self.parts == 0 else None

    def cxx(self, names: Mapping[str, str]) -> str:
        """It as C++ over variables that have `sizes` and `strides`, one for each operand, by its name."""
        name = names.get(self.operand, "")
        factors = [f"{name}.sizes[{axis}]" for axis in self.axes]
        factors += [f"{name}.strides[{self.stride}]"] if self.stride is not None else []
        text = " * ".join(factors) or str(self.factor)
        return f"{text} / {self.parts}" if self.parts > 1 else text


def _stride(operand: Operand, axis: int) -> int:
    """The stride of an axis; of one with a single element that of the axis around it, as if the two were one, or 0."""
    return next((s for n, s in zip(operand.shape[axis::-1], operand.strides[axis::-1]) if n != 1), 0)


@dataclass(frozen=True)
class Tensors:
    """`symbols` are the launch's, as terms. `fixed` are strides that the launch is not given: operand, axis, and what it must be.

    `sizes` are those that no kernel takes another value of: operand, axis, value.
    """

    symbols: dict[str, Term]
    fixed: tuple[tuple[str, int, Term], ...]
    sizes: tuple[tuple[str, int, int], ...]


def tensors(served: Sequence[Served], problems: Sequence[Problem], names: Sequence[str]) -> Tensors:
    """What the symbols `names` of a launch are of the tensors of its call.

    Raises ArgumentError where the problems' operands have several numbers of dimensions, or a symbol follows from them by no
    such term.
    """
    first = problems[0]
    ranks = [len(o.shape) for o in first.operands]
    if any([len(o.shape) for o in problem.operands] != ranks for problem in problems):
        raise ArgumentError(
            f"cannot export {first} for torch: the operands of its problems have several numbers of dimensions"
        )
    examples = [*_examples(served, problems)]
    found = {}
    for name in names:
        values = [(p, symbols[name]) for p, symbols in examples]
        exact = (t for t in _terms(first, name) if all(t.of(p) == value for p, value in values))
        like = (t for t in _terms(first, name) if all(_equals(t, p, value) for p, value in values))
        term = next(exact, None) or next(like, None)
        if term is None:
            raise ArgumentError(
                f"cannot export {first} for torch: {name} does not follow from the tensors' sizes and strides"
            )
        found[name] = term
    shown = [p for p, _ in examples]
    return Tensors(found, tuple(_fixed(first, found, shown)), tuple(_sizes(first, shown)))


def _equals(term: Term, problem: Problem, value: int) -> bool:
    """Whether a term has the value; the stride of an axis with a single element may have any."""
    if term.stride is not None and not term.axes and problem.operand(term.operand).shape[term.stride] == 1:
        return True
    return term.of(problem) == value


def _sizes(problem: Problem, examples: Sequence[Problem]) -> Iterator[tuple[str, int, int]]:
    """The sizes that are the same in all examples."""
    for operand in problem.inputs:
        for axis, size in enumerate(operand.shape):
            if all(p.operand(operand.name).shape[axis] == size for p in examples):
                yield operand.name, axis, size


def _examples(served: Sequence[Served], problems: Sequence[Problem]) -> Iterator[tuple[Problem, dict[str, int]]]:
    """Variants of the problems that a kernel serves, with their symbols."""
    for variant in chain.from_iterable(variants(problem) for problem in problems):
        symbols = next(filter(None, (one.symbols(variant) for one in served)), None)
        if symbols is not None:
            yield variant, symbols


def _terms(problem: Problem, name: str) -> Iterator[Term]:
    """What a symbol may be, the likeliest first: a stride of the operand that it is named after, a product of sizes, a constant,
    a part of a size, any stride."""
    operands = [(o.name, range(len(o.shape))) for o in problem.operands]
    strides = [Term(operand, stride=axis) for operand, axes in operands for axis in axes]
    runs = [
        (operand, tuple(axes[i:j])) for operand, axes in operands for i in axes for j in range(i + 1, len(axes) + 1)
    ]
    runs.sort(key=lambda run: len(run[1]))
    yield from (term for term in strides if name.startswith(f"{term.operand}_"))
    yield from (Term(operand, run) for operand, run in runs)
    yield from (Term(factor=n) for n in range(5))
    yield from (Term(operand, run, parts=parts) for parts in _PARTS for operand, run in runs)
    yield from strides


def _fixed(
    problem: Problem, symbols: Mapping[str, Term], examples: Sequence[Problem]
) -> Iterator[tuple[str, int, Term]]:
    """The strides that the launch is not given: a constant, or what they are of dense axes."""
    given = {(t.operand, t.stride) for t in symbols.values() if t.stride is not None and not t.axes}
    for operand in problem.operands:
        axes = range(len(operand.shape))
        for axis in axes:
            if (operand.name, axis) in given or all(p.operand(operand.name).shape[axis] == 1 for p in examples):
                continue
            terms = chain(
                (Term(factor=n) for n in (1, 0)),
                (Term(operand.name, (other,), other) for other in (*axes[axis + 1 :], *axes[:axis])),
            )
            fits = (t for t in terms if all(_follows(t, p, operand.name, axis) for p in examples))
            term = next(fits, None)
            if term is None:
                raise ArgumentError(
                    f"cannot export {problem} for torch: {operand.name} is in no layout that can be told"
                )
            yield operand.name, axis, term


def _follows(term: Term, problem: Problem, name: str, axis: int) -> bool:
    operand = problem.operand(name)
    return operand.shape[axis] == 1 or operand.strides[axis] == term.of(problem)
