"""ATen in kgen's language: for each op of ATen that it can say, the expression that it means.

A value of torch is an expression and, for each of torch's axes, the expression's axis, counted from the end: torch leaves out
axes of size 1 that reductions keep here. Axes that an expression is broadcast along are of size 1 in it, or not there.
Arithmetic between two ops of ATen is not rounded, as in Inductor's kernels; what the program casts is.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

import torch

from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, Shape, cast, constant, where
from kgen.dsl.indexing import arange, take
from kgen.dsl.size import Dim, Size
from kgen.dsl.types import DType, bool_, compute_dtype

_aten, _prims = torch.ops.aten, torch.ops.prims

#: What an op is to a region: an anchor is what a kernel is made for; pointwise ops join it; views compute nothing.
Kind = Literal["product", "reduction", "index", "pointwise", "view"]
ANCHORS: tuple[Kind, ...] = ("product", "reduction", "index")


class Untaken(Exception):
    """Why an op, or several together, are left to torch."""


@dataclass(frozen=True)
class Value:
    """An expression, and the axis of it, as a negative number, that each axis of torch's value is."""

    expr: Expr
    axes: tuple[int, ...] = ()

    def size(self, axis: int) -> Size:
        """The expression's size at one of torch's axes: 1 where it is broadcast."""
        dims, at = self.expr.shape.dims, self.axes[axis]
        return dims[at] if -at <= len(dims) else 1


Number = Union[int, float, bool]


@dataclass(frozen=True)
class Site:
    """What a node of torch's graph gives: the shape and the dtype of its result."""

    shape: tuple[Size, ...]
    dtype: DType


@dataclass(frozen=True)
class Row:
    """`make` gives the value of a node of its site, operands (values, and numbers as they are) and keywords."""

    kind: Kind
    make: Callable[..., Any]


def input_value(name: str, dtype: DType, shape: tuple[Size, ...]) -> Value:
    """An input of a region."""
    return Value(Expr("input", (), dtype, Shape(shape), name), tuple(range(-len(shape), 0)))


# Pointwise ops.


def _met(values: Sequence[Value]) -> tuple[int, ...]:
    """The axes of what values broadcast to."""
    axes: list[int] = []
    for j in range(-max(len(v.axes) for v in values), 0):
        own = [v for v in values if len(v.axes) >= -j]
        wide = {v.axes[j] for v in own if v.size(j) != 1}
        if len(wide) > 1:
            raise Untaken("its operands lie along different axes of the region")
        axes.append(wide.pop() if wide else own[0].axes[j])
    if any(a >= b for a, b in itertools.pairwise(axes)):
        raise Untaken("its operands lie along different axes of the region")
    return tuple(axes)


def pointwise(function: Callable[..., Expr], *given: Any) -> Value:
    """A function of the elements of values and numbers."""
    values = [x for x in given if isinstance(x, Value)]
    if not values:
        raise Untaken("it is a number")
    axes = _met(values)
    return Value(function(*(x.expr if isinstance(x, Value) else x for x in given)), axes)


def _plain(function: Callable[..., Expr], count: int) -> Row:
    """A function of the first `count` operands, without any other options."""

    def make(site: Site, *given: Any) -> Value:
        if len(given) > count:
            raise Untaken("it has options that kgen's op has not")
        return pointwise(function, *given)

    return Row("pointwise", make)


def _scaled(function: Callable[[Any, Any], Expr]) -> Row:
    """add or sub, whose second operand has a factor."""

    def make(site: Site, x: Any, y: Any, alpha: Number = 1) -> Value:
        return pointwise(lambda a, b: function(a, b if alpha == 1 else b * alpha), x, y)

    return Row("pointwise", make)


