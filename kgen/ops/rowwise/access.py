"""How the row-wise templates reach an operand, and the C++ for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.codegen.names import identifier
from kgen.dsl.problem import Operand
from kgen.dsl.types import DType
from kgen.ops.common.memory_bound import LOADS, STORES

if TYPE_CHECKING:
    from kgen.ops.rowwise.cluster import RowwiseCluster
    from kgen.ops.rowwise.rowwise import Rowwise
    from kgen.ops.rowwise.span import RowwiseSpan


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
class Reached:
    """An access as the templates write it.

    In the loop over a thread's vectors, of which number v begins at `column`: `arrives` is the statement that loads one where it
    is kept, `vector` what is computed with; `stored` the statement that stores a result. What is `shared` lies in shared
    memory, which NAME_row points into.
    """

    access: Access
    rank: int
    arrives: str
    vector: str
    stored: str
    shared: bool = False

    @property
    def name(self) -> str:
        return self.access.name

    @property
    def ctype(self) -> str:
        return self.access.ctype

    @property
    def bytes(self) -> int:
        return self.access.bytes

    @property
    def kind(self) -> str:
        return self.access.kind

    @property
    def moving(self) -> bool:
        return bool(self.access.moving)

    def row(self, row: str = "row") -> str:
        """Where a row begins."""
        return " + ".join([self.name, *self.offsets(row)])

    def offsets(self, row: str = "row") -> list[str]:
        """How far a row is from the operand's start, in elements: terms of a sum."""
        return [f"{_index(row, d, self.rank)} * {self.name}_s{d}" for d in self.access.moving]

    def element(self) -> str:
        """Where the element at `column` of the row is."""
        return f"{self.name}_row + column" if self.shared else f"{self.row()} + column{self._stride}"

    @property
    def place(self) -> str:
        """What a thread keeps of it of a whole row, declared: the pointer that `shared` memory is found by, or registers."""
        if "_own" not in self.vector:
            return f"Vector<{self.ctype}, PACK> {self.name}_items[PARTS * VECTORS]"
        own = f"reinterpret_cast<{self.ctype}*>(shared + {self.name}_AT) + threadIdx.x * PACK"
        return f"{self.ctype}* const {self.name}_own = {own}"

    @property
    def _stride(self) -> str:
        return f" * {self.name}_s{self.rank - 1}" if self.access.strided else ""

    @classmethod
    def of(
        cls, a: Access, rank: int, config: Rowwise | RowwiseCluster | RowwiseSpan, length: str, ragged: bool
    ) -> Reached:
        """`ragged`: rows end within vectors."""
        width = "WIDTH" if config.shift else "PACK"
        limit = f", {length} - column" if ragged else ""
        stride = f" * {a.name}_s{rank - 1}" if a.strided else ""
        at = f"{a.name}_row + column{stride}"
        if config.shift and a.kind == "column":
            loaded = f"load_anywhere<{width}>({a.name}_row, column, {length})"
        elif a.strided:
            loaded = f"load_strided<{width}>({at}, {a.name}_s{rank - 1}, {length} - column)"
        else:
            policy = LOADS[config.load] if a.kind == "full" else ""
            loaded = f"load_vector<{width}{policy}>({at}{limit})"
        held = f"{a.name}_items[v]"
        if config.shift:
            held = f"vector_or_edge<WIDTH>({held}, {a.name}_edge)"
        vector = held if a.kind == "full" or config.keep == "none" else loaded
        if a.kind == "full" and config.keep == "shared":
            vector = _staged(a, f"stage + {a.name}_AT", "v * THREADS + threadIdx.x")
        elif a.kind == "full" and config.keep == "ring":
            loaded = _staged(a, f"slot + {a.name}_AT", "v * 32 + lane")
        elif a.kind == "column" and config.columns == "early":
            vector = held = f"{a.name}_items[{'part * VECTORS + v' if config.keep == 'ring' else 'v'}]"
        arrives = f"{held} = {loaded}"
        if a.kind == "column" and config.columns == "shared":
            place = f"{a.name}_own + (part * VECTORS + v) * (32 * WARPS * PACK)"
            vector, arrives = f"load_vector<PACK>({place})", f"store_vector<PACK>({place}, {loaded})"
        if a.strided:
            stored = f"store_strided<{width}>({at}, {a.name}_vector, {a.name}_s{rank - 1}, {length} - column)"
        else:
            stored = f"store_vector<{width}{STORES[config.store]}>({at}, {a.name}_vector{limit})"
        return cls(a, rank, arrives, vector, stored, a.kind == "full" and config.keep == "span")


def _staged(a: Access, base: str, number: str) -> str:
    """A vector of shared memory, by its number among those of the operand."""
    return f"staged_vector<{a.ctype}, PACK>({base}, {number})"


def _index(row: str, d: int, rank: int) -> str:
    """The index of a row along an outer dimension."""
    inner = [f"n{e}" for e in range(d + 1, rank - 1)]
    found = f"{row} / ({' * '.join(inner)})" if inner else row
    if d > 0:
        found += f" % n{d}"
    return found if found == row else f"({found})"


def offsets(kept: Sequence[Access], elements: int) -> tuple[tuple[str, int], ...]:
    """Each operand, and where it starts in a stage of shared memory, in bytes."""
    starts = itertools.accumulate((a.bytes * elements for a in kept), initial=0)
    return tuple(zip((a.name for a in kept), starts))
