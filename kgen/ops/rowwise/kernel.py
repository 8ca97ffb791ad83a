"""What the row-wise template is given: operands, phases with their generated functions, row values and results."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.codegen.expression import Argument, literal, pointwise_function, walk_to
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Limit, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, walk
from kgen.dsl.ops import accumulator
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import Dim, Size, prod
from kgen.dsl.types import DType, compute_dtype, f32, f64, i32
from kgen.ops.common.memory_bound import LOADS, STORES
from kgen.ops.common.random_stream import stream
from kgen.ops.rowwise.plan import Plan, full_shape, is_full, plan_of

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise


@dataclass(frozen=True)
class Access:
    """How the template reaches an operand.

    `kind`: "full" along the row and from row to row, "column" along the row alone, "row" one value a row, "scalar" one value.
    Its address moves along the outer dimensions `moving`; a `strided` one does not lie together along the row.
    """

    name: str
    dtype: DType
    kind: str
    strided: bool
    moving: tuple[int, ...]

    @property
    def ctype(self) -> str:
        return self.dtype.ctype

    @property
    def bytes(self) -> int:
        return self.dtype.bytes

    @classmethod
    def of(cls, o: Operand, rank: int, full: bool) -> Access:
        """The access to an operand of a normalised problem; an output that is `full` has a place for every column."""
        strides = o.strides if len(o.strides) == rank else (*o.strides, 0)
        *outer, inner = strides
        moving = tuple(d for d, s in enumerate(outer) if s != 0)
        kind = ("full" if moving else "column") if inner or full else ("row" if moving else "scalar")
        return cls(identifier(o.name), o.dtype, kind, inner != 1 and kind in ("full", "column"), moving)


@dataclass(frozen=True)
class Reduction:
    """One result of a phase: `kind` sum, mean, amax, amin or argmax; or two, the other one is `total`.

    softmax: a maximum and the sum of exponentials; variance: a mean and the variance.
    """

    kind: str
    name: str
    dtype: DType
    start: str
    value: str
    total: str = ""

    @property
    def number(self) -> str:
        """That of its value among those of the phase."""
        return self.value[len("value") :]

    @property
    def nan(self) -> str:
        return literal(math.nan, self.dtype)

    @property
    def ctype(self) -> str:
        return self.dtype.ctype


@dataclass(frozen=True)
class Function:
    """A generated function of one element: its text, operands along the row and random numbers that it takes, and its call."""

    text: str
    used: tuple[Access, ...]
    randoms: tuple[str, ...]
    arguments: str

    @property
    def needs_column(self) -> bool:
        return bool(self.randoms) or "column" in self.arguments


@dataclass(frozen=True)
class Pick:
    """A value of a row of which one column decides: `place` gives that, `function` is of an element there; else it is `zero`."""

    name: str
    ctype: str
    zero: str
    place: str
    function: Function


@dataclass(frozen=True)
class Random:
    """Random numbers along the row: `stream` is seed and offset, the first of a vector is a multiple of `align`."""

    name: str
    stream: str
    align: int


@dataclass(frozen=True)
class Phase:
    """A pass over the row that ends in reductions; before it, `divisors` are found by `divide`."""

    number: int
    reductions: tuple[Reduction, ...]
    function: Function
    divide: Function | None
    divisors: tuple[tuple[str, str, str], ...]

    @property
    def counted(self) -> bool:
        """Whether a reduction asks for the column."""
        return any(r.kind == "argmax" for r in self.reductions)


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    rank: int
    index_type: str
    kept_inputs: tuple[Access, ...]
    columns: tuple[Access, ...]
    row_inputs: tuple[Access, ...]
    phases: tuple[Phase, ...]
    last: Phase
    outputs: tuple[Access, ...]
    row_outputs: tuple[Access, ...]
    row_function: Function | None
    picks: tuple[Pick, ...]
    randoms: tuple[Random, ...]
    positions: tuple[tuple[str, str], ...]
    length: str
    vectors: int
    whole: bool
    ragged: bool
    load: str
    store: str
    exp: str
    reduce_bytes: int
    stage_bytes: int
    offsets: dict[str, int]


class Writer:
    """Makes the functions of a plan for one problem."""

    def __init__(self, config: Rowwise | RowwiseCluster, problem: Problem) -> None:
        graph = problem.graph
        self.config, self.problem = config, problem
        self.plan: Plan = plan_of(graph, config.algorithm == "online")
        self.rank = len(problem.leading)
        self.length = f"n{self.rank - 1}"
        self.fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        self.inputs = {o.name: Access.of(o, self.rank, False) for o in problem.inputs}
        specs = zip(problem.outputs, graph.outputs)
        self.outputs = [Access.of(o, self.rank, is_full(spec, self.plan.row)) for o, spec in specs]
        self.leaves: dict[int, tuple[Argument, str]] = {}
        self.randoms: list[Random] = []
        self.positions: dict[str, str] = {}
        self.sizes: dict[str, Size] = {}
        self._name_leaves()

    def _name_leaves(self) -> None:
        """The parameter that each leaf becomes, and what is passed for it."""
        plan = self.plan
        for node in walk(plan.results):
            if node.op == "input":
                access = self.inputs[node.attr]
                passed = f"{access.name}_vector[e]" if access.kind in ("full", "column") else f"{access.name}_value"
                self._leaf(node, access.name, access.dtype, passed)
            elif node.op == "scalar":
                self._leaf(node, identifier(node.attr), node.dtype, identifier(node.attr))
            elif node.op == "size":
                self._leaf(node, f"size_{node.attr}", i32, self._size(node.attr))
            elif node.op == "arange":
                axis = len(node.shape.dims)
                if axis == 1:
                    self._leaf(node, "place", i32, "column + e")
                else:
                    self._leaf(node, f"place{axis}", i32, f"position{axis}")
                    self.positions[f"position{axis}"] = self._position(axis)
            elif node.op == "random":
                name = f"random{len(self.randoms)}"
                align = 1 if self.config.shift else math.gcd(4, self.config.pack, self.problem.leading[-1])
                self.randoms.append(Random(name, stream(node), align))
                self._leaf(node, name, node.dtype, f"{name}_vector[e]")
            elif node.op == "pick":
                name = f"pick{sum(1 for a, _ in self.leaves.values() if a.node.op == 'pick')}"
                self._leaf(node, name, node.dtype, name)
            elif node.op == "reciprocal_of":
                name = f"{node.attr}{sum(1 for a, _ in self.leaves.values() if a.node.op == 'reciprocal_of')}"
                self._leaf(node, name, node.dtype, name)
        number = 0
        for p, phase in enumerate(plan.phases):
            for node in phase:
                self._leaf(node, f"{node.op}{number}", node.dtype, f"found{p}.{node.op}{number}")
                if id(node) in plan.online:
                    total = plan.online[id(node)]
                    name = f"{'variance' if node.op == 'mean' else 'sum'}{number}"
                    self._leaf(total, name, total.dtype, f"found{p}.{name}")
                number += 1

    def _leaf(self, node: Expr, name: str, dtype: DType, passed: str) -> None:
        self.leaves[id(node)] = (Argument(node, name, dtype), passed)

    def _size(self, dim: Size) -> str:
        """A dimension's size in the kernel."""
        if dim == self.plan.row:
            return self.length
        if isinstance(dim, int):
            return str(dim)
        self.sizes[f"size_{dim}"] = dim
        return f"size_{dim}"

    def _position(self, axis: int) -> str:
        """The row's index along an axis, counted from the end, of the full shape."""
        dims = self.plan.full.dims
        inner = [self._size(d) for d in dims[len(dims) - axis + 1 : -1]]
        outermost = axis == len(dims) and not self.plan.full.leading
        divided = f"row / ({' * '.join(inner)})" if inner else "row"
        return divided if outermost else f"{divided} % {self._size(dims[-axis])}"

    def function(self, name: str, roots: Sequence[Expr], dtypes: Sequence[DType], results: Sequence[str]) -> Function:
        """A device function of the leaves that `roots` need; `results` are where its call puts them."""
        stops = {i: argument for i, (argument, _) in self.leaves.items()}
        needed = [id(n) for root in roots for n in walk_to(root, stops) if id(n) in stops]
        taken = [self.leaves[i] for i in dict.fromkeys(needed)]
        text = pointwise_function(name, [argument for argument, _ in taken], roots, dtypes, self.fast)
        names = {argument.name for argument, _ in taken}
        used = tuple(a for a in self.inputs.values() if a.name in names and a.kind in ("full", "column"))
        randoms = tuple(argument.name for argument, _ in taken if argument.node.op == "random")
        return Function(text, used, randoms, ", ".join([passed for _, passed in taken] + list(results)))

    def phase(self, number: int) -> Phase:
        """A phase; the one after the last makes the results of full rows."""
        plan = self.plan
        divisors = plan.divisors[number]
        names = [self.leaves[id(d)][0].name for d in divisors]
        values = {id(d.args[0]): d.args[0] for d in divisors}
        before = len({id(d.args[0]) for earlier in plan.divisors[:number] for d in earlier})
        results = {value: f"divisor{before + i}" for i, value in enumerate(values)}
        divide = None
        if values:
            made = [f32] * len(values)
            divide = self.function(f"divisors{number}", list(values.values()), made, list(results.values()))
        divided = tuple((n, str(d.attr), results[id(d.args[0])]) for n, d in zip(names, divisors))
        if number == len(plan.phases):
            full = [(y, node) for y, node in zip(self.outputs, plan.results) if y.kind in ("full", "column")]
            finish = self.function(
                "finish", [n for _, n in full], [y.dtype for y, _ in full], [f"{y.name}_vector[e]" for y, _ in full]
            )
            return Phase(number, (), finish, divide, divided)
        nodes = plan.phases[number]
        reductions = tuple(self._reduction(node, f"value{i}") for i, node in enumerate(nodes))
        values_of = [accumulator(n) for n in nodes]
        compute = self.function(
            f"values{number}", [n.args[0] for n in nodes], values_of, [f"value{i}" for i in range(len(nodes))]
        )
        return Phase(number, reductions, compute, divide, divided)

    def _picks(self) -> tuple[Pick, ...]:
        found = []
        for argument, name in [leaf for leaf in self.leaves.values() if leaf[0].node.op == "pick"]:
            place, value = argument.node.args
            function = self.function(f"{name}_of", [value], [argument.dtype], [name])
            zero = literal(0.0 if argument.dtype.is_float else 0, argument.dtype)
            found.append(Pick(name, argument.dtype.ctype, zero, self.leaves[id(place)][1], function))
        return tuple(found)

    def _reduction(self, node: Expr, value: str) -> Reduction:
        argument = self.leaves[id(node)][0]
        total = self.leaves[id(self.plan.online[id(node)])][0].name if id(node) in self.plan.online else ""
        if node.op in ("sum", "mean"):
            if total:
                return Reduction("variance", argument.name, node.dtype, literal(0, node.dtype), value, total)
            return Reduction(node.op, argument.name, node.dtype, literal(0, node.dtype), value)
        dtype = compute_dtype(node.args[0].dtype)
        lowest = "-infinity()" if dtype.is_float else _LOWEST[dtype.bits]
        if node.op == "amin":
            return Reduction("amin", argument.name, dtype, "infinity()" if dtype.is_float else f"~({lowest})", value)
        if total:
            return Reduction("softmax", argument.name, dtype, lowest, value, total)
        return Reduction(node.op, argument.name, dtype, lowest, value)

    def context(self) -> Context:
        config, problem, plan = self.config, self.problem, self.plan
        phases = tuple(self.phase(p) for p in range(len(plan.phases)))
        last = self.phase(len(phases))
        row_outputs = [(y, node) for y, node in zip(self.outputs, plan.results) if y.kind in ("row", "scalar")]
        row_function = None
        if row_outputs:
            row_function = self.function(
                "finish_row",
                [n for _, n in row_outputs],
                [y.dtype for y, _ in row_outputs],
                [f"{y.name}_value" for y, _ in row_outputs],
            )
        full = tuple(a for a in self.inputs.values() if a.kind == "full" and self._is_used(a))
        along = {a.name for phase in (*phases, last) for a in phase.function.used}  # read for every column
        return Context(
            rank=self.rank,
            index_type="unsigned long long" if self.wide else "unsigned",
            kept_inputs=full,
            columns=tuple(a for a in self.inputs.values() if a.kind == "column" and a.name in along),
            row_inputs=tuple(a for a in self.inputs.values() if a.kind in ("row", "scalar") and self._is_used(a)),
            phases=phases,
            last=last,
            outputs=tuple(y for y in self.outputs if y.kind in ("full", "column")),
            row_outputs=tuple(y for y, _ in row_outputs),
            row_function=row_function,
            picks=self._picks(),
            randoms=tuple(self.randoms),
            positions=tuple(self.positions.items()),
            length=self.length,
            vectors=config.vectors(problem),
            whole=config.is_whole(problem),
            ragged=not config.shift and problem.leading[-1] % config.pack != 0,
            load=LOADS[config.load],
            store=STORES[config.store],
            exp="ptx::exp_approximate" if self.fast else "expf",
            reduce_bytes=config.reduce_bytes(problem),
            stage_bytes=config.stage_bytes(problem),
            offsets=_offsets(full, config.stage_columns(problem)),
        )

    def _is_used(self, access: Access) -> bool:
        return any(argument.name == access.name and argument.node.op == "input" for argument, _ in self.leaves.values())

    @property
    def wide(self) -> bool:
        """Whether rows are counted in 64 bits."""
        return not self.narrow_limit.holds(self.config.symbols(self.problem))

    @property
    def narrow_limit(self) -> Limit:
        """Where rows are counted in 32 bits."""
        return Limit(prod(Dim(f"n{d}") for d in range(self.rank - 1)), 2**31 - 1)

    def limits(self) -> tuple[Limit, ...]:
        """How large a problem this source is right for."""
        return () if self.wide else (self.narrow_limit,)

    def params(self) -> tuple[Param, ...]:
        """The kernel's parameters: pointers, sizes, the strides that are not known, scalars."""
        problem, rank = self.problem, self.rank
        params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
        params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
        params += [Integer(f"n{d}", Dim(f"n{d}"), 64 if self.wide else 32) for d in range(rank - 1)]
        params.append(Integer(self.length, Dim(self.length), most=self.config.longest_row(problem)))
        params += [Integer(name, Dim(name)) for name in self.sizes]
        for a in (*self.inputs.values(), *self.outputs):
            for d in (*a.moving, *([rank - 1] if a.strided else [])):
                params.append(Integer.stride(f"{a.name}_s{d}"))
        return (*params, *(Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars))


