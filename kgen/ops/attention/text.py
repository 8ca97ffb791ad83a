"""The C++ that a graph of attention becomes, for all of the family's templates: its functions, and how kernels call them.

Kernels have `row` and `column` of a score, `tile.batch[...]`, a row's `softmax.maximum` and `.sum`; and as parameters sizes,
scalars and what scores are computed of beside the product, such as a bias, with its strides.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from kgen.codegen.expression import Argument, literal, pointwise_function
from kgen.codegen.names import identifier, plain
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, Shape, constant, walk
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import Dim
from kgen.dsl.types import f32
from kgen.ops.attention.algebra import Attention, mask
from kgen.ops.attention.masks import Bounds, bounds
from kgen.ops.attention.problem import describe, found
from kgen.ops.common.lowering import Lowering, size_name

_LEAVES = ("scalar", "size")
_LOG2E = literal(math.log2(math.e), f32)


@dataclass(frozen=True)
class AttentionText:
    """`functions` are definitions. The rest are a kernel's: `score` makes scores[c] of a product, `bare` where no mask is needed,
    empty where there is nothing to do; `blocks` makes KeyBlocks, `scale` the factor of OnlineSoftmax, `row`
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


def beside(problem: Problem) -> list[Operand]:
    """The operands that scores are computed of beside the product."""
    names = dict.fromkeys(n.attr for n in _between(found(problem.graph)) if n.op == "input")
    return [problem.operand(name) for name in names]


def beside_symbols(problem: Problem) -> dict[str, int]:
    """The symbols of their strides."""
    return {f"{plain(identifier(o.name))}_s{axis}": s for o in beside(problem) for axis, s in enumerate(o.strides)}


def _between(attended: Attention) -> list[Expr]:
    """The nodes from which a score is made of the product."""
    stack, seen = [attended.score], {id(attended.product): attended.product}
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            stack.extend(node.args)
    return [n for n in seen.values() if n is not attended.product]


def parameters(problem: Problem) -> list[Param]:
    """The parameters that the texts use: outputs of one number a row, what is beside the product, sizes, scalars."""
    attended, h, others = found(problem.graph), describe(problem), beside(problem)
    roots = [attended.scale, *_row_results(problem)]
    leaves = [*_between(attended), *walk(tuple(r for r in roots if r is not None))]
    params: list[Param] = [Pointer(f"row{i}", x.operand.dtype, x.operand.name, "out") for i, x in enumerate(h.rows)]
    params += [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in others]
    params += [Integer("M", Dim("M")), Integer("N", Dim("N"))]
    params += [Integer(f"batches{d}", Dim(f"batches{d}")) for d in range(len(h.batch))]
    for i, x in enumerate(h.rows):
        params += [Integer.stride(f"row{i}_row"), *(Integer.stride(f"row{i}_b{d}") for d, s in enumerate(x.batch) if s)]
    strided = ((o, axis) for o in others for axis, s in enumerate(o.strides) if s != 0)
    params += [Integer.stride(f"{identifier(o.name)}_s{axis}") for o, axis in strided]
    sizes = dict.fromkeys(size_name(n.attr) for n in leaves if n.op == "size")
    scalars = {n.attr for n in leaves if n.op == "scalar"}
    params += [Integer(name, Dim(name)) for name in sizes]
    return params + [Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars if s.name in scalars]


@functools.lru_cache(maxsize=256)
def attention_text(problem: Problem) -> AttentionText:
    """The texts of a problem."""
    attended, h = found(problem.graph), describe(problem)
    bare, conditions = mask(attended.score)
    limits = mask_bounds(problem)
    written: list[str] = []
    whole = _evaluation("score", attended.score, problem, written)
    without = whole
    if limits.whole and conditions:
        without = _evaluation("unmasked_score", bare, problem, written)
    scale = _LOG2E
    if attended.scale is not None:
        numbers = numbers_in([attended.scale])
        written.append(pointwise_function("factor", numbers, [attended.scale], [f32], fast=False))
        given = ", ".join([*(a.name for a in numbers), "scale"])
        # A maximum of -infinity times 0 would be NaN.
        scale = f"[&] {{ float scale; factor({given}); return fmaxf(scale, 1.0e-30f) * {_LOG2E}; }}()"
    rank = len(h.batch)
    return AttentionText(
        row=_row(problem, written),
        functions="\n".join(written),
        score=_placed([whole, "if (column >= N) scores[c] = __int_as_float(0xff800000);"]),
        bare=_placed([without]),
        scale=scale,
        blocks=_blocks(limits),
        batches="\n".join(place_of(d) for d in reversed(range(rank))),
        heads=" * ".join(f"batches{d}" for d in range(rank)) or "1",
        batch_rank=max(1, rank),
    )