def _div(site: Site, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise Untaken("it rounds quotients")
    return pointwise(operator.truediv, x, y)


def _pow(site: Site, x: Any, y: Any) -> Value:
    simple: dict[Number, Callable[[Expr], Expr]] = {
        1: lambda a: a,
        2: lambda a: a * a,
        3: lambda a: a * a * a,
        0.5: F.sqrt,
        -0.5: F.rsqrt,
        -1: F.reciprocal,
    }
    if not isinstance(y, Value) and y in simple and site.dtype.is_float:
        return pointwise(simple[y], x)
    return pointwise(F.pow, x, y)


def _clamp(site: Site, x: Any, low: Any = None, high: Any = None) -> Value:
    x = x if low is None else pointwise(F.maximum, x, low)
    return x if high is None else pointwise(F.minimum, x, high)


def _gelu(site: Site, x: Any, approximate: str = "none") -> Value:
    return pointwise(F.gelu if approximate == "tanh" else F.gelu_erf, x)


def _logical(function: Callable[..., Expr]) -> Row:
    """Of bools alone: ATen's bitwise ops take ints too."""

    def make(site: Site, *given: Any) -> Value:
        if any(not isinstance(x, Value) or x.expr.dtype is not bool_ for x in given):
            raise Untaken("its operands are no bools")
        return pointwise(function, *given)

    return Row("pointwise", make)


def _convert(site: Site, x: Value, dtype: torch.dtype | None = None, **more: Any) -> Value:
    if any(more.get(name) not in (None, False) for name in ("layout", "device", "pin_memory", "non_blocking")):
        raise Untaken("it copies to another place")
    if x.expr.dtype is site.dtype:
        return x
    if site.dtype is bool_:
        return pointwise(lambda a: a != 0, x)
    if x.expr.dtype is bool_:
        return pointwise(lambda a: where(a, cast(1, site.dtype), cast(0, site.dtype)), x)
    return pointwise(lambda a: cast(a, site.dtype), x)


def _full(site: Site, *given: Any, **more: Any) -> Value:
    """One number everywhere: the last operand, or the only one."""
    number = given[-1]
    if not isinstance(number, (int, float)):
        raise Untaken("its value is no constant")
    wide = float(number) if site.dtype.is_float else bool(number) if site.dtype is bool_ else int(number)
    expr = constant(wide, None if site.dtype is bool_ else site.dtype)
    return Value(expr, tuple(range(-len(site.shape), 0)))


def _iota(site: Site, length: Any, *, start: int, step: int, **more: Any) -> Value:
    (size,) = site.shape
    if not isinstance(size, Dim) or start != 0 or step != 1:
        raise Untaken("its numbers are not 0, 1, 2, ...")
    return Value(cast(arange(size), site.dtype), (-1,))


# Reductions.


def _reduced(op: Callable[..., Expr], x: Value, dims: Sequence[int] | None, keep: bool, site: Site) -> Value:
    """A reduction over axes of torch's, which stay in the expression."""
    rank = len(x.axes)
    if not rank:
        raise Untaken("it reduces one number")
    over = sorted({d % rank for d in dims}) if dims else list(range(rank))
    if not over:
        raise Untaken("it reduces nothing")
    if any(x.size(d) == 1 for d in over):
        raise Untaken("it reduces an axis that is broadcast, or of one element")
    axes = tuple(x.axes[d] for d in over)
    expr = op(x.expr, None if len(axes) == sum(n != 1 for n in x.expr.shape.dims) else axes)
    return Value(expr, x.axes if keep else tuple(a for d, a in enumerate(x.axes) if d not in over))


def _reduction(op: Callable[..., Expr]) -> Row:
    def make(site: Site, x: Value, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
        x = _convert(site, x) if x.expr.dtype is bool_ else x
        return _reduced(op, x, [dim] if isinstance(dim, int) else dim, keepdim, site)

    return Row("reduction", make)


def _variance(x: Value, dims: Sequence[int] | None, correction: Any, keep: bool, site: Site) -> tuple[Value, Value]:
    mean = _reduced(F.mean, x, dims, True, site)
    centred = pointwise(operator.sub, x, mean)
    square = pointwise(operator.mul, centred, centred)
    if correction not in (0, 0.0):
        raise Untaken("its variance is that of a sample")
    return _reduced(F.mean, square, dims, keep, site), _reduced(F.mean, x, dims, keep, site)


def _var_mean(
    site: Site, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return _variance(x, dim, correction, keepdim, site)


def _var(site: Site, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    return _variance(x, dim, correction, keepdim, site)[0]


def _softmax(site: Site, x: Value, dim: int, half_to_float: bool = False) -> Value:
    top = _reduced(F.amax, x, [dim], True, site)
    e = pointwise(lambda a, b: F.exp(a - b), x, top)
    return pointwise(operator.truediv, e, _reduced(F.sum, e, [dim], True, site))


def _log_softmax(site: Site, x: Value, dim: int, half_to_float: bool = False) -> Value:
    top = _reduced(F.amax, x, [dim], True, site)
    e = pointwise(lambda a, b: F.exp(a - b), x, top)
    total = _reduced(F.sum, e, [dim], True, site)
    return pointwise(lambda a, b, c: a - b - F.log(c), x, top, total)


def _gather(site: Site, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """The element at one id a row: the sum over the row of what is there alone."""
    rank = len(x.axes)
    if not rank or len(index.axes) != rank or dim % rank != rank - 1 or index.size(-1) != 1:
        raise Untaken("it is no choice of one element a row")
    length = x.size(-1)
    if not isinstance(length, Dim):
        raise Untaken("it is no choice of one element a row")
    picked = pointwise(lambda a, i: where(arange(length) == i, a, 0.0), x, index)
    return _reduced(F.sum, picked, [-1], True, site)


# Products.


def _factor(x: Value) -> Expr:
    if x.expr.op != "input":
        raise Untaken("its factors are not in memory")
    return x.expr


def _product(site: Site, a: Value, b: Value) -> Value:
    product = _factor(a) @ _factor(b)
    return Value(product, tuple(range(-len(product.shape.dims), 0)))


def _product_plus(site: Site, c: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    product = _product(site, a, b)
    if beta == 0:  # what is added is not read, whatever it is
        return product if alpha == 1 else pointwise(lambda x: x * alpha, product)

    def total(x: Expr, y: Expr) -> Expr:
        return (x if alpha == 1 else x * alpha) + (y if beta == 1 else y * beta)

    return pointwise(total, product, c)


# What is found by index.


def _embedding(site: Site, table: Value, ids: Value, *more: Any) -> Value:
    found = take(_factor(table), ids.expr, axis=0)
    return Value(found, tuple(range(-len(found.shape.dims), 0)))


# Views: the same elements, with axes of size 1 more or less.


def _same(site: Site, x: Value, *more: Any, **options: Any) -> Value:
    return x


def _viewed(site: Site, x: Value, *more: Any) -> Value:
    """A view whose axes, but for those of size 1, are those of its operand."""
    full = [a for i, a in enumerate(x.axes) if x.size(i) != 1]
    wide = [i for i, n in enumerate(site.shape) if n != 1]
    if [x.expr.shape.dims[a] for a in full] != [site.shape[i] for i in wide]:
        raise Untaken("it splits or joins axes, or broadcasts")
    axes: list[int] = [0] * len(site.shape)
    for i, a in zip(wide, full):
        axes[i] = a
    last = 0
    for i in range(len(axes) - 1, -1, -1):
        axes[i] = axes[i] or last - 1  # one of size 1 takes the place before the next
        last = axes[i]
    dims = x.expr.shape.dims
    if any(a >= b for a, b in itertools.pairwise(axes)) or any(
        -a <= len(dims) and dims[a] != 1 for i, a in enumerate(axes) if i not in wide
    ):
        raise Untaken("it has an axis of size 1 where the region has none")
    return Value(x.expr, tuple(axes))


def _expanded(site: Site, x: Value, *more: Any, **options: Any) -> Value:
    """What is broadcast stays as it is; further axes stand before the expression's."""
    missing = len(site.shape) - len(x.axes)
    first = min([*x.axes, -len(x.expr.shape.dims)], default=0)
    return Value(x.expr, (*range(first - missing, first), *x.axes))


_UNARY: dict[str, Callable[..., Expr]] = {
    "neg": operator.neg, "abs": operator.abs, "exp": F.exp, "exp2": F.exp2, "expm1": F.expm1, "log": F.log, "log2": F.log2,
    "log1p": F.log1p, "sqrt": F.sqrt, "rsqrt": F.rsqrt, "tanh": F.tanh, "erf": F.erf, "erfc": F.erfc, "sigmoid": F.sigmoid,
    "sin": F.sin, "cos": F.cos, "floor": F.floor, "ceil": F.ceil, "round": F.round, "reciprocal": F.reciprocal,
    "relu": F.relu, "silu": F.silu,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Expr]] = {
    "mul": operator.mul, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
    "ne": operator.ne,
}  # fmt: skip

#: All that is translated, by torch's op.
ROWS: dict[Any, Row] = {
    **{getattr(_aten, name).default: _plain(function, 1) for name, function in _UNARY.items()},
    **{
        getattr(getattr(_aten, name), kind): _plain(function, 2)
        for name, function in _BINARY.items()
        for kind in ("Tensor", "Scalar")
    },
    **{getattr(_aten.add, kind): _scaled(operator.add) for kind in ("Tensor", "Scalar")},
    **{getattr(_aten.sub, kind): _scaled(operator.sub) for kind in ("Tensor", "Scalar")},
    **dict.fromkeys((_aten.div.Tensor, _aten.div.Scalar, _aten.div.Tensor_mode), Row("pointwise", _div)),
    **dict.fromkeys((_aten.pow.Tensor_Scalar, _aten.pow.Tensor_Tensor, _aten.pow.Scalar), Row("pointwise", _pow)),
    **dict.fromkeys((_aten.clamp.default, _aten.clamp.Tensor), Row("pointwise", _clamp)),
    _aten.maximum.default: _plain(F.maximum, 2),
    _aten.minimum.default: _plain(F.minimum, 2),
    _aten.clamp_min.default: _plain(F.maximum, 2),
    _aten.clamp_max.default: _plain(F.minimum, 2),
    _aten.gelu.default: Row("pointwise", _gelu),
    _aten.where.self: _plain(where, 3),
    **dict.fromkeys((_aten.logical_and.default, _aten.bitwise_and.Tensor), _logical(operator.and_)),
    **dict.fromkeys((_aten.logical_or.default, _aten.bitwise_or.Tensor), _logical(operator.or_)),
    **dict.fromkeys((_aten.logical_not.default, _aten.bitwise_not.default), _logical(operator.invert)),
    **dict.fromkeys((_prims.convert_element_type.default, _aten._to_copy.default), Row("pointwise", _convert)),
    **dict.fromkeys(
        (_aten.full.default, _aten.scalar_tensor.default, _aten.full_like.default), Row("pointwise", _full)
    ),
    _prims.iota.default: Row("pointwise", _iota),
    **dict.fromkeys((_aten.sum.dim_IntList, _aten.sum.default), _reduction(F.sum)),
    **dict.fromkeys((_aten.mean.dim, _aten.mean.default), _reduction(F.mean)),
    _aten.amax.default: _reduction(F.amax),
    _aten.amin.default: _reduction(F.amin),
    _aten.var_mean.correction: Row("reduction", _var_mean),
    _aten.var.correction: Row("reduction", _var),
    _aten._softmax.default: Row("reduction", _softmax),
    _aten._log_softmax.default: Row("reduction", _log_softmax),
    _aten.gather.default: Row("reduction", _gather),
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default), Row("product", _product)),
    **dict.fromkeys((_aten.addmm.default, _aten.baddbmm.default), Row("product", _product_plus)),
    _aten.embedding.default: Row("index", _embedding),
    **dict.fromkeys((_aten.clone.default, _aten.alias.default, _aten.detach.default), Row("view", _same)),
    **dict.fromkeys(
        (
            _aten.view.default,
            _aten.reshape.default,
            _aten._unsafe_view.default,
            _aten.unsqueeze.default,
            _aten.squeeze.dim,
            _aten.squeeze.dims,
        ),
        Row("view", _viewed),
    ),
    _aten.expand.default: Row("view", _expanded),
    operator.getitem: Row("view", lambda site, values, index: values[index]),
}


def check(value: Value, site: Site) -> None:
    """Raises Untaken where a value is not of its site's dtype, or of that which arithmetic on it is done in."""
    own = value.expr.dtype
    if own is not site.dtype and (not own.is_float or compute_dtype(own) is not compute_dtype(site.dtype)):
        raise Untaken(f"torch's result is {site.dtype}, kgen's {own}")
