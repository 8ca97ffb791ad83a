"""The C++ that a graph of this family becomes, for both of its templates: its functions, and how kernels call them.

Kernels have `scores[i][c]`, element c of inner product i, in whose place weights are made, one for each result; `row` and
`column` of it, M rows of results and N columns of weights; and `tile.batch[...]`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kgen.codegen.source import Integer, Param
from kgen.dsl.expr import Expr, walk
from kgen.dsl.problem import Operand, Problem, by_form
from kgen.dsl.size import Dim
from kgen.dsl.types import f32
from kgen.ops.attention.dropout import DropoutText, dropout_text
from kgen.ops.attention.evaluation import (
    COLUMN,
    Product,
    block_bounds,
    evaluation,
    head_place,
    limit_of_head,
    number,
    numbers_of,
    placed,
    pointers,
    seeing_columns,
    seen_by_rows,
    stride_symbols,
)
from kgen.ops.attention.masks import Bounds, bounds, is_limit
from kgen.ops.attention.rows import Rows
from kgen.ops.attention_gradient.algebra import conditions, unmasked
from kgen.ops.attention_gradient.problem import describe, found
from kgen.ops.attention_gradient.weights import arranged, numbers

#: The numbers of the row of weights that a lane's element c has: of a row that stays, or of a column of the step.
_STAYING, _PASSING = "of_rows[c / 2 % 2]", "of_columns[c / 4 * 8 + lane % 4 * 2 + c % 2]"


@dataclass(frozen=True)
class GradientText:
    """`functions` are definitions. The rest are a kernel's: `masked` makes weights of an element's inner products, `bare` where
    no mask is needed; `blocks` makes KeyBlocks; `factors` are those of the results; `batches` finds the tile's place on the axes
    that count heads, of head at.y; `heads` is their number; `steps` is how often `each` block is gone over, of all heads that
    results are summed over, and `block` which one a step has. `limits` reads the inputs that bound columns; `rows` says
    that a tile's rows are a head's own. `numbers` makes the `width` numbers, `made`, of a row of weights, 0 where it has none: of
    `row`, or of `column` where `passing`; `each_step`: those of rows differ among the steps. `dropout` says which weights are
    dropped, where some are. `head` is the number of the head of a step, of all; `across` the factor of the result of the other
    side. `reads`: elements are made of memory of their own.
    """

    functions: str
    masked: str
    bare: str
    blocks: str
    factors: tuple[str, ...]
    batches: str
    heads: str
    steps: str
    block: str
    batch_rank: int
    limits: str
    numbers: str
    width: int
    passing: bool
    each_step: bool
    dropout: DropoutText | None
    head: str
    across: str
    reads: bool
    rows: Rows = field(default_factory=Rows)

    def of_columns_from(self, first: str) -> GradientText:
        """The same where the products are those of columns of a step from `first` on."""
        masked, bare = (text.replace(COLUMN, f"{COLUMN} + {first}") for text in (self.masked, self.bare))
        return replace(self, masked=masked, bare=bare)

    @property
    def passing_bytes(self) -> int:
        """What the numbers of a column take of a stage."""
        return 4 * self.width if self.passing else 0


@by_form
def mask_bounds(problem: Problem) -> Bounds:
    """Which columns of weights the problem's mask leaves to a tile of rows."""
    made = found(problem.graph)
    differ = Bounds((), (), (), (), whole=False)  # among the heads that results are summed over
    if made.summed and any(strides[-1] for _, strides in _limits(problem)):
        return differ
    places = [n for n in _between(problem) if n.op == "arange"]
    row, column = (next((n for n in places if len(n.shape.dims) == count), None) for count in (2, 1))
    b = bounds(conditions(made), *((column, row) if made.transposed else (row, column)), searched=made.transposed)
    of_heads = (n.shape.dims[-3:-2] not in ((), (1,)) for n in (*(b.of_row or ()), *(b.of_column or ())))
    return differ if made.summed and any(of_heads) else b


def _limits(problem: Problem) -> list[tuple[Operand, tuple[int, ...]]]:
    """The inputs of one int a head in the problem's mask, with their strides over the heads."""
    nodes, rank = walk(tuple(conditions(found(problem.graph)))), len(describe(problem).batch)
    made = []
    for operand in (problem.operand(name) for name in dict.fromkeys(n.attr for n in nodes if is_limit(n))):
        head = [s if n > 1 else 0 for n, s in zip(operand.shape[:-2], operand.strides)]
        made.append((operand, (*([0] * (rank - len(head))), *head)))
    return made


def beside(problem: Problem) -> list[Operand]:
    """The operands that weights are made of beside the inner products."""
    names = dict.fromkeys(n.attr for n in _between(problem) if n.op == "input")
    return [problem.operand(name) for name in names]


def beside_symbols(problem: Problem) -> dict[str, int]:
    """The symbols of their strides."""
    return stride_symbols(beside(problem))


