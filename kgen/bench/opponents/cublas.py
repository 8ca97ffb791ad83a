"""cuBLAS through torch: mm, matmul or addmm into the given output, with the graph's own precision; one mm a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from kgen.bench import blockwise, grouped
from kgen.bench.opponents import Launch, Operands
from kgen.bench.patterns import Product, product
from kgen.dsl.problem import Problem
from kgen.dsl.types import e4m3, e5m2, f16, i8, i32
from kgen.numerics.dtypes import torch_dtype


def why_not(problem: Problem) -> str | None:
    scaled = blockwise.product(problem.graph)
    if scaled:
        return blockwise.why_not(problem, *scaled)
    of_groups = grouped.product(problem.graph)
    if of_groups is not None:
        return grouped.why_not_one_by_one(problem, of_groups)
    found = product(problem.graph)
    if found is None or found.activation:
        return "cuBLAS through torch computes alpha * a @ b + beta * c and nothing around it"
    a, b, out = (problem.operand(name) for name in (found.a.name, found.b.name, problem.outputs[0].name))
    flat = len(a.shape) == len(b.shape) == 2
    if a.dtype is i8:
        ready = flat and found.pure and out.dtype is i32
        return None if ready else "torch has the product of two i8 matrices into i32 alone (_int_mm)"
    if a.dtype is e5m2:
        return "cuBLAS multiplies no two e5m2 matrices"
    if a.dtype is e4m3:
        columns = (b.strides[-1 if found.b.transposed else -2] == 1) if flat else False
        ready = flat and columns and found.c is None
        return None if ready else "torch has scale * a @ b of two fp8 matrices with b column-major alone (_scaled_mm)"
    if torch_dtype(a.dtype) is not torch_dtype(out.dtype):
        return f"torch.mm of {a.dtype} gives no {out.dtype}"
    if not found.pure and not (flat and found.c):
        return "torch has alpha, beta and c for two matrices with c alone (addmm)"
    if found.accumulate is f16 and not hasattr(torch._C, "_get_cublas_allow_fp16_accumulation"):
        return "this torch has no products that are summed in f16"
    return None


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    scaled, found = blockwise.product(problem.graph), product(problem.graph)
    of_groups = grouped.product(problem.graph)
    if scaled:
        calls = [blockwise.call(problem, *scaled, operands) for operands in sets]
    elif of_groups is not None:
        calls = [grouped.one_by_one(problem, of_groups, operands) for operands in sets]
    else:
        assert found is not None
        calls = [_call(problem, found, operands, scalars) for operands in sets]

    def launch(i: int) -> None:
        calls[i]()

    return launch


def _call(problem: Problem, found: Product, operands: Operands, scalars: Mapping[str, float]) -> Callable[[], object]:
    a, b = (operands[f.name].mT if f.transposed else operands[f.name] for f in (found.a, found.b))
    out = operands[problem.outputs[0].name]
    alpha, beta = (_number(value, scalars) for value in (found.alpha, found.beta))
    if a.dtype is torch.int8:
        return partial(torch._int_mm, a, b, out=out)
    if a.dtype is torch.float8_e4m3fn:
        scale, one = (torch.tensor(float(value), device=a.device) for value in (alpha, 1))
        # The sums stay in the tensor cores, as kgen's do: the faster of cuBLASLt's two ways.
        return partial(torch._scaled_mm, a, b, scale, one, out_dtype=out.dtype, out=out, use_fast_accum=True)
    if found.pure:
        return partial(torch.mm if a.dim() == b.dim() == 2 else torch.matmul, a, b, out=out)
    assert found.c is not None  # else the product is pure
    return partial(torch.addmm, operands[found.c], a, b, alpha=alpha, beta=beta, out=out)


def _number(value: float | str | None, scalars: Mapping[str, float]) -> float:
    """What alpha or beta stands for; 1 where the graph has none."""
    return 1 if value is None else scalars[value] if isinstance(value, str) else value
