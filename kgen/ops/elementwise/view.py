"""View: a pointwise problem over as few dimensions as possible, each operand a column of strides over them.

What its schedules have in common. Transposes, halves and pairs that are exchanged, and numbers that follow from the position
(arange, random) are all strides: `x.T` is x with two of them exchanged; the other half is an offset and a negative stride along
an axis of two; arange and the counter of random numbers are columns whose "address" is the number itself. So the graph that
is left is pointwise over its leaves, and dimensions merge exactly where every column allows it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kgen.codegen.names import identifier, plain
from kgen.dsl.errors import ArgumentError
from kgen.dsl.expr import Expr, Shape, unrolled
from kgen.dsl.operator import Graph, ScalarSpec, TensorSpec, left_out
from kgen.dsl.ops import LEAVES, POINTWISE
from kgen.dsl.problem import Operand, Problem, common_alignment, dense_strides
from kgen.dsl.size import Dim
from kgen.dsl.types import DType
from kgen.ops.common.axes import merged_sizes, merged_strides, runs

#: Operations that depend on where an element is, or that move it: the dimensions they name cannot be given up.
POSITION = frozenset({"transpose", "arange", "size", "exchange", "random", "take"})
Exchange = Literal["", "halves", "pairs"]


@dataclass(frozen=True)
class Table:
    """An input as a chain of transposes and takes at positions sees it.

    `axes` are, for each of its named axes, the axis of the seen tensor, counted from the end. `half`: the seen last axis is
    twice as long, and finds the element by the position within a half, or by the pair.
    """

    input: Expr
    axes: tuple[int, ...]
    half: Exchange = ""
    direct: bool = False  # the input itself


@dataclass(frozen=True)
class Leaf:
    """Something that varies by element: an input, arange, or the counter of random numbers.

    `node` stands for it in the lowered results, `origin` is the graph's node, of shape `shape`. `exchange`: halves or pairs
    of the last axis are exchanged. `part` of an arange: the number of its half ("high"), or the position within it ("low").
    """

    node: Expr
    origin: Expr
    name: str
    shape: Shape
    table: Table | None
    exchange: Exchange
    part: Literal["", "high", "low"] = ""

    @property
    def half(self) -> Exchange:
        return self.table.half if self.table else ""


@dataclass(frozen=True)
class Lowered:
    """A graph whose leaves hold all that moves: `results` are pointwise over `leaves`, scalars and the `sizes` of dimensions."""

    results: tuple[Expr, ...]
    leaves: tuple[Leaf, ...]
    sizes: tuple[tuple[Expr, Dim], ...]


def matches(graph: Graph) -> bool:
    """Whether every result is pointwise over inputs, each as it is or with its axes exchanged, and numbers by position."""
    if len({(spec.shape, left_out(node, spec)) for spec, node in zip(graph.outputs, graph.results)}) != 1:
        return False
    nodes = _seen(graph)
    kinds = {n.attr for n in nodes if n.op == "exchange"}
    for node in nodes:
        if node.op in ("transpose", "take"):
            seen = table(node)
            if seen is None:
                return False
            kinds |= {seen.half} - {""}
        elif node.op not in LEAVES and node.op not in POINTWISE and node.op not in POSITION:
            return False
    return len(kinds) < 2


def _seen(graph: Graph) -> list[Expr]:
    """The nodes that are computed for an element: not what `table` sees through, nor what random numbers begin with."""
    known: dict[int, Expr] = {}
    stack = list(graph.results)
    while stack:
        node = stack.pop()
        if id(node) not in known:
            known[id(node)] = node
            stack.extend(() if node.op in ("take", "transpose", "random") else node.args)
    return list(known.values())


def table(node: Expr) -> Table | None:
    """The input that a chain of transposes, and of takes at positions along its axes, leads to; None where it leads to none."""
    chain = []
    while node.op in ("transpose", "take"):
        chain.append(node)
        node = node.args[0]
    if node.op != "input":
        return None
    found = Table(node, tuple(range(-len(node.shape.dims), 0)), direct=not chain)
    for seen in reversed(chain):
        if found.half:
            return None
        if seen.op == "transpose":
            exchanged = {-1: -2, -2: -1}
            found = Table(node, tuple(exchanged.get(axis, axis) for axis in found.axes))
            continue
        source, ids = seen.args
        at, more, half = seen.attr, len(ids.shape.dims) - 1, _half(ids)
        along = ids.op == "arange" and ids.shape.dims[0] == source.shape.dims[at]
        if not (along or (half and at == -1)):
            return None
        found = Table(node, tuple(axis if axis > at else axis - more for axis in found.axes), "" if along else half)
    return found


def _half(ids: Expr) -> Exchange:
    """What half ids of a table are: arange(D) % (size(D) // 2), or arange(D) // 2; else ""."""
    if ids.op not in ("mod", "floordiv") or ids.args[0].op != "arange" or len(ids.shape.dims) != 1:
        return ""
    position, by = ids.args
    if ids.op == "floordiv":
        return "pairs" if by.op == "const" and by.attr == 2 else ""
    return "halves" if _is_half_size(by, position) else ""


def _is_half_size(node: Expr, position: Expr) -> bool:
    """Whether a node is size(D) // 2, for the position arange(D)."""
    if node.op != "floordiv" or node.args[0].op != "size" or node.args[1].op != "const" or node.args[1].attr != 2:
        return False
    return position.op == "arange" and len(position.shape.dims) == 1 and position.shape.dims[0] == node.args[0].attr


@functools.lru_cache(maxsize=256)
def lowered(graph: Graph) -> Lowered:
    """The graph without what moves elements: each leaf once for every way that it is read."""
    specs: tuple[TensorSpec | ScalarSpec, ...] = (*graph.inputs, *graph.scalars, *graph.outputs)
    taken = {s.name for s in specs}
    leaves: dict[object, Leaf] = {}
    sizes: dict[Dim, Expr] = {}
    halves = any(n.op == "exchange" and n.attr == "halves" for n in graph.nodes)

    def named(base: str) -> str:
        name = base
        while plain(name) in taken:
            name += "_"
        taken.add(plain(name))
        return name

    def leaf(seen: Expr, exchange: Exchange, part: Literal["", "high", "low"] = "") -> Expr:
        view_of = table(seen)
        origin = view_of.input if view_of else seen
        if view_of and view_of.half == exchange:
            exchange = ""  # the other half finds the same element of the table
        if view_of:
            what: object = (origin.attr, view_of.axes, view_of.half)
        else:
            what = (origin.op, *map(id, origin.args), origin.shape)
        key = (what, exchange, part)
        if key not in leaves:
            if view_of:
                told = [{"transpose": "transposed", "take": "taken"}[seen.op]] if seen.op != "input" else []
                name = "_".join([identifier(origin.attr), *told, *[exchange] * bool(exchange)])
                name = named(name) if told or exchange else name
            else:
                number = sum(1 for known in leaves.values() if known.origin.op == origin.op)
                name = named(f"{ {'arange': 'index'}.get(origin.op, origin.op) }{number}")
            node = Expr(origin.op, (), origin.dtype, seen.shape, name, origin.where)
            leaves[key] = Leaf(node, origin, name, seen.shape, view_of, exchange, part)
        return leaves[key].node

    def lower(node: Expr, exchange: Exchange) -> Generator[tuple[Expr, Exchange], Expr, Expr]:
        if node.op in ("scalar", "const"):
            return node
        if node.op == "size":
            if node.attr not in sizes:
                sizes[node.attr] = replace(node, attr=named(f"size_{node.attr}"))
            return sizes[node.attr]
        if node.op in ("input", "arange", "random", "transpose", "take"):
            return leaf(node, exchange)
        if node.op == "exchange":
            return (yield node.args[0], "" if exchange else node.attr)
        if halves and node.op in ("floordiv", "mod") and _is_half_size(node.args[1], node.args[0]):
            return leaf(node.args[0], exchange, "high" if node.op == "floordiv" else "low")
        args = []
        for argument in node.args:
            args.append((yield argument, exchange))
        return replace(node, args=tuple(args))

    lowering = unrolled(lower, {})
    results = tuple(lowering(r, "") for r in graph.results)
    order = [spec.name for spec in graph.inputs]
    found = sorted(leaves.values(), key=lambda x: order.index(x.origin.attr) if x.origin.op == "input" else len(order))
    return Lowered(results, tuple(found), tuple((node, dim) for dim, node in sizes.items()))


@dataclass(frozen=True)
class Column:
    """What the position of an element leads to: an element of `operand`, or (None) a number.

    Element (i0, i1, ...) is `offset` + the sum of i_d * strides[d], in elements: an exchanged half has a negative stride, and
    its opposite for the offset. `leaf` is None for outputs. `inner` says how
    the last dimension is read besides: "pairs" with neighbours exchanged, "half" one element for two. `vectors` names the
    column whose vectors hold it too, this one's unless neighbours of it are exchanged.
    """

    name: str
    operand: Operand | None
    leaf: Leaf | None
    strides: tuple[int, ...]
    offset: int = 0
    inner: Literal["", "pairs", "half"] = ""
    vectors: str = ""

    @property
    def dtype(self) -> DType:
        if self.operand is not None:
            return self.operand.dtype
        assert self.leaf is not None
        return self.leaf.node.dtype

    def align(self, sizes: Sequence[int], along: int = -1) -> int:
        """What the address of every line along a dimension is a multiple of, in bytes, at most 16."""
        assert self.operand is not None
        along %= len(sizes)
        steps = [s for d, (s, n) in enumerate(zip(self.strides, sizes)) if d != along and n > 1]
        return common_alignment(self.operand.align, *(s * self.dtype.bytes for s in (*steps, self.offset)))


@dataclass(frozen=True)
class View:
    """A pointwise problem over `sizes`: what is read of memory, the numbers by position, the outputs, and the results.

    `two` is the dimension that counts the halves of an axis, whose size is 2 whatever the problem; -1 where there is none.
    """

    sizes: tuple[int, ...]
    inputs: tuple[Column, ...]
    numbers: tuple[Column, ...]
    outputs: tuple[Column, ...]
    lowered: Lowered
    two: int

    @property
    def memory(self) -> tuple[Column, ...]:
        """What is read and written."""
        return (*self.inputs, *self.outputs)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.inputs, *self.numbers, *self.outputs)

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def paired(self) -> bool:
        """Whether vectors have to hold whole pairs."""
        return any(c.inner for c in self.columns)

    def flipped(self, c: Column) -> bool:
        """Whether a column counts the halves backwards: then half 1 - i is taken instead of an offset."""
        return self.two >= 0 and c.offset > 0 and c.strides[self.two] == -c.offset

    def strides_of(self, c: Column) -> str:
        """The name of the column whose strides serve this one: that of the same operand with the halves in order."""
        if self.flipped(c) and c.operand is not None:
            backwards = tuple(-s if d == self.two else s for d, s in enumerate(c.strides))
            for other in self.inputs:
                if other.operand == c.operand and other.strides == backwards and not other.offset:
                    return other.name
        return c.name

    def symbols(self, problem: Problem) -> dict[str, int]:
        """The integers a launch depends on: sizes n0.., strides x_s0.., offsets, and sizes that the graph computes with."""
        found = {f"n{d}": n for d, n in enumerate(self.sizes)}
        for c in self.columns:
            found |= {f"{c.name}_s{d}": s for d, s in enumerate(c.strides)}
            if self.flipped(c):
                found[f"{c.name}_s{self.two}"] = c.offset
            elif c.offset:
                found[f"{c.name}_offset"] = c.offset
        known = (problem.origin or problem).sizes
        found |= {node.attr: known[dim.name] for node, dim in self.lowered.sizes}
        return {plain(name): n for name, n in found.items()}