@functools.lru_cache(maxsize=1024)
def accesses(problem: Problem) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """How inputs and outputs of a normalised problem are reached."""
    rank, row = len(problem.leading), full_shape(problem.graph).dims[-1]
    inputs = tuple(Access.of(o, rank, False) for o in problem.inputs)
    outputs = tuple(Access.of(o, rank, is_full(s, row)) for o, s in zip(problem.outputs, problem.graph.outputs))
    return inputs, outputs


@functools.lru_cache(maxsize=1024)
def kept_bytes(problem: Problem) -> int:
    """Bytes of a column over the inputs that a row keeps."""
    used = {n.attr for n in problem.graph.nodes if n.op == "input"}
    return sum(a.bytes for a, o in zip(accesses(problem)[0], problem.inputs) if a.kind == "full" and o.name in used)


_LOWEST = {32: "-2147483647 - 1", 64: "-9223372036854775807LL - 1"}


def state_bytes(plan: Plan) -> int:
    """The size of the largest phase's state."""

    def words(node: Expr) -> int:
        wide = compute_dtype(node.args[0].dtype).bits == 64 or node.dtype is f64
        extra = 1 if node.op == "argmax" else (1 + (node.op == "mean")) * (id(node) in plan.online)
        return (2 if wide else 1) * (1 + extra)

    return max(-(-4 * sum(map(words, phase)) // 8) * 8 for phase in plan.phases)


def _offsets(kept: Iterable[Access], elements: int) -> dict[str, int]:
    """Where each operand starts in a stage of shared memory, in bytes."""
    found, at = {}, 0
    for a in kept:
        found[a.name] = at
        at += a.bytes * elements
    return found
