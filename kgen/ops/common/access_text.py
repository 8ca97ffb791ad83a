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

    @classmethod
    def output(cls, o: Operand, row: str) -> AccessText:
        """That of an output, by vectors where these lie along its last axis."""
        name, kind = identifier(o.name), "vector" if o.strides[-1] == 1 else "strided"
        return cls(name, o.dtype.ctype, name, kind, row, f"{name}_s{len(o.shape) - 1}")
