"""Fusions: what torch's users write as one call, as patterns with that call: softmax, norms, losses, their gradients, dropout.

A fusion is one or several results over the same holes; one of several results matches the results of a whole graph alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as nn

from kgen.bench.patterns import Holes, hole, match_all
from kgen.dsl import functions as F
from kgen.dsl.expr import Expr, Shape, where
from kgen.dsl.indexing import arange
from kgen.dsl.operator import Operator, Tensor
from kgen.dsl.ops import NUMBERS
from kgen.dsl.size import Dim
from kgen.dsl.types import f32, i64
from kgen.ops.gather import lookups

Value = Any  # a torch.Tensor, a number, or a torch.fx.Proxy
_N = Dim("N")

#: The activations that torch has as one call.
ACTIVATIONS: dict[str, Callable[..., Value]] = {
    "relu": torch.relu,
    "silu": nn.silu,
    "gelu": lambda x: nn.gelu(x, approximate="tanh"),
    "gelu_erf": nn.gelu,
    "elu": nn.elu,
    "hardswish": nn.hardswish,
    "hardshrink": nn.hardshrink,
}


@dataclass(frozen=True)
class Fusion:
    """`call(values by hole, length of the last axis of the hole x or y)` gives a value for each of `results`."""

    name: str
    results: tuple[Expr, ...]
    call: Callable[[Mapping[str, Value], int], tuple[Value, ...]]

    def match(self, nodes: Sequence[Expr]) -> Holes | None:
        """What the holes stand for where the nodes compute this; None where they do not."""
        found = match_all(self.results, nodes)
        return None if found is None else {name: _stored(node) for name, node in found.items()}


def _stored(node: Expr) -> Expr:
    """The node without casts to f32: torch's fused calls compute in f32 by themselves."""
    while node.op == "cast" and node.dtype is f32 and node.args[0].dtype.is_float:
        node = node.args[0]
    return node


@functools.cache
def fusions() -> tuple[Fusion, ...]:
    """All of them, the larger ones first."""
    rows, column = Shape((_N,), leading=True), Shape((1,), leading=True)
    x, y, dy = hole("x", rows), hole("y", rows), hole("dy", rows)
    weight, bias = (
        hole("weight", Shape((_N,)), ("input",), exact=True),
        hole("bias", Shape((_N,)), ("input",), exact=True),
    )
    mean, rstd = hole("mean", column, ("input",)), hole("rstd", column, ("input",))
    eps, p, ignore = hole("eps", Shape(), NUMBERS), hole("p", Shape(), NUMBERS), hole("ignore", Shape(), NUMBERS)
    seed, offset = hole("seed", Shape(), NUMBERS, i64), hole("offset", Shape(), NUMBERS, i64)
    target = hole("target", column, ("input",), i64)

    top = F.amax(x)
    powers = F.exp(x - top)
    logsumexp = top + F.log(F.sum(powers))
    centred = x - F.mean(x)
    deviation = F.rsqrt(F.mean(centred * centred) + eps)
    root = F.rsqrt(F.mean(x * x) + eps)
    normed, scaled = (x - mean) * rstd, dy * weight
    layer_gradient = (scaled - F.mean(scaled) - normed * F.mean(scaled * normed)) * rstd
    rms_gradient = (scaled - (x * rstd) * F.mean(scaled * (x * rstd))) * rstd
    chosen = F.sum(where(arange(_N) == target, x, 0.0))
    loss = where(target == ignore, 0.0, logsumexp - chosen)

    def one(name: str, result: Expr, call: Callable[[Mapping[str, Value], int], Value]) -> Fusion:
        return Fusion(name, (result,), lambda v, n: (call(v, n),))

    found = [
        Fusion("native_layer_norm", (centred * deviation * weight + bias, F.mean(x), deviation), _native_layer_norm),
        one("layer_norm_backward", layer_gradient, _layer_norm_backward),
        one("layer_norm", centred * deviation * weight + bias, _layer_norm),
        one("layer_norm", centred * deviation * weight, _layer_norm),
        one("layer_norm", centred * deviation, _layer_norm),
        one("rms_norm", x * root * weight, _rms_norm),
        one("rms_norm", x * root, _rms_norm),
        one("cross_entropy", loss, _cross_entropy),
        one("softmax", powers / F.sum(powers), lambda v, n: nn.softmax(v["x"], dim=-1)),
        one("log_softmax", x - top - F.log(F.sum(powers)), lambda v, n: nn.log_softmax(v["x"], dim=-1)),
        one("log_softmax", x - logsumexp, lambda v, n: nn.log_softmax(v["x"], dim=-1)),
        one(
            "logsumexp",
            where(abs(top) == math.inf, top, logsumexp),
            lambda v, n: torch.logsumexp(v["x"], dim=-1, keepdim=True),
        ),
        one("softmax_backward", y * (dy - F.sum(dy * y)), _softmax_backward),
        one("log_softmax_backward", dy - F.exp(y) * F.sum(dy), _log_softmax_backward),
        one("dropout", F.dropout(x, p, seed, offset), lambda v, n: nn.dropout(v["x"], v["p"])),
        one("norm", F.sqrt(F.sum(x * x, None)), lambda v, n: torch.linalg.vector_norm(v["x"])),
    ]
    parts = {
        name: hole(name, spec.shape, ("input",)) for name, spec in _specs(lookups.concat_sequence, lookups.merge_heads)
    }
    for operator in (lookups.concat_sequence, lookups.merge_heads):
        names = tuple(operator.tensors)
        found.append(one(operator.name, operator.function(*(parts[n] for n in names)), _concatenation(names)))
    if torch.cuda.is_available() and hasattr(torch.ops.aten, "_fused_rms_norm_backward"):  # for GPUs alone, since 2.9
        found.insert(0, Fusion("fused_rms_norm", (x * root * weight, root), _fused_rms_norm))
        found.insert(0, one("rms_norm_backward", rms_gradient, _rms_norm_backward))
    return tuple(found)


