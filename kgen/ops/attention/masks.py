"""Which blocks of keys a tile of queries needs, from the conditions of its mask: interval analysis of their expressions.

A conjunct such as i + (N - M) >= j, affine in the row i and the column j with j's factor 1 or -1, bounds j by a function of i
alone, and over the rows of a tile by its value at one end. So the columns of a tile are cut in three: those before and behind
`first` and `last` that no row needs, and between `first_full` and `last_full` those that all rows do, where the mask is not
looked at.

Where a column stands alone, as in `begin[i] <= j`, the other side may be data: any ints that no column is in. These need not rise
or fall with the rows of a tile, so a warp reads them all, and takes the least and the greatest. Where it is the row that stands
alone, as a key in the gradient of keys, a block may read the data of all columns, and find the first and the last that its tile
needs. Any other condition makes every block one in which the mask is looked at.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kgen.codegen.names import identifier
from kgen.dsl.expr import Expr, apply, constant, walk
from kgen.dsl.ops import POINTWISE
from kgen.dsl.types import i32
from kgen.ops.common.lowering import size_name

#: Beyond all rows and columns, and so near that sums with it are ints.
FAR = 1 << 30
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


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
    """C++ of the bounds, over `row_first` and `row_last` of a tile and the number of columns N; `lower` ones are inclusive.

    Where data of rows bounds columns, `of_row` is from which to before which one; bounds have what is `seen` by the tile's rows.
    `of_column` is which rows columns need, and bounds have which of them are `seeing` any of the tile.
    """

    lower: tuple[str, ...]
    upper: tuple[str, ...]
    full_lower: tuple[str, ...]
    full_upper: tuple[str, ...]
    #: Whether columns within the full bounds need no mask.
    whole: bool
    of_row: tuple[Expr, Expr] | None = None
    of_column: tuple[Expr, Expr] | None = None

    @property
    def bounded(self) -> bool:
        """Whether tiles of rows differ in what they need of the columns."""
        return bool(self.lower or self.upper)

    @property
    def plain(self) -> bool:
        """Whether the bounds are all that the mask says, and no data of rows."""
        return self.whole and self.of_row is None


def is_limit(node: Expr) -> bool:
    """Whether a node is an input of one int a head, such as the length of its keys."""
    dims = node.shape.dims
    return node.op == "input" and node.dtype.kind == "int" and len(dims) >= 2 and all(size == 1 for size in dims)


def limit_name(name: str) -> str:
    """The variable of a kernel that holds the head's element of such an input."""
    return f"{identifier(name)}_of_head"


def bounds(conditions: list[Expr], row: Expr | None, column: Expr | None, searched: bool = False) -> Bounds:
    """Those of a mask; `row` and `column` are the nodes of i and j. `searched`: what columns need of rows counts, too."""
    lower, upper, full_lower, full_upper = list[str](), list[str](), list[str](), list[str]()
    begins, ends, first_rows, last_rows = list[Expr](), list[Expr](), list[Expr](), list[Expr]()
    whole = True
    for condition in conditions:
        at_least = _not_negative(condition, row, column)
        if at_least is None or abs(at_least.column) != 1:
            if not _takes_data(condition, column, begins, ends):
                whole = False
                if searched:
                    _takes_data(condition, row, first_rows, last_rows)
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
    for found, (some, every), seen in ((begins, (lower, full_lower), "first"), (ends, (upper, full_upper), "last")):
        if found:
            some.append(f"seen.{seen}")
            every.append(f"seen.{seen}_by_all")
    of_column = _range(first_rows, last_rows)
    if of_column:
        lower.append("seeing.x")
        upper.append("seeing.y")
    return Bounds(
        tuple(lower), tuple(upper), tuple(full_lower), tuple(full_upper), whole, _range(begins, ends), of_column
    )


def _range(begins: list[Expr], ends: list[Expr]) -> tuple[Expr, Expr] | None:
    """From the last begin to before the first end; None where there are neither."""
    if not begins and not ends:
        return None
    greatest, least = functools.partial(apply, "maximum"), functools.partial(apply, "minimum")
    return (
        functools.reduce(greatest, begins) if begins else constant(-FAR, i32),
        functools.reduce(least, ends) if ends else constant(FAR, i32),
    )


def _takes_data(condition: Expr, column: Expr | None, begins: list[Expr], ends: list[Expr]) -> bool:
    """Whether a comparison bounds a column that is alone on its side by ints of the row, which are put to `begins` or `ends`."""
    if condition.op not in _MIRRORED or column is None:
        return False
    (a, b), op = condition.args, condition.op
    if b is column:
        a, b, op = b, a, _MIRRORED[op]
    axis = -len(column.shape.dims)
    plain = all(n is not column and (n.op in POINTWISE or not n.args) for n in walk((b,)))
    if a is not column or b.dtype is not i32 or not plain or b.shape.dims[axis:][:1] not in ((), (1,)):
        return False
    bound = apply("maximum", apply("minimum", b, FAR), -FAR)
    (begins if op in ("gt", "ge") else ends).append(bound + 1 if op in ("gt", "le") else bound)
    return True


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
