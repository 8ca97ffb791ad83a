"""Problem: an operator with the shapes, dtypes, layouts and alignment of its operands. What is tuned; half of every key."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NewType, TypeVar, Union

from kgen.dsl.errors import ArgumentError, told_of
from kgen.dsl.expr import Expr, Shape
from kgen.dsl.operator import Graph, TensorSpec, of_graph
from kgen.dsl.ops import OPS, operands_as, roles_in
from kgen.dsl.size import Binary, Dim, Size, evaluate, symbols_of
from kgen.dsl.types import DType, dtype

F = TypeVar("F", bound=Callable[..., Any])

#: Sizes by dimension; "..." stands for the leading dimensions and takes a tuple.
Sizes = Mapping[str, Union[int, tuple[int, ...]]]

#: No access of one thread is wider than this, so that a better alignment makes no difference. Bytes.
WIDEST_ACCESS = 16


@dataclass(frozen=True)
class Operand:
    """One tensor of a problem: sizes and strides in elements; its address is a multiple of `align` bytes, at most 16."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int = WIDEST_ACCESS

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of memory that its elements take; axes with stride 0 count once."""
        return math.prod(n for n, s in zip(self.shape, self.strides) if s != 0) * self.dtype.bytes

    @functools.cached_property
    def row_align(self) -> int:
        """What the address of every row is a multiple of, in bytes, at most 16.

        A row runs along the last axis, or the one before, where that has stride 1; the base and all other strides count.
        """
        axes = [a for a in range(len(self.shape)) if self.shape[a] > 1]
        along = next((a for a in reversed(axes) if self.strides[a] == 1 and a >= len(self.shape) - 2), None)
        return common_alignment(self.align, *(self.strides[a] * self.dtype.bytes for a in axes if a != along))

    @functools.cached_property
    def layout(self) -> str:
        """ "row" for dense row-major, "col" for dense with the last two axes swapped, else the strides."""
        if self.strides == dense_strides(self.shape):
            return "row"
        if len(self.shape) >= 2:
            *head, m, n = self.shape
            *outer, inner, unit = dense_strides((*head, n, m))
            if self.strides == (*outer, unit, inner):
                return "col"
        return "strides(" + ",".join(map(str, self.strides)) + ")"

    def __str__(self) -> str:
        align = "" if self.align == WIDEST_ACCESS else f"@{self.align}"
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]{self.layout}{align}"


def read_operand(text: str) -> Operand:
    """The operand that prints as this text. Raises ArgumentError where none does."""
    found = re.fullmatch(r"(\w+):(\w+)\[([0-9,]*)\](row|col|strides\([0-9,-]*\))(?:@(\d+))?", text)
    name, kind, sizes, layout, align = found.groups() if found else ("", "", "", "", None)
    shape = tuple(map(int, filter(None, sizes.split(","))))
    strides = dense_strides(shape)
    if layout == "col" and len(shape) > 1:
        *outer, inner, unit = dense_strides((*shape[:-2], shape[-1], shape[-2]))
        strides = (*outer, unit, inner)
    elif layout != "row":
        strides = tuple(map(int, filter(None, layout[len("strides(") : -1].split(","))))
    if found is None or len(strides) != len(shape):
        raise ArgumentError(f"malformed operand {told_of(text)}; expected for example x:f16[64,32]row@8")
    return Operand(name, dtype(kind), shape, strides, int(align or WIDEST_ACCESS))


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements. An axis of size 1 gets the stride it would have if it were larger."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def common_alignment(*values: int) -> int:
    """The largest power of two, at most 16, that divides all the values (addresses or byte strides)."""
    return math.gcd(WIDEST_ACCESS, *values)


def _counted(node: Expr) -> Size | None:
    """The size whose numbers a node gives, as i32."""
    if node.op == "arange":
        return node.shape.dims[0]
    return node.attr if node.op == "size" else None


@of_graph
def _limited(graph: Graph) -> list[Expr]:
    """The nodes that not every size is right for: those that count, and reductions that give nothing of no element."""
    reduced = [n for n in graph.nodes if OPS[n.op].kind == "reduction" and not OPS[n.op].sums]
    return reduced + [n for n in graph.nodes if _counted(n) is not None]


@dataclass(frozen=True)
class Problem:
    """`operands` are the graph's inputs, then its outputs. Make one with `bind` or `dense`, which check the shapes.

    `leading` are the broadcast leading sizes, `bindings` the named ones. `origin` is the problem as the caller put it, where a
    family has collapsed dimensions.
    """

    graph: Graph
    operands: tuple[Operand, ...]
    leading: tuple[int, ...]
    bindings: tuple[tuple[str, int], ...]
    origin: Problem | None = None

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # A problem is asked for in every rule of every config: hashed once.
        return hash((self.graph.digest, self.operands, self.leading, self.bindings))

    @functools.cached_property
    def form(self) -> Hashable:
        """All of it but its sizes: of every axis whether it has no element, one or several, and whether its stride is 0 or 1."""
        whole = self.origin.form if self.origin else None
        operands = tuple(
            (tuple((min(n, 2), min(s, 2)) for n, s in zip(o.shape, o.strides)), o.row_align) for o in self.operands
        )
        sizes = tuple(min(n, 2) for n in (*self.leading, *(n for _, n in self.bindings)))
        return self.graph.digest, len(self.leading), operands, sizes, whole

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.operands[: len(self.graph.inputs)]

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return self.operands[len(self.graph.inputs) :]

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Size of every named dimension."""
        return dict(self.bindings)

    def operand(self, name: str) -> Operand:
        """The operand with that name."""
        return next(o for o in self.operands if o.name == name)

    @functools.cached_property
    def key(self) -> str:
        """The problem as text: shapes, dtypes, layouts and alignment, without the operator's name."""
        return " ".join(map(str, self.operands))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: every output has no element."""
        return all(o.elements == 0 for o in self.outputs)

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes that must move at least: every input read once and every output written once. Broadcast axes count once.

        Of an input that only `take` reads, what it takes counts, see `taken_bytes`.
        """
        taken = self._taken()
        return self.taken_bytes + sum(o.stored_bytes for o in self.operands if o.name not in taken)

    @functools.cached_property
    def taken_bytes(self) -> int:
        """The part of `bytes` that is found by index: an element as often as it is taken, but never more than the whole input.

        Where ids are equal, caches may serve some of it. So are the matrices of groups, of which some may have no row.
        """
        return sum(
            min(count * self.operand(n).dtype.bytes, self.operand(n).stored_bytes) for n, count in self._taken().items()
        )

    def _taken(self) -> dict[str, int]:
        """How many elements are taken of each input that only `take` reads. A take of a take reads what the outer one takes."""
        whole = self.origin or self
        users: dict[int, list[Expr]] = {id(result): [result] for result in self.graph.results}
        for node in self.graph.nodes:
            for argument in node.args:
                users.setdefault(id(argument), []).append(node)

        def taken(node: Expr) -> float:
            found = users.get(id(node), [])
            if not found or not all(roles_in(user, node) == {"table"} for user in found):
                return math.inf
            return sum(min(whole.elements_of(user.shape), taken(user)) for user in found)

        leaves = ((node.attr, taken(node)) for node in self.graph.nodes if node.op == "input")
        return {name: int(count) for name, count in leaves if count != math.inf} | self._chosen()

    def _chosen(self) -> dict[str, int]:
        """The elements of the matrices of grouped products: those of groups without rows need not be read."""
        matrices = (x for node in self.graph.nodes for x in operands_as(node, "matrices"))
        leaves = (node.args[0] if node.op == "transpose" else node for node in matrices)
        return {leaf.attr: self.operand(leaf.attr).elements for leaf in leaves if leaf.op == "input"}

    @property
    def work(self) -> int:
        """How much there is to do: the product of all sizes, or what an external computation says of itself."""
        own = (n.attr.work for n in self.graph.nodes if n.op == "external" and n.attr.work is not None)
        return max((evaluate(w, self.sizes) for w in own), default=math.prod((*self.sizes.values(), *self.leading)))

    def elements_of(self, shape: Shape) -> int:
        """The elements of a symbolic shape in this problem."""
        named = math.prod(evaluate(size, self.sizes) for size in shape.dims)
        return named * (math.prod(self.leading) if shape.leading else 1)

    def __str__(self) -> str:
        if self.origin:
            return str(self.origin)
        sizes = [f"{name}={size}" for name, size in self.bindings]
        if self.leading:
            sizes.insert(0, "x".join(map(str, self.leading)))
        layouts = sorted({o.layout for o in self.operands} - {"row"})
        dtypes = ",".join(dict.fromkeys(o.dtype.name for o in self.operands))
        return f"{self.graph.name}({' '.join(sizes)} {dtypes}{' ' + ' '.join(layouts) if layouts else ''})"

    @classmethod
    def bind(cls, graph: Graph, operands: Sequence[Operand]) -> Problem:
        """The problem of calling `graph` on these operands (inputs, then outputs). ArgumentError where shapes do not fit."""
        sizes: dict[str, int] = {}
        heads: list[tuple[int, ...]] = []
        specs = (*graph.inputs, *graph.outputs)
        for spec, operand in zip(specs, operands):
            named = len(spec.shape.dims)
            extra = len(operand.shape) - named
            if extra < 0 or (extra and not spec.shape.leading):
                expected = f"at least {named}" if spec.shape.leading else str(named)
                raise ArgumentError(
                    f"{graph.name}: {spec.name} has {len(operand.shape)} dimensions {list(operand.shape)}; "
                    f"expected {expected}, as in {spec}"
                )
            for dim, size in zip(spec.shape.dims, operand.shape[extra:]):
                if isinstance(dim, Binary):
                    continue
                wanted = sizes.setdefault(dim.name, size) if isinstance(dim, Dim) else int(dim)  # type: ignore[arg-type]
                if size != wanted:
                    owner = next((other.name for other in specs if dim in other.shape.dims), spec.name)
                    because = f"{owner} has {dim}={wanted}"
                    raise ArgumentError(
                        f"{graph.name}: {spec.name} has {dim}={size} in {list(operand.shape)}; expected {wanted}, since {because}"
                    )
            if spec.shape.leading and spec in graph.inputs:
                heads.append(operand.shape[:extra])
        for spec, operand in zip(specs, operands):
            for dim, size in zip(reversed(spec.shape.dims), reversed(operand.shape)):
                if isinstance(dim, Binary) and size != evaluate(dim, sizes):
                    because = ", ".join(f"{name}={sizes[name]}" for name in sorted(symbols_of(dim)))
                    raise ArgumentError(
                        f"{graph.name}: {spec.name} has {dim}={size} in {list(operand.shape)}; "
                        f"expected {evaluate(dim, sizes)}, since {because}"
                    )
        leading = broadcast_leading(graph, heads)
        for spec, operand in zip(graph.outputs, operands[len(graph.inputs) :]):
            head = operand.shape[: len(operand.shape) - len(spec.shape.dims)]
            if spec.shape.leading and head != leading:
                raise ArgumentError(
                    f"{graph.name}: {spec.name} has shape {list(operand.shape)}; expected leading sizes {list(leading)}"
                )
        made = cls(graph, tuple(operands), leading, tuple(sizes.items()))
        return made._checked() if len(operands) == len(specs) else made

    def with_outputs(self, outputs: Sequence[Operand]) -> Problem:
        """The problem of inputs that were bound alone, with outputs whose shapes are known to follow from these. ArgumentError as
        `bind`, but for shapes."""
        return Problem(self.graph, (*self.operands, *outputs), self.leading, self.bindings)._checked()

    def _checked(self) -> Problem:
        """Itself. Raises ArgumentError where a maximum of no element would be computed, or a number that is no i32."""
        limited = _limited(self.graph)
        if limited and not self.empty:
            for node in limited:
                self._check(node)
        return self

    def _check(self, node: Expr) -> None:
        """As `_checked`, of one node."""
        size = _counted(node)
        if size is None:
            count, results = self.elements_of(node.args[0].shape), self.elements_of(node.shape)
            if count == 0 < results:
                told = ", ".join(f"{o.name} {list(o.shape)}" for o in self.inputs)
                raise ArgumentError(
                    f"{self.graph.name}: {node.op} of no element ({node.where}), with {told}; expected at least one"
                )
        elif (n := evaluate(size, self.sizes)) >= 2**31:
            raise ArgumentError(
                f"{self.graph.name}: {node.op} of {size}={n} ({node.where}) is computed in i32; expected less than 2^31"
            )

    @classmethod
    def dense(cls, graph: Graph, sizes: Sizes, layouts: Mapping[str, str] | None = None) -> Problem:
        """The problem with dense, 16-byte aligned operands of the given sizes; `layouts` names the "col" operands."""
        head = sizes.get("...", ())
        several = (
            isinstance(head, Iterable) and getattr(head, "ndim", 1) > 0
        )  # numpy's and torch's scalars are iterable by type
        leading: tuple[Any, ...] = tuple(head) if several else (head,)  # type: ignore[arg-type]
        unknown = sorted(set(sizes) - set(graph.dims) - {"..."})
        missing = sorted(set(graph.dims) - set(sizes))
        if unknown or missing:
            told = [f"unknown {name}" for name in unknown] + [f"missing {name}" for name in missing]
            raise ArgumentError(
                f"{graph.name}: sizes {dict(sizes)}: {', '.join(told)}; expected {', '.join(graph.dims)}"
            )
        named: dict[str, Any] = {name: size for name, size in sizes.items() if name != "..."}
        wrong = [f"{name}={told_of(size)}" for name, size in named.items() if not _is_size(size)]
        wrong += [f"...={told_of(leading)}"] if not all(map(_is_size, leading)) else []
        if wrong:
            raise ArgumentError(
                f"{graph.name}: sizes {', '.join(wrong)}; expected integers that are not negative, and less than 2^63"
            )
        sizes = {name: operator.index(size) for name, size in named.items()}
        leading = tuple(map(operator.index, leading))

        def place(spec: TensorSpec) -> Operand:
            named = tuple(evaluate(d, sizes) for d in spec.shape.dims)  # type: ignore[arg-type]
            shape: tuple[int, ...] = (*leading, *named) if spec.shape.leading else named
            strides = dense_strides(shape)
            layout = (layouts or {}).get(spec.name, "row")
            if layout not in ("row", "col") or (layout == "col" and len(shape) < 2):
                raise ArgumentError(f"{graph.name}: layout {layout!r} of {spec}; expected row, or col for a matrix")
            if layout == "col":
                swapped = dense_strides((*shape[:-2], shape[-1], shape[-2]))
                strides = (*swapped[:-2], swapped[-1], swapped[-2])
            return Operand(spec.name, spec.dtype, shape, strides)

        return cls.bind(graph, [place(spec) for spec in (*graph.inputs, *graph.outputs)])

    def collapsed(self, operands: Sequence[Operand], leading: tuple[int, ...], sizes: Mapping[str, int]) -> Problem:
        """The same computation seen with other shapes, for a family that collapses dimensions."""
        return Problem(self.graph, tuple(operands), leading, tuple(sizes.items()), self.origin or self)