@functools.lru_cache(maxsize=1024)
def view(problem: Problem) -> View:
    """The problem over as few dimensions as possible: size 1 dropped, ordered by the output's strides, neighbours merged."""
    graph = problem.graph
    low = lowered(graph)
    # The axes of size 1 that the declared shape of the results leaves out are there again, but in a problem that was normalised.
    kept_shapes = problem.origin is None or any(n.op in POSITION for n in graph.nodes)
    without = left_out(graph.results[0], graph.outputs[0]) if kept_shapes else ()
    full = _put_back(problem.outputs[0].shape, without, 1)
    columns = [_leaf_column(leaf, problem, full) for leaf in low.leaves]
    for o in problem.outputs:
        columns.append(Column(identifier(o.name), o, None, _put_back(o.strides, without, 0)))
    sizes, columns = _split(full, columns, low)
    leader = columns[len(low.leaves)]
    axes = [a for a, n in enumerate(sizes) if n != 1]
    axes.sort(key=lambda a: -leader.strides[a])
    last = axes[-1:] if any(c.inner == "half" for c in columns) else []  # a table's own: it stays
    made = runs(axes[: len(axes) - len(last)], sizes, [c.strides for c in columns]) + [[a] for a in last]
    kept = merged_sizes(made, sizes) or [1]
    halves = len(sizes) > len(full) and any("halves" in (x.exchange, x.half) for x in low.leaves)
    two = next((d for d, run in enumerate(made[:-1]) if halves and run == [len(sizes) - 2]), -1)
    strides = [merged_strides(made, c.strides) or [int(c.operand is not None)] for c in columns]
    columns = _sharing([replace(c, strides=tuple(s)) for c, s in zip(columns, strides)])
    read, written = columns[: len(low.leaves)], columns[len(low.leaves) :]
    inputs = tuple(c for c in read if c.operand is not None)
    numbers = tuple(c for c in read if c.operand is None)
    return View(tuple(kept), inputs, numbers, tuple(written), low, two)


