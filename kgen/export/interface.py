"""Interface: the C functions an export is called through, and what they check, as text for the templates."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kgen.codegen.names import apart, identifier
from kgen.codegen.render import declaration
from kgen.codegen.source import Pointer, Scalar, TensorMap
from kgen.dsl.errors import ArgumentError
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim
from kgen.export.collection import Collection
from kgen.export.decision import Decision
from kgen.export.kernel import WORKSPACE_ALIGN, Kernel, refuse, tensor_maps, workspaces
from kgen.export.requirements import Requirement, Requirements, axis_of, is_stride, requirements, used_symbols
from kgen.export.sizes import wrapped
from kgen.export.variants import Served

#: What the launch function and the test call their own; an operand of that name would clash.
_RESERVED = frozenset(
    {"stream", "workspace", "config", "attributes", "sm_count", "grid_x", "grid_y", "grid_z", "allowed", "counted"}
    | {"mapped", "at", "passed", "yields", "test_case", "launch_arguments", "valid_arguments", "workspace_size"}
)
#: And what it calls so where it chooses among kernels, or loads them.
_RESERVED_OF_SEVERAL = frozenset({"kernel", "Row", "ROWS", "row", "sizes", "least", "found", "further"})
_RESERVED_OF_BINARIES = frozenset({"kernel", "known", "loaded"})


@dataclass(frozen=True)
class Interface:
    """The launch function of an export: its parameters are the operands, the symbols, the scalars, a workspace, a stream.

    They are the union of what its kernels need. `binary`: kernels are loaded as binaries.
    """

    collection: Collection
    binary: bool = False

    @property
    def first(self) -> Served:
        """The kernel of the first problem."""
        return self.collection.kernels[0]

    @property
    def origin(self) -> Problem:
        """The first problem: what is said of the operator is said of it."""
        return self.first.origin

    @property
    def name(self) -> str:
        """The operator's: the files, the namespaces of kernels and the functions are called after it."""
        return self.origin.graph.name

    @property
    def title(self) -> str:
        """The problem in words, or the operator and how many problems it is made for."""
        return f"{self.name} for {len(self.collection.rows)} problems" if self.decides else str(self.origin)

    @property
    def decides(self) -> bool:
        """Whether there are several kernels to choose from."""
        return self.collection.decides

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, each with what it requires of a launch."""
        found = []
        several = self.decides
        for number, served in enumerate(self.collection.kernels):
            names = self.symbols if several else ()
            required = requirements(served, names, self.collection.problems(number))
            operands = tuple(p for p in self.operands if p.operand in _shown(served))
            found.append(Kernel(served, required, self.names, operands, number if several else None, self.binary))
        return tuple(found)

    @functools.cached_property
    def decision(self) -> Decision:
        """Which kernel a call takes; of a single one there is no decision."""
        sizes = sorted(name for name in self.symbols if not is_stride(name))
        rows = []
        for entry, number in self.collection.rows:
            served = self.collection.kernels[number]
            symbols = served.config.symbols(replace(served, origin=entry.problem).problem)
            rows.append((tuple(symbols[name] for name in sizes), number))
        strides = {name: along for name in self.symbols if (along := axis_of(name, self.symbols))}
        required = tuple(k.requirements for k in self.kernels)
        return Decision(tuple(sizes), strides, tuple(dict.fromkeys(rows)), self.collection.fallbacks, required)

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """What the C functions call operands and scalars: their own names, where neither C nor another parameter has them."""
        own = [*(o.name for o in self.origin.operands), *(s.name for s in self.scalars)]
        sources = [served.source for served in self.collection.kernels]
        maps = (p.name for source in sources for p in tensor_maps(source))
        parts = dict.fromkeys([*(p.name for source in sources for p in workspaces(source)), *maps])
        found = apart(map(identifier, own), [*self.symbols, *parts, *(f"{name}_start" for name in parts)])
        return {name: found[identifier(name)] for name in own}

    @functools.cached_property
    def operands(self) -> tuple[Pointer, ...]:
        """The pointers that the caller gives: one for each operand that a kernel has pointers or maps of."""
        shown = {name: p for served in reversed(self.collection.kernels) for name, p in _shown(served).items()}
        made = [(o.name, shown[o.name]) for o in self.origin.operands if o.name in shown]
        return tuple(Pointer(self.names[name], p.dtype, name, p.access) for name, p in made)

    @functools.cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        found = {p.name: p for k in self.collection.kernels for p in k.source.params if isinstance(p, Scalar)}
        return tuple(found.values())

    @functools.cached_property
    def symbols(self) -> dict[str, int]:
        """The sizes and strides that the caller gives, with their values for the first problem."""
        known = self.first.config.symbols(self.first.problem)
        used = {name for k in self.collection.kernels for name in used_symbols(k.source, known)}
        return {name: n for name, n in known.items() if name in used}

    @property
    def has_workspace(self) -> bool:
        """Whether a kernel needs memory of the caller's."""
        return any(k.workspaces for k in self.kernels)

    @property
    def counted(self) -> bool:
        """Whether the workspace must be zero at first."""
        return any(k.counted for k in self.kernels)

    def check_names(self) -> None:
        """Raises ArgumentError where an operand or dimension bears a name of the launch function's own."""
        reserved = _RESERVED | (_RESERVED_OF_SEVERAL if self.decides else set())
        reserved |= _RESERVED_OF_BINARIES if self.binary else set()
        clash = [name for name in (*self.names.values(), *self.symbols) if name in reserved]
        if clash:
            raise ArgumentError(
                f"cannot export {self.name}: {', '.join(clash)} is a name of the launch function's own; "
                f"rename it in the operator"
            )

    @property
    def required(self) -> Requirements:
        """What a launch of its one kernel requires."""
        return self.kernels[0].requirements

    @property
    def sizes_told(self) -> str:
        """How sizes are given, in words."""
        folded = "Dimensions that lie densely behind one another in every operand are given as one."
        return f"Sizes and strides are in elements. {folded}"

    # Parameter lists.

    @property
    def parameters(self) -> list[str]:
        """The parameters of the launch function, declared."""
        return self._declared(self.operands, self.symbols, self.has_workspace)

    def parameters_of(self, kernel: Kernel) -> list[str]:
        """The parameters of the function that launches one of several kernels, declared."""
        return self._declared(kernel.operands, kernel.symbols, bool(kernel.workspaces))

    def _declared(self, operands: Sequence[Pointer], symbols: Iterable[str], workspace: bool) -> list[str]:
        found = [declaration(p) for p in operands]
        found += self.typed(symbols)
        found += [declaration(replace(p, name=self.names[p.name])) for p in self.scalars]
        return [*found, *(["void* workspace"] if workspace else []), "cudaStream_t stream"]

    def typed(self, symbols: Iterable[str]) -> list[str]:
        """Sizes and strides as parameters."""
        return [f"int64_t {name}" for name in symbols]

    def launch_arguments(self, kernel: Kernel) -> list[str]:
        """What the launch function passes on to that of one kernel."""
        found = [p.name for p in kernel.operands] + [*kernel.symbols] + [self.names[p.name] for p in self.scalars]
        return [*found, *(["workspace"] if kernel.workspaces else []), "stream"]

    wrapped = staticmethod(wrapped)

    @property
    def prototype(self) -> str:
        return wrapped(f"cudaError_t {self.name}_launch(", self.parameters, ")")

    @functools.cached_property
    def serving(self) -> list[str]:
        """The arguments by which a kernel is said to serve a launch."""
        asked = set(re.findall(r"\w+", " ".join(k.served_where for k in self.kernels)))
        return [name for name in (*(p.name for p in self.operands), *self.symbols) if name in asked]

    @property
    def choosing(self) -> list[str]:
        """The arguments that decide which kernel a launch takes."""
        wanted = {*self.serving, *self.decision.sizes}
        return [name for name in (*(p.name for p in self.operands), *self.symbols) if name in wanted]

    def declared(self, names: Iterable[str]) -> list[str]:
        """Addresses, sizes and strides as parameters of the functions that decide."""
        return [f"{'int64_t' if name in self.symbols else 'const void*'} {name}" for name in names]

    @property
    def workspace_arguments(self) -> list[str]:
        """What the size of the workspace depends on: sizes, and where there is a choice, all that decides it."""
        return [*(p.name for p in self.operands), *self.symbols] if self.decides else self.kernels[0].workspace_symbols

    @property
    def workspace_parameters(self) -> list[str]:
        if self.decides:
            return [*(declaration(p) for p in self.operands), *self.typed(self.symbols)]
        return self.typed(self.workspace_arguments) or ["void"]

    @property
    def workspace_definition(self) -> list[str]:
        """The same, where the function is defined: some say nothing of which kernel it is."""
        if not self.decides:
            return self.workspace_parameters
        used = {*self.choosing, *(name for k in self.kernels for name in k.workspace_symbols)}
        marks = ("" if name in used else "[[maybe_unused]] " for name in self.workspace_arguments)
        return [f"{mark}{text}" for mark, text in zip(marks, self.workspace_parameters)]

    @property
    def workspace_prototype(self) -> str:
        return wrapped(f"size_t {self.name}_workspace_bytes(", self.workspace_parameters, ")")

    # The checks.

    @property
    def emptying(self) -> list[str]:
        """The symbols that leave every kernel without a block when they are 0."""
        return [name for name in self.symbols if all(name in k.emptying for k in self.kernels)]

    @property
    def empty(self) -> str:
        """The condition under which there is nothing to compute: a size is 0 without which the grid has no block."""
        return " || ".join(f"{name} == 0" for name in self.emptying)

    @property
    def null(self) -> str:
        """The refusal of pointers to nowhere."""
        return refuse([f"{p.name} == nullptr" for p in self.operands])

    @property
    def negative(self) -> str:
        """The refusal of sizes below 0: the first check, before the one for empty problems."""
        return refuse([f"{name} < 0" for name in self.symbols])

    @property
    def single_elements(self) -> list[str]:
        """Statements that do away with the strides of axes that have one element."""
        found: dict[str, list[str]] = {}
        for stride, size in self.decision.strides.items():
            found.setdefault(size, []).append(stride)
        return [f"if ({size} == 1) {' = '.join(strides)} = 0;" for size, strides in found.items()]

    @property
    def rows(self) -> list[str]:
        """The rows of the decision as initializers."""
        return [f"{{{{{', '.join(map(str, sizes))}}}, {kernel}}}" for sizes, kernel in self.decision.rows]

    @property
    def counted_sizes(self) -> list[str]:
        """The sizes that a decision compares."""
        return [f"static_cast<double>(std::max<int64_t>({name}, 1))" for name in self.decision.sizes]

    @property
    def needs_sm_count(self) -> bool:
        return any(k.needs_sm_count or k.workspace_needs_sm_count for k in self.kernels)

    @property
    def has_maps(self) -> bool:
        return any(k.tensor_maps for k in self.kernels)

    def uses(self, function: str) -> bool:
        """Whether a size is written with `ceil_div`, `std::min` or `std::max`."""
        return any(k.uses(function) for k in self.kernels)

    # The documentation.

    def documentation(self) -> Iterator[tuple[str, str]]:
        """Parameter and description, in the order of the parameters."""
        graph = self.origin.graph
        specs = {s.name: s for s in (*graph.inputs, *graph.outputs)}
        for p in self.operands:
            layouts = dict.fromkeys(e.problem.operand(p.operand).layout for e, _ in self.collection.rows)
            role = "result" if p.access == "out" else "operand"
            align = min(k.requirements.alignment[p.operand] for k in self.kernels)
            aligned = f"; address a multiple of {align} bytes" if align > 1 else ""
            laid = " or ".join(dict.fromkeys(map(_layout, layouts)))
            yield p.name, f"{role} {p.dtype}{specs[p.operand].shape}, {laid}{aligned}"
        for name in self.symbols:
            yield name, "; ".join([self._meaning(name), *_told(name, self._required())])
        for s in self.scalars:
            default = next(x.default for x in graph.scalars if x.name == s.name)
            yield self.names[s.name], "scalar" if default is None else f"scalar; the operator's default is {default}"
        if self.has_workspace:
            yield (
                "workspace",
                f"{self.name}_workspace_bytes(...) bytes on the GPU; address a multiple of {WORKSPACE_ALIGN}",
            )
        yield "stream", "the launch is asynchronous on it"

    @property
    def layouts(self) -> list[str]:
        """Of several layouts each, as the strides that it has fixed."""
        required = [self.kernels[kernel].requirements.sizes for kernel in self.collection.fallbacks]
        told = (", ".join(f"{r.value} = {r.bound}" for r in sizes if r.along is not None) for sizes in required)
        return list(dict.fromkeys(told)) if len(required) > 1 else []

    def _required(self) -> list[Requirement]:
        """What every call has to meet: the requirements of the kernel, or those that all fallbacks have."""
        several = self.collection.fallbacks if self.decides else (0,)
        first, *others = [self.kernels[kernel].requirements.sizes for kernel in several]
        return [r for r in first if all(r in other for other in others)]

    def _meaning(self, name: str) -> str:
        owner = next((p for p in self.operands if name.startswith(f"{p.operand}_")), None)
        what = f"stride of {owner.name}" if owner and name not in self.first.problem.sizes else "size"
        return f"{what}, {self.symbols[name]} in the {'first ' if self.decides else ''}problem it was made for"


def _shown(served: Served) -> dict[str, Pointer | TensorMap]:
    """The operands that a kernel has pointers or maps of."""
    params = [p for p in served.source.params if isinstance(p, (Pointer, TensorMap))]
    return {p.operand: p for p in params if p.access in ("in", "out")}


def _layout(layout: str) -> str:
    return {"row": "row-major", "col": "column-major"}.get(layout, layout)


def _told(name: str, found: Sequence[Requirement]) -> list[str]:
    """The requirements of one symbol in words."""
    return [f"{r.relation} {r.bound}" for r in found if r.value == Dim(name)]
