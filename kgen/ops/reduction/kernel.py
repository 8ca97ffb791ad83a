"""What the templates of reductions are given: operands, accumulators, and the functions under and above the reductions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgen.codegen.expression import Argument, convert, pointwise_function
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.expr import Expr, walk
from kgen.dsl.problem import Operand, Problem
from kgen.dsl.size import Dim, Size, prod
from kgen.dsl.types import DType, compute_dtype, e4m3, e5m2, f32, f64, i32, i64
from kgen.ops.common.row_state import state_bytes
from kgen.ops.reduction.plan import Kind, Reduction, View, reductions_of, view

#: What a size is at most that is counted in 32 bits, with room for a tile beyond the end.
LARGEST = 2**31 - 2**16 - 1
_PAIRS = {e4m3: "__nv_fp8x2_e4m3", e5m2: "__nv_fp8x2_e5m2"}


@dataclass(frozen=True)
class Access:
    """How the template reaches an operand.

    `kind`: "vector" along the inner axis, "strided" along it in single elements, "broadcast" along it. `fixed`: it moves
    along no reduced axis. `moving` are the reduced axes, but for the inner one, along which its address moves; `kept` those
    that stay.
    """

    name: str
    dtype: DType
    kind: str
    fixed: bool
    moving: tuple[int, ...]
    kept: tuple[int, ...]
    align: int

    @property
    def ctype(self) -> str:
        return self.dtype.ctype

    @property
    def wide(self) -> str:
        """The type in which it is computed with."""
        return compute_dtype(self.dtype).ctype

    @property
    def pair(self) -> str:
        """The type of two elements that are widened at once; empty where they are not."""
        return _PAIRS.get(self.dtype, "")

    @classmethod
    def of(cls, o: Operand, v: View, inner: int) -> Access:
        """`inner` is the axis along which a thread's vectors lie."""
        strides = v.strides[o.name]
        kind = {1: "vector", 0: "broadcast"}.get(strides[inner], "strided") if inner >= 0 else "broadcast"
        kept = tuple(a for a in range(v.kept) if strides[a] and a != inner)
        moving = tuple(a for a in range(v.kept, len(strides)) if strides[a] and a != inner)
        fixed = not any(strides[v.kept :])
        return cls(identifier(o.name), o.dtype, kind, fixed, moving, kept, v.align(o, inner))


@dataclass(frozen=True)
class Member:
    """A value of the state that a result is accumulated in; `held` is its dtype in memory."""

    name: str
    held: DType


@dataclass(frozen=True)
class Accumulator:
    """A reduction as the template writes it: state number `number`, of elements of type `ctype`.

    `state` and `batch` are types of templates/common: what is accumulated, and what of it a thread adds up first. `factors` are
    the i8 operands whose sum of products it is, by dp4a.
    """

    name: str
    number: int
    kind: Kind
    ctype: str
    state: str
    batch: str
    members: tuple[Member, ...]
    factors: tuple[str, ...]