def _between(problem: Problem) -> list[Expr]:
    """The nodes from which weights are made of the inner products."""
    made = found(problem.graph)
    stack: list[Expr] = [outer.weight for outer in reversed(made.outers)]
    seen = {id(inner.product): inner.product for inner in made.inners}
    inside = set(seen)
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            stack.extend(reversed(node.args))
    return [n for i, n in seen.items() if i not in inside]


def _reads(weights: Sequence[Expr], known: Sequence[Expr]) -> bool:
    """Whether weights are made of inputs but by way of known nodes."""
    inside, stack = {id(node) for node in known}, list(weights)
    while stack:
        node = stack.pop()
        if id(node) not in inside:
            inside.add(id(node))
            if node.op == "input":
                return True
            stack.extend(node.args)
    return False


def parameters(problem: Problem) -> list[Param]:
    """The parameters that the texts use: what is beside the inner products, sizes, scalars."""
    made = found(problem.graph)
    outers = made.outers if made.across is None else (*made.outers, made.across)
    others, factors = beside(problem), [o.factor for o in outers if o.factor is not None]
    params = pointers(others)
    params += [Integer("M", Dim("M")), Integer("N", Dim("N"))]
    params += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(len(describe(problem).batch))]
    return params + numbers_of(problem, others, [*_between(problem), *walk(tuple(factors))])


@by_form
def gradient_text(problem: Problem) -> GradientText:
    """The texts of a problem."""
    made, sides = found(problem.graph), describe(problem)
    rank, own = len(sides.batch), range(len(sides.own))
    held, limits = conditions(made), mask_bounds(problem)
    weights = [outer.weight for outer in made.outers]
    both = arranged(made.graph, [*weights, *unmasked(weights, held)])
    whole, bare = both[: len(weights)], both[len(weights) :]
    products = [Product(inner.product, f"product{i}", f"scores[{i}][c]") for i, inner in enumerate(made.inners)]
    rows = numbers(both)
    products += [Product(node, f"number{i}", f"number[{i}]") for i, node in enumerate(rows)]
    if made.dropped is not None:
        products.append(Product(made.dropped, "is_dropped", "dropped(c)"))
    outputs = [f"scores[{i}][c]" for i in range(len(weights))]
    places = ("column", "row") if made.transposed else ("row", "column")
    written: list[str] = []

    def statements(name: str, roots: Sequence[Expr], known: Sequence[Product], results: Sequence[str]) -> str:
        definition, call = evaluation(problem, rank + 2, name, roots, known, dict.fromkeys(results, f32), places)
        written.append(definition)
        return call

    of_row = number_of = ""
    if rows:
        of_row = statements("row_numbers", rows, [], [f"made[{i}]" for i in range(len(rows))])
        number_of = f"const auto& number = {_PASSING if made.transposed else _STAYING};"
    masked = without = statements("weights", whole, products, outputs)
    if limits.whole and held:
        without = statements("unmasked_weights", bare, products, outputs)
    # What is read as zeros beyond the end has weights too, which may be infinite. Products across are summed over rows too.
    end = "column >= N" if made.across is None else "column >= N || row >= M"
    beyond = f"if ({end}) {' = '.join(outputs)} = 0.0f;"
    *factors, across = (
        "1.0f" if outer is None or outer.factor is None else number(f"factor{i}", outer.factor, written)
        for i, outer in enumerate((*made.outers, made.across))
    )
    dropout = dropout_text(problem, made.dropped, rank + 2, places, written)
    read = [limit_of_head(operand, strides) for operand, strides in _limits(problem)]
    read += seen_by_rows(problem, rank + 2, limits, written, places)
    read += seeing_columns(problem, rank + 2, limits, written, places)
    return GradientText(
        functions="\n".join(written),
        masked=placed([number_of, masked, beyond]),
        bare=placed([number_of, without]),
        blocks=block_bounds(limits),
        factors=tuple(factors),
        batches="\n".join(map(head_place, reversed(own))),
        heads=" * ".join(f"batches{d}" for d in own) or "1",
        steps=f"each * batches{rank - 1}" if sides.summed else "each",
        block=f"tile.batch[{rank - 1}] = step / each;\n    return blocks.first + step % each;"
        if sides.summed
        else "return blocks.first + step;",
        batch_rank=max(1, rank),
        limits="\n".join(read),
        numbers=of_row,
        width=1 << (len(rows) - 1).bit_length() if rows else 0,
        passing=made.transposed and bool(rows),
        each_step=sides.summed and not made.transposed and bool(rows),
        dropout=dropout,
        head=functools.reduce(
            lambda text, d: f"({text} * batches{d} + tile.batch[{d}])", range(1, rank), "tile.batch[0]"
        )
        if rank
        else "0",
        across=across,
        reads=_reads(both, [*rows, *(inner.product for inner in made.inners)]),
    )
