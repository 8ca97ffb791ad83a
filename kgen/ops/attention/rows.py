"""What a row of a tile is: a row of a head, or one of all the heads that share keys."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.ops.attention.problem import Heads


@dataclass(frozen=True)
class Rows:
    """C++ of rows. With `heads`, their number, a tile's row r is row r / heads of head r % heads: keys are read once for all.

    `writer` says which of the lanes that have a row writes the results of one number a row.
    """

    heads: str = ""
    axis: int = -1
    writer: str = "lane % 4 == 0"

    @property
    def count(self) -> str:
        """How many rows tiles go over."""
        return f"M * {self.heads}" if self.heads else "M"

    def row(self, r: str) -> str:
        """The head's row that a tile's row is."""
        return f"({r}) / {self.heads}" if self.heads else r

    def head(self, r: str) -> str:
        """The head of a tile's row, within those that share keys."""
        return f"({r}) % {self.heads}"

    def at(self, r: str, name: str, strides: tuple[int, ...]) -> str:
        """Where a tile's row of matrix `name` begins, whose strides over the heads are given."""
        found = f"steps({self.row(r)}, {name}_row)"
        packed = self.heads and strides[self.axis] != 0
        return f"{found} + steps({self.head(r)}, {name}_b{self.axis})" if packed else found

    def own(self, strides: tuple[int, ...]) -> list[int]:
        """The axes of heads along which a matrix moves from tile to tile."""
        return [d for d, s in enumerate(strides) if s and d != self.axis]


#: A tile's rows are a head's own.
PLAIN = Rows()


def packed(h: Heads) -> Rows:
    """The rows of all heads that share keys."""
    axis = len(h.batch) - 1
    return Rows(f"batches{axis}", axis)