#: The row and the column of a lane's element c of 16 rows from `first_row` and the columns of a block.
_PLACES = {
    "row": "const int row = first_row + c / 2 % 2 * 8 + lane / 4;",
    "column": "const int column = block * BC + c / 4 * 8 + lane % 4 * 2 + c % 2;",
}


def _placed(statements: list[str]) -> str:
    """Statements about scores[c], with the places that they name before them."""
    text = "\n          ".join(s for s in statements if s)
    named = [line for name, line in _PLACES.items() if re.search(rf"\b{name}\b", text)]
    return "\n          ".join([*named, text]) if text else ""


def _evaluation(name: str, root: Expr, problem: Problem, written: list[str]) -> str:
    """Statements that make scores[c] of a product, with what they read; their function is `written`."""
    attended = found(problem.graph)
    if root is attended.product:
        return ""
    rank = len(describe(problem).batch) + 2
    lowering = Lowering(problem, rank)
    product = Expr("product", (), f32, Shape())
    lowering.define(attended.product, lowering.coordinates(attended.product.shape), product)
    lowered = lowering.expression(root, Shape(root.shape.dims, root.shape.leading))

    def place(number: int, clamped: bool = False) -> str:
        if number < rank - 2:
            return f"tile.batch[{number}]"
        text, size = ("row", "M") if number == rank - 2 else ("column", "N")
        return f"min({text}, {size} - 1)" if clamped else text

    lines, arguments, given = [], list[Argument](), list[str]()
    for leaf in lowering.leaves((lowered,)):
        if leaf is product:
            parameter, value = "product", "scores[c]"
        else:
            parameter = lowering.parameter(leaf)
            value = place(leaf.attr.number) if leaf.op == "position" else parameter
        if leaf.op == "read":
            pointer = identifier(leaf.attr.operand.name)
            terms = [f"steps({place(c.number, True)}, {pointer}_s{axis})" for c, axis in leaf.attr.terms]
            lines.append(f"const {leaf.dtype.ctype} {parameter} = {pointer}[{' + '.join(terms) or '0'}];")
        arguments.append(Argument(leaf, parameter, leaf.dtype))
        given.append(value)
    written.append(pointwise_function(name, arguments, [lowered], [f32], fast=True))
    lines.append(f"{name}({', '.join([*given, 'scores[c]'])});")
    return "\n          ".join(lines)


def place_of(axis: int) -> str:
    """The head's place on one of the axes that count heads, of which the last moves fastest."""
    if axis == 0:
        return "  tile.batch[0] = at.y;"
    return f"  tile.batch[{axis}] = at.y % batches{axis};\n  at.y /= batches{axis};"


def numbers_in(roots: list[Expr], known: tuple[Argument, ...] = ()) -> list[Argument]:
    """The sizes and scalars in expressions, as parameters; `known` are leaves already."""
    seen = {id(a.node) for a in known}
    stack, leaves = list(reversed(roots)), list[Argument]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op in _LEAVES:
            name = size_name(node.attr) if node.op == "size" else identifier(node.attr)
            leaves.append(Argument(node, name, node.dtype))
        stack.extend(reversed(node.args))
    return leaves


def _row_results(problem: Problem) -> list[Expr]:
    attended = found(problem.graph)
    return [attended.row if attended.row is not None else constant(1.0), *attended.graph.results[1:]]


def _row(problem: Problem, written: list[str]) -> str:
    """The factor of a row's sums, and the results of one number a row."""
    attended, h = found(problem.graph), describe(problem)
    roots = _row_results(problem)
    leaves = (Argument(attended.maximum, "maximum", f32), Argument(attended.total, "total", f32))
    numbers = numbers_in(roots, leaves)
    outputs = [f32, *(x.operand.dtype for x in h.rows)]
    written.append(pointwise_function("finish_row", [*leaves, *numbers], roots, outputs, fast=False))
    natural = f"softmax.maximum[r] * (softmax.scale * {literal(math.log(2), f32)})"
    results = ["factors[r]", *(f"value{i}" for i in range(len(h.rows)))]
    lines = ["const int row = first_row + r * 8 + lane / 4;"] if h.rows else []
    lines += [f"{x.operand.dtype.ctype} value{i};" for i, x in enumerate(h.rows)]
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
