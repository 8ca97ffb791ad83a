"""Source: a generated kernel as text, with what is needed to launch it. The one thing that crosses from codegen downwards."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Union

from kgen.dsl.schedule import Arch
from kgen.dsl.size import Dim, Size, evaluate
from kgen.dsl.types import DType


@dataclass(frozen=True)
class Pointer:
    """A kernel parameter that points to the first element of a tensor; `name` as the generated code has it.

    `operand` names the problem's operand it belongs to. `access` is "in" or "out", "scratch" for a workspace whose
    content does not matter at entry, "counters" for one that is zero at entry and zero again at exit.
    `size` is the number of elements of a scratch or counters pointer.
    """

    name: str
    dtype: DType
    operand: str
    access: Literal["in", "out", "scratch", "counters"]
    size: Size = 0


@dataclass(frozen=True)
class Integer:
    """A kernel parameter whose value follows from the problem: `value` over its symbols (`Schedule.symbols`)."""

    name: str
    value: Size
    bits: Literal[32, 64] = 32


@dataclass(frozen=True)
class Scalar:
    """A kernel parameter that the caller gives with each call, such as alpha or eps (f32, f64, i32 or i64)."""

    name: str
    dtype: DType


Param = Union[Pointer, Integer, Scalar]


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: `grid` in blocks (x, y, z), `block` in threads, dynamic `shared_bytes`, `cluster` in blocks.

    Grid sizes may depend on the problem's symbols; the rest is fixed by the config.
    """

    grid: tuple[Size, Size, Size]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)


#: The number of multiprocessors of the GPU that a launch runs on: a symbol that every launch may use.
SM_COUNT = Dim("SM_COUNT")


@dataclass(frozen=True)
class Workspace:
    """Memory a launch needs beside its operands: for parameter `index`, `bytes` of it, zeroed at the first use if `zeroed`."""

    index: int
    bytes: int
    zeroed: bool


@dataclass(frozen=True)
class Bound:
    """A Source with all its symbols known: the grid, the value of every Integer parameter by index, and the workspaces."""

    grid: tuple[int, int, int]
    integers: dict[int, int]
    workspaces: tuple[Workspace, ...]


@dataclass(frozen=True)
class Source:
    """One kernel in CUDA C++.

    `text` = `header` (a comment) + `includes` + `ptx` (the functions of the PTX layer that the body uses, with inline
    assembly) + `body` (the kernel; no assembly). NVRTC, nvcc and export take `text`; the emulator takes `body` alone and
    brings its own C++ for the rest. `arch` is the least architecture it runs on.
    """

    header: str
    includes: tuple[str, ...]
    ptx: str
    body: str
    entry: str
    params: tuple[Param, ...]
    launch: Launch
    arch: Arch

    @property
    def text(self) -> str:
        """The whole translation unit."""
        includes = "".join(f"#include <{name}>\n" for name in self.includes)
        return "\n".join(part for part in (self.header, includes, self.ptx, self.body) if part)

    def bind(self, symbols: Mapping[str, int]) -> Bound:
        """The launch for given symbols: those of `Schedule.symbols(problem)`, and SM_COUNT."""
        x, y, z = (evaluate(size, symbols) for size in self.launch.grid)
        integers = {i: evaluate(p.value, symbols) for i, p in enumerate(self.params) if isinstance(p, Integer)}
        workspaces = tuple(
            Workspace(i, evaluate(p.size, symbols) * p.dtype.bytes, p.access == "counters")
            for i, p in enumerate(self.params)
            if isinstance(p, Pointer) and p.access in ("scratch", "counters")
        )
        return Bound((x, y, z), integers, workspaces)

    @property
    def digest(self) -> str:
        """SHA-256 of what is compiled: the text without the header comment and `#line`. Stands for this kernel in keys."""
        text = "\n".join((*self.includes, self.ptx, self.body))
        return hashlib.sha256(re.sub(r"^#line.*\n", "", text, flags=re.MULTILINE).encode()).hexdigest()
