"""Sizes as C++ of the launch function: what `kgen.dsl.size` builds, with as few parentheses as C++ needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgen.codegen.source import SM_COUNT
from kgen.dsl.size import Binary, Dim, Size

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_ATOM = 3


def cxx(size: Size) -> str:
    """`size` as a C++ expression of int64_t variables; uses `ceil_div` and `std::min`, `std::max`."""
    return _write(size)[0]


def _write(size: Size) -> tuple[str, int]:
    """The text and how tightly it binds."""
    if isinstance(size, int):
        return str(size), _ATOM
    if isinstance(size, Dim):
        return ("sm_count" if size == SM_COUNT else size.name), _ATOM
    assert isinstance(size, Binary)
    if size.op == "ceil_div":
        return f"ceil_div({cxx(size.left)}, {cxx(size.right)})", _ATOM
    if size.op in ("min", "max"):
        return f"std::{size.op}<int64_t>({cxx(size.left)}, {cxx(size.right)})", _ATOM
    level = _PRECEDENCE[size.op]
    (left, left_level), (right, right_level) = _write(size.left), _write(size.right)
    left = left if left_level >= level else f"({left})"
    right = right if right_level > level or (size.op == _operation(size.right) == "+") else f"({right})"
    return f"{left} {size.op.replace('//', '/')} {right}", level


def _operation(size: Size) -> str:
    """The operation at the root of `size`, empty for a number or a symbol."""
    return size.op if isinstance(size, Binary) else ""


def renamed(size: Size, suffix: str) -> Size:
    """`size` over dimensions whose names end with `suffix` beside."""
    if isinstance(size, Dim):
        return Dim(f"{size.name}{suffix}")
    if isinstance(size, Binary):
        return replace(size, left=renamed(size.left, suffix), right=renamed(size.right, suffix))
    return size


def factors(size: Size) -> tuple[Size, ...]:
    """The factors of a product; `size` alone where it is none."""
    if isinstance(size, Binary) and size.op == "*":
        return (*factors(size.left), *factors(size.right))
    return (size,)


def wrapped(opening: str, items: Sequence[str], closing: str, *, separator: str = ", ", width: int = 120) -> str:
    """`opening` + the items + `closing`, broken into lines below each other where it is longer than `width`."""
    indent = " " * (len(opening) - len(opening.rsplit("\n", 1)[0]) - 1 if "\n" in opening else len(opening))
    lines, line = [], opening
    for i, item in enumerate(items):
        text = item + (closing if i == len(items) - 1 else separator)
        if len(line) + len(text.rstrip()) > width and line.strip() and line != indent and i > 0:
            lines.append(line.rstrip())
            line = indent
        line += text
    return "\n".join([*lines, line if items else opening + closing])
