"""What the templates of pointwise problems are given: how columns are reached, the parameters, and the function of an element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kgen.codegen.expression import Argument, pointwise_function, walk_to
from kgen.codegen.names import identifier
from kgen.codegen.source import Integer, Param, Pointer, Scalar
from kgen.dsl.expr import walk
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size
from kgen.dsl.types import i32
from kgen.ops.common.random_stream import stream
from kgen.ops.elementwise.items import EACH, Slot
from kgen.ops.elementwise.view import Column, View

#: How one vector of a column is reached.
Along = Literal["", "unit", "half", "stride"]
Kind = Literal["vector", "half", "strided", "broadcast", "scalar", "number"]


@dataclass(frozen=True)
class Term:
    """An outer dimension that moves a column: by `stride` elements an index, 1 where empty; backwards if it is `flipped`."""

    dimension: int
    stride: str
    flipped: bool = False


@dataclass(frozen=True)
class Access:
    """How the template reaches a column.

    `terms` are the outer dimensions that move it: the index, and the stride's name, empty for 1; `along` is how the last
    dimension does. `pointer` is empty for numbers, `stream` (seed and offset) for all but random ones, whose first number of
    a vector is a multiple of `align`. `element` is element e of the vector of item i in C++, which is kept in `slot`;
    `policy` how such a vector is loaded or stored (templates/common/operand.cuh).
    """

    name: str
    pointer: str
    ctype: str
    kind: Kind
    terms: tuple[Term, ...]
    along: Along
    stride: str
    offset: bool
    stream: str
    align: int
    element: str
    slot: Slot
    policy: str


@dataclass(frozen=True)
class Transposed(Access):
    """An access through shared memory: the C++ type of its tile, and where that starts.

    `box` is where TMA leaves its lines, and `box_bytes` what they take.
    """

    tile: str
    start: int
    box: int
    box_bytes: int


@dataclass(frozen=True)
class Direct(Access):
    """An access of what is not transposed; `part` is how the part of a vector that a tile has is loaded or stored."""

    part: str

    @classmethod
    def input(cls, a: Access, aligned: bool) -> Direct:
        found = f"{'Unit' if aligned else ''}PartInput<{a.ctype}, OUT>"
        return cls(**vars(a), part=f"BroadcastPartInput<{a.ctype}>" if a.kind == "broadcast" else found)

    @classmethod
    def output(cls, a: Access, aligned: bool, store: str) -> Direct:
        return cls(
            **vars(a), part=f"UnitPartOutput<{a.ctype}, OUT{store}>" if aligned else f"PartOutput<{a.ctype}, OUT>"
        )


def access(c: Column, view: View, slot: Slot = EACH, policy: str = "") -> Access:
    """The access of an input, number or output; `policy` is that of its vectors, ", LoadEvictLast" for one."""
    *outer, inner = c.strides
    last = len(view.sizes) - 1
    number = c.operand is None
    flipped, strides = view.flipped(c), view.strides_of(c)
    alongs: dict[object, Along] = {0: "", 1: "unit"}
    kinds: dict[object, Kind] = {0: "broadcast", 1: "vector"}
    along, kind = alongs.get(inner, "stride"), "number" if number else kinds.get(inner, "strided")
    if c.inner == "half":
        along, kind = "half", "half"
    if c.leaf is None and kind == "broadcast":
        along, kind = "stride", "strided"
    if c.leaf is not None and not number and not any(c.strides):
        kind, along = "scalar", ""
    stride = f"{strides}_s{last}"
    e = "(e ^ 1)" if c.inner == "pairs" else "e"
    random = c.leaf is not None and c.leaf.origin.op == "random"
    numbers = stream(c.leaf.origin) if random and c.leaf is not None else ""
    steps = [s for s, n in zip(outer, view.sizes) if n > 1]
    align = math.gcd(4, c.offset, *steps)
    moved = {"": "", "unit": f" + {e}", "stride": f" + {e} * {stride}", "half": ""}[along]
    held = c.vectors or c.name
    element = {
        "vector": f"{held}_items[{slot.index}][{e.strip('()')}]",
        "strided": f"{held}_items[{slot.index}][{e.strip('()')}]",
        "half": f"{c.name}_items[{slot.index}][e / 2]",
        "broadcast": f"{held}_items[{slot.index}]",
        "scalar": f"{held}_value",
        "number": f"static_cast<int>({c.name}_first{moved})",
    }[kind]
    if random:
        one = f"random_vector<1, 1>({c.name}_first{moved}, {numbers})[0]"
        element = f"{c.name}_items[{e.strip('()')}]" if along == "unit" else one
    return Access(
        name=c.name,
        pointer="" if c.operand is None else identifier(c.operand.name),
        ctype=c.dtype.ctype,
        kind=kind,
        terms=tuple(
            Term(d, "" if number and s in (1, -1) and (s == 1) != backwards else f"{strides}_s{d}", backwards)
            for d, s, backwards in ((d, s, flipped and d == view.two) for d, s in enumerate(outer))
            if s != 0
        ),
        along=along,
        stride=stride,
        offset=c.offset != 0 and not flipped,
        stream=numbers,
        align=align,
        element=element,
        slot=slot,
        policy=_policy(c, kind, policy),
    )


def _policy(c: Column, kind: Kind, vectors: str) -> str:
    """The C++ type by which a vector of a column is loaded, or stored where the column is no leaf's."""
    way, ctype = "Output" if c.leaf is None else "Input", c.dtype.ctype
    of = {"vector": f"Unit{way}<{ctype}, PACK{vectors}>", "half": f"HalfInput<{ctype}, PACK{vectors}>"}
    of |= {"strided": f"Strided{way}<{ctype}, PACK>", "broadcast": f"BroadcastInput<{ctype}>"}
    return of.get(kind, "")


