"""Partition: a graph that no family serves, cut into several that one serves each, to be computed in order.

What is cut at are values that several elements, or another family, need whole: results of reductions and products, operands
of products, and values that the definition rounds itself. Such a value is written to memory by one launch and read by later
ones; it keeps its dtype, so that nothing is rounded that the definition does not round. Of all ways to cut, the one with
the fewest launches is taken, and of these the one whose values between them take the least memory: each axis counts. Terms of
reductions are cut at where nothing else will do, and those of scans, and what is moved, where that will not do either. Where no
few cuts will do, all are made, and those left out again without which it does too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kgen.dsl.expr import Expr, walk, with_arguments
from kgen.dsl.family import has_kernel
from kgen.dsl.operator import Graph, TensorSpec
from kgen.dsl.ops import CONTRACTIONS, LEAVES, MOVES, OPS, PRODUCTS, REDUCTIONS
from kgen.dsl.size import Dim, SizeExpr, symbols_of

#: The most values that a graph is cut at, and the most of which sets are tried.
_MOST_CUTS, _MOST_VALUES = 4, 10
#: What one axis more counts, where the sizes are not known.
_AXIS = 64


@dataclass(frozen=True)
class Cut:
    """A value between launches: what it is called, and the node that computes it."""

    spec: TensorSpec
    node: Expr

    @property
    def why(self) -> str:
        """Why it is in memory, as a person would say it."""
        kind = OPS[self.node.op].kind
        what = {k: f"a {k}'s result" for k in ("reduction", "product", "scan")}
        what |= {"scatter": "sums by index", "move": "elements at other places"}
        other = "rounded by the definition, or an operand of a product, a reduction, a scan or a move"
        return f"{self.spec}, {what.get(kind, other)} ({self.node.where})"


@dataclass(frozen=True)
class Partition:
    """`graphs` are computed in order; an input of one that is no input of the whole is the output of an earlier one.

    `cuts` are the values between them; one that is a result of the whole too bears the result's name.
    """

    graphs: tuple[Graph, ...]
    cuts: tuple[Cut, ...]


def partition(graph: Graph) -> Partition | None:
    """The graph in parts that a family serves each; None where a family serves the whole, or no way to cut it is found."""
    return None if has_kernel(graph) else _cut(graph)


@functools.lru_cache(maxsize=1024)
def _cut(graph: Graph) -> Partition | None:
    cutters = [_Cutter(graph), _Cutter(graph, PRODUCTS | REDUCTIONS), _Cutter(graph, CONTRACTIONS | MOVES)]
    for cutter in cutters:
        found = [made for values in cutter.choices() if (made := cutter.cut(values)) is not None]
        if found:
            return min(found, key=lambda made: (len(made.graphs), _memory(made.cuts)))
    return next((made for cutter in cutters if (made := cutter.cut_everywhere()) is not None), None)


def _memory(cuts: Sequence[Cut]) -> int:
    """What values take of memory, by the number of their axes."""
    axes = (sum(d != 1 for d in c.spec.shape.dims) + c.spec.shape.leading for c in cuts)
    return sum(c.spec.dtype.bits * _AXIS**n for c, n in zip(cuts, axes))


class _Cutter:
    """Cuts one graph. Values are nodes, by their place in `graph.nodes`. `users`: ops of which operands may be cut at."""

    def __init__(self, graph: Graph, users: frozenset[str] = PRODUCTS) -> None:
        self.users = users
        self.graph = graph.merged
        self.nodes = self.graph.nodes
        self.place = {id(node): i for i, node in enumerate(self.nodes)}
        # Values that are results of the whole as they are need no other memory.
        pairs = zip(self.graph.outputs, self.graph.results)
        self.specs = {self.place[id(r)]: spec for spec, r in pairs if _is_value(spec, r)}
        self._name()
        self._arguments = [tuple(self.place[id(a)] for a in node.args) for node in self.nodes]
        self._made: dict[tuple[frozenset[int], tuple[TensorSpec, ...]], Graph | None] = {}

    def choices(self) -> Iterator[tuple[int, ...]]:
        """The sets of values to cut at, the smallest first."""
        values = [i for i, node in enumerate(self.nodes) if self._may_be_cut(node)]
        if len(values) > _MOST_VALUES:
            values = [i for i in values if self.nodes[i].op in CONTRACTIONS]
        if len(values) > _MOST_VALUES:
            yield tuple(values)
            return
        for count in range(_MOST_CUTS + 1):
            yield from itertools.combinations(values, count)

    def cut_everywhere(self) -> Partition | None:
        """The graph cut at all values but those that can be left out again, the largest first; None as of `cut`."""
        values = [i for i, node in enumerate(self.nodes) if self._may_be_cut(node)]
        read = _read(self._parts(values))
        values = [i for i in values if self.specs[i].name in read]
        made = self.cut(values)
        for place in sorted(values, key=lambda i: -_memory([Cut(self.specs[i], self.nodes[i])])) if made else ():
            fewer = [i for i in values if i != place]
            if (found := self.cut(fewer)) is not None:
                made, values = found, fewer
        return made

    def _may_be_cut(self, node: Expr) -> bool:
        users = [user for user in self.nodes if any(a is node for a in user.args)]
        if not users or node.op in LEAVES or OPS[node.op].kind == "position" or node.op in MOVES - self.users:
            return False
        rounds = node.op == "cast" and node.dtype.bits < node.args[0].dtype.bits
        return node.op in CONTRACTIONS | MOVES or rounds or any(user.op in self.users for user in users)

    def _name(self) -> None:
        """Names the values that may be cut at by their op."""
        graph = self.graph
        taken = {*(s.name for s in (*graph.inputs, *graph.outputs)), *(s.name for s in graph.scalars), *graph.dims}
        for i, node in enumerate(self.nodes):
            if self._may_be_cut(node) and i not in self.specs:
                names = itertools.chain([node.op], (f"{node.op}_{k}" for k in itertools.count(1)))
                name = next(name for name in names if name not in taken)
                taken.add(name)
                self.specs[i] = TensorSpec(name, node.dtype, node.shape)

    def cut(self, values: Collection[int]) -> Partition | None:
        """The graph cut at these values, or None where a part is served by no family, or a value is read by none."""
        made = self._parts(values)
        cuts = tuple(Cut(self.specs[i], self.nodes[i]) for i in values)
        return Partition(made, cuts) if made and {c.spec.name for c in cuts} <= _read(made) else None

    def _parts(self, values: Collection[int]) -> tuple[Graph, ...]:
        """The parts of the graph cut at these values, two or more in order; none where one is served by no family."""
        units = [(i, self.specs[i]) for i in values]
        known = {spec.name for _, spec in units}
        results = zip(self.graph.results, self.graph.outputs)
        units += [(self.place[id(node)], spec) for node, spec in results if spec.name not in known]
        groups: list[list[tuple[int, TensorSpec]]] = []
        for unit in sorted(units, key=lambda unit: unit[0]):
            # In one launch with the first that may have it.
            for number, group in enumerate(groups):
                if self._served([*group, unit], values, groups[:number]) is not None:
                    group.append(unit)
                    break
            else:
                groups.append([unit])
        graphs = [self._served(group, values, groups[:n]) for n, group in enumerate(groups)]
        names = (f"{self.graph.name}_{n}" for n in itertools.count(1))
        made = tuple(replace(part, name=name) for part, name in zip(graphs, names) if part is not None)
        return made if len(made) >= max(2, len(groups)) else ()

    def _served(
        self,
        group: Sequence[tuple[int, TensorSpec]],
        values: Collection[int],
        before: Sequence[Sequence[tuple[int, TensorSpec]]],
    ) -> Graph | None:
        """The part that computes a group, where a family serves it and all that it reads is there before."""
        own = {i for i, _ in group}
        there = {i for one in before for i, _ in one if i in values}
        inside, read = self._reached(own, set(values) - own)
        if not read <= there:
            return None
        key = (frozenset(read), tuple(spec for _, spec in group))
        if key not in self._made:
            part = self._part(group, inside, read)
            self._made[key] = part if part is not None and has_kernel(part) else None
        return self._made[key]

    def _reached(self, own: Collection[int], closed: Collection[int]) -> tuple[set[int], set[int]]:
        """The values that those of a part are computed of in it, with themselves; and the closed ones that it reads."""
        inside, read, stack = set(own), set[int](), list(own)
        while stack:
            for place in self._arguments[stack.pop()]:
                if place in closed:
                    read.add(place)
                elif place not in inside:
                    inside.add(place)
                    stack.append(place)
        return inside, read

    def _part(
        self, group: Sequence[tuple[int, TensorSpec]], inside: Collection[int], read: Collection[int]
    ) -> Graph | None:
        """The graph of a group that is computed of the values `inside`, with an input for each that it reads."""
        inner: dict[int, Expr] = {}
        closed = []
        for place in sorted({*inside, *read}):  # arguments come before their users
            node = self.nodes[place]
            if place in read:
                closed.append(TensorSpec(self.specs[place].name, node.dtype, node.shape))
                inner[place] = Expr("input", (), node.dtype, node.shape, closed[-1].name, node.where)
            else:
                inner[place] = with_arguments(node, tuple(inner[a] for a in self._arguments[place]))
        results = tuple(inner[i] for i, _ in group)
        used = {node.attr for node in walk(results) if node.op in ("input", "scalar")}
        outputs = [spec for _, spec in group]
        own = [spec for spec in self.graph.inputs if spec.name in used]
        used |= {spec.name for spec in telling(walk(results), [*own, *closed, *outputs], self.graph.inputs)}
        inputs = [*(spec for spec in self.graph.inputs if spec.name in used), *closed]
        graph = Graph(
            self.graph.name,
            tuple(inputs),
            tuple(spec for spec in self.graph.scalars if spec.name in used),
            tuple(outputs),
            results,
            self.graph.where,
            self.graph.unordered,
        )
        return graph if inputs and _sizes(graph.nodes) <= set(graph.dims) else None


def _read(parts: Iterable[Graph]) -> set[str]:
    return {spec.name for part in parts for spec in part.inputs}


def _sizes(nodes: Iterable[Expr]) -> set[str]:
    """The dimensions that nodes ask for."""
    sizes = [s for n in nodes for s in (*n.shape.dims, n.attr) if isinstance(s, SizeExpr)]
    return {name for size in sizes for name in symbols_of(size)}


def _told(specs: Iterable[TensorSpec]) -> set[str]:
    return {d.name for spec in specs for d in spec.shape.dims if isinstance(d, Dim)}


def telling(nodes: Iterable[Expr], there: Iterable[TensorSpec], others: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Those of the other operands that tell the sizes which nodes ask for and what is there does not tell."""
    missing, found = _sizes(nodes) - _told(there), list[TensorSpec]()
    for spec in others:
        if missing & _told([spec]):
            missing -= _told([spec])
            found.append(spec)
    return found


def _is_value(spec: TensorSpec, node: Expr) -> bool:
    """Whether a result is its node's value but for axes of size 1, so that either can be seen as the other."""
    kept = [d for d in node.shape.dims if d != 1]
    same = spec.shape.leading == node.shape.leading and [d for d in spec.shape.dims if d != 1] == kept
    return same and spec.dtype is node.dtype and all(isinstance(d, Dim) for d in kept)


def rewritten(roots: Iterable[Expr], rule: Callable[[Expr, tuple[Expr, ...]], Expr]) -> list[Expr]:
    """The roots where every node is what `rule` makes of it and of its arguments, which are made so already."""
    roots = tuple(roots)
    made: dict[int, Expr] = {}
    for node in walk(roots):
        made[id(node)] = rule(node, tuple(made[id(a)] for a in node.args))
    return [made[id(root)] for root in roots]
