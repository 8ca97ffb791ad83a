"""The graph by torch, as its user would write it: one torch call a node, in the operands' own dtypes, fused where torch is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx

from kgen.bench import grouped, moves, patterns
from kgen.bench.fusions import ACTIVATIONS, fusions
from kgen.dsl.expr import Expr
from kgen.dsl.operator import Graph, TensorSpec, left_out
from kgen.dsl.ops import NUMBERS, PRODUCTS
from kgen.dsl.problem import Problem
from kgen.dsl.size import evaluate
from kgen.dsl.types import DType, bf16, e4m3, e5m2, f16, f32, tf32
from kgen.numerics.dtypes import torch_dtype

Value = Any  # a torch.Tensor, a number, or a torch.fx.Proxy

#: torch's function of each pointwise op's operands.
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "floordiv": operator.floordiv, "mod": operator.mod,
    "neg": operator.neg, "abs": torch.abs, "and": torch.logical_and, "or": torch.logical_or, "not": torch.logical_not,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "tanh": torch.tanh, "erf": torch.erf, "erfc": torch.erfc,
    "sigmoid": torch.sigmoid, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "reciprocal": torch.reciprocal, "where": torch.where, "atan2": torch.atan2,
    "maximum": lambda x, y: _extremum("maximum", x, y), "minimum": lambda x, y: _extremum("minimum", x, y),
}  # fmt: skip

#: Operations that compute nothing.
_VIEWS = frozenset({"input", "transpose", "take"})


def why_not(graph: Graph) -> str | None:
    """Why torch cannot evaluate the graph op by op; None when it can."""
    for node in graph.nodes:
        if node.op == "matmul" and (node.args[0].dtype.kind != "float" or node.args[0].dtype in (e4m3, e5m2)):
            return f"torch.matmul takes no {node.args[0].dtype} on a GPU"
        if node.op == "grouped_matmul" and grouped.why_not(node):
            return grouped.why_not(node)
        if node.op not in CALLS:
            return LACKING[node.op].format(name=getattr(node.attr, "name", ""))
    return None


def is_random(graph: Graph) -> bool:
    """Whether torch, which has random numbers of its own, computes other values of the same distribution."""
    return any(node.op == "random" for node in graph.nodes)


def function(
    problem: Problem, scalars: Mapping[str, float], compiled: bool = False
) -> Callable[..., tuple[Value, ...]]:
    """The graph as a function of its inputs, in order, that makes one torch call after the other and nothing else.

    `compiled`: only calls that torch.compile can trace.
    """
    record = torch.fx.Graph()
    tracer = torch.fx.proxy.GraphAppendingTracer(record)
    inputs = {spec.name: torch.fx.Proxy(record.placeholder(spec.name), tracer) for spec in problem.graph.inputs}
    record.output(tuple(value.node for value in _Writer(problem, inputs, scalars, compiled).results()))
    return torch.fx.GraphModule({}, record).forward


class _Writer:
    """Calls torch node by node, on proxies. Eager torch rounds after every call."""

    def __init__(
        self, problem: Problem, inputs: Mapping[str, torch.fx.Proxy], scalars: Mapping[str, float], compiled: bool
    ) -> None:
        self.problem, self.inputs, self.scalars, self.compiled = problem, inputs, scalars, compiled
        graph = problem.graph
        self.wanted = {id(node): spec.dtype for node, spec in zip(graph.results, graph.outputs)}
        self.computes_narrow = any(
            node.op not in _VIEWS and any(_narrow(a.dtype) for a in node.args) for node in graph.nodes
        )
        self.done: dict[int, Value] = {}

    def results(self) -> tuple[Value, ...]:
        """The outputs, each in its dtype."""
        graph = self.problem.graph
        if len(graph.results) > 1:
            self.fuse(graph.results)
        return tuple(self.fitted(node, spec) for node, spec in zip(graph.results, graph.outputs))

    def fitted(self, node: Expr, spec: TensorSpec) -> Value:
        """A result in the shape and dtype of its output."""
        value, axes = self.of(node), left_out(node, spec)
        for axis in axes:
            value = value.squeeze(axis)
        kept = tuple(d for a, d in enumerate(node.shape.dims) if a - len(node.shape.dims) not in axes)
        if kept != spec.shape.dims:
            value = value.expand(self.problem.operand(spec.name).shape)
        if node.op in _VIEWS and node.op != "take":  # a view: the copy is all there is to do
            return value.to(torch_dtype(spec.dtype), copy=True, memory_format=torch.contiguous_format)
        return value.to(torch_dtype(spec.dtype))

    def of(self, node: Expr) -> Value:
        """The value of a node."""
        if id(node) not in self.done and not self.fuse((node,)):
            fused = patterns.activation(node)
            if fused and fused.name in ACTIVATIONS and fused.argument.op not in NUMBERS:
                self.done[id(node)] = ACTIVATIONS[fused.name](self.of(fused.argument), *map(self.of, fused.numbers))
            else:
                self.done[id(node)] = self.call(node)
        return self.done[id(node)]

    def fuse(self, nodes: tuple[Expr, ...]) -> bool:
        """Gives the nodes their values by one call of torch where there is one."""
        for fusion in fusions():
            holes = fusion.match(nodes)
            if holes is None or any(h.op in NUMBERS for n, h in holes.items() if n in ("x", "y", "dy")):
                continue
            rows = holes[next(name for name in ("x", "y", *holes) if name in holes)].shape.dims
            length = evaluate(rows[-1], self.problem.sizes) if rows else 0
            values = {name: self.of(hole) for name, hole in holes.items()}
            self.done |= {id(node): value for node, value in zip(nodes, fusion.call(values, length))}
            return True
        return False

    def call(self, node: Expr) -> Value:
        """One node by one call."""
        return CALLS[node.op](self, node)

    def input(self, node: Expr) -> Value:
        """An input; what kgen only stores in narrower types is widened for torch: i8 would wrap, fp8 has no arithmetic."""
        value = self.inputs[node.attr]
        wide = torch.float32 if node.dtype.is_float else torch.int32
        return value.to(wide) if self.computes_narrow and _narrow(node.dtype) else value

    def pointwise(self, node: Expr) -> Value:
        """A function of the operands; of numbers alone it is a number, and no work of the GPU's."""
        for found in (moves.rotated(self, node), moves.index_add(self, node)):
            if found is not None:
                return found
        values = [self.of(argument) for argument in node.args]
        if all(isinstance(value, (int, float)) for value in values):
            return _number(values, node)
        return _function(node)(*values)

    def reduce(self, node: Expr) -> Value:
        """sum, mean, amax, amin, argmax, or a dot product. Sums of a narrow input are made in the dtype of the result."""
        x, axis = node.args[0], node.attr
        wanted = self.wanted.get(id(node), node.dtype)
        if node.op == "sum" and axis is None and x.op == "mul" and all(a.op == "input" for a in x.args):
            a, b = x.args
            if a.dtype is b.dtype is wanted and a.shape == b.shape and wanted.is_float and not _narrow(wanted):
                return torch.dot(self.of(a).reshape(-1), self.of(b).reshape(-1))
        options: dict[str, Any] = {} if axis is None else {"dim": axis, "keepdim": True}
        plain = x.args[0] if x.op == "cast" and x.dtype.kind == "int" else x
        if node.op == "sum" and plain.op == "input" and plain.dtype.kind == "int":
            options["dtype"] = torch_dtype(node.dtype)
            return getattr(torch, node.op)(self.inputs[plain.attr], **options)
        wider = x.op == "input" and x.dtype.is_float and wanted.bits > x.dtype.bits
        if (node.op == "mean" and not x.dtype.is_float) or (node.op in ("sum", "mean") and wider):
            options["dtype"] = torch_dtype(wanted)
        return getattr(torch, node.op)(self.of(x), **options)

    def scan(self, node: Expr) -> Value:
        """cumsum, cumprod, logcumsumexp; the first two in the dtype of a wider result."""
        (x,), wanted = node.args, self.wanted.get(id(node), node.dtype)
        wider = x.op == "input" and wanted.bits > x.dtype.bits and node.op != "logcumsumexp"
        return getattr(torch, node.op)(self.of(x), dim=-1, **({"dtype": torch_dtype(wanted)} if wider else {}))