def parameters(
    problem: Problem,
    view: View,
    accesses: Sequence[Access],
    bits: Literal[32, 64],
    outer_bits: Literal[32, 64],
    inverses: Mapping[str, Size],
) -> tuple[Param, ...]:
    """Pointers, sizes n0.. (of 64 bits where there is one alone), strides and offsets that the accesses use, and scalars.

    `outer_bits` are those of the strides of outer dimensions; `inverses` what numbers of elements are divided by, by name.
    """
    graph, rank = problem.graph, len(view.sizes)
    params: list[Param] = [Pointer(identifier(o.name), o.dtype, o.name, "in") for o in problem.inputs]
    params += [Pointer(identifier(o.name), o.dtype, o.name, "out") for o in problem.outputs]
    params += [Integer(f"n{d}", Dim(f"n{d}"), 64 if rank == 1 else bits) for d in range(rank) if d != view.two]
    params += [Integer.inverse(f"{name}_inverse", size) for name, size in inverses.items()]
    used: dict[str, Literal[32, 64]] = {}
    for a in accesses:
        used |= dict.fromkeys((term.stride for term in a.terms if term.stride), outer_bits)
        used |= dict.fromkeys([a.stride] * (a.along == "stride") + [f"{a.name}_offset"] * a.offset, 64)
    params += [Integer.stride(name, of) for name, of in used.items()]
    params += [Integer(node.attr, Dim(node.attr)) for node, _ in view.lowered.sizes]
    return (*params, *(Scalar(identifier(s.name), s.dtype) for s in graph.scalars))


def function(
    problem: Problem, view: View, name: str = "compute", made: Sequence[Argument] = (), given: Sequence[Argument] = ()
) -> tuple[str, list[str]]:
    """The operator for one element in C++, or what is `made` for it, and the names of the arguments but the results.

    They are leaves, then numbers, then of what is `given`, computed before, that which is used.
    """
    graph = problem.graph
    fast = all(o.dtype.bits <= 16 for o in problem.outputs)
    results = [a.node for a in made] or view.lowered.results
    scalars = {n.attr: n for n in walk(view.lowered.results) if n.op == "scalar"}
    known = [Argument(x.node, x.name, x.node.dtype) for x in view.lowered.leaves]
    known += [Argument(scalars[s.name], identifier(s.name), s.dtype) for s in graph.scalars if s.name in scalars]
    known += [Argument(node, node.attr, i32) for node, _ in view.lowered.sizes]
    known += given
    by_node = {id(a.node): a for a in known}
    used = {id(node) for result in results for node in walk_to(result, by_node)}
    arguments = [a for a in known if id(a.node) in used]
    dtypes = [a.dtype for a in made] or [o.dtype for o in graph.outputs]
    return pointwise_function(name, arguments, results, dtypes, fast), [a.name for a in arguments]