def _sharing(columns: list[Column]) -> list[Column]:
    """The columns with neighbours exchanged that another one's vectors hold too are read from those."""
    plain: dict[object, str] = {}
    for c in columns:
        if c.operand is not None and c.leaf and not c.inner:
            plain[c.operand, c.strides] = c.name
    return [replace(c, vectors=plain.get((c.operand, c.strides), "") if c.inner == "pairs" else "") for c in columns]


def normalise(problem: Problem) -> Problem:
    """The problem over the dimensions of its view. Where positions matter, operands keep the shapes that say which."""
    if problem.origin is not None:
        return problem
    found = view(problem)
    sizes = {f"n{d}": n for d, n in enumerate(found.sizes)}
    if any(n.op in POSITION for n in problem.graph.nodes):
        return problem.collapsed(problem.operands, found.sizes, sizes)
    strides = {c.operand.name: c.strides for c in found.memory if c.operand is not None}
    unused = (0,) * len(found.sizes)
    return problem.collapsed(
        [Operand(o.name, o.dtype, found.sizes, strides.get(o.name, unused), o.align) for o in problem.operands],
        found.sizes,
        sizes,
    )


def _leaf_column(leaf: Leaf, problem: Problem, full: tuple[int, ...]) -> Column:
    """The strides of a leaf along the axes of the full shape; of a table for halves or pairs, the last is the table's own."""
    strides = [0] * len(full)
    if leaf.table and leaf.table.direct:
        o = problem.operand(leaf.origin.attr)
        return Column(leaf.name, o, leaf, _broadcast(o.shape, o.strides, full))
    if leaf.table:
        o = problem.operand(leaf.origin.attr)
        head = len(o.shape) - len(leaf.table.axes)
        first = -len(leaf.shape.dims) - head
        for axis, n, s in zip((*range(first, first + head), *leaf.table.axes), o.shape, o.strides):
            needed = (full[axis] + 1) // 2 if leaf.half and axis == -1 else full[axis]
            if leaf.half and axis == -1 and n < needed:
                raise ArgumentError(
                    f"{problem.graph.name}: {o.name} has {n} elements a row; expected {needed}, half of {full[-1]}"
                )
            strides[axis] = s if n == full[axis] or full[axis] == 1 or (leaf.half and axis == -1) else 0
        return Column(leaf.name, o, leaf, tuple(strides))
    own = leaf.shape
    if leaf.origin.op == "arange":
        axis = len(full) - len(own.dims)
        return Column(leaf.name, None, leaf, tuple(int(a == axis and full[a] > 1) for a in range(len(full))))
    trailing = full[len(full) - len(own.dims) :] if own.dims else ()
    head_sizes = full[: len(full) - len(own.dims)] if own.leading else ()
    shape = (*head_sizes, *(1 if dim == 1 else n for dim, n in zip(own.dims, trailing)))
    return Column(leaf.name, None, leaf, _broadcast(shape, dense_strides(shape), full))


