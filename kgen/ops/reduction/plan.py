"""Reductions of a graph over one set of axes: what lies under them, how each accumulates, what is computed of the results.

The families `reduce` (all axes) and `column_stats` (some, but not the last alone) are built on it. A reduction of another
one's result is known in one form, the variance: the mean or the sum of (e - mean(e))^2. It is accumulated beside the sum, as
squares around the mean of what was seen (Chan, Golub and LeVeque, 1979), in one pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kgen.dsl.expr import Expr, Shape, walk
from kgen.dsl.operator import Graph
from kgen.dsl.ops import LEAVES, POINTWISE, REDUCTIONS, accumulator
from kgen.dsl.problem import Operand, Problem, common_alignment
from kgen.dsl.types import DType, i8, i64
from kgen.ops.common.axes import merged_sizes, merged_strides, runs

_LEAVES = LEAVES | {"size"}
Kind = Literal["sum", "moments", "max", "min", "argmax"]
_KINDS: dict[str, Kind] = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min", "argmax": "argmax"}


@dataclass(frozen=True)
class Reduction:
    """One thing that is accumulated: `value`, element by element, in `dtype`. `nodes` are the graph's nodes it gives.

    `moments` has the sum and the squares around the mean. `factors` are the one or two i8 inputs whose (product's) sum it is.
    """

    kind: Kind
    value: Expr
    dtype: DType
    factors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reductions:
    """A graph taken apart: `graph` itself, as an equal one has other nodes. `axes` are those reduced, None for all of them;
    `full` is the shape under the reductions.

    `results` gives for every reduction node of the graph the number of its Reduction and its part: "sum", "mean" (of
    the elements), "squares", "variance", "value" (max, min) or "index" (argmax).
    """

    graph: Graph
    axes: tuple[int, ...] | None
    full: Shape
    reductions: tuple[Reduction, ...]
    results: tuple[tuple[Expr, int, str], ...]

    @functools.cached_property
    def under(self) -> tuple[Expr, ...]:
        """The leaves under the reductions, each once."""
        return _leaves([r.value for r in self.reductions], ())

    @functools.cached_property
    def above(self) -> tuple[Expr, ...]:
        """The leaves of the results that are not under a reduction."""
        return _leaves(self.graph.results, {id(node) for node, _, _ in self.results})


def _leaves(roots: Iterable[Expr], closed: Iterable[int]) -> tuple[Expr, ...]:
    found: dict[int, Expr] = {}
    stack, seen = list(roots), set(closed)
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            stack.extend(reversed(node.args))
            if node.op in _LEAVES and node.op != "const":
                found[id(node)] = node
    return tuple(found.values())


@functools.lru_cache(maxsize=4096)
def reductions_of(graph: Graph) -> Reductions | None:
    """The graph taken apart; None where it is not pointwise around reductions of pointwise expressions over one set of axes."""
    nodes = graph.nodes
    if not all(n.op in _LEAVES or n.op in POINTWISE or n.op in REDUCTIONS for n in nodes):
        return None
    same = _alike(nodes)
    found = [n for n in nodes if n.op in REDUCTIONS]
    if not found or len({(_axes(n), n.args[0].shape) for n in found}) != 1:
        return None
    axes, full = _axes(found[0]), found[0].args[0].shape
    above: set[int] = set()  # reductions, and what is computed from them
    for n in nodes:
        if _reduced(n) or any(id(a) in above for a in n.args):
            above.add(id(n))
    plain: dict[tuple[Kind, int], Reduction] = {}
    variances: dict[int, Expr] = {}
    for n in found:
        value = n.args[0]
        if id(value) not in above:
            dtype = i64 if n.op == "mean" and value.dtype.kind == "int" else accumulator(n)
            key = (_KINDS[n.op], same[id(value)])
            kept = plain.get(key)
            if kept is None or (kept.dtype.kind == "int" and dtype.bits > kept.dtype.bits):
                plain[key] = Reduction(_KINDS[n.op], value, dtype, _factors(value, dtype) if key[0] == "sum" else ())
            continue
        around = _squared_difference(value, same)
        if around is None or n.op not in ("sum", "mean") or not around.dtype.is_float:
            return None
        variances[id(n)] = around
    for around in variances.values():
        key = ("sum", same[id(around)])
        plain[key] = replace(plain[key], kind="moments", factors=())
    numbers = {key: i for i, key in enumerate(plain)}
    results = []
    for n in found:
        if id(n) in variances:
            number = numbers["sum", same[id(variances[id(n)])]]
            results.append((n, number, "variance" if n.op == "mean" else "squares"))
        else:
            part = {"sum": "sum", "mean": "mean", "argmax": "index"}.get(n.op, "value")
            results.append((n, numbers[_KINDS[n.op], same[id(n.args[0])]], part))
    made = Reductions(graph, axes, full, tuple(plain.values()), tuple(results))
    reads = any(leaf.op == "input" for leaf in made.under)
    return made if reads and _fits(made) else None


def _reduced(node: Expr) -> bool:
    return node.op in REDUCTIONS


def _axes(node: Expr) -> tuple[int, ...] | None:
    """The axes a node reduces; None where they are all."""
    axes = (node.attr,) if isinstance(node.attr, int) else node.attr
    shape = node.args[0].shape
    return None if axes is None or (len(axes) == len(shape.dims) and not shape.leading) else tuple(axes)


def _alike(nodes: Sequence[Expr]) -> dict[int, int]:
    """A number for every node, equal for nodes that mean the same."""
    numbers: dict[object, int] = {}
    found: dict[int, int] = {}
    for n in nodes:
        key = (n.op, repr(n.attr), n.dtype, n.shape, tuple(found[id(a)] for a in n.args))
        found[id(n)] = numbers.setdefault(key, len(numbers))
    return found


def _squared_difference(value: Expr, same: Mapping[int, int]) -> Expr | None:
    """The e of (e - mean(e))^2, a plain expression; None where the value is something else."""
    product = value.op == "mul" and same[id(value.args[0])] == same[id(value.args[1])]
    square = value.op == "pow" and value.args[1].op == "const" and value.args[1].attr == 2
    if not (product or square) or value.args[0].op != "sub":
        return None
    difference = value.args[0]
    for e, mean in (difference.args, difference.args[::-1]):
        if mean.op == "mean" and same[id(mean.args[0])] == same[id(e)] and not any(map(_reduced, walk((e,)))):
            return mean.args[0]
    return None


def _factors(value: Expr, dtype: DType) -> tuple[str, ...]:
    """The i8 inputs whose sum, or product's sum, an integer sum is."""

    def plain(node: Expr) -> Expr:
        while (
            node.op == "cast" and node.dtype.kind == "int" and node.args[0].dtype.kind == "int" and node.dtype.bits > 8
        ):
            node = node.args[0]
        return node

    value = plain(value)
    factors = tuple(map(plain, value.args)) if value.op == "mul" else (value,)
    whole = dtype.kind == "int" and all(f.op == "input" and f.dtype is i8 for f in factors)
    return tuple(f.attr for f in factors) if whole else ()


def _fits(made: Reductions) -> bool:
    """Whether every result has one value for each of the axes that stay, and says so in its signature."""
    full, axes = made.full, made.axes
    rank = len(full.dims)
    kept = (
        Shape()
        if axes is None
        else Shape(tuple(1 if a - rank in axes else full.dims[a] for a in range(rank)), full.leading)
    )
    squeezed = tuple(d for a, d in enumerate(kept.dims) if axes is None or a - rank not in axes)
    for spec, node in zip(made.graph.outputs, made.graph.results):
        if axes is None:
            if spec.shape.leading or any(d != 1 for d in (*spec.shape.dims, *node.shape.dims)):
                return False
            continue
        padded = (1,) * (rank - len(node.shape.dims)) + node.shape.dims
        if len(padded) > rank or any(d not in (1, k) for d, k in zip(padded, kept.dims)):
            return False
        if spec.shape.leading != kept.leading or spec.shape.dims not in (kept.dims, squeezed):
            return False
    return True


# A problem's axes.


@dataclass(frozen=True)
class View:
    """A problem over as few axes as possible: `kept` of them stay, the others are reduced; the last of each moves fastest.

    `strides` are every operand's in elements by axis, 0 where it does not move.
    """

    sizes: tuple[int, ...]
    kept: int
    strides: Mapping[str, tuple[int, ...]] = field(hash=False)

    @property
    def outputs(self) -> int:
        """Number of results."""
        return math.prod(self.sizes[: self.kept])

    @property
    def length(self) -> int:
        """Number of elements under each result."""
        return math.prod(self.sizes[self.kept :])

    def align(self, o: Operand, axis: int) -> int:
        """What the address of every row of an operand along the axis is a multiple of, in bytes, at most 16."""
        others = (s for a, s in enumerate(self.strides[o.name]) if a != axis)
        return common_alignment(o.align, *(s * o.dtype.bytes for s in others))


@functools.lru_cache(maxsize=1024)
def view(problem: Problem) -> View:
    """The axes of a problem, those that neighbour each other in every operand merged; sizes of 1 are left out.

    Axes are ordered by the strides of the largest operand under the reductions, unless an argmax counts along them.
    """
    made = reductions_of(problem.graph)
    assert made is not None
    names = {leaf.attr for leaf in made.under if leaf.op == "input"}
    under = sorted((o for o in problem.inputs if o.name in names), key=lambda o: -o.elements)
    full = _broadcast([o.shape for o in under])
    rank = len(full)
    reduced = {a for a in range(rank) if made.axes is None or a - rank in made.axes}
    strides = {o.name: _strides(o, rank, reduced if o in problem.outputs else set()) for o in problem.operands}
    counted = any(r.kind == "argmax" for r in made.reductions)
    found: list[list[int]] = []
    kept = 0
    for group in (set(range(rank)) - reduced, reduced):
        kept = len(found)
        axes = [a for a in sorted(group) if full[a] != 1]
        if 0 in (full[a] for a in axes):
            empty = next(a for a in axes if full[a] == 0)
            axes = [empty]
            # What has no element moves along it, even if it is empty along another: else it would be read once for all.
            for o in under:
                if not o.elements:
                    strides[o.name] = (*strides[o.name][:empty], 1, *strides[o.name][empty + 1 :])
        if not (counted and group is reduced):
            axes.sort(key=lambda a: [-strides[o.name][a] for o in under])
        found += runs(axes, full, strides.values())
    single = [] if len(found) > kept else [1]  # nothing is reduced: each result has one element
    columns = {name: (*merged_strides(found, s), *(0 for _ in single)) for name, s in strides.items()}
    return View((*merged_sizes(found, full), *single), kept, columns)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded))


