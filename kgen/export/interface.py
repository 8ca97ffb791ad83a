"""Interface: the C functions an exported kernel is called through, and what they check, as text for the templates."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kgen.codegen.names import apart, identifier
from kgen.codegen.render import declaration
from kgen.codegen.source import SM_COUNT, Integer, Launch, Param, Pointer, Scalar, Source, TensorMap
from kgen.dsl.errors import ArgumentError
from kgen.dsl.size import Dim, Size, evaluate, symbols_of
from kgen.export.requirements import Requirement, Requirements, requirements, used_symbols
from kgen.export.sizes import cxx, factors, wrapped
from kgen.export.variants import Served
from kgen.gpu.tensor_map import DATA_TYPES

#: What the launch function and the test call their own; an operand of that name would clash.
_RESERVED = frozenset(
    {"stream", "workspace", "config", "attributes", "sm_count", "grid_x", "grid_y", "grid_z", "allowed", "counted"}
    | {"mapped", "at", "passed", "yields", "test_case", "launch_arguments", "valid_arguments", "workspace_size"}
)
#: Workspaces start at such addresses, as memory from cudaMalloc does. Bytes.
WORKSPACE_ALIGN = 256
_GRID_LIMITS = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Interface:
    """The launch function of a source: its parameters are the operands, the symbols, the scalars, a workspace, a stream."""

    served: Served

    @property
    def source(self) -> Source:
        return self.served.source

    @property
    def launch(self) -> Launch:
        return self.source.launch

    @property
    def name(self) -> str:
        """The operator's: the files, the namespace of the kernel and the functions are called after it."""
        return self.served.origin.graph.name

    @property
    def kernel(self) -> str:
        """The kernel's qualified name."""
        return f"{self.name}_kernel::{self.source.entry}"

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """What the C functions call operands and scalars: their own names, where neither C nor another parameter has them."""
        own = [s.name for s in (*self.served.origin.operands, *self.scalars)]
        parts = [p.name for p in (*self.workspaces, *self.tensor_maps)]
        found = apart(map(identifier, own), [*self.symbols, *parts, *(f"{name}_start" for name in parts)])
        return {name: found[identifier(name)] for name in own}

    @functools.cached_property
    def operands(self) -> tuple[Pointer, ...]:
        """The pointers that the caller gives: one for each operand that the kernel has pointers or maps of."""
        params = [p for p in self.source.params if isinstance(p, (Pointer, TensorMap))]
        shown = {p.operand: p for p in params if p.access in ("in", "out")}
        made = [(o.name, shown[o.name]) for o in self.served.origin.operands if o.name in shown]
        return tuple(Pointer(self.names[name], p.dtype, name, p.access) for name, p in made)

    @property
    def tensor_maps(self) -> list[TensorMap]:
        """What the launch function encodes: operands and workspaces as the tensor memory accelerator sees them."""
        return [p for p in self.source.params if isinstance(p, TensorMap)]

    @functools.cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(p for p in self.source.params if isinstance(p, Scalar))

    @functools.cached_property
    def workspaces(self) -> tuple[Pointer, ...]:
        """Counters first: where they lie does not depend on the size of the others."""
        found = [p for p in self.source.params if isinstance(p, Pointer) and p.access in ("scratch", "counters")]
        return tuple(sorted(found, key=lambda p: p.access != "counters"))

    @property
    def counted(self) -> bool:
        """Whether the workspace must be zero at first."""
        return any(p.access == "counters" for p in self.workspaces)

    @functools.cached_property
    def symbols(self) -> dict[str, int]:
        """The sizes and strides that the caller gives, with their values for the tuned problem."""
        known = self.served.config.symbols(self.served.problem)
        return {name: known[name] for name in used_symbols(self.source, known)}

    @functools.cached_property
    def workspace_symbols(self) -> list[str]:
        used = frozenset().union(*(symbols_of(p.size) for p in self.workspaces))
        return [name for name in self.symbols if name in used]

    @functools.cached_property
    def requirements(self) -> Requirements:
        return requirements(self.served)

    def check_names(self) -> None:
        """Raises ArgumentError where an operand or dimension bears a name of the launch function's own."""
        names = [*self.names.values(), *self.symbols]
        clash = [name for name in names if name in _RESERVED]
        if clash:
            raise ArgumentError(
                f"cannot export {self.name}: {', '.join(clash)} is a name of the launch function's own; "
                f"rename it in the operator"
            )

    # Parameter lists.

    @property
    def parameters(self) -> list[str]:
        """The parameters of the launch function, declared."""
        found = [declaration(p) for p in self.operands]
        found += [f"int64_t {name}" for name in self.symbols]
        found += [declaration(replace(p, name=self.names[p.name])) for p in self.scalars]
        return [*found, *(["void* workspace"] if self.workspaces else []), "cudaStream_t stream"]

    @property
    def prototype(self) -> str:
        return wrapped(f"cudaError_t {self.name}_launch(", self.parameters, ")")

    @property
    def workspace_prototype(self) -> str:
        parameters = [f"int64_t {name}" for name in self.workspace_symbols]
        return wrapped(f"size_t {self.name}_workspace_bytes(", parameters or ["void"], ")")

    @property
    def arguments(self) -> list[str]:
        """What the kernel is launched with."""
        return [self._argument(p) for p in self.source.params]

    def _argument(self, param: Param) -> str:
        if isinstance(param, Integer):
            return f"static_cast<int>({cxx(param.value)})" if param.bits == 32 else cxx(param.value)
        own = param.operand if isinstance(param, Pointer) else param.name if isinstance(param, Scalar) else ""
        return self.names.get(own, param.name)

    # The checks.

    @property
    def empty(self) -> str:
        """The condition under which there is nothing to compute: a size is 0 without which the grid has no block."""
        return " || ".join(f"{name} == 0" for name in self.emptying)

    @functools.cached_property
    def emptying(self) -> list[str]:
        """The symbols that leave the grid without a block when they are 0."""
        return [name for name in self.symbols if any(self._blocks(size, name) == 0 for size in self.launch.grid)]

    def _blocks(self, size: Size, zero: str) -> int:
        if zero not in symbols_of(size):
            return 1
        return evaluate(size, {**self.symbols, SM_COUNT.name: 1, zero: 0})

    @property
    def negative(self) -> str:
        """The refusal of sizes below 0: the first check, before the one for empty problems."""
        return _refuse([f"{name} < 0" for name in self.symbols])

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
        ):
            found.append((comment, [_refusal(r) for r in self.requirements.sizes if r.relation == relation]))
        return [(comment, _refuse(conditions)) for comment, conditions in found if conditions]

    # The launch.

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
        return f"{self.name}_kernel::ptx::TensorMap"

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

    # The documentation.

    def documentation(self) -> Iterator[tuple[str, str]]:
        """Parameter and description, in the order of the parameters."""
        graph, origin = self.served.origin.graph, self.served.origin
        specs = {s.name: s for s in (*graph.inputs, *graph.outputs)}
        for p in self.operands:
            operand, spec = origin.operand(p.operand), specs[p.operand]
            role = "result" if p.access == "out" else "operand"
            align = self.requirements.alignment[p.operand]
            aligned = f"; address a multiple of {align} bytes" if align > 1 else ""
            yield p.name, f"{role} {p.dtype}{spec.shape}, {_layout(operand.layout)}{aligned}"
        for name in self.symbols:
            yield name, "; ".join([self._meaning(name), *_told(name, self.requirements.sizes)])
        for s in self.scalars:
            default = next(x.default for x in graph.scalars if x.name == s.name)
            yield self.names[s.name], "scalar" if default is None else f"scalar; the operator's default is {default}"
        if self.workspaces:
            yield (
                "workspace",
                f"{self.name}_workspace_bytes(...) bytes on the GPU; address a multiple of {WORKSPACE_ALIGN}",
            )
        yield "stream", "the launch is asynchronous on it"

    def _meaning(self, name: str) -> str:
        owner = next((p for p in self.operands if name.startswith(f"{p.operand}_")), None)
        what = f"stride of {owner.name}" if owner and name not in self.served.problem.sizes else "size"
        return f"{what}, {self.symbols[name]} in the problem it was made for"


def _layout(layout: str) -> str:
    return {"row": "row-major", "col": "column-major"}.get(layout, layout)


def _refuse(conditions: Sequence[str]) -> str:
    line = f"  if ({' || '.join(conditions)}) return cudaErrorInvalidValue;"
    if len(line) <= 120:
        return line
    return wrapped("  if (", conditions, ") {", separator=" || ") + "\n    return cudaErrorInvalidValue;\n  }"


def _refusal(requirement: Requirement) -> str:
    """The condition in C++ under which a requirement is not met."""
    value, bound = cxx(requirement.value), requirement.bound
    if requirement.relation == "a multiple of":
        return f"{value} % {bound} != 0"
    if requirement.relation == "equal to":
        return f"{value} != {bound}"
    sizes = factors(requirement.value)
    if len(sizes) > 1:
        return f"!product_at_most({{{', '.join(map(cxx, sizes))}}}, {bound})"
    return f"{value} > INT32_MAX" if bound == 2**31 - 1 else f"{value} > {bound}"


def _told(name: str, found: Sequence[Requirement]) -> list[str]:
    """The requirements of one symbol in words."""
    return [f"{r.relation} {r.bound}" for r in found if r.value == Dim(name)]
