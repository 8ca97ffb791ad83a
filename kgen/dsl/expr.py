"""Expression graph: what an operator computes, as immutable nodes over typed, symbolically shaped tensors.

A node's `dtype` is that of its value: an input keeps its storage dtype, arithmetic is done in `compute_dtype` (f32 for the
narrower floats), and only `cast` and the operator's outputs round. Shapes are trailing dimensions, with `leading` set where
any number of broadcast dimensions may stand before them (`...` in a signature). Nodes remember the line that made them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from kgen.dsl.errors import DefinitionError
from kgen.dsl.ops import OPS
from kgen.dsl.size import Size
from kgen.dsl.types import DType, bool_, compute_dtype, f16, f32, from_torch, i32, promote

Value = TypeVar("Value")


@dataclass(frozen=True)
class Shape:
    """Trailing dimensions `dims`, after any number of leading ones where `leading` is set."""

    dims: tuple[Size, ...] = ()
    leading: bool = False

    def __str__(self) -> str:
        return "[" + ", ".join((["..."] if self.leading else []) + [str(d) for d in self.dims]) + "]"


@dataclass(frozen=True)
class Location:
    """The file (relative where possible) and line of the Python that made a node."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: The packages that stand between a definition's lines and the nodes they make.
_BETWEEN = ("kgen.dsl", "kgen.runtime")


_AT: ContextVar[Location | None] = ContextVar("kgen_made_at", default=None)


@contextmanager
def made_at(place: Location) -> Iterator[None]:
    """Within it nodes are of this line: what is derived of a node is of the node's own."""
    token = _AT.set(place)
    try:
        yield
    finally:
        _AT.reset(token)


def caller_location() -> Location:
    """Where the code outside kgen.dsl and kgen.runtime stands that led here."""
    given = _AT.get()
    if given is not None:
        return given
    frame = sys._getframe(1)
    # By module, since a dataclass's own __init__ has no file.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").rpartition(".")[0] in _BETWEEN:
        frame = frame.f_back
    try:
        folder = os.getcwd()
    except OSError:  # it may have been removed
        folder = ""
    return Location(_told_path(frame.f_code.co_filename, folder), frame.f_lineno)


@functools.lru_cache(maxsize=4096)
def _told_path(path: str, folder: str) -> str:
    """A file's path from the folder that kgen is in, or from the current one; else its name alone."""
    whole = os.path.normpath(os.path.join(folder, path))
    for root in (os.path.dirname(_PACKAGE), folder):
        if root and whole.startswith(root + os.sep):
            return whole.removeprefix(root + os.sep).replace(os.sep, "/")
    return os.path.basename(path)


