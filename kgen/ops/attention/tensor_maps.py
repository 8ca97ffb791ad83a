"""The operands of attention as the tensor memory accelerator sees them: boxes of rows of one head."""

from __future__ import annotations

import math
from typing import Literal

from kgen.codegen.source import TensorMap
from kgen.dsl.size import Dim, Size, maximum
from kgen.dsl.types import DType
from kgen.ops.attention.problem import Matrix


def padded(columns: int) -> int:
    """Columns of a tile: whole swizzle atoms of 64; what lies beyond the operand's is read as zero."""
    return math.ceil(columns / 64) * 64


def by_tma(x: Matrix, whole: bool = True) -> bool:
    """Whether TMA can address an operand, and store it; where rows need not be `whole` units of 16 bytes, read it alone."""
    o = x.operand
    expanded = any(n > 1 and s == 0 for n, s in zip(o.shape[-2:], o.strides[-2:]))
    return (
        x.column == 1
        and not expanded
        and o.row_align >= 16
        and (o.shape[-1] if whole else x.row) * o.dtype.bytes % 16 == 0
    )


def head_axes(x: Matrix) -> list[int]:
    """The axes of a box that count heads, in the order of the tensor map's."""
    return [d for d in reversed(range(len(x.batch))) if x.batch[d]]


def head_coordinates(x: Matrix) -> str:
    return "".join(f", tile.batch[{d}]" for d in head_axes(x))


def atom_bytes(columns: int, dtype: DType) -> Literal[32, 64, 128]:
    """The bytes of a row of a swizzle atom, of tiles of so many columns: 128, or less where no such atoms fill them."""
    size = columns * dtype.bytes
    return 128 if size % 128 == 0 else 64 if size % 64 == 0 else 32


def tensor_map(
    name: str,
    x: Matrix,
    rows: Size,
    columns: Size,
    box: int,
    access: Literal["in", "out"],
    atom: Literal[32, 64, 128] = 128,
) -> TensorMap:
    """A tensor map of which a box is a column of swizzle atoms, whose rows have so many bytes."""
    axes = head_axes(x)
    # An axis of size 1 may have no stride of its own.
    strides = (maximum(Dim(f"{name}_row"), 16 // x.operand.dtype.bytes), *(Dim(f"{name}_b{d}") for d in axes))
    sizes = (columns, rows, *(Dim(f"batches{d}") for d in axes))
    return TensorMap(
        f"map_{name}",
        x.operand.dtype,
        x.operand.name,
        access,
        sizes,
        strides,
        (atom // x.operand.dtype.bytes, box, *(1 for _ in axes)),
        atom,
    )