def _strides(o: Operand, rank: int, reduced: set[int]) -> tuple[int, ...]:
    """The operand's strides by axis of the full shape; an output without the reduced axes has them put back."""
    own = list(zip(o.shape, o.strides))
    if len(own) == rank - len(reduced):
        for a in sorted(reduced):
            own.insert(a, (1, 0))
    own = [(1, 0)] * (rank - len(own)) + own
    return tuple(s if n != 1 else 0 for n, s in own[len(own) - rank :])


@functools.lru_cache(maxsize=256)
def one_shape(problem: Problem) -> bool:
    """Whether all reductions run over the same elements: leading sizes of 1 may make one of them shorter."""
    made = reductions_of(problem.graph)
    assert made is not None
    own = {o.name: o.shape for o in problem.inputs}
    shapes: dict[int, tuple[int, ...]] = {}
    for node in walk(tuple(r.value for r in made.reductions)):
        shapes[id(node)] = own[node.attr] if node.op == "input" else _broadcast([shapes[id(a)] for a in node.args])
    return len({shapes[id(r.value)] for r in made.reductions}) == 1


def normalise(problem: Problem) -> Problem:
    """The problem over the axes of its view, where the graph names none. Axes that it names have meanings: they stay."""
    made = reductions_of(problem.graph)
    assert made is not None
    if problem.origin is not None or any(n.op == "size" for n in problem.graph.nodes):
        return problem
    if any(node.attr is not None for node, _, _ in made.results) or not one_shape(problem):
        return problem
    v = view(problem)
    under = {leaf.attr for leaf in made.under}
    operands = [
        Operand(o.name, o.dtype, v.sizes, v.strides[o.name], o.align)
        if o.name in under
        else Operand(o.name, o.dtype, (), (), o.align)
        for o in problem.operands
    ]
    return problem.collapsed(operands, v.sizes, {f"n{a}": n for a, n in enumerate(v.sizes)})
