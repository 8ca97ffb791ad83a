"""The C++ that a graph of attention becomes, for all of the family's templates: its functions, and how kernels call them.

Kernels have `row` and `column` of a score, `tile.batch[...]`, a row's `softmax.maximum` and `.sum`, and sizes and scalars as
parameters.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kgen.codegen.expression import Argument, literal, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, constant, walk
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim
from kgen.dsl.types import f32
from kgen.ops.attention.algebra import mask
from kgen.ops.attention.masks import Bounds, bounds
from kgen.ops.attention.problem import describe, found
from kgen.ops.common.lowering import size_name

_LEAVES = ("scalar", "size", "arange")
_MINUS_INFINITY = literal(-math.inf, f32)
_LOG2E = literal(math.log2(math.e), f32)


@dataclass(frozen=True)
class AttentionText:
    """`functions` are definitions. The rest are a kernel's: `score` makes scores[c] of a product where `masked` says whether
    the mask is to be looked at, `bare` without the mask; `blocks` makes KeyBlocks, `scale` the factor of OnlineSoftmax, `row`
    the factor of a row's sums and its results; `batches` finds the tile's place on the axes that count heads, of head at.y;
    `heads` is their number.
    """

    functions: str
    score: str
    bare: str
    scale: str
    blocks: str
    row: str
    batches: str
    heads: str
    batch_rank: int


def places(problem: Problem) -> tuple[Expr | None, Expr | None]:
    """The nodes of a score's row and of its column."""
    nodes = [n for n in walk((found(problem.graph).score,)) if n.op == "arange"]
    row = next((n for n in nodes if len(n.shape.dims) == 2), None)
    column = next((n for n in nodes if len(n.shape.dims) == 1), None)
    return row, column


def mask_bounds(problem: Problem) -> Bounds:
    """Which columns the problem's mask leaves to a tile of rows."""
    return bounds(mask(found(problem.graph).score)[1], *places(problem))


def parameters(problem: Problem) -> list[Param]:
    """The parameters that the texts use beside M and N: outputs of one number a row, axes of heads, sizes, scalars."""
    attended, h = found(problem.graph), describe(problem)
    roots = [attended.score, attended.scale, *_row_results(problem)]
    leaves = [n for n in walk(tuple(r for r in roots if r is not None)) if n.op in ("scalar", "size")]
    rows: list[Param] = [Pointer(f"row{i}", x.operand.dtype, x.operand.name, "out") for i, x in enumerate(h.rows)]
    rows += [Integer("M", Dim("M")), Integer("N", Dim("N"))]
    rows += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(len(h.batch))]
    for i, x in enumerate(h.rows):
        rows += [Integer.stride(f"row{i}_row"), *(Integer.stride(f"row{i}_b{d}") for d, s in enumerate(x.batch) if s)]
    sizes = dict.fromkeys(size_name(n.attr) for n in leaves if n.op == "size")
    scalars = {n.attr for n in leaves if n.op == "scalar"}
    rows += [Integer(name, Dim(name)) for name in sizes]
    return rows + [Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars if s.name in scalars]


@functools.lru_cache(maxsize=256)
def attention_text(problem: Problem) -> AttentionText:
    """The texts of a problem."""
    attended, h = found(problem.graph), describe(problem)
    bare, conditions = mask(attended.score)
    limits = mask_bounds(problem)
    product = Argument(attended.product, "product", f32)
    written: list[str] = []

    def evaluated(name: str, root: Expr) -> str:
        if root is product.node:
            return "scores[c]"
        written.append(pointwise_function(name, [product, *_numbers([root])], [root], [f32], fast=True))
        given = ", ".join(["scores[c]", *_given(problem, [root]), "scores[c]"])
        return f"{name}({given})"

    whole = evaluated("score", attended.score)
    without = evaluated("unmasked_score", bare) if limits.whole and conditions else whole
    scale = _LOG2E
    if attended.scale is not None:
        numbers = _numbers([attended.scale])
        written.append(pointwise_function("factor", numbers, [attended.scale], [f32], fast=False))
        given = ", ".join([*(a.name for a in numbers), "scale"])
        # A maximum of -infinity times 0 would be NaN.
        scale = f"[&] {{ float scale; factor({given}); return fmaxf(scale, 1.0e-30f) * {_LOG2E}; }}()"
    rank = len(h.batch)
    return AttentionText(
        row=_row(problem, written),
        functions="\n".join(written),
        score="" if whole == "scores[c]" else f"{whole};",
        bare="" if without == "scores[c]" else f"{without};",
        scale=scale,
        blocks=_blocks(limits),
        batches="\n".join(_place(d) for d in reversed(range(rank))),
        heads=" * ".join(f"batches{d}" for d in range(rank)) or "1",
        batch_rank=max(1, rank),
    )


