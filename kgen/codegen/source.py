"""Source: a generated kernel as text, with what is needed to launch it. The one thing that crosses from codegen downwards."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Literal, Union

from kgen.codegen.layout import laid_out
from kgen.codegen.names import plain
from kgen.dsl.size import Dim, Size, evaluate, values_of
from kgen.dsl.target import Arch
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
    """A kernel parameter whose value follows from the problem: `value` over its symbols (`Schedule.symbols`).

    `most` is the largest value that the kernel is right for, where that is less than its bits hold.
    """

    name: str
    value: Size
    bits: Literal[32, 64] = 32
    most: Union[int, None] = None

    @classmethod
    def stride(cls, name: str, bits: Literal[32, 64] = 64) -> Integer:
        """A stride, named after its operand: its symbol has the plain name."""
        return cls(name, Dim(plain(name)), bits)

    @classmethod
    def inverse(cls, name: str, size: Size) -> Integer:
        """What `divided` (templates/common/index.cuh) divides by `size` with, which is at least 1 wherever there is a launch."""
        return cls(name, (2**63 - 1) // size, 64)


@dataclass(frozen=True)
class Scalar:
    """A kernel parameter that the caller gives with each call under `name`, such as alpha or eps (f32, f64, i32 or i64)."""

    name: str
    dtype: DType


#: How TMA permutes the 16-byte units of a box in shared memory: the span in bytes within which it does.
Swizzle = Literal[0, 32, 64, 128]


@dataclass(frozen=True)
class TensorMap:
    """A kernel parameter `const __grid_constant__ ptx::TensorMap name`: a tensor as the tensor memory accelerator sees it.

    `operand` names the problem's operand that it shows, or the scratch pointer among the parameters. `sizes` and `box` are
    in elements, the contiguous axis first; `strides`, in elements, those of the other axes. What a box reaches beyond the
    sizes is read as zero and not written. Limits: 1 to 5 axes; box sizes 1 to 256; the box's contiguous axis and all
    strides multiples of 16 bytes; the address aligned to 16 bytes; where it stores, the contiguous size too: stores write no
    less (seen on an H200; loads are cut at the element). Source: CUDA driver API, cuTensorMapEncodeTiled.
    """

    name: str
    dtype: DType
    operand: str
    access: Literal["in", "out"]
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...]
    swizzle: Swizzle = 0


Param = Union[Pointer, Integer, Scalar, TensorMap]


@dataclass(frozen=True)
class Limit:
    """`value`, over the problem's symbols, is at most `most` wherever a source is right: it counts in so many bits, or has
    memory for so much; and at least `least`, where it has no branch for less. What a parameter holds is the Integer's to say."""

    value: Size
    most: Union[int, None] = None
    least: int = 0

    def holds(self, symbols: Mapping[str, int]) -> bool:
        value = evaluate(self.value, symbols)
        return self.least <= value and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: `grid` in blocks (x, y, z), `block` in threads, dynamic `shared_bytes`, `cluster` in blocks.

    Grid sizes may depend on the problem's symbols; the rest is fixed by the config. `cooperative`: blocks wait for each
    other, so all of them must be on the GPU at once. `persistent`: the kernel is right for fewer clusters along x too, and is
    given no more than the GPU has room for at once. `pdl`: it may start while the kernel before it in its stream ends
    (programmatic dependent launch), as it waits (`ptx::griddepcontrol_wait`) before it touches memory.
    """

    grid: tuple[Size, Size, Size]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    persistent: bool = False
    pdl: bool = False


#: The number of multiprocessors of the GPU that a launch runs on: a symbol that every launch may use.
SM_COUNT = Dim("SM_COUNT")


@dataclass(frozen=True)
class Workspace:
    """Memory a launch needs beside its operands: for parameter `index`, `bytes` of it, zeroed at the first use if `zeroed`."""

    index: int
    bytes: int
    zeroed: bool


@dataclass(frozen=True)
class Extent:
    """The sizes and strides of a TensorMap, all known."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Bound:
    """A Source with all its symbols known: the grid, Integer parameters and TensorMaps by index, and the workspaces."""

    grid: tuple[int, int, int]
    integers: dict[int, int]
    workspaces: tuple[Workspace, ...]
    maps: dict[int, Extent]


