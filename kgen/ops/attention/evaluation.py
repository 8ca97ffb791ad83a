"""Pointwise functions between two products, as C++ about the elements that a lane has of the first one's result.

A kernel has `row` and `column` of element c and `tile.batch[...]`; M and N are the numbers of its rows and columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier, plain
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, Shape
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import Dim
from kgen.dsl.types import DType, f32, i32
from kgen.ops.attention.masks import FAR, Bounds, limit_name
from kgen.ops.attention.rows import PLAIN, Rows
from kgen.ops.common.lowering import Lowering, size_name

#: FAR as C++.
_FAR = f"(1 << {FAR.bit_length() - 1})"
#: From which to before which row or column, as results of a function.
_RANGE = {"begin": i32, "end": i32}
#: The row of a lane's element c of the 16 rows of a warp, and its column of a block, as kernels write them.
_ROW = "first_row + c / 2 % 2 * 8 + lane / 4"
COLUMN = "block * BC + c / 4 * 8 + lane % 4 * 2 + c % 2"


def placed(statements: list[str], rows: Rows = PLAIN, row: str = _ROW) -> str:
    """Statements about element c, or about a tile's row, with the places that they name before them."""
    text = "\n          ".join(s for s in statements if s)
    places = {"row": rows.row(row), "head": rows.head(row), "column": COLUMN}
    named = [f"const int {name} = {at};" for name, at in places.items() if re.search(rf"\b{name}\b", text)]
    return "\n          ".join([*named, text]) if text else ""


class Product(NamedTuple):
    """The node of a product, or of what else is known, the parameter that has it, and its C++ in a kernel."""

    node: Expr
    parameter: str
    value: str


def evaluation(
    problem: Problem,
    rank: int,
    name: str,
    roots: Sequence[Expr],
    products: Sequence[Product],
    outputs: Mapping[str, DType],
    places: tuple[str, str],
    rows: Rows = PLAIN,
    fast: bool = True,
) -> tuple[str, str]:
    """The definition of the function `name` of products, and the statements that call it, with what they read.

    `places` are where a kernel has the last two of the `rank` axes: "row" and "column", or these changed over. `outputs` are
    what takes the results, with its dtype; `fast` as of `pointwise_function`.
    """
    lowering = Lowering(problem, rank)
    named = {p.parameter: p for p in products}
    for product in products:
        leaf = Expr("product", (), product.node.dtype, Shape(), product.parameter)
        lowering.define(product.node, lowering.coordinates(product.node.shape), leaf)
    lowered = [lowering.expression(root, Shape(root.shape.dims, root.shape.leading)) for root in roots]

    def place(number: int, clamped: bool = False) -> str:
        if number < rank - 2:
            return head_of(number, rows)
        text = places[number - rank + 2]
        return f"min({text}, {'M' if text == 'row' else 'N'} - 1)" if clamped else text

    lines, arguments, given = [], list[Argument](), list[str]()
    for leaf in lowering.leaves(lowered):
        if leaf.op == "product":
            parameter, value = named[leaf.attr].parameter, named[leaf.attr].value
        else:
            parameter = lowering.parameter(leaf)
            value = place(leaf.attr.number) if leaf.op == "position" else parameter
        if leaf.op == "read":
            pointer = identifier(leaf.attr.operand.name)
            terms = [f"steps({place(c.number, True)}, {pointer}_s{axis})" for c, axis in leaf.attr.terms]
            lines.append(f"const {leaf.dtype.ctype} {parameter} = {pointer}[{' + '.join(terms) or '0'}];")
        arguments.append(Argument(leaf, parameter, leaf.dtype))
        given.append(value)
    definition = pointwise_function(name, arguments, lowered, list(outputs.values()), fast)
    return definition, "\n          ".join([*lines, f"{name}({', '.join([*given, *outputs])});"])


def head_of(axis: int, rows: Rows) -> str:
    """A row's place on one of the axes that count heads."""
    return "head" if axis == rows.axis else f"tile.batch[{axis}]"


def head_place(axis: int) -> str:
    """The head's place on one of the axes that count heads, of which the last moves fastest."""
    if axis == 0:
        return "  tile.batch[0] = at.y;"
    return f"  tile.batch[{axis}] = at.y % batches{axis};\n  at.y /= batches{axis};"


def limit_of_head(operand: Operand, strides: Sequence[int]) -> str:
    """Reads what bounds a head's columns: an int of each head, which has these strides."""
    name, before = identifier(operand.name), len(strides) - (len(operand.shape) - 2)
    terms = [f"steps(tile.batch[{d}], {name}_s{d - before})" for d, s in enumerate(strides) if s]
    return f"  const int {limit_name(operand.name)} = max(-{_FAR}, min({name}[{' + '.join(terms) or '0'}], {_FAR}));"