def _specs(*operators: Operator) -> list[tuple[str, Tensor]]:
    return [item for operator in operators for item in operator.tensors.items()]


def _concatenation(names: tuple[str, ...]) -> Callable[[Mapping[str, Value], int], Value]:
    return lambda v, n: torch.cat([v[name] for name in names], dim=2)


def _layer_norm(v: Mapping[str, Value], n: int) -> Value:
    return nn.layer_norm(v["x"], (n,), v.get("weight"), v.get("bias"), v["eps"])


def _native_layer_norm(v: Mapping[str, Value], n: int) -> tuple[Value, ...]:
    made = torch.native_layer_norm(v["x"], (n,), v["weight"], v["bias"], v["eps"])
    return made[0], made[1], made[2]


def _layer_norm_backward(v: Mapping[str, Value], n: int) -> Value:
    backward = torch.ops.aten.native_layer_norm_backward
    return backward(v["dy"], v["x"], (n,), v["mean"], v["rstd"], v["weight"], None, (True, False, False))[0]


def _rms_norm(v: Mapping[str, Value], n: int) -> Value:
    return nn.rms_norm(v["x"], (n,), v.get("weight"), v["eps"])


def _fused_rms_norm(v: Mapping[str, Value], n: int) -> tuple[Value, ...]:
    made = torch.ops.aten._fused_rms_norm(v["x"], (n,), v["weight"], v["eps"])
    return made[0], made[1]


def _rms_norm_backward(v: Mapping[str, Value], n: int) -> Value:
    backward = torch.ops.aten._fused_rms_norm_backward
    return backward(v["dy"], v["x"], (n,), v["rstd"], v["weight"], (True, False))[0]


def _cross_entropy(v: Mapping[str, Value], n: int) -> Value:
    target = v["target"].squeeze(-1).long()
    return nn.cross_entropy(v["x"], target, ignore_index=v["ignore"], reduction="none").unsqueeze(-1)


def _softmax_backward(v: Mapping[str, Value], n: int) -> Value:
    return torch._softmax_backward_data(v["dy"], v["y"], -1, v["y"].dtype)


def _log_softmax_backward(v: Mapping[str, Value], n: int) -> Value:
    return torch._log_softmax_backward_data(v["dy"], v["y"], -1, v["y"].dtype)
