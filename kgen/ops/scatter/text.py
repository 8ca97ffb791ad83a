"""What the templates that add at ids are given: a ScatterPlan as text, and the parameters of its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kgen.codegen.expression import Argument, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Limit, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, constant
from kgen.dsl.problem import Operand
from kgen.dsl.size import Dim, Size, prod
from kgen.dsl.types import compute_dtype, i32
from kgen.ops.common.access_text import AccessText
from kgen.ops.common.lowering import Axis, Lowering, Read, size_name
from kgen.ops.scatter.plan import NARROW, ScatterPlan, base_input

#: Bytes of one access of the passes over the result, and how many a thread has in flight.
_ACCESS = 16
_BATCH = 4


@dataclass(frozen=True)
class ScatterText:
    """A plan as the templates see it.

    Axes of the values have the sizes m0.. and indices j0.., those of the result n0.. and i0... `item_axes` are those that the
    index of a histogram is made of, where these are several.
    """

    index_type: str
    id_type: str
    held_id_type: str
    total_type: str
    sum_type: str
    functions: str
    passes: bool
    direct: bool
    vectors: bool
    late: bool
    base: str
    width: int
    batch: int
    ragged: bool
    last: int
    result_axes: tuple[int, ...]
    result_reads: tuple[AccessText, ...]
    result_arguments: str
    outputs: tuple[AccessText, ...]
    sums_row: str
    target: str
    target_row: str
    id_offset: str
    bin_offset: str
    strided: bool
    column_stride: str
    has_columns: bool
    batch_axes: tuple[int, ...]
    item_axes: tuple[int, ...]
    item_reads: tuple[AccessText, ...]
    count: str
    columns: str
    limit: str
    id_arguments: str
    value_arguments: str


def offset(o: Operand, terms: Sequence[tuple[str, int]], name: str) -> str:
    """The sum of coordinates times strides, `name` being the operand's in C++."""
    found = []
    for at, axis in terms:
        if o.strides[axis] == 1:
            found.append(at)
        elif o.strides[axis] != 0:
            found.append(f"static_cast<long long>({at}) * {name}_s{axis}")
    return " + ".join(found)


def finish_width(p: ScatterPlan) -> int:
    """Elements of one access of the passes over the result: as many as 16 bytes of the widest and all alignments allow."""
    last = len(p.result_sizes) - 1
    vectors = [y for y in p.problem.outputs if y.strides[last] == 1]
    vectors += [r.operand for r in p.finish_reads if p.finish_kind(r) == "vector"]
    vectors += [] if p.direct else [p.target]
    widest = max(o.dtype.bytes for o in (*p.problem.outputs, *vectors))
    width = _ACCESS // widest
    while width > 1 and any(width * o.dtype.bytes > o.row_align for o in vectors):
        width //= 2
    return width


