"""Which keys and values a head has, as C++: up to lengths that inputs give, in rows of k and v that ids name."""

from __future__ import annotations

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.dsl.expr import Expr, walk
from kgen.dsl.problem import Problem
from kgen.dsl.size import Size
from kgen.dsl.types import i64
from kgen.ops.attention.algebra import Attention
from kgen.ops.attention.masks import bounds
from kgen.ops.attention.problem import describe, found
from kgen.ops.common.lowering import Axis, Found, Lowering, Read, size_name


def beside_columns(attended: Attention) -> tuple[Expr, ...]:
    """What says which keys and values there are."""
    return attended.kept if attended.ids is None else (*attended.kept, attended.ids)


def value_bounds(attended: Attention) -> tuple[str, ...]:
    """How many rows of values are not 0: the least of these."""
    place = next((n for n in walk(attended.kept) if n.op == "arange"), None)
    return bounds(list(attended.kept), None, place).upper


def key_row(problem: Problem, written: list[str]) -> str:
    """Statements that find the row of a column's key; their functions are `written`."""
    attended, batch = found(problem.graph), describe(problem).batch
    assert attended.ids is not None
    rank, ids = len(batch) + 2, attended.ids
    lowering = Lowering(problem, rank)
    lead, named = len(problem.leading) if ids.shape.leading else 0, ids.shape.dims
    own = [*range(len(batch) - len(named) + 1, len(batch)), rank - 1]  # of its named dimensions
    at = (*map(Axis, range(lead)), *(None if size == 1 else Axis(axis) for axis, size in zip(own, named)))
    root = lowering.lower(ids, at, ())

    def place(c: Axis | Found) -> str:
        if isinstance(c, Found):
            return f"id{c.number}"
        return "column" if c.number == rank - 1 else f"tile.batch[{c.number}]"

    def value(leaf: Expr) -> str:
        return place(leaf.attr) if leaf.op == "position" else lowering.parameter(leaf)

    lines = []
    for step in lowering.steps:
        if isinstance(step, Read):
            name = identifier(step.operand.name)
            terms = [f"steps({place(c)}, {name}_s{axis})" for c, axis in step.terms]
            lines.append(f"const {step.operand.dtype.ctype} {step.name} = {name}[{' + '.join(terms) or '0'}];")
        else:
            written.append(step.function)
            *arguments, last = step.arguments
            given = ", ".join([*map(value, arguments), step.name])
            lines.append(f"{last.dtype.ctype} {step.name};\n    find{step.number}({given});")
    leaves = lowering.leaves((root,))
    named_leaves = [Argument(leaf, lowering.parameter(leaf), leaf.dtype) for leaf in leaves]
    written.append(pointwise_function("row_of_key", named_leaves, [root], [i64], fast=False))
    lines.append(f"long long found;\n    row_of_key({', '.join([*map(value, leaves), 'found'])});")
    return "\n    ".join([*lines, f"return found >= 0 && found < {size_name(key_rows(attended))} ? found : -1;"])


def key_rows(attended: Attention) -> Size:
    """The rows of k and v, where keys are taken by ids."""
    return next(spec.shape.dims[0] for spec in attended.graph.inputs if spec.name == attended.k)