@dataclass(frozen=True, eq=False)
class Expr:
    """A node: `op` applied to `args`. `attr` holds what else the op needs: a name, a value, an axis, a dtype."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    shape: Shape
    attr: Any = None
    where: Location = field(default_factory=caller_location)

    def __add__(self, other: Operand) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return apply("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return apply("floordiv", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return apply("mod", self, other)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __abs__(self) -> Expr:
        return apply("abs", self)

    def __lt__(self, other: Operand) -> Expr:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return apply("ge", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return apply("eq", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return apply("ne", self, other)  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Expr:
        return apply("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return apply("or", self, other)

    def __invert__(self) -> Expr:
        return apply("not", self)

    def __matmul__(self, other: Expr) -> Expr:
        return matmul(self, other)

    @property
    def T(self) -> Expr:
        """The last two axes swapped."""
        if len(self.shape.dims) < 2:
            raise fault(f".T needs at least two named dimensions, got {describe(self)}")
        if self.op == "transpose":
            return self.args[0]
        *head, m, n = self.shape.dims
        return Expr("transpose", (self,), self.dtype, Shape((*head, n, m), self.shape.leading))

    def __bool__(self) -> bool:
        raise fault("a traced value has no truth value yet; use where(condition, a, b) instead of if, and, or, not")

    def __float__(self) -> float:
        raise fault("a traced value is not a number yet; use the functions of kgen instead of those of math or numpy")

    __int__ = __index__ = __float__

    def __iter__(self) -> Iterator[Expr]:
        raise fault("a traced tensor cannot be iterated over or unpacked; write the expression over whole tensors")

    def __getitem__(self, index: object) -> Expr:
        raise fault("indexing a traced tensor is not supported; use take(x, ids, axis)")


Operand = Union[Expr, int, float, bool]


def fault(message: str) -> DefinitionError:
    """An error that begins with the line of the definition."""
    return DefinitionError(f"{caller_location()}: {message}")


def describe(node: Expr) -> str:
    """How error messages name a node: `x: f16[M, K]`, or its op where it is no input."""
    name = node.attr if node.op in ("input", "scalar") else node.op
    return f"{name}: {node.dtype}{node.shape}"


def constant(value: Operand, like: DType | None = None) -> Expr:
    """A number as a node; it takes the kind of what it meets (`like`), except that a fraction never becomes an int."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool):
        return Expr("const", (), bool_, Shape(), value)
    if not isinstance(value, (int, float)):
        raise fault(f"expected a traced tensor or a number, got {type(value).__name__} {value!r}")
    if like is not None and (like.is_float or (like.kind == "int" and isinstance(value, int))):
        dtype = compute_dtype(like)
    else:
        dtype = i32 if isinstance(value, int) else f32
    try:
        value = float(value) if dtype.is_float else value
    except OverflowError:
        raise fault(f"the number {value} is beyond the range of floats") from None
    if dtype.kind == "int" and not -(2 ** (dtype.bits - 1)) <= value < 2 ** (dtype.bits - 1):
        raise fault(f"the number {value} is beyond the range of {dtype}")
    return Expr("const", (), dtype, Shape(), value)


def broadcast(nodes: tuple[Expr, ...]) -> Shape:
    """The shape the nodes broadcast to, by the usual rule: aligned at the end, a literal 1 stretches."""
    rank = max(len(n.shape.dims) for n in nodes)
    leading = any(n.shape.leading for n in nodes)
    for n in nodes:
        if n.shape.leading and len(n.shape.dims) < rank:
            raise fault(f"cannot tell how {describe(n)} lines up with {rank} named dimensions; name its last {rank}")
    dims: list[Size] = []
    for axis in range(-rank, 0):
        found: Size = 1
        for n in nodes:
            size = n.shape.dims[axis] if -axis <= len(n.shape.dims) else 1
            if size == 1 or size == found:
                continue
            if found != 1:
                told = " and ".join(describe(x) for x in nodes)
                raise fault(f"shapes do not broadcast at axis {axis}: {told}; expected equal sizes or 1")
            found = size
        dims.append(found)
    return Shape(tuple(dims), leading)


def _alike(*values: Operand) -> tuple[Expr, ...]:
    """Numbers become nodes that take the kind of the first traced value."""
    like = next((x.dtype for x in values if isinstance(x, Expr)), None)
    return tuple([x if isinstance(x, Expr) else constant(x, like) for x in values])


