"""The C++ that a graph of attention becomes, for all of the family's templates: its functions, and how kernels call them.

Kernels have `row` and `column` of a score, `tile.batch[...]`, a row's `softmax.maximum` and `.sum`; and as parameters sizes,
scalars and what scores are computed of beside the product, such as a bias, with its strides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from kgen.codegen.expression import Argument, literal, pointwise_function
from kgen.codegen.source import Integer, Param, Pointer
from kgen.dsl.expr import Expr, constant, walk
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, by_form
from kgen.dsl.size import Dim
from kgen.dsl.types import bf16, f32
from kgen.ops.attention.algebra import Attention, mask
from kgen.ops.attention.evaluation import (
    Product,
    block_bounds,
    evaluation,
    folded,
    head_of,
    head_place,
    limit_of_head,
    number,
    numbers_in,
    numbers_of,
    placed,
    pointers,
    seen_by_rows,
    stride_symbols,
)
from kgen.ops.attention.keys import beside_columns, key_row, key_rows, value_bounds
from kgen.ops.attention.masks import Bounds, bounds
from kgen.ops.attention.problem import describe, found
from kgen.ops.attention.rows import Rows
from kgen.ops.common.lowering import size_name

_LOG2E = literal(math.log2(math.e), f32)


@dataclass(frozen=True)
class AttentionText:
    """`functions` are definitions. The rest are a kernel's: `score` makes scores[c] of a product, `bare` where no mask is needed,
    empty where there is nothing to do; `blocks` makes KeyBlocks, `scale` the factor of OnlineSoftmax, `far` whether it is Far,
    `row` the factor of a row's sums and its results; `batches` finds the tile's place on the axes that count heads, of head at.y;
    `heads` is their number. `rows` says what a tile's rows are. `limits` reads the inputs that bound columns, those of
    rows `by_warp`: all lanes together; `values` is how many rows of values are not 0, `kept` whether that may be less than all;
    `key_row`, the statements of a function
    that gives the row of k and v that has a column's key, -1 for none, empty where keys lie one after another.
    """

    functions: str
    score: str
    bare: str
    scale: str
    far: str
    blocks: str
    row: str
    batches: str
    heads: str
    batch_rank: int
    rows: Rows
    limits: str
    by_warp: bool
    values: str
    kept: bool
    key_row: str


def _places(graph: Graph) -> tuple[Expr | None, Expr | None]:
    """The nodes of a score's row and of its column."""
    nodes = [n for n in walk((found(graph).score,)) if n.op == "arange"]
    row = next((n for n in nodes if len(n.shape.dims) == 2), None)
    column = next((n for n in nodes if len(n.shape.dims) == 1), None)
    return row, column


def mask_bounds(problem: Problem) -> Bounds:
    """Which columns the problem's mask leaves to a tile of rows."""
    return _mask_bounds(problem.graph)


@functools.lru_cache(maxsize=256)
def _mask_bounds(graph: Graph) -> Bounds:
    return bounds(mask(found(graph).score)[1], *_places(graph))


def beside(problem: Problem) -> list[Operand]:
    """The operands that scores are computed of beside the product."""
    attended = found(problem.graph)
    names = dict.fromkeys(n.attr for n in (*_between(attended), *walk(beside_columns(attended))) if n.op == "input")
    return [problem.operand(name) for name in names]


def beside_symbols(problem: Problem) -> dict[str, int]:
    """The symbols of their strides."""
    return stride_symbols(beside(problem))


def _between(attended: Attention) -> list[Expr]:
    """The nodes from which a score is made of the product."""
    stack, seen = [attended.score], {id(attended.product): attended.product}
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            stack.extend(node.args)
    return [n for n in seen.values() if n is not attended.product]


def is_far(nodes: Iterable[Expr]) -> bool:
    """Whether scores made by these nodes may be as far from 0 as f32 goes: they have masks, as numbers of bf16 or f32, added."""
    return any(n.op == "input" and n.dtype in (bf16, f32) and n.shape.dims[-1:] != (1,) for n in nodes)


def parameters(problem: Problem) -> list[Param]:
    """The parameters that the texts use: outputs of one number a row, what is beside the product, sizes, scalars."""
    attended, h, others = found(problem.graph), describe(problem), beside(problem)
    roots = [attended.scale, *_row_results(problem)]
    leaves = [*_between(attended), *walk((*(r for r in roots if r is not None), *beside_columns(attended)))]
    params: list[Param] = [Pointer(f"row{i}", x.operand.dtype, x.operand.name, "out") for i, x in enumerate(h.rows)]
    params += pointers(others)
    params += [Integer("M", Dim("M")), Integer("N", Dim("N"))]
    params += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(len(h.batch))]
    for i, x in enumerate(h.rows):
        params += [Integer.stride(f"row{i}_row"), *(Integer.stride(f"row{i}_b{d}") for d, s in enumerate(x.batch) if s)]
    more = [size_name(key_rows(attended))] if attended.ids is not None else []
    return params + numbers_of(problem, others, leaves, more)


