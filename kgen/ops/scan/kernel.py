"""What the templates of scans are given of a problem."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kgen.codegen.expression import Argument, pointwise_function, walk_to
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, walk
from kgen.dsl.operator import Graph
from kgen.dsl.ops import LEAVES, POINTWISE, SCANS, accumulator
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import Dim
from kgen.dsl.types import DType
from kgen.ops.common import row_state
from kgen.ops.rowwise.access import Access, Reached
from kgen.ops.rowwise.kernel import accesses
from kgen.ops.rowwise.plan import full_shape, has_full_shape
from kgen.ops.rowwise.problem import LONGEST


def matches(graph: Graph) -> bool:
    """Whether every result is a pointwise expression of inputs and of scans along the last axis, none of them of another."""
    nodes = graph.nodes
    scans = [n for n in nodes if n.op in SCANS]
    if not scans or not all(n.op in LEAVES or n.op in POINTWISE or n.op in SCANS for n in nodes):
        return False
    if any(n.op in SCANS for scan in scans for n in walk(scan.args)) or not has_full_shape(graph):
        return False
    full = full_shape(graph)
    row = full.dims[-1]
    lasts = {x.dims[-1] for x in (*(n.shape for n in nodes), *(s.shape for s in graph.inputs)) if x.dims}
    if row == 1 or not lasts <= {row, 1} or any(scan.shape.dims[-1] != row for scan in scans):
        return False
    return all(y.shape == full for y in graph.outputs)


@dataclass(frozen=True)
class Along:
    """An operand as the template writes it: `kind` is "row" where it runs along the row, else "value".

    `policy` is the C++ type by which its vectors are loaded or stored (templates/common/operand.cuh), `step` what neighbours are
    apart. Rows that are `shared` lie in shared memory, NAME_AT bytes in, number `own` of the block's.
    """

    access: Access
    kind: str
    shared: bool
    pointer: str
    row: str
    element: str
    step: str
    policy: str

    @property
    def name(self) -> str:
        return self.access.name

    @property
    def ctype(self) -> str:
        return self.access.ctype

    @classmethod
    def of(cls, a: Access, rank: int, output: bool, vectors: str, shared: bool) -> Along:
        """`vectors` is the policy of accesses by vectors, ", LoadEvictLast" for one."""
        kind = "row" if a.kind in ("full", "column") else "value"
        pointer = f"{a.ctype}* const {a.name}_row" if output else f"const {a.ctype}* const {a.name}_row"
        stride = f"{a.name}_s{rank - 1}" if a.strided else ""
        element = f"{a.name}_row + column{f' * {stride}' if stride else ''}"
        way, unit = "Output" if output else "Input", "" if a.strided else vectors
        policy = f"{'Strided' if a.strided else 'Unit'}{way}<{a.ctype}, PACK{unit}>"
        row = Reached(a, rank, "", "", "").row()
        if shared:
            qualified = a.ctype if output else f"const {a.ctype}"
            row = f"reinterpret_cast<{qualified}*>(shared + {a.name}_AT) + own * n{rank - 1}"
        return cls(a, kind, shared, pointer, row, element, stride or "1", policy)


@dataclass(frozen=True)
class Scanned:
    """A scan: the variable of what it is of and its type, its state, and how its value is read there."""

    name: str
    ctype: str
    state: str
    value: str


@dataclass(frozen=True)
class Function:
    """A generated function of one element, and what it is called with."""

    text: str
    arguments: str


@dataclass(frozen=True)
class Context:
    """What the template sees."""

    index_type: str
    length: str
    rows: str
    inputs: tuple[Along, ...]
    outputs: tuple[Along, ...]
    scans: tuple[Scanned, ...]
    values: Function
    finish: Function


def context(problem: Problem, wide: bool, load: str, store: str, shared: Collection[str] = ()) -> Context:
    """What the templates see, with indices of rows of 64 bits if `wide`, by such policies of loads and stores.

    A block's rows of operands that are named in `shared` lie in shared memory.
    """
    rank = len(problem.leading)
    writer = Writer(problem, load, store, shared)
    outer = [f"n{d}" for d in range(rank - 1)]
    return Context(
        index_type="unsigned long long" if wide else "unsigned",
        length=f"n{rank - 1}",
        rows=" * ".join([f"static_cast<Index>({outer[0]})", *outer[1:]]),
        inputs=writer.inputs,
        outputs=writer.outputs,
        scans=writer.scans,
        values=writer.values,
        finish=writer.finish,
    )


class Writer:
    """The functions of a problem's graph, and the leaves that are their arguments."""

    def __init__(self, problem: Problem, load: str, store: str, shared: Collection[str]) -> None:
        rank, graph = len(problem.leading), problem.graph
        inputs, outputs = accesses(problem)
        used = {n.attr for n in graph.nodes if n.op == "input"}
        reached = {
            o.name: Along.of(a, rank, False, load, o.name in shared)
            for o, a in zip(problem.inputs, inputs)
            if o.name in used
        }
        self.inputs = tuple(reached.values())
        self.outputs = tuple(Along.of(a, rank, True, store, o.name in shared) for o, a in zip(problem.outputs, outputs))
        self.fast = all(o.dtype.bits <= 16 for o in problem.outputs)
        self.leaves: dict[int, tuple[Argument, str]] = {}
        for node in graph.nodes:
            if node.op == "input":
                x = reached[node.attr]
                self._leaf(
                    node, x.name, x.access.dtype, f"items.{x.name}[v][e]" if x.kind == "row" else f"{x.name}_value"
                )
            elif node.op == "scalar":
                self._leaf(node, identifier(node.attr), node.dtype, identifier(node.attr))
        scans = scans_of(graph)
        self.scans = tuple(self._scanned(node, f"value{i}") for i, node in enumerate(scans))
        self.values = self._function(
            "values", [n.args[0] for n in scans], [accumulator(n) for n in scans], [s.name for s in self.scans]
        )
        for i, (node, scan) in enumerate(zip(scans, self.scans)):
            self._leaf(node, f"{node.op}{i}", accumulator(node), f"get<{i}>(state).{scan.value}")
        self.finish = self._function(
            "finish", graph.results, [o.dtype for o in problem.outputs], [f"{y.name}_vector[e]" for y in self.outputs]
        )

    def _leaf(self, node: Expr, name: str, dtype: DType, passed: str) -> None:
        self.leaves[id(node)] = (Argument(node, name, dtype), passed)

    def _scanned(self, node: Expr, name: str) -> Scanned:
        ctype = accumulator(node).ctype
        if node.op == "logcumsumexp":
            exp = "FastExp" if self.fast else "PreciseExp"
            return Scanned(name, ctype, f"LogSumExpState<{ctype}, {exp}>", "value()")
        return Scanned(name, ctype, f"{'ProductState' if node.op == 'cumprod' else 'SumState'}<{ctype}>", "value")

    def _function(self, name: str, roots: Sequence[Expr], dtypes: Sequence[DType], results: Sequence[str]) -> Function:
        stops = {i: argument for i, (argument, _) in self.leaves.items()}
        needed = dict.fromkeys(id(n) for root in roots for n in walk_to(root, stops) if id(n) in stops)
        taken = [self.leaves[i] for i in needed]
        text = pointwise_function(name, [argument for argument, _ in taken], roots, dtypes, self.fast)
        return Function(text, ", ".join([*(passed for _, passed in taken), *results]))


