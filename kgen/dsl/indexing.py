"""Nodes for where an element stands: positions, what is found or added by index, random numbers."""

from __future__ import annotations

from kgen.dsl.expr import Expr, Operand, Shape, constant, describe, fault
from kgen.dsl.size import Dim, Size, SizeExpr, ceil_div
from kgen.dsl.types import DType, compute_dtype, f32, i32


def arange(dim: SizeExpr, *ones: int) -> Expr:
    """0, 1, 2, ... along a dimension, or as many as a size such as `L * 16`, as i32: `arange(N)` of shape [N], `arange(M, 1)` of
    shape [M, 1].
    """
    if not isinstance(dim, SizeExpr) or any(one != 1 for one in ones):
        raise fault(f"arange expects a dimension and then ones, got {', '.join(map(repr, (dim, *ones)))}")
    return Expr("arange", (), i32, Shape((dim, *ones)))


def size(dim: Dim) -> Expr:
    """The size of a dimension, as an i32."""
    if not isinstance(dim, Dim):
        raise fault(f"size expects a dimension, got {dim!r}")
    return Expr("size", (), i32, Shape(), dim)


def _ids(op: str, ids: Operand) -> Expr:
    if not isinstance(ids, Expr) or ids.dtype.kind != "int":
        raise fault(f"{op} expects ids of an int dtype, got {describe(ids) if isinstance(ids, Expr) else repr(ids)}")
    return ids


def take(x: Expr, ids: Expr, axis: int = 0) -> Expr:
    """The elements of `x` at `ids` along a named axis, which the axes of `ids` replace (as numpy.take).

    An id outside the axis reads nothing and gives 0; ids do not count from the end.
    """
    if not isinstance(x, Expr) or not x.shape.dims:
        raise fault(f"take expects a tensor, got {describe(x) if isinstance(x, Expr) else repr(x)}")
    ids, rank = _ids("take", ids), len(x.shape.dims)
    at = axis if axis < 0 else axis - rank
    if not -rank <= at < 0:
        raise fault(f"take along axis {axis} of {describe(x)}; expected one of its {rank} named dimensions")
    before, after = x.shape.dims[: at + rank], x.shape.dims[at + rank + 1 :]
    if ids.shape.leading and (before or x.shape.leading):
        raise fault(f"cannot tell how the leading dimensions of {describe(ids)} line up inside {describe(x)}")
    shape = Shape((*before, *ids.shape.dims, *after), x.shape.leading or ids.shape.leading)
    return Expr("take", (x, ids), x.dtype, shape, at)


def repeat(x: Expr, count: int, size: Size, axis: int = -1) -> Expr:
    """Each element of `x` `count` times along a named axis, cut to `size`: element i is element i // count of `x`.

    The axis of `x` has the size ceil_div(size, count): `repeat(scales, 128, K)` of scales [M, ceil_div(K, 128)] is [M, K].
    """
    if not isinstance(x, Expr) or not x.shape.dims:
        raise fault(f"repeat expects a tensor, got {describe(x) if isinstance(x, Expr) else repr(x)}")
    if not isinstance(count, int) or count < 1:
        raise fault(f"repeat of {describe(x)} {count!r} times; expected a positive int")
    rank = len(x.shape.dims)
    at = axis if axis < 0 else axis - rank
    if not -rank <= at < 0:
        raise fault(f"repeat along axis {axis} of {describe(x)}; expected one of its {rank} named dimensions")
    if x.shape.dims[at] != ceil_div(size, count):
        raise fault(
            f"repeat of {describe(x)} along axis {axis}, {count} times, to {size}; "
            f"expected the axis to have the size {ceil_div(size, count)}"
        )
    dims = (*x.shape.dims[: at + rank], size, *x.shape.dims[at + rank + 1 :])
    return Expr("repeat", (x,), x.dtype, Shape(dims, x.shape.leading), (count, at))


def scatter_add(dim: Dim, ids: Expr, values: Operand, axis: int = 0, accumulate: DType | None = None) -> Expr:
    """Zeros of size `dim` along an axis, to which the values are added at `ids` along it (as torch's index_add).

    `ids` has the shape of that axis of `values`, or `values` is one number, or of the shape of `ids` where that has more
    axes (a histogram). Ids outside the size are left out. Sums are made in `accumulate`: f32 for floats, i32 for ints.
    """
    ids = _ids("scatter_add", ids)
    value = constant(values)
    if not isinstance(dim, Dim):
        raise fault(f"scatter_add expects a dimension of the result, got {dim!r}")
    flat = not value.shape.dims or (value.shape == ids.shape and (ids.shape.leading or len(ids.shape.dims) > 1))
    rank = len(value.shape.dims)
    at = -1 if flat else axis if axis < 0 else axis - rank
    if not flat and (not -rank <= at < 0 or ids.shape != Shape((value.shape.dims[at],))):
        raise fault(f"scatter_add of {describe(value)} along axis {axis} at {describe(ids)}; expected one id an index")
    dims = (dim,) if flat else (*value.shape.dims[: at + rank], dim, *value.shape.dims[at + rank + 1 :])
    total = accumulate or compute_dtype(value.dtype)
    if total.kind != value.dtype.kind:
        raise fault(f"scatter_add of {describe(value)} cannot accumulate in {total}")
    shape = Shape(dims, value.shape.leading and not flat)
    return Expr("scatter_add", (ids, value), compute_dtype(total), shape, (dim, at, total))


def exchange(x: Expr, what: str) -> Expr:
    """The last axis with its "halves" exchanged, or the two elements of each of its "pairs"."""
    if not isinstance(x, Expr) or not x.shape.dims:
        raise fault(f"exchange of {what} expects a tensor, got {describe(x) if isinstance(x, Expr) else repr(x)}")
    return Expr("exchange", (x,), x.dtype, x.shape, what)


def random(like: Expr, seed: Operand, offset: Operand) -> Expr:
    """Uniform numbers in [0, 1) of the shape of `like`, as f32: Philox4x32-10 (Salmon et al., 2011) by the element's index.

    The element with row-major index i takes word i % 4 of the block with the 64-bit counter offset + i / 4 under the key
    `seed`; its upper 24 bits make the number. `seed` and `offset` are ints.
    """
    numbers = tuple(_ids("random", constant(n)) for n in (seed, offset))
    if not isinstance(like, Expr) or any(n.shape != Shape() for n in numbers):
        raise fault("random expects a tensor whose shape it takes, and a seed and an offset that are single ints")
    return Expr("random", numbers, f32, like.shape)
