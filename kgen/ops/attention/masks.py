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
    """row * i + column * j + the sum of `terms`, which are C++ of numbers, signs included."""

    row: int
    column: int
    terms: tuple[str, ...]

    def scaled(self, factor: int) -> Affine:
        terms = tuple(f"{factor} * ({t})" for t in self.terms) if factor != 1 else self.terms
        return Affine(self.row * factor, self.column * factor, terms)

    def plus(self, other: Affine) -> Affine:
        return Affine(self.row + other.row, self.column + other.column, self.terms + other.terms)

    def constant(self) -> str:
        return " + ".join(f"({t})" for t in self.terms) or "0"


@dataclass(frozen=True)
class Bounds:
    """C++ of the bounds, over `row_first` and `row_last` of a tile and the number of columns N; `lower` ones are inclusive."""

    lower: tuple[str, ...]
    upper: tuple[str, ...]
    full_lower: tuple[str, ...]
    full_upper: tuple[str, ...]
    #: Whether columns within the full bounds need no mask.
    whole: bool


def bounds(conditions: list[Expr], row: Expr | None, column: Expr | None) -> Bounds:
    """Those of a mask; `row` and `column` are the nodes of i and j."""
    lower, upper, full_lower, full_upper = [], [], [], []
    whole = True
    for condition in conditions:
        at_least = _not_negative(condition, row, column)
        if at_least is None or abs(at_least.column) != 1:
            whole = False
            continue
        # column * j >= -(row * i + c): the first row is at one end of it, the last row at the other.
        slope = -at_least.row if at_least.column == 1 else at_least.row
        ends = [f"{slope} * {end} + " if slope else "" for end in ("row_first", "row_last")]
        low, high = ends if slope >= 0 else ends[::-1]
        constant = at_least.constant()
        if at_least.column == 1:
            lower.append(f"{low}-({constant})")
            full_lower.append(f"{high}-({constant})")
        else:
            upper.append(f"{high}{constant} + 1")
            full_upper.append(f"{low}{constant} + 1")
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
    return found if condition.op in ("le", "ge") else found.plus(Affine(0, 0, ("-1",)))


def _affine(node: Expr, row: Expr | None, column: Expr | None) -> Affine | None:
    """A node of ints as an affine expression; None where it is none."""
    if node.dtype.kind != "int" or node.dtype.bits > 32:
        return None
    if node is row:
        return Affine(1, 0, ())
    if node is column:
        return Affine(0, 1, ())
    if node.op == "const":
        return Affine(0, 0, (str(node.attr),))
    if node.op == "size":
        return Affine(0, 0, (size_name(node.attr),))
    if node.op == "scalar":
        return Affine(0, 0, (identifier(node.attr),))
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