@functools.lru_cache(maxsize=256)
def scans_of(graph: Graph) -> tuple[Expr, ...]:
    return tuple(n for n in graph.nodes if n.op in SCANS)


def by_kind(problem: Problem, plain: float, fast: float, precise: float) -> float:
    """The sum over a problem's scans of what one costs: plain, or with exponentials of results of 16 bits or of more."""
    exponential = fast if all(o.dtype.bits <= 16 for o in problem.outputs) else precise
    return sum(exponential if scan.op == "logcumsumexp" else plain for scan in scans_of(problem.graph))


def state_bytes(graph: Graph) -> int:
    members = [[accumulator(n).bytes] * (2 if n.op == "logcumsumexp" else 1) for n in scans_of(graph)]
    return row_state.state_bytes(members)


def along_row(problem: Problem) -> list[tuple[Access, Operand]]:
    """The operands that run along the row."""
    inputs, outputs = accesses(problem)
    pairs = zip((*inputs, *outputs), problem.operands)
    return [(a, o) for a, o in pairs if a.kind in ("full", "column")]


def input_bytes(problem: Problem) -> int:
    """Bytes of an element over the inputs along the row."""
    return sum(a.bytes for a in accesses(problem)[0] if a.kind in ("full", "column")) or 1


def parameters(problem: Problem, bits: int) -> tuple[Param, ...]:
    """Pointers, sizes, the strides that are not known, scalars."""
    rank = len(problem.leading)
    inputs, outputs = accesses(problem)
    params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
    params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
    params += [Integer(f"n{d}", Dim(f"n{d}"), 64 if bits == 64 else 32) for d in range(rank - 1)]
    params.append(Integer(f"n{rank - 1}", Dim(f"n{rank - 1}"), most=LONGEST))
    for a in (*inputs, *outputs):
        params += [Integer.stride(f"{a.name}_s{d}") for d in (*a.moving, *([rank - 1] if a.strided else []))]
    return (*params, *(Scalar(identifier(s.name), s.dtype) for s in problem.graph.scalars))
