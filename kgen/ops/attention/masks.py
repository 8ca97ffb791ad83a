"""Which blocks of keys a tile of queries needs, from the conditions of its mask: interval analysis of their expressions.

A conjunct such as i + (N - M) >= j, affine in the row i and the column j with j's factor 1 or -1, bounds j by a function of i
alone, and over the rows of a tile by its value at one end. So the columns of a tile are cut in three: those before and behind
`first` and `last` that no row needs, and between `first_full` and `last_full` those that all rows do, where the mask is not
looked at. Any other condition makes every block one in which it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgen.codegen.names import identifier
from kgen.dsl.expr import Expr
from kgen.ops.common.lowering import size_name


@dataclass(frozen=True)
class Affine:
    """row * i + column * j + the sum of `terms`: numbers by their C++, "" for 1."""

    row: int
    column: int
    terms: tuple[tuple[int, str], ...]

    def scaled(self, factor: int) -> Affine:
        return Affine(self.row * factor, self.column * factor, tuple((factor * n, text) for n, text in self.terms))

    def plus(self, other: Affine) -> Affine:
        counts: dict[str, int] = {}
        for n, text in (*self.terms, *other.terms):
            counts[text] = counts.get(text, 0) + n
        terms = tuple((n, text) for text, n in counts.items() if n)
        return Affine(self.row + other.row, self.column + other.column, terms)

    def at(self, row: str) -> str:
        """C++ of its value at a row, without the column."""
        found = ""
        for n, text in (*(((self.row, row),) if self.row else ()), *self.terms):
            value = text if abs(n) == 1 and text else f"{abs(n)} * {text}" if text else str(abs(n))
            found += f" {'-' if n < 0 else '+'} {value}" if found else f"{'-' if n < 0 else ''}{value}"
        return found or "0"


@dataclass(frozen=True)
class Bounds:
    """C++ of the bounds, over `row_first` and `row_last` of a tile and the number of columns N; `lower` ones are inclusive."""

    lower: tuple[str, ...]
    upper: tuple[str, ...]
    full_lower: tuple[str, ...]
    full_upper: tuple[str, ...]
    #: Whether columns within the full bounds need no mask.
    whole: bool


def is_limit(node: Expr) -> bool:
    """Whether a node is an input of one int a head, such as the length of its keys."""
    dims = node.shape.dims
    return node.op == "input" and node.dtype.kind == "int" and len(dims) >= 2 and all(size == 1 for size in dims)


def limit_name(name: str) -> str:
    """The variable of a kernel that holds the head's element of such an input."""
    return f"{identifier(name)}_of_head"


def bounds(conditions: list[Expr], row: Expr | None, column: Expr | None) -> Bounds:
    """Those of a mask; `row` and `column` are the nodes of i and j."""
    lower, upper, full_lower, full_upper = list[str](), list[str](), list[str](), list[str]()
    whole = True
    for condition in conditions:
        at_least = _not_negative(condition, row, column)
        if at_least is None or abs(at_least.column) != 1:
            whole = False
            continue
        # j >= -(row * i + c), or j < row * i + c + 1: the first row is at one end of it, the last row at the other.
        if at_least.column == 1:
            bound, low, full = at_least.scaled(-1), lower, full_lower
        else:
            bound, low, full = at_least.plus(Affine(0, 0, ((1, ""),))), upper, full_upper
        rises = (bound.row >= 0) == (at_least.column == 1)
        first, last = ("row_first", "row_last") if rises else ("row_last", "row_first")
        low.append(bound.at(first))
        full.append(bound.at(last))
    return Bounds(tuple(lower), tuple(upper), tuple(full_lower), tuple(full_upper), whole)


def _not_negative(condition: Expr, row: Expr | None, column: Expr | None) -> Affine | None:
    """What is 0 or more exactly where a comparison of ints holds; None of any other condition."""
    if condition.op not in ("lt", "le", "gt", "ge"):
        return None
    a, b = (_affine(x, row, column) for x in condition.args)
    if a is None or b is None:
        return None
    larger, smaller = (a, b) if condition.op in ("gt", "ge") else (b, a)
    found = larger.plus(smaller.scaled(-1))
    return found if condition.op in ("le", "ge") else found.plus(Affine(0, 0, ((-1, ""),)))


def _affine(node: Expr, row: Expr | None, column: Expr | None) -> Affine | None:
    """A node of ints as an affine expression; None where it is none."""
    if node.dtype.kind != "int" or node.dtype.bits > 32:
        return None
    if node is row:
        return Affine(1, 0, ())
    if node is column:
        return Affine(0, 1, ())
    if node.op == "const":
        return Affine(0, 0, ((int(node.attr), ""),) if node.attr else ())
    if node.op == "size":
        return Affine(0, 0, ((1, size_name(node.attr)),))
    if node.op == "scalar":
        return Affine(0, 0, ((1, identifier(node.attr)),))
    if is_limit(node):
        return Affine(0, 0, ((1, limit_name(node.attr)),))
    parts = [_affine(x, row, column) for x in node.args]
    found = [part for part in parts if part is not None]
    if len(found) != len(parts):
        return None
    if node.op == "add":
        return found[0].plus(found[1])
    if node.op == "sub":
        return found[0].plus(found[1].scaled(-1))
    if node.op == "neg":
        return found[0].scaled(-1)
    if node.op == "mul":
        for part, other in (found, found[::-1]):
            number = node.args[found.index(other)]
            if number.op == "const":
                return part.scaled(int(number.attr))
    return None
