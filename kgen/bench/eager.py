"""The graph by torch, as its user would write it: one torch call a node, in the operands' own dtypes, activations fused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from kgen.bench import patterns
from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph, TensorSpec
from kgen.dsl.types import DType, bf16, e4m3, e5m2, f16, f32, tf32
from kgen.tuner.dtypes import torch_dtype

Value = Any  # a torch.Tensor, a number, or a torch.fx.Proxy

#: The activations that torch has as one call.
FUSED: dict[str, Callable[..., Value]] = {
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
}

_CALLS: dict[str, Callable[..., Value]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "neg": operator.neg, "abs": torch.abs, "and": torch.logical_and, "or": torch.logical_or, "not": torch.logical_not,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "tanh": torch.tanh, "erf": torch.erf,
    "sigmoid": torch.sigmoid, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "reciprocal": torch.reciprocal, "where": torch.where,
    "transpose": lambda x: x.transpose(-1, -2), "matmul": torch.matmul,
}  # fmt: skip

_REDUCTIONS: dict[str, Callable[..., Value]] = {
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin,
}  # fmt: skip


def why_not(graph: Graph) -> str | None:
    """Why torch cannot evaluate the graph op by op; None when it can."""
    for node in graph.nodes:
        if node.op == "matmul" and (node.args[0].dtype.kind != "float" or node.args[0].dtype in (e4m3, e5m2)):
            return f"torch.matmul takes no {node.args[0].dtype} on a GPU"
        known = node.op in _CALLS or node.op in _REDUCTIONS or node.op in ("maximum", "minimum", "cast")
        if not known and node.op not in ("input", "scalar", "const"):
            return f"no torch call is known for {node.op}"
    return None


def function(graph: Graph, scalars: Mapping[str, float]) -> Callable[..., tuple[Value, ...]]:
    """The graph as a function of its inputs, in order, that makes one torch call after the other and nothing else."""
    record = torch.fx.Graph()
    tracer = torch.fx.proxy.GraphAppendingTracer(record)
    inputs = {spec.name: torch.fx.Proxy(record.placeholder(spec.name), tracer) for spec in graph.inputs}
    record.output(tuple(value.node for value in evaluate(graph, inputs, scalars)))
    return torch.fx.GraphModule({}, record).forward


def evaluate(graph: Graph, inputs: Mapping[str, Value], scalars: Mapping[str, float]) -> tuple[Value, ...]:
    """The outputs, each in its dtype, from tensors or torch.fx proxies. Eager torch rounds after every call."""
    done: dict[int, Value] = {}

    def of(node: Expr) -> Value:
        if id(node) not in done:
            fused = patterns.activation(node)
            if fused and fused.name in FUSED and fused.argument.op not in patterns.NUMBERS:
                done[id(node)] = FUSED[fused.name](of(fused.argument), *map(of, fused.numbers))
            else:
                done[id(node)] = _call(node, [of(argument) for argument in node.args], inputs, scalars)
        return done[id(node)]

    def fitted(node: Expr, spec: TensorSpec) -> Value:
        reduced = len(node.shape.dims) == len(spec.shape.dims) + 1
        return _as(of(node).squeeze(-1) if reduced else of(node), spec.dtype)

    return tuple(fitted(node, spec) for node, spec in zip(graph.results, graph.outputs))


def _call(node: Expr, values: list[Value], inputs: Mapping[str, Value], scalars: Mapping[str, float]) -> Value:
    if node.op == "input":
        # torch computes on what kgen only stores in narrower types: i8 would wrap, fp8 has no arithmetic.
        narrow = node.dtype in (e4m3, e5m2) or (node.dtype.kind == "int" and node.dtype.bits < 32)
        return (
            inputs[node.attr].to(torch.float32 if node.dtype.is_float else torch.int32) if narrow else inputs[node.attr]
        )
    if node.op in ("const", "scalar"):
        return node.attr if node.op == "const" else scalars[node.attr]
    if node.op == "cast":
        return _as(values[0], node.dtype)
    if node.op in ("maximum", "minimum"):
        return _extremum(node.op, *values)
    if node.op in _REDUCTIONS:
        over = {"dim": -1, "keepdim": True} if node.attr == -1 else {}
        return _REDUCTIONS[node.op](values[0], **over)
    return _CALLS[node.op](*values)


def _extremum(op: str, x: Value, y: Value) -> Value:
    """torch.maximum or minimum; against a number torch writes it as a clamp."""
    for value, limit in ((x, y), (y, x)):
        if isinstance(limit, (int, float)):
            return torch.clamp(value, **{"min" if op == "maximum" else "max": limit})
    return getattr(torch, op)(x, y)


def _as(value: Value, dtype: DType) -> Value:
    return value.to(torch_dtype(dtype))


@contextmanager
def matmul_precision(graph: Graph) -> Iterator[None]:
    """torch.matmul with the products and sums that the graph asks for, and then the process's settings again.

    f32 operands are multiplied in f32, tf32 ones on tensor cores; f16 and bf16 products are summed in f32 throughout,
    unless the graph accumulates in f16.
    """
    node = next((n for n in graph.nodes if n.op == "matmul"), None)
    settings = torch.backends.cuda.matmul
    wanted: dict[str, bool] = {}
    if node is not None:
        kind = node.args[0].dtype
        if kind in (f32, tf32):
            wanted["allow_tf32"] = kind is tf32
        elif kind in (f16, bf16):
            wanted[f"allow_{'fp16' if kind is f16 else 'bf16'}_reduced_precision_reduction"] = False
            if hasattr(torch._C, "_get_cublas_allow_fp16_accumulation"):
                wanted["allow_fp16_accumulation"] = node.attr is f16
    before = {name: getattr(settings, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(settings, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