def _place(axis: int) -> str:
    """The head's place on one of the axes that count heads, of which the last moves fastest."""
    if axis == 0:
        return "  tile.batch[0] = at.y;"
    return f"  tile.batch[{axis}] = at.y % batches{axis};\n  at.y /= batches{axis};"


def _numbers(roots: list[Expr], known: tuple[Argument, ...] = ()) -> list[Argument]:
    """The leaves of expressions that are numbers or places, as parameters; `known` are leaves already."""
    seen = {id(a.node) for a in known}
    stack, leaves = list(reversed(roots)), list[Argument]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op in _LEAVES:
            leaves.append(Argument(node, _name(node), node.dtype))
        stack.extend(reversed(node.args))
    return leaves


def _name(node: Expr) -> str:
    if node.op == "size":
        return size_name(node.attr)
    if node.op == "scalar":
        return identifier(node.attr)
    return {1: "column", 2: "row"}.get(len(node.shape.dims), f"head{len(node.shape.dims) - 3}")


def _given(problem: Problem, roots: list[Expr]) -> list[str]:
    """What a kernel gives for the numbers of expressions: of places before the rows, counted from the last, the tile's."""
    rank = len(describe(problem).batch)

    def value(a: Argument) -> str:
        axis = len(a.node.shape.dims) - 3 if a.node.op == "arange" else -1
        return f"tile.batch[{rank - 1 - axis}]" if axis >= 0 else a.name

    return [value(a) for a in _numbers(roots)]


def _row_results(problem: Problem) -> list[Expr]:
    attended = found(problem.graph)
    return [attended.row if attended.row is not None else constant(1.0), *attended.graph.results[1:]]


def _row(problem: Problem, written: list[str]) -> str:
    """The factor of a row's sums, and the results of one number a row."""
    attended, h = found(problem.graph), describe(problem)
    roots = _row_results(problem)
    leaves = (Argument(attended.maximum, "maximum", f32), Argument(attended.total, "total", f32))
    numbers = _numbers(roots, leaves)
    outputs = [f32, *(x.operand.dtype for x in h.rows)]
    written.append(pointwise_function("finish_row", [*leaves, *numbers], roots, outputs, fast=False))
    natural = f"softmax.maximum[r] * (softmax.scale * {literal(math.log(2), f32)})"
    results = ["factors[r]", *(f"value{i}" for i in range(len(h.rows)))]
    lines = [f"{x.operand.dtype.ctype} value{i};" for i, x in enumerate(h.rows)]
    lines.append(f"finish_row({', '.join([natural, 'softmax.sum[r]', *(a.name for a in numbers), *results])});")
    for i, x in enumerate(h.rows):
        terms = [f"static_cast<long long>(row) * row{i}_row"]
        terms += [f"static_cast<long long>(tile.batch[{d}]) * row{i}_b{d}" for d, s in enumerate(x.batch) if s]
        lines.append(f"if (lane % 4 == 0 && row < M) row{i}[{' + '.join(terms)}] = value{i};")
    return "\n    ".join(lines)


def _blocks(b: Bounds) -> str:
    """The bounds of a tile's blocks, in the order of KeyBlocks."""

    def folded(function: str, start: str, values: tuple[str, ...]) -> str:
        for value in values:
            start = f"{function}({start}, {value})"
        return start

    first = f"{folded('max', '0', b.lower)} / BC" if b.lower else "0"
    last = f"(max({folded('min', 'N', b.upper)}, 0) + BC - 1) / BC"
    if not b.whole:
        return f"{first}, {last}, 0, 0"
    first_full = f"({folded('max', '0', b.full_lower)} + BC - 1) / BC" if b.full_lower else "0"
    return f"{first}, {last}, {first_full}, max({folded('min', 'N', b.full_upper)}, 0) / BC"
