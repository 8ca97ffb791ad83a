"""What the row-wise template is given: operands, phases with their generated functions, row values and results."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.codegen.expression import Argument, literal, pointwise_function, walk_to
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Limit, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, walk
from kgen.dsl.ops import accumulator
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size, prod
from kgen.dsl.types import DType, compute_dtype, f32, i32
from kgen.ops.common import row_state
from kgen.ops.common.random_stream import stream
from kgen.ops.rowwise.access import Access, Reached, offsets
from kgen.ops.rowwise.plan import Plan, full_shape, is_full, plan_of

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise
    from kgen.ops.rowwise.span import RowwiseSpan


@dataclass(frozen=True)
class Reduction:
    """A reduction of a phase, of values `value` of type `ctype`: the types of its state and of a batch, in templates/common."""

    ctype: str
    value: str
    state: str
    batch: str


@dataclass(frozen=True)
class Function:
    """A generated function of one element: its text, operands along the row and random numbers that it takes, and its call."""

    text: str
    used: tuple[Reached, ...]
    randoms: tuple[str, ...]
    arguments: str


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
    """A pass over the row that ends in reductions, which `combine` makes of all threads'; before it, `divide` finds divisors."""

    number: int
    reductions: tuple[Reduction, ...]
    function: Function
    combine: str
    divide: tuple[str, ...]

    @property
    def states(self) -> str:
        return ", ".join(r.state for r in self.reductions)

    @property
    def batches(self) -> str:
        return ", ".join(r.batch for r in self.reductions)

    @property
    def values(self) -> str:
        """The variables that its function fills, declared."""
        return " ".join(f"{r.ctype} {r.value};" for r in self.reductions)

    @property
    def value_names(self) -> str:
        return ", ".join(r.value for r in self.reductions)


@dataclass(frozen=True)
class Context:
    """What the template sees. `columns_type` says at which columns a thread has vectors, `columns_of` what that is made of.

    `functions` are all generated ones, each with a comment; `packed` the operands whose vectors wait as they came.
    """

    rank: int
    index_type: str
    kept_inputs: tuple[Reached, ...]
    columns: tuple[Reached, ...]
    row_inputs: tuple[Reached, ...]
    phases: tuple[Phase, ...]
    last: Phase
    functions: tuple[tuple[str, str], ...]
    outputs: tuple[Reached, ...]
    row_outputs: tuple[Reached, ...]
    row_function: Function | None
    picks: tuple[Pick, ...]
    randoms: tuple[Random, ...]
    positions: tuple[tuple[str, str], ...]
    length: str
    rows: str
    row_is_used: bool
    columns_type: str
    columns_of: str
    vectors: int
    whole: bool
    ragged: bool
    packed: tuple[str, ...]
    reduce_bytes: int
    stage_bytes: int
    offsets: tuple[tuple[str, int], ...]


