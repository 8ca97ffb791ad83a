"""Triton: an autotuned matrix product with bias and activation, and an autotuned pointwise kernel, as a good user writes them."""

# What `triton.jit` takes is no Python: its parameters have no types that a checker knows.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kgen.bench import patterns
from kgen.bench.opponents import Launch, Operands
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.types import bf16, f16, f32, tf32

#: Activations that `_activate` knows.
_ACTIVATIONS = ("relu", "silu", "gelu", "quick_gelu", "sigmoid")
_FLOATS = (f16, bf16, f32, tf32)


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif ACTIVATION == "sigmoid":
        x = tl.sigmoid(x)
    return x


def _matmul_configs() -> list[Any]:
    """Tiles and pipelines that served Ampere and Hopper well; those beyond the shared memory drop out while tuning."""
    # fmt: off
    tiles = [
        (128, 256, 64, 8), (256, 128, 64, 8), (128, 128, 64, 4), (128, 128, 64, 8), (128, 128, 32, 4), (64, 256, 32, 4),
        (128, 64, 64, 4), (64, 128, 64, 4), (64, 64, 64, 4), (32, 64, 64, 4), (16, 128, 128, 4),
    ]
    # fmt: on
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_warps=warps, num_stages=stages)
        for (bm, bn, bk, warps), stages in itertools.product(tiles, (3, 4))
    ]


