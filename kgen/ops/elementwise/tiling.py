"""Tiling: a pointwise problem as tiles of two dimensions, where inputs are contiguous along another one than the output."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kgen.dsl.problem import Problem
from kgen.ops.elementwise.view import Column, View, view


def row_dimension(v: View) -> int | None:
    """The dimension along which inputs are contiguous that are not so along the last; None where there is none."""
    last = len(v.sizes) - 1
    found: dict[int, int] = {}
    for c in v.inputs:
        if c.strides[last] not in (0, 1) and not c.inner:
            for d in range(last):
                if c.strides[d] == 1:
                    found[d] = found.get(d, 0) + c.dtype.bytes
    return max(found, key=lambda d: found[d]) if found else None


@dataclass(frozen=True)
class Tiling:
    """A problem as tiles: `row` is the dimension of the rows; `transposed` passes through shared memory, `direct` does not."""

    view: View
    row: int
    transposed: tuple[Column, ...]
    direct: tuple[Column, ...]

    @property
    def rows(self) -> int:
        return self.view.sizes[self.row]

    @property
    def columns(self) -> int:
        return self.view.sizes[-1]

    @property
    def outer(self) -> tuple[int, ...]:
        """The other dimensions."""
        return tuple(d for d in range(len(self.view.sizes) - 1) if d != self.row)

    @property
    def in_bytes(self) -> int:
        """Bytes of an element of the widest input that is transposed."""
        return max(c.dtype.bytes for c in self.transposed)

    @property
    def out_bytes(self) -> int:
        return max(c.dtype.bytes for c in self.view.outputs)


@functools.lru_cache(maxsize=1024)
def tiling(problem: Problem) -> Tiling | None:
    """The tiles of a problem; None where nothing is transposed."""
    v = view(problem)
    row = row_dimension(v)
    if row is None or v.two == row or any(c.inner for c in v.columns):
        return None
    transposed = tuple(c for c in v.inputs if c.strides[row] == 1 and c.strides[-1] not in (0, 1))
    return Tiling(v, row, transposed, tuple(c for c in v.inputs if c not in transposed))
