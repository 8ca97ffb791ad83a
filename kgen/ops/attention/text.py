"""The C++ that a graph of attention becomes, for all of the family's templates: its functions, and how kernels call them.

Kernels have `row` and `column` of a score, `tile.batch[...]`, a row's `softmax.maximum` and `.sum`; and as parameters sizes,
scalars and what scores are computed of beside the product, such as a bias, with its strides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgen.codegen.expression import literal
from kgen.codegen.source import Integer, Param, Pointer
from kgen.dsl.expr import Expr, walk
from kgen.dsl.operator import Graph
from kgen.dsl.problem import Operand, Problem, by_form
from kgen.dsl.size import Dim
from kgen.dsl.types import bf16, f32
from kgen.ops.attention.algebra import Attention, factored, is_of_head, mask
from kgen.ops.attention.dropout import DropoutText, dropout_text
from kgen.ops.attention.evaluation import (
    Product,
    block_bounds,
    evaluation,
    folded,
    head_of,
    head_place,
    limit_of_head,
    number,
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
    empty where there is nothing to do; `blocks` makes KeyBlocks, `scale` the factor of OnlineSoftmax, empty where there is no
    softmax, `far` whether it is Far, `row` the factor of a row's sums and its results, empty where the factor is 1 and there are
    none; `batches` finds the tile's place on the axes that count heads, of head at.y; `heads` is their number. `rows` says what a
    tile's rows are. `limits` reads the inputs that bound columns, those of rows `by_warp`: all lanes together; `values` is how
    many rows of values are not 0, `kept` whether that may be less than all; `key_row`, the statements of a function that gives
    the row of k and v that has a column's key, -1 for none, empty where keys lie one after another. `dropout` says which
    weights are dropped, where some are. Exponentials are 2 to the `raised` times as large. `of_head` makes `of_head`, a factor
    of all of a head's scores that is not in them, and may be `folded` into the scale.
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
    dropout: DropoutText | None
    raised: int
    of_head: str

    def softmax(self, late: bool = False, polynomial: int = 0) -> str:
        """The parameters of OnlineSoftmax, up to the last that is not its default."""
        values = [self.far, self.raised, "true" if late else "false", polynomial]
        while len(values) > 1 and values[-1] in (0, "false"):
            values.pop()
        return ", ".join(map(str, values))


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
    attended = found(graph)
    return bounds(mask(attended.score, attended.hidden)[1], *_places(graph))


def beside(problem: Problem) -> list[Operand]:
    """The operands that scores are computed of beside the product."""
    attended = found(problem.graph)
    nodes = (*_between(attended), *walk(beside_columns(attended)), *_of_rows(attended))
    names = dict.fromkeys(n.attr for n in nodes if n.op == "input")
    return [problem.operand(name) for name in names]


def beside_symbols(problem: Problem) -> dict[str, int]:
    """The symbols of their strides."""
    return stride_symbols(beside(problem))


def _between(attended: Attention) -> list[Expr]:
    """The nodes from which a score is made of the product."""
    return _made_of([attended.score], [attended.product])


def _of_rows(attended: Attention) -> list[Expr]:
    """The nodes from which numbers of rows are made of what kernels have of these."""
    return _made_of(attended.rows, attended.of_row)


def _made_of(roots: Sequence[Expr], given: Sequence[Expr]) -> list[Expr]:
    """The nodes from which `roots` are made of the `given` ones, without these."""
    stack, seen = list(roots), {id(node): node for node in given}
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            stack.extend(node.args)
    known = {id(node) for node in given}
    return [node for i, node in seen.items() if i not in known]


def is_far(nodes: Iterable[Expr]) -> bool:
    """Whether scores made by these nodes may be as far from 0 as f32 goes: they have masks, as numbers of bf16 or f32, added."""
    return any(n.op == "input" and n.dtype in (bf16, f32) and n.shape.dims[-1:] != (1,) for n in nodes)


def adds_numbers(problem: Problem) -> bool:
    """Whether scores may be as far from 0 as f32 goes."""
    return is_far(_between(found(problem.graph)))


def parameters(problem: Problem) -> list[Param]:
    """The parameters that the texts use: outputs of one number a row, what is beside the product, sizes, scalars."""
    attended, h, others = found(problem.graph), describe(problem), beside(problem)
    numbers = (*beside_columns(attended), *([] if attended.scale is None else [attended.scale]))
    numbers += () if attended.dropped is None else (attended.dropped,)
    leaves = [*_between(attended), *walk(numbers), *_of_rows(attended)]
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
    places, rank = ("row", "column"), len(h.batch) + 2
    # A tile that has rows of several heads has no factor for all of them, and weights are what they are defined to be.
    whole_weight = rows.heads or attended.softmax is None
    score, factor = (attended.score, None) if whole_weight else factored(attended.score, is_of_head)
    bare, conditions = mask(score, attended.hidden)
    limits = mask_bounds(problem)
    written: list[str] = []
    whole = _evaluation("score", score, problem, rows, written)
    without = whole
    if limits.whole and conditions:
        without = _evaluation("unmasked_score", bare, problem, rows, written)
    factors = [] if attended.scale is None else [number("factor", attended.scale, written)]
    of_head = ""
    if factor is not None:
        outputs = {"of_head": f32}
        definition, of_head = evaluation(problem, rank, "factor_of_head", [factor], [], outputs, places, rows)
        written.append(definition)
        factors.append("(folded ? of_head : 1.0f)")
    # A maximum of -infinity times 0 would be NaN.
    scale = f"fmaxf({' * '.join(factors)}, 1.0e-30f) * {_LOG2E}" if factors else _LOG2E
    hidden = "0.0f" if attended.softmax is None else "__int_as_float(0xff800000)"
    axes = [d for d in range(len(h.batch)) if d != rows.axis]
    taken = key_row(problem, written) if attended.ids is not None else ""
    dropout = dropout_text(problem, attended.dropped, rank, places, written, rows)
    read = [limit_of_head(problem.operand(name), strides) for name, strides in h.limits]
    read += seen_by_rows(problem, rank, limits, written, places, rows)
    return AttentionText(
        row=_row(problem, rows, sliced, written),
        functions="\n".join(written),
        score=placed([whole, f"if (column >= N) scores[c] = {hidden};"], rows),
        bare=placed([without], rows),
        scale=scale if attended.softmax else "",
        far="true" if adds_numbers(problem) else "false",
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
        dropout=dropout,
        raised=attended.softmax.raised if attended.softmax else 0,
        of_head=of_head,
    )


def _evaluation(name: str, root: Expr, problem: Problem, rows: Rows, written: list[str]) -> str:
    """Statements that make scores[c] of a product, with what they read; their function is `written`."""
    attended = found(problem.graph)
    if root is attended.product:
        return ""
    rank = len(describe(problem).batch) + 2
    products = [Product(attended.product, "product", "scores[c]")]
    outputs = {"scores[c]": f32}
    definition, statements = evaluation(problem, rank, name, [root], products, outputs, ("row", "column"), rows)
    written.append(definition)
    return statements


def _row(problem: Problem, rows: Rows, sliced: bool, written: list[str]) -> str:
    """The factor of a row's sums, and the results of one number a row; empty where there are none and the factor is 1."""
    attended, h = found(problem.graph), describe(problem)
    if all(node.op == "const" and node.attr == 1 for node in attended.rows):
        return ""
    given: list[Product] = []
    if attended.softmax is not None:
        maximum, summed, own, raised = attended.softmax
        natural = f"softmax.maximum[r] * (softmax.scale * {literal(math.log(2), f32)})"
        total = "softmax.sum[r]" + (f" * 0x1p-{raised}f" if raised else "")
        origin = f"softmax.origin_of(r) * {literal(math.log(2), f32)}"
        given = [Product(maximum, "maximum", natural), Product(summed, "total", total)]
        given += [Product(own, "origin", origin)] if raised else []
    outputs = {"factors[r]": f32} | {f"value{i}": x.operand.dtype for i, x in enumerate(h.rows)}
    definition, call = evaluation(
        problem, len(h.batch) + 2, "finish_row", attended.rows, given, outputs, ("row", "column"), rows, fast=False
    )
    written.append(definition)
    lines = [f"{x.operand.dtype.ctype} value{i};" for i, x in enumerate(h.rows)] + [call]
    first = "blockIdx.y == 0 && " if sliced else ""
    for i, x in enumerate(h.rows):
        terms = [f"static_cast<long long>(row) * row{i}_row"]
        terms += [f"static_cast<long long>({head_of(d, rows)}) * row{i}_b{d}" for d, s in enumerate(x.batch) if s]
        lines.append(f"if ({first}{rows.writer} && row < M) row{i}[{' + '.join(terms)}] = value{i};")
    return placed(lines, rows, "first_row + r * 8 + lane / 4")