@triton.autotune(configs=_matmul_configs(), key=["M", "N", "K", "stride_ak", "stride_bk", "PRECISION"])
@triton.heuristics({"WHOLE_K": lambda arguments: arguments["K"] % arguments["BK"] == 0})
@triton.jit
def _matmul(
    a, b, c, out, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_om, stride_on,
    HAS_C: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, SUM: tl.constexpr, WHOLE_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Blocks walk down GROUP rows of tiles before they go right, so that neighbours share tiles of b in the L2.
    block = tl.program_id(0)
    across = tl.cdiv(N, BN)
    band = block // (GROUP * across)
    rows_in_band = min(tl.cdiv(M, BM) - band * GROUP, GROUP)
    tile_m = band * GROUP + (block % (GROUP * across)) % rows_in_band
    tile_n = (block % (GROUP * across)) // rows_in_band

    m = (tile_m * BM + tl.arange(0, BM)).to(tl.int64)
    n = (tile_n * BN + tl.arange(0, BN)).to(tl.int64)
    k = tl.arange(0, BK)
    # Rows and columns beyond the edge wrap around: they are loaded, never stored.
    a_at = a + (m % M)[:, None] * stride_am + k[None, :] * stride_ak
    b_at = b + k[:, None] * stride_bk + (n % N)[None, :] * stride_bn
    total = tl.zeros((BM, BN), dtype=SUM)
    for start in range(0, K, BK):
        if WHOLE_K:
            x, y = tl.load(a_at), tl.load(b_at)
        else:
            x = tl.load(a_at, mask=(k < K - start)[None, :], other=0.0)
            y = tl.load(b_at, mask=(k < K - start)[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=SUM)
        a_at += BK * stride_ak
        b_at += BK * stride_bk
    inside = (m < M)[:, None] & (n < N)[None, :]
    result = total.to(tl.float32)
    if HAS_C:
        result += tl.load(c + m[:, None] * stride_cm + n[None, :] * stride_cn, mask=inside, other=0.0).to(tl.float32)
    result = _activate(result, ACTIVATION)
    tl.store(out + m[:, None] * stride_om + n[None, :] * stride_on, result.to(out.dtype.element_ty), mask=inside)


@triton.autotune(
    configs=[triton.Config({"BLOCK": n}, num_warps=w) for n, w in itertools.product((1024, 2048, 4096, 8192), (4, 8))],
    key=["size", "SECOND", "OP"],
)
@triton.jit
def _pointwise(
    x, y, out, size, columns, SECOND: tl.constexpr, OP: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    value = tl.load(x + i, mask=inside).to(tl.float32)
    if SECOND != "none":
        other = tl.load(y + (i % columns if SECOND == "row" else i), mask=inside).to(tl.float32)
        if OP == "add":
            value += other
        elif OP == "sub":
            value -= other
        elif OP == "mul":
            value *= other
        else:
            value /= other
    tl.store(out + i, _activate(value, ACTIVATION).to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class _Pointwise:
    """`activation(x op y)`; y is None for a function of x alone, one row for all where `second` is "row"."""

    x: str
    y: str | None
    op: str
    second: str
    activation: str


def why_not(problem: Problem) -> str | None:
    if any(o.dtype not in _FLOATS for o in problem.operands):
        return f"these kernels take {', '.join(map(str, _FLOATS))}"
    found = patterns.product(problem.graph)
    if found is None:
        served = _as_pointwise(problem) is not None
        return None if served else "these kernels compute activation(a @ b + c) and activation(x op y) of dense tensors"
    if found.activation not in (None, *_ACTIVATIONS) or found.alpha is not None or found.beta is not None:
        return "this kernel computes a @ b + c with a simple activation"
    if any(len(problem.operand(f.name).shape) != 2 for f in (found.a, found.b)):
        return "this kernel multiplies two matrices"
    return None


def prepare(problem: Problem, sets: list[Operands], scalars: Mapping[str, float]) -> Launch:
    found = patterns.product(problem.graph)
    launch = _prepare_pointwise(problem, sets) if found is None else _prepare_product(problem, found, sets)
    launch(0)  # compiles and tunes
    return launch


def _prepare_product(problem: Problem, found: patterns.Product, sets: list[Operands]) -> Launch:
    dtype = problem.operand(found.a.name).dtype
    options = {
        "HAS_C": found.c is not None,
        "ACTIVATION": found.activation or "none",
        "PRECISION": "ieee" if dtype is f32 else "tf32",
        "SUM": tl.float16 if found.accumulate is f16 else tl.float32,
    }
    calls = []
    for operands in sets:
        a, b = (operands[f.name].mT if f.transposed else operands[f.name] for f in (found.a, found.b))
        out = operands[problem.outputs[0].name]
        c = operands[found.c].expand(out.shape) if found.c else out
        (m, k), n = a.shape, b.shape[1]
        calls.append((a, b, c, out, m, n, k, *a.stride(), *b.stride(), *c.stride(), *out.stride()))

    def grid(config: Mapping[str, int]) -> tuple[int]:
        return (triton.cdiv(config["M"], config["BM"]) * triton.cdiv(config["N"], config["BN"]),)

    def launch(i: int) -> None:
        _matmul[grid](*calls[i], **options)

    return launch


def _prepare_pointwise(problem: Problem, sets: list[Operands]) -> Launch:
    found = _as_pointwise(problem)
    assert found is not None
    out = problem.outputs[0]
    options = {"SECOND": found.second, "OP": found.op, "ACTIVATION": found.activation}
    calls = [
        (operands[found.x], operands[found.y or found.x], operands[out.name], out.elements, (1, *out.shape)[-1])
        for operands in sets
    ]

    def grid(config: Mapping[str, int]) -> tuple[int]:
        return (triton.cdiv(config["size"], config["BLOCK"]),)

    def launch(i: int) -> None:
        _pointwise[grid](*calls[i], **options)

    return launch


def _as_pointwise(problem: Problem) -> _Pointwise | None:
    """The problem as what `_pointwise` computes; None when it is anything else."""
    if len(problem.outputs) != 1 or any(o.layout != "row" for o in problem.operands):
        return None
    node, out, activation = problem.graph.results[0], problem.outputs[0], "none"
    outer = patterns.activation(node)
    if outer and outer.name in _ACTIVATIONS:
        node, activation = outer.argument, outer.name
    if node.op == "input":
        whole = problem.operand(node.attr).shape == out.shape
        return _Pointwise(node.attr, None, "none", "none", activation) if whole else None
    if node.op not in ("add", "sub", "mul", "div") or any(argument.op != "input" for argument in node.args):
        return None
    x, y = (problem.operand(argument.attr) for argument in node.args)
    second = _second(y, out)
    if x.shape != out.shape or second is None:
        return None
    return _Pointwise(x.name, y.name, node.op, second, activation)


def _second(y: Operand, out: Operand) -> str | None:
    if y.shape == out.shape:
        return "same"
    return "row" if y.shape == out.shape[-1:] else None
