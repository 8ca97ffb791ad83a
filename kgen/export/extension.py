"""Extension: an export as an operator of torch: C++ against torch's stable ABI, and the Python package that loads it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kgen.codegen.render import environment
from kgen.dsl.errors import ArgumentError
from kgen.dsl.operator import ScalarSpec, TensorSpec
from kgen.dsl.problem import Problem
from kgen.dsl.size import Dim, Size, symbols_of
from kgen.dsl.types import DType
from kgen.export.interface import Interface
from kgen.export.sizes import cxx, renamed, wrapped
from kgen.export.tensors import Tensors, tensors

_SCALAR_TYPES = {"float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "bool": "Bool"}
_SCALAR_TYPES |= {"float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2"}
_SCALAR_TYPES |= {"int64": "Long", "int32": "Int", "int8": "Char"}
#: What the extension calls its own; an operand of that name would clash.
_RESERVED = frozenset(
    {"leading", "guard", "bytes", "workspace", "stream", "error", "view", "size", "call", "torch", "library"}
    | {"signature", "alignment", "workspace_for"}
)
#: The least torch, as its headers have it: what the stable ABI of 2.10 has is enough.
TORCH = "0x020a000000000000"


@dataclass(frozen=True)
class Extension:
    """What the templates of an extension are given: `f` is the launch function that it calls, `namespace` torch's for it."""

    f: Interface
    namespace: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*", self.namespace):
            raise ArgumentError(
                f"malformed namespace {self.namespace!r} for torch.ops; expected a name such as kgen_gelu"
            )
        clash = sorted(_RESERVED.intersection([*self.f.names.values(), *self.f.symbols]))
        if clash:
            raise ArgumentError(
                f"cannot export {self.f.name} for torch: {', '.join(clash)} is a name of the extension's own; "
                "rename it in the operator"
            )
        for o in (o for e, _ in self.f.collection.rows for o in e.problem.outputs):
            if o.layout != "row":
                raise ArgumentError(
                    f"cannot export {self.f.origin} for torch: it returns {o}; expected row-major results"
                )

    @property
    def origin(self) -> Problem:
        return self.f.origin

    @functools.cached_property
    def told(self) -> Tensors:
        """How the launch's symbols follow from the tensors."""
        collection = self.f.collection
        return tensors(collection.kernels, [entry.problem for entry, _ in collection.rows], [*self.f.symbols])

    # The schema.

    @property
    def scalars(self) -> list[ScalarSpec]:
        named = {s.name for s in self.f.scalars}
        return [s for s in self.origin.graph.scalars if s.name in named]

    @property
    def free(self) -> list[str]:
        """The sizes of results that no input has: the caller gives them."""
        given = {d.name for s in self.origin.graph.inputs for d in s.shape.dims if isinstance(d, Dim)}
        needed = {n for s in self.origin.graph.outputs for d in s.shape.dims for n in symbols_of(d)}
        return sorted(needed - given)

    @property
    def schema(self) -> str:
        """The operator in torch's notation."""
        found = [f"Tensor {self.f.names[s.name]}" for s in self.origin.graph.inputs]
        for s in self.scalars:
            default = "" if s.default is None else f"={s.default}"
            found.append(f"{'float' if s.dtype.is_float else 'int'} {self.f.names[s.name]}{default}")
        found += [*(["*"] if self.free else []), *(f"SymInt {name}" for name in self.free)]
        count = len(self.origin.outputs)
        return f"{self.f.name}({', '.join(found)}) -> {'Tensor' if count == 1 else '(' + ', '.join(['Tensor'] * count) + ')'}"

    # C++.

    @property
    def parameters(self) -> list[str]:
        found = [f"const Tensor& {self.f.names[s.name]}" for s in self.origin.graph.inputs]
        found += [f"{'double' if s.dtype.is_float else 'int64_t'} {self.f.names[s.name]}" for s in self.scalars]
        return [*found, *(f"int64_t {_sized(Dim(name))}" for name in self.free)]

    @property
    def result(self) -> str:
        """The C++ type of what is returned."""
        count = len(self.origin.outputs)
        return "Tensor" if count == 1 else f"std::tuple<{', '.join(['Tensor'] * count)}>"

    def view(self, name: str) -> str:
        """The variable with an operand's address, sizes and strides."""
        return f"{self.f.names[name]}_view"

    def folds(self, spec: TensorSpec) -> bool:
        """Whether the leading axes of an operand count as one, however many a call has."""
        return spec.shape.leading and len(self.origin.leading) == 1 and self._extra(spec) == 1

    def _extra(self, spec: TensorSpec) -> int:
        return len(self.origin.operand(spec.name).shape) - len(spec.shape.dims)

    @property
    def inputs(self) -> list[tuple[str, str, str, int, int, bool]]:
        """Of each input its name, view, type, number of named axes, number of axes, and whether leading ones are folded."""
        return [
            (
                self.f.names[s.name],
                self.view(s.name),
                _scalar_type(s.dtype),
                len(s.shape.dims),
                self._rank(s),
                self.folds(s),
            )
            for s in self.origin.graph.inputs
        ]

    def _rank(self, spec: TensorSpec) -> int:
        return len(self.origin.operand(spec.name).shape)

    @property
    def outputs(self) -> list[tuple[str, str, str, str, int, bool]]:
        """Of each result its name, view, type, C++ of its named sizes, their number, and whether leading ones are folded."""
        return [
            (self.f.names[s.name], self.view(s.name), _scalar_type(s.dtype), ", ".join(map(_sized, s.shape.dims)),
             len(s.shape.dims), self.folds(s))
            for s in self.origin.graph.outputs
        ]  # fmt: skip

    @property
    def leads(self) -> str:
        """The input whose leading axes the results have; empty where there are none."""
        found = (s for s in self.origin.graph.inputs if s.shape.leading and self._extra(s) == len(self.origin.leading))
        return next((self.f.names[s.name] for s in found), "")

    @property
    def led(self) -> list[str]:
        """The other inputs that must have the same leading axes."""
        wanted = self.origin.leading
        specs = [s for s in self.origin.graph.inputs if s.shape.leading and self._extra(s)]
        for s in specs:
            if self.origin.operand(s.name).shape[: len(wanted)] != wanted and self.folds(s):
                raise ArgumentError(f"cannot export {self.origin} for torch: {s.name} is broadcast along leading axes")
        return [self.f.names[s.name] for s in specs if self.folds(s) and self.f.names[s.name] != self.leads]

    @property
    def named(self) -> int:
        """The number of axes of `leads` that are not leading ones."""
        return next((len(s.shape.dims) for s in self.origin.graph.inputs if self.f.names[s.name] == self.leads), 0)

    @property
    def dims(self) -> list[tuple[str, str, bool, str]]:
        """Each named size of an input: C++ of what it must be and of what it is, whether that defines it, the first in words."""
        found, known = [], set[str]()
        for s in self.origin.graph.inputs:
            for place, dim in enumerate(s.shape.dims):
                back = f"size({self.f.names[s.name]}, {len(s.shape.dims) - place})"
                found.append((_sized(dim), back, isinstance(dim, Dim) and dim.name not in known, str(dim)))
                known |= {dim.name} if isinstance(dim, Dim) else set()
        return sorted(found, key=lambda item: not item[2])

    @property
    def layouts(self) -> Iterator[tuple[str, str, list[str]]]:
        """Of each input its name, view and the conditions under which the kernels take its layout."""
        views = self.views
        for s in self.origin.graph.inputs:
            met = [
                f"({views[name]}.sizes[{axis}] == 1 || {views[name]}.strides[{axis}] == {term.cxx(views)})"
                for name, axis, term in self.told.fixed
                if name == s.name
            ]
            if s.name in self._one_unit:
                axes = range(self._rank(s))
                units = (f"{views[s.name]}.sizes[{a}] == 1 || {views[s.name]}.strides[{a}] == 1" for a in axes)
                met.append(f"({' || '.join(units)})")
            yield self.f.names[s.name], views[s.name], met

    @functools.cached_property
    def _one_unit(self) -> set[str]:
        """The operands of which the launch is given every stride, while each kernel has one of them fixed at 1."""
        fixed = {
            str(r.value)
            for k in self.f.kernels
            for r in k.requirements.sizes
            if (r.relation, r.bound) == ("equal to", 1)
        }
        terms = {name: term for name, term in self.told.symbols.items() if name in fixed and term.stride is not None}
        return {term.operand for term in terms.values()}

    @property
    def sizes(self) -> list[tuple[str, str, int]]:
        """The sizes that must be as they were exported: of which input, C++ for it, its value."""
        return [(self.f.names[name], f"{self.view(name)}.sizes[{axis}]", n) for name, axis, n in self.told.sizes]

    @property
    def views(self) -> Mapping[str, str]:
        return {o.name: self.view(o.name) for o in self.origin.operands}

    def symbol(self, name: str) -> str:
        """A symbol of the launch, in C++."""
        return self.told.symbols[name].cxx(self.views)

    @property
    def pointers(self) -> list[str]:
        types = {p.operand: p.dtype.ctype for p in self.f.operands}
        return [
            f"static_cast<{'const ' if p.access == 'in' else ''}{types[p.operand]}*>({self.view(p.operand)}.tensor.data_ptr())"
            for p in self.f.operands
        ]

    @property
    def workspace_call(self) -> str:
        by_name = dict(zip((p.name for p in self.f.operands), self.pointers))
        arguments = [by_name.get(name, name) for name in self.f.workspace_arguments]
        return wrapped(f"  const size_t bytes = {self.f.name}_workspace_bytes(", arguments, ");")

    @property
    def signature(self) -> str:
        """What a workspace is fit for, in C++: sizes and strides, and how the operands are aligned."""
        aligned = [f"alignment({self.view(p.operand)})" for p in self.f.operands]
        return wrapped("    const std::vector<int64_t> signature{", [*self.f.symbols, *aligned], "};")

    @property
    def launch_call(self) -> str:
        scalars = [f"static_cast<{s.dtype.ctype}>({self.f.names[s.name]})" for s in self.f.scalars]
        workspace = ["bytes != 0 ? workspace.data_ptr() : nullptr"] if self.f.has_workspace else []
        arguments = [*self.pointers, *self.f.symbols, *scalars, *workspace, "static_cast<cudaStream_t>(stream)"]
        return wrapped(f"  const cudaError_t error = {self.f.name}_launch(", arguments, ");")

    # Python.

    @property
    def fake_parameters(self) -> str:
        found = [self.f.names[s.name] for s in self.origin.graph.inputs]
        found += [self.f.names[s.name] + ("" if s.default is None else f"={s.default}") for s in self.scalars]
        return ", ".join([*found, *(["*"] if self.free else []), *self.free])

    @property
    def ceil_div(self) -> bool:
        """Whether a size is a quotient that is rounded up."""
        specs = (*self.origin.graph.inputs, *self.origin.graph.outputs)
        return any("ceil_div" in cxx(d) for s in specs for d in s.shape.dims)

    @property
    def fake_dims(self) -> list[tuple[str, str]]:
        """The sizes that results have, as Python reads them from inputs."""
        found: dict[str, str] = {}
        for s in self.origin.graph.inputs:
            for place, dim in enumerate(s.shape.dims):
                if isinstance(dim, Dim):
                    found.setdefault(dim.name, f"{self.f.names[s.name]}.shape[{place - len(s.shape.dims)}]")
        needed = {n for s in self.origin.graph.outputs for d in s.shape.dims for n in symbols_of(d)}
        return [(name, text) for name, text in found.items() if name in needed]

    @property
    def fake_results(self) -> list[str]:
        first = self.f.names[self.origin.graph.inputs[0].name]
        made = []
        for s in self.origin.graph.outputs:
            sizes = [*(["*leading"] if s.shape.leading else []), *(cxx(d).replace("/", "//") for d in s.shape.dims)]
            made.append(f"{first}.new_empty([{', '.join(sizes)}], dtype=torch.{s.dtype.torch})")
        return made


def _sized(size: Size) -> str:
    """A size of the operator's dimensions in C++, by names that no symbol of the launch has."""
    return cxx(renamed(size, "_size"))


def _scalar_type(dtype: DType) -> str:
    return _SCALAR_TYPES[dtype.torch]


def extension(f: Interface, namespace: str | None) -> dict[str, str]:
    """The files that make an export an operator of torch, by name."""
    made = Extension(f, namespace if namespace is not None else f"kgen_{f.name}")
    context: dict[str, Any] = {"e": made, "f": f, "torch": TORCH}
    return {
        f"{f.name}_torch.cpp": environment().get_template("export/extension.cpp.j2").render(**context),
        "__init__.py": environment().get_template("export/package.py.j2").render(**context),
    }
