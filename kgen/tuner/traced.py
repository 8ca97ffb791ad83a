"""Traced: numbers and columns that stand for what follows from a problem's sizes, so that one run of the rules and the model of a
class shows the arithmetic that all its shapes have.

A traced problem has traced sizes and strides. What is computed from them is noted (`Trace.nodes`) rather than done; what numpy
makes of columns alone is done, and noted as a column. A traced number also has its value for the problem at hand: where Python
asks for a truth value it gets that one, and the question becomes a guard, as the answer may be another for other sizes.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kgen.dsl.problem import NormalProblem, Operand

#: Each op by numpy's name of it, on numbers, in the order of `Op` in cpp/choose.cpp.
OPS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "minimum": min,
    "maximum": max,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_not": operator.not_,
    "negative": operator.neg,
    "ceil": math.ceil,
    "floor": math.floor,
    "rint": round,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "gcd": math.gcd,
    "power": operator.pow,
    "where": lambda condition, yes, no: yes if condition else no,
}
#: What gives truth values; what numpy calls them of such.
_TRUTHS = frozenset(
    ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_not")
)
_ALIAS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "invert": "logical_not", "true_divide": "divide"}


class NotTraced(TypeError):
    """What is asked of a traced value cannot be noted."""


@dataclasses.dataclass(frozen=True)
class Node:
    """An input, by its place, where `op` is ""; a number or a column, with a `value`; else an op of nodes, by their places."""

    op: str
    args: tuple[int, ...]
    is_number: bool
    value: Any = None


class Trace:
    """What was noted: nodes in an order in which each follows from those before it, and guards: truth values by their nodes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.nodes: list[Node] = []
        self.guards: dict[int, bool] = {}
        self._known: dict[Any, int] = {}
        self._values: list[Any] = []
        self._columns: list[Any] = []  # kept, so that no other has the same id
        self.inputs = [self._add(("", i), Node("", (i,), True), n) for i, n in enumerate(sizes)]

    def of(self, x: Any) -> int:
        """The node of a traced value, a number or a column of numbers."""
        if isinstance(x, Traced):
            if x.trace is not self:
                raise NotTraced("of another trace")
            return x.place
        if isinstance(x, np.ndarray) and x.ndim > 0:
            if x.dtype.kind not in "biuf":
                raise NotTraced(f"a column of {x.dtype}")
            self._columns.append(x)
            return self._add(("column", id(x)), Node("", (), False, x), None).place
        x = x.item() if isinstance(x, (np.generic, np.ndarray)) else x
        if not isinstance(x, (int, float)):
            raise NotTraced(f"a {type(x).__name__}")
        return self._add((type(x), x), Node("", (), True, x), x).place

    def note(self, op: str, *args: Any) -> Traced:
        """An op of values, noted once."""
        places = tuple(map(self.of, args))
        key = op, places
        if key in self._known:
            return Traced(self, self._known[key])
        is_number = all(self.nodes[place].is_number for place in places)
        if op.startswith("logical") and not all(map(self._is_truth, places)):
            raise NotTraced(f"{op} of numbers")
        if op == "add" and not is_number and all(map(self._is_truth, places)):
            raise NotTraced("a sum of truth values, which numpy takes for one of them")
        same = self._same(op, places)
        if same is not None:
            return Traced(self, same)
        value = OPS[op](*(self._values[place] for place in places)) if is_number else None
        return self._add(key, Node(op, places, is_number), value)

    def _add(self, key: Any, node: Node, value: Any) -> Traced:
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = len(self.nodes)
            self.nodes.append(node)
            self._values.append(value)
        return Traced(self, place)

    def _is_truth(self, place: int) -> bool:
        node = self.nodes[place]
        if node.op == "where":
            return all(map(self._is_truth, node.args[1:]))
        value = node.value
        return node.op in _TRUTHS or isinstance(value, bool) or (isinstance(value, np.ndarray) and value.dtype == bool)

    def _same(self, op: str, places: tuple[int, ...]) -> int | None:
        """The operand that an op gives as it is."""
        if op == "where" and places[1] == places[2]:
            return places[1]
        neutral = {"multiply": 1, "divide": 1, "add": 0, "logical_and": True, "logical_or": False}.get(op)
        for place, other in zip(places, reversed(places)) if neutral is not None else ():
            node = self.nodes[other]
            kept = op.startswith("logical") or not self._is_truth(place)
            if node.is_number and node.value == neutral and kept and (op != "divide" or place == places[0]):
                return place
        return None

    def truth(self, x: Traced) -> bool:
        """The truth value of a number for the problem at hand, which becomes a guard."""
        if not self.nodes[x.place].is_number:
            raise NotTraced("the truth value of a column")
        return self.guards.setdefault(x.place, bool(self._values[x.place]))


