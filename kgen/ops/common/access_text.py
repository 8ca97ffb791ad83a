"""AccessText: an operand of a problem that is reached by index, as the templates read or write it."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.codegen.names import identifier
from kgen.dsl.problem import Operand


@dataclass(frozen=True)
class AccessText:
    """By "vector", "strided", or "one" element for all columns; the offset of its row, and the stride of its columns."""

    name: str
    ctype: str
    pointer: str
    kind: str
    row: str
    stride: str

    def address(self, column: str) -> str:
        """Where the element at a column is, or the one for all."""
        at = {"vector": column, "strided": f"steps({column}, {self.stride})", "one": ""}[self.kind]
        return " + ".join(filter(None, (self.pointer, self.row, at)))

    @property
    def step(self) -> str:
        """How far neighbours along the columns are from each other."""
        return {"vector": "1", "strided": self.stride, "one": "0"}[self.kind]

    def reader(self, width: str, load: str = "") -> str:
        """The C++ type that loads `width` elements (templates/common/operand.cuh)."""
        unit = self.kind == "vector"
        return f"UnitInput<{self.ctype}, {width}{load}>" if unit else f"StridedInput<{self.ctype}, {width}>"

    def writer(self, width: str, store: str = "") -> str:
        """The C++ type that stores them."""
        unit = self.kind == "vector"
        return f"UnitOutput<{self.ctype}, {width}{store}>" if unit else f"StridedOutput<{self.ctype}, {width}>"

    @classmethod
    def output(cls, o: Operand, row: str) -> AccessText:
        """That of an output, by vectors where these lie along its last axis."""
        name, kind = identifier(o.name), "vector" if o.strides[-1] == 1 else "strided"
        return cls(name, o.dtype.ctype, name, kind, row, f"{name}_s{len(o.shape) - 1}")
