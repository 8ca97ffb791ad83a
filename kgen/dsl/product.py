"""The factors of a matrix product: inputs, as they are or transposed, with a scale for each of their blocks or without."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.dsl.expr import Expr
from kgen.dsl.ops import OPS
from kgen.dsl.types import DType, e4m3, e5m2, f32


@dataclass(frozen=True)
class Scale:
    """The input that has one scale for each block of `rows` x `columns` elements; the product's rows and columns."""

    name: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Factor:
    """A matrix of a product: the input it comes from, whether it (and its scale) is that input's transpose."""

    name: str
    dtype: DType
    transposed: bool
    scale: Scale | None = None


def factors(product: Expr) -> tuple[Factor, Factor] | None:
    """What a product multiplies; None where that is anything but inputs, or products of inputs and repeated inputs."""
    a, b = (_factor(node) for node in product.args[:2])
    return (a, b) if a and b else None


def blocked(product: Expr) -> int:
    """Where both factors are fp8 with scales: how many elements along K have one scale. Else 0.

    The tensor cores sum the unscaled products of so many elements; these sums are scaled and added up in f32.
    """
    found = factors(product) if OPS[product.op].roles == ("left", "right") else None
    if not found:
        return 0
    a, b = found
    narrow = a.dtype is b.dtype and a.dtype in (e4m3, e5m2)
    return a.scale.columns if narrow and a.scale and b.scale and a.scale.columns == b.scale.rows else 0


def multiplied(product: Expr) -> DType:
    """The dtype of what is multiplied: of the inputs themselves where scales are applied to sums of their products."""
    found = factors(product)
    return found[0].dtype if found and blocked(product) else product.args[0].dtype


def _factor(node: Expr) -> Factor | None:
    transposed = node.op == "transpose"
    node = node.args[0] if transposed else node
    if node.op == "input":
        return Factor(node.attr, node.dtype, transposed)
    if node.op != "mul":
        return None
    for matrix, scale in (node.args, node.args[::-1]):
        found = _scale(scale, transposed)
        if matrix.op == "input" and found:
            return Factor(matrix.attr, matrix.dtype, transposed, found)
    return None


def _scale(node: Expr, transposed: bool) -> Scale | None:
    counts = {-2: 1, -1: 1}
    while node.op == "repeat":
        count, axis = node.attr
        counts[axis] = counts.get(axis, 1) * count
        node = node.args[0]
    if node.op != "input" or node.dtype is not f32 or len(node.shape.dims) != 2 or counts == {-2: 1, -1: 1}:
        return None
    rows, columns = (counts[-1], counts[-2]) if transposed else (counts[-2], counts[-1])
    return Scale(node.attr, rows, columns)
