"""External computations: what no graph expresses, such as nms. They have an explicit reference and a template of their own."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kgen.dsl.errors import DefinitionError
from kgen.dsl.expr import Expr, Operand, Shape, constant, fault
from kgen.dsl.ops import LEAVES
from kgen.dsl.size import Size
from kgen.dsl.types import DType


@dataclass(frozen=True)
class External:
    """One result of a computation that no graph expresses. A template of its own serves `name`.

    `reference` computes all its results, exactly, from torch tensors (one argument a node's argument). `sample` turns standard
    normal inputs, which it gets in the same order and changes in place, into ones as they occur; without it they stay normal.
    `special` puts into such samples, in the same way, the special values that the computation is defined for (NaN, infinities,
    zeros of both signs); without it the gate has none. All are functions of a module: another process finds them by name.

    `cpp` is the reference for the test of an export, a file of C++17 found as a template is: a function `<name>_reference` of
    the arguments, tensors as `x(i, j)` and `x.size(axis)`, that returns the elements of each result, row by row, as a
    std::vector<std::vector<double>>. Without it there is no export.

    `work` is how much there is to do, as a size (pairs of N: `N * N`), where that is not the product of all dimensions.
    """

    name: str
    reference: Callable[..., tuple[Any, ...]]
    index: int
    sample: Callable[..., None] | None = None
    cpp: str = ""
    work: Size | None = None
    special: Callable[..., None] | None = None

    def __repr__(self) -> str:
        return f"{self.name}.{self.index}"

    def __reduce__(self) -> tuple[Any, ...]:
        sample, special = (f and _named(f) for f in (self.sample, self.special))
        return _external, (self.name, _named(self.reference), self.index, sample, self.cpp, self.work, special)


def external(
    name: str,
    results: Sequence[tuple[DType, tuple[Size, ...]]],
    *args: Operand,
    reference: Callable[..., tuple[Any, ...]],
    sample: Callable[..., None] | None = None,
    cpp: str = "",
    work: Size | None = None,
    special: Callable[..., None] | None = None,
) -> tuple[Expr, ...]:
    """The results (dtype and shape of each) of a computation called `name`; see External."""
    for result in results if isinstance(results, (list, tuple)) else [results]:
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], DType)):
            raise fault(f"external expects a list of results, a dtype and the sizes of each, got {result!r}")
    nodes = tuple(constant(a) for a in args)
    return tuple(
        Expr("external", nodes, dtype, Shape(tuple(dims)), External(name, reference, i, sample, cpp, work, special))
        for i, (dtype, dims) in enumerate(results)
    )


def is_external(results: Sequence[Expr], name: str) -> bool:
    """Whether these are all results of the computation called `name`, in order, straight from inputs and numbers."""
    return all(
        r.op == "external" and r.attr.name == name and r.attr.index == i and all(a.op in LEAVES for a in r.args)
        for i, r in enumerate(results)
    )


#: A function by its module, the file it stands in, and its name there.
_Named = tuple[str, str, str]


def _named(function: Callable[..., Any]) -> _Named:
    where = (function.__module__, function.__code__.co_filename, function.__qualname__)
    if "<" in where[1] + where[2]:
        raise DefinitionError(
            f"{where[2]} (in {where[1]}) is no function of a module in a file; expected one, which the tuner's worker can find"
        )
    return where


def _external(
    name: str,
    reference: _Named,
    index: int,
    sample: _Named | None,
    cpp: str,
    work: Size | None,
    special: _Named | None,
) -> External:
    made, changed = (named and _function(named) for named in (sample, special))
    return External(name, _function(reference), index, made, cpp, work, changed)


def _function(named: _Named) -> Callable[..., Any]:
    module, file, name = named
    found: Any = _module(module, file)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


@functools.cache
def _module(name: str, file: str) -> ModuleType:
    """The module as it is imported here; a script, or a file that no path leads to, is loaded under a name of its own."""
    known = sys.modules.get(name)
    if known is None and name != "__main__" and importlib.util.find_spec(name) is not None:
        known = importlib.import_module(name)
    if (
        known is not None
        and getattr(known, "__file__", None)
        and Path(str(known.__file__)).resolve() == Path(file).resolve()
    ):
        return known
    spec = importlib.util.spec_from_file_location(f"kgen_external_{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise DefinitionError(
            f"{file} is not a Python file; the reference of an external computation is expected in one"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
