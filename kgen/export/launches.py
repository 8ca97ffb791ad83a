"""Launches: the interface of an operator of several launches, which are exported each as an operator of its own.

Its launch function takes the operator's own sizes and calls those of its launches in order. What their sizes and strides are
of the operator's is told from examples, as in `kgen.export.tensors`. Operands are dense and row-major.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kgen.codegen.names import apart, identifier
from kgen.codegen.source import Pointer, Scalar
from kgen.dsl.errors import ArgumentError, KgenError
from kgen.dsl.family import normalised
from kgen.dsl.problem import Problem
from kgen.dsl.program import Program, program_of
from kgen.dsl.size import Binary, Dim, Size, evaluate, prod, symbols_of
from kgen.export.collection import Collection
from kgen.export.interface import Interface
from kgen.export.kernel import WORKSPACE_ALIGN, Kernel, refusal, refuse
from kgen.export.requirements import Requirement, Requirements
from kgen.export.sizes import cxx, wrapped
from kgen.export.variants import Served, axes, resized

#: Sizes that tell products of sizes apart.
_PRIMES = ((37, 41, 43, 47, 53, 59), (61, 67, 71, 73, 79, 83), (97, 101, 103, 107, 109, 113))
#: A size is divided by these at most: a family may look at an axis as two.
_PARTS = (2, 4)


def sizes_of(problem: Problem) -> dict[str, int]:
    """The sizes of a problem by what C++ calls them: its dimensions, and the leading ones."""
    heads = {f"...{i}": f"leading{i if len(problem.leading) > 1 else ''}" for i in range(len(problem.leading))}
    return {heads.get(name, name): n for name, n in axes(problem).items()}


@dataclass(frozen=True)
class ServedLaunches(Served):
    """The launches of a problem, and the question whether they serve another one."""

    parts: tuple[Interface, ...] = ()

    def _symbols(self, variant: Problem) -> dict[str, int] | None:
        """The sizes that the launch function is given for another problem; None where a launch does not serve it."""
        if any(o.layout != "row" for o in variant.operands):
            return None
        try:
            launches = program_of(variant).launches
        except KgenError:  # such sizes mean nothing to the operator
            return None
        served = all(_kernel(part).served.symbols(launch) for part, launch in zip(self.parts, launches))
        return sizes_of(variant) if served else None


def _kernel(part: Interface) -> Kernel:
    """The kernel of a launch; of several the one that takes what the others do not."""
    return part.kernels[part.collection.fallbacks[0] if part.decides else 0]


@dataclass(frozen=True)
class LaunchesInterface(Interface):
    """The launch function of an operator of several launches; `parts` are those of its launches, in order."""

    parts: tuple[Interface, ...] = ()

    @property
    def decides(self) -> bool:
        return False

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        return ()

    @functools.cached_property
    def symbols(self) -> dict[str, int]:
        return sizes_of(self.origin)

    @functools.cached_property
    def names(self) -> dict[str, str]:
        values = [o.name for o in self._examples[0][0].workspaces]
        own = [*(o.name for o in self.origin.operands), *(s.name for s in self.scalars), *values]
        found = apart(map(identifier, own), [*self.symbols, *(f"workspace_{p.name}" for p in self.parts), "error"])
        return {name: found[identifier(name)] for name in own}

    @functools.cached_property
    def operands(self) -> tuple[Pointer, ...]:
        shown = {p.operand for part in self.parts for p in part.operands}
        inputs = [(o, "in") for o in self.origin.inputs]
        made = [(o, access) for o, access in (*inputs, *((o, "out") for o in self.origin.outputs)) if o.name in shown]
        return tuple(Pointer(self.names[o.name], o.dtype, o.name, "in" if a == "in" else "out") for o, a in made)

    @functools.cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        found = {s.name: s for part in self.parts for s in part.scalars}
        return tuple(found[s.name] for s in self.origin.graph.scalars if s.name in found)

    # What the launches take, of the operator's sizes.

    @functools.cached_property
    def _examples(self) -> list[tuple[Program, dict[str, int]]]:
        """The problem and others, as launches, with their sizes. Those of 1 stay: such an axis may have been left out."""
        found = [self.origin]
        for primes in _PRIMES:
            sizes = {name: prime if n > 1 else 1 for (name, n), prime in zip(axes(self.origin).items(), primes)}
            found.append(resized(self.origin, sizes))
        return [(program_of(problem), sizes_of(problem)) for problem in found]

    def _told(self, what: str, values: Iterable[tuple[Mapping[str, int], int]]) -> Size:
        """A number of which examples are given, as a product of sizes, a part of one, or a constant."""
        seen = list(values)
        for size in _products(list(self.symbols)):
            if all(evaluate(size, sizes) == value for sizes, value in seen):
                return size
        raise ArgumentError(f"cannot export {self.origin}: {what} does not follow from the operator's sizes")

    @functools.cached_property
    def sizes_of_parts(self) -> dict[str, dict[str, Size]]:
        """What the sizes and strides of each launch are, by its name."""
        found = {}
        for number, part in enumerate(self.parts):
            seen: list[tuple[dict[str, int], dict[str, int]]] = []
            for program, sizes in self._examples:
                try:
                    symbols = part.first.config.symbols(normalised(program.launches[number]))
                except KgenError:  # such sizes mean nothing to the launch
                    continue
                seen += [(sizes, symbols)] if {*part.symbols} <= {*symbols} else []
            found[part.name] = {
                name: self._told(f"{name} of {part.name}", ((sizes, symbols[name]) for sizes, symbols in seen))
                for name in part.symbols
            }
        return found

    @functools.cached_property
    def values(self) -> list[tuple[str, str, str]]:
        """Name, C++ type and bytes of each value between launches."""
        found = []
        for place, o in enumerate(self._examples[0][0].workspaces):
            seen = [(sizes, program.workspaces[place].elements) for program, sizes in self._examples]
            size = self._told(f"the size of {o.name}", seen) * o.dtype.bytes
            found.append((self.names[o.name], o.dtype.ctype, cxx(size)))
        return found

    @functools.cached_property
    def required(self) -> Requirements:
        """What all launches require, of the operator's sizes."""
        alignment = {o.name: o.dtype.bytes for o in self.origin.operands}
        sizes = [Requirement(Dim(name), "equal to", 1) for name, n in self.symbols.items() if n == 1]
        for part in self.parts:
            asked = _kernel(part).requirements
            for name in alignment:
                alignment[name] = max(alignment[name], asked.alignment.get(name, 1))
            for r in asked.sizes:
                value = _replaced(r.value, self.sizes_of_parts[part.name])
                if not isinstance(value, int) or not r.holds(part.symbols):
                    sizes.append(replace(r, value=value, along=None))
        # Of several bounds of a size the narrowest.
        sizes.sort(key=lambda r: {"at most": r.bound, "at least": -r.bound}.get(r.relation, 0))
        narrowest = {(r.value, r.relation, 0 if r.is_bound else r.bound): r for r in reversed(sizes)}
        return Requirements(alignment, tuple(reversed(narrowest.values())))

    # The workspace: the values between launches, and what each launch needs itself.

    @property
    def has_workspace(self) -> bool:
        return bool(self.values) or any(part.has_workspace for part in self.parts)

    @property
    def counted(self) -> bool:
        return any(part.counted for part in self.parts)

    @property
    def _measured(self) -> bool:
        """Whether the size of the workspace depends on how operands are aligned."""
        return any(part.has_workspace and part.decides for part in self.parts)

    @property
    def workspace_arguments(self) -> list[str]:
        return [*(p.name for p in self.operands if self._measured), *self.symbols]

    @property
    def workspace_parameters(self) -> list[str]:
        pointers = {p.name: f"{'const ' if p.access == 'in' else ''}{p.dtype.ctype}* {p.name}" for p in self.operands}
        return [pointers.get(name, f"int64_t {name}") for name in self.workspace_arguments]

    @property
    def workspace_definition(self) -> list[str]:
        used = re.findall(r"\w+", self.workspace_return)
        marks = ("" if name in used else "[[maybe_unused]] " for name in self.workspace_arguments)
        return [f"{mark}{text}" for mark, text in zip(marks, self.workspace_parameters)]

    @property
    def measured_values(self) -> list[tuple[str, str, str]]:
        """The values of which a launch is asked how large its workspace is."""
        words = re.findall(r"\w+", self.workspace_return)
        return [value for value in self.values if value[0] in words]

    @property
    def workspace_return(self) -> str:
        """The statement that returns the size of the workspace."""
        sizes = [f"workspace_part({size})" for _, _, size in self.values]
        sizes += [self._bytes_of(part) for part in self.parts if part.has_workspace]
        return wrapped("  return ", sizes, ";", separator=" + ")

    def _bytes_of(self, part: Interface) -> str:
        """The bytes that a launch needs itself."""
        return f"{part.name}_workspace_bytes({', '.join(self._given(part)[name] for name in part.workspace_arguments)})"

    def _given(self, part: Interface) -> dict[str, str]:
        """What the pointers and sizes of a launch are given, by their names there."""
        found = {p.name: self.names[p.operand] for p in part.operands}
        return found | {name: cxx(size) for name, size in self.sizes_of_parts[part.name].items()}

    @property
    def places(self) -> list[str]:
        """The statements that say where in the workspace everything lies."""
        found = []
        for name, ctype, size in self.values:
            found += [f"{ctype}* const {name} = reinterpret_cast<{ctype}*>(at);", f"at += workspace_part({size});"]
        for part in (part for part in self.parts if part.has_workspace):
            found += [f"void* const workspace_{part.name} = at;", f"at += {self._bytes_of(part)};"]
        return found[:-1]

    # The launches.

    @property
    def calls(self) -> list[str]:
        """The statements that make the launches."""
        found: list[str] = []
        for part in self.parts[:-1]:
            found.append(self._call(part, "  error = " if found else "  cudaError_t error = "))
            found.append("  if (error != cudaSuccess) return error;")
        return [*found, self._call(self.parts[-1], "  return ")]

    def _call(self, part: Interface, opening: str) -> str:
        given = self._given(part)
        arguments = [*(given[p.name] for p in part.operands), *(given[name] for name in part.symbols)]
        arguments += [self.names[s.name] for s in part.scalars]
        arguments += [f"workspace_{part.name}"] if part.has_workspace else []
        return wrapped(f"{opening}{part.name}_launch(", [*arguments, "stream"], ");")

    @property
    def emptying(self) -> list[str]:
        """The sizes that leave no launch a block when they are 0."""

        def empties(part: Interface, name: str) -> bool:
            return any(name in symbols_of(self.sizes_of_parts[part.name][symbol]) for symbol in part.emptying)

        return [name for name in self.symbols if all(empties(part, name) for part in self.parts)]

    @property
    def checks(self) -> list[str]:
        """All refusals but that of sizes below 0, as statements."""
        aligned = [
            f"!is_aligned({p.name}, {self.required.alignment[p.operand]})"
            for p in self.operands
            if self.required.alignment[p.operand] > 1
        ]
        pointers = ["workspace == nullptr", f"!is_aligned(workspace, {WORKSPACE_ALIGN})"] if self.has_workspace else []
        found = [
            [f"{p.name} == nullptr" for p in self.operands],
            aligned,
            pointers,
            [*map(refusal, self.required.sizes)],
        ]
        return [refuse(conditions) for conditions in found if conditions]

    # The documentation.

    @property
    def layouts(self) -> list[str]:
        return []

    @property
    def sizes_told(self) -> str:
        return "Sizes are in elements, and tensors dense and row-major."

    def documentation(self) -> Iterator[tuple[str, str]]:
        specs = {s.name: s for s in (*self.origin.graph.inputs, *self.origin.graph.outputs)}
        for p in self.operands:
            align = self.required.alignment[p.operand]
            aligned = f"; address a multiple of {align} bytes" if align > 1 else ""
            yield p.name, f"{'result' if p.access == 'out' else 'operand'} {p.dtype}{specs[p.operand].shape}{aligned}"
        for name, n in self.symbols.items():
            told = [f"{r.relation} {r.bound}" for r in self.required.sizes if r.value == Dim(name)]
            yield name, "; ".join([f"size, {n} in the problem it was made for", *told])
        for s in self.scalars:
            default = next(x.default for x in self.origin.graph.scalars if x.name == s.name)
            yield self.names[s.name], "scalar" if default is None else f"scalar; the operator's default is {default}"
        if self.has_workspace:
            yield (
                "workspace",
                f"{self.name}_workspace_bytes(...) bytes on the GPU; address a multiple of {WORKSPACE_ALIGN}",
            )
        yield "stream", "the launches are asynchronous on it"


