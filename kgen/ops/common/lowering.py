"""Lowering: a graph of takes as steps: tensors that are read, the ids they are read at, and pointwise functions of both.

An element of the result has a coordinate along each axis: its position there, or within a take the id that was found. Seen
so, `take` only exchanges coordinates, and whatever it is applied to is computed at the new ones. What is left are reads of
inputs at coordinates, ids as pointwise expressions of what was read before, and a pointwise function of all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Union

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.dsl.expr import Expr, Shape, constant, unrolled, walk
from kgen.dsl.operator import Graph, left_out
from kgen.dsl.ops import LEAVES, POINTWISE
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.ranges import within
from kgen.dsl.size import Dim, Size, evaluate
from kgen.dsl.types import bool_, compute_dtype, i32
from kgen.ops.common.axes import merged_sizes, merged_strides, runs

#: What a lowered graph may hold.
OPERATIONS = POINTWISE | LEAVES | {"arange", "size", "take", "transpose"}


@dataclass(frozen=True)
class Axis:
    """The position along an axis of the result, the outermost being 0."""

    number: int


@dataclass(frozen=True)
class Found:
    """The id that step `number` found."""

    number: int


#: None along an axis of a literal 1.
Coordinate = Union[Axis, Found, None]


@dataclass(frozen=True, eq=False)
class Read:
    """Step: an element of an input. `terms` are the coordinates that move its address, each with the operand's axis.

    Where one of the ids `guards` lies outside its axis nothing is read, and the value is 0.
    """

    name: str
    operand: Operand
    terms: tuple[tuple[Axis | Found, int], ...]
    guards: tuple[int, ...]
    axes: frozenset[int]


@dataclass(frozen=True, eq=False)
class Id:
    """Step: an id of an axis of `size` elements: the result of `function`; -1 where it lies outside, unless it never does."""

    number: int
    function: str
    arguments: tuple[Expr, ...]
    size: Size
    checked: bool
    axes: frozenset[int]

    @property
    def name(self) -> str:
        return f"id{self.number}"


Step = Union[Read, Id]
#: How `Lowering` goes down: it yields the arguments of the next call.
_Steps = Generator[tuple[Any, ...], Expr, Expr]


@dataclass
class Lowering:
    """Lowers the expressions of a problem whose result has `rank` axes, leading ones included."""

    problem: Problem
    rank: int
    steps: list[Step] = field(default_factory=list)
    sizes: dict[str, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leading = len(self.problem.leading)
        self._done: dict[tuple[Any, ...], Expr] = {}
        #: A node at coordinates as a pointwise expression of leaves; where an id of `guards` is outside, nothing is read.
        self.lower = unrolled(self._lower, self._done)
        self._axes: dict[int, frozenset[int]] = {}
        self._leaves: dict[object, Expr] = {}
        self._names: dict[str, int] = {}

    def result(self, index: int) -> Expr:
        """The result with that number, at every element of its output."""
        graph = self.problem.graph
        node, spec = graph.results[index], graph.outputs[index]
        dropped = left_out(node, spec)
        count, kept = len(node.shape.dims), len(spec.shape.dims)
        declared: list[Coordinate] = [Axis(self.rank - kept + a) for a in range(kept)]
        named: list[Coordinate] = []
        for axis in range(-1, -count - 1, -1):
            named.append(None if axis in dropped else declared.pop())
        head = [Axis(a) for a in range(self.leading)] if node.shape.leading else []
        return self.lower(node, (*head, *_ones(reversed(named), node.shape)), ())

    def coordinates(self, shape: Shape) -> tuple[Coordinate, ...]:
        """Those of an element of the result, for a value of that shape."""
        named = [Axis(self.rank - len(shape.dims) + a) for a in range(len(shape.dims))]
        return (*map(Axis, range(self.leading if shape.leading else 0)), *_ones(named, shape))

    def expression(self, node: Expr, shape: Shape) -> Expr:
        """A node that broadcasts to the result's `shape`, at every element of it."""
        like = Expr("like", (), node.dtype, shape)
        return self.lower(node, broadcast_coordinates(node, like, self.coordinates(shape)), ())

    def define(self, node: Expr, at: tuple[Coordinate, ...], leaf: Expr) -> None:
        """Has a leaf stand for the node at these coordinates."""
        self._axes[id(leaf)] = self.axes_of(at)
        self._done[node, at, ()] = leaf

    def _lower(self, node: Expr, at: tuple[Coordinate, ...], guards: tuple[int, ...]) -> _Steps:
        if node.op == "const":
            return node
        if node.op == "scalar":
            return self._leaf(("scalar", node.attr), node, frozenset())
        if node.op == "size":
            leaf = self._leaf(("size", node.attr), node, frozenset())
            self.sizes[size_name(node.attr)] = leaf
            return leaf
        if node.op == "arange":
            if at[0] is None:
                return constant(0)
            return self._leaf(("position", at[0]), Expr("position", (), i32, Shape(), at[0]), self.axes_of(at[:1]))
        if node.op == "input":
            return self._read(node, at, guards)
        if node.op == "take":
            return (yield from self._take(node, at, guards))
        if node.op == "transpose":
            return (yield node.args[0], (*at[:-2], at[-1], at[-2]), guards)
        args = []
        for argument in node.args:
            args.append((yield argument, broadcast_coordinates(argument, node, at), guards))
        return replace(node, args=tuple(args))

    def _leaf(self, key: object, node: Expr, axes: frozenset[int]) -> Expr:
        """One node for equal keys: the functions' arguments are told apart by identity."""
        leaf = self._leaves.setdefault(key, node)
        self._axes[id(leaf)] = axes
        return leaf

    def _read(self, node: Expr, at: tuple[Coordinate, ...], guards: tuple[int, ...]) -> Expr:
        operand = self.problem.operand(node.attr)
        terms = tuple((c, axis) for axis, c in enumerate(at) if c is not None and operand.strides[axis] != 0)
        key = (node.attr, terms, guards)
        if key not in self._leaves:
            number = self._names[node.attr] = self._names.get(node.attr, -1) + 1
            axes = self.axes_of(c for c, _ in terms) | self.axes_of(map(Found, guards))
            read = Read(f"{identifier(node.attr)}_at{number}", operand, terms, guards, axes)
            self.steps.append(read)
            self._leaf(key, Expr("read", (), node.dtype, Shape(), read), axes)
        return self._leaves[key]

    def _take(self, node: Expr, at: tuple[Coordinate, ...], guards: tuple[int, ...]) -> _Steps:
        x, ids = node.args
        lead = self.leading if ids.shape.leading else 0
        before = len(x.shape.dims) + node.attr + (self.leading if x.shape.leading else 0)
        width = lead + len(ids.shape.dims)
        found = self._id(node, (yield ids, at[before : before + width], guards))
        inner = guards if not found.checked or found.number in guards else (*guards, found.number)
        value = yield x, (*at[:before], Found(found.number), *at[before + width :]), inner
        if not found.checked or value.op == "read":
            return value  # what is not read is 0 already
        dtype = compute_dtype(node.dtype)
        inside = Expr("inside", (), bool_, Shape(), found.number)
        inside = self._leaf(("inside", found.number), inside, found.axes)
        return Expr("where", (inside, value, constant(0, dtype)), dtype, node.shape, None, node.where)

    def _id(self, node: Expr, value: Expr) -> Id:
        for step in self.steps:
            if isinstance(step, Id) and step.size == node.args[0].shape.dims[node.attr] and step.arguments[-1] is value:
                return step
        number = sum(isinstance(s, Id) for s in self.steps)
        arguments = tuple(self.leaves((value,)))
        named = [Argument(leaf, self.parameter(leaf), leaf.dtype) for leaf in arguments]
        text = pointwise_function(f"find{number}", named, [value], [value.dtype], fast=False)
        size = node.args[0].shape.dims[node.attr]
        # An axis of no element has no last one for ids to be limited to.
        inside = within(node.args[1], size) and evaluate(size, self.problem.sizes) > 0
        made = Id(number, text, (*arguments, value), size, not inside, self.axes(arguments))
        self.steps.append(made)
        return made

    def leaves(self, roots: Iterable[Expr]) -> list[Expr]:
        """The leaves of lowered expressions, in the order of their first use."""
        return [n for n in walk(tuple(roots)) if id(n) in self._axes]

    def axes(self, leaves: Iterable[Expr]) -> frozenset[int]:
        """The axes of the result that the leaves depend on."""
        return frozenset().union(*(self._axes[id(leaf)] for leaf in leaves))

    def axes_of(self, coordinates: Iterable[Coordinate]) -> frozenset[int]:
        """The axes of the result that the coordinates depend on."""
        found = {s.number: s.axes for s in self.steps if isinstance(s, Id)}
        parts = (frozenset({c.number}) if isinstance(c, Axis) else found[c.number] for c in coordinates if c)
        return frozenset().union(*parts)

    @staticmethod
    def parameter(leaf: Expr) -> str:
        """The name of a leaf as a function's parameter."""
        if leaf.op == "read":
            return str(leaf.attr.name)
        if leaf.op == "position":
            return f"i{leaf.attr.number}" if isinstance(leaf.attr, Axis) else f"id{leaf.attr.number}"
        if leaf.op == "inside":
            return f"inside{leaf.attr}"
        return size_name(leaf.attr) if leaf.op == "size" else identifier(leaf.attr)


