"""Weights that are dropped by random numbers: the C++ that says where an element's number stands among these."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.dsl.expr import Expr
from kgen.dsl.problem import Problem
from kgen.ops.attention.evaluation import head_of, number, placed
from kgen.ops.attention.rows import PLAIN, Rows
from kgen.ops.common.lowering import Axis, Lowering
from kgen.ops.common.random_stream import stream


@dataclass(frozen=True)
class DropoutText:
    """A kernel's texts: `first` makes first[r], the number of a lane's row r in column 0; `step` lies between the numbers of
    neighbouring columns. Where `transposed` the numbers of neighbouring rows are consecutive. `line` is how many are, `p` the
    probability, `stream` seed and offset.
    """

    first: str
    step: str
    transposed: str
    line: str
    p: str
    stream: str


def dropout_text(
    problem: Problem, dropped: Expr | None, rank: int, places: tuple[str, str], written: list[str], rows: Rows = PLAIN
) -> DropoutText | None:
    """The texts of the condition `dropped` on weights whose last two of `rank` axes a kernel has at `places`."""
    if dropped is None:
        return None
    random, p = dropped.args
    sizes, index = {"row": "M", "column": "N"}, "0LL"
    for axis in Lowering(problem, rank).coordinates(random.shape):
        if not isinstance(axis, Axis):
            continue
        if axis.number < rank - 2:
            at, size = head_of(axis.number, rows), f"batches{axis.number}"
        else:
            place = places[axis.number - rank + 2]
            at, size = ("0" if place == "column" else "row"), sizes[place]
        index = f"({index} * {size} + {at})"
    line = sizes[places[1]]
    return DropoutText(
        first=placed([f"first[r] = {index};"], rows, "first_row + r * 8 + lane / 4"),
        step="1" if places[1] == "column" else line,
        transposed="true" if places[1] == "row" else "false",
        line=line,
        p=number("dropout", p, written),
        stream=stream(random),
    )