class Writer:
    """Makes the functions of a plan for one problem."""

    def __init__(self, config: Rowwise | RowwiseCluster | RowwiseSpan, problem: Problem) -> None:
        graph = problem.graph
        self.config, self.problem = config, problem
        self.plan: Plan = plan_of(graph, config.algorithm == "online")
        self.rank = len(problem.leading)
        self.length = f"n{self.rank - 1}"
        self.fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        self.ragged = not config.shift and problem.leading[-1] % config.pack != 0
        inputs, outputs = accesses(problem)
        self.inputs = {o.name: self._reached(a) for o, a in zip(problem.inputs, inputs)}
        self.outputs = [self._reached(a) for a in outputs]
        self.leaves: dict[int, tuple[Argument, str]] = {}
        self.randoms: list[Random] = []
        self.positions: dict[str, str] = {}
        self.sizes: dict[str, Size] = {}
        self._name_leaves()

    def _reached(self, a: Access) -> Reached:
        return Reached.of(a, self.rank, self.config, self.length, self.ragged)

    def _name_leaves(self) -> None:
        """The parameter that each leaf becomes, and what is passed for it."""
        plan = self.plan
        for node in walk(plan.results):
            if node.op == "input":
                access = self.inputs[node.attr]
                passed = f"{access.name}_vector[e]" if access.kind in ("full", "column") else f"{access.name}_value"
                self._leaf(node, access.name, access.access.dtype, passed)
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
            for i, node in enumerate(phase):
                state, total = f"get<{i}>(state{p})", plan.online.get(id(node))
                first, second = {"amax": ("max", "sum"), "mean": ("mean", "variance")}.get(node.op, ("", ""))
                member = first if total is not None else "at" if node.op == "argmax" else "value"
                self._leaf(node, f"{node.op}{number}", node.dtype, f"{state}.{member}")
                if total is not None:
                    self._leaf(total, f"{second}{number}", total.dtype, f"{state}.{second}")
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
        if number == len(plan.phases):
            full = [(y, node) for y, node in zip(self.outputs, plan.results) if y.kind in ("full", "column")]
            finish = self.function(
                "finish",
                [n for _, n in full],
                [y.access.dtype for y, _ in full],
                [f"{y.name}_vector[e]" for y, _ in full],
            )
            return Phase(number, (), finish, "", self._divisions(number))
        nodes = plan.phases[number]
        reductions = tuple(self._reduction(node, f"value{i}") for i, node in enumerate(nodes))
        values_of = [accumulator(n) for n in nodes]
        compute = self.function(
            f"values{number}", [n.args[0] for n in nodes], values_of, [f"value{i}" for i in range(len(nodes))]
        )
        return Phase(number, reductions, compute, self._combine(number), self._divisions(number))

    def _divisor(self, number: int) -> Function | None:
        """What is divided by, known after so many phases."""
        values = list({id(d.args[0]): d.args[0] for d in self.plan.divisors[number]}.values())
        names = list(self._divisors(number).values())
        return self.function(f"divisors{number}", values, [f32] * len(values), names) if values else None

    def _divisors(self, number: int) -> dict[int, str]:
        """The variables of what is divided by, by the ids of the nodes."""
        before = len({id(d.args[0]) for earlier in self.plan.divisors[:number] for d in earlier})
        values = dict.fromkeys(id(d.args[0]) for d in self.plan.divisors[number])
        return {value: f"divisor{before + i}" for i, value in enumerate(values)}

    def _divisions(self, number: int) -> tuple[str, ...]:
        """The statements that find reciprocals.

        A sum of exponentials needs none of a division's branch, which short rows feel: ptxas moves nothing over it, and finds
        exponentials a second time behind it. Of long ones it would keep them for that, in registers that are not there.
        """
        divide, names = self._divisor(number), self._divisors(number)
        if divide is None:
            return ()
        inverse = "reciprocal_short({})" if self.config.keep == "span" else "1.0f / {}"
        found = [f"float {', '.join(names.values())};", f"divisors{number}({divide.arguments});"]
        for d in self.plan.divisors[number]:
            name, divisor = self.leaves[id(d)][0].name, names[id(d.args[0])]
            member = {"mantissa": "x", "scale": "y"}.get(str(d.attr))
            value = f"reciprocal_parts({divisor}).{member}" if member else inverse.format(divisor)
            found.append(f"const float {name} = {value};")
        return tuple(found)

    def _combine(self, number: int) -> str:
        """The call that makes the state of a row of those of its threads."""
        config = self.config
        if isinstance(config.keep, str) and config.keep == "ring":
            return ""
        half = " + REDUCE_BYTES / 2" if number % 2 else ""
        state, partial = f"state{number}", f"reinterpret_cast<State{number}*>(shared{half})"
        threads = config.row_threads
        if config.cluster > 1:
            return f"reduce_cluster<CLUSTER, ROW_THREADS / 32>({state}, {partial});"
        if threads > 32:
            return f"reduce_block<ROW_THREADS / 32>({state}, {partial});"
        return f"{state}.combine_lanes<ROW_THREADS>();" if threads > 1 else ""

    def _picks(self) -> tuple[Pick, ...]:
        found = []
        for argument, name in [leaf for leaf in self.leaves.values() if leaf[0].node.op == "pick"]:
            place, value = argument.node.args
            function = self.function(f"{name}_of", [value], [argument.dtype], [name])
            zero = literal(0.0 if argument.dtype.is_float else 0, argument.dtype)
            found.append(Pick(name, argument.dtype.ctype, zero, self.leaves[id(place)][1], function))
        return tuple(found)

    def _reduction(self, node: Expr, value: str) -> Reduction:
        ctype, online = _state_dtype(node).ctype, id(node) in self.plan.online
        if online and node.op == "amax":
            of = f"{ctype}, {'FastExp' if self.fast and ctype == 'float' else 'PreciseExp'}"
            return Reduction(ctype, value, f"SoftmaxState<{of}>", f"SoftmaxBatch<{of}>")
        if online:
            even = "true" if self.config.is_whole(self.problem) else "false"
            return Reduction(ctype, value, f"WelfordState<{ctype}, {even}>", f"WelfordBatch<{ctype}>")
        # The length of rows of which a thread has several is a constant, and a power of two.
        if node.op == "mean" and ctype == "float" and self.config.span == "block":
            return Reduction(ctype, value, "ShortMeanState", "DirectBatch")
        of = f"{ctype}, int" if node.op == "argmax" else ctype
        return Reduction(ctype, value, f"{_STATES[node.op]}<{of}>", "DirectBatch")

    def _columns_type(self, full: Sequence[Reached]) -> tuple[str, str]:
        """The type of the columns at which a thread has vectors, and what it is made of; `full` operands lie alike."""
        config, length = self.config, self.length
        if config.shift:
            tiled = "true" if config.keep == "none" else "false"
            head = f"static_cast<int>((PACK - ({' + '.join(full[0].offsets())}) % PACK) % PACK)"
            return f"ShiftedColumns<VECTORS, STEP, PACK, {tiled}>", f"first, {head}, {length}"
        if config.keep == "span" and not config.is_whole(self.problem):
            return "FilledColumns<VECTORS, STEP>", f"first, {length}"
        kind = "RowColumnsByFour" if config.keep == "shared" and config.columns == "late" else "RowColumns"
        whole = "true" if config.is_whole(self.problem) else "false"
        return f"{kind}<VECTORS, STEP, {whole}>", f"first, {length}"

    def _functions(
        self, phases: Sequence[Phase], last: Phase, picks: Sequence[Pick], row: Function | None
    ) -> Iterator[tuple[str, str]]:
        for p in phases:
            divide = self._divisor(p.number)
            if divide:
                yield f"What is divided by, before phase {p.number}.", divide.text
            yield f"What phase {p.number} reduces, for one element.", p.function.text
        divide = self._divisor(last.number)
        if divide:
            yield "What the results are divided by.", divide.text
        if any(y.kind in ("full", "column") for y in self.outputs):
            yield "The results, for one element.", last.function.text
        for k in picks:
            yield "What the value of a row is of which one column decides.", k.function.text
        if row:
            yield "The results that are one value a row.", row.text

    def context(self, places: tuple[tuple[str, int], ...] | None = None) -> Context:
        """What the template sees; `places` are those of operands in shared memory, unless they lie there one after another."""
        config, problem, plan = self.config, self.problem, self.plan
        phases = tuple(self.phase(p) for p in range(len(plan.phases)))
        last = self.phase(len(phases))
        row_outputs = [(y, node) for y, node in zip(self.outputs, plan.results) if y.kind in ("row", "scalar")]
        row_function = None
        if row_outputs:
            row_function = self.function(
                "finish_row",
                [n for _, n in row_outputs],
                [y.access.dtype for y, _ in row_outputs],
                [f"{y.name}_value" for y, _ in row_outputs],
            )
        picks = self._picks()
        full = tuple(a for a in self.inputs.values() if a.kind == "full" and self._is_used(a))
        rows = tuple(a for a in self.inputs.values() if a.kind in ("row", "scalar") and self._is_used(a))
        along = {a.name for phase in (*phases, last) for a in phase.function.used}  # read for every column
        columns_type, columns_of = self._columns_type(full)
        outer = [f"n{d}" for d in range(self.rank - 1)]
        narrow = [a.name for a in full if a.bytes < 4 and a.bytes * config.pack % 4 == 0]
        return Context(
            rank=self.rank,
            index_type="unsigned long long" if self.wide else "unsigned",
            kept_inputs=full,
            columns=tuple(a for a in self.inputs.values() if a.kind == "column" and a.name in along),
            row_inputs=rows,
            phases=phases,
            last=last,
            functions=tuple(self._functions(phases, last, picks, row_function)),
            outputs=tuple(y for y in self.outputs if y.kind in ("full", "column")),
            row_outputs=tuple(y for y, _ in row_outputs),
            row_function=row_function,
            picks=picks,
            randoms=tuple(self.randoms),
            positions=tuple(self.positions.items()),
            length=self.length,
            rows=" * ".join([f"static_cast<Index>({outer[0]})", *outer[1:]]) if outer else "1",
            row_is_used=bool(full or self.positions or self.randoms or any(a.moving for a in (*rows, *self.outputs))),
            columns_type=columns_type,
            columns_of=columns_of,
            vectors=config.vectors(problem),
            whole=config.is_whole(problem),
            ragged=self.ragged,
            packed=tuple(narrow) if config.keep == "registers" else (),
            reduce_bytes=config.reduce_bytes(problem),
            stage_bytes=config.stage_bytes(problem),
            offsets=offsets([a.access for a in full], config.stage_columns(problem)) if places is None else places,
        )

    def _is_used(self, access: Reached) -> bool:
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
        for a in (*accesses(problem)[0], *accesses(problem)[1]):
            moving = () if self.config.keep == "span" and a.kind == "full" else a.moving
            for d in (*moving, *([rank - 1] if a.strided else [])):
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


@functools.lru_cache(maxsize=1024)
def column_bytes(problem: Problem) -> int:
    """Bytes of a column over the operands of [N]."""
    return sum(a.bytes for a in accesses(problem)[0] if a.kind == "column")


_STATES = {
    "sum": "SumState",
    "mean": "MeanState",
    "amax": "MaxState",
    "amin": "MinState",
    "argmax": "ArgmaxState",
}


def _state_dtype(node: Expr) -> DType:
    """The dtype that a reduction is accumulated in."""
    return node.dtype if node.op in ("sum", "mean") else compute_dtype(node.args[0].dtype)


def state_bytes(plan: Plan) -> int:
    """The size of the largest phase's state."""

    def members(node: Expr) -> list[int]:
        size = _state_dtype(node).bytes
        if id(node) in plan.online:
            return [size] * (3 if node.op == "mean" else 2)
        return [size, 4] if node.op == "argmax" else [size]

    return max(-(-row_state.state_bytes([members(n) for n in phase]) // 8) * 8 for phase in plan.phases)
