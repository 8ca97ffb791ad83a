"""What each op is on tensors, by the arithmetic of whoever evaluates a graph: a function of a node and its operands' values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kgen.dsl.expr import Axes, Expr
from kgen.dsl.operator import Graph
from kgen.dsl.ops import accumulator, operand_dtypes
from kgen.dsl.problem import broadcast_leading
from kgen.dsl.size import Dim
from kgen.dsl.size import evaluate as size_of
from kgen.dsl.types import DType, compute_dtype
from kgen.numerics.dtypes import round_to, torch_dtype
from kgen.numerics.philox import uniform
from kgen.numerics.products import integer_matmul


class Arithmetic:
    """The exact arithmetic: every float in float64, every integer in int64; of the tensors and numbers of one call.

    `sizes` and `leading` are those of the named dimensions and of the leading ones.
    """

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, float]
    scalar_types: Mapping[str, DType]
    sizes: dict[str, int]
    leading: tuple[int, ...]
    device: torch.device

    def begin(self, graph: Graph, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
        """Takes what a graph is evaluated on; outputs may be among the tensors, and tell sizes."""
        self.tensors, self.scalars, self.sizes, heads = tensors, scalars, {}, []
        self.device = next(iter(tensors.values())).device
        self.scalar_types = {spec.name: spec.dtype for spec in graph.scalars}
        for spec in (*graph.inputs, *graph.outputs):
            if spec.name in tensors:
                shape = tuple(tensors[spec.name].shape)
                own = len(shape) - len(spec.shape.dims)
                self.sizes |= {d.name: n for d, n in zip(spec.shape.dims, shape[own:]) if isinstance(d, Dim)}
                heads += [shape[:own]] if spec.shape.leading else []
        self.leading = broadcast_leading(graph, heads)

    def shape(self, node: Expr) -> tuple[int, ...]:
        """The sizes of a node's value."""
        named = tuple(size_of(d, self.sizes) for d in node.shape.dims)
        return (*self.leading, *named) if node.shape.leading else named

    def held(self, dtype: DType) -> torch.dtype:
        """What a value of `dtype` is kept in."""
        return {"float": torch.float64, "int": torch.int64, "bool": torch.bool}[dtype.kind]

    def load(self, x: Tensor, dtype: DType) -> Tensor:
        return x.to(self.held(dtype))

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return round_to(x, dtype).to(self.held(dtype))

    def matmul(self, node: Expr, a: Tensor, b: Tensor) -> Tensor:
        return integer_matmul(a, b) if node.dtype.kind == "int" else torch.matmul(a, b)

    def done(self, node: Expr, value: Tensor, args: list[Tensor]) -> Tensor:
        """Called with every value as it is computed; gives what the next steps see of it."""
        return value


#: The value of a node, of the values of its operands.
Value = Callable[[Expr, list[Tensor], Arithmetic], Tensor]