def size_name(size: Size) -> str:
    """The parameter that holds the size of a dimension."""
    return f"size_{size}"


def _ones(named: Iterable[Coordinate], shape: Shape) -> list[Coordinate]:
    return [None if size == 1 else c for c, size in zip(named, shape.dims)]


def broadcast_coordinates(argument: Expr, node: Expr, at: tuple[Coordinate, ...]) -> tuple[Coordinate, ...]:
    """The coordinates of an argument of a pointwise node that is at `at`: axes are aligned at the end, a 1 has none."""
    count = len(argument.shape.dims)
    named = at[len(at) - count :]
    head = at[: len(at) - len(node.shape.dims)] if argument.shape.leading else ()
    return (*head, *_ones(named, argument.shape))


def is_gathered(graph: Graph) -> bool:
    """Whether every result is pointwise over inputs, reached at their own place or by take, all of one shape."""
    shapes = {spec.shape for spec in graph.outputs}
    return len(shapes) == 1 and all(n.op in OPERATIONS for n in graph.nodes)


def collapse_leading(problem: Problem) -> Problem:
    """The problem with as few leading sizes as possible, alike for all operands that have any; strides 0 to broadcast."""
    if problem.origin is not None:
        return problem
    count = len(problem.leading)
    specs = (*problem.graph.inputs, *problem.graph.outputs)
    columns = []
    for spec, o in zip(specs, problem.operands):
        own = len(o.shape) - len(spec.shape.dims)
        kept = [0 if n == 1 else s for n, s in zip(o.shape[:own], o.strides)]
        columns.append([0] * (count - own) + kept if spec.shape.leading else None)
    axes = [a for a, n in enumerate(problem.leading) if n != 1]
    made = runs(axes, problem.leading, [c for c in columns if c is not None])
    sizes = merged_sizes(made, problem.leading)
    operands = []
    for spec, o, column in zip(specs, problem.operands, columns):
        named = len(spec.shape.dims)
        tail, steps = o.shape[len(o.shape) - named :], o.strides[len(o.shape) - named :]
        if column is not None:
            o = Operand(o.name, o.dtype, (*sizes, *tail), (*merged_strides(made, column), *steps), o.align)
        operands.append(o)
    return problem.collapsed(operands, tuple(sizes), dict(problem.bindings))


def dim_names(graph: Graph) -> list[str]:
    """The names of the dimensions whose size a node of the graph needs to know."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        if node.op == "size":
            found[node.attr.name] = None
        elif node.op == "take" and isinstance(node.args[0].shape.dims[node.attr], Dim):
            found[str(node.args[0].shape.dims[node.attr])] = None
    return list(found)
