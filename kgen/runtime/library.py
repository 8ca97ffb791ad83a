"""Operators as custom operators of torch, for torch.compile: a graph that torch traces may hold one.

    op = kgen.runtime.library.register(kgen.gelu)     # torch.ops.kgen.gelu
    compiled = torch.compile(lambda x: op(x) + 1)

A call through torch's dispatcher costs more host time than the operator's own (see `kgen.runtime.operator`), so this is for
traced code alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kgen.dsl.errors import ArgumentError
from kgen.dsl.size import evaluate
from kgen.numerics.dtypes import torch_dtype
from kgen.runtime.operands import graph_of, is_short
from kgen.runtime.operator import KernelOperator

_LIBRARY = torch.library.Library("kgen", "FRAGMENT")
_registered: dict[str, KernelOperator] = {}


def register(operator: KernelOperator) -> Any:
    """The operator as `torch.ops.kgen.<name>`, without `out=`. Raises ArgumentError where another one has that name."""
    if not isinstance(operator, KernelOperator):
        raise ArgumentError(f"register expects an operator such as kgen.gelu, got a {type(operator).__name__}")
    name = operator.definition.name
    if name in _registered:
        if _registered[name] is not operator:
            raise ArgumentError(f"torch.ops.kgen.{name} is another operator already; rename one of the two")
    else:
        _LIBRARY.define(schema(operator))
        for device in ("CPU", "CUDA"):
            _LIBRARY.impl(name, lambda *given: operator(*given), device)
        torch.library.register_fake(f"kgen::{name}", lambda *given: _fake(operator, given), lib=_LIBRARY)
        _registered[name] = operator
    return getattr(torch.ops.kgen, name)


def schema(operator: KernelOperator) -> str:
    """The signature in torch's notation."""
    definition = operator.definition
    arguments = [f"Tensor {name}" for name in definition.tensors]
    for spec in definition.scalars:
        default = "" if spec.default is None else f"={spec.default}"
        arguments.append(f"{'float' if spec.dtype.is_float else 'int'} {spec.name}{default}")
    count = len(definition.outputs)
    result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    return f"{definition.name}({', '.join(arguments)}) -> {result}"


def _fake(operator: KernelOperator, given: tuple[Any, ...]) -> Any:
    """Outputs of the right shape and dtype without values; sizes may be symbols of torch."""
    definition = operator.definition
    tensors: list[Tensor] = [x for x in given if isinstance(x, Tensor)]
    graph = graph_of(definition, tensors, ())
    sizes: dict[str, Any] = {}
    heads = []
    short = any(map(is_short, graph.inputs, tensors))
    for spec, x in zip(graph.inputs, tensors):
        x = x.unsqueeze(-1) if is_short(spec, x) else x
        named = len(spec.shape.dims)
        for dim, size in zip(spec.shape.dims, x.shape[x.dim() - named :]):
            sizes.setdefault(str(dim), size)
        heads.append(x.shape[: x.dim() - named])
    leading = torch.broadcast_shapes(*heads)
    results = []
    for spec in graph.outputs:
        dims = spec.shape.dims[: len(spec.shape.dims) - (short and spec.shape.dims[-1:] == (1,))]
        shape = [evaluate(d, sizes) for d in dims]
        results.append(
            tensors[0].new_empty([*(leading if spec.shape.leading else ()), *shape], dtype=torch_dtype(spec.dtype))
        )
    return results[0] if len(results) == 1 else tuple(results)