def _narrow(dtype: DType) -> bool:
    return dtype in (e4m3, e5m2) or (dtype.kind == "int" and dtype.bits < 32)


def _function(node: Expr) -> Callable[..., Value]:
    return FUNCTIONS[node.op] if node.op != "cast" else lambda x: x.to(torch_dtype(node.dtype))


def _number(values: list[Value], node: Expr) -> float | int:
    tensors = [torch.tensor(value, dtype=torch.float64 if node.dtype.is_float else torch.int64) for value in values]
    return _function(node)(*tensors).item()  # type: ignore[no-any-return]


def _extremum(op: str, x: Value, y: Value) -> Value:
    """torch.maximum or minimum; against a number torch writes it as a clamp."""
    for value, limit in ((x, y), (y, x)):
        if isinstance(limit, (int, float)):
            return torch.clamp(value, min=limit) if op == "maximum" else torch.clamp(value, max=limit)
    return getattr(torch, op)(x, y)


#: What calls torch for each op.
CALLS: dict[str, Callable[[_Writer, Expr], Value]] = {
    "input": _Writer.input,
    "scalar": lambda w, node: w.scalars[node.attr],
    "const": lambda w, node: node.attr,
    **dict.fromkeys((*FUNCTIONS, "cast"), _Writer.pointwise),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "argmax"), _Writer.reduce),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _Writer.scan),
    "matmul": lambda w, node: torch.matmul(*map(w.of, node.args)),
    "transpose": lambda w, node: w.of(node.args[0]).transpose(-1, -2),
    **moves.CALLS,
}
#: The ops that have none, and what is said of a graph with one.
LACKING = {
    "repeat": "torch has no call that takes one scale for each block of elements",
    "external": "no torch call is known for {name}",
}


@contextmanager
def matmul_precision(graph: Graph) -> Iterator[None]:
    """torch.matmul with the products and sums that the graph asks for, and then the process's settings again.

    f32 operands are multiplied in f32, tf32 ones on tensor cores; f16 and bf16 products are summed in f32 throughout,
    unless the graph accumulates in f16.
    """
    node = next((n for n in graph.nodes if n.op in PRODUCTS), None)
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