@by_form
def attention_text(problem: Problem, rows: Rows, sliced: bool = False) -> AttentionText:
    """The texts of a problem, for tiles of such rows. `sliced`: of the blocks blockIdx.y with the same rows the first writes
    these rows' results of one number.
    """
    attended, h = found(problem.graph), describe(problem)
    bare, conditions = mask(attended.score)
    limits = mask_bounds(problem)
    written: list[str] = []
    whole = _evaluation("score", attended.score, problem, rows, written)
    without = whole
    if limits.whole and conditions:
        without = _evaluation("unmasked_score", bare, problem, rows, written)
    scale = _LOG2E
    if attended.scale is not None:
        factor = number("factor", attended.scale, written)
        # A maximum of -infinity times 0 would be NaN.
        scale = f"fmaxf({factor}, 1.0e-30f) * {_LOG2E}"
    axes = [d for d in range(len(h.batch)) if d != rows.axis]
    taken = key_row(problem, written) if attended.ids is not None else ""
    read = [limit_of_head(problem.operand(name), strides) for name, strides in h.limits]
    read += seen_by_rows(problem, len(h.batch) + 2, limits, written, ("row", "column"), rows)
    return AttentionText(
        row=_row(problem, rows, sliced, written),
        functions="\n".join(written),
        score=placed([whole, "if (column >= N) scores[c] = __int_as_float(0xff800000);"], rows),
        bare=placed([without], rows),
        scale=scale,
        far="true" if is_far(_between(attended)) else "false",
        blocks=block_bounds(limits),
        batches="\n".join(head_place(d) for d in reversed(axes)),
        heads=" * ".join(f"batches{d}" for d in axes) or "1",
        batch_rank=max(1, len(axes)),
        rows=rows,
        limits="\n".join(read),
        by_warp=limits.of_row is not None,
        values=folded("min", "N", value_bounds(attended)),
        kept=bool(attended.kept),
        key_row=taken,
    )


def _evaluation(name: str, root: Expr, problem: Problem, rows: Rows, written: list[str]) -> str:
    """Statements that make scores[c] of a product, with what they read; their function is `written`."""
    attended = found(problem.graph)
    if root is attended.product:
        return ""
    rank = len(describe(problem).batch) + 2
    products = [Product(attended.product, "product", "scores[c]")]
    definition, statements = evaluation(problem, rank, name, [root], products, ["scores[c]"], ("row", "column"), rows)
    written.append(definition)
    return statements


def _row_results(problem: Problem) -> list[Expr]:
    attended = found(problem.graph)
    return [attended.row if attended.row is not None else constant(1.0), *attended.graph.results[1:]]


def _row(problem: Problem, rows: Rows, sliced: bool, written: list[str]) -> str:
    """The factor of a row's sums, and the results of one number a row."""
    attended, h = found(problem.graph), describe(problem)
    roots = _row_results(problem)
    leaves = (Argument(attended.maximum, "maximum", f32), Argument(attended.total, "total", f32))
    numbers = numbers_in(roots, leaves)
    outputs = [f32, *(x.operand.dtype for x in h.rows)]
    written.append(pointwise_function("finish_row", [*leaves, *numbers], roots, outputs, fast=False))
    natural = f"softmax.maximum[r] * (softmax.scale * {literal(math.log(2), f32)})"
    results = ["factors[r]", *(f"value{i}" for i in range(len(h.rows)))]
    place = "first_row + r * 8 + lane / 4"
    lines = [f"const int row = {rows.row(place)};"] if h.rows else []
    lines += [f"const int head = {rows.head(place)};"] if h.rows and rows.heads else []
    lines += [f"{x.operand.dtype.ctype} value{i};" for i, x in enumerate(h.rows)]
    lines.append(f"finish_row({', '.join([natural, 'softmax.sum[r]', *(a.name for a in numbers), *results])});")
    first = "blockIdx.y == 0 && " if sliced else ""
    for i, x in enumerate(h.rows):
        terms = [f"static_cast<long long>(row) * row{i}_row"]
        terms += [f"static_cast<long long>({head_of(d, rows)}) * row{i}_b{d}" for d, s in enumerate(x.batch) if s]
        lines.append(f"if ({first}{rows.writer} && row < M) row{i}[{' + '.join(terms)}] = value{i};")
    return "\n    ".join(lines)
