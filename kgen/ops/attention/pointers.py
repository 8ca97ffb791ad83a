"""The operands of attention by pointers: how cp.async reads them, and how threads store results."""

from __future__ import annotations

from kgen.codegen.source import Integer, Param
from kgen.ops.attention.problem import Matrix
from kgen.ops.attention.rows import PLAIN, Rows


def pack(x: Matrix) -> int:
    """Elements of one copy: 16 bytes, less where the alignment of the rows is less, 1 where columns are strided or one."""
    if x.column != 1 or x.operand.shape[-1] == 1:
        return 1
    return max(1, min(16, x.operand.row_align) // x.operand.dtype.bytes)


def step(name: str, x: Matrix) -> str:
    """The stride of its columns."""
    return "1" if x.column == 1 else f"{name}_column"


def strides(name: str, x: Matrix) -> list[Param]:
    """The parameters of its strides: over rows, over columns where they are not next to each other, over heads."""
    found: list[Param] = [Integer.stride(f"{name}_row")]
    found += [Integer.stride(f"{name}_column")] if x.column != 1 else []
    return found + [Integer.stride(f"{name}_b{d}") for d, s in enumerate(x.batch) if s]


def offset(name: str, x: Matrix, rows: Rows = PLAIN) -> str:
    """The statement that moves its pointer to the tile's head; empty where it stays."""
    terms = [f"steps(tile.batch[{d}], {name}_b{d})" for d in rows.own(x.batch)]
    return f"  {name} += {' + '.join(terms)};" if terms else ""


def store(name: str, x: Matrix, depth: str, rows: Rows = PLAIN) -> str:
    """The statement that stores neighbours of a row; `depth` is the number of its columns."""
    column, row = step(name, x), rows.at("row", name, x.batch)
    if column != "1":
        start = f"{name} + {row} + steps(column, {column})"
        return f"store_strided<COUNT>({start}, rounded, {column}, {depth} - column);"
    start = f"{name} + {row} + column"
    return f"store_columns<COUNT, {x.operand.row_align}>({start}, rounded, {depth} - column);"