#: A problem as its family's schedules take it, over as few dimensions as may be: `kgen.dsl.family.normalised` makes them.
NormalProblem = NewType("NormalProblem", Problem)


class _OfForm:
    """A problem that equals all others of its form."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OfForm) and other.problem.form == self.problem.form

    def __hash__(self) -> int:
        return hash(self.problem.form)


def by_form(function: F) -> F:
    """Finds what depends on a problem's form, and not on its sizes, once for all problems of the form."""

    @functools.lru_cache(maxsize=256)
    def known(like: _OfForm, *rest: Hashable) -> Any:
        return function(like.problem, *rest)

    def found(problem: Problem, *rest: Hashable) -> Any:
        return known(_OfForm(problem), *rest)

    return functools.wraps(function)(found)  # type: ignore[return-value]  # of the same signature


def _is_size(value: Any) -> bool:
    """Whether a value is an integer, Python's own or another, that a size can be."""
    try:
        return 0 <= operator.index(value) < 2**63
    except TypeError:
        return False


def broadcast_leading(graph: Graph, heads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The leading sizes that the operands' leading sizes broadcast to; ArgumentError where they do not."""
    rank = max(map(len, heads), default=0)
    result = []
    for axis in range(-rank, 0):
        found = {head[axis] for head in heads if len(head) >= -axis} - {1}
        if len(found) > 1:
            told = ", ".join(str(list(head)) for head in heads)
            raise ArgumentError(f"{graph.name}: leading sizes {told} do not broadcast; expected equal sizes or 1")
        result.append(found.pop() if found else 1)
    return tuple(result)
