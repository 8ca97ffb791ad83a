"""Kernel: one kernel of an export as the launch function sees it: its checks, workspaces and launch, as text for templates."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Scalar, Source, TensorMap
from kgen.dsl.size import Size, evaluate, symbols_of
from kgen.export.requirements import Requirement, Requirements, used_symbols
from kgen.export.sizes import cxx, factors, wrapped
from kgen.export.variants import Served
from kgen.gpu.tensor_map import DATA_TYPES

#: Workspaces start at such addresses, as memory from cudaMalloc does. Bytes.
WORKSPACE_ALIGN = 256
#: Dynamic shared memory that a kernel may have without asking. Bytes.
_SHARED_FREE = 48 * 1024
#: Blocks of a cluster that a kernel may have without asking.
_PORTABLE_CLUSTER = 8
_GRID_LIMITS = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Kernel:
    """One kernel: `names` are what the C functions call operands and scalars, `number` is its place among several.

    `binary`: it is loaded as a binary, not compiled with the launch function.
    """

    served: Served
    requirements: Requirements
    names: Mapping[str, str]
    operands: tuple[Pointer, ...]
    number: int | None = None
    binary: bool = False

    @property
    def source(self) -> Source:
        return self.served.source

    @property
    def launch(self) -> Launch:
        return self.source.launch

    @property
    def namespace(self) -> str:
        """The namespace of the device code."""
        name = f"{self.served.origin.graph.name}_kernel"
        return name if self.number is None else f"{name}_{self.number}"

    @property
    def host(self) -> str:
        """The namespace of what launches it, where it is one of several."""
        return f"launch_{self.number}"

    @property
    def entry(self) -> str:
        """What is launched: the kernel's qualified name, or the variable that holds its handle."""
        return "kernel" if self.binary else f"{self.namespace}::{self.source.entry}"

    @property
    def array(self) -> str:
        """The name of the array with its binary."""
        return "BINARY" if self.number is None else f"BINARY_{self.number}"

    @property
    def tensor_maps(self) -> list[TensorMap]:
        return tensor_maps(self.source)

    @functools.cached_property
    def workspaces(self) -> tuple[Pointer, ...]:
        return workspaces(self.source)

    @property
    def counted(self) -> bool:
        """Whether the workspace must be zero at first."""
        return any(p.access == "counters" for p in self.workspaces)

    @functools.cached_property
    def symbols(self) -> dict[str, int]:
        """The sizes and strides that the launch depends on, with their values for the problem it was made for."""
        known = self.served.config.symbols(self.served.problem)
        return {name: known[name] for name in used_symbols(self.source, known)}

    @functools.cached_property
    def workspace_symbols(self) -> list[str]:
        used = frozenset().union(*(symbols_of(p.size) for p in self.workspaces))
        return [name for name in self.symbols if name in used]

    @property
    def arguments(self) -> list[str]:
        """What the kernel is launched with."""
        return [self._argument(p) for p in self.source.params]

    def _argument(self, param: Param) -> str:
        if isinstance(param, Integer):
            return f"static_cast<int>({cxx(param.value)})" if param.bits == 32 else self._wide(param.value)
        own = param.operand if isinstance(param, Pointer) else param.name if isinstance(param, Scalar) else ""
        return self.names.get(own, param.name)

    def _wide(self, value: Size) -> str:
        """A 64-bit argument; of exactly that type where no parameter's type is known."""
        return f"int64_t{{{cxx(value)}}}" if self.binary else cxx(value)

    # The checks.

    @functools.cached_property
    def emptying(self) -> list[str]:
        """The symbols that leave the grid without a block when they are 0."""
        return [name for name in self.symbols if any(self._blocks(size, name) == 0 for size in self.launch.grid)]

    def _blocks(self, size: Size, zero: str) -> int:
        if zero not in symbols_of(size):
            return 1
        return evaluate(size, {**self.symbols, SM_COUNT.name: 1, zero: 0})

    @property
    def checks(self) -> list[tuple[str, str]]:
        """Comment and statement of every other refusal, in order."""
        alignment = self.requirements.alignment
        found = [
            ("", [f"{p.name} == nullptr" for p in self.operands]),
            (
                "Vectors are loaded and stored whole.",
                [f"!is_aligned({p.name}, {alignment[p.operand]})" for p in self.operands if alignment[p.operand] > 1],
            ),
        ]
        if self.workspaces:
            found.append(("", ["workspace == nullptr", f"!is_aligned(workspace, {WORKSPACE_ALIGN})"]))
        for relation, comment in (
            ("a multiple of", ""),
            ("equal to", "The kernel was generated for these."),
            ("at most", "Larger problems need a kernel that counts further."),
            ("at least", "Smaller ones need a kernel that has a branch for them."),
        ):
            found.append((comment, [refusal(r) for r in self.requirements.sizes if r.relation == relation]))
        return [(comment, refuse(conditions)) for comment, conditions in found if conditions]

    @property
    def served_where(self) -> str:
        """The statement that returns whether it serves a launch, one of several's."""
        aligned = self.requirements.alignment
        met = [f"is_aligned({self.names[n]}, {a})" for n, a in aligned.items() if a > 1 and self._has(n)]
        met += [condition(r) for r in self.requirements.sizes]
        return wrapped("      return ", met or ["true"], ";", separator=" && ")

    def _has(self, operand: str) -> bool:
        return any(p.operand == operand for p in self.operands)

    def emptied(self, known: Sequence[str]) -> str:
        """The condition under which there is nothing to compute, other than that one of `known` is 0."""
        return " || ".join(f"{name} == 0" for name in self.emptying if name not in known)

    # The launch.

    @property
    def asks_shared(self) -> bool:
        """Whether a block has so much shared memory that the kernel has to be allowed to."""
        return self.launch.shared_bytes > _SHARED_FREE

    @property
    def asks_cluster(self) -> bool:
        """Whether a cluster has so many blocks that the kernel has to be allowed to."""
        return math.prod(self.launch.cluster) > _PORTABLE_CLUSTER

    @property
    def attributes(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """What a launch needs beyond grid, block and shared memory: kind, and its fields with their values."""
        found = []
        if self.launch.cluster != (1, 1, 1):
            fields = [(f"clusterDim.{axis}", size) for axis, size in zip("xyz", self.launch.cluster)]
            found.append(("cudaLaunchAttributeClusterDimension", fields))
        if self.launch.cooperative:
            found.append(("cudaLaunchAttributeCooperative", [("cooperative", 1)]))
        if self.launch.pdl:
            allowed = [("programmaticStreamSerializationAllowed", 1)]
            found.append(("cudaLaunchAttributeProgrammaticStreamSerialization", allowed))
        return found

    @property
    def call(self) -> str:
        """The statement that launches the kernel."""
        function = "launch_kernel" if self.binary else "cudaLaunchKernelEx"
        return wrapped(f"  return {function}(", ["&config", self.entry, *self.arguments], ");")

    @property
    def workspace_return(self) -> str:
        """The statement that returns the size of the workspace."""
        parts = [f"workspace_part({size})" for _, _, size in self.places]
        return wrapped("  return ", parts, ";", separator=" + ")

    @property
    def grid(self) -> list[tuple[str, str, int, bool]]:
        """Name, expression, limit, and whether it varies, of the three sizes of the grid."""
        sizes = zip(("grid_x", "grid_y", "grid_z"), self.launch.grid, _GRID_LIMITS)
        return [(name, cxx(size), limit, not isinstance(size, int)) for name, size, limit in sizes]

    @property
    def needs_sm_count(self) -> bool:
        shown = [size for p in self.tensor_maps for size in (*p.sizes, *p.strides)]
        return any(SM_COUNT.name in symbols_of(size) for size in (*self.launch.grid, *shown))

    @property
    def workspace_needs_sm_count(self) -> bool:
        return any(SM_COUNT.name in symbols_of(p.size) for p in self.workspaces)

    @property
    def places(self) -> list[tuple[str, str, str]]:
        """Name, C++ type and bytes of each workspace, in their order in memory."""
        return [(p.name, p.dtype.ctype, cxx(p.size * p.dtype.bytes)) for p in self.workspaces]

    @property
    def map_type(self) -> str:
        """The kernel's type of a tensor map."""
        return "CUtensorMap" if self.binary else f"{self.namespace}::ptx::TensorMap"

    @property
    def maps(self) -> list[tuple[str, str]]:
        """Name of each tensor map, and the statement that encodes it; the first stride is that of the contiguous axis."""
        found: list[tuple[str, str]] = []
        for p in self.tensor_maps:
            shown = next((o.name for o in self.operands if o.operand == p.operand), p.operand)
            swizzle = f"{p.swizzle}B" if p.swizzle else "NONE"
            width = p.dtype.bytes
            lists = (map(cxx, p.sizes), (cxx(s * width) for s in (1, *p.strides)), map(str, p.box))
            items = [f"&{p.name}", f"CU_TENSOR_MAP_DATA_TYPE_{DATA_TYPES[p.dtype]}", f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"]
            items += [shown, *("{" + ", ".join(texts) + "}" for texts in lists)]
            start = "if (mapped == cudaSuccess) mapped" if found else "cudaError_t mapped"
            found.append((p.name, wrapped(f"  {start} = encode_tensor_map(", items, ");")))
        return found

    def uses(self, function: str) -> bool:
        """Whether a size is written with `ceil_div`, `std::min` or `std::max`."""
        sizes = [*self.launch.grid, *(p.size for p in self.workspaces)]
        sizes += [size for p in self.tensor_maps for size in (*p.sizes, *p.strides)]
        sizes += [r.value for r in self.requirements.sizes]
        sizes += [p.value for p in self.source.params if isinstance(p, Integer)]
        return any(function in cxx(size) for size in sizes)


def tensor_maps(source: Source) -> list[TensorMap]:
    """What the launch function encodes: operands and workspaces as the tensor memory accelerator sees them."""
    return [p for p in source.params if isinstance(p, TensorMap)]


def workspaces(source: Source) -> tuple[Pointer, ...]:
    """Counters first: where they lie does not depend on the size of the others."""
    found = [p for p in source.params if isinstance(p, Pointer) and p.access in ("scratch", "counters")]
    return tuple(sorted(found, key=lambda p: p.access != "counters"))


def refuse(conditions: Sequence[str]) -> str:
    """The statement that refuses a launch where one of the conditions is met."""
    line = f"  if ({' || '.join(conditions)}) return cudaErrorInvalidValue;"
    if len(line) <= 120:
        return line
    return wrapped("  if (", conditions, ") {", separator=" || ") + "\n    return cudaErrorInvalidValue;\n  }"


def refusal(requirement: Requirement) -> str:
    """The condition in C++ under which a requirement is not met."""
    return _compared(requirement, {"a multiple of": "!=", "equal to": "!=", "at most": ">", "at least": "<"}, "!")


def condition(requirement: Requirement) -> str:
    """The condition in C++ under which a requirement is met."""
    met = _compared(requirement, {"a multiple of": "==", "equal to": "==", "at most": "<=", "at least": ">="}, "")
    return f"({requirement.along} == 1 || {met})" if requirement.along is not None else met


def _compared(requirement: Requirement, signs: Mapping[str, str], negation: str) -> str:
    value, bound, sign = cxx(requirement.value), requirement.bound, signs[requirement.relation]
    if requirement.relation == "a multiple of":
        return f"{value} % {bound} {sign} 0"
    sizes = factors(requirement.value)
    if requirement.relation == "at most" and len(sizes) > 1:
        return f"{negation}product_at_most({{{', '.join(map(cxx, sizes))}}}, {bound})"
    return f"{value} {sign} {'INT32_MAX' if bound == 2**31 - 1 else bound}"