def each(function: Callable[..., Tensor]) -> Value:
    """Element by element, of operands in the dtypes in which the op takes them."""

    def value(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
        return function(*(a.to(how.held(t)) for a, t in zip(args, operand_dtypes(node))))

    return value


def _divided(how: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The quotient or remainder of integers, which is 0 where y is."""
    none = y == 0
    return how(x, y.masked_fill(none, 1)).masked_fill(none, 0)


# Leaves and positions.


def _input(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    return how.load(how.tensors[node.attr], node.dtype)


def _scalar(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    dtype = torch_dtype(how.scalar_types[node.attr])
    return torch.tensor(how.scalars[node.attr], dtype=dtype, device=how.device).to(how.held(compute_dtype(node.dtype)))


def _const(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    return torch.tensor(node.attr, dtype=how.held(node.dtype), device=how.device)


def _arange(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    shape = how.shape(node)
    return torch.arange(shape[0], dtype=how.held(node.dtype), device=how.device).reshape(shape)


def _size(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    return torch.tensor(how.sizes[node.attr.name], dtype=how.held(node.dtype), device=how.device)


def _random(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    shape = how.shape(node)
    index = torch.arange(math.prod(shape), device=how.device).reshape(shape)
    return uniform(index, int(args[0]), int(args[1])).to(how.held(node.dtype))


# Moves.


def _transpose(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    return args[0].mT


def _repeat(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    count, axis = node.attr
    return args[0].repeat_interleave(count, axis).narrow(axis, 0, size_of(node.shape.dims[axis], how.sizes))


def _exchange(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    (x,) = args
    if node.attr == "halves":
        return x.roll(x.shape[-1] // 2, -1)
    return x.reshape(*x.shape[:-1], -1, 2).flip(-1).reshape(x.shape)


def _take(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    x, ids = args
    axis, size = node.attr + x.dim(), x.shape[node.attr]
    flat = ids.reshape(-1).long()
    inside = (flat >= 0) & (flat < size)
    if not size:
        found = x.new_zeros((*x.shape[:axis], flat.numel(), *x.shape[axis + 1 :]))
    else:
        found = x.index_select(axis, torch.where(inside, flat, 0))
        mask = inside.reshape(-1, *(1,) * (x.dim() - axis - 1))
        found = torch.where(mask, found, torch.zeros((), dtype=x.dtype, device=x.device))
    return found.reshape((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]))


# Sums, and what else is computed of several terms.


def _scatter_add(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    dim, at, total = node.attr
    ids, values = args[0].long(), args[1]
    size = how.sizes[dim.name]
    if len(node.args[1].shape.dims) == 0 or node.args[1].shape == node.args[0].shape:
        values, ids = values.expand(ids.shape).reshape(-1), ids.reshape(-1)
    axis = at + values.dim()
    inside = ((ids >= 0) & (ids < size)).nonzero().reshape(-1)
    held = how.held(total)
    found = torch.zeros((*values.shape[:axis], size, *values.shape[axis + 1 :]), dtype=held, device=values.device)
    found.index_add_(axis, ids[inside], values.index_select(axis, inside).to(held))
    return found.to(how.held(node.dtype))


def reduced(op: str, x: Tensor, axis: Axes) -> Tensor:
    """sum, mean, amax, amin or argmax of a tensor, over axes that stay, or over all."""
    if op == "argmax":
        # torch names any of several equals.
        flat = x if axis is not None else x.reshape(-1)
        largest = flat.amax(-1, keepdim=True)
        hit = (flat == largest) | (flat.isnan() & largest.isnan())
        return hit.to(torch.uint8).argmax(-1, keepdim=axis is not None)
    function: Any = getattr(torch, op)
    if axis is None:
        return function(x.reshape(-1), dim=0)  # type: ignore[no-any-return]
    return function(x, dim=axis, keepdim=True)  # type: ignore[no-any-return]


def _reduction(op: str) -> Value:
    def value(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
        # What is reduced is held as it is: its own dtype need not be the result's.
        return reduced(op, args[0].to(how.held(accumulator(node))), node.attr).to(how.held(node.dtype))

    return value


def _scan(op: str) -> Value:
    function: Any = getattr(torch, op)

    def value(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
        found: Tensor = function(args[0].to(how.held(accumulator(node))), dim=-1)
        return found.to(how.held(node.dtype))

    return value


def _grouped_matmul(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    a, b, offsets = args
    found = a.new_zeros((a.shape[0], b.shape[2]), dtype=how.held(node.dtype))
    begin = 0
    for g, end in enumerate(offsets[1:].clamp(0, a.shape[0]).tolist()):
        if end > begin:
            found[begin:end] = how.matmul(node, a[begin:end], b[g])
            begin = end
    return found


def _external(node: Expr, args: list[Tensor], how: Arithmetic) -> Tensor:
    found: Tensor = node.attr.reference(*args)[node.attr.index]
    return found.to(how.held(node.dtype))


#: Those of torch's own names.
_TORCHS = (
    "add", "sub", "mul", "div", "pow", "atan2", "maximum", "minimum", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne", "where",
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "erf", "erfc", "sigmoid", "sin", "cos",
    "floor", "ceil", "round", "reciprocal",
)  # fmt: skip
#: Every op.
VALUES: dict[str, Value] = {
    **{name: each(getattr(torch, name)) for name in _TORCHS},
    **{name: _reduction(name) for name in ("sum", "mean", "amax", "amin", "argmax")},
    **{name: _scan(name) for name in ("cumsum", "cumprod", "logcumsumexp")},
    "floordiv": each(partial(_divided, torch.floor_divide)),
    "mod": each(partial(_divided, torch.remainder)),
    "and": each(torch.logical_and),
    "or": each(torch.logical_or),
    "not": each(torch.logical_not),
    "cast": lambda node, args, how: how.cast(args[0], node.dtype),
    "input": _input,
    "scalar": _scalar,
    "const": _const,
    "arange": _arange,
    "size": _size,
    "random": _random,
    "transpose": _transpose,
    "repeat": _repeat,
    "exchange": _exchange,
    "take": _take,
    "scatter_add": _scatter_add,
    "matmul": lambda node, args, how: how.matmul(node, args[0], args[1]),
    "grouped_matmul": _grouped_matmul,
    "external": _external,
}