class _Binding:
    """`Source.bind` of a grid and parameters, with what is the same for all problems found once."""

    def __init__(self, grid: tuple[Size, Size, Size], params: tuple[Param, ...]) -> None:
        integers = {i: p.value for i, p in enumerate(params) if isinstance(p, Integer)}
        maps = {i: (p.sizes, p.strides) for i, p in enumerate(params) if isinstance(p, TensorMap)}
        beside = {i: p for i, p in enumerate(params) if isinstance(p, Pointer) and p.access in ("scratch", "counters")}
        self._integers, self._maps = (*integers,), (*maps,)
        self._workspaces = [(i, p.dtype.bytes, p.access == "counters") for i, p in beside.items()]
        sizes = tuple(p.size for p in beside.values())
        self._sizes = grid, (*integers.values(),), sizes, (*maps.values(),)

    def __call__(self, symbols: Mapping[str, int]) -> Bound:
        grid, integers, sizes, extents = values_of(self._sizes, symbols)
        workspaces = tuple(Workspace(i, n * width, zeroed) for (i, width, zeroed), n in zip(self._workspaces, sizes))
        maps = dict(zip(self._maps, starmap(Extent, extents)))
        return Bound(grid, dict(zip(self._integers, integers)), workspaces, maps)


@dataclass(frozen=True)
class Source:
    """One kernel in CUDA C++.

    `text` = `header` (a comment) + `includes` + `ptx` (the functions of the PTX layer that the body uses, with inline
    assembly) + `body` (the kernel; no assembly). NVRTC, nvcc and export take `text`; the emulator takes `body` alone and
    brings its own C++ for the rest. `arch` is the least architecture it runs on, `limits` how large a problem may be.
    """

    header: str
    includes: tuple[str, ...]
    ptx: str
    body: str
    entry: str
    params: tuple[Param, ...]
    launch: Launch
    arch: Arch
    limits: tuple[Limit, ...] = ()

    @property
    def text(self) -> str:
        """The whole translation unit."""
        includes = "".join(f"#include <{name}>\n" for name in self.includes)
        return "\n".join(part for part in (self.header, includes, self.ptx, self.body) if part)

    def bind(self, symbols: Mapping[str, int]) -> Bound:
        """The launch for given symbols: those of `Schedule.symbols(problem)`, and SM_COUNT."""
        return self._bound(symbols)

    @functools.cached_property
    def _bound(self) -> _Binding:
        return _Binding(self.launch.grid, self.params)

    @property
    def digest(self) -> str:
        """SHA-256 of what is compiled: the text without the header comment and `#line`. Stands for this kernel in keys."""
        return _digest(self.includes, self.ptx, self.body)

    @functools.cached_property
    def loaded_as(self) -> str:
        """What tells loaded kernels apart: the compiled text, the parameters and the launch. A str, as that keeps its hash."""
        return f"{self.digest} {self.params} {self.launch}"


@functools.lru_cache(maxsize=256)
def _digest(includes: tuple[str, ...], ptx: str, body: str) -> str:
    lines = "\n".join((*includes, ptx, body)).split("\n")
    return hashlib.sha256("\n".join(line for line in lines if not line.startswith("#line")).encode()).hexdigest()


def joined(sources: Sequence[Source]) -> str:
    """Kernels as one translation unit, as a person reads it; of several, each is in a namespace of the name of its entry."""
    if len(sources) == 1:
        return laid_out(sources[0].text)
    includes = "".join(f"#include <{name}>\n" for name in dict.fromkeys(n for s in sources for n in s.includes))
    kernels = (
        "\n".join(part for part in (s.header, f"namespace {s.entry}_kernel {{\n", s.ptx, s.body, "}") if part)
        + f"  // namespace {s.entry}_kernel\n"
        for s in sources
    )
    return laid_out("\n".join((includes, *kernels)))
