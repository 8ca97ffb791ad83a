"""torch.autocast: an operator takes the dtypes that torch's own op of its kind would, by its graph.

| the graph has | floats are cast to | as torch's |
|---|---|---|
| a product | the dtype of autocast | linear, matmul, scaled_dot_product_attention |
| else a sum | f32 | softmax, layer_norm, cross_entropy, cumsum |
| neither | the widest among them | add, index_add |

Casts are torch's, so that gradients pass. f64 and fp8 stay, as do calls whose dtypes an operator is not defined for, and calls
with out=. What an operator gives has the dtype that it has for these inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from kgen.dsl.operator import Operator
from kgen.dsl.ops import OPS
from kgen.dsl.problem import Problem
from kgen.numerics.dtypes import torch_dtype

Policy = Literal["autocast", "f32", "widest"]

#: What autocast casts, as torch's.
_CAST = (torch.float16, torch.bfloat16, torch.float32)


def policy_of(definition: Operator) -> Policy:
    """What an operator's floats are cast to."""
    rows = [OPS[node.op] for node in definition.graphs[0].nodes]
    if any(row.kind == "product" for row in rows):
        return "autocast"
    return "f32" if any(row.sums for row in rows) else "widest"


def is_castable(definition: Operator, problem: Problem) -> bool:
    """Whether autocast, to f16 or bf16, casts the inputs of a problem of the operator."""
    given = tuple(torch_dtype(o.dtype) for o in problem.inputs)
    return any(wanted(definition, given, low) != given for low in (torch.float16, torch.bfloat16))


@functools.lru_cache(maxsize=4096)
def wanted(definition: Operator, given: tuple[torch.dtype, ...], low: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtypes that inputs of the dtypes `given` are cast to, where autocast is to `low`: those given where none are."""
    own = {t for t in given if t in _CAST}
    policy = policy_of(definition)
    kind = low if policy == "autocast" else torch.float32 if policy == "f32" or len(own) > 1 else None
    cast = tuple(kind if kind is not None and t in _CAST else t for t in given)
    taken = {tuple(torch_dtype(spec.dtype) for spec in graph.inputs) for graph in definition.graphs}
    return cast if cast in taken else given


def is_on(device: str) -> bool:
    """Whether autocast is on for a kind of device that has it."""
    return device in ("cpu", "cuda") and torch.is_autocast_enabled(device)


def cast(definition: Operator, tensors: Sequence[Any]) -> Sequence[Any] | None:
    """The inputs as autocast wants them where it is on for their device; None where they stay as they are."""
    if not all(isinstance(x, Tensor) for x in tensors) or not is_on(tensors[0].device.type):
        return None
    given = tuple(x.dtype for x in tensors)
    dtypes = wanted(definition, given, torch.get_autocast_dtype(tensors[0].device.type))
    return None if dtypes == given else [x.to(t) for x, t in zip(tensors, dtypes)]
