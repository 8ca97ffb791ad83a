"""Items: how the vectors of a thread lie, and what they have in common, so that it is loaded or computed once for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kgen.codegen.expression import Argument, walk_to
from kgen.dsl.expr import Expr, walk
from kgen.dsl.ops import FLOAT_FUNCTIONS, OPS, POINTWISE
from kgen.dsl.types import compute_dtype, f64
from kgen.ops.elementwise.view import Column, View

#: What is worth computing once: functions, and what divides.
_CALLS = frozenset(name for name in POINTWISE if OPS[name].gives == "float")


@dataclass(frozen=True)
class Slot:
    """Where the vector of item `i` is kept, of `count` (0: one for each item), loaded for the items for which `first` holds."""

    index: str = "i"
    count: int = 0
    first: str = ""

    @property
    def exchanged(self) -> Slot:
        """That of the item with the other half."""
        return replace(self, index="i ^ 1" if self.index == "i" else self.index.replace("i", "(i ^ 1)"))


#: A vector for every item.
EACH = Slot()


@dataclass(frozen=True)
class Items:
    """The `count` items of a thread, in pairs of halves where `two` is a dimension (-1: none).

    They are neighbours along the dimension `along`; where there is none (-1) those of a block follow each other.
    """

    count: int
    along: int
    two: int

    @property
    def repeats(self) -> int:
        """Items along the dimension `along`."""
        return self.count // (2 if self.two >= 0 else 1) if self.along >= 0 else 1

    @property
    def shared(self) -> int:
        """Items of one place: their indices are the same but along `along` and `two`."""
        return self.count if self.along >= 0 else 2 if self.two >= 0 else 1

    def rests(self, c: Column) -> bool:
        """Whether a column is the same for all items of a place."""
        return self.shared > 1 and not any(c.strides[d] for d in (self.along, self.two) if d >= 0)

    def slot(self, c: Column) -> Slot:
        """Where the vectors of a column are kept: once for all items along dimensions that do not move it."""
        once_in_two = Slot("i / 2", self.count // 2, "i % 2 == 0")
        if self.rests(c):
            return Slot("0", 1, "i == 0") if self.shared == self.count else once_in_two
        if self.along < 0 or self.two < 0 or (c.strides[self.along] and c.strides[self.two]):
            return EACH
        return once_in_two if c.strides[self.along] else Slot("i % 2", 2, "i < 2")


def repeating(v: View) -> int:
    """The outer dimension along which most bytes of what is read repeat, the innermost of these; -1 where nothing does."""
    moving = [c for c in (*v.inputs, *v.numbers) if any(c.strides)]

    def repeated(d: int) -> int:
        return sum(c.dtype.bytes for c in moving if not c.strides[d])

    outer = [d for d in range(len(v.sizes) - 1) if d != v.two and repeated(d)]
    return max(outer, key=lambda d: (repeated(d), d), default=-1)


def parts(v: View, items: Items) -> tuple[list[Argument], list[Argument]]:
    """What is computed once: for all elements, of numbers alone; and for the items of a place, of columns that rest."""
    columns = {c.name: c for c in (*v.inputs, *v.numbers)}
    moving = [x.node for x in v.lowered.leaves if x.origin.op == "random" or not items.rests(columns[x.name])]
    constants = _fixed(v.lowered.results, [x.node for x in v.lowered.leaves])
    known = set(map(id, constants))
    common = [n for n in _fixed(v.lowered.results, moving) if id(n) not in known]
    return _named(constants, "constant"), _named(common, "common")


def calls(results: Iterable[Expr], given: Iterable[Argument]) -> int:
    """The functions of dozens of instructions in the results, beside what is given."""
    leaves = {id(a.node): a for a in given}
    nodes = {id(n): n for result in results for n in walk_to(result, leaves) if id(n) not in leaves}
    return sum(n.op in ("sin", "cos", "pow") or (n.dtype is f64 and n.op in FLOAT_FUNCTIONS) for n in nodes.values())


def _fixed(results: Sequence[Expr], moving: Iterable[Expr]) -> list[Expr]:
    """The largest parts of the results with a function or a quotient in them, that do not depend on what moves."""
    varying, functions = set(map(id, moving)), set[int]()
    order = walk(tuple(results))
    for node in order:
        if any(id(a) in varying for a in node.args):
            varying.add(id(node))
        if node.op in _CALLS or any(id(a) in functions for a in node.args):
            functions.add(id(node))
    used = {id(a) for node in order if id(node) in varying for a in node.args} | set(map(id, results))
    return [node for node in order if id(node) in functions - varying and id(node) in used]


def _named(nodes: Iterable[Expr], base: str) -> list[Argument]:
    return [
        Argument(n, f"{base}{i}", n.dtype if n.op == "cast" else compute_dtype(n.dtype)) for i, n in enumerate(nodes)
    ]