@dataclass(frozen=True)
class Accumulation:
    """What both templates need of a graph: see `accumulation`."""

    inputs: tuple[Access, ...]
    accumulators: tuple[Accumulator, ...]
    ratio_type: str
    inner_function: str
    inner_arguments: str
    finish_function: str
    finish_arguments: str
    outputs: tuple[Access, ...]
    above: tuple[Access, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """The values of all states."""
        return tuple(m for a in self.accumulators for m in a.members)

    @property
    def moments(self) -> tuple[Accumulator, ...]:
        return tuple(a for a in self.accumulators if a.kind == "moments")

    @property
    def counts(self) -> bool:
        """Whether positions of elements are asked for."""
        return any(a.kind == "argmax" for a in self.accumulators)

    @property
    def values(self) -> str:
        """The variables that the function of an element fills, declared."""
        return " ".join(f"{a.ctype} {a.name};" for a in self.accumulators if not a.factors)

    @property
    def value_names(self) -> str:
        return ", ".join(a.name for a in self.accumulators if not a.factors)

    @property
    def partials(self) -> str:
        """The workspaces in which blocks leave them."""
        return ", ".join(f"{m.name}_partials" for m in self.members)

    @property
    def used(self) -> tuple[int, ...]:
        """The axes, but for the inner one, along which some operand moves."""
        accesses = (*self.inputs, *self.above, *self.outputs)
        return tuple(sorted({axis for a in accesses for axis in (*a.kept, *a.moving)}))

    @property
    def packed_bytes(self) -> int:
        """Bytes of the members of a state."""
        return sum(m.held.bytes for m in self.members)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state as it lies in memory."""
        return state_bytes([[m.held.bytes for m in a.members] for a in self.accumulators])


def state_words(problem: Problem) -> int:
    """Registers of a state."""
    made = reductions_of(problem.graph)
    assert made is not None
    return sum(r.dtype.bytes // 4 * (2 if r.kind == "moments" else 1) + (r.kind == "argmax") for r in made.reductions)


#: Instructions that a reduction takes for an element, counted in the SASS.
_INSTRUCTIONS = {"sum": 1.0, "max": 1.2, "min": 1.2, "moments": 8.0, "argmax": 3.5}


def instructions(problem: Problem, accesses: Sequence[Access], pack: int, bytes_at_once: bool) -> float:
    """About the instructions of a thread for each element; sums of i8 may take four at once."""
    made = reductions_of(problem.graph)
    assert made is not None
    if bytes_at_once and pack % 4 == 0 and all(r.factors for r in made.reductions):
        return 0.5
    computed = sum(
        n.op not in ("input", "scalar", "const", "cast") for n in walk(tuple(r.value for r in made.reductions))
    )
    widened = sum({1: 1.5, 2: 1.0}.get(a.dtype.bytes, 0.0) for a in accesses if a.kind != "broadcast" and not a.fixed)
    loads = sum(6.0 if a.kind == "strided" else 4.0 / pack for a in accesses if not a.fixed)
    wide = 2.0 if any(r.dtype.bits == 64 for r in made.reductions) else 1.0
    return loads + widened + wide * (computed + sum(_INSTRUCTIONS[r.kind] for r in made.reductions))


@functools.lru_cache(maxsize=64)
def accumulation(problem: Problem, inner: int, pack: int, wide: bool) -> Accumulation:
    """The graph of a problem for a template whose threads take vectors of `pack` elements along the axis `inner`.

    Along a reduced axis a thread has one state, whose sums are f64: it adds what it has summed of a few vectors. Across
    results it has a state for each. `wide`: indices of elements have 64 bits.
    """
    v, made = view(problem), reductions_of(problem.graph)
    assert made is not None
    graph = made.graph
    access = {o.name: Access.of(o, v, inner) for o in problem.operands}
    single = inner >= v.kept
    ratio = f64 if any(r.kind == "moments" and r.dtype is f64 for r in made.reductions) else f32
    found = []
    for i, r in enumerate(made.reductions):
        vectors = all(access[x].kind == "vector" and not access[x].fixed for x in r.factors)
        by_bytes = r.factors if pack % 4 == 0 and vectors and single else ()
        total = f64 if single and r.dtype.is_float and r.kind in ("sum", "moments") else r.dtype
        members = _members(f"r{i}", r, total, wide)
        factors = tuple(access[x].name for x in by_bytes)
        found.append(
            (
                r,
                total,
                Accumulator(f"r{i}", 0, r.kind, r.dtype.ctype, *_types(r, total, single, factors), members, factors),
            )
        )
    # Sums of bytes come last, as no function of an element has a value for them.
    found.sort(key=lambda f: (bool(f[2].factors), -max(m.held.bytes for m in f[2].members)))
    accumulators = [replace(a, number=n) for n, (_, _, a) in enumerate(found)]
    by_name = {a.name: (a, total) for a, (_, total, _) in zip(accumulators, found)}

    # Under the reductions.
    traced = [(a, r) for a, (r, _, _) in zip(accumulators, found) if not a.factors]
    arguments = [_argument(leaf, access, widened=True) for leaf in made.under]
    inner_function = pointwise_function(
        "element", [a for a, _ in arguments], [r.value for _, r in traced], [r.dtype for _, r in traced], fast=False
    )
    # Above them.
    leaves = made.above
    above = [_argument(leaf, access, widened=False) for leaf in leaves]
    for node, number, part in made.results:
        accumulator, total = by_name[f"r{number}"]
        dtype = compute_dtype(node.dtype)
        above.append((Argument(node, f"r{number}_{part}", dtype), _value(accumulator, part, total, dtype)))
    above = list({a.name + str(id(a.node)): (a, text) for a, text in above}.values())
    finish_function = pointwise_function(
        "finish", _distinct([a for a, _ in above]), graph.results, [o.dtype for o in graph.outputs], fast=False
    )
    read = {leaf.attr for leaf in made.under if leaf.op == "input"}
    outputs = tuple(access[o.name] for o in problem.outputs)
    return Accumulation(
        inputs=tuple(access[o.name] for o in problem.inputs if o.name in read),
        accumulators=tuple(accumulators),
        ratio_type=ratio.ctype,
        inner_function=inner_function if traced else "",
        inner_arguments=", ".join([*(text for _, text in arguments), *(f"{a.name}" for a, _ in traced)]),
        finish_function=finish_function,
        finish_arguments=", ".join([*(text for _, text in above), *(f"{y.name}_value" for y in outputs)]),
        outputs=outputs,
        above=tuple(access[leaf.attr] for leaf in leaves if leaf.op == "input"),
    )


def _distinct(arguments: list[Argument]) -> list[Argument]:
    """Nodes that give the same (the mean, asked for twice) are several parameters: of different names."""
    seen: dict[str, int] = {}
    found = []
    for a in arguments:
        count = seen.setdefault(a.name, 0)
        seen[a.name] += 1
        found.append(Argument(a.node, f"{a.name}_{count}" if count else a.name, a.dtype))
    return found


def _members(name: str, r: Reduction, total: DType, wide: bool) -> tuple[Member, ...]:
    if r.kind == "moments":
        return Member(name, total), Member(f"{name}_squares", total), Member(f"{name}_count", total)
    if r.kind == "argmax":
        return Member(name, r.dtype), Member(f"{name}_at", i64 if wide else i32)
    return (Member(name, total),)


def _types(r: Reduction, total: DType, single: bool, factors: tuple[str, ...]) -> tuple[str, str]:
    """The state that a reduction is accumulated in, and what a thread adds up before: of a result, or of a column of several."""
    value = r.dtype.ctype
    state = {
        "sum": f"SumState<{total.ctype}>",
        "max": f"MaxState<{value}>",
        "min": f"MinState<{value}>",
        "argmax": f"ArgmaxState<{value}, Index>",
        "moments": f"MomentState<{total.ctype}>",
    }[r.kind]
    if not single:
        return state, f"ColumnMoments<{value}, ITEMS>" if r.kind == "moments" else "DirectBatch"
    if factors:
        return state, "ByteSumBatch"
    batch = {
        "sum": f"SumBatch<{value}, PACK>",
        "max": f"MaxBatch<{value}, PACK>",
        "min": f"MinBatch<{value}, PACK>",
        "argmax": "DirectBatch",
        "moments": f"MomentBatch<{value}, ITEMS, PACK>",
    }[r.kind]
    return state, batch


def _argument(leaf: Expr, access: dict[str, Access], widened: bool) -> tuple[Argument, str]:
    """The parameter that a leaf becomes, and what is passed for it."""
    if leaf.op == "scalar":
        name = identifier(leaf.attr)
        return Argument(leaf, name, leaf.dtype), name
    if leaf.op == "size":
        return Argument(leaf, f"size_{leaf.attr}", i32), f"size_{leaf.attr}"
    a = access[leaf.attr]
    if widened:
        text = f"{a.name}_wide" if a.kind == "broadcast" else f"{a.name}_wide[e]"
        return Argument(leaf, a.name, compute_dtype(a.dtype)), text
    return Argument(leaf, a.name, a.dtype), f"{a.name}_value"


def _value(a: Accumulator, part: str, total: DType, dtype: DType) -> str:
    """What a node of the graph is, of the states of a result, in the node's dtype."""
    state = f"get<{a.number}>(state)"
    if part == "index":
        return f"static_cast<long long>({state}.position())"
    if a.kind == "moments":
        state += ".squares" if part in ("squares", "variance") else ".sum"
    else:
        state += ".value"
    if part in ("mean", "variance"):
        ratio = f64 if total.kind == "int" else total
        state = f"{convert(state, total, ratio)} / static_cast<{ratio.ctype}>(length)"
        return state if ratio is dtype else f"static_cast<{dtype.ctype}>({state})"
    return convert(state, total, dtype)


def parameters(problem: Problem, made: Accumulation, index_bits: int) -> list[Param]:
    """The kernel's parameters but for workspaces: operands, sizes, strides, scalars, sizes that the graph computes with."""
    graph, v = problem.graph, view(problem)
    params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
    params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
    wide = index_bits == 64 or len(v.sizes) == 1
    sizes = [(f"n{a}", Dim(f"n{a}")) for a in range(len(v.sizes))]
    params += [Integer(*size, 64) if wide else Integer(*size, most=LARGEST) for size in sizes]
    for o in problem.operands:
        params += [Integer.stride(f"{identifier(o.name)}_s{a}") for a, s in enumerate(v.strides[o.name]) if s]
    params += [Scalar(identifier(s.name), s.dtype) for s in graph.scalars]
    params += [Integer(f"size_{n.attr}", Dim(f"size_{n.attr}"), 32) for n in _sizes(problem)]
    return params


def _sizes(problem: Problem) -> list[Expr]:
    return list({n.attr: n for n in problem.graph.nodes if n.op == "size"}.values())


def symbols(problem: Problem) -> dict[str, int]:
    """The integers a launch depends on: sizes n0.. and strides x_s0.. of the view's axes, and sizes the graph computes with."""
    v, whole = view(problem), problem.origin or problem
    found = {f"n{a}": n for a, n in enumerate(v.sizes)}
    for o in problem.operands:
        found |= {f"{o.name}_s{a}": s for a, s in enumerate(v.strides[o.name])}
    return found | {f"size_{n.attr}": whole.sizes[str(n.attr)] for n in _sizes(problem)}


def workspace(made: Accumulation, blocks: Size, states: int) -> list[Param]:
    """Where blocks leave their states, `states` each, and the counters of the blocks that have."""
    found: list[Param] = [Pointer(f"{m.name}_partials", m.held, "", "scratch", blocks * states) for m in made.members]
    return found


def product(v: View, first: int, last: int) -> Size:
    """The product of the sizes of the axes from `first` to below `last`, over the symbols."""
    return prod(Dim(f"n{a}") for a in range(first, last))