class Traced:
    """A number or a column of a trace, in the place of an int, a float, a bool or an array of them."""

    __slots__ = ("place", "trace")

    def __init__(self, trace: Trace, place: int) -> None:
        self.trace, self.place = trace, place

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **others: Any) -> Traced:
        op = _ALIAS.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or others or op not in OPS:
            raise NotTraced(f"{ufunc.__name__}.{method}")
        return self.trace.note(op, *args)

    def __array_function__(self, function: Any, types: Any, args: Any, others: Any) -> Traced:
        if function is not np.where or len(args) != 3 or others:
            raise NotTraced(function.__name__)
        return self.trace.note("where", *args)

    def any(self) -> bool:
        """Of a column True, as it may hold somewhere: what is computed for nowhere does no harm."""
        return bool(self) if self.trace.nodes[self.place].is_number else True

    def __bool__(self) -> bool:
        return self.trace.truth(self)

    def __hash__(self) -> int:
        return hash((id(self.trace), self.place))

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Traced) and (other.trace, other.place) == (self.trace, self.place):
            return True
        return self.trace.note("equal", self, other)

    def __str__(self) -> str:
        raise NotTraced("a size as text")

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        raise NotTraced("a size as text")


def _binary(op: str, turned: bool = False) -> Callable[[Traced, Any], Any]:
    def noted(self: Traced, other: Any) -> Any:
        return self.trace.note(op, other, self) if turned else self.trace.note(op, self, other)

    return noted


for _name, _op in {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
                   "mod": "remainder", "pow": "power", "and": "logical_and", "or": "logical_or"}.items():  # fmt: skip
    setattr(Traced, f"__{_name}__", _binary(_op))
    setattr(Traced, f"__r{_name}__", _binary(_op, turned=True))
for _name, _op in {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "ne": "not_equal"}.items():
    setattr(Traced, f"__{_name}__", _binary(_op))
for _name, _op in {"neg": "negative", "invert": "logical_not", "ceil": "ceil", "floor": "floor"}.items():
    setattr(Traced, f"__{_name}__", lambda self, _op=_op: self.trace.note(_op, self))


class _Closed:
    """In the place of a traced problem's origin, whose sizes would be taken for the same in all shapes."""

    def __getattr__(self, name: str) -> Any:
        raise NotTraced(f"the problem as it was put: {name}")

    def __str__(self) -> str:
        raise NotTraced("the problem as it was put, as text")


def sizes_of(problem: NormalProblem) -> list[int]:
    """All sizes and strides of a problem, in the order of a traced one's."""
    found: list[int] = []
    for o in problem.operands:
        found += o.shape
        found += o.strides
    found += problem.leading
    found += (size for _, size in problem.bindings)
    return found


def form_of(problem: NormalProblem) -> tuple[Any, ...]:
    """What a traced problem has of the one at hand: alignments and ranks."""
    return (
        tuple((len(o.shape), o.align, o.row_align) for o in problem.operands),
        len(problem.leading),
        tuple(name for name, _ in problem.bindings),
    )


def traced(problem: NormalProblem) -> tuple[Trace, NormalProblem]:
    """A trace, and the problem with its sizes and strides traced."""
    trace = Trace(sizes_of(problem))
    inputs: Iterator[Any] = iter(trace.inputs)

    def of(o: Operand) -> Operand:
        shape = tuple(next(inputs) for _ in o.shape)
        made = dataclasses.replace(o, shape=shape, strides=tuple(next(inputs) for _ in o.strides))
        made.__dict__["row_align"] = o.row_align
        return made

    operands = tuple(map(of, problem.operands))
    leading = tuple(next(inputs) for _ in problem.leading)
    bindings = tuple((name, next(inputs)) for name, _ in problem.bindings)
    origin: Any = _Closed()
    made = dataclasses.replace(problem, operands=operands, leading=leading, bindings=bindings, origin=origin)
    # What is kept by a problem's form, or by itself, must not take this one for another.
    made.__dict__["_hash"] = hash(id(trace))
    made.__dict__["form"] = trace
    return trace, made