@dataclass(frozen=True)
class Writer:
    """Writes a plan. `vectors`: vectors run along the last axis of the values, though ids differ there.

    `kept`: of a plan for rows, of how many of them sums are kept in memory. Values are those of the indices in `place` then, and
    a thread finishes one vector of a row at a time, else a batch.
    """

    p: ScatterPlan
    vectors: bool = False
    kept: Size | None = None

    @property
    def wide(self) -> bool:
        """Whether positions need 64 bits; there is room for a step of the whole grid beyond the end."""
        return not all(limit.holds(symbols(self.p)) for limit in self.narrow_limits)

    @property
    def narrow_limits(self) -> tuple[Limit, ...]:
        """Where positions have 32 bits."""
        values = prod(Dim(f"m{d}") for d in range(len(self.p.sizes)))
        result = prod(Dim(f"n{d}") for d in range(len(self.p.result_sizes)))
        return tuple(Limit(size, NARROW) for size in (values, result))

    @property
    def held_limit(self) -> Limit:
        """Where ids are held in 32 bits."""
        return Limit(Dim(f"n{0 if self.p.flat else self.p.along}"), 2**31 - 1)

    def limits(self) -> tuple[Limit, ...]:
        """How large a problem this source is right for."""
        if not self.wide:
            return self.narrow_limits
        return tuple(limit for limit in (self.held_limit,) if limit.holds(symbols(self.p)))

    def kind(self, r: Read) -> str:
        """How a read of the values is done."""
        return self.p.last_kind(r) if self.vectors else self.p.kind(r)

    def value_at(self, axis: int) -> str:
        """The index along an axis of the values, where they are read."""
        p = self.p
        if self.vectors:
            return "column[i]" if axis == len(p.sizes) - 1 else f"j{axis}[i]"
        if p.has_columns and axis == len(p.sizes) - 1:
            return "column"
        if not p.flat:
            return f"j{axis}" if axis != p.along else "at"
        return f"j{axis}[i]" if len(p.sizes) > 1 else "at"

    def read(self, r: Read) -> AccessText:
        """A read of the values."""
        o, kind, name = r.operand, self.kind(r), identifier(r.operand.name)
        last = Axis(len(self.p.sizes) - 1)
        terms = [
            (self.value_at(c.number), a) for c, a in r.terms if isinstance(c, Axis) and (kind == "one" or c != last)
        ]
        stride = next((f"{name}_s{a}" for c, a in r.terms if c == last), "")
        return AccessText(r.name, o.dtype.ctype, name, kind, offset(o, terms, name), stride)

    def result_read(self, r: Read) -> AccessText:
        """A read of the passes over the result."""
        o, kind, name = r.operand, self.p.finish_kind(r), identifier(r.operand.name)
        last = len(self.p.result_sizes) - 1
        terms = [(f"i{c.number}{self.of_batch}", a) for c, a in r.terms if isinstance(c, Axis) and c.number != last]
        stride = next((f"{name}_s{a}" for c, a in r.terms if c == Axis(last)), "")
        return AccessText(f"{r.name}_of", o.dtype.ctype, name, kind, offset(o, terms, name), stride)

    @property
    def of_batch(self) -> str:
        """What picks one of the vectors that are finished at a time."""
        return "[batch]" if self.kept is None else ""

    def output(self, o: Operand) -> AccessText:
        terms = [(f"i{a}{self.of_batch}", a) for a in range(len(self.p.result_sizes) - 1)]
        return AccessText.output(o, offset(o, terms, identifier(o.name)))

    def _value_leaf(self, leaf: Expr) -> str:
        if leaf.op == "read":
            r: Read = leaf.attr
            return f"{r.name}[i]" + ("" if self.kind(r) == "one" else "[e]")
        if leaf.op == "position":
            at = self.value_at(leaf.attr.number)
            at = {
                "at": "first + i" if self.kept is None else "place[i]",
                "column": "column + e",
                "column[i]": "column[i] + e",
            }.get(at, at)
            return f"static_cast<int>({at})"
        return Lowering.parameter(leaf)

    def _result_leaf(self, leaf: Expr) -> str:
        if leaf is self.p.sums:
            return f"static_cast<Sum>(total{self.of_batch}[e])"
        if leaf.op == "read":
            r: Read = leaf.attr
            return f"{r.name}_of{self.of_batch}" + ("" if self.p.finish_kind(r) == "one" else "[e]")
        if leaf.op == "position":
            last = leaf.attr.number == len(self.p.result_sizes) - 1
            at = f"column{self.of_batch} + e" if last else f"i{leaf.attr.number}{self.of_batch}"
            return f"static_cast<int>({at})"
        return Lowering.parameter(leaf)

    def text(self) -> ScatterText:
        p, problem = self.p, self.p.problem
        last = len(p.result_sizes) - 1
        results = p.results or (constant(0, p.total),)
        fast = all(o.dtype.bits <= 16 for o in problem.outputs)

        def arguments(lowering: Lowering, roots: Sequence[Expr]) -> tuple[list[Expr], list[Argument]]:
            leaves = lowering.leaves(roots)
            named = ["total" if x is p.sums else lowering.parameter(x) for x in leaves]
            return leaves, [Argument(x, name, x.dtype) for x, name in zip(leaves, named)]

        id_leaves, id_arguments = arguments(p.values, (p.id,))
        value_leaves, value_arguments = arguments(p.values, (p.value,))
        result_leaves, result_arguments = arguments(p.finish, results)
        total = compute_dtype(p.total)
        functions = [
            "// The id of an index.",
            pointwise_function("find", id_arguments, (p.id,), (p.id.dtype,), False),
            "// What is added, as one element.",
            pointwise_function("value", value_arguments, (p.value,), (total,), fast),
            "// What the output begins as." if p.direct else "// What follows from a sum.",
            pointwise_function("compute", result_arguments, results, [o.dtype for o in problem.outputs], fast),
        ]
        target, base = p.target, base_input(p)
        name = identifier(target.name) if p.direct else "sums"
        batch = [(f"j{a}", a) for a in p.batch_axes]
        along = 0 if p.flat else p.along
        unit = target.strides[along] == 1
        result_reads = [self.result_read(r) for r in p.finish_reads]
        outputs = [self.output(o) for o in problem.outputs]
        held = "int" if self.held_limit.holds(symbols(p)) else "long long"
        return ScatterText(
            index_type="long long" if self.wide else "int",
            id_type=p.id.dtype.ctype,
            held_id_type=held,
            total_type=p.total.ctype,
            sum_type=total.ctype,
            functions="\n".join(functions),
            passes=self.kept is None,
            direct=p.direct,
            vectors=self.vectors,
            late=self.vectors and p.direct,
            base=identifier(base) if base else "",
            width=finish_width(p),
            batch=_BATCH,
            ragged=p.result_sizes[last] % finish_width(p) != 0,
            last=last,
            result_axes=tuple(range(last)),
            result_reads=tuple(result_reads),
            result_arguments=", ".join(
                [*map(self._result_leaf, result_leaves), *(f"{y.name}_vector[e]" for y in outputs)]
            ),
            outputs=tuple(outputs),
            sums_row="" if p.direct else offset(target, [(f"i{a}[batch]", a) for a in range(last)], "sums"),
            target=name,
            target_row=offset(target, batch, name),
            id_offset="current" if unit else f"static_cast<long long>(current) * {name}_s{along}",
            strided=p.has_columns and target.strides[last] != 1,
            column_stride=f"{name}_s{last}",
            has_columns=p.has_columns,
            batch_axes=tuple(range(len(p.sizes) - 1)) if self.vectors else p.batch_axes,
            bin_offset="bin" if unit else f"static_cast<long long>(bin) * {name}_s{along}",
            item_axes=tuple(range(len(p.sizes))) if p.flat and len(p.sizes) > 1 and not self.vectors else (),
            item_reads=tuple(map(self.read, p.reads)),
            count=" * ".join(f"m{a}" for a in range(len(p.sizes))) or "1" if p.flat else f"m{p.along}",
            columns=f"m{len(p.sizes) - 1}" if p.has_columns or self.vectors else "1",
            limit=f"n{along}",
            id_arguments=", ".join([*map(self._value_leaf, id_leaves), "found"]),
            value_arguments=", ".join([*map(self._value_leaf, value_leaves), "one"]),
        )

    def parameters(self) -> tuple[Param, ...]:
        """Pointers, the grid barrier, sizes of both kinds of axes, strides that are used, sizes of dimensions, numbers."""
        p, problem = self.p, self.p.problem
        bits: Literal[32, 64] = 64 if self.wide else 32
        params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
        params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
        if not p.direct:
            elements: Size = 1
            for d in range(len(p.result_sizes)):
                elements = elements * (self.kept if d == 0 and self.kept is not None else Dim(f"n{d}"))
            params.append(Pointer("sums", p.total, "", "counters", elements))
        params.append(Pointer("grid_barrier", i32, "", "counters", 1))
        params += [Integer(f"m{d}", Dim(f"m{d}"), bits) for d in range(len(p.sizes))]
        params += [Integer(f"n{d}", Dim(f"n{d}"), bits) for d in range(len(p.result_sizes))]
        used: dict[str, None] = {}
        for r in (*p.reads, *p.finish_reads):
            used |= {f"{identifier(r.operand.name)}_s{a}": None for _, a in r.terms if r.operand.strides[a] != 1}
        last = len(p.result_sizes) - 1
        for o in problem.outputs:
            used |= {f"{identifier(o.name)}_s{a}": None for a, s in enumerate(o.strides) if s != 1 and (s or a == last)}
        params += map(Integer.stride, used)
        if not p.direct:
            for axis in range(len(p.result_sizes)):
                step: Size = 1
                for d in range(axis + 1, len(p.result_sizes)):
                    step = step * Dim(f"n{d}")
                if p.target.strides[axis] != 1:
                    params.append(Integer(f"sums_s{axis}", step, 64))
        sizes = {size_name(leaf.attr): leaf.attr for low in (p.values, p.finish) for leaf in low.sizes.values()}
        params += [Integer(name, Dim(name)) for name in sizes]
        return (*params, *(Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars))


def symbols(p: ScatterPlan) -> dict[str, int]:
    """The integers a launch depends on: sizes m0.. of the values and n0.. of the result, strides, and sizes of dimensions."""
    found = {f"m{d}": n for d, n in enumerate(p.sizes)} | {f"n{d}": n for d, n in enumerate(p.result_sizes)}
    for o in p.problem.operands:
        found |= {f"{o.name}_s{d}": s for d, s in enumerate(o.strides)}
    return found | {f"size_{name}": n for name, n in p.problem.bindings}