def _put_back(values: Sequence[int], axes: tuple[int, ...], value: int) -> tuple[int, ...]:
    """Values by axis with one at each of these axes, which count from the end, besides."""
    rank, rest = len(values) + len(axes), iter(values)
    return tuple(value if a - rank in axes else next(rest) for a in range(rank))


def _broadcast(shape: Sequence[int], strides: Sequence[int], full: Sequence[int]) -> tuple[int, ...]:
    missing = len(full) - len(shape)
    kept = [s if n == f or f == 1 else 0 for s, n, f in zip(strides, shape, full[missing:])]
    return (0,) * missing + tuple(kept)


def _split(full: tuple[int, ...], columns: list[Column], low: Lowered) -> tuple[tuple[int, ...], list[Column]]:
    """The sizes with the last axis in two, where halves or pairs of it are exchanged or index a table.

    Pairs stay in one vector where the last axis is that of the output's vectors and all of these are aligned to pairs.
    """
    kinds = {k for leaf in low.leaves for k in (leaf.exchange, leaf.half)} - {""}
    if not kinds:
        return full, columns
    (kind,) = kinds
    n = full[-1]
    if n % 2:
        raise ArgumentError(f"the last axis has {n} elements; expected an even number, as {kind} of it are exchanged")
    written = [c for c in columns if c.leaf is None]
    vectors = [c for c in columns if c.operand is not None and c.strides[-1] == 1 and not (c.leaf and c.leaf.half)]
    aligned = all(c.align(full) % (2 * c.dtype.bytes) == 0 for c in vectors)
    tables = all(c.strides[-1] == 1 for c in columns if c.leaf and c.leaf.half)
    if kind == "pairs" and aligned and tables and all(c.strides[-1] == 1 for c in written):
        return full, [replace(c, inner=_inner(c)) for c in columns]
    outer, inner = (2, n // 2) if kind == "halves" else (n // 2, 2)
    found = []
    for c in columns:
        last = c.strides[-1]
        high, lower, offset = last * inner, last, 0
        if c.leaf and c.leaf.half:
            high, lower = (0, last) if kind == "halves" else (last, 0)
        if c.leaf and c.leaf.exchange == "halves":
            high, offset = -high, high
        elif c.leaf and c.leaf.exchange == "pairs":
            lower, offset = -lower, lower
        if c.leaf and c.leaf.part:
            high, lower = (1, 0) if c.leaf.part == "high" else (0, 1)
            high, offset = (-high, high) if c.leaf.exchange else (high, 0)
        found.append(replace(c, strides=(*c.strides[:-1], high, lower), offset=offset))
    return (*full[:-1], outer, inner), found


def _inner(c: Column) -> Literal["", "pairs", "half"]:
    if c.leaf is None:
        return ""
    return "half" if c.leaf.half else "pairs" if c.leaf.exchange else ""
