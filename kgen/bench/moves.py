"""Moves: elements found or added by index, positions and exchanges, as torch's users write them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from kgen.bench import grouped
from kgen.bench.patterns import same
from kgen.dsl.expr import Expr
from kgen.dsl.indexing import arange, size
from kgen.dsl.ops import NUMBERS
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, evaluate
from kgen.numerics.dtypes import torch_dtype
from kgen.ops.gather.lookups import nearest

Value = Any  # a torch.fx.Proxy, or a number


class Writer(Protocol):
    """What calls torch node by node. `compiled`: only calls that torch.compile can trace."""

    problem: Problem
    inputs: Mapping[str, torch.fx.Proxy]
    compiled: bool

    def of(self, node: Expr) -> Value:
        """The value of a node."""


def sizes(w: Writer, node: Expr) -> tuple[int, ...]:
    """The sizes of a node's value."""
    named = tuple(evaluate(d, w.problem.sizes) for d in node.shape.dims)
    return (*w.problem.leading, *named) if node.shape.leading else named


def _make(w: Writer, function: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
    """A call that makes a tensor, on the device of the first input."""
    like = next(iter(w.inputs.values()))
    return like.tracer.create_proxy("call_function", function, arguments, {**options, "device": like.device})


def _arange(w: Writer, node: Expr) -> Value:
    shape = sizes(w, node)
    made = _make(w, torch.arange, shape[0])
    return made.reshape(shape) if len(shape) > 1 else made


def _size(w: Writer, node: Expr) -> Value:
    return evaluate(node.attr, w.problem.sizes)


def _random(w: Writer, node: Expr) -> Value:
    return _make(w, torch.rand, sizes(w, node))


def _halves(x: Value) -> tuple[Value, Value]:
    both = x.chunk(2, -1)
    return operator.getitem(both, 0), operator.getitem(both, 1)


def _exchange(w: Writer, node: Expr) -> Value:
    x = w.of(node.args[0])
    return torch.cat(_halves(x)[::-1], -1) if node.attr == "halves" else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def rotated(w: Writer, node: Expr) -> Value | None:
    """An exchange with the first of each two negated: what rotary embeddings multiply by the sine. None for other nodes."""
    if node.op != "where" or node.args[2].op != "exchange" or node.args[1].op != "neg":
        return None
    condition, negated, other = node.args
    dim = other.shape.dims[-1]
    if not isinstance(dim, Dim) or not same(negated.args[0], other):
        return None
    x = other.args[0]
    if other.attr == "halves" and same(condition, arange(dim) // (size(dim) // 2) == 0):
        first, second = _halves(w.of(x))
        return torch.cat((-second, first), -1)
    if other.attr == "pairs" and same(condition, arange(dim) % 2 == 0):
        both = w.of(x).unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((-operator.getitem(both, 1), operator.getitem(both, 0)), -1).flatten(-2)
    return None


def _take(w: Writer, node: Expr) -> Value:
    table, at = node.args
    if node.attr == -1 and table.op == "take" and table.attr == -2 and _is_nearest(node) and _is_nearest(table):
        images, target = table.args[0], sizes(w, node)[-2:]
        return _as_images(w, images, w.of(images), lambda x: F.interpolate(x, size=target, mode="nearest"))
    x, rank = w.of(table), len(sizes(w, at))
    if at.op == "arange" and at.shape.dims[0] == table.shape.dims[node.attr]:
        return x.unflatten(node.attr, sizes(w, at))
    ids = w.of(at)
    if node.attr == -2 and len(table.shape.dims) == 2 and not table.shape.leading:
        return F.embedding(ids, x)
    if rank == 1:
        return torch.index_select(x, node.attr, ids)
    found = torch.index_select(x, node.attr, ids.reshape(-1))
    return found.unflatten(node.attr, sizes(w, at)) if rank else found.squeeze(node.attr)


def _is_nearest(node: Expr) -> bool:
    """Whether a take, or a scatter_add, is by the places in the smaller axis that are nearest to those of the larger one."""
    if node.op == "take":
        ids, source = node.args[1], node.args[0].shape.dims[node.attr]
    else:
        ids, source = node.args[0], node.attr[0]
    target = ids.shape.dims[-1] if len(ids.shape.dims) == 1 else None
    return isinstance(source, Dim) and isinstance(target, Dim) and same(ids, nearest(source, target))


def _as_images(w: Writer, node: Expr, x: Value, function: Callable[[Value], Value]) -> Value:
    """A function of [batch, channels, height, width] on images with any leading sizes."""
    own = sizes(w, node)
    if len(own) == 4:
        return function(x)
    batch = math.prod(own[:-2])
    return function(x.reshape(1, batch, *own[-2:])).unflatten(1, own[:-2]).squeeze(0)


def _scatter_add(w: Writer, node: Expr) -> Value:
    dim, at, total = node.attr
    ids, added = node.args
    if at == -2 and added.op == "scatter_add" and added.attr[1] == -1 and _is_nearest(node) and _is_nearest(added):
        return _upsample_backward(w, node, added.args[1])
    flat = not added.shape.dims or added.shape == ids.shape
    where = w.of(ids).reshape(-1) if flat else w.of(ids)
    count = evaluate(dim, w.problem.sizes)
    if added.op == "const" and added.attr == 1 and not w.compiled:
        return torch.bincount(where, minlength=count)
    if (
        added.op == "input"
        and at == -2
        and len(added.shape.dims) == 2
        and any(r is node for r in w.problem.graph.results)
    ):
        return torch.ops.aten.embedding_dense_backward(w.of(added), where, count, -1, False)
    dtype = torch_dtype(total if added.op in NUMBERS else added.dtype)
    if not added.shape.dims:
        values = _make(w, torch.full, (math.prod(sizes(w, ids)),), w.of(added), dtype=dtype)
    else:
        values = w.of(added).reshape(-1) if flat else w.of(added)
    return _make(w, torch.zeros, sizes(w, node), dtype=dtype).index_add(at, where, values)


def _upsample_backward(w: Writer, node: Expr, given: Expr) -> Value:
    out, own = sizes(w, given)[-2:], sizes(w, node)

    def backward(dy: Value) -> Value:
        batch = own[:-2] if len(own) == 4 else (1, math.prod(own[:-2]))
        return torch.ops.aten.upsample_nearest2d_backward(dy, out, (*batch, *own[-2:]))

    return _as_images(w, given, w.of(given), backward)


def index_add(w: Writer, node: Expr) -> Value | None:
    """x + alpha * scatter_add(...) as one call; None for other nodes."""
    if node.op != "add":
        return None
    for x, scaled in (node.args, node.args[::-1]):
        alpha: Value = 1
        if scaled.op == "mul" and any(a.op in NUMBERS for a in scaled.args):
            number, scaled = sorted(scaled.args, key=lambda a: a.op not in NUMBERS)
            alpha = w.of(number)
        if scaled.op == "scatter_add" and x.shape == scaled.shape and x.op == "input" and scaled.args[1].shape.dims:
            return torch.index_add(w.of(x), scaled.attr[1], w.of(scaled.args[0]), w.of(scaled.args[1]), alpha=alpha)
    return None


def _grouped_matmul(w: Writer, node: Expr) -> Value:
    return grouped.call(*(w.of(argument) for argument in node.args))


#: The call for each of these nodes.
CALLS: dict[str, Callable[[Writer, Expr], Value]] = {
    "arange": _arange, "size": _size, "take": _take, "scatter_add": _scatter_add, "exchange": _exchange, "random": _random,
    "grouped_matmul": _grouped_matmul,
}  # fmt: skip