def interface(problem: Problem, collections: Sequence[Collection], binary: bool = False) -> LaunchesInterface:
    """The interface of a problem whose launches' kernels are given. ArgumentError where an operand is not dense and row-major."""
    for o in problem.operands:
        if o.layout != "row":
            raise ArgumentError(
                f"cannot export {problem}: {o} is not dense and row-major, as operators of several launches need it"
            )
    parts = tuple(Interface(collection, binary) for collection in collections)
    first = collections[0].rows[0][0]
    served = ServedLaunches(first.config, problem, parts[0].first.target, parts)
    whole = Collection((served,), ((replace(first, problem=problem), 0),))
    return LaunchesInterface(whole, binary, parts)


def _products(names: Sequence[str]) -> Iterator[Size]:
    """What a size or a stride may be, the likeliest first: a constant, a size, products of sizes, parts of these."""
    dims = [Dim(name) for name in names]
    runs = [prod(some) for count in range(1, len(dims) + 1) for some in itertools.combinations(dims, count)]
    yield from range(5)
    yield from runs
    yield from (run // part for part in _PARTS for run in runs)


def _replaced(size: Size, known: Mapping[str, Size]) -> Size:
    """A size of a launch over the operator's sizes."""
    if isinstance(size, Dim):
        return known.get(size.name, size)
    if not isinstance(size, Binary):
        return size
    left, right = _replaced(size.left, known), _replaced(size.right, known)
    if isinstance(left, int) and isinstance(right, int):
        return evaluate(replace(size, left=left, right=right), {})
    return replace(size, left=left, right=right)