def apply(op: str, *values: Operand) -> Expr:
    """A pointwise op of traced values and numbers that broadcast; its row says which dtypes it takes and gives.

    `floordiv` and `mod` are for ints, rounded down as Python's; by 0 they are 0.
    """
    row, nodes = OPS[op], _alike(*values)
    bools = [node for node in nodes if node.dtype is bool_]
    if row.takes == "bools":
        for node in nodes:
            if node.dtype is not bool_:
                raise fault(f"logical {op} expects bool, got {describe(node)}; compare it first, for example x != 0")
    elif bools and row.takes != "alike":
        raise fault(f"{op} of a bool: {describe(bools[0])}; use where(...) or cast(...)")
    elif bools and len(bools) < len(nodes):
        raise fault(f"comparison of a bool with a number: {' and '.join(map(describe, nodes))}")
    dtype = row.result(*[node.dtype for node in nodes])
    if row.takes == "ints":
        x, y = nodes
        if dtype.is_float:
            raise fault(f"{op} expects ints, got {describe(x)} and {describe(y)}; use floor(a / b)")
        if y.op == "const" and y.attr == 0:
            raise fault(f"{op} of {describe(x)} by 0; expected another divisor")
    return Expr(op, nodes, dtype, broadcast(nodes) if len(nodes) > 1 else nodes[0].shape)


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`, element by element. The one not chosen may be anything, NaN included."""
    if not isinstance(condition, Expr) or condition.dtype is not bool_:
        told = describe(condition) if isinstance(condition, Expr) else repr(condition)
        raise fault(f"where expects a bool condition, got {told}")
    x, y = _alike(a, b)
    if (x.dtype is bool_) != (y.dtype is bool_):
        raise fault(f"where of a bool and a number: {describe(x)} and {describe(y)}")
    return Expr("where", (condition, x, y), promote(x.dtype, y.dtype), broadcast((condition, x, y)))


def cast(value: Operand, dtype: DType) -> Expr:
    """The value rounded to `dtype` (to nearest even; to int towards zero; floats to int and to fp8 saturate)."""
    target = from_torch(dtype)
    if not isinstance(target, DType):
        raise fault(f"cast expects a dtype such as f16, got {dtype!r}")
    x = constant(value)
    return Expr("cast", (x,), target, x.shape)


def matmul(a: Expr, b: Expr, accumulate: DType | None = None) -> Expr:
    """`a[..., M, K] @ b[..., K, N]`, summed in `accumulate`: f32 for floats (f64 for f64), i32 for ints unless given."""
    for name, node in (("left", a), ("right", b)):
        if not isinstance(node, Expr) or len(node.shape.dims) < 2:
            told = describe(node) if isinstance(node, Expr) else repr(node)
            raise fault(f"@ expects two matrices, got {told} on the {name}")
    if a.dtype is not b.dtype or a.dtype.kind == "bool":
        raise fault(f"@ expects operands of one number dtype, got {describe(a)} and {describe(b)}; cast one")
    if a.shape.dims[-1] != b.shape.dims[-2]:
        raise fault(
            f"@ contracts {a.shape.dims[-1]} of {describe(a)} with {b.shape.dims[-2]} of {describe(b)}; expected equal"
        )
    total = accumulate or compute_dtype(a.dtype)
    if total.kind != a.dtype.kind or total.bits < a.dtype.bits or (total.bits < 32 and total is not f16):
        raise fault(f"@ of {a.dtype} cannot accumulate in {total}")
    heads = (
        Expr("const", (), f32, Shape(a.shape.dims[:-2], a.shape.leading)),
        Expr("const", (), f32, Shape(b.shape.dims[:-2], b.shape.leading)),
    )
    head = broadcast(heads)
    dims = (*head.dims, a.shape.dims[-2], b.shape.dims[-1])
    return Expr("matmul", (a, b), compute_dtype(total), Shape(dims, head.leading), total)


def grouped_matmul(a: Expr, b: Expr, offsets: Expr, accumulate: DType | None = None) -> Expr:
    """Rows of `a[T, K]`, sorted by group, each times its group's matrix of `b[G, K, N]`: [T, N], as in a mixture of experts.

    Row t is of the first group g with t < offsets[g + 1], offsets [G + 1] in i32: group g has the rows from offsets[g] to
    offsets[g + 1], where offsets ascend from 0. The product of rows that are of no group, behind offsets[G], is 0.
    """
    for name, node, rank in (("rows", a, 2), ("matrices", b, 3), ("offsets", offsets, 1)):
        if not isinstance(node, Expr) or len(node.shape.dims) != rank or node.shape.leading:
            told = describe(node) if isinstance(node, Expr) else repr(node)
            raise fault(f"grouped_matmul expects {name} of {rank} named dimension{'s' * (rank > 1)}, got {told}")
    groups = b.shape.dims[0]
    if offsets.dtype is not i32 or offsets.shape.dims != (groups + 1,):
        raise fault(f"grouped_matmul of {describe(b)} expects offsets i32[{groups + 1}], got {describe(offsets)}")
    one = matmul(a, Expr(b.op, (), b.dtype, Shape(b.shape.dims[1:]), b.attr), accumulate)
    return Expr("grouped_matmul", (a, b, offsets), one.dtype, one.shape, one.attr)


#: An axis or several, counted from the end (-1 is the last); None stands for all of them.
Axes = Union[int, tuple[int, ...], None]


def reduction(op: str, x: Expr, axis: Axes) -> Expr:
    """sum, mean, amax, amin, argmax over the last axis (-1), a tuple of axes or all (None). Reduced axes stay, with size 1.

    The node's attr is -1, None or the tuple in ascending order. `argmax` is the index of the first of the largest, along the
    last axis or in row-major order; NaN counts as the largest.
    """
    if not isinstance(x, Expr) or x.dtype is bool_:
        raise fault(f"{op} expects a tensor of numbers, got {describe(x) if isinstance(x, Expr) else repr(x)}")
    given = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    right = all(isinstance(a, int) and a < 0 for a in given)
    axes = tuple(sorted(set(given))) if right else ()
    if axis is not None and not axes:
        raise fault(f"{op} over axis {axis!r}; expected negative axes such as -1 (rows) or (-3, -1), or None (all)")
    if axes and -axes[0] > len(x.shape.dims):
        which = "the last axis" if axes == (-1,) else f"axis {axes[0]}"
        raise fault(f"{op} over {which} of {describe(x)}, which names no dimension there")
    if op == "argmax" and axes not in ((), (-1,)):
        raise fault(f"argmax over axis {axis!r}; expected -1 (rows) or None (all)")
    rank = len(x.shape.dims)
    kept = tuple(1 if a - rank in axes else size for a, size in enumerate(x.shape.dims))
    shape = Shape() if axis is None else Shape(kept, x.shape.leading)
    return Expr(op, (x,), OPS[op].result(x.dtype), shape, None if axis is None else -1 if axes == (-1,) else axes)


def scan(op: str, x: Expr) -> Expr:
    """cumsum, cumprod, logcumsumexp along the last axis: of each element and all before it. The node's attr is -1."""
    if not isinstance(x, Expr) or x.dtype is bool_:
        raise fault(f"{op} expects a tensor of numbers, got {describe(x) if isinstance(x, Expr) else repr(x)}")
    if not x.shape.dims:
        raise fault(f"{op} along the last axis of {describe(x)}, which names no dimension there")
    return Expr(op, (x,), OPS[op].result(x.dtype), x.shape, -1)


def walk(roots: tuple[Expr, ...]) -> list[Expr]:
    """All nodes that lead to `roots`, each once, arguments before their users."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return order


def with_arguments(node: Expr, arguments: tuple[Expr, ...]) -> Expr:
    """A node with other arguments; itself where they are its own."""
    same = all(a is b for a, b in zip(arguments, node.args))
    return node if same else Expr(node.op, arguments, node.dtype, node.shape, node.attr, node.where)


def fold(root: Expr, function: Callable[[Expr, list[Value]], Value]) -> Value:
    """`function` of a node and of what it gave for the node's arguments, for every node that leads to `root`; root's value."""
    values: dict[int, Value] = {}
    for node in walk((root,)):
        values[id(node)] = function(node, [values[id(a)] for a in node.args])
    return values[id(root)]


def unrolled(
    function: Callable[..., Generator[tuple[Any, ...], Any, Value]], known: dict[tuple[Any, ...], Value]
) -> Callable[..., Value]:
    """A recursive function that takes no stack of Python's, however deep it goes, and works out each result once.

    `function` is a generator that yields the arguments of each call of itself, and is sent its result. Results are kept in
    `known`, by arguments.
    """

    def call(*arguments: Any) -> Value:
        stack = [(arguments, function(*arguments))] if arguments not in known else []
        sent: Any = None
        while stack:
            own, running = stack[-1]
            try:
                wanted = running.send(sent)
            except StopIteration as end:
                sent = known[own] = end.value
                stack.pop()
            else:
                sent = known.get(wanted)
                if wanted not in known:
                    stack.append((wanted, function(*wanted)))
        return known[arguments]

    return call
