"""Symbolic sizes: integers known only at launch, written once and used by Python, CUDA C++ and the exported launcher.

A `Size` is an `int` or a `SizeExpr`. Arithmetic on them builds a tree; `evaluate` gives its value for known symbols, and
export writes it as C++. Division and remainder are those of non-negative integers, so both languages agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from kgen.dsl.errors import DefinitionError


class SizeExpr:
    """An integer expression over named symbols. Immutable and hashable."""

    __slots__ = ()

    def __add__(self, other: Size) -> Size:
        return _binary("+", self, other)

    def __radd__(self, other: Size) -> Size:
        return _binary("+", other, self)

    def __sub__(self, other: Size) -> Size:
        return _binary("-", self, other)

    def __mul__(self, other: Size) -> Size:
        return _binary("*", self, other)

    def __rmul__(self, other: Size) -> Size:
        return _binary("*", other, self)

    def __floordiv__(self, other: Size) -> Size:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return _binary("//", other, self)

    def __mod__(self, other: Size) -> Size:
        return _binary("%", self, other)


@dataclass(frozen=True)
class Dim(SizeExpr):
    """A named dimension of an operator's signature, such as M in `Tensor[f16, M, K]`, or a named stride."""

    name: str

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise DefinitionError(f"a dimension's name must be an identifier, got {self.name!r}")

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Binary(SizeExpr):
    """`left op right`; `op` is one of + - * // % ceil_div min max."""

    op: str
    left: Size
    right: Size

    def __repr__(self) -> str:
        if self.op == "ceil_div":
            return f"ceil_div({self.left!r}, {self.right!r})"
        return f"({self.left!r} {self.op} {self.right!r})"


Size = Union[int, SizeExpr]

_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil_div": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


def _binary(op: str, left: Size, right: Size) -> Size:
    for size in (left, right):
        if not isinstance(size, (int, SizeExpr)):
            raise DefinitionError(
                f"a size is an int or made of names from dims(...), got {type(size).__name__} {size!r}"
            )
    if isinstance(left, int) and isinstance(right, int):
        return _FOLD[op](left, right)
    if op == "*" and 1 in (left, right):
        return right if left == 1 else left
    if op in ("//", "ceil_div", "%") and right == 1:
        return 0 if op == "%" else left
    return Binary(op, left, right)


def ceil_div(a: Size, b: Size) -> Size:
    """The smallest integer not below a / b."""
    return _binary("ceil_div", a, b)


def minimum(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    return _binary("min", a, b)


def maximum(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    return _binary("max", a, b)


def prod(sizes: Iterable[Size]) -> Size:
    """The product of all sizes; 1 of none."""
    found: Size = 1
    for size in sizes:
        found = found * size
    return found


def evaluate(size: Size, symbols: Mapping[str, int]) -> int:
    """The value of `size` where every symbol has the value `symbols` gives it."""
    if isinstance(size, int):
        return size
    if isinstance(size, Dim):
        if size.name not in symbols:
            raise _unknown(size.name, symbols)
        return symbols[size.name]
    assert isinstance(size, Binary)
    return _FOLD[size.op](evaluate(size.left, symbols), evaluate(size.right, symbols))


def _unknown(name: str, symbols: Mapping[str, int]) -> DefinitionError:
    return DefinitionError(f"no value for dimension {name}; known: {', '.join(sorted(symbols)) or 'none'}")


#: A size, or a tuple of such.
Nested = Union[Size, tuple["Nested", ...]]


def values_of(sizes: Nested, symbols: Mapping[str, int]) -> Any:
    """What `evaluate` gives of each of the sizes, in tuples as they are."""
    return tuple(values_of(one, symbols) for one in sizes) if isinstance(sizes, tuple) else evaluate(sizes, symbols)


def symbols_of(size: Size) -> frozenset[str]:
    """The names of the symbols that occur in `size`."""
    if isinstance(size, Dim):
        return frozenset((size.name,))
    if isinstance(size, Binary):
        return symbols_of(size.left) | symbols_of(size.right)
    return frozenset()


def dims(names: str) -> tuple[Dim, ...]:
    """`dims("M N K")` makes three named dimensions."""
    if not isinstance(names, str):
        raise DefinitionError(f"dims expects names in one text, such as 'M N K', got {type(names).__name__} {names!r}")
    return tuple(Dim(name) for name in names.replace(",", " ").split())