def seen_by_rows(
    problem: Problem, rank: int, b: Bounds, written: list[str], places: tuple[str, str], rows: Rows = PLAIN
) -> list[str]:
    """Statements that find which columns the rows of a tile see, where their data bounds these; the function is `written`."""
    if b.of_row is None:
        return []
    definition, call = evaluation(problem, rank, "columns_of_row", b.of_row, [], _RANGE, places, rows)
    written.append(definition)
    text = placed(["int begin, end;", call, "return make_int2(begin, end);"], rows, "r")
    end = f"min({rows.count}, tile.m0 + BR)"
    return [f"  const SeenColumns seen = seen_by_rows(tile.m0, {end}, [&](int r) {{\n          {text}\n  }});"]


def seeing_columns(problem: Problem, rank: int, b: Bounds, written: list[str], places: tuple[str, str]) -> list[str]:
    """Statements by which a block finds which columns see rows of its tile, where data says so; the function is `written`."""
    if b.of_column is None:
        return []
    definition, call = evaluation(problem, rank, "rows_of_column", b.of_column, [], _RANGE, places)
    written.append(definition)
    text = "\n          ".join(["int begin, end;", call, "return make_int2(begin, end);"])
    given = "tile.m0, min(M, tile.m0 + BR), N, reinterpret_cast<int*>(numbers)"
    return [f"  const int2 seeing = seeing_columns({given}, [&](int column) {{\n          {text}\n  }});"]


def numbers_in(roots: list[Expr], known: tuple[Argument, ...] = ()) -> list[Argument]:
    """The sizes and scalars in expressions, as parameters; `known` are leaves already."""
    seen = {id(a.node) for a in known}
    stack, leaves = list(reversed(roots)), list[Argument]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op in ("scalar", "size"):
            name = size_name(node.attr) if node.op == "size" else identifier(node.attr)
            leaves.append(Argument(node, name, node.dtype))
        stack.extend(reversed(node.args))
    return leaves


def number(name: str, root: Expr, written: list[str]) -> str:
    """C++ of an expression of sizes and scalars; its function `name` is `written`."""
    numbers = numbers_in([root])
    written.append(pointwise_function(name, numbers, [root], [f32], fast=False))
    return f"[&] {{ float value; {name}({', '.join([*(a.name for a in numbers), 'value'])}); return value; }}()"


def pointers(others: Sequence[Operand]) -> list[Param]:
    """The parameters of operands that are read at the places of elements."""
    return [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in others]


def numbers_of(
    problem: Problem, others: Sequence[Operand], nodes: Sequence[Expr], more: Sequence[str] = ()
) -> list[Param]:
    """The parameters of such operands' strides, of sizes and scalars among `nodes`, and of `more` sizes."""
    strided = ((o, axis) for o in others for axis, s in enumerate(o.strides) if s != 0)
    params: list[Param] = [Integer.stride(f"{identifier(o.name)}_s{axis}") for o, axis in strided]
    sizes = dict.fromkeys([*(size_name(n.attr) for n in nodes if n.op == "size"), *more])
    scalars = {n.attr for n in nodes if n.op == "scalar"}
    params += [Integer(name, Dim(name)) for name in sizes]
    return params + [Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars if s.name in scalars]


def stride_symbols(others: Sequence[Operand]) -> dict[str, int]:
    """The symbols of such operands' strides."""
    return {f"{plain(identifier(o.name))}_s{axis}": s for o in others for axis, s in enumerate(o.strides)}


def folded(function: str, start: str, values: tuple[str, ...]) -> str:
    """function(function(start, values[0]), values[1]) and so on."""
    for value in values:
        start = f"{function}({start}, {value})"
    return start


def block_bounds(b: Bounds) -> str:
    """The bounds of a tile's blocks, in the order of KeyBlocks, of BC of N columns each."""
    first = f"{folded('max', '0', b.lower)} / BC" if b.lower else "0"
    last = f"(max({folded('min', 'N', b.upper)}, 0) + BC - 1) / BC"
    if not b.whole:
        return f"{first}, {last}, 0, 0"
    first_full = f"({folded('max', '0', b.full_lower)} + BC - 1) / BC" if b.full_lower else "0"
    return f"{first}, {last}, {first_full}, max({folded('min', 'N', b.full_upper)}, 0) / BC"
