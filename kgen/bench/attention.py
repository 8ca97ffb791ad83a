"""Attention as calls of torch: scaled_dot_product_attention by a backend, and FlexAttention for any score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from kgen.bench.eager import FUNCTIONS
from kgen.bench.opponents import Launch, Operands
from kgen.dsl.expr import Expr
from kgen.dsl.problem import Problem
from kgen.numerics.dtypes import torch_dtype
from kgen.ops.attention.algebra import Attention, attention, mask
from kgen.ops.attention.problem import describe

NO_ATTENTION = "it computes attention alone"


def sdpa_why_not(problem: Problem) -> str | None:
    """Why scaled_dot_product_attention cannot compute the problem, or None."""
    attended = attention(problem.graph)
    if attended is None:
        return NO_ATTENTION
    if attended.softmax is None:
        return "scaled_dot_product_attention has a softmax"
    bare, conditions = mask(attended.score)
    if bare is not attended.product or len(problem.outputs) > 1:
        return "scaled_dot_product_attention has scores of q @ k.T times a scale, and one result"
    if attended.dropped is not None or any(n.op in ("input", "arange") for n in _made_of_rows(attended)):
        return "scaled_dot_product_attention drops by other random numbers, and has no factors of rows"
    if conditions and (
        len(conditions) > 1 or _shift(conditions[0]) is None or describe(problem).M != describe(problem).N
    ):
        return "scaled_dot_product_attention's kernels have the causal mask of as many rows as columns"
    return None


def _made_of_rows(attended: Attention) -> list[Expr]:
    """The nodes of the rows' factor and results beside their reductions."""
    stack, found = list(attended.rows), list[Expr]()
    while stack:
        node = stack.pop()
        if all(node is not known for known in attended.of_row):
            found.append(node)
            stack.extend(node.args)
    return found


def _shift(condition: Expr) -> Expr | int | None:
    """What a causal mask adds to its rows; None of any other condition."""
    if condition.op != "ge" or condition.args[1].op != "arange":
        return None
    row = condition.args[0]
    if row.op == "arange":
        return 0
    return row.args[1] if row.op == "add" and row.args[0].op == "arange" and row.args[1].op == "scalar" else None


def sdpa(backend: SDPBackend, problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    """launch(i) of scaled_dot_product_attention by this backend; each group of heads shares its keys and values."""
    attended = attention(problem.graph)
    assert attended is not None
    _, conditions = mask(attended.score)
    shift = _shift(conditions[0]) if conditions else None
    if isinstance(shift, Expr) and scalars[shift.attr] != 0:
        raise ValueError("scaled_dot_product_attention's causal mask has no shift")
    scale, name = _scale(attended, problem, scalars), problem.outputs[0].name
    inputs = [_heads(attended, problem, operands) for operands in sets]

    def launch(i: int) -> None:
        with sdpa_kernel(backend):
            q, k, v = inputs[i]
            found = nn.scaled_dot_product_attention(
                q, k, v, is_causal=bool(conditions), scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        sets[i][name] = found.view(problem.outputs[0].shape)

    return launch


def _heads(attended: Attention, problem: Problem, operands: Operands) -> tuple[torch.Tensor, ...]:
    """q, k and v as [batch, heads, rows, columns]: axes that keys lack, or have of size 1, are of the heads' groups."""
    batch = describe(problem).batch
    q, k, v = (operands[name] for name in (attended.q, attended.k, attended.v))
    shared = k.dim() == q.dim() and q.dim() >= 3 and k.shape[-3] == 1 != q.shape[-3]
    last = 2 if shared else 1
    return tuple(
        x.reshape(-1, *(batch[-last:] if x is q else batch[-last:-1] if shared else batch[-1:]), *x.shape[-2:])
        .flatten(1, -3)
        for x in (q, k, v)
    )  # fmt: skip


def _scale(attended: Attention, problem: Problem, scalars: Mapping[str, float]) -> float:
    """The scores' factor."""
    return 1.0 if attended.scale is None else float(_value(attended.scale, problem, scalars, {}))


def _value(node: Expr, problem: Problem, scalars: Mapping[str, float], known: Mapping[int, Any]) -> Any:
    """An expression by torch's functions, from numbers and the nodes whose values are `known`."""
    if id(node) in known:
        return known[id(node)]
    if node.op == "scalar":
        return scalars[node.attr]
    if node.op == "const":
        return node.attr
    if node.op == "size":
        return problem.sizes[node.attr.name]
    given = [_value(a, problem, scalars, known) for a in node.args]
    if node.op == "cast":
        (x,) = given
        return (
            x.to(torch_dtype(node.dtype))
            if isinstance(x, torch.Tensor)
            else float(x)
            if node.dtype.is_float
            else int(x)
        )
    if any(isinstance(x, torch.Tensor) for x in given) or node.op in ("add", "sub", "mul", "div", "neg"):
        return FUNCTIONS[node.op](*given)
    return float(FUNCTIONS[node.op](*map(torch.tensor, given)))


def flex_why_not(problem: Problem) -> str | None:
    """Why FlexAttention cannot compute the problem, or None."""
    attended = attention(problem.graph)
    if attended is None:
        return NO_ATTENTION
    if attended.softmax is None:
        return "FlexAttention has a softmax"
    if len(problem.outputs) > 1:
        return "compared by its one result"
    if attended.dropped is not None:
        return "FlexAttention drops no weights"
    beside = [
        n.attr for n in attended.graph.nodes if n.op == "input" and n.attr not in (attended.q, attended.k, attended.v)
    ]
    return f"{beside[0]} is captured: left out" if beside else None


def flex(problem: Problem, sets: list[Operands], scalars: Mapping[str, float], compiled: bool = True) -> Launch:
    """launch(i) of FlexAttention: masks as a block mask, the rest of a score as its score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attended = attention(problem.graph)
    assert attended is not None
    bare, conditions = mask(attended.score)
    h, scale = describe(problem), _scale(attended, problem, scalars)
    places = {len(n.shape.dims): n for n in attended.graph.nodes if n.op == "arange"}

    def known(i: torch.Tensor, j: torch.Tensor) -> dict[int, Any]:
        return {id(node): {2: i, 1: j}[rank] for rank, node in places.items()}

    def seen(b: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        found = torch.ones_like(i, dtype=torch.bool)
        for condition in conditions:
            found = found & _value(condition, problem, scalars, known(i, j))
        return found

    def score_mod(
        score: torch.Tensor, b: torch.Tensor, head: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> torch.Tensor:
        value = _value(bare, problem, scalars, {id(attended.product): score, **known(i, j)})
        return value * scale  # type: ignore[no-any-return]

    inputs = [_heads(attended, problem, operands) for operands in sets]
    device = inputs[0][0].device
    blocks = create_block_mask(seen, None, None, h.M, h.N, device=str(device)) if conditions else None
    call: Any = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    scores = None if bare is attended.product and scale == 1.0 else score_mod
    name = problem.outputs[0].name

    def launch(i: int) -> None:
        q, k, v = inputs[i]
        found = call(q, k, v, score_mod=scores, block_mask=blocks, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
        sets[i][name] = found.reshape(problem.outputs[0].shape)

    launch(0)
    return launch
